"""Row values of a job when it is enqueued, renewed, or rescheduled for a later time; and its events."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model.access import Principal, PrincipalKind
from caliber.model.events import EventType
from caliber.model.jobs import Job
from caliber.model.references import ScopeId, TrajectoryId
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork

SYSTEM: Final = Principal(PrincipalKind.SYSTEM, "jobs")
"""The principal of jobs without a requester."""
_KIND: Final = codec_of(JOB).index("kind")
_TRAJECTORY: Final = codec_of(JOB).index("trajectory_id")


def new_job(
    kind: str,
    now: datetime,
    due: datetime,
    principal: Principal,
    *,
    key: str | None,
    payload: dict[str, Any],
    of: tuple[TrajectoryId | None, ScopeId | None],
) -> Job:
    """Return a job that waits for ``due``; ``of`` is the task and the scope that it belongs to."""
    return Job(
        job_id=uuid7(),
        kind=kind,
        key=key,
        payload=payload,
        principal_kind=principal.kind,
        principal_id=principal.id,
        principal_role=principal.role,
        principal_admin=principal.is_admin,
        created_at=now,
        due_at=due,
        available_at=due,
        scheduled_at=now,
        trajectory_id=of[0],
        scope_id=of[1],
    )


def rescheduled(job: Job, now_us: int, due_us: int, payload: dict[str, Any]) -> Job:
    """Return a job that waits for its next time."""
    due = from_us(due_us)
    return dataclasses.replace(
        job,
        payload=payload,
        due_at=due,
        available_at=due,
        scheduled_at=from_us(now_us),
        claimed_by=None,
        attempts=0,
        error=None,
        done=0,
        total=None,
    )


def released(job: Job, now_us: int) -> Job:
    """Return a claimed job that waits again, due at once, as if this attempt had not been."""
    now = from_us(now_us)
    attempts = max(job.attempts - 1, 0)
    return dataclasses.replace(job, available_at=now, scheduled_at=now, claimed_by=None, attempts=attempts)


def renewed(job: Job, now_us: int) -> Job:
    """Return an ended job that waits again, with all its attempts before it."""
    now = from_us(now_us)
    return dataclasses.replace(
        job, ended_at=None, outcome=None, attempts=0, claimed_by=None, available_at=now, scheduled_at=now
    )


def restarted(job: Job, now_us: int) -> Job:
    """Return a job, ended or not, that waits as if it had just been enqueued, due at once."""
    return dataclasses.replace(
        rescheduled(job, now_us, now_us, job.payload), ended_at=None, outcome=None, begun_at=None
    )


def adds_job(changes: Sequence[RowChange], kind: str, trajectory_id: bytes) -> bool:
    """Return whether the changes of a commit include a job of a kind for a trajectory."""
    return any(
        change.relation is JOB and change.row[_KIND] == kind and change.row[_TRAJECTORY] == trajectory_id
        for change in changes
    )


def record(
    engine: Engine,
    uow: UnitOfWork,
    job: Job,
    kind: EventType,
    payload: dict[str, Any],
    duration_ms: int | None = None,
) -> None:
    """Write an event about a job in this transaction, and publish it after the commit."""
    engine.trace(
        uow,
        kind,
        principal=job.principal.label,
        trajectory_id=job.trajectory_id,
        scope_id=job.scope_id,
        payload=payload,
        duration_ms=duration_ms,
    )
