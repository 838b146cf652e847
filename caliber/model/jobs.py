"""Data types of the job queue: a job, its state, and the outcome of an attempt."""

from __future__ import annotations

import uuid
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any

from caliber.model.access import AgentRole, Principal, PrincipalKind
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, TrajectoryId


class JobOutcome(StrEnum):
    """The end of a job. FAILED is a dead letter: it ran as often as it may, and a person can retry it."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobState(StrEnum):
    """The state of a job as people see it; the last three are outcomes."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work, and how far it is.

    ``due_at`` is when it was to run; ``available_at`` when it may be claimed next: the end of the lease while
    ``claimed_by`` works on it, the end of the wait after a failure. ``scheduled_at`` is when that was decided.
    ``begun_at`` is the first claim, ``attempts`` how often it was claimed. Only the holder of ``version`` may end it.
    """

    job_id: uuid.UUID
    kind: str
    key: str | None
    payload: dict[str, Any]
    principal_kind: PrincipalKind
    principal_id: str
    principal_role: AgentRole | None
    principal_admin: bool
    created_at: datetime
    due_at: datetime
    available_at: datetime
    scheduled_at: datetime
    trajectory_id: TrajectoryId | None = None
    scope_id: ScopeId | None = None
    begun_at: datetime | None = None
    claimed_by: str | None = None
    attempts: int = 0
    error: str | None = None
    done: int = 0
    total: int | None = None
    ended_at: datetime | None = None
    outcome: JobOutcome | None = None
    version: int = field(default=1)

    @property
    def principal(self) -> Principal:
        """The principal that requested the work; it runs on its behalf."""
        return Principal(self.principal_kind, self.principal_id, self.principal_role, is_admin=self.principal_admin)

    @property
    def state(self) -> JobState:
        """The state of the job; an expired lease counts until another process claims the job."""
        if self.outcome is not None:
            return JobState(self.outcome.value)
        return JobState.WAITING if self.claimed_by is None else JobState.RUNNING
