"""Queue for one job that the caller's thread runs on a store not fully open: claim, lease, progress and end."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from caliber.engine import pacing
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.states import SYSTEM, new_job, restarted
from caliber.kernels import uuid7
from caliber.model.errors import CaliberError
from caliber.model.jobs import Job
from caliber.model.progress import Progress
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")


class ForegroundQueue:
    """The queue of a store as one caller uses it: nothing runs behind, so its reports extend its leases."""

    stopping = False

    def __init__(self, store: Store, *, lease_ms: int, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._clock_us = clock_us
        self.lease_us = lease_ms * 1_000

    def now_us(self) -> int:
        """Return the time of its clock. Units: µs."""
        return self._clock_us()

    def take(self, kind: str, job_id: uuid.UUID) -> Claim:
        """Restart the job, even if another process runs it: that one finds another version, and writes nothing."""

        def work(uow: UnitOfWork) -> Job:
            uow.serialize(f"job {job_id}")  # of two who take it first, one adds it
            now = from_us(uow.now_us)
            found: Job | None = uow.find(JOB, job_id.bytes)
            old = found or new_job(kind, now, now, SYSTEM, key=None, payload={}, of=(None, None))
            job = dataclasses.replace(
                restarted(old, uow.now_us),
                job_id=job_id,
                available_at=from_us(uow.now_us + self.lease_us),
                begun_at=now,
                claimed_by=f"caller:{uuid7()}",
                attempts=1,
            )
            if found is None:
                uow.insert(JOB, job)
                return job
            taken: Job = uow.update(JOB, job)
            return taken

        return Claim(self, self.write(work))

    def extend(self, job: Job) -> int:
        """Let the lease of a job begin again; return when that was. Raises: Superseded."""

        def work(uow: UnitOfWork) -> int:
            if not uow.execute("job.extend", job.job_id.bytes, job.version, uow.now_us, uow.now_us + self.lease_us):
                raise Superseded
            return uow.now_us

        return self.write(work)

    def postponed(self, uow: UnitOfWork, job: Job, reason: str) -> Job:
        """Return a job that waits for its next attempt, in any process that has the store open."""
        now = from_us(uow.now_us)
        return dataclasses.replace(job, available_at=now, scheduled_at=now, claimed_by=None, error=reason)

    def end(self, claim: Claim) -> None:
        """End the job as done, unless others took it meanwhile."""
        with contextlib.suppress(Superseded):
            self.write(claim.ack)

    def postpone(self, claim: Claim, reason: str) -> None:
        """Leave the job to others after a failure; where that cannot be written, they wait for the end of its lease."""
        with contextlib.suppress(Superseded, CaliberError):
            self.write(lambda uow: claim.postpone(uow, claim.job.payload, reason))

    def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run work about a job in a transaction of its own."""
        return self._store.write(work)


def reported(claim: Claim, progress: Progress) -> Progress:
    """Return a callback that tells the job how far its work is every so often, and extends its lease.

    Raises, when it is called: Superseded.
    """
    report_at = 0.0

    def report(stage: str, done: int, total: int | None) -> None:
        nonlocal report_at
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + pacing.REPORT_S
            claim.report(done, total)
            if claim.due_for_extension_us <= 0:
                claim.extend()
        progress(stage, done, total)

    return report
