"""Share of a core that the signs of life of many agents take. Goal: issue "Many agents".

The agents give signs of life as often as the profile has them do: each once in a quarter of
``agents.heartbeat_timeout_ms``. CPU time is that of this process, with all its threads, and on PostgreSQL that of the
server too, from the work of one such interval; the share is that time over the interval.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.scale import usual
from support.local_server import LocalServer

import caliber
from caliber.api.caliber import Caliber

DSN = "CALIBER_BENCH_AGENTS_DSN"
AGENTS, QUICK_AGENTS = 1_000, 20
BATCH, EACH = 100, "a call each"
INTERVALS, QUICK_INTERVALS = usual(2, full=5), 1
KNOBS = {"embedding_provider": None, "policies": [], "jobs.poll_ms": 0}
AT_MOST = 2.0
"""Percent of a core."""

Figures = Callable[..., None]
Clock = Callable[[], float]


def shares(memory: Caliber, quick: bool, clock: Clock) -> dict[str, float]:
    """Return the share of a core, in percent, by how agents give their signs of life."""
    names = [f"worker {number}" for number in range(QUICK_AGENTS if quick else AGENTS)]
    for name in names:
        memory.agents.register(name, type="worker")

    def each() -> None:
        for name in names:
            memory.agents.heartbeat(name)

    def batches() -> None:
        for at in range(0, len(names), BATCH):
            memory.agents.heartbeat_many(names[at : at + BATCH])

    def at_once() -> None:
        assert memory.agents.heartbeat_many(names) == len(names)

    ways = {EACH: each, f"calls of {BATCH}": batches, "one call": at_once}
    interval_s = memory.config.agents.sign_every_ms / 1_000
    intervals, found = QUICK_INTERVALS if quick else INTERVALS, {}
    for name, way in ways.items():
        way()
        began = clock()
        for _ in range(intervals):
            way()
            memory.agents.fail_silent()
        found[name] = (clock() - began) / intervals / interval_s * 100
    assert {each.status for each in memory.agents.list()} == {"idle"}
    return found


def report(figure: Figures, database: str, found: dict[str, float]) -> None:
    for name, share in found.items():
        goal = {} if name == EACH else {"at_most": AT_MOST}  # each call is a transaction of its own
        figure(f"heartbeats of {AGENTS:,} agents on {database}, {name}", share, "% of a core", **goal)


def test_heartbeats_on_sqlite(figure: Figures, quick: bool, tmp_path: Path) -> None:
    config = caliber.profiles.reference(str(tmp_path / "store.db"), **KNOBS)
    caliber.create(config)
    with caliber.open(config) as memory:
        report(figure, "SQLite", shares(memory, quick, time.process_time))


def test_heartbeats_on_postgres(figure: Figures, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalServer.start() as server:
        monkeypatch.setenv(DSN, server.dsn)
        named = {"storage.adapter": "postgres", "storage.schema_name": "agents"}
        config = caliber.profiles.reference(f"env:{DSN}", **named, **KNOBS)
        caliber.create(config)
        with caliber.open(config) as memory:
            report(figure, "PostgreSQL", shares(memory, quick, lambda: time.process_time() + server_s(server)))


def server_s(server: LocalServer) -> float:
    """Return the seconds of CPU time that the processes of a server took which run now; 0 where no /proc shows them."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(fields[1]) == server.pid:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
