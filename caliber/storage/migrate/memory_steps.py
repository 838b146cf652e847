"""Migration planner for declared memories: steps from the store's declarations to the configuration's, with SQL.

One transaction takes one step: its statements, and the row of ``memory_type`` that records it. The next step is
computed from the store, so a second process, or one that restarts after a crash, continues at the right place.

Source: C-130, C-132, issue 6; docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from caliber.model.errors import InvalidValue, SchemaMismatch
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.declared_memories import bind_declared, embedded_field, faults
from caliber.schema.memory_definitions import definition_of, memory_from
from caliber.schema.memory_types import Field, FieldType, Index, MemoryType
from caliber.schema.relation import Relation
from caliber.schema.relations import MEMORY_TYPE, RELATIONS
from caliber.schema.relations.storage import FIRST_CODE, LAST_CODE, NAMESAKE_BITS, StoredMemory
from caliber.storage.compile.plan import Dialect, compile_relation
from caliber.storage.migrate.schema_changes import statements_between
from caliber.storage.stored_memories import parents_first, shown
from caliber.storage.write.changes import RELOAD_RECORD, UPSERT, pack_changes


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One change of a store's memories. ``line`` describes it; ``row`` is the ``memory_type`` row afterwards."""

    line: str
    statements: tuple[str, ...]
    row: StoredMemory
    relation: Relation | None
    """The memory's relation afterwards; None if it is dropped."""
    is_new: bool = False
    removes: bool = False
    """True when data is removed that other processes may hold in memory: they reload everything."""

    @property
    def record(self) -> bytes:
        """The change record that notifies other processes."""
        if self.removes:
            return RELOAD_RECORD
        return pack_changes([(MEMORY_TYPE.code, UPSERT, self.row.code, self.row.version)])


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The plan of a migration: schema versions, then steps of memories; and the rest, which stays as it is."""

    versions: tuple[int, ...]
    steps: tuple[MemoryStep, ...]
    stays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The memories that a store is to have: those declared, and ``drop``: ``NAME`` or ``NAME.FIELD`` to remove."""

    declared: tuple[MemoryType, ...]
    drop: tuple[str, ...] = ()


def memory_steps(
    store: str, rows: Sequence[StoredMemory], target: Wanted, dialect: Dialect, at: datetime
) -> list[MemoryStep]:
    """Return every step that is to be taken, in order. Raises: SchemaMismatch, InvalidValue (see ``next_step``)."""
    by_code = {row.code: row for row in rows}
    steps = []
    while (step := next_step(store, list(by_code.values()), target, dialect, at)) is not None:
        steps.append(step)
        by_code[step.row.code] = step.row
    return steps


def next_step(
    store: str, rows: Sequence[StoredMemory], target: Wanted, dialect: Dialect, at: datetime
) -> MemoryStep | None:
    """Return the first step from a store's memories to the target's, or None when they are equal.

    Raises: SchemaMismatch for what no step leads to, or only one that removes what was not named; InvalidValue for a
        declaration that no relation can be made of, or a name to drop that is none
    """
    live = {row.name: row for row in rows if row.retired_at is None}
    held = {name: memory_from(row.definition) for name, row in live.items()}
    _check_drops(rows, held, target)
    refusals = [reason for memory in target.declared for reason in _refusals(held.get(memory.name), memory, target)]
    if refusals:
        raise SchemaMismatch(store=store, reason="; ".join(refusals))
    for memory in reversed(list(parents_first(tuple(held.values())))):
        if memory.name in target.drop:
            return _removed(live[memory.name], dialect, at)
    for memory in parents_first(target.declared):
        if memory.name not in held:
            return _added(store, rows, memory, dialect, at)
        step = _changed(live[memory.name], held[memory.name], memory, target, dialect, at)
        if step is not None:
            return step
    for name, memory in held.items():  # fields that are no longer declared can be dropped too
        step = (
            None
            if name in {item.name for item in target.declared}
            else _changed(live[name], memory, memory, target, dialect, at)
        )
        if step is not None:
            return step
    return None


def left_alone(rows: Sequence[StoredMemory], target: Wanted) -> Iterator[str]:
    """Yield a sentence for each memory or field that a store has beyond the configuration, and that stays."""
    declared = {memory.name: memory for memory in target.declared}
    for row in rows:
        if row.retired_at is not None or row.name in target.drop:
            continue
        if row.name not in declared:
            yield f"memory {row.name} is not declared here and stays; --drop {row.name} removes it and its records"
            continue
        fields = {item.name for item in declared[row.name].fields}
        for item in memory_from(row.definition).fields:
            if item.name not in fields and f"{row.name}.{item.name}" not in target.drop:
                yield f"field {row.name}.{item.name} is not declared here and stays; --drop {row.name}.{item.name}"


