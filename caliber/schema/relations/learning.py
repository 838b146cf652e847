"""Relation of learning: which note is about which person, and whose messages taught it. Source: C-422, K-194."""

from __future__ import annotations

from caliber.model.learning import PersonAttribute, PersonFact
from caliber.model.references import EntityRef, EntityType
from caliber.schema.erase import Erase
from caliber.schema.relation import (
    AccessPath,
    Composite,
    ForeignKey,
    Relation,
    enum,
    stamped,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Exported

PERSON_FACT = Relation(
    name="person_fact",
    plural="person_facts",
    entity=PersonFact,
    code=13,
    comment="The person that a learnt note is about, and the user whose messages taught it; the note goes with them.",
    derived=None,  # ids and words of a note
    erase=Erase(),
    ordinal=True,
    versioned=True,
    links=None,  # it links a note itself
    trust=None,  # its note has the label
    exported=Exported.RECORDS,
    key=("note_id",),
    composites=(
        Composite("person", EntityRef, (("entity_type", "person_type"), ("id", "person_id"))),
        Composite("owner", EntityRef, (("entity_type", "owner_type"), ("id", "owner_id"))),
    ),
    columns=(
        uuid_("note_id"),
        enum("person_type", EntityType),
        uuid_("person_id"),
        enum("owner_type", EntityType),
        uuid_("owner_id"),
        enum("attribute", PersonAttribute),
        text("slot"),
        text("value"),
        stamped("stated_at"),
        stamped("created_at"),
        version(),
    ),
    foreign_keys=(ForeignKey("note_id", "note", "note_id", "cascade"),),
    paths=(AccessPath("list_by_owner", ("owner_id", "person_id"), ("created_at", "ordinal")),),
)
