"""Data types of a declared memory: its fields, indexes and their faults, retention and lifecycle.

A declared memory that has the name of a built-in one binds to its relation; any other becomes its own relation.

Source: C-130 to C-148, C-171, C-172, K-058 to K-060.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from caliber.model.declared import MemoryCategory, Trigger
from caliber.model.hints import did_you_mean
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import ArtifactType


class FieldType(StrEnum):
    """The type of a field. An ``embedding`` is no value of the record: it is the vector of one of its texts."""

    UUID = "uuid"
    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TIMESTAMP = "timestamp"
    JSON = "json"
    TEXTS = "list(text)"
    UUIDS = "list(uuid)"
    BYTES = "bytes"
    EMBEDDING = "embedding"
    ENUM = "enum"


class IndexType(StrEnum):
    """The lookup of a field: in order, by equality, by words, or by nearness of vectors."""

    BTREE = "btree"
    HASH = "hash"
    GIN = "gin"
    HNSW = "hnsw"
    IVFFLAT = "ivfflat"


class RetentionKind(StrEnum):
    """The rule for how long records stay."""

    PERSISTENT = "persistent"
    SESSION = "session"
    SCOPE = "scope"
    DURATION = "duration"
    MAX = "max"
    COMPRESS_ON = "compress_on"
    UNTIL = "until"


class History(StrEnum):
    """The rest of a record that is replaced or deleted: earlier versions, for as long as windows, or nothing."""

    VERSIONS = "versions"
    NONE = "none"


class Lifecycle(StrEnum):
    """The end of records: by a call, or at a trigger."""

    EXPLICIT = "explicit"
    AUTO_CLOSE = "auto_close"


@dataclass(frozen=True, slots=True)
class When:
    """A trigger; ``cron`` (five fields) goes with ``schedule`` and only with it."""

    on: Trigger
    cron: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One declared field; ``values`` are those of an enum. A field that is not ``optional`` is required."""

    name: str
    type: FieldType
    values: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """A field that records are looked up by."""

    field: str
    type: IndexType


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of records: ``duration_ms`` goes with duration, ``count`` with max, ``when`` with compress_on.

    ``field`` goes with until: the instant in it ends a record.
    """

    kind: RetentionKind
    duration_ms: int | None = None
    count: int | None = None
    when: When | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One declared memory."""

    name: str
    category: MemoryCategory
    fields: tuple[Field, ...]
    retention: Retention
    indexes: tuple[Index, ...] = ()
    lifecycle: Lifecycle = Lifecycle.EXPLICIT
    closes_on: When | None = None
    artifacts: tuple[ArtifactType, ...] = ()
    parent: str | None = None
    inject_on: tuple[When, ...] = ()
    key: tuple[str, ...] = ()
    """The fields by whose values there is one record at most."""
    history: History = History.VERSIONS
    shown: str | None = None
    """The text of a record in windows, with fields in braces; None: its fields with values, as a list."""


_UNORDERED: Final = (FieldType.EMBEDDING, FieldType.JSON, FieldType.TEXTS, FieldType.UUIDS, FieldType.BYTES)
Fits: TypeAlias = Mapping[IndexType, tuple[FieldType, ...]]

SYSTEM: Final[Mapping[str, FieldType]] = {
    "id": FieldType.UUID,
    "created_at": FieldType.TIMESTAMP,
    "updated_at": FieldType.TIMESTAMP,
    "sequence": FieldType.INT,
}
"""Columns that every memory has, declared or not (K-058)."""

INDEXES: Final[Fits] = {
    IndexType.BTREE: tuple(kind for kind in FieldType if kind not in _UNORDERED),
    IndexType.HASH: tuple(kind for kind in FieldType if kind not in _UNORDERED),
    IndexType.GIN: (FieldType.TEXT, FieldType.JSON),
    IndexType.HNSW: (FieldType.EMBEDDING,),
    IndexType.IVFFLAT: (FieldType.EMBEDDING,),
}
"""Which fields an index is for (C-140)."""

OWN_INDEXES: Final[Fits] = {**INDEXES, IndexType.GIN: (FieldType.TEXT,)}
"""The same for a declared memory with its own relation: gin indexes the words of a text there."""


KEYS: Final = tuple(kind for kind in FieldType if kind not in (*_UNORDERED, FieldType.FLOAT))
"""Fields that a key is made of: of numbers only those that are equal when they look it."""


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
