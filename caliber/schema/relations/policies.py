"""Runs of schedules, and triggers that wait. Source: C-229, C-238."""

from __future__ import annotations

from caliber.model.access import PrincipalKind
from caliber.model.agents import AgentRole
from caliber.model.policies import PendingTrigger, PolicyRun, Trigger
from caliber.schema.erase import Erase
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    boolean,
    enum,
    instant,
    integer,
    text,
    uuid_,
    version,
)

POLICY_RUN = Relation(
    name="policy_run",
    plural="policy_runs",
    entity=PolicyRun,
    code=46,
    comment="How far each rule on a schedule is; what came due up to covered_at is done.",
    ordinal=True,
    versioned=True,
    derived=None,  # instants and counts
    erase=None,  # ids of rules, instants and counts
    links=None,  # a mark
    trust=None,  # instants
    exported=None,  # of one store's schedules
    key=("rule_id",),
    columns=(
        uuid_("rule_id"),
        instant("covered_at"),
        instant("due_at", nullable=True),
        integer("actions_done", check=(0, None)),
        integer("attempts", check=(0, None)),
        version(),
    ),
    paths=(AccessPath("list_all", (), ("ordinal",)),),
)


PENDING_TRIGGER = Relation(
    name="pending_trigger",
    plural="pending_triggers",
    entity=PendingTrigger,
    code=48,
    comment="What the start of a task or a turn set off; the transaction of its actions removes it.",
    versioned=True,
    derived=None,  # what set the trigger off
    erase=Erase(),
    links=None,  # gone when it was done
    trust=None,  # ids
    exported=None,  # work of one store
    key=("trigger_id",),
    columns=(
        uuid_("trigger_id"),
        uuid_("trajectory_id"),
        uuid_("scope_id", nullable=True),
        enum("trigger", Trigger),
        enum("principal_kind", PrincipalKind),
        text("principal_id"),
        enum("principal_role", AgentRole, nullable=True),
        boolean("principal_admin"),
        instant("created_at"),
        instant("begun_at"),
        integer("attempts", check=(0, None)),
        version(),
    ),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_trajectory", ("trajectory_id",), ("trigger_id",)),
        AccessPath("list_by_scope", ("scope_id",), ("trigger_id",), where=(("scope_id", False),)),
    ),
)
