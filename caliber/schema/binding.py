"""Memories as filters and declarations see them: what every store has, and what is declared beside it.

Source: C-139 to C-141, C-164, C-183, K-058 to K-060.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

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


class Fault(NamedTuple):
    """What is wrong with a declaration: in ``fields`` or ``indexes``, at which of them, and why; or the ``parent``."""

    part: str
    at: int
    reason: str


def faults(memory: MemoryType) -> Iterator[Fault]:
    """Yield what is wrong with a declaration by itself."""
    bound = BUILT_IN.get(memory.name)
    names = [item.name for item in memory.fields]
    if bound is None:
        for name, reason in own_faults(dataclasses.replace(memory, indexes=())):
            yield Fault("fields", names.index(name) if name in names else 0, f"{name} {reason}")
    else:
        for at, item in enumerate(memory.fields):
            reason = _unbound(memory.name, bound, item)
            if reason:
                yield Fault("fields", at, reason)
        allowed = PARENTS[memory.name]
        if memory.parent is not None and memory.parent not in allowed:
            belongs = f"belongs to {' or '.join(allowed)}" if allowed else "belongs to nothing"
            yield Fault("parent", 0, f"a {memory.name} {belongs}, not to {memory.parent}")
    yield from _index_faults(memory)


def _index_faults(memory: MemoryType) -> Iterator[Fault]:
    kinds = {**SYSTEM, **{item.name: item.type for item in memory.fields}}
    for at, index in enumerate(memory.indexes):
        kind = kinds.get(index.field)
        if kind is None:
            near = difflib.get_close_matches(index.field, kinds, n=1)
            known = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(kinds)}"
            yield Fault("indexes", at, f"{memory.name} has no field {index.field}; {known}")
        elif kind not in INDEXES[index.type]:
            fitting = [other.value for other in IndexType if kind in INDEXES[other]]
            others = f"; it is indexed by {' or '.join(fitting)}" if fitting else ""
            yield Fault("indexes", at, f"{index.field} is {kind}, which {index.type} does not index{others}")


def _unbound(memory: str, bound: BuiltIn, item: Field) -> str:
    if item.name in bound.vectors:
        return "" if item.type is FieldType.EMBEDDING else f"{item.name} is a vector: declare it as embedding"
    column = bound.column(item.name)
    if column is None:
        near = difflib.get_close_matches(item.name, bound.fields, n=1)
        known = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(bound.fields)}"
        return f"every store has the memory {memory}, and it has no field {item.name}; {known}"
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
