"""Singleton jobs with a fixed id: one row each, which is reset and run again when there is new work."""

from __future__ import annotations

import dataclasses
import uuid

from caliber.jobs.queue import JobQueue
from caliber.jobs.states import SYSTEM, new_job, restarted
from caliber.model.jobs import Job, JobOutcome
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.write.unit_of_work import UnitOfWork


def renew(jobs: JobQueue, uow: UnitOfWork, kind: str, job_id: uuid.UUID) -> None:
    """Let the job wait, due at once, in the transaction that causes it; one that has not ended stays as it is."""
    found: Job | None = uow.find(JOB, job_id.bytes)
    if found is not None and found.ended_at is None:
        return
    now = from_us(uow.now_us)
    new = new_job(kind, now, now, SYSTEM, key=None, payload={}, of=(None, None))
    if found is None:
        uow.insert_new(JOB, dataclasses.replace(new, job_id=job_id))
    else:
        uow.update(JOB, restarted(found, uow.now_us))
    uow.on_commit.append(lambda: jobs.on_enqueued(0.0))


def resume(jobs: JobQueue, kind: str, job_id: uuid.UUID) -> None:
    """Let the job wait, unless it waits, runs, or was cancelled."""
    found = jobs.find(job_id)
    if found is None or found.outcome not in (None, JobOutcome.CANCELLED):
        jobs.write(lambda uow: renew(jobs, uow, kind, job_id))
    elif found.outcome is None:
        jobs.on_enqueued(0.0)


def end(uow: UnitOfWork, job_id: uuid.UUID, outcome: JobOutcome) -> None:
    """End the job if it has not ended, whatever process runs it: the work is done, or no longer needed."""
    found: Job | None = uow.find(JOB, job_id.bytes)
    if found is not None and found.ended_at is None:
        uow.update(JOB, dataclasses.replace(found, ended_at=from_us(uow.now_us), outcome=outcome, claimed_by=None))
