"""Processes that do jobs are killed at random moments: every job has its effect exactly once.

Two kills a database in ``make test``, 30 in ``make prove``, 300 in ``make soak``, recorded in ``docs/evidence/``.
Source: C-229, C-238.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.crash.processes import Forked, store_of
from support.databases import BACKENDS, Backend
from support.evidence import record, scale, seed
from support.inspection import inspect
from support.jobs import processes as job_processes
from support.jobs.effects import jobs_and_effects
from support.waits import let_run

KILLS = scale(30, 300, daily=2)
KILLS_A_STORE = 30
TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def working(backend: Backend, number: int) -> Forked:
    """Return a process that enqueues jobs and does them; it has begun."""
    made = Forked(job_processes.work, *store_of(backend), number)
    assert made.reports.recv() == []
    return made


def received(reports: Connection) -> list[int]:
    """Return the reports before the end of the pipe, or up to the last whole one."""
    numbers: list[int] = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            numbers += reports.recv()
    return numbers


def checked(backend: Backend, reported: set[int], *, drain: bool) -> tuple[int, int]:
    """Hold what is stored to what was reported; return how many jobs there are, and how many of them had an effect.

    With ``drain`` all that waits is done first, as after a restart.
    """
    memory = backend.open(**{**job_processes.KNOBS, "jobs__poll_ms": 0})
    if drain:
        queue = job_processes.register(memory, random.Random(1))
        until = time.monotonic() + 60
        while queue.waiting():
            memory.jobs.run_due()
            assert time.monotonic() < until, "a job waits for ever"
        assert memory.admin.verify() == []
    jobs, effects = jobs_and_effects(inspect(memory).store)
    memory.close()
    assert reported <= jobs.keys(), "an enqueued job is lost"
    done = {number for number, job in jobs.items() if job.outcome == "done"}
    assert effects == dict.fromkeys(done, 1), "an effect without its job, or twice"
    if drain:
        assert done == jobs.keys(), "a job without its effect"
    return len(jobs), len(done)


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 120)
@pytest.mark.parametrize("name", TITLES)
def test_every_job_has_its_effect_once_whoever_is_killed(name: str, tmp_path: Path, request: Any) -> None:
    if name == "postgres":
        request.getfixturevalue("postgres")
    started, rng = time.monotonic(), random.Random(seed())
    print(f"seed {seed()}")
    total = {"jobs": 0, "done before a kill": 0}
    for first in range(0, KILLS, KILLS_A_STORE):
        (tmp_path / str(first)).mkdir()
        backend = BACKENDS[name](tmp_path / str(first))
        backend.create(backend.config(**job_processes.KNOBS))
        reported: set[int] = set()
        processes = [working(backend, 2 * first), working(backend, 2 * first + 1)]
        assert processes[0].reports.poll(60), "it enqueues nothing"
        kills = min(KILLS_A_STORE, KILLS - first)
        for kill in range(kills):
            let_run(rng.expovariate(1 / 0.1))
            killed = processes.pop(rng.randrange(len(processes)))
            killed.kill()
            reported.update(received(killed.reports))
            if kill + 2 < kills:
                processes.append(working(backend, 2 * first + kill + 2))
        total["done before a kill"] += checked(backend, reported, drain=False)[1]
        total["jobs"] += checked(backend, reported, drain=True)[0]
        backend.close()
    assert total["jobs"], "the processes were killed before they did anything"
    record(
        f"kill-jobs-{name}",
        f"Two processes that do jobs on {TITLES[name]}, killed with SIGKILL at random moments",
        {
            "seed": seed(),
            "kills": KILLS,
            "jobs, each with its effect exactly once": total["jobs"],
            "of them done before the last kill of a store": total["done before a kill"],
            "seconds": round(time.monotonic() - started),
        },
    )
