"""A process is killed at each event of what policies and retention do: nothing is half done, and nothing twice.

Source: C-229, C-238, K-048; issue, item 6: never half-applied, survives restarts.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, policy, scheduled
from support.databases import BACKENDS
from support.evidence import record, scale, seed
from support.providers import ScriptedSummarizer
from support.weeks import SetClock, kept_of

CHILD = Path(__file__).parent / "trigger_process.py"
LATER = datetime(2024, 1, 2, 12, tzinfo=UTC)
AFTER = datetime(2024, 1, 2, 13, tzinfo=UTC)
TEXT = [{"name": "content", "type": "text"}]


def declared(name: str, category: str, kind: str, **how: Any) -> dict[str, Any]:
    return {"name": name, "type": category, "fields": TEXT, "retention": {"kind": kind, **how}}


KNOBS: dict[str, Any] = {
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


class Told:
    """The events in one store, up to the kill of a process, and from there on."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._clock = SetClock()
        memory = self._open()
        memory.jobs.run_due()
        task = memory.start_trajectory("is killed", initiator=USER)
        self._scope = memory.current_scope(task.trajectory_id).scope_id
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

    def _open(self) -> Any:
        settings = self._backend.config(**KNOBS)
        return self._backend.open(settings, clock=self._clock, summarization_provider=ScriptedSummarizer())

    def kill(self, where: str, at: int) -> int:
        """Let a process be killed on the way; return how it ended."""
        now_us = int(LATER.timestamp()) * 1_000_000
        knobs = {**self._backend.knobs, **KNOBS}
        order = json.dumps([self._backend.path, knobs, now_us, "close", str(self._scope), where, at])
        return subprocess.run([sys.executable, str(CHILD), order], check=False, timeout=120).returncode

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
            assert told.kill(where, at) == -signal.SIGKILL, f"{where} event {at} of {name} does not come"
            assert told.finish() == expected, f"killed {where} event {at} on {name}"
            killed[name] += 1
    record(
        "kill-policies",
        "Killed at every event of policies and retention: whole, and once",
        {"events of a run": events, "kills on SQLite": killed["sqlite"], "kills on PostgreSQL": killed["postgres"]},
    )
