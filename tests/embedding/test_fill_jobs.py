"""The job that fills the space of a new model: seen, cancelled, retried, never two at once. Source: docs/jobs.md."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from support.configs import HASH_PROVIDER
from support.inspection import inspect
from support.providers import outage
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.jobs.queue import JobQueue
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import FloatMatrix, FloatVector
from caliber.model.errors import AuthenticationFailed, CaliberError, EmbeddingFailed
from caliber.model.events import EventType
from caliber.model.jobs import Job

ON_DISK = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
SPACE, RECORDS, BATCH = "hash-1:newer@48", 20, 4
KIND = f"embedding.fill:{SPACE}"
KNOBS: dict[str, Any] = {
    "search__keyword__similar_words": "none",
    "embedding__batch_size": BATCH,
    "llm_retry_config__max_retries": 0,
    "jobs__backoff_ms": "1s",
    "jobs__backoff_max_ms": "1m",
}


class Newer:
    """Hashed vectors of the new model, asked for one batch after the other; ``before`` runs first."""

    model_id, dimensions = SPACE.partition("@")[0], 48

    def __init__(self) -> None:
        self._inner = HashEmbeddingProvider(48, "newer")
        self.asked = 0
        self.waits = False
        self.before: Callable[[], None] = lambda: None

    def embed(self, text: str) -> FloatVector:
        return self._inner.embed(text)

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.before()
        self.asked += len(texts)
        return self._inner.embed_batch(texts)


class World:
    """A store of records that were embedded with the model before."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        memory = backend.open(backend.config(**KNOBS))
        for at in range(RECORDS):
            memory.add_note(
                entity=f"thing {at}", entity_type="t", note_type="fact", content=f"known of {at}", confidence=1.0
            )
        memory.flush()
        memory.close()

    def open(self, provider: Any = None, *, clock: Any = None, **knobs: Any) -> caliber.Caliber:
        new = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}
        settings = self.backend.config(**{**KNOBS, "embedding_provider": new, "vector__dimensions": 48, **knobs})
        opened: caliber.Caliber = self.backend.open(settings, embedding_provider=provider or Newer(), clock=clock)
        return opened


