"""Lookup of records for ``replay`` and ``explain``: content at a past version, and ids, also of deleted records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.derived import pack_content, unpack_content

_MANY: Final = 1_000
"""Rows that one statement reads."""


class StoredContents:
    """Reads contents from the store: kept versions first, then the present ones."""

    def __init__(self, engine: Engine, readers: Readers | None = None) -> None:
        self._engine = engine
        self._readers = readers
        self._fetched: dict[tuple[str, int], Row | None] = {}

    def fetch(self, relation: str, ordinals: Sequence[int]) -> None:
        """Read many rows as they are now in a few statements: what is asked of them later costs none."""
        plans = self._engine.store.plans.get(relation)
        if plans is None or plans.get_many is None:
            return
        at = plans.codec.index("ordinal")
        with self._engine.store.read() as session:
            for first in range(0, len(ordinals), _MANY):
                some = ordinals[first : first + _MANY]
                self._fetched.update(dict.fromkeys((relation, ordinal) for ordinal in some))
                rows = session.run(plans.get_many, (dump_json(list(some)),))
                self._fetched.update({(relation, int(row[at])): row for row in rows})

    def present(self, relation: str, ordinal: int) -> Mapping[str, Any] | None:
        """Return the content columns of a row as it is now; None if it is deleted, or hidden."""
        found_relation = self._engine.store.catalog.by_name.get(relation)
        if found_relation is None:
            return None
        row = self._row(relation, ordinal)
        if row is None or self._hidden(found_relation, row):
            return None
        return unpack_content(pack_content(found_relation, row))

    def content(self, relation: str, ordinal: int, version: int) -> Mapping[str, Any] | None:
        """Return the content columns of a row as of a version; None if they are deleted, or hidden by now."""
        name, found_relation = relation, self._engine.store.catalog.by_name.get(relation)
        with self._engine.store.read() as session:
            kept = session.run(self._engine.store.statements["content.at"], (name, ordinal, version))
            if kept and self._readers is None:
                return unpack_content(kept[0][0])
        row = None if found_relation is None else self._row(name, ordinal)
        if row is not None and found_relation is not None and self._hidden(found_relation, row):
            return None
        if kept:
            return unpack_content(kept[0][0])
        return None if row is None or found_relation is None else unpack_content(pack_content(found_relation, row))

    def identity(self, relation: str, ordinal: int, known: uuid.UUID | None) -> uuid.UUID | None:
        """Return ``known`` or the id of a row, also of a deleted one whose content is kept; None for a hidden one."""
        if known is not None and not known.int:
            return None  # it was forgotten
        if known is not None and self._readers is None:
            return known
        name, found_relation = relation, self._engine.store.catalog.by_name.get(relation)
        row = None if found_relation is None else self._row(name, ordinal)
        if row is not None and found_relation is not None:
            if self._hidden(found_relation, row):
                return None
            plans = self._engine.store.plans[name]
            return uuid.UUID(bytes=row[plans.codec.index(found_relation.key[0])])
        if known is not None:
            return known
        with self._engine.store.read() as session:
            gone = session.run(self._engine.store.statements["content.owner"], (name, ordinal))
        return uuid.UUID(bytes=gone[0][0]) if gone else None

    def _row(self, name: str, ordinal: int) -> Row | None:
        if (name, ordinal) in self._fetched:
            return self._fetched[name, ordinal]
        plan = self._engine.store.plans[name].get_many
        assert plan is not None
        with self._engine.store.read() as session:
            rows: list[Row] = session.run(plan, (dump_json([ordinal]),))
        return rows[0] if rows else None

    def entity(self, record_id: uuid.UUID) -> Any | None:
        """Return the record under an id as it is now, or None, also for one that the principal may not see."""
        found = self._engine.memory.snapshot.locate(record_id.bytes)
        if found is None:
            return None
        relation, entity = found[0].relation, self._engine.memory.entity(*found)
        if self._readers is None or self._readers.everything:
            return entity
        return self._readers.shown(relation, entity) if self._readers.allows_entity(relation, entity) else None

    def _hidden(self, relation: Relation, row: Row) -> bool:
        return self._readers is not None and not self._readers.allows_row(relation, row)

    def relation(self, record_id: uuid.UUID) -> str | None:
        """Return the relation of a record; None for a deleted one."""
        found = self._engine.memory.snapshot.locate(record_id.bytes)
        return None if found is None else found[0].relation.name

    def ordinal(self, record_id: uuid.UUID) -> int | None:
        """Return the ordinal of a record, also of a deleted one whose content is kept; None for neither."""
        found = self._engine.memory.snapshot.locate(record_id.bytes)
        if found is not None:
            if self.entity(record_id) is None:
                return None
            number: int = found[0].packed(found[1])[0]
            return number
        with self._engine.store.read() as session:
            gone = session.run(self._engine.store.plans["content_version"].lists["list_by_owner"], (record_id.bytes,))
        if not gone:
            return None
        return int(self._engine.store.plans["content_version"].codec.decode(gone[0]).owner_ordinal)
