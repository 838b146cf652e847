"""Relations of knowledge: note, usage, edge. Source: C-391, K-196, K-200, K-201, O-10."""

from __future__ import annotations

from caliber.model.context import SectionType, SourceType
from caliber.model.declared import MemoryCategory
from caliber.model.events import EventType
from caliber.model.knowledge import NOBODY, Edge, EdgeRelation, Note, NoteType, Usage
from caliber.model.learning import PersonAttribute, PersonFact
from caliber.model.references import EntityRef, EntityType
from caliber.model.trust import TrustLabel
from caliber.schema.derived import Fingerprint, NotBefore, Sha256, Tokens
from caliber.schema.erase import Erase, MadeFrom, Redaction
from caliber.schema.relation import (
    AccessPath,
    Composite,
    ForeignKey,
    Like,
    Relation,
    Residence,
    Unique,
    blob,
    boolean,
    enum,
    instant,
    integer,
    real,
    stamped,
    text,
    text_array,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import (
    ALWAYS_US,
    NEVER_US,
    NOTES,
    Ends,
    Enters,
    Exported,
    Links,
    Memory,
    Pruned,
    Resident,
    Rights,
    Text,
    Times,
    Trust,
    Use,
    Window,
)

_COLUMN = Residence.COLUMN

NOTE = Relation(
    name="note",
    plural="notes",
    entity=Note,
    code=10,
    comment="Knowledge kept beyond its trajectory; deactivated, never deleted, except by forget and purge.",
    ordinal=True,
    versioned=True,
    resident=Resident(evicted=4),
    by_id=True,
    derived=(
        Sha256("content_hash", ("content",)),
        Fingerprint(
            "fingerprint",
            ("entity", "entity_type", "note_type", "content", "valid_from", "valid_until", "namespace", "trust"),
            readers="visible_to",
            author="created_by",
            later=("occurred_at",),  # swimming in May is not swimming in July
        ),
        Tokens("token_count", ("content",)),
    ),
    erase=Erase(
        names=("entity",),
        kind="entity_type",
        people=(EntityType.USER.value, "person"),  # a person: as learning calls one
        sources="source_trajectory_ids",
        made_from=(MadeFrom(("note_id",), "person_fact", ("note_id",)),),
    ),
    rules=(NotBefore("valid_until", "valid_from"),),  # C-047
    text=Text(("content",), embedded="content", head="entity"),
    usage=Use(retrieved=EventType.NOTE_RETRIEVE, importance="importance"),
    active=("archived_at", "superseded_by"),
    times=Times(since="valid_from", until="valid_until", as_of=True),
    rights=Rights(readers="visible_to", author="created_by"),
    ends=Ends(
        Pruned.ARCHIVED,
        archive="archived_at",
        supersede="superseded_by",
        recovered="archived_at",
        doubted="confidence",
        # Notes with other readers or another validity are not summed up with the rest.
        together=(
            "entity",
            "entity_type",
            "visible_to",
            "created_by",
            "namespace",
            "valid_from",
            "valid_until",
        ),
    ),
    links=Links(),
    trust=Trust("trust"),
    exported=Exported.RECORDS,
    grounded=NOTES,
    window=Window(
        Enters.KNOWLEDGE,
        source=4,
        section=SectionType.NOTES,
        source_type=SourceType.NOTE,
        template="- {entity} ({note_type}): {content}",
        most="max_notes_in_window",
    ),
    memory=Memory(
        "note",
        MemoryCategory.SEMANTIC,
        names=(("id", "note_id"),),
        vectors=("content_embedding",),
    ),
    key=("note_id",),
    columns=(
        uuid_("note_id"),
        text("entity", residence=Residence.INTERNED, content=True),
        text("entity_type", residence=Residence.INTERNED),
        enum("note_type", NoteType, residence=_COLUMN, content=True),
        text("content", residence=Residence.TEXT, content=True),
        blob("content_hash", length=32),
        blob("fingerprint", length=32, comment="of everything that makes two notes the same statement"),
        real("confidence", check=(0, 1), residence=_COLUMN),
        enum("trust", TrustLabel, residence=_COLUMN, comment="where the content came from"),
        integer("token_count", check=(0, None), residence=_COLUMN),
        stamped("created_at", residence=_COLUMN),
        stamped("updated_at", residence=_COLUMN),
        real("importance", nullable=True, check=(1, 10), residence=_COLUMN, resident_null=-1.0),
        real("base_importance", nullable=True, check=(1, 10), initial=Like("importance")),
        instant("valid_from", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        instant("valid_until", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        uuid_array("source_trajectory_ids"),
        instant("occurred_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        text("namespace", nullable=True, residence=Residence.INTERNED),
        text_array("tags"),
        text_array("visible_to", nullable=True, residence=Residence.INTERNED, redact=Redaction.PRINCIPALS),
        text("created_by", nullable=True, redact=Redaction.AUTHOR),
        uuid_("superseded_by", nullable=True, residence=Residence.FLAG),
        instant("archived_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        text("idempotency_key", nullable=True, per_record=True, redact=Redaction.NEW_KEY),
        version(),
    ),
    uniques=(
        Unique(("fingerprint",), where=(("archived_at", True), ("superseded_by", True), ("idempotency_key", True))),
        # Unique per author: a duplicate key must not reveal a hidden note to another author.
        Unique(("created_by", "idempotency_key"), where=(("created_by", False), ("idempotency_key", False))),
        Unique(("idempotency_key",), where=(("created_by", True), ("idempotency_key", False))),
    ),
    foreign_keys=(ForeignKey("superseded_by", "note", "note_id", "set null"),),
    paths=(
        AccessPath("find_by_entity", ("entity", "entity_type"), ("created_at", "ordinal")),
        AccessPath("list_by_type", ("note_type",), ("created_at", "ordinal"), limited=True),
    ),
)

USAGE = Relation(
    name="usage",
    plural="usages",
    entity=Usage,
    code=11,
    comment="Hot counters for each reader, written behind: a crash may lose the last buffered counts and nothing else.",
    ordinal=True,
    versioned=True,
    resident=Resident(),
    derived=None,  # counters
    erase=Erase(hangs_on=("owner_id",)),
    links=None,  # a counter of another record
    trust=None,  # numbers
    exported=Exported.RECORDS,
    key=("usage_id",),
    columns=(
        uuid_("usage_id", initial=Like("owner_id")),
        enum("owner_type", EntityType, open=True),
        uuid_("owner_id"),
        uuid_("used_by", initial=f'"{NOBODY}"'),
        integer("access_count", check=(0, None), residence=_COLUMN),
        stamped("last_accessed_at", residence=_COLUMN),
        version(),
    ),
    paths=(AccessPath("list_by_owner", ("owner_id",), ("used_by",)),),
)

EDGE = Relation(
    name="edge",
    plural="edges",
    entity=Edge,
    code=12,
    comment="A typed link between two records; removed softly.",
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("source_id", "target_id")),
    by_id=True,
    derived=None,  # ids and weights, each stated
    erase=Erase(hangs_on=("source_id", "target_id")),
    links=None,  # it is the link
    rights=Rights(ends=("source", "target")),
    trust=None,  # ids and weights
    exported=Exported.RECORDS,
    key=("edge_id",),
    composites=(
        Composite("source", EntityRef, (("entity_type", "source_type"), ("id", "source_id"))),
        Composite("target", EntityRef, (("entity_type", "target_type"), ("id", "target_id"))),
    ),
    columns=(
        uuid_("edge_id"),
        enum("source_type", EntityType, open=True),
        uuid_("source_id"),
        enum("target_type", EntityType, open=True),
        uuid_("target_id"),
        enum("relation", EdgeRelation, open=True, redact=Redaction.ROW),
        real("weight", check=(0, 1), residence=_COLUMN),
        real("base_weight", check=(0, 1), initial=Like("weight")),
        stamped("created_at"),
        boolean("auto_linked"),
        boolean("user_created"),
        instant("last_traversed_at", nullable=True),
        instant("removed_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        version(),
    ),
    uniques=(Unique(("source_id", "target_id", "relation"), where=(("removed_at", True),)),),
    paths=(
        AccessPath("list_by_source", ("source_id",), ("created_at", "ordinal")),
        AccessPath("list_by_target", ("target_id",), ("created_at", "ordinal")),
    ),
)

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
