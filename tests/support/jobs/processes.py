"""A process that enqueues jobs and does them in the background, until whoever started it kills it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from support.configs import config
from support.databases import DSN
from support.inspection import inspect
from support.jobs.effects import insert_effect
from support.waits import let_run

import caliber
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.storage.write.unit_of_work import UnitOfWork

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "jobs__attempts_max": 1_000_000,  # whoever is killed often enough would end as failed
    "jobs__lease_ms": "300ms",
    "jobs__backoff_ms": "1ms",
    "jobs__backoff_max_ms": "5ms",
    "jobs__workers": 2,
}
KINDS = {"single": 1, "batched": 10, "failing": 1}
"""The batch of each kind; every second attempt of a ``failing`` one fails after it wrote."""


def register(memory: caliber.Caliber, chance: random.Random) -> JobQueue:
    """Have a process do the jobs."""
    engine = inspect(memory).engine
    queue = engine.part(JobQueue)

    def run(claim: Claim) -> int:
        def work(uow: UnitOfWork) -> None:
            insert_effect(uow, claim)
            claim.ack(uow)
            if claim.job.kind == "failing" and chance.random() < 0.5:
                raise OSError("planted")

        engine.write(work)
        return 1

    for kind, batch in KINDS.items():
        queue.register(Handler(kind, run, batch=batch))
    return queue


def enqueue(memory: caliber.Caliber, queue: JobQueue, numbers: Iterator[int], chance: random.Random) -> list[int]:
    """Add some jobs in one transaction; return their numbers."""
    added = [next(numbers) for _ in range(chance.randint(1, 3))]

    def cause(uow: UnitOfWork) -> None:
        for number in added:
            queue.enqueue(uow, chance.choice(sorted(KINDS)), payload={"n": number})

    inspect(memory).write(cause)
    return added


def work(path: str, knobs: dict[str, Any], dsn: str, seed: int, reports: Connection) -> None:
    """Work until the process is killed; report the jobs whose enqueuing was committed."""
    os.environ[DSN] = dsn
    chance, numbers = random.Random(seed), iter(range(seed * 1_000_000, (seed + 1) * 1_000_000))
    memory = caliber.open(config(path, jobs__poll_ms="20ms", **KNOBS, **knobs))
    queue = register(memory, chance)
    reports.send([])
    while True:
        reports.send(enqueue(memory, queue, numbers, chance))
        let_run(chance.uniform(0, 0.08))
