"""Data types of a declared memory: its fields, indexes, retention and lifecycle.

A declared memory that has the name of a built-in one binds to its relation; any other becomes its own relation.

Source: C-130 to C-148, C-171, C-172, K-058 to K-060.
"""

from __future__ import annotations

from enum import StrEnum

from caliber.model.declared import MemoryCategory, Trigger
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
    """The retention of records: ``duration_ms`` goes with duration, ``count`` with max, ``when`` with compress_on."""

    kind: RetentionKind
    duration_ms: int | None = None
    count: int | None = None
    when: When | None = None


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
