"""Relations of access: names of users and agents, and rights that they were granted. Source: O-17, C-422, K-194."""

from __future__ import annotations

from caliber.model.access import Grant, Identity, Right
from caliber.model.references import EntityRef, EntityType
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    Composite,
    Relation,
    Residence,
    Unique,
    enum,
    instant,
    stamped,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Exported, Owned, Resident, Rights

IDENTITY = Relation(
    name="identity",
    plural="identities",
    entity=Identity,
    code=7,
    comment="Names by which an application calls users and agents; several names may have one entity.",
    derived=None,  # names and ids
    erase=Erase(names=("name",)),
    ordinal=True,
    versioned=True,
    resident=Resident(framed=True),
    links=None,  # a name
    rights=Rights(owner=Owned("entity")),
    trust=None,  # a name
    exported=Exported.RECORDS,
    key=("identity_id",),
    composites=(Composite("entity", EntityRef, (("entity_type", "entity_type"), ("id", "entity_id"))),),
    columns=(
        uuid_("identity_id"),
        enum("entity_type", EntityType, residence=Residence.COLUMN),
        uuid_("entity_id", residence=Residence.INTERNED),
        text("namespace"),
        text("name", residence=Residence.INTERNED, redact=Redaction.PRINCIPALS),
        stamped("created_at"),
        stamped("updated_at"),
        version(),
    ),
    uniques=(Unique(("entity_type", "namespace", "name")),),
    paths=(AccessPath("list_by_entity", ("entity_id",), ("created_at", "ordinal")),),
)

GRANT = Relation(
    name="access_grant",
    plural="access_grants",
    entity=Grant,
    code=8,
    comment="Rights of users and agents on tasks, sessions and notes of others, until an instant or revoked.",
    derived=None,  # ids and instants
    erase=Erase(hangs_on=("on_id",)),
    ordinal=True,
    versioned=True,
    resident=Resident(framed=True),
    links=None,  # a right
    trust=None,  # a right
    exported=Exported.RECORDS,
    key=("grant_id",),
    composites=(
        Composite("to", EntityRef, (("entity_type", "to_type"), ("id", "to_id"))),
        Composite("on", EntityRef, (("entity_type", "on_type"), ("id", "on_id"))),
    ),
    columns=(
        uuid_("grant_id"),
        enum("to_type", EntityType),
        uuid_("to_id", residence=Residence.INTERNED),
        enum("on_type", EntityType),
        uuid_("on_id", residence=Residence.INTERNED),
        enum("right", Right),
        text("granted_by", redact=Redaction.PRINCIPALS),
        instant("until", nullable=True),
        instant("revoked_at", nullable=True),
        stamped("created_at"),
        stamped("updated_at"),
        version(),
    ),
    paths=(
        AccessPath("list_by_grantee", ("to_id",), ("created_at", "ordinal")),
        AccessPath("list_by_record", ("on_id",), ("created_at", "ordinal")),
    ),
)
