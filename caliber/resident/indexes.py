"""Embedding spaces of one tenant, and a vector index per kind of record and space: loaded, then updated by commits.

Vectors of a retired space stay on disk until they are dropped, and are neither loaded nor updated.
Source: design, section 5.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from caliber.model.embedding import EmbeddingSpace, SpaceState
from caliber.resident.mirror import Generation
from caliber.resident.vectors import VectorIndex
from caliber.schema.relations import EMBEDDING, EMBEDDING_SPACE
from caliber.storage.compile.codec import Row, blaming, codec_of, damaged
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import RowChange

IndexKey = tuple[str, uuid.UUID]
"""A kind of record, and a space."""

_PAGE_ROWS = 100_000
_CODEC = codec_of(EMBEDDING)
_SPACE, _TYPE, _OWNER = _CODEC.index("space_id"), _CODEC.index("owner_type"), _CODEC.index("owner_id")
_VECTOR, _VERSION = _CODEC.index("vector"), _CODEC.index("version")


class VectorIndexes(dict[IndexKey, VectorIndex]):
    """Every index in memory. Changed by one thread at a time."""

    def __init__(self, segment_rows: int) -> None:
        super().__init__()
        self._segment_rows = segment_rows

    def load(
        self, session: StatementSession, plans: RelationPlans, spaces: Spaces, generations: Mapping[str, Generation]
    ) -> None:
        """Read all vectors of the spaces that are held."""
        held = {space.bytes for space in spaces.by_id if spaces.holds(space)}
        parts: dict[tuple[str, bytes], list[Row]] = {}
        for rows in pages(session, plans, _PAGE_ROWS):
            for row in rows:
                if row[_SPACE] in held:
                    parts.setdefault((row[_TYPE], row[_SPACE]), []).append(row)
        for (kind, space), part in parts.items():
            if kind not in generations:
                continue  # records of a memory that came after this process, or took the name of one that went
            self._put((kind, uuid.UUID(bytes=space)), part, spaces, generations[kind])

    def apply(
        self, changes: Sequence[RowChange], spaces: Spaces, generations: Mapping[str, Generation]
    ) -> set[IndexKey]:
        """Take over changed rows of ``embedding``, each once, after their owners; return which indexes changed."""
        by_index: dict[tuple[str, bytes], list[RowChange]] = {}
        for change in changes:
            by_index.setdefault((change.row[_TYPE], change.row[_SPACE]), []).append(change)
        changed = set()
        for (kind, space), index_changes in by_index.items():
            key = (kind, uuid.UUID(bytes=space))
            if not spaces.holds(key[1]) or kind not in generations:
                continue
            index = self.get(key)
            put = [change.row for change in index_changes if change.operation != DELETE]
            if index is not None:
                index.remove_many([change.row[0] for change in index_changes if change.operation == DELETE])
                put = [row for row in put if index.version_of(row[0]) < row[_VERSION]]
            if index is not None or put:
                changed.add(key)
                self._put(key, put, spaces, generations[kind])
        return changed

    def _put(self, key: IndexKey, rows: Sequence[Row], spaces: Spaces, owners: Generation) -> None:
        index = self.get(key)
        if index is None:
            space = spaces.by_id[key[1]]
            index = self[key] = VectorIndex(space.dimensions, space.metric.value, self._segment_rows)
        with blaming(EMBEDDING, rows):
            wrong = next((row for row in rows if len(row[_VECTOR]) != 4 * index.dimensions), None)
            if wrong is not None:
                raise damaged(
                    f"a stored embedding is damaged (ordinal {wrong[0]}: its vector has not the"
                    f" {index.dimensions} dimensions of its space)",
                    relation=EMBEDDING.name,
                )
            index.put_many(
                [row[0] for row in rows],
                [row[_VERSION] for row in rows],
                [row[_OWNER] for row in rows],
                [row[_VECTOR] for row in rows],
                owners.newest([row[_OWNER] for row in rows]),
            )

    def lacking(self, key: IndexKey, owners: Generation) -> list[int]:
        """Return the rows of the live records that have no vector in a space."""
        without = owners.live[: owners.length].copy()
        index = self.get(key)
        if index is not None:
            size = index.matrix.size
            rows = index.owner_rows.view(size)[index.versions.view(size) > 0]
            without[rows[rows >= 0]] = False
        found: list[int] = np.flatnonzero(without).tolist()
        return found

    def remove(self, ordinal: int) -> set[IndexKey]:
        """Retire the vector of an embedding row; return the index it was in."""
        return {key for key, index in self.items() if index.remove(ordinal)}

    def owner_moved(self, kind: str, owner: bytes, row: int, *, fresh: bool = False) -> None:
        """Note that the newest row of a record in its mirror is now ``row``; a ``fresh`` one is its first there."""
        for (owner_kind, _), index in self.items():
            if owner_kind == kind:
                index.owner_moved(owner, row, fresh=fresh)

    def renumber(self, kind: str, owners: Generation) -> set[IndexKey]:
        """Take over the rows of a mirror that was compacted; return which indexes changed."""
        keys = {key for key in self if key[0] == kind}
        for key in keys:
            self[key].renumber(owners.index)
        return keys

    def forget(self, keys: Iterable[IndexKey]) -> None:
        """Give up indexes whose spaces are held no longer."""
        for key in keys:
            del self[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(index.nbytes for index in self.values())


class Spaces:
    """The embedding spaces at one commit boundary. Changed by one thread at a time."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._codec = codec_of(EMBEDDING_SPACE)
        self._by_ordinal: dict[int, EmbeddingSpace] = {}
        self.by_id: dict[uuid.UUID, EmbeddingSpace] = {}
        self.revived = False
        """Whether a space came back whose vectors were not followed: they have to be read."""
        for row in rows:
            self._set(row[0], self._codec.decode(row))

    def put(self, row: Row) -> None:
        """Take over a space's new state."""
        space: EmbeddingSpace = self._codec.decode(row)
        existing = self.by_id.get(space.space_id)
        if existing is not None and space.version <= existing.version:
            return
        self._set(row[0], space)
        if existing is None or space.state is SpaceState.RETIRED:
            return
        # Two steps at once: it may have been retired in between, and its vectors changed unseen.
        self.revived |= existing.state is SpaceState.RETIRED or space.version > existing.version + 1

    def _set(self, ordinal: int, space: EmbeddingSpace) -> None:
        self._by_ordinal[ordinal] = space
        self.by_id = {**self.by_id, space.space_id: space}

    def remove(self, ordinal: int) -> None:
        """Forget a space that was deleted."""
        space = self._by_ordinal.pop(ordinal, None)
        if space is not None:
            self.by_id = {key: other for key, other in self.by_id.items() if key != space.space_id}

    def holds(self, space_id: uuid.UUID) -> bool:
        """Return whether the vectors of a space are kept in memory."""
        space = self.by_id.get(space_id)
        return space is not None and space.state is not SpaceState.RETIRED

    @property
    def in_use(self) -> EmbeddingSpace | None:
        """The space that is searched, or None before there is one."""
        active = [at for at, space in self._by_ordinal.items() if space.state is SpaceState.ACTIVE]
        return self._by_ordinal[max(active)] if active else None
