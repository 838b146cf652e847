"""Claims of this process on jobs: heartbeats that extend leases, acknowledgement, and detection of a lost claim."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from caliber.jobs.states import released, rescheduled
from caliber.model.jobs import Job, JobOutcome, JobState
from caliber.model.process.interrupts import managed, suppress
from caliber.model.time import to_us
from caliber.schema.relations import JOB, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork

_ALL: Final = 2**31 - 1
_in_progress: dict[object, Sequence[Claim]] = {}
"""Claims that threads of this process are working on, under what a block drops in one step, interrupted or not."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_progress.clear)  # the child does not have those threads


def in_progress() -> int:
    """Return how many jobs threads of this process work on."""
    return sum(map(len, list(_in_progress.values())))


def extend_all(jobs: ClaimQueue) -> float:
    """Extend the leases, after their first third, of a queue's running jobs; return when the next extension is due.

    Units: seconds from now; infinity while nothing is in progress.
    """
    waits = []
    for claim in itertools.chain.from_iterable(list(_in_progress.values())):
        if claim.settled or claim.lessor is not jobs:
            continue
        # A worker that lost its lease, or whose store is closed, finds out in the transaction of the work.
        with suppress(Exception):
            if claim.due_for_extension_us <= 0:
                claim.extend()
            waits.append(claim.due_for_extension_us / 1_000_000)
    return max(0.05, min(waits, default=math.inf))


class Superseded(Exception):
    """Others claimed the job, ended it, deleted its subject or forgot records: nothing of the work may be written."""


def take_back(uow: UnitOfWork, *, besides: str) -> None:
    """Take all running jobs from their workers, but those of one kind: none writes what it read before this commit.

    They wait again, due at once.
    """
    for job in uow.select_entities(JOB, "job.list_open", "", JobState.RUNNING.value, _ALL):
        if job.kind != besides:
            uow.update(JOB, released(job, uow.now_us))


@managed
def working(claims: Sequence[Claim]) -> Iterator[None]:
    """Extend the leases of all claims for as long as the block takes."""
    block = object()
    try:
        _in_progress[block] = claims
        yield
    finally:
        _in_progress.pop(block, None)


class ClaimQueue(Protocol):
    """The queue that a job was claimed from."""

    stopping: bool
    lease_us: int

    def now_us(self) -> int:
        """Return the time of its clock. Units: µs."""
        ...

    def extend(self, job: Job) -> int:
        """Let the lease of a job begin again; return when that was. Raises: Superseded."""
        ...

    def postponed(self, uow: UnitOfWork, job: Job, reason: str) -> Job:
        """Return a job that waits for its next attempt."""
        ...

    def write(self, work: Callable[[UnitOfWork], int]) -> int:
        """Run work in its own transaction."""
        ...


class Claim:
    """The right to do one job, for as long as its lease is extended."""

    def __init__(self, jobs: ClaimQueue, job: Job, place: object = None) -> None:
        self.lessor = jobs
        self.job = job
        self.place = place
        self.settled = False
        """Whether a committed transaction of the work ended the job, or gave it another time."""
        self.interrupted = False
        """Whether the work should stop and continue later: the store is being closed, or a more urgent job is due."""
        self._extended_us = to_us(job.scheduled_at)

    def working(self) -> AbstractContextManager[None]:
        """Extend the lease for as long as the block takes."""
        return working([self])

    @property
    def stopping(self) -> bool:
        """True when the store is being closed: long work must return, and continues elsewhere or at the next open."""
        self.interrupted = self.interrupted or self.lessor.stopping
        return self.lessor.stopping

    def ack(self, uow: UnitOfWork) -> int:
        """End the job as done, in the transaction of its work; return how often the store has erased something.

        Raises: Superseded.
        """
        return self.end(uow, JobOutcome.DONE)

    def end(self, uow: UnitOfWork, outcome: JobOutcome) -> int:
        """End the job in a transaction; return as ``ack``. Raises: Superseded."""
        job = self.job
        if job.trajectory_id is None:
            rows = uow.select("job.end", job.job_id.bytes, job.version, uow.now_us, outcome.value)
        else:
            # On retry the work locks what it reads: of two that share the task, neither would get it alone.
            uow.lock_row(TRAJECTORY, job.trajectory_id.bytes)
            values = (job.job_id.bytes, job.version, uow.now_us, outcome.value, job.trajectory_id.bytes)
            rows = uow.select("job.end_of_task", *values)
        if not rows:
            raise Superseded
        uow.on_commit.append(self.settle)
        erasures: int = rows[0][0]
        return erasures

    def hold(self, uow: UnitOfWork) -> None:
        """Lock the job for this transaction, one of several of its work. Raises: Superseded."""
        if not uow.select("job.hold", self.job.job_id.bytes, self.job.version):
            raise Superseded

    def current(self, uow: UnitOfWork) -> Job:
        """Return the job as it is in this transaction, which may change it. Raises: Superseded."""
        found: Job | None = uow.find(JOB, self.job.job_id.bytes)
        if found is None or found.version != self.job.version or found.ended_at is not None:
            raise Superseded
        return found

    def advance(self, uow: UnitOfWork, payload: dict[str, Any]) -> None:
        """Keep the state of the job, in the transaction of a step of its work; earlier failures do not count any more.

        Raises: Superseded.
        """
        self._changed(uow, dataclasses.replace(self.current(uow), payload=payload, attempts=1, error=None))

    def reschedule(self, uow: UnitOfWork, due_us: int, payload: dict[str, Any]) -> None:
        """Let the job wait for its next time, in the transaction of its work. Raises: Superseded."""
        self._changed(uow, rescheduled(self.current(uow), uow.now_us, due_us, payload))
        uow.on_commit.append(self.settle)

    def postpone(self, uow: UnitOfWork, payload: dict[str, Any], reason: str) -> None:
        """Let the job wait for its next attempt, in a transaction that records why. Raises: Superseded."""
        self._changed(uow, dataclasses.replace(self.lessor.postponed(uow, self.current(uow), reason), payload=payload))
        uow.on_commit.append(self.settle)

    def settle(self) -> None:
        """Note that nothing is left to do about the job."""
        self.settled = True

    def _changed(self, uow: UnitOfWork, job: Job) -> None:
        stored: Job = uow.update(JOB, job)
        uow.on_commit.append(lambda: setattr(self, "job", stored))

    def extend(self) -> None:
        """Let the lease begin again. Raises: Superseded."""
        self._extended_us = self.lessor.extend(self.job)

    @property
    def due_for_extension_us(self) -> int:
        """The time until a third of the lease is over. Units: µs."""
        return self._extended_us + self.lessor.lease_us // 3 - self.lessor.now_us()

    def interrupt(self) -> None:
        """Give the job back once its handler returns, to continue it after more urgent due jobs."""
        self.interrupted = True

    def report(self, done: int, total: int | None) -> None:
        """Show how far long work is; with progress, earlier failures do not count any more. Raises: Superseded."""
        job = self.job

        def work(uow: UnitOfWork) -> int:
            return uow.execute("job.report", job.job_id.bytes, job.version, done, total)

        if not self.lessor.write(work):
            raise Superseded
