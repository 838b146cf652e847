"""Relation of access: the names that applications give to users and agents. Source: O-17, K-194."""

from __future__ import annotations

from caliber.model.identities import Identity
from caliber.model.references import EntityRef, EntityType
from caliber.schema.erase import Erase
from caliber.schema.relation import (
    AccessPath,
    Composite,
    Relation,
    Residence,
    Unique,
    enum,
    stamped,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Exported, Owned

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
    mirrored=True,
    links=None,  # a name
    owner=Owned("entity"),
    trust=None,  # a name
    exported=Exported.RECORDS,
    framed=True,
    key=("identity_id",),
    composites=(Composite("entity", EntityRef, (("entity_type", "entity_type"), ("id", "entity_id"))),),
    columns=(
        uuid_("identity_id"),
        enum("entity_type", EntityType, residence=Residence.COLUMN),
        uuid_("entity_id", residence=Residence.INTERNED),
        text("namespace"),
        text("name", residence=Residence.INTERNED),
        stamped("created_at"),
        stamped("updated_at"),
        version(),
    ),
    uniques=(Unique(("entity_type", "namespace", "name")),),
    paths=(AccessPath("list_by_entity", ("entity_id",), ("created_at", "ordinal")),),
)
