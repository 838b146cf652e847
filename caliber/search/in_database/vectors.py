"""Distances of all vectors of a space, for databases that have no index of them, and where one finds too few.

Vectors read once are kept, up to a limit, and brought up to the commit that a search sees: reading them anew takes most
of the time of a search. Source: docs/decisions/0209.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.model.embedding import DistanceMetric, EmbeddingSpace
from caliber.schema.traits import Mirror
from caliber.storage.compile.codec import dump_json, last_of
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.changes import RELOAD_RECORD, unpack_changes

_PAGE_VECTORS: Final = 1_024
"""Vectors that are read at once: a megabyte or so stays in the caches of a processor."""
_KEPT_BYTES: Final = 32 << 20
"""Bytes of the largest space whose vectors are kept: a larger one is read for each query."""
_CHANGES_READ: Final = 4_096
"""Commits since vectors were kept that a search looks through: of more it reads the vectors anew, as soon done."""


class _Page(NamedTuple):
    """Some vectors. Shapes: keys of owners list[n]; kinds, as places among all, int64[n]; vectors float32[n, d]"""

    keys: list[bytes]
    kinds: NDArray[np.int64]
    vectors: NDArray[np.float32]


class _Kept(NamedTuple):
    """The vectors of a space at a boundary, the last one's ordinal, and how many bytes they have."""

    space: EmbeddingSpace | None = None
    sequence: int = -1
    last: int = -1
    size: int = 0
    pages: tuple[_Page, ...] = ()


class StoredVectors:
    """The vectors of one store that is not in memory. Safe to share between threads: what it keeps is only replaced."""

    def __init__(self, store: Store, kinds: Sequence[str]) -> None:
        self._store = store
        self._codes = {each.code for each in store.catalog.mirrored if each.resident.form is Mirror.VECTORS}
        self._number = {kind: at for at, kind in enumerate(kinds)}
        self._kept = _Kept()

    def forget(self, sequence: int) -> None:
        """Keep no vectors of a boundary before this one: some may be of texts that were erased."""
        self._kept = _Kept(sequence=sequence)

    def nearest(
        self,
        session: StatementSession,
        space: EmbeddingSpace,
        query: NDArray[np.float32],
        ask: Callable[..., list[tuple[int, str, bytes, bytes]]],
    ) -> tuple[list[bytes], dict[str, NDArray[np.int64]]]:
        """Return the owners of all vectors, and their places by kind, the nearest first.

        ``ask`` runs a statement of search in ``session``, unless the time of the call is over.
        """
        keys: list[bytes] = []
        kinds, distances = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for page in self._pages(session, space, ask):
            keys += page.keys
            kinds.append(page.kinds)
            distances.append(distances_of(page.vectors, query, space))
        order = np.argsort(np.concatenate(distances), kind="stable")
        kind_of = np.concatenate(kinds)[order]
        return keys, {kind: order[kind_of == at] for kind, at in self._number.items()}

    def _pages(
        self,
        session: StatementSession,
        space: EmbeddingSpace,
        ask: Callable[..., list[tuple[int, str, bytes, bytes]]],
    ) -> Iterator[_Page]:
        """Yield all vectors of a space that a session sees: those kept, then those behind them as they are read."""
        keeps = self._store.feed.ordered
        sequence = session.run(self._store.statements["change.bounds"], ())[0][1] if keeps else -1
        kept = began = self._kept
        if not self._holds(session, kept, space, sequence):
            kept = _Kept()
        yield from kept.pages
        last, size, pages = kept.last, kept.size, list(kept.pages)
        while rows := ask("vectors", space.space_id.bytes, dump_json(list(self._number)), last, _PAGE_VECTORS):
            vectors = np.frombuffer(b"".join([row[3] for row in rows]), "<f4").reshape(len(rows), space.dimensions)
            page = _Page([row[2] for row in rows], np.array([self._number[row[1]] for row in rows]), vectors)
            yield page
            last, size = last_of(rows, last), size + vectors.nbytes
            if keeps and size <= _KEPT_BYTES:
                pages.append(page)
        # Not where another search kept them meanwhile, or an erasure let them go.
        if keeps and self._kept is began and sequence >= began.sequence:
            fits = size <= _KEPT_BYTES
            self._kept = _Kept(space, sequence, last, size, _merged(pages)) if fits else _Kept(sequence=sequence)

    def _holds(self, session: StatementSession, kept: _Kept, space: EmbeddingSpace, sequence: int) -> bool:
        """Return whether vectors were only added to a space, behind its last one, since some were kept."""
        if kept.space != space or not 0 <= sequence - kept.sequence <= _CHANGES_READ:
            return False
        since = session.run(self._store.statements["change.since"], (kept.sequence,))
        if kept.sequence < sequence and (not since or since[0][0] != kept.sequence + 1):
            return False  # the log of changes was cut
        records = [entries for _, _, entries in since]
        return RELOAD_RECORD not in records and all(
            code not in self._codes or ordinal > kept.last
            for entries in records
            for code, _, ordinal, _ in unpack_changes(entries)
        )


def _merged(pages: list[_Page]) -> tuple[_Page, ...]:
    """Return pages with the last ones made one while they are small: each search may add a few vectors."""
    while len(pages) > 1 and len(pages[-1].keys) + len(pages[-2].keys) <= _PAGE_VECTORS:
        last, before = pages.pop(), pages.pop()
        vectors = np.concatenate((before.vectors, last.vectors))
        pages.append(_Page(before.keys + last.keys, np.concatenate((before.kinds, last.kinds)), vectors))
    return tuple(pages)


def distances_of(rows: NDArray[np.float32], query: NDArray[np.float32], space: EmbeddingSpace) -> NDArray[np.float32]:
    """Return distances that order vectors by nearness; the searcher scores the nearest exactly. Shapes: f32[n]"""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if space.metric is DistanceMetric.L2:
            distances: NDArray[np.float32] = np.linalg.norm(rows - query, axis=1)
            return distances
        products = rows @ query
        if space.metric is DistanceMetric.COSINE:
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            products = np.where(norms > 0, products / norms, 0)
        return -products