# --- refusals ---------------------------------------------------------------------------------------


def _check_drops(rows: Sequence[StoredMemory], held: Mapping[str, MemoryType], target: Wanted) -> None:
    declared = {memory.name: memory for memory in target.declared}
    ever = {row.name for row in rows}
    for item in target.drop:
        name, _, field = item.partition(".")
        memory = held.get(name)
        if memory is None:
            if name in ever:
                continue  # it is dropped already
            raise InvalidValue(field="drop", reason=f"the store has no memory {name}")
        said = declared.get(name)
        if said is not None and (not field or field in {known.name for known in said.fields}):
            raise InvalidValue(
                field="drop", reason=f"{item} is declared by the configuration; take it out of there first"
            )
        children = [child.name for child in held.values() if child.parent == name and child.name not in target.drop]
        if not field and children:
            raise InvalidValue(
                field="drop", reason=f"records of {children[0]} belong to those of {name}; drop {children[0]} too"
            )


def _refusals(held: MemoryType | None, memory: MemoryType, target: Wanted) -> Iterator[str]:
    """Yield why a memory that the store has cannot become the declared one."""
    if held is None:
        return
    fields = {item.name: item for item in held.fields}
    for item in memory.fields:
        name = f"{memory.name}.{item.name}"
        before = fields.pop(item.name, None)
        if before is None:
            has_column = item.name in bind_declared(memory, 0).declared_columns
            if not item.optional and item.type is not FieldType.EMBEDDING and has_column:
                yield f"field {name} is new: records that are there are without it; make it optional"
        elif before.type is not item.type:
            yield (
                f"field {name} is {before.type}, and what records say there is no {item.type};"
                " declare a field of another name"
            )
        elif before.optional and not item.optional:
            yield f"field {name} may be missing in records that are there; it stays optional"
    for before in fields.values():
        name = f"{memory.name}.{before.name}"
        if name not in target.drop and not before.optional and before.type is not FieldType.EMBEDDING:
            yield f"records need a value of {name}, which is not declared; declare it, or remove it with --drop {name}"
    if held.parent != memory.parent:
        yield (
            f"records of {memory.name} belong to {held.parent or 'none'}, not {memory.parent or 'none'};"
            " declare a memory of another name"
        )
    if held.key != memory.key:
        yield (
            f"records of {memory.name} are told apart by {', '.join(held.key) or 'their ids'}, not by"
            f" {', '.join(memory.key) or 'their ids'}; declare a memory of another name"
        )
    names = {item.name for item in memory.fields}
    remaining = tuple(
        item for item in held.fields if item.name not in names and f"{memory.name}.{item.name}" not in target.drop
    )
    yield from _refused_together(held, replace(memory, fields=memory.fields + remaining))


def _refused_together(held: MemoryType, memory: MemoryType) -> Iterator[str]:
    """Yield why a declaration conflicts with kept memories, or existing vectors with a changed text field."""
    embedded = embedded_field(held)
    vector = next((item.name for item in held.fields if item.type is FieldType.EMBEDDING), "")
    try:
        after = embedded_field(memory)
    except InvalidValue:
        after = ""
    wrong = next(faults(memory), None)
    if wrong is not None and (embedded is None or after):
        yield f"field {memory.name}.{wrong[0]}: {wrong[1]}; what is not declared stays, unless --drop removes it"
    elif embedded is not None and after not in (None, embedded):
        yield (
            f"the vectors of {memory.name} are those of {embedded}, and would not be any more;"
            f" leave {vector} out, migrate with --drop {memory.name}.{vector}, then declare it anew"
        )


# --- steps ----------------------------------------------------------------------------------------


def _added(store: str, rows: Sequence[StoredMemory], memory: MemoryType, dialect: Dialect, at: datetime) -> MemoryStep:
    code = max([FIRST_CODE - 1, *(row.code for row in rows)]) + 1
    if code > LAST_CODE:
        raise SchemaMismatch(
            store=store,
            reason=f"it has had {LAST_CODE - FIRST_CODE + 1} memories, and their codes cannot be used again;"
            " restore a backup into a new store",
        )
    relation = bind_declared(memory, code).relation
    fields = len(memory.fields)
    line = f"add memory {memory.name} with {fields} field{'' if fields == 1 else 's'}"
    row = StoredMemory(code, memory.name, definition_of(memory), at, at)
    statements = compile_relation(relation, dialect).create
    before = sum(other.name == memory.name for other in rows)
    if before:
        # Windows name records by memory and ordinal: a later memory must not reuse those of a dropped one.
        statements = (*statements, dialect.number_from(relation.name, (before << NAMESAKE_BITS) + 1))
    return MemoryStep(line, statements, row, relation, is_new=True)


