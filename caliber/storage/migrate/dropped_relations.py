"""Frozen declarations of relations that earlier schema versions had, so that migrations can read and drop them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from caliber.model.access import AgentRole
from caliber.model.declared import Trigger
from caliber.model.references import EntityType
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    boolean,
    enum,
    instant,
    integer,
    stamped,
    text,
    uuid_,
    version,
)


class _PrincipalKind(StrEnum):
    HUMAN = "human"
    AGENT = "agent"
    SYSTEM = "system"


_BARE: Final[dict[str, Any]] = {
    "entity": dict, "derived": None, "erase": None, "links": None, "trust": None, "exported": None,
}  # fmt: skip

POLICY_RUN = Relation(
    name="policy_run",
    plural="policy_runs",
    code=46,
    comment="How far each rule on a schedule is; what came due up to covered_at is done.",
    ordinal=True,
    versioned=True,
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
    **_BARE,
)
"""Up to schema 3: progress of schedules."""

USAGE = Relation(
    name="usage",
    plural="usages",
    code=11,
    comment="Hot counters, written behind: a crash may lose the last buffered counts and nothing else.",
    ordinal=True,
    versioned=True,
    key=("owner_id",),
    columns=(
        enum("owner_type", EntityType, open=True),
        uuid_("owner_id"),
        integer("access_count", check=(0, None)),
        stamped("last_accessed_at"),
        version(),
    ),
    **_BARE,
)
"""Up to schema 8: uses by all readers as one; the new counts begin anew."""

PENDING_TRIGGER = Relation(
    name="pending_trigger",
    plural="pending_triggers",
    code=48,
    comment="What the start of a task or a turn set off; the transaction of its actions removes it.",
    versioned=True,
    key=("trigger_id",),
    columns=(
        uuid_("trigger_id"),
        uuid_("trajectory_id"),
        uuid_("scope_id", nullable=True),
        enum("trigger", Trigger),
        enum("principal_kind", _PrincipalKind),
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
    **_BARE,
)
"""Up to schema 3: triggers whose actions were not done yet."""
