"""Declared memories recorded in a store: loads them as a catalog, and compares them with the configuration's.

It also finds those that other processes changed or removed since this one opened the store.

Source: C-130 to C-146, docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from caliber.model.errors import SchemaMismatch
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import MEMORY_TYPE
from caliber.schema.relations.storage import FIRST_CODE, StoredMemory
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.sql.full_text import Memories, memories_of, texts_of

if TYPE_CHECKING:
    from caliber.config import CaliberConfig
    from caliber.schema.memory_types import Field, MemoryType


def declared_in(config: CaliberConfig) -> tuple[MemoryType, ...]:
    """Return the memories of a configuration that become relations of their own."""
    if not config.memories:  # most configurations have none, so the module is loaded on demand
        return ()
    from caliber.schema.declared_memories import is_own

    return tuple(memory for memory in (item.declared for item in config.memories) if is_own(memory))


def stored_memories(session: StatementSession, plans: Mapping[str, RelationPlans]) -> list[StoredMemory]:
    """Return every memory that a store has or had."""
    plan = plans[MEMORY_TYPE.name]
    return [plan.codec.decode(row) for row in session.run(plan.lists["list_all"], ())]


def catalog_of(session: StatementSession, plans: Mapping[str, RelationPlans]) -> Catalog:
    """Return the catalog of a store, at the boundary of a session."""
    return BUILT_IN.with_memories(stored_memories(session, plans))


def first_memories(declared: Sequence[MemoryType], at_us: int) -> list[StoredMemory]:
    """Return the rows of a store that is made with these memories at once."""
    if not declared:
        return []
    from caliber.schema.memory_definitions import definition_of

    at = from_us(at_us)
    return [
        StoredMemory(FIRST_CODE + place, memory.name, definition_of(memory), at, at)
        for place, memory in enumerate(parents_first(declared))
    ]


def parents_first(declared: Sequence[MemoryType]) -> Iterator[MemoryType]:
    """Yield memories, each after the one whose records its own belong to."""
    waiting = {memory.name: memory for memory in declared}
    while waiting:
        # Those of a circle come as they stand: reading them back refuses it.
        ready = [name for name, memory in waiting.items() if memory.parent not in waiting] or list(waiting)
        for name in ready:
            yield waiting.pop(name)


# --- opening --------------------------------------------------------------------------------------


def check_declared(store: str, catalog: Catalog, declared: Iterable[MemoryType]) -> None:
    """Refuse a store that lacks declared memories or fields; additional ones are allowed.

    Raises: SchemaMismatch.
    """
    for memory in declared:
        held = catalog.memories.get(memory.name)
        if held is None:
            lacking = f"it has no memory {memory.name}"
        else:
            lacking = next(_lacking(held.type, memory), "")
        if lacking:
            raise SchemaMismatch(
                store=store, reason=f"{lacking}, as the configuration declares it; run `caliber db migrate`"
            )


def _lacking(held: MemoryType, declared: MemoryType) -> Iterator[str]:
    """Yield the differences between a store's memory and its declaration."""
    from caliber.schema.memory_types import FieldType

    of = f"memory {declared.name}"
    held_fields = {item.name: item for item in held.fields}
    for item in declared.fields:
        stored = held_fields.pop(item.name, None)
        if stored is None:
            yield f"{of} has no field {item.name}"
        elif replace(stored, values=()) != replace(item, values=()):
            yield f"{of} has the field {item.name} as {shown(stored)}, not {shown(item)}"
        elif set(item.values) - set(stored.values):
            yield f"{of} has no value {sorted(set(item.values) - set(stored.values))[0]!r} of {item.name}"
    for item in held_fields.values():
        if not item.optional and item.type is not FieldType.EMBEDDING:
            yield f"{of} needs a field {item.name}"
    if held.parent != declared.parent:
        yield f"the records of {of} belong to {held.parent or 'none'}, not {declared.parent or 'none'}"
    if held.key != declared.key:
        told_apart = (", ".join(memory.key) or "their ids" for memory in (held, declared))
        yield "the records of {} are told apart by {}, not by {}".format(of, *told_apart)
    if held.history is not declared.history:
        yield f"{of} keeps the history {held.history}, not {declared.history}"
    if held.retention.field != declared.retention.field:
        yield f"{of} keeps records {_until(held)}, not {_until(declared)}"
    held_indexes = {(index.field, index.type) for index in held.indexes}
    for index in declared.indexes:
        if (index.field, index.type) not in held_indexes:
            yield f"{of} is not indexed by {index.field} ({index.type})"


