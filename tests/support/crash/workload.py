"""A writing program, what it was told was stored, and the check of a store against that.

Every content says what it is and how long it is, so that it can be checked without being remembered.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from support.configs import USER, config

import caliber
from caliber.config import CaliberConfig
from caliber.model.errors import BudgetTooSmall, CaliberError, LockAcquisitionFailed

BATCH = 3
OPERATIONS = {
    "turn": 10, "batch": 3, "note": 6, "artifact": 4, "change": 4, "close": 1, "start": 1, "lock": 2, "window": 3,
    "finish": 1,
}  # fmt: skip


def settings_for(path: str, **overrides: Any) -> CaliberConfig:
    """Return the configuration that stores under test are written and checked with."""
    values: dict[str, Any] = {
        "storage__wal_autocheckpoint_pages": 60,
        "embedding__embed__turn": "off",
        "token_budget": 900,
        "resident__feed_poll_ms": 0,
    }
    if overrides.get("storage__adapter") == "postgres":
        del values["storage__wal_autocheckpoint_pages"]
    return config(path, **{**values, **overrides})


def content_of(label: str, size: int) -> str:
    """Return a text that can be told from its own beginning."""
    head = f"{label}|{size}|"
    return (head + "abcdefghij" * (size // 10 + 1))[: max(size, len(head))]


def intact(text: str) -> bool:
    """Return whether a text is as ``content_of`` made it."""
    label, _, rest = text.partition("|")
    size = rest.partition("|")[0]
    return size.isdigit() and text == content_of(label, int(size))


@dataclass
class Worker:
    """One thread of a writing program. ``report`` is called with each write once it was acknowledged."""

    memory: caliber.Caliber
    random: random.Random
    name: str
    report: Callable[[dict[str, Any]], None]
    trajectories: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    made: int = 0

    def begin(self) -> None:
        """Start the worker's first trajectory."""
        self._start()

    def step(self) -> None:
        """Do one thing, chosen at random."""
        operation = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        getattr(self, f"_{operation}")()

    def _label(self) -> str:
        self.made += 1
        return f"{self.name}.{self.made}"

    def _content(self) -> str:
        return content_of(self._label(), self.random.choice((12, 40, 200, 3_000, 9_000)))

    def _start(self) -> None:
        trajectory = self.memory.start_trajectory(self._content(), initiator=USER)
        self.trajectories.append(trajectory.trajectory_id)
        self.report({"kind": "trajectory", "id": str(trajectory.trajectory_id)})

    def _scope(self) -> Any:
        trajectory_id = self.random.choice(self.trajectories)
        scope = self.memory.current_scope(trajectory_id)
        if scope is None:
            scope = self.memory.open_scope(trajectory_id)
            self.report({"kind": "scope", "id": str(scope.scope_id)})
        return scope

    def _turn(self) -> None:
        text = self._content()
        turn = self.memory.append_turn(self._scope().scope_id, role="user", content=text)
        self.report({"kind": "turn", "id": str(turn.turn_id), "number": turn.turn_number, "text": text[:60]})

    def _batch(self) -> None:
        label = self._label()
        turns = self.memory.append_turns(
            self._scope().scope_id,
            [{"role": "user", "content": content_of(f"batch {label}", 30 + at)} for at in range(BATCH)],
        )
        for turn in turns:
            self.report({"kind": "turn", "id": str(turn.turn_id), "number": turn.turn_number, "text": turn.text[:60]})

    def _note(self) -> None:
        text = self._content()
        note = self.memory.add_note(
            entity=f"thing {self.random.randrange(9)}",
            entity_type="topic",
            note_type="fact",
            content=text,
            confidence=1,
        )
        self.notes.append(note.note_id)
        self.report({"kind": "note", "id": str(note.note_id), "version": note.version, "text": text[:60]})

    def _change(self) -> None:
        if not self.notes:
            return
        text = self._content()
        note = self.memory.storage.notes.update(self.random.choice(self.notes), content=text)
        self.report({"kind": "note", "id": str(note.note_id), "version": note.version, "text": text[:60]})

    def _artifact(self) -> None:
        text = self._content()
        artifact = self.memory.create_artifact(
            self._scope().scope_id, artifact_type="fact", content=text, extraction_method="explicit"
        )
        self.report({"kind": "artifact", "id": str(artifact.artifact_id), "text": text[:60]})

    def _close(self) -> None:
        scope = self.memory.close_scope(self._scope().scope_id)
        self.report({"kind": "closed", "id": str(scope.scope_id), "turns": scope.turn_count})

    def _finish(self) -> None:
        if len(self.trajectories) < 3:
            return
        trajectory_id = self.trajectories.pop(self.random.randrange(len(self.trajectories)))
        self.memory.complete_trajectory(trajectory_id, status="success", summary="done")
        self.report({"kind": "completed", "id": str(trajectory_id)})

    def _lock(self) -> None:
        resource = f"resource {self.random.randrange(3)}"
        try:
            lock = self.memory.agents.locks.acquire(resource, holder=self.name, lease_ms=5)
        except LockAcquisitionFailed:
            return
        self.report({"kind": "lock", "id": resource, "token": lock.token})

    def _window(self) -> None:
        budget = self.random.choice((60, 300, 900))
        try:
            window = self.memory.assemble_context(self.random.choice(self.trajectories), max_tokens=budget)
        except BudgetTooSmall:
            return
        self.report({"kind": "window", "id": str(window.window_id), "used": window.used_tokens, "max": budget})


