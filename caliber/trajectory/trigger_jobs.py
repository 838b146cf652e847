"""Enqueueing and cancelling of the jobs that run a trigger's actions. Source: C-229, C-235; decision 0172."""

from __future__ import annotations

from typing import Final

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import record
from caliber.model.access import Principal
from caliber.model.declared import Trigger
from caliber.model.events import EventType
from caliber.model.ids import ScopeId, TrajectoryId
from caliber.model.jobs import Job
from caliber.storage.write.unit_of_work import UnitOfWork

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
