"""Candidates of a search in a database: the records that words, days, vectors and links bring before the ranking.

All statements run in one session, hence at one commit boundary, and find only records that the principal may see. Each
leg adds a bounded number of records, which the usual searcher then ranks.

Databases that have no index of a space's vectors, and searches where one finds too few, take the distances of all.
Vectors read once are kept, up to a limit, and brought up to the commit that a search sees: reading them anew takes most
of the time of a search.

Source: design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.model.embedding import DistanceMetric, EmbeddingSpace
from caliber.schema.predicate import all_of
from caliber.schema.relations import BY_NAME
from caliber.schema.traits import Mirror
from caliber.schema.validity import asked_us
from caliber.search.query import Query
from caliber.search.ranking.days import SAID_WITHIN_US
from caliber.search.ranking.graph import DEPTH
from caliber.search.request import Asked
from caliber.storage.compile.codec import Row, dump_json, last_of
from caliber.storage.compile.conditions import Filters, compile_stored, parameters, unfiltered
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Near, Store
from caliber.storage.sql.full_text import PART_MARK
from caliber.storage.write.changes import RELOAD_RECORD, unpack_changes
from caliber.text.dates import DAY_US

_MORE_CHECKED: Final = 8
"""Factor by which more near records are checked where some of them may not be seen, or do not meet the filter."""


class Candidates:
    """The candidates of one search.

    ``edges`` lead to some of the records.
    """

    def __init__(
        self,
        session: StatementSession,
        store: Store,
        statements: Mapping[str, Plan],
        settings: SearchConfig,
        vectors: StoredVectors,
        asked: Asked,
    ) -> None:
        self._session = session
        self._vectors = vectors
        self._store = store
        self._statements = statements
        self._settings = settings
        self._asked = asked
        self._limit = max(settings.vector_candidates, settings.candidate_factor * asked.limit)
        self._relations = store.catalog.by_name
        self._filters = {kind: self._encoded(kind) for kind in asked.kinds}
        self._seen = asked.readers.stated(archived=asked.archived)
        self._ordinals: dict[str, set[int]] = {kind: set() for kind in asked.kinds}
        self.edges: dict[int, Row] = {}

    def _encoded(self, kind: str) -> list[Filters]:
        """Return the filters of which a record meets one; no record meets two."""
        relation, where, among = self._relations[kind], self._asked.where, None
        predicate = None if where is None else where.predicates[kind]
        if where is not None and parameters(relation, predicate) is None:
            # All ordinals that match: a limit would leave out records.
            matching = compile_stored(where.predicates[kind], relation, self._store.dialect)
            among, predicate = matching.ordinals(self._session, where.variables, check=self._asked.check), None
        reach = self._asked.reach.get(kind, (None,))
        found = [parameters(relation, all_of(predicate, each), among) for each in reach]
        encodable = [filters for filters in found if filters is not None]
        assert len(encodable) == len(found)  # reach consists of values of columns only
        return encodable

    def ask(self, statement: str, *values: Any) -> list[Row]:
        """Run one statement of search, if there is still time."""
        if self._asked.check is not None:
            self._asked.check()
        return self._session.run(self._statements[f"search.{statement}"], values)

    def _seen_at(self, kind: str) -> tuple[str, int]:
        return self._seen, asked_us(self._relations[kind], self._asked.as_of_us, self._asked.now_us)

    def _each(self, statement: str, kind: str, limit: int, *values: Any) -> Iterator[Row]:
        for filters in self._filters[kind]:
            yield from self.ask(f"{statement}_{kind}", *values, *self._seen_at(kind), limit, *filters)

    def _add(self, statement: str, *values: Any) -> None:
        for kind, ordinals in self._ordinals.items():
            ordinals.update(row[0] for row in self._each(statement, kind, self._limit, *values))

    def matching(self) -> dict[str, int]:
        """Return how many records of each kind may be hits."""
        return {
            kind: sum(int(self.ask(f"matching_{kind}", *self._seen_at(kind), *each)[0][0]) for each in filters)
            for kind, filters in self._filters.items()
        }

    def listed(self, statement: str, limit: int) -> dict[str, list[Row]]:
        """Return the ``newest`` records of each kind, or those ``used`` last, in that order."""
        found = {}
        for kind in self._filters if limit else ():
            ordinals = [row[0] for row in self._each(statement, kind, limit)]
            rows = {row[0]: row for row in self._rows(kind, ordinals)}
            found[kind] = [rows[ordinal] for ordinal in ordinals]
        return found

    def recent(self) -> dict[str, list[Row]]:
        """Return the candidates of an empty query."""
        return self.listed("newest", self._limit)

    # --- legs --------------------------------------------------------------------------------------

    def found(self, query: Query) -> dict[str, list[Row]]:
        """Return the candidates of a query by kind."""
        terms = list(dict.fromkeys((*query.terms, *query.day_terms)))
        beginnings = [f"{mark}{beginning}" for beginning in query.prefixes for mark in ("", PART_MARK)]
        if terms or beginnings:
            self._add("words", dump_json({"terms": terms, "beginnings": beginnings}))
        if query.when is not None and (query.of_days_only or not (query.terms or query.prefixes)):
            # Wider by any offset from UTC, as days of some records are of other zones; then those that mean the days.
            for wider in (DAY_US, SAID_WITHIN_US):
                self._add("of_days", query.when.first_us - wider, query.when.last_us + wider)
        if self._settings.weights.vector if self._asked.meaning is None else self._asked.meaning:
            self._near()
        self._beside()
        rows = self._read()
        if self._settings.weights.graph and self._asked.meaning is None:
            self._follow(rows)
        return rows

    def nearest(self) -> dict[str, list[Row]]:
        """Return the records whose vectors are nearest, however far they are."""
        self._near()
        return self._read()

    def _near(self) -> None:
        vector, space = self._asked.vector, self._asked.space
        if vector is None or space is None:
            return
        compared: tuple[list[bytes], dict[str, NDArray[np.int64]]] | None = None
        for kind, ordinals in self._ordinals.items():
            for filters in self._filters[kind]:
                found = self._by_index(kind, filters, space, vector)
                if found is None:
                    compared = compared or self._vectors.nearest(self._session, space, vector, self.ask)
                    keys, nearest = compared
                    found = self._met(kind, filters, keys, nearest[kind])
                ordinals.update(found)

    def _by_index(
        self, kind: str, filters: Filters, space: EmbeddingSpace, query: NDArray[np.float32]
    ) -> list[int] | None:
        """Return the nearest records of those that an index finds; None where all vectors have to be compared."""
        index = self._store.vector_index
        near = Near(kind, query.astype("<f4").tobytes(), *self._seen_at(kind), filters, self._limit)
        rows = None if index is None else index.nearest(self._session, space, near)
        if not rows:
            return None if rows is None else []
        vectors = np.frombuffer(b"".join([row[3] for row in rows]), "<f4").reshape(len(rows), space.dimensions)
        order = np.argsort(distances_of(vectors, query, space), kind="stable")
        return list(dict.fromkeys(rows[at][1] for at in order.tolist()))[: self._limit]

    def _met(self, kind: str, filters: Filters, keys: list[bytes], nearest: NDArray[np.int64]) -> list[int]:
        """Return the first of some records that may be seen and meet a filter: looked up until there are enough.

        Shapes: nearest places among ``keys`` int64[n]
        """
        found: dict[int, None] = {}
        start, count = 0, self._limit
        while start < len(nearest) and len(found) < self._limit:
            some = list(dict.fromkeys(keys[at] for at in nearest[start : start + count].tolist()))
            met = self.ask(f"met_{kind}", _hex(some), *self._seen_at(kind), len(some), *filters)
            ordinal_of = {key: ordinal for ordinal, key in met}
            found |= {ordinal_of[key]: None for key in some if key in ordinal_of}
            start, count = start + count, _MORE_CHECKED * count
        return list(found)[: self._limit]

    def _beside(self) -> None:
        """Add the records that stand beside those found, as far as they lend or are linked."""
        lending = self._settings.keyword.neighbour_boost > 0
        linked = self._settings.graph.conversation and self._settings.weights.graph > 0
        steps = max(2 if lending else 0, DEPTH if linked else 0)
        for kind, ordinals in self._ordinals.items():
            if steps and ordinals and self._relations[kind].neighbours is not None:
                ordinals.update(row[0] for row in self.ask(f"around_{kind}", dump_json(sorted(ordinals)), steps))

    def _follow(self, rows: dict[str, list[Row]]) -> None:
        """Add the records that links lead to."""
        edge = BY_NAME["edge"]
        ends = [(edge.index(f"{end}_type") + 1, edge.index(f"{end}_id") + 1) for end in ("source", "target")]
        seen = {row[1] for some in rows.values() for row in some}
        following: Iterable[bytes] = seen
        for _ in range(DEPTH):
            edges = self.ask("edges_of", _hex(following))[: self._limit]
            self.edges.update((row[0], row) for row in edges)
            reached = {(row[kind], row[key]) for row in edges for kind, key in ends}
            following = set()
            for kind in rows:
                keys = [key for name, key in reached if name == kind and key not in seen]
                seen.update(keys)
                if keys:
                    every = unfiltered(self._relations[kind])
                    met = self.ask(f"met_{kind}", _hex(keys), *self._seen_at(kind), len(keys), *every)
                    rows[kind] += self._rows(kind, [row[0] for row in met])
                    following |= {row[1] for row in met}
            if not following:
                break

    # --- rows --------------------------------------------------------------------------------------

    def _read(self) -> dict[str, list[Row]]:
        return {kind: self._rows(kind, ordinals) for kind, ordinals in self._ordinals.items()}

    def _rows(self, kind: str, ordinals: Iterable[int]) -> list[Row]:
        return rows_of(self._session, self._store, kind, ordinals)

    def vectors_of(self, space: EmbeddingSpace, keys: Iterable[bytes]) -> list[Row]:
        """Return the vectors of records."""
        return self.ask("vectors_of", space.space_id.bytes, _hex(keys))

    def usage_of(self, keys: Iterable[bytes]) -> list[Row]:
        """Return rows of usage by their keys."""
        return self.ask("usage_of", _hex(keys))


def rows_of(session: StatementSession, store: Store, kind: str, ordinals: Iterable[int]) -> list[Row]:
    """Return the records of a kind with these ordinals."""
    plan, some = store.plans[kind].get_many, sorted(ordinals)
    assert plan is not None
    return session.run(plan, (dump_json(some),)) if some else []


def _hex(keys: Iterable[bytes]) -> str:
    return dump_json(sorted(key.hex().upper() for key in keys))


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
