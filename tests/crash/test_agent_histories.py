"""Clients in processes that are killed, paused beyond their leases, or have wrong clocks: their histories are judged.

A few hundred calls a subject in ``make prove``; 16 clients and 200,000 calls a database in ``make soak``, recorded in
``docs/evidence/``. A process is killed at each step of remembering: the turns and the learning are each there as a
whole, or not at all; 40 steps a database in ``make prove``, 400 in ``make soak``.

Source: M §3.1, C-238, C-364 to C-368, K-037; docs/learning.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.agents.history_runs import Run, outcomes
from support.agents.subjects import PARTS
from support.databases import BACKENDS, Backend
from support.drawn import needs
from support.evidence import record, scale, seed, soaking
from support.learning import processes as learning_processes
from support.learning.processes import KNOBS, MESSAGES, run_until

import caliber
from caliber.model.jobs import JobState
from caliber.model.time import FixedClock

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


STEPS = scale(40, 400)
LATER_US = 1_700_000_000_000_000 + 3_600_000_000
"""An hour after the killed process: its leases are over."""
OLD = {"lives in Berlin", "likes jazz"}
NEW = {"lives in Lisbon", "is allergic to nuts"}


def run(backend: Backend, user: str, at: int) -> int | None:
    """Have a process remember until a line; return how many lines there are, None if it died."""
    return run_until(learning_processes.remember, backend, at, user)


def holding(memory: caliber.Caliber, user: str) -> list[str]:
    """Return the contents of a user's notes that hold, as they are stored."""
    notes = memory.storage.notes.find_by_entity(user, "person")
    return [note.content for note in notes if note.active and note.valid_until is None]


@needs("reopen")
def test_a_kill_at_each_step_leaves_all_or_nothing(backend: Any) -> None:
    memory = backend.open(clock=FixedClock(LATER_US), **KNOBS)
    total = run(backend, "counted", sys.maxsize)
    assert total is not None
    assert total > STEPS
    seen = set()
    for step in range(STEPS):
        user = f"user{step}"
        at = 1 + step * total // STEPS
        assert run(backend, user, at) is None, f"line {at} of {total} was not reached"
        held = set(holding(memory, user))
        owner = memory.identities.resolve(user)
        (task,) = memory.storage.trajectories.list_by_initiator("user", owner.id, limit=10)
        turns = memory.storage.trajectories.get(task.trajectory_id).turn_count
        waiting = [job for job in memory.jobs.list(kind="learning") if job.trajectory_id == task.trajectory_id]
        open_jobs = [job for job in waiting if job.state in (JobState.WAITING, JobState.RUNNING)]
        state = (turns, len(open_jobs), held == OLD, held == NEW)
        assert state in ((1, 0, True, False), (2, 1, True, False), (2, 0, False, True)), (at, state, held)
        seen.add(state)
        learned = memory.remember(MESSAGES, user=user)
        assert learned.state is JobState.DONE
        assert sorted(each.action.value for each in learned.decisions) == ["add", "end", "update"]
        assert sorted(holding(memory, user)) == sorted(NEW)
        assert memory.storage.trajectories.get(task.trajectory_id).turn_count == 2
    assert {(1, 0, True, False), (2, 1, True, False)} <= seen
    assert memory.admin.check() == []
