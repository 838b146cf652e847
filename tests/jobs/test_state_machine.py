"""The queue of jobs against a model: each job's effect happens once, or its failure is known, whatever comes between.

Two processes, which are two queues over one store, enqueue, claim, pause, die, fail, and go on with what they claimed
long ago; a person cancels and retries; the clock jumps both ways. Source: C-229, C-238; docs/jobs.md.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support.databases import Backend
from support.evidence import examples
from support.inspection import inspect
from support.jobs.effects import insert_effect, jobs_and_effects
from support.weeks import SetClock

import caliber
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.handlers import NORMAL, URGENT, Handler, Recurrence
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Conflict, InvalidStateTransition, NotFound, Unavailable
from caliber.model.jobs import Job, JobOutcome
from caliber.model.time import from_us, to_us
from caliber.storage.write.unit_of_work import UnitOfWork

MINUTE = 60_000_000
LEASE, BACKOFF, BACKOFF_MAX, EVERY = 5 * MINUTE, MINUTE, 3 * MINUTE, 10 * MINUTE
ATTEMPTS_MAX = 3
KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "jobs__poll_ms": 0,
    "jobs__attempts_max": ATTEMPTS_MAX,
    "jobs__lease_ms": "5m",
    "jobs__backoff_ms": "1m",
    "jobs__backoff_max_ms": "3m",
}
KINDS = {"urgent": (URGENT, 1), "single": (NORMAL, 1), "batched": (NORMAL, 3), "unacked": (NORMAL, 3)}
"""The priority and the batch of each kind. The handler of the last one leaves the end of its jobs to the queue."""
PLACES = {**KINDS, "tick": (NORMAL, 1)}
"""As they are registered: ``tick`` recurs."""
TICK, TICK_ID = 0, uuid.UUID("0190f3c2-7c00-7000-8000-0000000000aa")
WHICH = st.integers(0, 1)
MODES = ["works", "raises", "raises late", "raises after", "loses", "hopeless"]
"""How an attempt ends: "loses" is a race, which is retried; of "hopeless" none is."""
SOME_MODE = st.sampled_from(["works", *MODES])


@dataclass
class Expected:
    """A job of the model."""

    kind: str
    key: str | None
    available: int
    scheduled: int
    begun: bool = False
    claimed: bool = False
    attempts: int = 0
    outcome: JobOutcome | None = None
    version: int = 1
    effects: int = 0


@dataclass
class Held:
    """Jobs that a process has claimed: their numbers and versions, and the claims."""

    by: int
    versions: dict[int, int]
    claims: list[Claim]
    enqueued: bool = False
    """Whether the process added the job itself, claimed."""


def next_tick(now_us: int) -> int:
    return (now_us // EVERY + 1) * EVERY


class Processes(RuleBasedStateMachine):
    memory: caliber.Caliber
    backend: Backend
    clock: SetClock

    def __init__(self) -> None:
        super().__init__()
        self.backend.tamper(self.memory, f"DELETE FROM {self.backend.qualified('job')}")
        self.engine = inspect(self.memory).engine
        self.clock.at = SetClock().at
        self.numbers = itertools.count(1)
        self.modes: dict[int, str] = {}
        self.held: list[Held] = []
        self.jobs: dict[int, Expected] = {}
        self.queues = [self.process(), self.process()]
        self.sound = True
        self.unwritten: list[list[tuple[int, int, str]]] = [[], []]
        self.queues[0].ensure()
        self.ensured = [True, False]
        self.jobs[TICK] = Expected("tick", None, self.now, self.now)

    # --- what the processes do ---------------------------------------------------------------------

    def process(self) -> JobQueue:
        queue = JobQueue(self.engine)
        for kind, (priority, batch) in KINDS.items():
            queue.register(Handler(kind, self.work, priority=priority, batch=batch, concurrency=1_000))
        ticking = Recurrence(TICK_ID, next_tick, at_once=True, state=lambda _: {"n": TICK})
        queue.register(Handler("tick", self.work, concurrency=1_000, recurrence=ticking))
        return queue

    def work(self, claim: Claim) -> int:
        number = claim.job.payload["n"]
        mode = self.modes[number]
        if mode == "hopeless":
            raise NotFound(entity_type="job", id=number)
        if mode == "loses":
            raise Conflict(entity_type="job", id=number, reason="planted")
        if mode == "raises":
            raise OSError("planted")
        if claim.job.kind != "unacked":
            self.engine.write(lambda uow: self.write_effect(uow, claim, late=mode == "raises late"))
        if mode.startswith("raises"):
            raise OSError("planted")
        return 1

    def write_effect(self, uow: UnitOfWork, claim: Claim, *, late: bool) -> None:
        """Write the effect of a job, which is a row of this relation that nobody claims, and end the job."""
        insert_effect(uow, claim)
        if claim.job.kind == "tick":
            claim.reschedule(uow, next_tick(uow.now_us), claim.job.payload)
        else:
            claim.ack(uow)
        if late:
            raise OSError("planted")

    # --- what the model knows ----------------------------------------------------------------------

    @property
    def now(self) -> int:
        return to_us(self.clock.at)

    def pass_time(self, us: int = 1) -> None:
        """Let a time pass that no two steps share."""
        self.clock.at = from_us(self.now + us)

    def wait(self, job: Expected, until: int) -> None:
        job.available, job.scheduled, job.claimed, job.version = until, self.now, False, job.version + 1

    def end(self, job: Expected, outcome: JobOutcome) -> None:
        job.outcome, job.claimed, job.version = outcome, False, job.version + 1

    def has(self, number: int, version: int) -> bool:
        return self.jobs[number].version == version and self.jobs[number].outcome is None

    def notice_clock(self) -> None:
        for job in [job for job in self.jobs.values() if job.outcome is None]:
            if job.scheduled >= self.now + LEASE:
                delay = 0 if job.kind == "tick" else job.available - job.scheduled
                job.available, job.scheduled, job.version = self.now + delay, self.now, job.version + 1

    def ensure(self, at: int) -> None:
        """Correct the recurring job, which may wait no longer than its rule allows, at the first look of a process."""
        tick, ensured, self.ensured[at] = self.jobs[TICK], self.ensured[at], True
        waits = tick.outcome is None and not tick.claimed
        if not ensured and waits and tick.available > next_tick(self.now):
            tick.available, tick.scheduled, tick.version = next_tick(self.now), self.now, tick.version + 1

    def fail(self, number: int, version: int, mode: str) -> None:
        job = self.jobs[number]
        if not self.has(number, version):
            return
        if mode != "hopeless" and job.attempts < ATTEMPTS_MAX:
            self.wait(job, self.now + min(BACKOFF_MAX, BACKOFF << max(job.attempts - 1, 0)))
        elif number == TICK:
            self.recur(job)
        else:
            self.end(job, JobOutcome.FAILED)

    def recur(self, job: Expected) -> None:
        self.wait(job, next_tick(self.now))
        job.attempts = 0

    def done(self, number: int, version: int) -> bool:
        if not self.has(number, version):
            return False
        job = self.jobs[number]
        job.effects += job.kind != "unacked"
        self.recur(job) if number == TICK else self.end(job, JobOutcome.DONE)
        return True

    def rows(self) -> tuple[dict[int, Job], Counter[int]]:
        """Return the jobs by number, and how often each had its effect."""
        return jobs_and_effects(self.engine.store)

    # --- steps ---------------------------------------------------------------------------------------

    @rule(
        at=WHICH,
        kind=st.sampled_from(sorted(KINDS)),
        key=st.sampled_from([None, None, "a", "b"]),
        minutes=st.none() | st.integers(-20, 20),
        rolls_back=st.sampled_from([False, False, False, True]),
    )
    def enqueue(self, at: int, kind: str, key: str | None, minutes: int | None, rolls_back: bool) -> None:
        self.pass_time()
        number = next(self.numbers)
        due = self.now + (minutes or 0) * MINUTE

        def cause(uow: UnitOfWork) -> bool:
            due_at = None if minutes is None else from_us(due)
            added = self.queues[at].enqueue(uow, kind, key=key, payload={"n": number}, due_at=due_at)
            if rolls_back:
                raise OSError("planted")
            return added is not None

        if rolls_back:
            with pytest.raises(OSError, match="planted"):
                self.engine.write(cause)
            return
        assert self.engine.write(cause) == (not self.is_waiting(kind, key))
        if not self.is_waiting(kind, key):
            self.jobs[number] = Expected(kind, key, due, self.now)

    def is_waiting(self, kind: str, key: str | None) -> bool:
        """Return whether the same work waits, and nobody has begun it."""
        same = [job for job in self.jobs.values() if (job.kind, job.key) == (kind, key) and key is not None]
        return any(job.outcome is None and not job.begun for job in same)

    @rule(at=WHICH, kind=st.sampled_from(sorted(KINDS)), count=st.integers(2, 5))
    def enqueue_many(self, at: int, kind: str, count: int) -> None:
        for _ in range(count):
            self.enqueue(at, kind, None, None, rolls_back=False)

    @rule(at=WHICH, kind=st.sampled_from(["urgent", "single"]))
    def enqueue_claimed(self, at: int, kind: str) -> None:
        self.pass_time()
        number = next(self.numbers)
        claim = self.engine.write(lambda uow: self.queues[at].enqueue_claimed(uow, kind, payload={"n": number}))
        self.jobs[number] = Expected(kind, None, self.now + LEASE, self.now, begun=True, claimed=True)
        self.held.append(Held(at, {number: 1}, [claim], enqueued=True))

    @rule(at=WHICH)
    def claim(self, at: int) -> None:
        self.pass_time()
        if not self.ensured[at]:
            self.notice_clock()
            self.ensure(at)
        while self.unwritten[at]:
            self.fail(*self.unwritten[at].pop())
        self.notice_clock()
        claims = self.queues[at].claim_due()
        found, _ = self.rows()
        changed = {number for number, job in self.jobs.items() if found[number].version != job.version}
        due = {number for number, job in self.jobs.items() if job.outcome is None and job.available <= self.now}
        fit: list[int] = []
        for kind in sorted(PLACES, key=lambda kind: self.urgency(kind, due)):
            wanted = {number for number in due if self.jobs[number].kind == kind}
            tried = {number for number in changed if self.jobs[number].kind == kind}
            assert tried <= wanted
            assert self.latest_of(tried) <= min((self.jobs[each].available for each in wanted - tried), default=1 << 62)
            fit = [number for number in tried if number == TICK or self.jobs[number].attempts < ATTEMPTS_MAX]
            for number in tried:
                job = self.jobs[number]
                self.wait(job, self.now + LEASE)
                job.begun, job.attempts, job.claimed = True, job.attempts + 1, True
                if number not in fit:
                    self.end(job, JobOutcome.FAILED)
            changed -= tried
            if fit:
                assert len(fit) <= PLACES[kind][1]
                break
            assert tried == wanted, "more is due, and was not claimed"
        assert changed == set(), "of another kind than the most urgent"
        assert {claim.job.payload["n"] for claim in claims} == set(fit)
        if claims:
            self.held.append(Held(at, {number: self.jobs[number].version for number in fit}, claims))

    def urgency(self, kind: str, due: Iterable[int]) -> tuple[int, int, int]:
        first = min((self.jobs[each].available for each in due if self.jobs[each].kind == kind), default=1 << 62)
        return PLACES[kind][0], first, list(PLACES).index(kind)

    def latest_of(self, numbers: Iterable[int]) -> int:
        return max((self.jobs[each].available for each in numbers), default=-1)

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        written=st.sampled_from([True, True, True, False]),
        stopping=st.sampled_from([False] * 5 + [True]),
    )
    def go_on(self, data: st.DataObject, written: bool, stopping: bool) -> None:
        """Do what was claimed, now or long ago."""
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        modes = {number: "raises" if stopping else data.draw(SOME_MODE) for number in held.versions}
        self.run(held, modes, written=written or stopping, stopping=stopping)

    def run(self, held: Held, modes: dict[int, str], *, written: bool = True, stopping: bool = False) -> None:
        self.pass_time()
        self.modes = modes
        queue = self.queues[held.by]
        queue.stopping = stopping
        count, lost = 0, False
        finished = []
        for claim in held.claims:
            number = claim.job.payload["n"]
            version, mode = held.versions[number], modes[number]
            if mode == "works" or (mode == "raises after" and self.jobs[number].kind != "unacked"):
                if self.jobs[number].kind == "unacked":
                    finished.append((number, version))
                    count += 1
                else:
                    count += self.done(number, version) and mode == "works"
            elif mode == "raises late" and self.jobs[number].kind != "unacked" and not self.has(number, version):
                pass
            elif stopping:
                self.release(number, version)
            elif written:
                self.fail(number, version, mode)
            else:
                self.unwritten[held.by].append((number, version, mode))
                lost = True
                break
        with pytest.MonkeyPatch.context() as patch:
            if not written:
                patch.setattr(JobQueue, "fail", unavailable)
            if lost:
                with pytest.raises(Unavailable):
                    queue.attempt(held.claims[0]) if held.enqueued else queue.run(held.claims)
                return
            result = queue.attempt(held.claims[0]) if held.enqueued else queue.run(held.claims)
        for number, version in finished:
            self.done(number, version)
        assert (result or 0) == count
        if stopping:
            self.die(held.by)

    @rule(at=WHICH, data=st.data(), times=st.integers(1, 4), fate=st.sampled_from(["works", "raises", "dies", "any"]))
    def do_what_is_due(self, at: int, data: st.DataObject, times: int, fate: str) -> None:
        """Claim and do what is due, and what is due again after the longest wait, so often."""
        for _ in range(times):
            before = len(self.held)
            self.claim(at)
            while len(self.held) > before and fate != "dies":
                held = self.held.pop()
                self.run(held, {number: data.draw(SOME_MODE) if fate == "any" else fate for number in held.versions})
                self.claim(at)
            self.pass_time(LEASE)
            if fate == "dies":
                self.die(at)

    def release(self, number: int, version: int) -> None:
        job = self.jobs[number]
        if self.has(number, version):
            self.wait(job, self.now)
            job.attempts = max(job.attempts - 1, 0)

    @rule(at=WHICH)
    def die(self, at: int) -> None:
        """Another process takes the place of one that is no more."""
        self.held = [held for held in self.held if held.by != at]
        self.queues[at], self.unwritten[at] = self.process(), []
        self.ensured[at] = False

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        self.pass_time()
        held = data.draw(st.sampled_from(self.held))
        for claim in held.claims:
            number = claim.job.payload["n"]
            if self.has(number, held.versions[number]):
                claim.extend()
                self.jobs[number].available, self.jobs[number].scheduled = self.now + LEASE, self.now
            else:
                with pytest.raises(Superseded):
                    claim.extend()

    @rule(at=WHICH)
    def hold(self, at: int) -> None:
        """Do the recurring job now, in several transactions."""
        self.pass_time()
        job = self.jobs[TICK]
        free = job.outcome is None and (not job.claimed or job.available <= self.now)
        with self.queues[at].holding(TICK_ID) as claim:
            assert (claim is not None) == free
            if claim is None:
                return

            def step(uow: UnitOfWork) -> None:
                claim.hold(uow)
                insert_effect(uow, claim)

            self.engine.write(step)
        job.effects, job.begun, job.version = job.effects + 1, True, job.version + 1
        self.recur(job)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.pass_time()
        number, job = data.draw(st.sampled_from(sorted(self.jobs.items(), key=lambda each: each[0])))
        job_id = self.rows()[0][number].job_id
        if job.outcome is None:
            assert self.memory.jobs.cancel(job_id).state == "cancelled"
            self.end(job, JobOutcome.CANCELLED)
        else:
            with pytest.raises(InvalidStateTransition):
                self.memory.jobs.cancel(job_id)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        self.pass_time()
        number, job = data.draw(st.sampled_from(sorted(self.jobs.items(), key=lambda each: each[0])))
        job_id = self.rows()[0][number].job_id
        if job.outcome not in (JobOutcome.FAILED, JobOutcome.CANCELLED):
            with pytest.raises(InvalidStateTransition):
                self.memory.jobs.retry(job_id)
            return
        if not job.begun and self.is_waiting(job.kind, job.key):
            with pytest.raises(Conflict):
                self.memory.jobs.retry(job_id)
            return
        assert self.memory.jobs.retry(job_id).state == "waiting"
        job.outcome, job.attempts = None, 0
        self.wait(job, self.now)

    @rule(minutes=st.integers(1, 12))
    def let_time_pass(self, minutes: int) -> None:
        self.pass_time(minutes * MINUTE)

    @rule(minutes=st.sampled_from([-1_500, -45, -7, -3, 90, 1_500]))
    def set_clock(self, minutes: int) -> None:
        self.pass_time(minutes * MINUTE)

    # --- what holds ------------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        found, effects = self.rows()
        self.sound = False
        assert {number: as_expected(row, effects[number]) for number, row in found.items()} == self.jobs
        self.sound = True

    @invariant()
    def an_effect_is_there_once_or_its_failure_is_known(self) -> None:
        for number, job in self.jobs.items():
            if number != TICK and job.kind != "unacked":
                assert job.effects == (job.outcome is JobOutcome.DONE)

    def teardown(self) -> None:
        """Let the processes do all that is left: nothing waits for ever."""
        for _ in range(20) if self.sound else ():
            self.let_time_pass(20)
            before = None
            while before != len(self.held):
                before = len(self.held)
                self.claim(0)
            while self.held:
                held = self.held.pop(0)
                self.run(held, dict.fromkeys(held.versions, "works"))
            self.rows_are_as_the_model_says()
            self.an_effect_is_there_once_or_its_failure_is_known()
            if all(job.outcome for number, job in self.jobs.items() if number != TICK):
                return
        assert not self.sound, "a job waits for ever"


def as_expected(row: Job, effects: int) -> Expected:
    return Expected(
        row.kind,
        row.key,
        to_us(row.available_at),
        to_us(row.scheduled_at),
        begun=row.begun_at is not None,
        claimed=row.claimed_by is not None,
        attempts=row.attempts,
        outcome=row.outcome,
        version=row.version,
        effects=effects,
    )


def unavailable(*_: Any) -> Any:
    raise Unavailable("planted", reason="connection lost", retryable=True)


def on_database(database: Backend) -> type[Processes]:
    class OnDatabase(Processes):
        backend = database
        clock = SetClock()
        memory = database.open(clock=clock, **KNOBS)

    return OnDatabase


def test_each_effect_happens_once_or_its_failure_is_known(backend: Backend) -> None:
    run_state_machine_as_test(
        on_database(backend),
        settings=settings(
            max_examples=examples(8, 400), stateful_step_count=40, deadline=None, report_multiple_bugs=False
        ),
    )


def test_each_end_of_an_attempt_is_that_of_the_model(backend: Backend) -> None:
    steps = on_database(backend)()
    for mode in MODES:
        steps.enqueue(0, "single", None, None, rolls_back=False)
        steps.enqueue(0, "unacked", None, None, rolls_back=False)
        steps.let_time_pass(10)
        steps.claim(0)
        while steps.held:
            held = steps.held.pop()
            steps.run(held, dict.fromkeys(held.versions, mode))
            steps.rows_are_as_the_model_says()
            steps.claim(0)
    steps.teardown()


def test_a_clock_that_was_ahead_between_two_looks_makes_no_job_wait(backend: Backend) -> None:
    steps = on_database(backend)()
    steps.enqueue(0, "urgent", None, None, rolls_back=False)
    steps.claim(0)
    steps.set_clock(1_500)
    steps.run(steps.held.pop(), {1: "raises"})
    steps.enqueue(0, "single", None, None, rolls_back=False)
    steps.set_clock(-1_500)
    assert steps.queues[0].due_in_us() == 0, "there is something to mend"
    steps.claim(0)
    steps.rows_are_as_the_model_says()
    steps.teardown()
    assert {number: job.effects for number, job in steps.jobs.items() if number != TICK} == {1: 1, 2: 1}
