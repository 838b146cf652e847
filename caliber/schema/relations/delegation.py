"""Relations of work that agents give to each other: delegations, handoffs. Source: C-400, C-402, C-413, C-414."""

from __future__ import annotations

import uuid
from typing import Any

from caliber.model.agents.delegation import (
    DelegatedTask,
    DelegationResult,
    DelegationStatus,
    Handoff,
    HandoffStatus,
)
from caliber.model.ids import ArtifactId, NoteId
from caliber.model.trajectory import OutcomeStatus
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Unique,
    blob,
    enum,
    instant,
    json_,
    stamped,
    text,
    text_array,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import Exported


def _result_to_json(result: DelegationResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "summary": result.summary,
        "produced_artifacts": [str(each) for each in result.produced_artifacts],
        "produced_notes": [str(each) for each in result.produced_notes],
        "error": result.error,
    }


def _result_from_json(body: dict[str, Any]) -> DelegationResult:
    return DelegationResult(
        status=OutcomeStatus(body["status"]),
        summary=body["summary"],
        produced_artifacts=tuple(ArtifactId(uuid.UUID(each)) for each in body["produced_artifacts"]),
        produced_notes=tuple(NoteId(uuid.UUID(each)) for each in body["produced_notes"]),
        error=body["error"],
    )


DELEGATION = Relation(
    name="delegation",
    plural="delegations",
    entity=DelegatedTask,
    code=56,
    comment="Tasks that agents give to other agents, by name or by type, and their results.",
    ordinal=True,
    versioned=True,
    derived=None,  # stated by its agents
    erase=Erase(),
    links=None,  # none is made to a delegation
    task="parent_trajectory_id",
    rights_of="trajectory",
    trust=None,  # its words enter windows as turns, with a label of their own
    exported=Exported.RECORDS,
    key=("delegation_id",),
    columns=(
        uuid_("delegation_id"),
        uuid_("delegator_agent_id"),
        text("task_description"),
        uuid_("parent_trajectory_id"),
        enum("status", DelegationStatus),
        stamped("created_at"),
        stamped("updated_at"),
        uuid_("delegatee_agent_id", nullable=True),
        text("delegatee_agent_type", nullable=True),
        uuid_("child_trajectory_id", nullable=True),
        uuid_array("shared_artifacts"),
        uuid_array("shared_notes"),
        text("additional_context", nullable=True),
        text_array("constraints"),
        instant("deadline", nullable=True),
        json_("result", _result_to_json, _result_from_json, nullable=True, redact=Redaction.WORDS),
        instant("accepted_at", nullable=True),
        instant("completed_at", nullable=True),
        version(),
    ),
    foreign_keys=(
        ForeignKey("delegator_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("delegatee_agent_id", "agent", "agent_id", "set null"),
        ForeignKey("parent_trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("child_trajectory_id", "trajectory", "trajectory_id", "set null"),
    ),
    paths=(
        AccessPath("list_by_status", ("status",), ("created_at", "ordinal")),
        AccessPath(
            "list_pending_of_type",
            ("delegatee_agent_type",),
            ("created_at", "ordinal"),
            where=(("delegatee_agent_id", True), ("status", DelegationStatus.PENDING)),
        ),
        AccessPath("list_by_delegatee", ("delegatee_agent_id",), ("created_at", "ordinal")),
        AccessPath("list_by_delegator", ("delegator_agent_id",), ("created_at", "ordinal")),
        AccessPath("list_by_parent", ("parent_trajectory_id",), ("created_at", "ordinal")),
        AccessPath("list_by_child", ("child_trajectory_id",), ("created_at", "ordinal")),
    ),
)

HANDOFF = Relation(
    name="handoff",
    plural="handoffs",
    entity=Handoff,
    code=57,
    comment="Tasks that agents pass on to other agents, with what those need to continue.",
    ordinal=True,
    versioned=True,
    derived=None,  # stated by its agents
    erase=Erase(),
    links=None,  # none is made to a handoff
    task="trajectory_id",
    rights_of="trajectory",
    trust=None,  # its words enter windows as a turn, with a label of its own
    exported=Exported.RECORDS,
    key=("handoff_id",),
    columns=(
        uuid_("handoff_id"),
        uuid_("from_agent_id"),
        uuid_("trajectory_id"),
        uuid_("scope_id"),
        uuid_("context_snapshot_id"),  # no foreign key: the snapshot is in the next column, and does not expire
        blob("snapshot", redact=Packed(Layout.CHECKPOINT)),
        text("handoff_notes"),
        text("reason"),
        enum("status", HandoffStatus),
        stamped("initiated_at"),
        stamped("updated_at"),
        uuid_("to_agent_id", nullable=True),
        text("to_agent_type", nullable=True),
        text_array("next_steps"),
        text_array("blockers"),
        text_array("open_questions"),
        instant("accepted_at", nullable=True),
        instant("completed_at", nullable=True),
        text("rejection_reason", nullable=True),
        version(),
    ),
    uniques=(Unique(("trajectory_id",), where=(("accepted_at", True), ("completed_at", True))),),
    foreign_keys=(
        ForeignKey("from_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("to_agent_id", "agent", "agent_id", "set null"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_status", ("status",), ("initiated_at", "ordinal")),
        AccessPath(
            "list_pending_of_type",
            ("to_agent_type",),
            ("initiated_at", "ordinal"),
            where=(("to_agent_id", True), ("status", HandoffStatus.INITIATED)),
        ),
        AccessPath("list_by_receiver", ("to_agent_id",), ("initiated_at", "ordinal")),
        AccessPath("list_by_sender", ("from_agent_id",), ("initiated_at", "ordinal")),
        AccessPath("list_by_trajectory", ("trajectory_id",), ("initiated_at", "ordinal")),
    ),
)
