"""Table of the field types that each index type supports, and validation of a declared memory's indexes.

Source: C-139 to C-141, K-058.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from caliber.model.hints import did_you_mean
from caliber.schema.memory_types import FieldType, IndexType, MemoryType

Fits: TypeAlias = Mapping[IndexType, tuple[FieldType, ...]]

SYSTEM: Final[Mapping[str, FieldType]] = {
    "id": FieldType.UUID,
    "created_at": FieldType.TIMESTAMP,
    "updated_at": FieldType.TIMESTAMP,
    "sequence": FieldType.INT,
}
"""Columns that every memory has, declared or not (K-058)."""

INDEXES: Final[Fits] = {
    IndexType.BTREE: tuple(kind for kind in FieldType if kind not in (FieldType.EMBEDDING, FieldType.JSON)),
    IndexType.HASH: tuple(kind for kind in FieldType if kind not in (FieldType.EMBEDDING, FieldType.JSON)),
    IndexType.GIN: (FieldType.TEXT, FieldType.JSON),
    IndexType.HNSW: (FieldType.EMBEDDING,),
    IndexType.IVFFLAT: (FieldType.EMBEDDING,),
}
"""Which fields an index is for (C-140)."""

OWN_INDEXES: Final[Fits] = {**INDEXES, IndexType.GIN: (FieldType.TEXT,)}
"""The same for a declared memory with its own relation: gin indexes the words of a text there."""


def index_faults(memory: MemoryType, fits: Fits) -> Iterator[tuple[int, str]]:
    """Yield which of a declaration's indexes (its place among them) cannot be, and why."""
    kinds = {**SYSTEM, **{item.name: item.type for item in memory.fields}}
    for at, index in enumerate(memory.indexes):
        kind = kinds.get(index.field)
        if kind is None:
            hint = did_you_mean(index.field, kinds, f"it has {', '.join(kinds)}")
            yield at, f"{memory.name} has no field {index.field}; {hint}"
        elif kind not in fits[index.type]:
            fitting = [other.value for other in IndexType if kind in fits[other]]
            others = f"; it is indexed by {' or '.join(fitting)}" if fitting else ""
            yield at, f"{index.field} is {kind}, which {index.type} does not index{others}"
