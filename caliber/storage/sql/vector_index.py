"""Protocol of a backend's vector index: nearest-neighbour search over vectors that are not in memory.

An index finds candidates; the kernels that search memory then score them exactly. Where an index cannot return as many
as requested, every visible vector is compared: a filter never hides a match.

Source: design, section 3; K-102 to K-104, K-154; docs/decisions/0121.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from caliber.model.embedding import EmbeddingSpace
from caliber.model.progress import Progress
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import StatementSession


class Near(NamedTuple):
    """A question: the records of one kind that are nearest to a vector, as one principal sees them.

    Fields as in the statements of full text.
    """

    kind: str
    query: bytes
    seen: str
    at_us: int
    filters: Sequence[str | None]
    records: int


class SpaceIndex(NamedTuple):
    """The index of one space: its definition, whether it is usable, and the progress of its build."""

    method: str
    usable: bool
    doing: str = ""


class VectorIndexes(Protocol):
    """The vector indexes of one open store."""

    def open(self, space: EmbeddingSpace) -> bool:
        """Index a space that is about to be used, if it holds few vectors; return whether it has an index now."""
        ...

    def build(self, space: EmbeddingSpace, progress: Progress | None = None) -> bool:
        """Index a space that holds vectors, while others write; return whether it has an index now.

        An index as configured stays; one that differs, or was never finished, is rebuilt. None is built where the
        configuration or the dimensions require exact comparison, or there are too few vectors.
        """
        ...

    def drop(self, space_id: uuid.UUID) -> bool:
        """Remove the index of a space; return whether there was one."""
        ...

    def of(self, space_id: uuid.UUID) -> SpaceIndex | None:
        """Return the index of a space, or None."""
        ...

    def nearest(self, session: StatementSession, space: EmbeddingSpace, near: Near) -> list[Row] | None:
        """Return vectors near to a query, as ``search.vectors_K`` does: all there are, or of as many records as asked.

        None where every vector has to be read: there is no index, or it found too few of many.
        """
        ...
