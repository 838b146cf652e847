"""Temporary mirrors of a few rows and their vectors, for one call of a tenant that is not resident.

Source: design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from caliber.kernels.evaluator import Evaluator
from caliber.model.embedding import EmbeddingSpace
from caliber.resident.layout import layout_of
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.vectors import VectorIndex, VectorSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relations import EMBEDDING
from caliber.storage.compile.codec import Row, codec_of

_LEAST_ROWS = 64


class PartialMirrors:
    """Makes mirrors of rows that the caller has read. Safe to share between threads."""

    def __init__(self, evaluator: Evaluator, catalog: Catalog) -> None:
        self._by_name = catalog.by_name
        self._evaluator = evaluator

    def mirror(self, name: str, rows: Sequence[Row]) -> RelationSnapshot:
        """Return a mirror of rows of one relation, in the order of their ordinals, each once."""
        generation = Generation(layout_of(self._by_name[name]), max(_LEAST_ROWS, len(rows)))
        by_ordinal = {int(row[0]): row for row in rows}
        generation.load([by_ordinal[ordinal] for ordinal in sorted(by_ordinal)])
        return RelationSnapshot(generation, self._evaluator)

    def vectors(
        self, space: EmbeddingSpace, rows: Sequence[Row], owners: Mapping[str, RelationSnapshot]
    ) -> dict[tuple[str, uuid.UUID], VectorSnapshot]:
        """Return the vectors of one space, from rows of ``embedding`` whose owners are mirrored."""
        codec = codec_of(EMBEDDING)
        type_at, owner_at, vector_at = codec.index("owner_type"), codec.index("owner_id"), codec.index("vector")
        found: dict[str, list[Row]] = {}
        for row in rows:
            found.setdefault(row[type_at], []).append(row)
        out: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        for kind, vectors_of_kind in found.items():
            index = VectorIndex(space.dimensions, space.metric.value, max(_LEAST_ROWS, len(vectors_of_kind)))
            rows_of = owners[kind].generation.index
            index.put_many(
                [row[0] for row in vectors_of_kind],
                [row[codec.version_place] for row in vectors_of_kind],
                [row[owner_at] for row in vectors_of_kind],
                [row[vector_at] for row in vectors_of_kind],
                [rows_of.get(row[owner_at], -1) for row in vectors_of_kind],
            )
            out[kind, space.space_id] = VectorSnapshot(index, space.model_id)
        return out
