"""Binding of a memory's name or declaration to its relation and fields, and the faults of the declaration.

Source: C-139 to C-141, C-164, C-183, K-058 to K-060.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from caliber.model.errors import InternalError
from caliber.model.hints import did_you_mean
from caliber.schema.declared_memories import bind_declared, field_faults, key_faults
from caliber.schema.memories import BUILT_IN, MemoryBinding
from caliber.schema.memory_types import INDEXES, OWN_INDEXES, Field, FieldType, History, MemoryType, index_faults
from caliber.schema.relation import Column, ColumnType

_KINDS: Final[Mapping[FieldType, tuple[ColumnType, ...]]] = {
    FieldType.UUID: (ColumnType.UUID,),
    FieldType.TEXT: (ColumnType.TEXT, ColumnType.ENUM, ColumnType.BYTES),  # contents are kept as UTF-8
    FieldType.INT: (ColumnType.INT,),
    FieldType.FLOAT: (ColumnType.FLOAT,),
    FieldType.BOOL: (ColumnType.BOOL,),
    FieldType.TIMESTAMP: (ColumnType.INSTANT,),
    FieldType.JSON: (ColumnType.JSON, ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY),
    FieldType.TEXTS: (ColumnType.TEXT_ARRAY,),
    FieldType.UUIDS: (ColumnType.UUID_ARRAY,),
    FieldType.BYTES: (ColumnType.BYTES,),
    FieldType.ENUM: (ColumnType.ENUM,),
    FieldType.EMBEDDING: (),
}


def binding_of(memory: MemoryType | None, name: str) -> MemoryBinding:
    """Return the binding of a memory's fields; ``memory`` is its declaration, if it has one.

    Raises: InvalidValue for an own memory that ``faults`` finds something wrong with.
    """
    bound = BUILT_IN.get(name)
    if bound is None:
        if memory is None:
            raise InternalError(f"there is no memory {name}")
        return bind_declared(memory, 0)  # its number decides how it is stored, not its field names
    if memory is None:
        return bound
    declared = {item.name: item.values for item in memory.fields if item.values}
    return dataclasses.replace(bound, declared=declared)


class Fault(NamedTuple):
    """The fault of a declaration: in ``fields``, ``indexes`` or ``key`` the item, and the reason; others have none."""

    part: str
    at: int
    reason: str


def faults(memory: MemoryType) -> Iterator[Fault]:
    """Yield the faults of a declaration by itself."""
    bound = BUILT_IN.get(memory.name)
    names = [item.name for item in memory.fields]
    if bound is None:
        for name, reason in field_faults(memory):
            yield Fault("fields", names.index(name) if name in names else 0, f"{name} {reason}")
    else:
        for at, item in enumerate(memory.fields):
            reason = _unbound(memory.name, bound, item)
            if reason:
                yield Fault("fields", at, reason)
        allowed = () if bound.relation.memory is None else bound.relation.memory.parents
        if memory.parent is not None and memory.parent not in allowed:
            belongs = f"belongs to {' or '.join(allowed)}" if allowed else "belongs to nothing"
            yield Fault("parent", 0, f"a {memory.name} {belongs}, not to {memory.parent}")
    for at, reason in index_faults(memory, OWN_INDEXES if bound is None else INDEXES):
        yield Fault("indexes", at, reason)
    if bound is None:
        yield from (Fault("key", at, reason) for at, reason in key_faults(memory))
    elif memory.key:
        yield Fault("key", 0, f"every store has the memory {memory.name}, whose records are told apart by their ids")
    if bound is not None and memory.history is not History.VERSIONS:
        yield Fault("history", 0, f"every store has the memory {memory.name}, and keeps its versions for replay")


def _unbound(memory: str, bound: MemoryBinding, item: Field) -> str:
    if item.name in bound.vectors:
        return "" if item.type is FieldType.EMBEDDING else f"{item.name} is a vector: declare it as embedding"
    column = bound.column(item.name)
    if column is None:
        hint = did_you_mean(item.name, bound.fields, f"it has {', '.join(bound.fields)}")
        return f"every store has the memory {memory}, and it has no field {item.name}; {hint}"
    if column.type not in _KINDS[item.type]:
        return f"{item.name} of {memory} is {_type_of(column)}, not {item.type}"
    if item.type is FieldType.ENUM and column.enum is not None:
        unknown = [value for value in item.values if value not in tuple(column.enum)]
        if unknown:
            return f"{item.name} of {memory} is never {', '.join(unknown)}; it is one of {', '.join(column.enum)}"
    return ""


def _type_of(column: Column) -> str:
    for kind, columns in _KINDS.items():
        if columns[:1] == (column.type,):
            return kind.value
    return "text" if column.type is ColumnType.BYTES else "json"
