"""Rules of the queue that one case shows. Source: C-229, C-238; docs/jobs.md."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.databases import Backend
from support.inspection import inspect
from support.threads import at_once
from support.weeks import SetClock

from caliber.jobs.claims import extend_all
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Conflict

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
