"""Jobs of turn summaries: how far they are, cancelled, retried, in two processes. Source: docs/jobs.md."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.providers import ScriptedSummarizer
from support.threads import begin
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.model.events import EventType
from caliber.model.jobs import Job

SIZE, BLOCKS = 4, 3
KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "search__keyword__similar_words": "none",
    "assembly__evict_block_turns": SIZE,
    "policies": [],
    "pcp.recovery_points.frequency": "manual",
    "llm_retry_config.max_retries": 0,
    "jobs__poll_ms": "20ms",
}
BY_HAND = {**KNOBS, "jobs__poll_ms": 0}


@pytest.fixture
def held() -> Iterator[threading.Semaphore]:
    """The number of summaries that a provider may still make; all of them at the end."""
    calls = threading.Semaphore(0)
    yield calls
    calls.release(1_000)


def talking(agent: Any) -> None:
    """Append turns that complete some blocks, in one transaction."""
    new = [{"role": "user", "content": f"turn {number}"} for number in range(BLOCKS * SIZE + 1)]
    agent.memory.append_turns(agent.scope_id, new)


def job_of(memory: caliber.Caliber) -> Job:
    return min(memory.jobs.list(kind="turn_summaries"), key=lambda job: job.job_id)


def ranges(memory: caliber.Caliber) -> list[tuple[int, int]]:
    return sorted((each.first_turn, each.last_turn) for each in memory.storage.turn_summaries.all())


ALL = [(SIZE * at, SIZE * at + SIZE - 1) for at in range(BLOCKS)]


def test_the_job_of_a_task_shows_how_far_it_is(
    backend: Any, start: Any, held: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    provider = ScriptedSummarizer()
    provider.before = lambda _: held.acquire() and None
    agent = start(backend.open(summarization_provider=provider, **KNOBS))
    agent.memory.flush()  # the look after opening adds no job
    talking(agent)
    held.release(2)
    until(lambda: len(provider.calls) == BLOCKS and job_of(agent.memory).done == 2)
    job = job_of(agent.memory)
    assert (job.state.value, job.total, job.trajectory_id) == ("running", BLOCKS, agent.trajectory_id)
    held.release(1)
    until(lambda: job_of(agent.memory).state == "done")
    assert ranges(agent.memory) == ALL


def test_a_job_that_is_cancelled_writes_nothing_more_until_it_is_retried(
    backend: Any, start: Any, held: threading.Semaphore
) -> None:
    provider = ScriptedSummarizer()
    provider.before = lambda _: held.acquire() and None
    agent = start(backend.open(summarization_provider=provider, **BY_HAND))
    agent.memory.flush()  # the look after opening adds no job
    talking(agent)
    held.release(1)
    working = begin(agent.memory.jobs.run_due)
    until(lambda: len(provider.calls) == 2)
    agent.memory.jobs.cancel(job_of(agent.memory).job_id)
    held.release(1_000)
    working.result()
    assert (job_of(agent.memory).state.value, ranges(agent.memory)) == ("cancelled", ALL[:1])
    agent.memory.jobs.retry(job_of(agent.memory).job_id)
    assert agent.memory.jobs.run_due() == BLOCKS - 1
    assert job_of(agent.memory).state == "done"
    assert ranges(agent.memory) == ALL


@needs("sharing")
def test_one_process_does_the_job_and_whoever_waits_for_summaries_works_beside_it(
    backend: Any, start: Any, held: threading.Semaphore
) -> None:
    first, second = ScriptedSummarizer(), ScriptedSummarizer()
    first.before = lambda _: held.acquire() and None
    agent = start(backend.open(summarization_provider=first, **BY_HAND))
    agent.memory.flush()  # the look after opening adds no job
    other = backend.open(summarization_provider=second, **BY_HAND)
    other.jobs.run_due()  # it has looked through the store once
    talking(agent)
    working = begin(agent.memory.jobs.run_due)
    until(lambda: first.calls)
    inspect(other).snapshot("latest")
    assert other.jobs.run_due() == 0
    assert second.calls == []
    other.flush()
    assert ranges(other) == ALL
    assert len(second.calls) == BLOCKS
    held.release(1_000)
    working.result()
    assert job_of(agent.memory).state == "done"
    assert ranges(agent.memory) == ALL


def test_another_process_does_what_the_one_that_appended_leaves(backend: Any, start: Any) -> None:
    clock, provider = SetClock(), ScriptedSummarizer()
    agent = start(backend.open(summarization_provider=ScriptedSummarizer(), clock=clock, **BY_HAND))
    talking(agent)
    if backend.has("sharing"):
        other = backend.open(summarization_provider=provider, clock=clock, **BY_HAND)
        assert other.jobs.run_due() == BLOCKS
        assert provider.calls == ["summarize"] * BLOCKS
    else:
        assert agent.memory.jobs.run_due() == BLOCKS
    assert ranges(agent.memory) == ALL
    assert agent.memory.jobs.run_due() == 0


def test_an_outage_is_waited_for_by_one_job_at_a_time_and_logged_once(backend: Any, start: Any) -> None:
    clock, provider = SetClock(), ScriptedSummarizer()
    provider.failing = {"summarize"}
    options = {**BY_HAND, "jobs__backoff_ms": "1m", "jobs__backoff_max_ms": "4m", "jobs__attempts_max": 2}
    agents = [start(backend.open(summarization_provider=provider, clock=clock, **options))]
    agents += [start(agents[0].memory) for _ in range(2)]
    for agent in agents:
        talking(agent)
    memory = agents[0].memory
    asked = []
    for _ in range(12):
        memory.jobs.run_due()
        asked.append(len(provider.calls))
        clock.at += timedelta(minutes=1)
    assert asked == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5], "each minute, then every two, then every four"
    assert {job.state.value for job in memory.jobs.list()} == {"waiting"}
    inspect(memory).behind.flush()
    errors = [event for event in memory.storage.events.all() if event.event_type == EventType.ERROR]
    assert [event.payload["where"] for event in errors] == ["job turn_summaries"]
    provider.failing = set()
    clock.at += timedelta(minutes=5)
    assert memory.jobs.run_due() == 3 * BLOCKS
    assert memory.storage.turn_summaries.count() == 3 * BLOCKS
