"""Draining of jobs of no work, and what a million waiting ones cost. Goals: issue "The house II".

Each job is added with a due time of its own, in another order; each process must claim them in the order of those.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from harness import draining
from harness.scale import usual
from support.local_server import LocalServer

import caliber

DSN = "CALIBER_BENCH_JOBS_DSN"
JOBS, QUICK_JOBS = usual(10_000, full=100_000), 300
WAITING, QUICK_WAITING = usual(50_000, full=1_000_000), 300
RUNNERS = 4
OPENINGS = 9

Figures = Callable[..., None]


def claimed_in_order(due: list[int]) -> bool:
    """Return whether each job was begun after those due before it."""
    return all(one < two for one, two in itertools.pairwise(due))


def test_jobs_drained_on_sqlite(figure: Figures, quick: bool, tmp_path: Path) -> None:
    jobs = QUICK_JOBS if quick else JOBS
    config = caliber.profiles.reference(str(tmp_path / "store.db"), **draining.KNOBS)
    caliber.create(config)
    with caliber.open(config, principal=caliber.Principal.admin()) as memory:
        draining.fill(memory, jobs)
        queue, due = draining.queue_of(memory)
        began = time.perf_counter()
        assert queue.run_due() == jobs
        took = time.perf_counter() - began
    assert claimed_in_order(due)
    figure(f"{jobs:,} jobs of no work drained on SQLite", jobs / took, "/s", at_least=5_000)


def test_jobs_drained_on_postgres(figure: Figures, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = QUICK_JOBS if quick else JOBS
    with LocalServer.start() as server:
        monkeypatch.setenv(DSN, server.dsn)
        named = {"storage.adapter": "postgres", "storage.schema_name": "jobs"}
        config = caliber.profiles.reference(f"env:{DSN}", **named, **draining.KNOBS)
        caliber.create(config)
        with caliber.open(config, principal=caliber.Principal.admin()) as memory:
            draining.fill(memory, jobs)
        took, each = draining.drained(config, (DSN, server.dsn), 2 if quick else RUNNERS)
    assert sorted(itertools.chain(*each)) == list(range(jobs))
    assert all(map(claimed_in_order, each))
    figure(f"{jobs:,} jobs of no work drained on PostgreSQL, {RUNNERS} runners", jobs / took, "/s", at_least=3_000)


def test_opening_with_waiting_jobs(figure: Figures, quick: bool, tmp_path: Path) -> None:
    waiting = QUICK_WAITING if quick else WAITING
    configs = [caliber.profiles.reference(str(tmp_path / f"{at}.db"), **draining.KNOBS) for at in range(2)]
    for config in configs:
        caliber.create(config)
    with caliber.open(configs[1], principal=caliber.Principal.admin()) as memory:
        draining.fill(memory, waiting, ahead=timedelta(days=1))
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(OPENINGS):
        for config, times in zip(configs, took, strict=True):
            began = time.perf_counter()
            with caliber.open(config, principal=caliber.Principal.admin()) as memory:
                memory.jobs.run_due()
                times.append(time.perf_counter() - began)
    empty, full = map(statistics.median, took)
    figure(f"opening and a look for due jobs with {waiting:,} waiting, to none", full / empty, "x", at_most=1.1)
