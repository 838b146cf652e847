"""Jobs of the queue as handlers, people and other processes meet them. Source: C-229, C-238; docs/jobs.md."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.configs import config, scheduled
from support.databases import Backend
from support.evidence import scale, seed
from support.inspection import inspect
from support.interrupted import Late
from support.threads import at_once, no_new_threads
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.engine.background import THREADS
from caliber.jobs import runner
from caliber.jobs.claims import Claim, extend_all, in_progress
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Conflict, StorageError
from caliber.model.jobs import JobState
from caliber.model.time import from_us

QUIET = {"embedding_provider": None, "retention__apply_every_ms": 0}
BY_HAND = {**QUIET, "jobs__poll_ms": 0}

INTERRUPTS = scale(200, 5_000)

EVERYWHERE = pytest.mark.parametrize("backend", ["sqlite-memory", "postgres"], indirect=True)
ON_DISK = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def queue_of(memory: caliber.Caliber) -> JobQueue:
    return inspect(memory).engine.part(JobQueue)


def add(memory: caliber.Caliber, kind: str, **options: Any) -> None:
    inspect(memory).write(lambda uow: queue_of(memory).enqueue(uow, kind, **options))


def handle(memory: caliber.Caliber, kind: str, run: Callable[[Claim], int], **options: Any) -> None:
    queue_of(memory).register(Handler(kind, run, **options))


def once(claim: Claim) -> int:
    return 1


@EVERYWHERE
def test_jobs_behind_one_that_is_given_up_run_in_the_same_call(backend: Any, clock: SetClock) -> None:
    memory = backend.open(clock=clock, jobs__attempts_max=1, **BY_HAND)
    handle(memory, "work", once)
    add(memory, "work")
    other = JobQueue(inspect(memory).engine)  # as another process, which dies
    other.register(Handler("work", once))
    (claim,) = other.claim_due()
    assert claim.job.attempts == 1
    clock.at += timedelta(hours=1)
    add(memory, "work")
    assert memory.jobs.run_due() == 1
    assert {job.state for job in memory.jobs.list()} == {JobState.FAILED, JobState.DONE}


@EVERYWHERE
def test_a_list_shows_every_job_that_its_filter_lets_through(backend: Any, clock: SetClock) -> None:
    memory = backend.open(clock=clock, **BY_HAND)
    for kind in ("many", "rare"):
        handle(memory, kind, once)
    add(memory, "rare")
    memory.jobs.run_due()
    clock.at += timedelta(hours=1)
    for _ in range(5):
        add(memory, "many")
    memory.jobs.run_due()
    for _ in range(4):
        add(memory, "many")
    (running,) = queue_of(memory).claim_due()
    assert [job.kind for job in memory.jobs.list(kind="rare", limit=2)] == ["rare"]
    assert [job.kind for job in memory.jobs.list(kind="rare", state="done", limit=1)] == ["rare"]
    assert [job.job_id for job in memory.jobs.list(state="running", limit=1)] == [running.job.job_id]
    assert [job.state.value for job in memory.jobs.list(limit=6)] == [*["waiting"] * 3, "running", *["done"] * 2]


@ON_DISK
def test_a_rule_that_closing_cuts_short_goes_on_at_the_next_open(backend: Any, clock: SetClock) -> None:
    rule = scheduled("0 * * * *", *({"action": "notify", "channel": each} for each in "ab"))
    options = {**BY_HAND, "policies": [rule], "clock": clock}
    memory = backend.open(**options)
    memory.jobs.run_due()
    clock.at += timedelta(hours=1)
    queue = queue_of(memory)
    (claim,) = queue.claim_due()
    queue.stopping = True
    queue.run([claim])
    memory.close()
    memory = backend.open(**options)
    assert memory.jobs.run_due() == 2


SWEPT = {
    "name": "note", "type": "semantic", "fields": [{"name": "content", "type": "text"}],
    "retention": {"kind": "duration", "duration_ms": "1d"},
}  # fmt: skip


@ON_DISK
@pytest.mark.parametrize("before", [0, "30d"])
def test_a_sweep_follows_the_configuration_of_the_open_store(backend: Any, clock: SetClock, before: Any) -> None:
    options = {**BY_HAND, "memories": [SWEPT], "clock": clock}
    memory = backend.open(**options, retention__sweep_every_ms=before)
    memory.jobs.run_due()
    memory.admin.maintain()
    memory.close()
    clock.at += timedelta(hours=1)
    memory = backend.open(**options, retention__sweep_every_ms="1h")
    memory.jobs.run_due()
    clock.at += timedelta(hours=1)
    memory.jobs.run_due()
    (job,) = memory.jobs.list()
    assert job.due_at == clock.at + timedelta(hours=1)
    other = backend.open(**options, retention__sweep_every_ms=0)
    other.jobs.run_due()
    assert memory.jobs.list() == [job], "a process that leaves sweeps to others changes nothing"


@EVERYWHERE
def test_a_recurring_job_that_is_cancelled_waits_for_its_next_time(backend: Any, clock: SetClock) -> None:
    rule = scheduled("0 * * * *", {"action": "notify", "channel": "a"})
    memory = backend.open(policies=[rule], clock=clock, **BY_HAND)
    memory.jobs.run_due()
    clock.at += timedelta(hours=1)
    (job,) = memory.jobs.list()
    assert memory.jobs.cancel(job.job_id).state is JobState.WAITING
    assert memory.jobs.run_due() == 0
    clock.at += timedelta(hours=1)
    assert memory.jobs.run_due() == 1


@EVERYWHERE
def test_forgetting_a_word_leaves_the_kind_of_a_job(backend: Any, clock: SetClock) -> None:
    memory = backend.open(clock=clock, **BY_HAND)
    handle(memory, "mend.words", once)
    add(memory, "mend.words", payload={"said": "mend it"})
    memory.forget(texts=["mend"])
    (job,) = memory.jobs.list(kind="mend.words")
    assert "mend" not in job.payload["said"]
    assert memory.jobs.run_due() >= 1
    assert [each.job_id for each in memory.jobs.list(state="done", kind="mend.words")] == [job.job_id]


@ON_DISK
def test_a_lease_shorter_than_the_poll_is_extended(backend: Any) -> None:
    # The runner has nothing to look for before the lease is over.
    memory = backend.open(jobs__poll_ms="1h", jobs__lease_ms=900, **QUIET)
    runs: list[Claim] = []
    done = threading.Event()

    def run(claim: Claim) -> int:
        runs.append(claim)
        done.wait(30)
        return 1

    handle(memory, "long", run)
    runner.start(inspect(memory).engine)
    add(memory, "long")
    until(lambda: runs)
    (begun,) = memory.jobs.list(state="running")
    (extended,) = until(lambda: [job for job in memory.jobs.list() if job.scheduled_at > begun.scheduled_at])
    assert extended.version == begun.version
    assert extended.available_at - extended.scheduled_at == timedelta(milliseconds=900)
    done.set()
    until(lambda: memory.jobs.list(state="done"))


@ON_DISK
def test_closing_waits_for_a_job_that_the_runner_is_about_to_begin(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = backend.open(jobs__poll_ms="1h", **QUIET)
    queue, closing, begun = queue_of(memory), threading.Event(), threading.Event()
    workers: list[threading.Thread] = []
    due = queue.due_in_us

    def slow() -> int | None:
        begun.set()
        until(lambda: queue.stopping)
        closing.wait(0.2)
        return due()

    def run(claim: Claim) -> int:
        workers.append(threading.current_thread())
        until(lambda: claim.stopping)
        closing.wait(0.2)
        return 0

    handle(memory, "work", run)
    monkeypatch.setattr(queue, "due_in_us", slow)
    runner.start(inspect(memory).engine)
    add(memory, "work")
    assert begun.wait(30)
    memory.close()
    assert not any(worker.is_alive() for worker in workers)
    memory = backend.open(**BY_HAND)
    (job,) = memory.jobs.list()
    assert (job.state, job.attempts) == (JobState.WAITING, 0), "given back, not left to its lease"


def test_a_locked_store_costs_no_other_its_lease_or_its_jobs(tmp_path: Path) -> None:
    """One thread looked after all stores of a process: while it waited for a file, the leases of the others ran out."""
    paths = [str(tmp_path / f"{name}.db") for name in ("locked", "other")]
    runs: list[str] = []
    done = threading.Event()

    def run(claim: Claim) -> int:
        runs.append(claim.job.kind)
        if claim.job.kind == "long":
            done.wait(60)
        return 1

    with contextlib.ExitStack() as stack:
        stores = []
        for path in paths:
            settings = config(path, jobs__poll_ms="20ms", jobs__lease_ms=900, **QUIET)
            caliber.create(settings)
            stores.append(stack.enter_context(caliber.open(settings)))
            for kind in ("long", "short"):
                handle(stores[-1], kind, run)
        stack.callback(done.set)
        locked, other = stores
        add(other, "long")
        until(lambda: runs == ["long"])
        raw = stack.enter_context(contextlib.closing(apsw.Connection(paths[0])))
        add(locked, "short", due_at=from_us(queue_of(locked).now_us() + 100_000))
        raw.execute("BEGIN IMMEDIATE")
        until(lambda: inspect(locked).leader is not None, "its claim waits for the file")
        (begun,) = other.jobs.list(state="running")
        add(other, "short")
        until(lambda: runs == ["long", "short"], seconds=10)
        (extended,) = until(
            lambda: [job for job in other.jobs.list(state="running") if job.scheduled_at > begun.scheduled_at],
            seconds=10,
        )
        assert extended.version == begun.version
        assert inspect(locked).leader is not None, "it waits all this time"
        raw.execute("COMMIT")
        until(lambda: runs == ["long", "short", "short"])
        until(lambda: running_threads() <= THREADS)


def running_threads() -> int:
    return sum(thread.name.startswith("caliber-") for thread in threading.enumerate())


@EVERYWHERE
def test_a_job_that_gets_no_thread_is_given_back_and_runs_later(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = backend.open(jobs__poll_ms="20ms", jobs__lease_ms="1h", **QUIET)
    ran, given_back, give_back = threading.Event(), threading.Event(), JobQueue.give_back

    def noticed(self: JobQueue, claims: Any) -> None:
        give_back(self, claims)
        given_back.set()

    monkeypatch.setattr(JobQueue, "give_back", noticed)

    def run(claim: Claim) -> int:
        ran.set()
        return 1

    handle(memory, "work", run)
    store = inspect(memory).store
    with store.read(), store.read(), store.read():
        pass  # from here on there are connections enough: PostgreSQL dials one in a thread
    with no_new_threads():
        add(memory, "work")
        assert given_back.wait(30)  # other threads may be refused before it
        assert not ran.is_set()
    assert ran.wait(30)
    (job,) = until(lambda: memory.jobs.list(state="done", kind="work"))
    assert job.attempts == 1
    memory.flush()
    event, *_ = [event for event in memory.storage.events.all() if event.payload.get("where") == "jobs"]
    assert "thread" in str(event.payload)


def test_the_threads_of_the_runner_end_with_the_last_store(backend: Any) -> None:
    memory = backend.open(jobs__poll_ms="1ms", **QUIET)
    handle(memory, "work", once)
    add(memory, "work")
    until(lambda: memory.jobs.list(state="done"))
    memory.close()
    until(lambda: running_threads() == 0)


class Searching:
    """A producer that always has something to look for; while ``fault`` is set it fails."""

    def __init__(self, fault: StorageError | None = None) -> None:
        self.fault, self.calls = fault, 0

    def due_in_us(self) -> int | None:
        return 0

    def produce(self) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault


class Damaged(Searching):
    """A producer that meets a damaged record."""


@EVERYWHERE
def test_a_producer_that_fails_stops_no_other_work(backend: Any, clock: SetClock) -> None:
    memory = backend.open(clock=clock, **BY_HAND)
    queue = queue_of(memory)
    failing, sound = Damaged(StorageError("a record is damaged")), Searching()
    queue.producers.append(failing)
    queue.producers.append(sound)
    done: list[str | None] = []

    def run(claim: Claim) -> int:
        done.append(claim.job.key)
        return 1

    handle(memory, "work", run)
    add(memory, "work", key="a")
    memory.jobs.run_due()
    assert done == ["a"]
    assert failing.calls == 1, "it is asked again later only"
    assert sound.calls >= 1
    assert queue.due_in_us() == 0, "the sound one may be asked at once"
    memory.flush()
    errors = [event for event in memory.storage.events.all() if event.event_type == "error"]
    assert len(errors) == 1
    assert "Damaged" in str(errors[0].payload)
    clock.at += timedelta(milliseconds=memory.config.jobs.backoff_ms + 1)
    memory.jobs.run_due()
    assert failing.calls == 2


# A connection that is interrupted while it is made is closed by its destructor.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals")
def test_an_interrupted_run_keeps_no_job_and_no_place_of_its_kind(backend: Any, clock: SetClock) -> None:
    """Its job is done by a later call once the lease is over: a thread that has gone extends no lease."""
    memory = backend.open(clock=clock, jobs__attempts_max=1_000, **BY_HAND)
    handle(memory, "work", once, batch=2)
    chance, errors = random.Random(seed()), []

    def handler(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an interrupt in a callback of the collector, Hypothesis has one, is a warning that fails the test
    try:
        for _ in range(INTERRUPTS):
            add(memory, "work")
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 4e-3))
                memory.jobs.run_due()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Late as error:
                errors.append(error)
            assert in_progress() == 0
            clock.at += timedelta(hours=2)
            memory.jobs.run_due()
            assert not memory.jobs.list(state="waiting")
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert errors
    errors.clear()
    gc.collect()  # within the filter above


# --- the queue -------------------------------------------------------------------------------------


KNOBS = {"embedding_provider": None, "jobs__poll_ms": 0}


def test_a_cancelled_job_is_not_retried_beside_the_same_work(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    engine = inspect(memory).engine
    queue = JobQueue(engine)
    assert engine.write(lambda uow: queue.enqueue(uow, "work", key="same"))
    (cancelled,) = memory.jobs.list(kind="work")
    memory.jobs.cancel(cancelled.job_id)
    assert engine.write(lambda uow: queue.enqueue(uow, "work", key="same"))
    with pytest.raises(Conflict):
        memory.jobs.retry(cancelled.job_id)
    assert [job.state for job in memory.jobs.list(kind="work")] == ["waiting", "cancelled"]


def test_threads_that_claim_at_once_keep_to_the_concurrency_of_a_kind(backend: Backend) -> None:
    engine = inspect(backend.open(**KNOBS)).engine
    queue = JobQueue(engine)
    queue.register(Handler("work", lambda _: 1))
    engine.write(lambda uow: [queue.enqueue(uow, "work") for _ in range(8)] and None)
    claimed = []

    def claim() -> None:
        claimed.extend(queue.claim_due())

    at_once([claim] * 4)
    assert len(claimed) == 1


def test_leases_of_a_whole_batch_are_extended(backend: Backend) -> None:
    clock = SetClock()
    engine = inspect(backend.open(clock=clock, jobs__lease_ms="5m", **KNOBS)).engine
    queue, other, done = JobQueue(engine), JobQueue(engine), []

    def work(_: object) -> int:
        clock.at += timedelta(minutes=4)
        extend_all(queue)
        assert other.claim_due() == []
        done.append(clock.at)
        return 1

    for each in (queue, other):
        each.register(Handler("work", work, batch=3))
    engine.write(lambda uow: [queue.enqueue(uow, "work") for _ in range(3)] and None)
    assert queue.run_due() == 3
    assert len(done) == 3
