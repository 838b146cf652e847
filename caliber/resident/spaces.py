"""Tracking of a tenant's embedding spaces: the active one, and those whose vectors are loaded in memory.

Vectors of a retired space stay on disk until they are dropped, and are neither loaded nor updated.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from caliber.model.embedding import EmbeddingSpace, SpaceState
from caliber.schema.relations import EMBEDDING_SPACE
from caliber.storage.compile.codec import Row, codec_of


class Spaces:
    """The embedding spaces at one commit boundary. Changed by one thread at a time."""

    __slots__ = ("_by_ordinal", "_codec", "by_id", "revived")

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
