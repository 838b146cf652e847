"""Rows read from the database for memory: temporary mirrors of a tenant that is not resident, and evicted texts.

Source: design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from caliber.kernels.evaluator import Evaluator
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import NotFound
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.tables import layout_of
from caliber.resident.vectors import VectorIndex, VectorSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relations import EMBEDDING
from caliber.storage.compile.codec import Row, codec_of, dump_json
from caliber.storage.compile.derived import unpack_content
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store

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


def read_back(
    store: Store, snapshot: RelationSnapshot, numbers: Sequence[int], missing: Sequence[int], out: Any, place: int
) -> None:
    """Set the texts at the places ``missing``, of the rows there, in one statement.

    For another column the whole rows as they are now, so that a record is of one version; None for one that is gone.

    Raises: NotFound for a record that has been deleted since, and whose text was not kept
    """
    by_ordinal = {}
    for at in missing:
        packed = snapshot.packed(numbers[at])
        by_ordinal[at] = (packed[0], packed[snapshot.layout.version_place])
    plan = store.plans[snapshot.relation.name].get_many
    assert plan is not None
    with store.read() as session:
        ordinals = sorted({ordinal for ordinal, _ in by_ordinal.values()})
        rows = {row[0]: row for row in session.run(plan, (dump_json(ordinals),))}
        for at, (ordinal, version) in by_ordinal.items():
            row = rows.get(ordinal)
            if place != snapshot.layout.text_place:  # of no window: earlier ones are not kept
                out[at] = row
            else:
                out[at] = _text_at(store, session, snapshot, ordinal, version, row)


def _text_at(
    store: Store, session: StatementSession, snapshot: RelationSnapshot, ordinal: int, version: int, row: Row | None
) -> Any:
    layout, relation = snapshot.layout, snapshot.relation
    if row is not None and row[layout.version_place] == version:
        return row[layout.text_place]
    # The row changed since: its content at our boundary was kept in ``content_version``.
    kept = session.run(store.statements["content.at"], (relation.name, ordinal, version))
    if kept:
        return unpack_content(kept[0][0])[relation.columns[layout.text_place - 1].name]
    if row is None:
        raise NotFound(entity_type=relation.name, id=f"ordinal {ordinal}")
    return row[layout.text_place]
