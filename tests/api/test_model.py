"""A store beside plain dicts: whatever is done to both, both say the same. Two handles, where the database allows it.

Hypothesis chooses what is done, to which records, and when the store is compacted, reloaded, closed and opened again.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from support.configs import USER, config
from support.evidence import examples, scale
from support.inspection import inspect

import caliber
from caliber.model import FixedClock
from caliber.model.context import AssemblyAction, SourceType
from caliber.model.errors import CaliberError, ConstraintViolation, InvalidStateTransition, NotFound

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)
CONTENTS = st.binary(max_size=40) | TEXTS.map(str.encode)
SETTINGS = settings(
    max_examples=examples(8, 400),
    stateful_step_count=scale(25, 60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@dataclasses.dataclass
class Task:
    """A trajectory in the model."""

    status: str = "active"
    scopes: list[uuid.UUID] = dataclasses.field(default_factory=list)
    turn_count: int = 0


@dataclasses.dataclass
class Stretch:
    """A scope in the model."""

    trajectory: uuid.UUID
    open: bool = True
    turns: list[bytes] = dataclasses.field(default_factory=list)
    numbers: list[int] = dataclasses.field(default_factory=list)


class StoreBesideDicts(RuleBasedStateMachine):
    """The rules; ``adapter_path`` says which database."""

    adapter_path = ":memory:"

    trajectories = Bundle("trajectories")
    scopes = Bundle("scopes")
    notes = Bundle("notes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="caliber-model-"))
        shared = self.adapter_path != ":memory:"
        path = str(self.folder / "store.db") if shared else ":memory:"
        self.config = config(path, policies=[], token_budget=2_000, embedding__embed__turn="off")
        self.clock = FixedClock()
        if shared:
            caliber.create(self.config)
        self.handles = [self._open() for _ in range(2 if shared else 1)]
        self.at = 0
        self.tasks: dict[uuid.UUID, Task] = {}
        self.stretches: dict[uuid.UUID, Stretch] = {}
        self.known: dict[uuid.UUID, tuple[str, int]] = {}
        self.kept: dict[uuid.UUID, dict[bytes, uuid.UUID]] = {}
        self.keys: dict[tuple[uuid.UUID, str], uuid.UUID] = {}

    def _open(self) -> caliber.Caliber:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("caliber.resident.memory.SEGMENT_ROWS", 64)
            return caliber.open(self.config, clock=self.clock)

    @property
    def memory(self) -> caliber.Caliber:
        """The handles in turn, each with what the others did."""
        self.at += 1
        handle = self.handles[self.at % len(self.handles)]
        inspect(handle).snapshot("latest")
        return handle

    def teardown(self) -> None:
        for handle in self.handles:
            assert handle.admin.verify() == []
            handle.close()
        shutil.rmtree(self.folder)

    # --- what is done ----------------------------------------------------------------------------

    @initialize(target=trajectories, goal=TEXTS)
    def first(self, goal: str) -> Any:
        return self._start(goal, None)

    @rule(target=trajectories, goal=TEXTS)
    def start(self, goal: str) -> Any:
        return self._start(goal, None)

    def _start(self, goal: str, parent: Any) -> Any:
        memory = self.memory
        trajectory = memory.start_trajectory(goal, initiator=USER, parent=parent)
        scope = memory.current_scope(trajectory.trajectory_id)
        self.tasks[trajectory.trajectory_id] = Task(scopes=[scope.scope_id])
        self.stretches[scope.scope_id] = Stretch(trajectory.trajectory_id)
        self.kept[trajectory.trajectory_id] = {}
        return trajectory.trajectory_id

    @rule(target=scopes, trajectory=trajectories)
    def look_at_scopes(self, trajectory: Any) -> Any:
        return multiple(*self.tasks[trajectory].scopes)

    @rule(target=scopes, trajectory=trajectories)
    def open_scope(self, trajectory: Any) -> Any:
        task = self.tasks[trajectory]
        if task.status != "active":
            with pytest.raises(InvalidStateTransition):
                self.memory.open_scope(trajectory)
            return multiple()
        scope = self.memory.open_scope(trajectory)
        assert scope.sequence_number == len(task.scopes)
        task.scopes.append(scope.scope_id)
        self.stretches[scope.scope_id] = Stretch(trajectory)
        return scope.scope_id

    @rule(scope=scopes)
    def close_scope(self, scope: Any) -> None:
        closed = self.memory.close_scope(scope)
        assert not closed.is_open
        self.stretches[scope].open = False

    @rule(scope=scopes, contents=st.lists(CONTENTS, min_size=1, max_size=4))
    def append(self, scope: Any, contents: list[bytes]) -> None:
        stretch = self.stretches[scope]
        task = self.tasks[stretch.trajectory]
        batch = [{"role": "user", "content": content} for content in contents]
        if not stretch.open or task.status != "active":
            with pytest.raises(ConstraintViolation):
                self.memory.append_turns(scope, batch)
            return
        turns = self.memory.append_turns(scope, batch)
        numbers = list(range(task.turn_count, task.turn_count + len(contents)))
        assert [turn.turn_number for turn in turns] == numbers
        task.turn_count += len(contents)
        stretch.turns += contents
        stretch.numbers += numbers

    @rule(scope=scopes, key=st.sampled_from("abc"), content=TEXTS)
    def append_keyed(self, scope: Any, key: str, content: str) -> None:
        stretch = self.stretches[scope]
        task = self.tasks[stretch.trajectory]
        place = (stretch.trajectory, key)
        try:
            turn = self.memory.append_turn(scope, role="user", content=content, idempotency_key=key)
        except CaliberError:
            refused = not stretch.open or task.status != "active"
            assert refused or place in self.keys
            return
        if place in self.keys:
            assert turn.turn_id == self.keys[place]
            return
        assert stretch.open
        self.keys[place] = turn.turn_id
        stretch.turns.append(content.encode())
        stretch.numbers.append(task.turn_count)
        task.turn_count += 1

    @rule(scope=scopes, content=CONTENTS.filter(bool))
    def keep(self, scope: Any, content: bytes) -> None:
        stretch = self.stretches[scope]
        options = {"artifact_type": "fact", "extraction_method": "explicit"}
        if not stretch.open or self.tasks[stretch.trajectory].status != "active":
            with pytest.raises(ConstraintViolation):
                self.memory.create_artifact(scope, content=content, **options)
            return
        artifact = self.memory.create_artifact(scope, content=content, **options)
        kept = self.kept[stretch.trajectory]
        assert kept.setdefault(content, artifact.artifact_id) == artifact.artifact_id

    @rule(target=notes, content=TEXTS)
    def note(self, content: str) -> Any:
        fields = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5}
        same = [known for known, (text, _) in self.known.items() if text == content]
        note = self.memory.add_note(content=content, **fields)
        if same:
            assert note.note_id in same
            return multiple()
        self.known[note.note_id] = (content, 1)
        return note.note_id

    @rule(note=notes, content=TEXTS)
    def change(self, note: Any, content: str) -> None:
        text, version = self.known[note]
        taken = any(other != note and known == content for other, (known, _) in self.known.items())
        try:
            changed = self.memory.storage.notes.update(note, content=content)
        except CaliberError:
            assert taken
            return
        assert not taken
        self.known[note] = (content, version + (content != text))
        assert changed.version == self.known[note][1]

    @rule(note=consumes(notes))
    def forget(self, note: Any) -> None:
        assert self.memory.storage.notes.delete(note) is True
        del self.known[note]
        with pytest.raises(NotFound):
            self.memory.get(note)

    @rule(trajectory=trajectories, status=st.sampled_from(["success", "failure"]))
    def complete(self, trajectory: Any, status: str) -> None:
        task = self.tasks[trajectory]
        allowed = task.status == "active" or (task.status == "suspended" and status == "failure")
        if not allowed:
            with pytest.raises(InvalidStateTransition):
                self.memory.complete_trajectory(trajectory, status=status, summary="")
            return
        outcome = self.memory.complete_trajectory(trajectory, status=status, summary="")
        assert set(outcome.artifacts_produced) == set(self.kept[trajectory].values())
        task.status = "completed" if status == "success" else "failed"
        for scope in task.scopes:
            self.stretches[scope].open = False

    @rule(trajectory=trajectories, pause=st.booleans())
    def pause(self, trajectory: Any, pause: bool) -> None:
        task = self.tasks[trajectory]
        move = self.memory.suspend_trajectory if pause else self.memory.resume_trajectory
        if task.status in ("completed", "failed"):
            with pytest.raises(InvalidStateTransition):
                move(trajectory)
            return
        move(trajectory)
        task.status = "suspended" if pause else "active"

    # --- what must not matter --------------------------------------------------------------------

    @rule()
    def compact(self) -> None:
        inspect(self.memory).resident.compact()

    @rule()
    def reload(self) -> None:
        inspect(self.memory).resident.reload()

    @rule()
    def evict(self) -> None:
        for generation in inspect(self.memory).mirrors.generations.values():
            generation.evict_texts(1 << 30)

    @rule()
    def maintain(self) -> None:
        self.clock.advance(ms=60_000)
        self.memory.admin.maintain()

    @rule()
    def reopen(self) -> None:
        if self.adapter_path == ":memory:":
            return
        self.at += 1
        place = self.at % len(self.handles)
        self.handles[place].close()
        self.handles[place] = self._open()

    # --- what both say ---------------------------------------------------------------------------

    @invariant()
    def notes_agree(self) -> None:
        memory = self.memory
        for note, (content, version) in self.known.items():
            found = memory.get(note)
            assert (found.content, found.version) == (content, version)
        hits = memory.search("", kinds=["note"], limit=999).hits
        assert {hit.id: hit.content for hit in hits} == {note: text for note, (text, _) in self.known.items()}

    @invariant()
    def scopes_agree(self) -> None:
        memory = self.memory
        for scope_id, stretch in self.stretches.items():
            scope = memory.get(scope_id)
            assert scope.is_open == stretch.open
            assert scope.turn_count == len(stretch.turns)
        for trajectory_id, task in self.tasks.items():
            trajectory = memory.get(trajectory_id)
            assert (trajectory.status, trajectory.turn_count) == (task.status, task.turn_count)
            still_open = [scope for scope in task.scopes if self.stretches[scope].open]
            current = memory.current_scope(trajectory_id)
            assert (None if current is None else current.scope_id) == (still_open[-1] if still_open else None)

    @invariant()
    def stored_turns_agree(self) -> None:
        storage = self.memory.storage
        for scope_id, stretch in self.stretches.items():
            turns = storage.turns.list_by_scope(scope_id)
            assert [turn.content for turn in turns] == stretch.turns
            assert [turn.turn_number for turn in turns] == stretch.numbers

    @invariant()
    def windows_hold_what_there_is(self) -> None:
        memory = self.memory
        for trajectory_id in list(self.tasks)[-2:]:
            window = memory.assemble_context(trajectory_id)
            assert window.used_tokens <= window.max_tokens
            trace = [decision for decision in window.assembly_trace if decision.target_id is not None]
            others = [decision.target_id for decision in trace if decision.source_type is not SourceType.TURN]
            assert len(others) == len(set(others)), "every candidate once"
            # A turn of the conversation can be found too: then it enters once, and is told about twice.
            turns = [decision for decision in trace if decision.source_type is SourceType.TURN]
            entered = [decision.target_id for decision in turns if decision.action is not AssemblyAction.EXCLUDE]
            assert len(entered) == len(set(entered))
            assert max(Counter(decision.target_id for decision in turns).values(), default=0) <= 2
            assert memory.replay(window.window_id).text == window.text


class FileBesideDicts(StoreBesideDicts):
    """SQLite in a file, two handles taking turns."""

    adapter_path = "file"


TestStoreInMemory = StoreBesideDicts.TestCase
TestStoreInMemory.settings = SETTINGS
TestStoreInFile = FileBesideDicts.TestCase
TestStoreInFile.settings = SETTINGS
