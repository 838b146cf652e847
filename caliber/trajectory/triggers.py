"""Protocols through which task services call policies and retention; the jobs of triggers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final, Protocol, TypeVar

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import record
from caliber.model.access import Principal
from caliber.model.declared import Trigger
from caliber.model.events import EventType
from caliber.model.jobs import Job
from caliber.model.knowledge import Note
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, TrajectoryId
from caliber.model.trajectory import Artifact, OutcomeStatus, Scope, Session, Trajectory, Turn
from caliber.resident.snapshot import ResidentSnapshot
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")

WAITING: Final = (Trigger.TASK_START, Trigger.TURN)
"""The triggers whose actions come after the transaction that sets them off."""

SCOPE_CLOSED: Final = "the scope was closed"
"""Reason for cancelling jobs that wait for a scope's turns."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a trigger: a trajectory, and the closing scope or the last one.

    ``erased`` is the number of erasures before all this was read; None where it does not matter. ``snapshot`` is what
    it was read from, with the task's artifacts.
    """

    trajectory: Trajectory
    scopes: list[Scope]
    scope: Scope | None
    turns: list[Turn]
    snapshot: ResidentSnapshot
    outcome: OutcomeStatus | None = None
    outcome_summary: str | None = None
    erased: int | None = None


@dataclass(slots=True)
class Applied:
    """Everything that the actions of one trigger wrote."""

    artifacts: list[Artifact] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    checkpoint_id: uuid.UUID | None = None
    pruned: int = 0
    versions: dict[uuid.UUID, int] = field(default_factory=dict)


class Policies(Protocol):
    """The policies of the configuration, for one principal; what they prepare is ``policies.steps.Prepared``."""

    def actions(self, trigger: Trigger) -> Sequence[object]:
        """Return the actions of a trigger in the order they were declared."""
        ...

    def prepare(self, trigger: Trigger, subject: Subject, claim: Claim | None = None) -> Any:
        """Do all that needs a provider, outside any transaction."""
        ...

    def write(self, prepared: Any, subject: Subject, work: Callable[[UnitOfWork], T]) -> T:
        """Run work that applies the prepared actions."""
        ...

    def apply(self, uow: UnitOfWork, subject: Subject, prepared: Any) -> Applied:
        """Write the prepared actions. Raises: StaleInputs, Superseded."""
        ...

    def prepare_checkpoint(self, subject: Subject) -> tuple[str, bytes]:
        """Return codec and state of a checkpoint of the trajectory as it is now."""
        ...

    def apply_checkpoint(
        self, uow: UnitOfWork, subject: Subject, state: tuple[str, bytes], recovered_to: uuid.UUID | None = None
    ) -> uuid.UUID:
        """Store a prepared checkpoint; a recovery names the one that it goes back to."""
        ...

    def prepare_notes(self, subject: Subject) -> list[Any]:
        """Draw notes from a trajectory, outside any transaction."""
        ...

    def apply_notes(
        self, uow: UnitOfWork, subject: Subject, prepared: Sequence[Any], versions: dict[uuid.UUID, int]
    ) -> list[Note]:
        """Write prepared notes. Raises: StaleInputs."""
        ...


class Retention(Protocol):
    """Records that stay, or stay open, as long as a scope, a session or a task."""

    def scope_closed(self, uow: UnitOfWork, scope: Scope) -> None:
        """Remove records that end with their scope, in the transaction that closes it."""
        ...

    def session_ended(self, uow: UnitOfWork, session: Session) -> None:
        """Remove records that end with their session, in the transaction that ends it."""
        ...

    def task_ends(self, uow: UnitOfWork, task: uuid.UUID, status: OutcomeStatus, summary: str, by: str) -> None:
        """End the delegation that a task is of, before the transaction that ends the task locks its row."""
        ...

    def task_ended(self, uow: UnitOfWork, task: uuid.UUID, by: str, *, cascade: bool) -> None:
        """End the delegations and handoffs of a task, in the transaction that has ended it.

        With ``cascade`` the tasks of these delegations end too; without it they go on alone.
        """
        ...


_KIND: Final = "trigger:"


def kind_of_trigger(trigger: Trigger) -> str:
    """Return the kind of the jobs of a trigger."""
    return f"{_KIND}{trigger.value}"


def trigger_of(job: Job) -> Trigger:
    """Return the trigger that a job is about."""
    return Trigger(job.kind.removeprefix(_KIND))


def enqueue(
    engine: Engine,
    uow: UnitOfWork,
    trigger: Trigger,
    trajectory_id: TrajectoryId,
    scope_id: ScopeId | None,
    principal: Principal,
) -> Claim:
    """Add the job of a trigger in the transaction that causes it; the caller does it after the commit."""
    return engine.part(JobQueue).enqueue_claimed(
        uow, kind_of_trigger(trigger), principal=principal, trajectory_id=trajectory_id, scope_id=scope_id
    )


def cancel(engine: Engine, uow: UnitOfWork, path: str, key: bytes, reason: str) -> None:
    """Cancel the triggers of a subject that ends in this transaction; ``path`` lists its jobs by ``key``."""
    for job in engine.part(JobQueue).cancel_for(uow, path, key, _KIND):
        record_unfinished(engine, uow, job, "dropped", reason)


def record_unfinished(engine: Engine, uow: UnitOfWork, job: Job, outcome: str, reason: str) -> None:
    """Write in this transaction why the actions of a trigger are not done."""
    payload = {"trigger": trigger_of(job).value, "outcome": outcome, "reason": reason, "attempt": job.attempts}
    record(engine, uow, job, EventType.POLICY_EXECUTE, payload, duration_ms=0)
