"""Job queue of one open tenant: enqueues in the caller's transaction, claims by lease, runs handlers, retries.

A claim raises the version of its job, so a process that was paused beyond its lease finds another version and writes
nothing. The queue notices a clock that was put back: jobs scheduled by the wrong time wait no longer than intended.
Source: C-229, C-238; docs/jobs.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim, Superseded, extend_all, working
from caliber.jobs.handlers import Handler, Outages, Producers, Recurrence
from caliber.jobs.states import SYSTEM, new_job, record, released, rescheduled
from caliber.kernels import uuid7
from caliber.model.access import Principal
from caliber.model.deadline import GRACE_S, at_least, is_over
from caliber.model.errors import CaliberError, Conflict, InternalError, StorageError, error_fields, in_a_line
from caliber.model.events import EventType
from caliber.model.jobs import Job, JobOutcome
from caliber.model.process.interrupts import let_through, managed
from caliber.model.references import ScopeId, TrajectoryId
from caliber.model.time import from_us, to_us
from caliber.schema.relations import JOB
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")

_AHEAD_PAGE: Final = 500


class JobQueue:
    """The jobs of an open tenant, as this process enqueues and runs them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._config = engine.config.jobs
        self._handlers: dict[str, Handler] = {}
        self._outages = Outages(self._config.backoff_ms, self._config.backoff_max_ms)
        self.producers = Producers(engine, self._outages)
        self._places: dict[object, str] = {}
        """The kinds that threads of this process run, under what each thread drops in one step, interrupted or not."""
        self._placing = threading.Lock()
        self._unwritten: list[tuple[Claim, Exception]] = []
        """Failures that the store could not take when they happened."""
        self._writing_failures = threading.Lock()
        self._claimant = f"jobs:{uuid7()}"
        self.kinds = "[]"
        """The kinds that this process runs, as a JSON list."""
        self._ensured = False
        self.lease_us = self._config.lease_ms * 1_000
        """The time that a claim keeps others from a job, unless it is extended. Units: µs."""
        self.stopping = False
        """Whether the store is being closed."""
        self.enqueued_at_open = False
        """Whether a job was enqueued, or found to wait, before anything runs jobs in the background."""
        self.on_enqueued: Callable[[float], None] = lambda _: setattr(self, "enqueued_at_open", True)
        """Called after each commit that enqueued a job that is not claimed yet."""

    # --- handlers ----------------------------------------------------------------------------------

    def register(self, *handlers: Handler, replace: bool = False) -> None:
        """Have this process run kinds of jobs. Raises: InternalError for a kind with a handler, unless ``replace``."""
        for handler in handlers:
            if handler.kind in self._handlers and not replace:
                raise InternalError(f"jobs of kind {handler.kind} have two handlers")
            self._handlers[handler.kind] = handler
        self.kinds = json.dumps(sorted(self._handlers))
        self._ensured = False

    @property
    def handlers(self) -> Sequence[Handler]:
        """The handlers in the order of their registration."""
        return tuple(self._handlers.values())

    # --- enqueuing ---------------------------------------------------------------------------------

    def enqueue(
        self,
        uow: UnitOfWork,
        kind: str,
        *,
        key: str | None = None,
        payload: dict[str, Any] | None = None,
        due_at: datetime | None = None,
        principal: Principal = SYSTEM,
        trajectory_id: TrajectoryId | None = None,
        scope_id: ScopeId | None = None,
        within_s: float = 0.0,
    ) -> Job | None:
        """Add a job in the transaction that causes it, and return it; None if the same work waits already.

        Jobs of one ``kind`` and ``key`` are the same work until one of them starts. ``due_at`` is the time to run it;
        None means now. This process looks for it ``within_s`` seconds after the commit.
        """
        now = from_us(uow.now_us)
        due = now if due_at is None else due_at
        job = new_job(kind, now, due, principal, key=key, payload=payload or {}, of=(trajectory_id, scope_id))
        if key is None:
            uow.insert(JOB, job)
        elif not uow.insert_new(JOB, job):
            return None
        uow.on_commit.append(lambda: self.on_enqueued(within_s))
        return job

    def enqueue_claimed(
        self,
        uow: UnitOfWork,
        kind: str,
        *,
        payload: dict[str, Any] | None = None,
        principal: Principal = SYSTEM,
        trajectory_id: TrajectoryId | None = None,
        scope_id: ScopeId | None = None,
    ) -> Claim:
        """Add a job that the caller does itself, right after its commit; others claim it when its lease is over."""
        now = from_us(uow.now_us)
        job = dataclasses.replace(
            new_job(kind, now, now, principal, key=None, payload=payload or {}, of=(trajectory_id, scope_id)),
            available_at=from_us(uow.now_us + self.lease_us),
            begun_at=now,
            claimed_by=self._claimant,
        )
        uow.insert(JOB, job)
        return Claim(self, job)

    def ensure(self) -> None:
        """Add missing recurring jobs, exactly once, and correct those of another configuration."""
        if self._ensured:
            return
        now_us = self.now_us()
        wrong = [
            (handler, handler.recurrence.job_id)
            for handler in self._handlers.values()
            if handler.recurrence and handler.corrected(self.find(handler.recurrence.job_id), now_us)
        ]

        def work(uow: UnitOfWork) -> None:
            for handler, job_id in wrong:
                found = uow.find(JOB, job_id.bytes)
                job = handler.corrected(found, uow.now_us)
                if job is not None:
                    (uow.insert_new if found is None else uow.update)(JOB, job)

        if wrong:
            self._engine.write(work)
        self._ensured = True

    def recurrence(self, kind: str) -> Recurrence | None:
        """Return how jobs of a kind recur in this process, or None."""
        handler = self._handlers.get(kind)
        return None if handler is None else handler.recurrence

    def find(self, job_id: uuid.UUID) -> Job | None:
        """Return a job, or None."""
        return self._engine.read(lambda uow: uow.find(JOB, job_id.bytes))

    def waiting(self) -> dict[str, int]:
        """Return the number of pending jobs of each kind, without recurring ones."""
        recurring = {handler.kind for handler in self._handlers.values() if handler.recurrence is not None}
        rows = self._engine.read(lambda uow: uow.select("job.counts"))
        return {kind: jobs for kind, jobs in rows if kind not in recurring}

    def failed(self) -> int:
        """Return how many jobs ended as failed, and are kept for a person to retry."""
        plans = self._engine.store.plans[JOB.name]
        with self._engine.store.read() as session:
            failed: int = session.run(plans.counts["list_ended"], (JobOutcome.FAILED.value,))[0][0]
        return failed

    def cancel_for(self, uow: UnitOfWork, path: str, key: bytes, kinds: str) -> list[Job]:
        """Cancel the jobs of a subject that ends in this transaction, of kinds that begin so; return them.

        ``path`` lists the jobs by ``key``.
        """
        cancelled = []
        for job in uow.select_path(JOB, path, key):
            if not job.kind.startswith(kinds):
                continue
            with contextlib.suppress(Superseded):  # the worker of the job has just ended it
                Claim(self, job).end(uow, JobOutcome.CANCELLED)
                cancelled.append(job)
        return cancelled

    # --- claiming ----------------------------------------------------------------------------------

    def due_in_us(self) -> int | None:
        """Return the time until a job of this process's kinds may be claimed, or the next poll; None without any."""
        now, (available, ahead) = self.now_us(), self._look()
        waits = [max(0, at - now) for kind, at in available if self._takes(kind)]
        waits += [0] if ahead else self.producers.waits_us(now)
        return min(waits, default=None)

    def _look(self) -> tuple[list[tuple[str, int]], bool]:
        """Return when the next job of each kind may be claimed, and whether a clock ahead of this one scheduled one.

        By clocks that agree with this one to within a lease, nothing was scheduled later than a lease from now.
        """
        now = self.now_us()
        rows = self._engine.read(lambda uow: uow.select("job.next", self.kinds, now + self.lease_us))
        available = [(kind, max(at, self._outages.until_us(kind, now))) for kind, at, _ in rows if at is not None]
        return available, any(ahead for _, _, ahead in rows)

    def _available(self) -> list[tuple[str, int]]:
        """Return when the next job of each kind may be claimed, once this clock has scheduled them all."""
        available, ahead = self._look()
        while ahead and self._engine.write(self._put_back):
            available, ahead = self._look()
        return available

    def _takes(self, kind: str) -> bool:
        handler = self._handlers[kind]
        return list(self._places.values()).count(kind) < handler.concurrency and not handler.idle()

    def claim_due(self, until_us: int | None = None, place: object = None) -> list[Claim]:
        """Claim jobs that are due now, or were by ``until_us``: a batch of the most urgent kind, by due time.

        Return no claims when nothing is due. The claims take one place of their kind, under the name of ``place``.

        Raises: StorageError kinds.
        """
        self._engine.check_open()
        if not self._ensured:
            self._available()  # recurring jobs are corrected by the time that it is
            self.ensure()
        self.producers.produce(self.now_us())
        with self._writing_failures:  # this thread removes entries that others may append
            while self._unwritten:
                self.fail(*self._unwritten[0])
                self._unwritten.pop(0)
        bound = self.now_us() if until_us is None else min(self.now_us(), until_us)
        due = [(at, kind) for kind, at in self._available() if at <= bound]
        order = {kind: place for place, kind in enumerate(self._handlers)}
        for _, kind in sorted(due, key=lambda each: (self._handlers[each[1]].priority, each[0], order[each[1]])):
            if claims := self._claim(self._handlers[kind], object() if place is None else place):
                return claims
        return []

    def _claim(self, handler: Handler, place: object) -> list[Claim]:
        def work(uow: UnitOfWork) -> tuple[bool, list[Job]]:
            values = (handler.kind, uow.now_us, uow.now_us + self.lease_us, self._claimant, handler.batch)
            jobs = uow.select_entities(JOB, "job.claim", *values)
            return bool(jobs), self._fit(uow, jobs)

        # First: otherwise two threads could both take the last place of the kind.
        with self._placing:
            if not self._takes(handler.kind):
                return []
            self._places[place] = handler.kind
        jobs: list[Job] = []
        try:
            more = True
            while more and not jobs:  # after a batch of abandoned jobs the next one is due as well
                more, jobs = self._engine.write(work)
        finally:
            if not jobs:
                self._places.pop(place, None)
        return [Claim(self, job, place) for job in sorted(jobs, key=lambda job: (job.due_at, job.job_id))]

    def claim_one(self, job_id: uuid.UUID, place: object) -> Claim | None:
        """Claim a job whether it is due or not; None while another process works on it, or it ended."""
        self._engine.check_open()
        if self.find(job_id) is None:
            self.ensure()

        def work(uow: UnitOfWork) -> list[Job]:
            values = (job_id.bytes, uow.now_us, uow.now_us + self.lease_us, self._claimant)
            return uow.select_entities(JOB, "job.claim_one", *values)

        jobs = self._engine.write(work)
        if not jobs:
            return None
        claim = Claim(self, jobs[0], place)
        self._places[place] = claim.job.kind
        return claim

    def _fit(self, uow: UnitOfWork, jobs: Iterable[Job]) -> list[Job]:
        """Return the claimed jobs that may run; fail those that stopped or killed every worker that tried."""
        fit = []
        for job in jobs:
            handler = self._handlers[job.kind]
            # After an outage, of which the job keeps the error, many attempts do not prove that it kills its workers.
            outlasts = handler.recurrence is not None or (handler.outlasts is not None and job.error is not None)
            if not outlasts and job.attempts > self._config.attempts_max:
                self._give_up(uow, job, f"it was claimed {job.attempts - 1} times, and never done")
            else:
                fit.append(job)
        return fit

    def now_us(self) -> int:
        """Return the time of the tenant's clock. Units: µs."""
        return self._engine.clock.now_us()

    def extend(self, job: Job) -> int:
        """Let the lease of a job that this process holds begin again; return when that was. Raises: Superseded."""

        def work(uow: UnitOfWork) -> int:
            until = uow.now_us + self.lease_us
            if not uow.execute("job.extend", job.job_id.bytes, job.version, uow.now_us, until):
                raise Superseded
            return uow.now_us

        extended: int = self._engine.write(work)
        return extended

    def _put_back(self, uow: UnitOfWork) -> int:
        """Move jobs scheduled by a clock that has been put back since: delays keep their length."""
        bound = uow.now_us + self.lease_us
        ahead: list[Job] = uow.select_path(JOB, "list_newest", _AHEAD_PAGE)
        moved = [job for job in ahead if to_us(job.scheduled_at) >= bound]
        for job in moved:
            # A recurring job computes its next due time itself.
            now, recurs = from_us(uow.now_us), self.recurrence(job.kind) is not None
            later = now if recurs else now + (job.available_at - job.scheduled_at)
            uow.update(JOB, dataclasses.replace(job, available_at=later, scheduled_at=now))
        return len(moved)

    # --- running -----------------------------------------------------------------------------------

    def run_due(self) -> int:
        """Run due jobs now; return the number of actions done. Raises: StorageError kinds."""
        done, now, place = 0, self.now_us(), object()
        extend_all(self)
        try:
            while claims := self.claim_due(now, place):
                done += self.run(claims)
        finally:
            self._places.pop(place, None)
        return done

    def run(self, claims: Sequence[Claim]) -> int:
        """Run claimed jobs of one kind, one after the other; return the number of actions done.

        A job that fails waits for its next attempt, or is ended as failed. Raises: Unavailable when nothing can be
        written: the others go on when the leases are over.
        """
        done, finished = 0, []
        try:
            with working(claims):  # all of them, or others claim the last ones of a batch meanwhile
                for claim in claims:
                    count = self.attempt(claim)
                    done += count or 0
                    if count is not None and not claim.settled:
                        finished.append(claim)
                if finished:
                    self._finish(finished)
        finally:
            self._places.pop(claims[0].place, None)
        return done

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Give claimed jobs of one kind back, none of which was begun."""
        try:
            for claim in claims:
                self._release(claim)
        finally:
            self._places.pop(claims[0].place, None)

    @managed
    def holding(self, job_id: uuid.UUID) -> Iterator[Claim | None]:
        """Claim a job for the block, due or not; None while another process runs it, or when it has ended.

        After the block it has ended, or waits for its next time; an exception of the block is recorded and raised.
        """
        claim, place = None, object()
        try:
            claim = self.claim_one(job_id, place)
            if claim is None:
                yield None
                return
            with claim.working():
                yield claim
            if not claim.settled:
                self._finish([claim])
        except CaliberError as error:
            if claim is not None:
                self._release(claim) if is_over() else self.fail(claim, error)
            raise
        finally:
            self._places.pop(place, None)

    def attempt(self, claim: Claim) -> int | None:
        """Do one job; return how many actions that took, None where it is another's, or failed."""
        try:
            count = self._handlers[claim.job.kind].run(claim)
        except Superseded:
            return None
        except Exception as error:
            let_through(error)
            if claim.settled:  # the work is done, whatever error came after it
                self._engine.record_error(f"job {claim.job.kind}", error)
                return None
            if self.stopping or self._engine.state != "open" or is_over():
                self._release(claim)
                return None
            try:
                self.fail(claim, error)
            except CaliberError:
                self._unwritten.append((claim, error))
                raise
            return None
        self._outages.over(claim.job.kind)
        if claim.interrupted and not claim.settled:
            self._release(claim)
        return count

    def _finish(self, claims: Sequence[Claim]) -> None:
        """End the jobs whose handler did not, in one transaction."""

        def work(uow: UnitOfWork) -> None:
            for claim in claims:
                again = self._handlers[claim.job.kind].recurrence
                try:
                    if again is None:
                        claim.ack(uow)
                    else:
                        claim.reschedule(uow, again.next_us(uow.now_us), again.state(uow.now_us))
                except Superseded:
                    continue

        self._engine.write(work)

    def fail(self, claim: Claim, error: Exception) -> None:
        """Let a job that failed wait for its next attempt, or end it as failed. Raises: StorageError kinds."""
        reason = in_a_line(error)
        handler = self._handlers[claim.job.kind]
        again, outage = handler.recurrence, handler.outlasts is not None and handler.outlasts(error)
        hopeless = isinstance(error, CaliberError) and not (error.retryable or isinstance(error, Conflict))

        def work(uow: UnitOfWork) -> None:
            try:
                job = claim.current(uow)
            except Superseded:
                return
            last = not outage and (hopeless or job.attempts >= self._config.attempts_max)
            if last and again is not None:
                self._log(uow, job, "to run at its next time", reason)
                later = rescheduled(job, uow.now_us, again.next_us(uow.now_us), job.payload)
                uow.update(JOB, dataclasses.replace(later, error=reason))
            elif last:
                self._give_up(uow, job, reason)
            else:
                is_news = job.error != reason  # of an outage; the store's stops no other job of the kind
                if outage and not isinstance(error, StorageError):
                    is_news = self._outages.met(job.kind, reason, uow.now_us)
                if is_news or not outage:
                    self._log(uow, job, error_fields(error)["error"], reason)
                uow.update(JOB, self.postponed(uow, job, reason))

        self._engine.write(work)

    def postponed(self, uow: UnitOfWork, job: Job, reason: str) -> Job:
        """Return a job that waits for its next attempt: each time twice as long."""
        doubled: int = self._config.backoff_ms << min(max(job.attempts - 1, 0), 32)
        until = uow.now_us + min(self._config.backoff_max_ms, doubled) * 1_000
        return dataclasses.replace(
            job, available_at=from_us(until), scheduled_at=from_us(uow.now_us), claimed_by=None, error=reason
        )

    def _give_up(self, uow: UnitOfWork, job: Job, reason: str) -> None:
        """End a job as failed. It stays for as long as history does, for a person to retry."""
        now = from_us(uow.now_us)
        uow.update(
            JOB, dataclasses.replace(job, ended_at=now, outcome=JobOutcome.FAILED, claimed_by=None, error=reason)
        )
        given_up = self._handlers[job.kind].given_up
        if given_up is not None:
            given_up(uow, job, reason)
        else:
            self._log(uow, job, "given_up", reason)

    def _log(self, uow: UnitOfWork, job: Job, error: str, reason: str) -> None:
        payload = {"where": f"job {job.kind}", "job": str(job.job_id), "error": error, "message": reason}
        record(self._engine, uow, job, EventType.ERROR, payload)

    def _release(self, claim: Claim) -> None:
        """Give back an interrupted job, so that the next worker need not wait for its lease."""
        claim.settle()
        with contextlib.suppress(Superseded, CaliberError), at_least(GRACE_S):  # its lease ends all the same
            self._engine.store.write(lambda uow: uow.update(JOB, released(claim.current(uow), uow.now_us)))

    def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run work about a job in its own transaction."""
        return self._engine.write(work)
