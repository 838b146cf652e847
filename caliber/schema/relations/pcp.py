"""Relation of task checkpoints."""

from __future__ import annotations

from caliber.model.pcp import Checkpoint
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    blob,
    boolean,
    integer,
    stamped,
    text,
    uuid_,
)
from caliber.schema.traits import Exported

CHECKPOINT = Relation(
    name="checkpoint",
    plural="checkpoints",
    entity=Checkpoint,
    code=6,
    comment="A point a trajectory can be recovered from.",
    ordinal=True,
    derived=None,  # the state quotes other records, as of a past moment
    erase=Erase(),
    links=None,  # none is made to a checkpoint
    task="trajectory_id",
    rights_of="trajectory",
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
    ),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_trajectory", ("trajectory_id",), ("created_at", "ordinal"), descending=True, limited=True),
    ),
)