@pytest.fixture
def world(backend: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    return World(backend)


@pytest.fixture
def held() -> Iterator[threading.Semaphore]:
    """The number of batches that a provider may still answer; all of them at the end."""
    batches = threading.Semaphore(0)
    yield batches
    batches.release(1_000)


def job_of(memory: caliber.Caliber) -> Job:
    (job,) = memory.jobs.list(kind=KIND)
    return job


def state(memory: caliber.Caliber) -> str:
    return str(memory.storage.embedding_spaces.find(SPACE).state.value)


def errors_of(memory: caliber.Caliber) -> list[str]:
    inspect(memory).behind.flush()
    found = (event for event in memory.storage.events.all() if event.event_type == EventType.ERROR)
    return [event.payload["error"] for event in found if event.payload["where"] == f"job {KIND}"]


@ON_DISK
def test_the_job_of_a_space_shows_how_far_it_is(world: World, held: threading.Semaphore) -> None:
    provider = Newer()
    provider.before = held.acquire
    memory = world.open(provider)
    assert job_of(memory).job_id == memory.storage.embedding_spaces.find(SPACE).space_id
    held.release(2)
    until(lambda: provider.asked == 2 * BATCH and job_of(memory).done == 2 * BATCH)
    job = job_of(memory)
    assert (job.state.value, job.total, state(memory)) == ("running", RECORDS, "building")
    held.release(1_000)
    until(lambda: state(memory) == "active")
    job = job_of(memory)
    assert (job.state.value, job.done, job.total) == ("done", RECORDS, RECORDS)
    assert memory.admin.verify() == []


@ON_DISK
def test_a_filling_that_is_cancelled_stays_so_until_somebody_retries_it(
    world: World, held: threading.Semaphore
) -> None:
    provider = Newer()
    provider.before = held.acquire
    memory = world.open(provider)
    until(lambda: job_of(memory).state == "running")
    memory.jobs.cancel(job_of(memory).job_id)
    held.release(1_000)
    memory.close()
    assert provider.asked <= BATCH, "it went on"
    memory = world.open(provider, jobs__poll_ms=0)
    assert memory.jobs.run_due() == 0
    assert (job_of(memory).state.value, state(memory)) == ("cancelled", "building")
    there = memory.storage.embedding_spaces.progress().done
    assert there <= BATCH
    memory.jobs.retry(job_of(memory).job_id)
    assert memory.jobs.run_due() == RECORDS - there
    assert (job_of(memory).state.value, state(memory)) == ("done", "active")


@ON_DISK
def test_one_process_fills_a_space_and_the_others_ask_nothing(world: World, held: threading.Semaphore) -> None:
    first, second = Newer(), Newer()
    first.before = held.acquire
    memory = world.open(first)
    until(lambda: job_of(memory).state == "running")
    other = world.open(second, jobs__poll_ms=0)
    assert other.jobs.run_due() == 0
    held.release(1_000)
    until(lambda: state(memory) == "active")
    assert (first.asked, second.asked) == (RECORDS, 0)


@ON_DISK
def test_a_caller_goes_on_beside_a_process_that_has_the_job(world: World, held: threading.Semaphore) -> None:
    first = Newer()
    first.before = held.acquire
    memory = world.open(first)
    until(lambda: job_of(memory).state == "running")
    other = world.open(embedding__reembed="manual")
    came = other.storage.embedding_spaces.reembed()
    assert (came.in_use, came.done) == (True, RECORDS)
    assert (job_of(other).state.value, state(other)) == ("done", "active")
    held.release(1_000)
    memory.close()
    assert first.asked <= BATCH, "its job has ended"


@ON_DISK
def test_a_call_in_front_is_the_job_and_shows_how_far_it_is(world: World) -> None:
    memory = world.open(embedding__reembed="manual")
    assert memory.jobs.list(kind=KIND) == []
    seen: list[tuple[str, int, int | None]] = []

    def look(_: str, done: int, total: int | None) -> None:
        job = job_of(memory)
        seen.append((job.state.value, job.done, job.total))
        assert job.done <= done
        assert total == RECORDS

    memory.storage.embedding_spaces.reembed(progress=look)
    assert ("running", RECORDS - BATCH, RECORDS) in seen
    assert seen[-1] == ("done", RECORDS, RECORDS)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert job_of(memory).state == "done"


@ON_DISK
def test_a_call_in_front_takes_the_job_from_the_background_of_its_own_process(world: World) -> None:
    in_front = threading.Event()
    provider = Newer()

    def before() -> None:
        if threading.current_thread() is not threading.main_thread():
            provider.waits = True
            in_front.wait(30)

    provider.before = before
    memory = world.open(provider)
    until(lambda: job_of(memory).state == "running")
    until(lambda: provider.waits)
    threading.Timer(0.05, in_front.set).start()
    came = memory.storage.embedding_spaces.reembed()
    assert (came.in_use, provider.asked) == (True, RECORDS)
    assert job_of(memory).state == "done"


@ON_DISK
@pytest.mark.parametrize("error", [outage(), AuthenticationFailed(provider="test", status=401, message="key")])
def test_an_outage_is_waited_for_and_logged_once(world: World, error: CaliberError) -> None:
    clock, provider = SetClock(), Newer()

    def fails() -> None:
        raise error

    provider.before = fails
    memory = world.open(provider, clock=clock, jobs__poll_ms=0)
    for _ in range(8):  # more than jobs.attempts_max
        assert memory.jobs.run_due() == 0
        clock.at += timedelta(minutes=2)
    assert (job_of(memory).state.value, job_of(memory).attempts) == ("waiting", 8)
    assert errors_of(memory) == [error.kind]
    provider.before = lambda: None
    assert memory.jobs.run_due() == RECORDS
    assert (job_of(memory).state.value, state(memory)) == ("done", "active")


@ON_DISK
def test_a_model_that_refuses_too_much_fails_its_job(world: World) -> None:
    provider = Newer()

    def refuses() -> None:
        raise EmbeddingFailed(reason="not this one")

    provider.before = refuses
    memory = world.open(provider, jobs__poll_ms=0)
    memory.jobs.run_due()
    assert job_of(memory).state == "failed"
    assert "accept-refused" in (job_of(memory).error or "")
    assert memory.admin.stats()["behind"]["jobs_failed"] == 1
    memory.close()
    memory = world.open(jobs__poll_ms=0)
    assert memory.jobs.run_due() == RECORDS, "the next program asks again"
    assert state(memory) == "active"


@ON_DISK
def test_the_job_of_a_space_that_is_not_wanted_any_more_is_cancelled(world: World) -> None:
    memory = world.open(jobs__poll_ms=0)
    (claim,) = inspect(memory).part(JobQueue).claim_due()
    third = {**HASH_PROVIDER, "model": "third"}
    other = world.open(
        HashEmbeddingProvider(32, "third"), embedding_provider=third, vector__dimensions=32, jobs__poll_ms=0
    )
    assert job_of(other).state == "cancelled"
    inspect(memory).part(JobQueue).run([claim])
    assert state(memory) == "retired"
    memory.close()
    again = world.open(jobs__poll_ms=0)
    assert again.jobs.run_due() == RECORDS, "it is wanted again"
    assert state(again) == "active"


@ON_DISK
def test_opening_a_store_that_is_not_being_filled_costs_nothing(world: World) -> None:
    def cost() -> int:
        memory = world.open(jobs__poll_ms=0)
        statements = inspect(memory).store.statement_count()
        memory.close()
        return statements

    memory = world.open(embedding__reembed="manual")
    memory.storage.embedding_spaces.reembed()
    memory.close()
    filled = cost()
    memory = world.open(embedding__reembed="manual", jobs__poll_ms=0)
    with_manual = inspect(memory).store.statement_count()
    assert filled == with_manual
