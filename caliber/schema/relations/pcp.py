"""Relations of the guard: checkpoints of tasks, conflicts between records. Source: C-401, C-414, C-432, C-435."""

from __future__ import annotations

from caliber.model.pcp import (
    Checkpoint,
    ConflictResolution,
    ConflictStatus,
    ConflictType,
    ConflictWinner,
    Disagreement,
)
from caliber.model.references import EntityRef, EntityType
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    AccessPath,
    Composite,
    ForeignKey,
    Relation,
    Residence,
    Unique,
    blob,
    boolean,
    enum,
    instant,
    integer,
    stamped,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import NEVER_US, Exported, Resident, Rights

CHECKPOINT = Relation(
    name="checkpoint",
    plural="checkpoints",
    entity=Checkpoint,
    code=6,
    comment="A point a trajectory can be recovered from.",
    ordinal=True,
    in_order=True,  # clocks go back
    derived=None,  # the state quotes other records, as of a past moment
    erase=Erase(),
    links=None,  # none is made to a checkpoint
    rights=Rights(task="trajectory_id", kind="trajectory"),
    trust=None,  # a state is the program's
    exported=Exported.RECORDS,
    key=("checkpoint_id",),
    columns=(
        uuid_("checkpoint_id"),
        uuid_("trajectory_id"),
        integer("turn_number", check=(0, None)),
        text("codec", redact=Redaction.NOTHING),
        blob("state", redact=Packed(Layout.CHECKPOINT)),
        boolean("recoverable"),
        stamped("created_at"),
        uuid_("scope_id", nullable=True),
        uuid_("recovered_to", nullable=True),  # no foreign key: the one that it names may be pruned
    ),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(AccessPath("list_by_trajectory", ("trajectory_id",), ("ordinal",), descending=True, limited=True),),
)

CONFLICT = Relation(
    name="conflict",
    plural="conflicts",
    entity=Disagreement,
    code=14,
    comment="Two records, or two agents, that are at odds; a pair has one open conflict at most.",
    ordinal=True,
    versioned=True,
    resident=Resident(framed=True),
    derived=None,  # ids, instants, and what a check found
    erase=Erase(hangs_on=("a_id", "b_id"), quotes=True),
    links=None,  # it links its sides
    rights=Rights(ends=("item_a", "item_b")),
    trust=None,  # its reason is the program's
    exported=Exported.RECORDS,
    key=("conflict_id",),
    composites=(
        Composite("item_a", EntityRef, (("entity_type", "a_type"), ("id", "a_id"))),
        Composite("item_b", EntityRef, (("entity_type", "b_type"), ("id", "b_id"))),
    ),
    columns=(
        uuid_("conflict_id"),
        enum("conflict_type", ConflictType),
        enum("a_type", EntityType, open=True),
        uuid_("a_id"),
        enum("b_type", EntityType, open=True),
        uuid_("b_id"),
        enum("status", ConflictStatus),
        text("reason"),
        stamped("detected_at"),
        text("detected_by"),
        stamped("updated_at"),
        uuid_("trajectory_id", nullable=True),
        enum("strategy", ConflictResolution, nullable=True),
        enum("winner", ConflictWinner, nullable=True),
        text("resolution_reason", nullable=True),
        instant("resolved_at", nullable=True, residence=Residence.COLUMN, resident_null=NEVER_US),
        text("resolved_by", nullable=True),
        uuid_("agent_a_id", nullable=True),
        uuid_("agent_b_id", nullable=True),
        text("resource", nullable=True, redact=Redaction.ROW),
        uuid_("escalated_to", nullable=True),
        enum("merged_type", EntityType, nullable=True, open=True),
        uuid_("merged_id", nullable=True),
        version(),
    ),
    uniques=(Unique(("a_id", "b_id"), where=(("resolved_at", True),)),),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "set null"),
        ForeignKey("agent_a_id", "agent", "agent_id", "set null"),
        ForeignKey("agent_b_id", "agent", "agent_id", "set null"),
        ForeignKey("escalated_to", "agent", "agent_id", "set null"),
    ),
    paths=(
        AccessPath("list_by_item_a", ("a_id",), ("detected_at", "ordinal")),
        AccessPath("list_by_item_b", ("b_id",), ("detected_at", "ordinal")),
        AccessPath("list_by_trajectory", ("trajectory_id",), ("detected_at", "ordinal")),
        AccessPath("list_by_agent_a", ("agent_a_id",), ("detected_at", "ordinal"), where=(("agent_a_id", False),)),
        AccessPath("list_by_agent_b", ("agent_b_id",), ("detected_at", "ordinal"), where=(("agent_b_id", False),)),
        AccessPath("list_escalated", ("escalated_to",), ("detected_at", "ordinal"), where=(("escalated_to", False),)),
    ),
)