def _until(memory: MemoryType) -> str:
    field = memory.retention.field
    return "without an end of their own" if field is None else f"until their {field}"


def shown(item: Field) -> str:
    """Return the type of a field for messages."""
    return f"{'optional ' if item.optional else ''}{item.type}"


def stale_catalog() -> SchemaMismatch:
    """Return the error for work that needs all memories, in a process that does not know them all."""
    return SchemaMismatch(
        store="the store",
        reason="its memories were changed since this process opened it; open it again with the present configuration",
    )


def dropped_memories(session: StatementSession, plans: Mapping[str, RelationPlans], catalog: Catalog) -> frozenset[str]:
    """Return the relations of memories that others removed, or took a field from, since the store was opened.

    Another one may have the name by now, and another field the place of one that went.
    """
    present = catalog_of(session, plans)
    if present.revision == catalog.revision:
        return frozenset()
    lost = set()
    for memory in catalog.memories.values():
        relation, now = memory.relation, present.by_code.get(memory.relation.code)
        if now is None or not _columns(relation) <= _columns(now):
            lost.add(relation.name)
    return frozenset(lost)


def dropped_since(
    session: StatementSession, plans: Mapping[str, RelationPlans], statements: Mapping[str, Plan], catalog: Catalog
) -> frozenset[str]:
    """As ``dropped_memories``, at the cost of one small statement while no memory was changed."""
    if tuple(session.run(statements["memory.revision"], ())[0]) == catalog.revision:
        return frozenset()
    return dropped_memories(session, plans, catalog)


def indexed_now(
    session: StatementSession, plans: Mapping[str, RelationPlans], texts: Sequence[Relation]
) -> tuple[Memories, list[Relation]]:
    """Return the memories that an index of this store must cover, and the present state of the relations in ``texts``.

    Other processes may have added memories, changed their searched fields, or removed a field.
    """
    present = catalog_of(session, plans)
    known = []
    for relation in texts:
        now = present.by_code.get(relation.code)
        if now is not None and memories_of([now]) == memories_of([relation]) and _columns(relation) <= _columns(now):
            known.append(relation)
    return memories_of(texts_of(present)), known


def check_indexed(session: StatementSession, plans: Mapping[str, RelationPlans], texts: Sequence[Relation]) -> None:
    """Refuse to build an index that would lack another process's declarations. Raises: SchemaMismatch."""
    memories, present = indexed_now(session, plans, texts)
    if len(present) < len(texts) or memories != memories_of(texts):
        raise stale_catalog()


def _columns(relation: Relation) -> set[tuple[str, ColumnType]]:
    return {(column.name, column.type) for column in relation.columns}


def check_present(
    session: StatementSession,
    relation: Relation,
    plans: Mapping[str, RelationPlans],
    statements: Mapping[str, Plan],
    catalog: Catalog,
) -> None:
    """Refuse to touch records of a dropped memory: its table may belong to another memory by now.

    Raises: SchemaMismatch.
    """
    if relation.name in dropped_since(session, plans, statements, catalog):
        raise stale_catalog()


def check_current(session: StatementSession, statements: Mapping[str, Plan], catalog: Catalog) -> None:
    """Refuse to continue with memories that other processes have changed. Raises: SchemaMismatch."""
    if tuple(session.run(statements["memory.revision"], ())[0]) != catalog.revision:
        raise stale_catalog()
