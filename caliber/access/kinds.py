"""Enforcement of an agent's rights by kind of record: masks of rows, single records, snapshots and writes.

``rights`` are those that the agent has by now; None are all. Source: C-422.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.identities import AGENTS
from caliber.access.owners import TaskOwners, names_of_reader
from caliber.access.rights import ALL, NONE, OWN, RightRules, Rights, scope_of
from caliber.kernels.evaluator import Allowed
from caliber.model.access import Principal
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.schema.relations import AGENT, BY_NAME, TRAJECTORY
from caliber.storage.compile.codec import Row, codec_of

_ACCESS: Final = codec_of(AGENT).index("memory_access")


class KindLimits:
    """The limits of one agent, where there are rules."""

    def __init__(self, owners: TaskOwners, rules: RightRules, principal: Principal) -> None:
        self._owners = owners
        self._rules = rules
        self._principal = principal
        # As one, so that threads may share it: rights, and what they were made of.
        self._known: tuple[tuple[Any, ...], Rights | None] = ((), None)
        self._own: dict[str, tuple[tuple[Generation, Rights, int], NDArray[np.bool_]]] = {}

    @classmethod
    def of(cls, owners: TaskOwners, principal: Principal) -> KindLimits | None:
        """Return the limits of a principal; None for one that no rule is about."""
        return None if principal.is_admin else cls(owners, owners.rules(), principal)

    def now(self, identities: RelationSnapshot, agents: RelationSnapshot) -> Rights | None:
        """Return the rights that the agent has by its names and its rows in the registry of now."""
        ids, names, _ = names_of_reader(identities, self._principal, None)
        rows = [agents.packed(number) for key in sorted(ids) if (number := agents.find(key)) >= 0]
        made_of = (ids, names, tuple(row[_ACCESS] for row in rows))
        known = self._known
        if made_of != known[0]:  # most changes of an agent's row are signs of life
            stated = [agent.memory_access for agent in map(codec_of(AGENT).decode, rows) if agent.memory_access]
            known = self._known = made_of, self._rules.of(names, ids, stated)
        return known[1]

    # --- reading ---------------------------------------------------------------------------------

    def may_read(self, rights: Rights | None, relation: Relation, row: Row) -> bool:
        """Return whether the agent may read a record as it is stored."""
        scope = ALL if rights is None else scope_of(rights.read, relation)
        return scope == ALL or (scope == OWN and rights is not None and self._is_own(rights, relation, row))

    def without_hidden(self, rights: Rights | None, relation: Relation, row: Row) -> Row:
        """Return a record as it is stored, without values that follow from records that the agent may not read.

        It has the values that it would have without any such records.
        """
        hidden = () if rights is None else self.hidden(rights, relation)
        if not hidden or rights is None:
            return row
        values, index, is_own = list(row), codec_of(relation).index, None
        for column, scope in hidden:
            if scope == OWN:
                is_own = self._is_own(rights, relation, row, author=False) if is_own is None else is_own
                if is_own:
                    continue
            place = index(column.name)
            values[place] = None if values[place] is None else _without_records(column)
        return tuple(values)

    @staticmethod
    def hidden(rights: Rights, relation: Relation) -> list[tuple[Column, str]]:
        """Return the columns that follow from records of which the agent may not read all, with the right on these."""
        found = [(column, rights.read.get(str(column.derived_from), ALL)) for column in relation.follows]
        return [each for each in found if each[1] != ALL]

    def reads_task(self, rights: Rights | None, key: bytes) -> bool:
        """Return whether the agent may read the record of a task."""
        tasks = self._owners.memory.snapshot[TRAJECTORY.name]
        number = tasks.find(key)
        return number < 0 or self.may_read(rights, TRAJECTORY, tasks.packed(number))

    def reads_subject(self, rights: Rights | None, relation: str, key: uuid.UUID | None) -> bool:
        """Return whether the agent may see an event about a record; a deleted record counts as of another agent."""
        known = BY_NAME.get(relation)
        kind = relation if known is None or known.rights.kind is None else known.rights.kind
        scope = ALL if rights is None else rights.read.get(kind, ALL)
        if scope != OWN or key is None:
            return scope == ALL
        found = self._owners.memory.snapshot.locate(key.bytes)
        return found is not None and self.may_read(rights, found[0].relation, found[0].packed(found[1]))

    def narrowed(
        self, rights: Rights | None, rows: RelationSnapshot, seen: Allowed | None, *, texts: bool
    ) -> Allowed | None:
        """Return the mask of visible rows without those of kinds that the agent may not read; ``texts``: as texts."""
        readable = None if rights is None else self._readable(rights, rows, texts=texts)
        if readable is None:
            return seen
        return Allowed(np.arange(rows.length, dtype=np.int32), readable if seen is None else readable & seen.mask())

    def within(self, rights: Rights | None, snapshot: ResidentSnapshot) -> ResidentSnapshot:
        """Return a snapshot for a window, without the records of kinds that the agent may not read."""
        if rights is None:
            return snapshot
        limited = {}
        for name, rows in snapshot.relations.items():
            readable, texts = (self._readable(rights, rows, texts=texts) for texts in (False, True))
            if readable is not None or texts is not None:
                limited[name] = rows.among(readable, {} if texts is None else self._values(rights, rows, texts))
        return replace(snapshot, relations={**snapshot.relations, **limited})

    def _values(self, rights: Rights, rows: RelationSnapshot, readable: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return the columns of a relation's memory without values that follow from records that are not read."""
        out = {}
        for column, _ in self.hidden(rights, rows.relation):
            if column.residence is Residence.COLUMN:
                value = _without_records(column)
                code = rows.enum_code(column.name, value) if column.enum else value
                out[column.name] = np.where(readable, rows.column(column.name), code)
        return out

    def readable(
        self, rights: Rights | None, catalog: Catalog, rows: Mapping[str, Iterable[Row]]
    ) -> dict[str, list[Row]]:
        """Return rows by relation without those of kinds that the agent may not read."""
        out = {}
        for name, found in rows.items():
            relation = catalog.by_name[name]
            out[name] = [
                self.without_hidden(rights, relation, row) for row in found if self.may_read(rights, relation, row)
            ]
        return out

    def _readable(self, rights: Rights, rows: RelationSnapshot, *, texts: bool) -> NDArray[np.bool_] | None:
        """Return which rows of a relation the agent may read, with ``texts`` which texts of them; None: all."""
        relation, length = rows.relation, rows.length
        scope = scope_of(rights.texts if texts else rights.read, relation)
        if scope != OWN:
            return None if scope == ALL else np.zeros(length, np.bool_)
        made_of = (rows.generation, rights, self._owners.changes)
        known = self._own.get(relation.name)
        mask = known[1] if known is not None and known[0] == made_of else np.zeros(0, np.bool_)
        if len(mask) < length:
            later = [self._is_own(rights, relation, rows.packed(number)) for number in range(len(mask), length)]
            mask = np.concatenate((mask, np.array(later, np.bool_)))
            self._own[relation.name] = (made_of, mask)
        return mask[:length]

    def _is_own(self, rights: Rights, relation: Relation, row: Row, *, author: bool = True) -> bool:
        """Return whether the agent wrote a record or, where no author is known, works on its task."""
        index = codec_of(relation).index
        if author and relation.rights.author is not None:
            return rights.is_author(row[index(relation.rights.author)])
        if relation.rights.owner is not None:
            by = next(dict(each.parts) for each in relation.composites if each.field == relation.rights.owner.by)
            agent = None if relation.rights.owner.agent is None else row[index(relation.rights.owner.agent)]
            started = row[index(by["entity_type"])] == AGENTS.value and row[index(by["id"])] in rights.ids
            return started or agent in rights.ids
        task = None if relation.rights.task is None else row[index(relation.rights.task)]
        return task is not None and not rights.ids.isdisjoint(self._owners.workers.get(task, ()))

    # --- writing ---------------------------------------------------------------------------------

    def require(self, rights: Rights | None, relations: Iterable[Relation], *, read: bool) -> None:
        """Raise PermissionDenied unless the agent may write some records of each relation; ``read``: read all."""
        if rights is None:
            return
        for relation in relations:
            if read and scope_of(rights.read, relation) != ALL:
                raise self._principal.denied("read", relation.plural)
            if not read and scope_of(rights.write, relation) == NONE:
                raise self._principal.denied("write", relation.plural)

    def require_write(self, rights: Rights | None, written: Relation, relation: Relation, row: Row) -> None:
        """Raise PermissionDenied unless the agent may change a record, or write records of ``written`` below it."""
        if not self._may_write(rights, written, relation, row):
            raise self._principal.denied("write", written.plural)

    def writes_task(self, rights: Rights | None, key: bytes) -> bool:
        """Return whether the agent may change a task."""
        tasks = self._owners.memory.snapshot[TRAJECTORY.name]
        number = tasks.find(key)
        return number < 0 or self._may_write(rights, TRAJECTORY, TRAJECTORY, tasks.packed(number))

    def _may_write(self, rights: Rights | None, written: Relation, relation: Relation, row: Row) -> bool:
        scope = ALL if rights is None else scope_of(rights.write, written)
        if scope != OWN or rights is None:
            return scope == ALL
        return self._is_own(rights, relation, row, author=written is relation)

    def require_columns(self, rights: Rights | None, relation: Relation, names: Iterable[str]) -> None:
        """Raise PermissionDenied for columns with values that the agent may not read of every record."""
        if rights is not None and not {column.name for column, _ in self.hidden(rights, relation)}.isdisjoint(names):
            raise self._principal.denied("filter by what it may not read of", relation.plural)


def _without_records(column: Column) -> Any:
    """Return the value, as it is stored, of a column that follows from records of which there are none."""
    if column.type is ColumnType.INT:
        return 0
    if column.enum is not None:
        return next(iter(column.enum)).value
    return b"" if column.type is ColumnType.UUID_ARRAY else None
