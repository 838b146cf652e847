"""Records that a check covers: the sources of a window, or the records of a scope or task."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from caliber.access.visibility import Readers
from caliber.context.record.record import unpack_record
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.storage import ReadConsistency
from caliber.model.windows import ContextWindow
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.search.service import Searching


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one relation that a check covers."""

    owners: RelationSnapshot
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class Target:
    """The records that a check covers, and the ids of sources that cannot be read: gone, or hidden."""

    snapshot: ResidentSnapshot
    rows: list[Rows]
    missing: list[uuid.UUID]
    trajectory_id: uuid.UUID


class Targets:
    """Finds the records of windows, scopes and tasks, as one principal sees them."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._reader = ContextService(engine, principal, searching)
        self._readers = self._reader.searching.readers

    def find(self, target: Any) -> Target:
        """Return the records of a window, or of the window, scope or task under an id.

        Raises: ConstraintViolation for an id of none of them.
        """
        if isinstance(target, ContextWindow):
            keys = [each.id for section in target.sections for each in section.sources if each.id is not None]
            return self._of_window(self._engine.snapshot(), target.trajectory_id, keys)
        key = arguments.as_uuid(target, "target")
        snapshot = self._engine.snapshot(ReadConsistency.LATEST)
        for name in _containers(self._engine.store.catalog):
            owners = snapshot[name]
            number = owners.find(key.bytes)
            if number >= 0 and (self._readers.serves_tasks or self._readers.allows(owners, number)):
                return self._below(snapshot, owners, number)
        try:
            window, _, _ = self._reader.recorded(key)
        except NotFound:
            reason = f"{key} is no window, scope or task that can be read here; windows that expired are gone"
            if self._readers.serves_tasks and not self._readers.everything:
                reason += ", and those of a user's task need user="
            raise ConstraintViolation(constraint="context_window_exists", reason=reason) from None
        record = unpack_record(window.record)
        return self._of_window(snapshot, record.facts.trajectory_id, list(record.ids.values()))

    def _of_window(self, snapshot: ResidentSnapshot, task: uuid.UUID, keys: list[uuid.UUID]) -> Target:
        return Target(snapshot, *rows_of(snapshot, self._reading(task), keys), task)

    def _reading(self, task: uuid.UUID) -> Readers:
        """Return the readers of a window's task; of one that was purged, those of the principal."""
        try:
            return self._readers.acting_for(task)
        except NotFound:
            return self._readers

    def _below(self, snapshot: ResidentSnapshot, owners: RelationSnapshot, number: int) -> Target:
        """Return the statements of a task or scope: its own records, and those that were drawn from the task."""
        key = owners.entity_id(number).bytes
        column = owners.relation.rights.task
        task = key if column is None else owners.interned(column)[owners.column(column)[number]]
        readers = self._reading(uuid.UUID(bytes=task))
        out = []
        for relation in self._engine.store.catalog.relations:
            if relation.grounded is None:
                continue
            rows = snapshot[relation.name]
            numbers: list[int] = []
            if relation.rights.task is not None:
                numbers = list(self._members(rows, task))
                numbers = numbers if column is None else _referring(rows, owners.relation, key, numbers)
            elif column is None:
                numbers = _drawn_from(rows, key)
            numbers = [each for each in numbers if readers.allows(rows, each)]
            if numbers:
                out.append(Rows(rows, numbers))
        return Target(snapshot, out, [], uuid.UUID(bytes=task))

    @staticmethod
    def _members(rows: RelationSnapshot, task: bytes) -> Iterator[int]:
        """Yield the rows in use that belong to a task."""
        column = rows.relation.rights.task
        assert column is not None
        if column in rows.relation.resident.groups:
            yield from rows.group(column, task).tolist()
            return
        code = rows.interned_codes(column).get(task)
        if code is not None:
            yield from np.flatnonzero((rows.column(column) == code) & rows.live_mask).tolist()


def rows_of(
    snapshot: ResidentSnapshot, readers: Readers, keys: Iterable[uuid.UUID]
) -> tuple[list[Rows], list[uuid.UUID]]:
    """Return the rows of some records, and the ids of those that are gone, or hidden from ``readers``."""
    found: dict[int, Rows] = {}  # records that are not in memory come each in a snapshot of its own
    missing = []
    unique = list(dict.fromkeys([key.bytes for key in keys]))
    for key, located in zip(unique, snapshot.locate_all(unique), strict=True):
        if located is None or not readers.allows(*located):
            missing.append(uuid.UUID(bytes=key))
            continue
        owners, number = located
        rows = found.get(id(owners))
        if rows is None:
            rows = found[id(owners)] = Rows(owners, [])
        rows.numbers.append(number)
    return list(found.values()), missing


def _containers(catalog: Catalog) -> list[str]:
    """Return the relations that records with statements are parts of: tasks and scopes."""
    keys = [key for relation in catalog.relations if relation.grounded for key in relation.foreign_keys]
    return list(dict.fromkeys(key.relation for key in keys if key.on_delete == "cascade"))


def _referring(rows: RelationSnapshot, to: Relation, key: bytes, numbers: list[int]) -> list[int]:
    """Return which of some rows refer to a record."""
    for foreign in rows.relation.foreign_keys:
        if foreign.relation == to.name:
            values = rows.packed_values(foreign.column, numbers)
            return [number for number, value in zip(numbers, values, strict=True) if value == key]
    return []


def _drawn_from(rows: RelationSnapshot, task: bytes) -> list[int]:
    """Return the rows that name a task among their sources."""
    relation = rows.relation
    assert relation.grounded is not None
    columns = [name for name in relation.grounded.sources if relation.column(name).type is ColumnType.UUID_ARRAY]
    numbers = rows.rows().tolist()
    return [
        number
        for column in columns
        for number, value in zip(numbers, rows.packed_values(column, numbers), strict=True)
        if value and task in value
    ]
