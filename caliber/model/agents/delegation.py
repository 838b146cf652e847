"""Data types of delegated tasks and of handoffs: work that one agent gives to another."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from caliber.model.agents.registry import AgentId
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ArtifactId, NoteId, ScopeId, TrajectoryId
from caliber.model.trajectory import OutcomeStatus

DelegationId = NewType("DelegationId", uuid.UUID)
HandoffId = NewType("HandoffId", uuid.UUID)


class DelegationStatus(StrEnum):
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class HandoffStatus(StrEnum):
    INITIATED = "initiated"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    COMPLETED = "completed"


OPEN_DELEGATIONS = frozenset({DelegationStatus.PENDING, DelegationStatus.ACCEPTED, DelegationStatus.IN_PROGRESS})
"""The states of a delegation that has not ended."""
TIMEOUT = "timeout"
"""The error of a delegation that ended because no agent answered, or because its deadline passed."""


@dataclass(frozen=True, slots=True)
class DelegationResult:
    """The end of a delegated task, with the records that it produced. Source: C-417.

    ``error`` is the reason of a task that was rejected, failed, was cancelled or timed out.
    """

    status: OutcomeStatus
    summary: str = ""
    produced_artifacts: tuple[ArtifactId, ...] = ()
    produced_notes: tuple[NoteId, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Delegation:
    """A task that an agent gives to another one, by name or by type. Source: C-400, C-426 to C-429.

    ``delegatee_agent_id`` is None until an agent of the type ``delegatee_agent_type`` accepts it. Work is done in the
    child of the parent task. The shared records are readable for the agent that works on it, until it ends.
    """

    delegation_id: DelegationId
    delegator_agent_id: AgentId
    task_description: str
    parent_trajectory_id: TrajectoryId
    status: DelegationStatus
    created_at: datetime
    updated_at: datetime
    delegatee_agent_id: AgentId | None = None
    delegatee_agent_type: str | None = None
    child_trajectory_id: TrajectoryId | None = None
    shared_artifacts: tuple[ArtifactId, ...] = ()
    shared_notes: tuple[NoteId, ...] = ()
    additional_context: str | None = None
    constraints: tuple[str, ...] = ()
    deadline: datetime | None = None
    result: DelegationResult | None = None
    accepted_at: datetime | None = None
    completed_at: datetime | None = None
    version: int = 1

    @property
    def is_open(self) -> bool:
        """True until it was rejected, completed or failed."""
        return self.status in OPEN_DELEGATIONS


@dataclass(frozen=True, slots=True)
class Handoff:
    """A task that an agent passes on to another one, with what that needs to continue. Source: C-402, C-430, C-431.

    ``snapshot`` is the packed window of the task when the handoff began, and stays as long as the handoff. Those that
    ``memory.agents.handoffs`` returns have it empty: not everybody who sees a handoff may read all of it.
    ``context_snapshot_id`` is the id of that window.
    """

    handoff_id: HandoffId
    from_agent_id: AgentId
    trajectory_id: TrajectoryId
    scope_id: ScopeId
    context_snapshot_id: uuid.UUID
    snapshot: bytes
    handoff_notes: str
    reason: str
    status: HandoffStatus
    initiated_at: datetime
    updated_at: datetime
    to_agent_id: AgentId | None = None
    to_agent_type: str | None = None
    next_steps: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    accepted_at: datetime | None = None
    completed_at: datetime | None = None
    rejection_reason: str | None = None
    version: int = 1

    @property
    def is_open(self) -> bool:
        """True until it was rejected or completed."""
        return self.completed_at is None


@dataclass(frozen=True, slots=True)
class HandoffSnapshot:
    """The window that a task had when its handoff began. Units: ``used_tokens`` tokens.

    ``sections`` are names and texts, in order, of the records that its reader may read; a record that is forgotten
    leaves a mark in place of its text.
    """

    window_id: uuid.UUID
    assembled_at: datetime
    used_tokens: int
    sections: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The sections as one text."""
        return "".join(text for _, text in self.sections)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> HandoffSnapshot:
        """Return it from JSON."""
        return cls(
            uuid.UUID(body["window_id"]),
            datetime.fromisoformat(body["assembled_at"]),
            int(body["used_tokens"]),
            tuple((section["name"], section["content"]) for section in body["sections"]),
        )
