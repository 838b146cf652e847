"""A process is killed between what sets a trigger off and its actions, and at each step of them: done once, or unsaid.

Source: C-229, C-235, C-238; issue, item 6: never half applied, survives restarts; decision 0172.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, policy
from support.databases import BACKENDS
from support.evidence import record, seed, soaking
from support.providers import ScriptedSummarizer
from support.weeks import SetClock

CHILD = Path(__file__).parent / "trigger_process.py"
BOUND = timedelta(minutes=5)
STEPS = (("storing", 0), ("before", 0), ("in", 0), ("in", 1), ("after", 0), ("after", 1))
POINTS = [(trigger, late, *step) for trigger in ("turn", "task_start") for late in (False, True) for step in STEPS]
KNOBS: dict[str, Any] = {
    "embedding_provider": None, "jobs__poll_ms": 0, "retention__apply_every_ms": 0,
    "jobs__lease_ms": "5m", "pcp.recovery_points.frequency": "manual",
    "policies": [
        policy("turn", {"action": "extract_artifacts", "target": "turn_buffer"},
               {"action": "notify", "channel": "said"}, name="speaking"),
        policy("task_start", {"action": "checkpoint", "target": "scope"},
               {"action": "notify", "channel": "begun"}, name="starting"),
    ],
}  # fmt: skip


class Store:
    """One store, in which one process after the other is killed."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._clock = SetClock()
        memory = self._open()
        task = memory.start_trajectory("goes on", initiator=USER)
        self._scope = memory.current_scope(task.trajectory_id).scope_id
        memory.close()

    def _open(self) -> Any:
        settings = self._backend.config(**KNOBS)
        return self._backend.open(settings, clock=self._clock, summarization_provider=ScriptedSummarizer())

    def kill(self, does: str, where: str, at: int) -> None:
        """Let a process be killed on the way."""
        knobs = {**self._backend.knobs, **KNOBS}
        now_us = int(self._clock.at.timestamp()) * 1_000_000
        order = json.dumps([self._backend.path, knobs, now_us, does, str(self._scope), where, at])
        ended = subprocess.run([sys.executable, str(CHILD), order], check=False, timeout=120)
        assert ended.returncode == -signal.SIGKILL, f"{where} {at} of {does} does not come"

    def later(self) -> None:
        """Let so much time pass that what is left counts as left; the lease of who was killed has lapsed, too."""
        self._clock.at += BOUND

    def finish(self) -> tuple[Counter[str], list[str], int, int]:
        """Do what is left; return what the log says, and what was made."""
        memory = self._open()
        assert memory.admin.verify() == []
        memory.jobs.run_due()
        assert memory.jobs.run_due() == 0
        assert memory.admin.stats()["behind"]["jobs_waiting"] == 0
        memory.flush()
        log: Counter[str] = Counter()
        for event in memory.storage.events.all():
            if event.event_type == "policy_execute":
                log[f"{event.payload['trigger']} {event.payload['action']} {event.payload['outcome']}"] += 1
            elif event.event_type == "error":
                log[f"error {event.payload}"] += 1
        found = (log, [item.text for item in memory.storage.artifacts.all()], memory.storage.checkpoints.count(),
                 memory.storage.turns.count())  # fmt: skip
        assert memory.admin.verify() == []
        memory.close()
        return found


def expected(trigger: str, stored: bool) -> tuple[Counter[str], list[str], int, int]:
    """Return the state that a process leaves that is not killed, or is killed before its first output."""
    log = Counter({"task_start checkpoint scope done": 1, "task_start notify begun done": 1})
    if not stored:
        return log, [], 1, 0
    if trigger == "task_start":
        return log + log, [], 2, 0
    log.update(["turn extract_artifacts turn_buffer done", "turn notify said done"])
    return log, ["KEEP this"], 1, 1


@pytest.mark.usefixtures("postgres")
def test_a_trigger_survives_a_kill_and_is_done_once(tmp_path: Path) -> None:
    names = ("sqlite", "postgres")
    chosen = random.Random(seed() + len(POINTS))
    cases = [(name, *point) for name in names for point in POINTS]
    if not soaking():
        cases = [(chosen.choice(names), "turn", False, "before", 0)]
    killed: Counter[str] = Counter()
    for number, (name, trigger, late, where, at) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        backend = BACKENDS[name](folder)
        try:
            store = Store(backend)
            if late:
                store.kill(trigger, "before", 0)
                store.later()
            store.kill("due" if late else trigger, where, at)
            store.later()
            wanted = expected(trigger, stored=late or where != "storing")
            assert store.finish() == wanted, f"{trigger} killed {where} {at}, late: {late}, on {name}"
            killed[name] += 1 + late
        finally:
            backend.close()
    record(
        "kill-triggers",
        "Killed between what sets a trigger off and its actions, and at each step of them: done once",
        {
            "places to be killed at": len(POINTS),
            "kills on SQLite": killed["sqlite"],
            "kills on PostgreSQL": killed["postgres"],
        },
    )
