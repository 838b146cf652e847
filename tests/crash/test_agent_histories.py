"""Clients in processes that are killed, paused beyond their leases, or have wrong clocks: their histories are judged.

A few hundred calls a subject in ``make prove``; 16 clients and 200,000 calls a database in ``make soak``, recorded in
``docs/evidence/``. Source: C-364 to C-368, K-037.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.agents.history_runs import Run, outcomes
from support.agents.subjects import PARTS
from support.databases import BACKENDS
from support.evidence import record, scale, seed, soaking

pytestmark = pytest.mark.prove

CALLS, CALLS_A_ROUND = scale(200, 200_000 // len(PARTS) + 1), scale(200, 10_000)
PROCESSES, THREADS = scale(2, 8), 2
TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 120)
@pytest.mark.parametrize("subject", PARTS)
@pytest.mark.parametrize("name", TITLES)
def test_histories_of_killed_and_paused_clients_are_sound(
    name: str, subject: str, tmp_path: Path, request: Any
) -> None:
    if name == "postgres":
        request.getfixturevalue("postgres")
    started = time.monotonic()
    print(f"seed {seed()}")
    part = PARTS[subject]
    backend = BACKENDS[name](tmp_path)
    total: Counter[tuple[str, str]] = Counter()
    kills = pauses = 0
    rounds = seed() % 2
    while total.total() < CALLS:
        label = f"r{total.total()}"
        skewed = rounds % 2 == 1  # clocks of every second round differ
        judge = part.in_processes[skewed]
        skew_ms = part.skew_ms if skewed else 0
        run = Run(
            backend, judge, tmp_path, label=label, seed=seed() + total.total(), skew_ms=skew_ms,
            processes=PROCESSES, threads=THREADS,
        )  # fmt: skip
        run.play(CALLS_A_ROUND, disturb_s=1 if soaking() else 0.3)
        faults, ops = run.judged()
        assert faults == [], f"in round {label} of seed {seed()}: {faults[:10]}"
        total += outcomes(ops)
        kills, pauses, rounds = kills + run.kills, pauses + run.pauses, rounds + 1
    backend.close()
    assert kills + pauses, "nothing disturbed the clients"
    worked = sum(count for (_, outcome), count in total.items() if outcome == "ok")
    assert worked > CALLS // 20, "hardly any call worked"
    record(
        f"agent-histories-{subject}-{name}",
        f"Histories of {subject} on {TITLES[name]}: clients killed with SIGKILL and paused beyond their leases",
        {
            "seed": seed(),
            "clients": PROCESSES * THREADS,
            "calls": total.total(),
            "processes killed": kills,
            "processes paused": pauses,
            "most that a process's clock is off, in every second round, in ms": part.skew_ms,
            **{f"{name}: {outcome}": count for (name, outcome), count in sorted(total.items())},
            "violations": 0,
            "seconds": round(time.monotonic() - started),
        },
    )
