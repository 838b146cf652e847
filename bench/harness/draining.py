"""Queues of jobs that do no work: filled, and drained by one process or by several."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from support.inspection import inspect

import caliber
from caliber.api.caliber import Caliber
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.model.time import from_us
from caliber.storage.write.unit_of_work import UnitOfWork

BATCH, IN_TRANSACTION = 100, 1_000
KNOBS: dict[str, Any] = {"embedding_provider": None, "jobs.poll_ms": 0}


def queue_of(memory: Caliber) -> tuple[JobQueue, list[int]]:
    """Return a queue whose jobs do nothing, and the list that their due times are added to, in the order of work."""
    queue, due = JobQueue(inspect(memory).engine), []

    def run(claim: Claim) -> int:
        due.append(claim.job.payload["due"])
        return 1

    queue.register(Handler("nothing", run, batch=BATCH))
    return queue, due


def fill(memory: Caliber, jobs: int, ahead: timedelta = timedelta(0)) -> None:
    """Enqueue jobs in another order than they are due; the latest one is due ``ahead`` of now."""
    queue, _ = queue_of(memory)
    first = from_us(time.time_ns() // 1_000 - jobs) + ahead
    due = list(range(jobs))
    random.Random(1).shuffle(due)

    def cause(uow: UnitOfWork, part: Sequence[int]) -> None:
        for at in part:
            queue.enqueue(uow, "nothing", payload={"due": at}, due_at=first + timedelta(microseconds=at))

    for begin in range(0, jobs, IN_TRANSACTION):
        inspect(memory).write(lambda uow, begin=begin: cause(uow, due[begin : begin + IN_TRANSACTION]))


def _drain(dsn: tuple[str, str], config: Any, reports: Connection) -> None:
    import os

    os.environ[dsn[0]] = dsn[1]
    with caliber.open(config, principal=caliber.Principal.admin()) as memory:
        queue, due = queue_of(memory)
        queue.claim_due(0)
        reports.send("ready")
        reports.recv()
        queue.run_due()
        reports.send(due)
        reports.recv()


def drained(config: Any, dsn: tuple[str, str], runners: int) -> tuple[float, list[list[int]]]:
    """Drain a queue in several processes; return the seconds and what each did. ``dsn`` is a variable and its value."""
    starting = multiprocessing.get_context("spawn")
    running = []
    for _ in range(runners):
        ours, theirs = starting.Pipe()
        process = starting.Process(target=_drain, args=(dsn, config, theirs))
        process.start()
        running.append((process, ours))
    for _, ours in running:
        assert ours.recv() == "ready"
    began = time.perf_counter()
    for _, ours in running:
        ours.send("go")
    due = [ours.recv() for _, ours in running]
    took = time.perf_counter() - began
    for process, ours in running:
        ours.send("end")
        process.join(60)
        ours.close()
    return took, due
