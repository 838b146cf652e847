"""A process is killed at each event of what policies and retention do, and at each step from a trigger to its actions.

Nothing is half done, and nothing twice. Source: C-229, C-235, C-238, K-048; issue, item 6: never half-applied, survives
restarts; decision 0172.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, policy, scheduled
from support.databases import BACKENDS
from support.evidence import record, scale, seed, soaking
from support.providers import ScriptedSummarizer
from support.weeks import SetClock, kept_of

CHILD = Path(__file__).parent / "trigger_process.py"
LATER = datetime(2024, 1, 2, 12, tzinfo=UTC)
AFTER = datetime(2024, 1, 2, 13, tzinfo=UTC)
TEXT = [{"name": "content", "type": "text"}]


def declared(name: str, category: str, kind: str, **how: Any) -> dict[str, Any]:
    return {"name": name, "type": category, "fields": TEXT, "retention": {"kind": kind, **how}}


EVENTS: dict[str, Any] = {
    "embedding_provider": None, "jobs__poll_ms": 0, "retention__apply_every_ms": 0,
    "retention__sweep_every_ms": "1d", "pcp.recovery_points.frequency": "manual",
    "policies": [
        policy(
            "scope_close",
            {"action": "summarize", "target": "turn_buffer"}, {"action": "extract_artifacts", "target": "turn_buffer"},
            {"action": "checkpoint", "target": "scope"}, {"action": "notify", "channel": "closed"}, name="closing",
        ),
        scheduled("0 3 * * *", {"action": "prune", "target": "note", "below_confidence": 0.3},
                  {"action": "notify", "channel": "night"}, name="nightly"),
    ],
    "memories": [
        declared("turn_buffer", "ephemeral", "scope"),
        declared("note", "semantic", "compress_on", when={"on": "schedule", "cron": "0 4 * * *"}),
        declared("finding", "working", "duration", duration_ms="1h"),
    ],
}  # fmt: skip


class Killed:
    """One store, in which one process after the other is killed."""

    def __init__(self, backend: Any, knobs: dict[str, Any]) -> None:
        self._backend, self._knobs = backend, knobs
        self._clock = SetClock()

    def _open(self) -> Any:
        settings = self._backend.config(**self._knobs)
        return self._backend.open(settings, clock=self._clock, summarization_provider=ScriptedSummarizer())

    def _begin(self, goal: str) -> Any:
        """Open the store and start a task; return the handle and the task."""
        memory = self._open()
        memory.jobs.run_due()
        task = memory.start_trajectory(goal, initiator=USER)
        self._scope = memory.current_scope(task.trajectory_id).scope_id
        return memory, task

    def kill(self, does: str, where: str, at: int) -> None:
        """Let a process be killed on the way."""
        knobs = {**self._backend.knobs, **self._knobs}
        now_us = int(self._clock.at.timestamp()) * 1_000_000
        order = json.dumps([self._backend.path, knobs, now_us, does, str(self._scope), where, at])
        ended = subprocess.run([sys.executable, str(CHILD), order], check=False, timeout=120)
        assert ended.returncode == -signal.SIGKILL, f"{where} {at} of {does} does not come"


class Told(Killed):
    """The events in one store, up to the kill of a process, and from there on."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend, EVENTS)
        memory, task = self._begin("is killed")
        for text in ("KEEP this", "and that"):
            memory.append_turn(self._scope, role="user", content=text)
        # What is pruned is about another thing each: after a kill, rules that are all overdue come in any order.
        for thing, confidence in (("one", 0.8), ("one", 0.9), ("two", 0.8), ("two", 0.9), ("old", 0.1), ("odd", 0.1)):
            memory.add_note(
                entity=thing, entity_type="topic", note_type="fact", content=f"{thing} {confidence}",
                confidence=confidence,
            )  # fmt: skip
        for number in range(2):
            memory.records("finding").insert({"content": f"{number}"}, trajectory=task.trajectory_id)
        memory.close()
        self._clock.at = LATER

    def finish(self) -> tuple[Counter[str], dict[str, list[str]], dict[str, int]]:
        """Do what is left; return what the log has, what is kept, and how many records there are of each kind."""
        self._clock.at = AFTER
        memory = self._open()
        assert memory.admin.verify() == []
        half = memory.get(self._scope)
        runs = [event for event in memory.storage.events.all() if event.event_type == "policy_execute"]
        closing = [event for event in runs if event.payload["trigger"] == "scope_close"]
        assert len(closing) == (0 if half.is_open else 4), "whole or not at all"
        memory.close_scope(self._scope)
        memory.jobs.run_due()
        memory.flush()
        kinds = ("policy_execute", "retention_apply")
        log: Counter[str] = Counter()
        for event in memory.storage.events.all():
            if event.event_type in kinds:
                skipped = ("due_at", "compressed")  # a run that goes on tells of the groups that were left
                said = {name: value for name, value in event.payload.items() if name not in skipped}
                log[f"{event.event_type} {json.dumps(said, sort_keys=True)}"] += 1
        assert memory.admin.verify() == []
        kept = kept_of(memory)
        tables = {
            name: getattr(memory.storage, name).count() for name in ("artifacts", "checkpoints", "notes", "turns")
        }
        memory.close()
        return log, kept, tables


@pytest.fixture
def stores(postgres: str, tmp_path: Path) -> Iterator[Any]:
    made: list[Any] = []

    def fresh(name: str) -> Told:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(BACKENDS[name](folder))
        return Told(made[-1])

    yield fresh
    for backend in made:
        backend.close()


def test_a_kill_leaves_whole_actions_and_none_is_done_twice(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.retention.retaining.SWEEP_ROWS", 1)  # as in the process that is killed
    expected = stores("sqlite").finish()
    events = sum(expected[0].values())
    assert events == 4 + 2 + 1 + 1 + 2 + 2  # closing, nightly, compressing; turns, groups of notes, findings
    chosen = random.Random(seed())
    points = [(where, at) for where in ("in", "after") for at in range(events)]
    killed: Counter[str] = Counter()
    names = ("sqlite", "postgres")
    for name in (chosen.choice(names),) if scale(1, 2) == 1 else names:
        for where, at in chosen.sample(points, scale(1, len(points))):
            told = stores(name)
            told.kill("close", where, at)
            assert told.finish() == expected, f"killed {where} event {at} on {name}"
            killed[name] += 1
    record(
        "kill-policies",
        "Killed at every event of policies and retention: whole, and once",
        {"events of a run": events, "kills on SQLite": killed["sqlite"], "kills on PostgreSQL": killed["postgres"]},
    )


# --- triggers ----------------------------------------------------------------------------------------

BOUND = timedelta(minutes=5)
STEPS = (("storing", 0), ("before", 0), ("in", 0), ("in", 1), ("after", 0), ("after", 1))
POINTS = [(trigger, late, *step) for trigger in ("turn", "task_start") for late in (False, True) for step in STEPS]
TRIGGERS: dict[str, Any] = {
    "embedding_provider": None, "jobs__poll_ms": 0, "retention__apply_every_ms": 0,
    "jobs__lease_ms": "5m", "pcp.recovery_points.frequency": "manual",
    "policies": [
        policy("turn", {"action": "extract_artifacts", "target": "turn_buffer"},
               {"action": "notify", "channel": "said"}, name="speaking"),
        policy("task_start", {"action": "checkpoint", "target": "scope"},
               {"action": "notify", "channel": "begun"}, name="starting"),
    ],
}  # fmt: skip


class Store(Killed):
    """A store of tasks that set triggers off."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend, TRIGGERS)
        memory, _ = self._begin("goes on")
        memory.close()

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