def check(settings: CaliberConfig, ledger: Iterable[dict[str, Any]]) -> list[str]:
    """Open a store and return everything in which it breaks what was promised."""
    try:
        memory = caliber.open(settings)
    except CaliberError as error:
        return [f"does not open: {error}"]
    with memory:
        return [*_acknowledged(memory, ledger), *_whole(memory), *memory.admin.verify(), *_windows(memory)]


def _acknowledged(memory: caliber.Caliber, ledger: Iterable[dict[str, Any]]) -> list[str]:
    storage = memory.storage
    stored: dict[str, dict[str, Any]] = {
        "trajectory": {str(item.trajectory_id): item for item in storage.trajectories.all()},
        "scope": {str(item.scope_id): item for item in storage.scopes.all()},
        "turn": {str(item.turn_id): item for item in storage.turns.all()},
        "note": {str(item.note_id): item for item in storage.notes.all()},
        "artifact": {str(item.artifact_id): item for item in storage.artifacts.all()},
    }
    tokens: dict[str, int] = defaultdict(int)
    for lock in storage.locks.all():
        tokens[lock.resource] = max(tokens[lock.resource], lock.token)
    faults = []
    for entry in ledger:
        kind, name = entry["kind"], entry["id"]
        if kind == "window":
            if entry["used"] > entry["max"]:
                faults.append(f"window {name} is over its budget")
            continue
        if kind == "lock":
            if tokens[name] < entry["token"]:
                faults.append(f"lock on {name} forgot token {entry['token']}")
            continue
        table = {"closed": "scope", "completed": "trajectory"}.get(kind, kind)
        found = stored[table].get(name)
        if found is None:
            faults.append(f"{kind} {name} is lost")
        elif kind == "turn" and (found.turn_number != entry["number"] or not found.text.startswith(entry["text"])):
            faults.append(f"turn {name} is not what was acknowledged")
        elif kind == "note" and (
            found.version < entry["version"]
            or (found.version == entry["version"] and not found.content.startswith(entry["text"]))
        ):
            faults.append(f"note {name} lost version {entry['version']}")
        elif kind == "artifact" and not found.text.startswith(entry["text"]):
            faults.append(f"artifact {name} is not what was acknowledged")
        elif kind == "closed" and (found.is_open or found.turn_count < entry["turns"]):
            faults.append(f"scope {name} is not closed as it was")
        elif kind == "completed" and found.outcome is None:
            faults.append(f"trajectory {name} is not completed")
    return faults


def _whole(memory: caliber.Caliber) -> list[str]:
    """Return the writes that are only half stored, acknowledged or not."""
    storage = memory.storage
    faults = []
    turns: dict[uuid.UUID, list[Any]] = defaultdict(list)
    batches: dict[str, int] = defaultdict(int)
    for turn in storage.turns.all():
        turns[turn.scope_id].append(turn)
        if not intact(turn.text):
            faults.append(f"turn {turn.turn_id} is damaged")
        if turn.text.startswith("batch "):
            batches[turn.text.partition("|")[0]] += 1
    faults += [f"{label} is half written: {count}" for label, count in batches.items() if count != BATCH]
    counted: dict[uuid.UUID, int] = defaultdict(int)
    for scope in storage.scopes.all():
        own = turns.pop(scope.scope_id, [])
        counted[scope.trajectory_id] += len(own)
        if sorted(turn.sequence for turn in own) != list(range(scope.turn_count)):
            faults.append(f"scope {scope.scope_id} counts {scope.turn_count} turns, but has {len(own)}")
        if (scope.closed_at is None) != (scope.end_turn is None):
            faults.append(f"scope {scope.scope_id} is half closed")
    for trajectory in storage.trajectories.all():
        if trajectory.turn_count != counted[trajectory.trajectory_id]:
            faults.append(f"trajectory {trajectory.trajectory_id} counts wrong")
        if (trajectory.outcome is None) != (trajectory.status == "active"):
            faults.append(f"trajectory {trajectory.trajectory_id} is half completed")
        if not storage.scopes.list_by_trajectory(trajectory.trajectory_id):
            faults.append(f"trajectory {trajectory.trajectory_id} has no scope")
    faults += [f"note {note.note_id} is damaged" for note in storage.notes.all() if not _note_intact(note)]
    return faults


def _note_intact(note: Any) -> bool:
    # Notes made by consolidation are the provider's words.
    return bool(note.source_trajectory_ids) or intact(note.content)


def _windows(memory: caliber.Caliber) -> list[str]:
    faults = []
    for stored in memory.storage.context_windows.all():
        if stored.used_tokens > stored.max_tokens:
            faults.append(f"window {stored.window_id} is over its budget")
    for trajectory in list(memory.storage.trajectories.all())[-3:]:
        window = memory.assemble_context(trajectory.trajectory_id, max_tokens=300)
        if window.used_tokens > 300:
            faults.append("a window is over its budget after reopening")
    return faults


def to_line(entry: dict[str, Any]) -> bytes:
    """Return a ledger entry as one line, short enough that a pipe takes it whole."""
    line = json.dumps(entry).encode() + b"\n"
    assert len(line) < 512
    return line
