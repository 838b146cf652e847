"""Declared memories recorded in a store: loads them as a catalog, and compares them with the configuration's.

Source: C-130 to C-146, docs/decisions/0160.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from caliber.model.errors import SchemaMismatch
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relations import MEMORY_TYPE
from caliber.schema.relations.memory import FIRST_CODE, StoredMemory
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession

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
    held_indexes = {(index.field, index.type) for index in held.indexes}
    for index in declared.indexes:
        if (index.field, index.type) not in held_indexes:
            yield f"{of} is not indexed by {index.field} ({index.type})"


def shown(item: Field) -> str:
    """Return the type of a field for messages."""
    return f"{'optional ' if item.optional else ''}{item.type}"