def _removed(row: StoredMemory, dialect: Dialect, at: datetime) -> MemoryStep:
    relation = bind_declared(memory_from(row.definition), row.code).relation
    kinds = ("owner_type", "source_type", "target_type")
    named = [(each.name, column) for each in RELATIONS for column in kinds if each.has(column)]
    owned = [f"DELETE FROM {dialect.table(name)} WHERE {column} = '{relation.name}'" for name, column in named]
    # Nothing needs its definition any more, and the definition may quote personal words.
    gone = replace(row, definition="", retired_at=at, updated_at=at, version=row.version + 1)
    line = f"remove memory {row.name} and all its records"
    return MemoryStep(line, (*owned, f"DROP TABLE {dialect.table(relation.name)}"), gone, None, removes=True)


def _changed(
    row: StoredMemory, held: MemoryType, memory: MemoryType, target: Wanted, dialect: Dialect, at: datetime
) -> MemoryStep | None:
    """Return the first step from an existing memory to the declared one."""
    for line, after, removes in _towards(held, memory, target):
        before, then = bind_declared(held, row.code), bind_declared(after, row.code)
        statements = statements_between(before.relation, then.relation, dialect)
        if before.embedded is not None and then.embedded is None:
            name = before.relation.name
            statements = (f"DELETE FROM {dialect.table('embedding')} WHERE owner_type = '{name}'", *statements)
        changed = replace(row, definition=definition_of(after), updated_at=at, version=row.version + 1)
        return MemoryStep(line, statements, changed, then.relation, removes=removes)
    return None


def _towards(held: MemoryType, memory: MemoryType, target: Wanted) -> Iterator[tuple[str, MemoryType, bool]]:
    """Yield single changes from an existing memory towards the declared one: description and intermediate state.

    Fields that are no longer declared stay, unless they are dropped.
    """
    name = memory.name
    declared = {item.name: item for item in memory.fields}
    # Vectors go before their text, and come after it.
    for item in sorted(held.fields, key=_is_no_vector):
        if f"{name}.{item.name}" in target.drop:
            remaining = tuple(other for other in held.fields if other.name != item.name)
            kept = tuple(index for index in held.indexes if index.field != item.name)
            line = f"remove field {name}.{item.name} and what records say there"
            yield line, replace(held, fields=remaining, indexes=kept), True
    names = {item.name for item in held.fields}
    for item in sorted(memory.fields, key=_is_no_vector, reverse=True):
        if item.name not in names:
            line = f"add field {name}.{item.name} ({shown(item)})"
            yield line, replace(held, fields=(*held.fields, item)), False
    for at, before in enumerate(held.fields):
        after = declared.get(before.name)
        if after is None:
            continue
        new = tuple(value for value in after.values if value not in before.values)
        widened = replace(before, values=before.values + new, optional=after.optional)
        if widened != before:
            words = [f"add {value!r} to the values of {name}.{before.name}" for value in new]
            if after.optional and not before.optional:
                words.append(f"let records be without {name}.{before.name}")
            yield ", ".join(words), replace(held, fields=(*held.fields[:at], widened, *held.fields[at + 1 :])), False
    yield from _indexes_towards(held, memory)
    rest = replace(memory, fields=held.fields, indexes=held.indexes)
    if rest != held:
        yield f"note what else is declared of memory {name}, such as its retention", rest, False


def _is_no_vector(item: Field) -> bool:
    return item.type is not FieldType.EMBEDDING


def _indexes_towards(held: MemoryType, memory: MemoryType) -> Iterator[tuple[str, MemoryType, bool]]:
    declared = {item.name for item in memory.fields}
    wanted = set(memory.indexes)
    for index in held.indexes:
        if index not in wanted and (index.field in declared or index.field not in {f.name for f in held.fields}):
            remaining = tuple(other for other in held.indexes if other != index)
            yield f"remove the index of {_shown_index(memory, index)}", replace(held, indexes=remaining), False
    for index in memory.indexes:
        if index not in held.indexes:
            line = f"index {_shown_index(memory, index)}"
            yield line, replace(held, indexes=(*held.indexes, index)), False


def _shown_index(memory: MemoryType, index: Index) -> str:
    return f"{memory.name}.{index.field} ({index.type})"


def with_texts(step: MemoryStep, memories: Mapping[int, tuple[str, ...]] | None, spoil: str) -> MemoryStep:
    """Return a step of a memory's migration that marks an index as incomplete if it changes the searched texts.

    ``memories`` has the fields that the index holds, by code; ``spoil`` is the statement that marks it.
    """
    texts = step.relation is not None and step.relation.text
    if memories is None or memories.get(step.row.code, ()) == (texts.searched if texts else ()):
        return step
    return replace(step, statements=(*step.statements, spoil))
