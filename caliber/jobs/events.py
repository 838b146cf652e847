"""Event logging of jobs, in the transaction of the job's change, as the principal that requested the work."""

from __future__ import annotations

from typing import Any

from caliber.engine.engine import Engine
from caliber.model.events import EventType
from caliber.model.jobs import Job
from caliber.storage.write.unit_of_work import UnitOfWork


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
