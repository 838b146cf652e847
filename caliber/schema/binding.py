"""Memories as filters and declarations see them: what every store has, and what is declared beside it.

Source: C-139 to C-141, C-164, C-183, K-058 to K-060.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from caliber.model.errors import InternalError
from caliber.schema.memories import BUILT_IN, BuiltIn
from caliber.schema.memory_types import Field, FieldType, IndexType, MemoryType
from caliber.schema.own_memories import faults as own_faults
from caliber.schema.own_memories import own_memory
from caliber.schema.relation import Column, ColumnType

SYSTEM: Final[Mapping[str, FieldType]] = {
    "id": FieldType.UUID,
    "created_at": FieldType.TIMESTAMP,
    "updated_at": FieldType.TIMESTAMP,
    "sequence": FieldType.INT,
}
"""Columns that every memory has, declared or not (K-058)."""

PARENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "trajectory": (),
    "scope": ("trajectory",),
    "artifact": ("scope", "trajectory"),
    "note": (),
    "turn_buffer": ("scope", "trajectory"),
}
"""What the records of a memory that every store has belong to."""

INDEXES: Final[Mapping[IndexType, tuple[FieldType, ...]]] = {
    IndexType.BTREE: tuple(kind for kind in FieldType if kind not in (FieldType.EMBEDDING, FieldType.JSON)),
    IndexType.HASH: tuple(kind for kind in FieldType if kind not in (FieldType.EMBEDDING, FieldType.JSON)),
    IndexType.GIN: (FieldType.TEXT, FieldType.JSON),
    IndexType.HNSW: (FieldType.EMBEDDING,),
    IndexType.IVFFLAT: (FieldType.EMBEDDING,),
}
"""Which fields an index is for (C-140)."""

_KINDS: Final[Mapping[FieldType, tuple[ColumnType, ...]]] = {
    FieldType.UUID: (ColumnType.UUID,),
    FieldType.TEXT: (ColumnType.TEXT, ColumnType.ENUM, ColumnType.BYTES),  # contents are kept as UTF-8
    FieldType.INT: (ColumnType.INT,),
    FieldType.FLOAT: (ColumnType.FLOAT,),
    FieldType.BOOL: (ColumnType.BOOL,),
    FieldType.TIMESTAMP: (ColumnType.INSTANT,),
    FieldType.JSON: (ColumnType.JSON, ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY),
    FieldType.ENUM: (ColumnType.ENUM,),
    FieldType.EMBEDDING: (),
}


def binding_of(memory: MemoryType | None, name: str) -> BuiltIn:
    """Return what the fields of a memory are bound to; ``memory`` is its declaration, if it has one.

    Raises: InvalidValue for an own memory that ``faults`` finds something wrong with.
    """
    bound = BUILT_IN.get(name)
    if bound is None:
        if memory is None:
            raise InternalError(f"there is no memory {name}")
        return own_memory(memory, 0)  # its number decides what is stored, not what its fields are called
    if memory is None:
        return bound
    declared = {item.name: item.values for item in memory.fields if item.values}
    return dataclasses.replace(bound, declared=declared)


def faults(memory: MemoryType) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a declaration: a field (or "" for the memory itself) and the reason."""
    bound = BUILT_IN.get(memory.name)
    if bound is None:
        yield from own_faults(memory)
        return
    for item in memory.fields:
        reason = _unbound(memory.name, bound, item)
        if reason:
            yield item.name, reason
    kinds = {**SYSTEM, **{item.name: item.type for item in memory.fields}}
    for index in memory.indexes:
        kind = kinds.get(index.field)
        if kind is None:
            known = ", ".join(kinds)
            yield index.field, f"{index.field} is indexed and is no field of {memory.name}; it has {known}"
        elif kind not in INDEXES[index.type]:
            fitting = " and ".join(INDEXES[index.type])
            yield index.field, f"an index {index.type} is for {fitting}, and {index.field} is {kind}"
    allowed = PARENTS[memory.name]
    if memory.parent is not None and memory.parent not in allowed:
        belongs = f"belongs to {' or '.join(allowed)}" if allowed else "belongs to nothing"
        yield "", f"a {memory.name} {belongs}, not to {memory.parent}"


def _unbound(memory: str, bound: BuiltIn, item: Field) -> str:
    if item.name in bound.vectors:
        return "" if item.type is FieldType.EMBEDDING else f"{item.name} is a vector: declare it as embedding"
    column = bound.column(item.name)
    if column is None:
        return f"every store has the memory {memory}, and it has no field {item.name}; it has {', '.join(bound.fields)}"
    if column.type not in _KINDS[item.type]:
        return f"{item.name} of {memory} is {_said(column)}, not {item.type}"
    if item.type is FieldType.ENUM and column.enum is not None:
        unknown = [value for value in item.values if value not in tuple(column.enum)]
        if unknown:
            return f"{item.name} of {memory} is never {', '.join(unknown)}; it is one of {', '.join(column.enum)}"
    return ""


def _said(column: Column) -> str:
    for kind, columns in _KINDS.items():
        if columns[:1] == (column.type,):
            return kind.value
    return "text" if column.type is ColumnType.BYTES else "json"
