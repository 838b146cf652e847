"""Reading back of texts that were evicted from memory, from the database at the snapshot's boundary.

Source: design, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caliber.model.errors import NotFound
from caliber.resident.mirror import RelationSnapshot
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.kept_content import unpack_content
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store


def read_back(
    store: Store, snapshot: RelationSnapshot, numbers: Sequence[int], missing: Sequence[int], out: list[Any]
) -> None:
    """Set the texts at the places ``missing``, of the rows there, in one statement.

    Raises:  NotFound for a record that has been deleted since, and whose text was not kept
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
            out[at] = _text_at(store, session, snapshot, ordinal, version, rows.get(ordinal))


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
