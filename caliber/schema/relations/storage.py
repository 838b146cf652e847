"""Relations of the store itself: changes, configurations, schema versions, and declared memories.

Source: C-130, C-132; docs/decisions/0160.
"""

from __future__ import annotations

from datetime import datetime

from caliber.model.lazy_dataclass import dataclass
from caliber.model.storage import ConfigDocument
from caliber.model.tenants import Tenant, TenantState
from caliber.schema.derived import Sha256
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    Relation,
    Unique,
    blob,
    enum,
    instant,
    integer,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Place


@dataclass(frozen=True, slots=True)
class Change:
    """The writes of one transaction, as packed ordinals and versions, never values (design, section 5)."""

    sequence: int
    writer: bytes
    entries: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Migration:
    """One applied schema version, and which versions of CALIBER may read and write it."""

    schema_version: int
    name: str
    checksum: bytes
    min_reader_version: int
    min_writer_version: int
    epoch: str
    applied_at: datetime


CHANGE = Relation(
    name="change",
    plural="changes",
    entity=Change,
    code=42,
    comment="The feed that mirrors of other processes follow; one row per transaction.",
    derived=None,  # numbers of other rows
    erase=None,  # ordinals and versions
    links=None,  # a feed
    trust=None,  # numbers
    exported=None,  # a feed is of one store
    place=Place.DATABASE,
    key=("sequence",),
    auto_key=True,
    columns=(
        integer("sequence"),
        blob("writer", length=16),
        blob("entries"),
        instant("created_at"),
    ),
)


CONFIG_DOCUMENT = Relation(
    name="config_document",
    plural="config_documents",
    entity=ConfigDocument,
    code=43,
    comment="Every configuration this store was opened with, by hash; secrets are references.",
    derived=(Sha256("config_hash", ("body",)),),
    erase=Erase(),
    links=None,  # a document
    trust=None,  # the operator's
    exported=None,  # the store writes its own
    place=Place.OPENED,
    key=("config_hash",),
    columns=(
        blob("config_hash", length=32),
        text("kind", redact=Redaction.NOTHING),
        text("body", redact=Redaction.ROW),
        instant("created_at"),
    ),
)


SCHEMA_MIGRATION = Relation(
    name="schema_migration",
    plural="schema_migrations",
    entity=Migration,
    code=44,
    comment="Applied schema versions, and which versions of CALIBER may read and write them.",
    derived=None,  # checksum is that of statements, which are in the code
    erase=None,  # names and numbers of versions
    links=None,  # a version
    trust=None,  # numbers
    exported=None,  # of one database
    place=Place.DATABASE,
    key=("schema_version",),
    columns=(
        integer("schema_version"),
        text("name"),
        blob("checksum", length=32),
        integer("min_reader_version"),
        integer("min_writer_version"),
        text("epoch"),
        instant("applied_at"),
    ),
    paths=(AccessPath("list_all", (), ("schema_version",)),),
)

TENANT = Relation(
    name="tenant",
    plural="tenants",
    entity=Tenant,
    code=50,
    comment="Which data source holds a tenant, and what is being done with it.",
    versioned=True,
    derived=None,  # names of places
    erase=None,  # names of places, in a separate store
    links=None,  # a place
    trust=None,  # the operator's
    exported=None,  # of one directory
    key=("name",),
    columns=(
        uuid_("tenant_id"),
        text("name"),
        enum("state", TenantState),
        text("source", comment="A data source of the configuration (tenancy.sources)."),
        text("location", comment="The file or schema in it."),
        instant("created_at"),
        instant("updated_at"),
        text("target_source", nullable=True, comment="Where it is moving."),
        text("target_location", nullable=True),
        uuid_("move_id", nullable=True, comment="Becomes the epoch of the place it is moving to."),
        text("old_source", nullable=True, comment="Where it was, until that is dropped."),
        text("old_location", nullable=True),
        version(),
    ),
    uniques=(Unique(("source", "location")),),
    paths=(AccessPath("list_all", (), ("name",)),),
)


KEY = "record_id"
"""The key of every declared memory's records."""
TABLE_PREFIX = "memory_"
"""Prefix of the tables of declared memories."""
FIRST_CODE = 64
LAST_CODE = 8_191
"""The codes of declared memories."""
CODE_MAX = 16_383
"""Change records name relations by 14 bits. Built-in relations have the codes below and above declared memories."""

NAMESAKE_BITS = 40
"""Distance between the ordinals of successive memories of one name: no table has as many rows."""


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """A memory that a store has, or had: its definition, and the code that change records name its records by."""

    code: int
    name: str
    definition: str
    created_at: datetime
    updated_at: datetime
    retired_at: datetime | None = None
    version: int = 1


MEMORY_TYPE = Relation(
    name="memory_type",
    plural="memory_types",
    entity=StoredMemory,
    code=47,
    comment="The memories declared for this store; one that was removed keeps its code for ever.",
    versioned=True,
    derived=None,  # a declaration is as it was made
    erase=Erase(
        refused="the declaration of the memory {key} names it; give texts that it does not hold, or remove the memory"
        " or the field (caliber db migrate --drop) and declare it in other words"
    ),
    links=None,  # a declaration
    trust=None,  # the operator's
    exported=None,  # the configuration declares it
    place=Place.DECLARATIONS,
    key=("code",),
    columns=(
        integer("code", check=(FIRST_CODE, None)),
        text("name"),
        text("definition"),
        instant("created_at"),
        instant("updated_at"),
        instant("retired_at", nullable=True),
        version(),
    ),
    uniques=(Unique(("name",), where=(("retired_at", True),)),),
    paths=(AccessPath("list_all", (), ("code",)),),
)


def is_declared(relation: Relation) -> bool:
    """Return whether a relation holds the records of a declared memory, by its code."""
    return FIRST_CODE <= relation.code <= LAST_CODE
