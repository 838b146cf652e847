"""Every public call of a handle, with arguments with which it is sound."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from support.api import hostile
from support.configs import USER, config
from support.memories import FACT

import caliber
from caliber import testing

SKIPPED = frozenset(
    (
        "close",
        "storage.bulk_read",  # hands out a reader that is in the middle of its session
        "admin.rebuild_search",  # no argument but switches, and slow
        "admin.vacuum",
    )
)


class World:
    """A store with a task, and what public calls need; it is in memory unless it has a name in its folder."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        path = ":memory:" if name is None else str(folder / name)
        self.memory = caliber.open(config(path, memories=[FACT]), create=name is not None)
        self.folder = folder
        self.task = self.memory.start_trajectory("go on", initiator=USER)
        self.scope = self.memory.current_scope(self.task.trajectory_id)
        assert self.scope is not None
        self.number = 0
        self.window = self.memory.assemble_context(self.task.trajectory_id)
        self.note = self.memory.add_note(
            entity="e", entity_type="t", note_type="fact", content="something", confidence=0.5
        )
        self.passing = self.memory.add_note(
            entity="e", entity_type="t", note_type="fact", content="passing", confidence=0.5
        )
        self.lock = self.memory.agents.locks.acquire("cellar", holder="me", lease_ms=10**9)

    def unique(self) -> str:
        self.number += 1
        return f"text {self.number}"

    def sound(self) -> dict[str, Any]:
        """Return values with which calls are sound; what is callable is made for each call."""
        memory, scope = self.memory, self.scope
        assert scope is not None

        def task_of_its_own() -> uuid.UUID:
            return memory.start_trajectory("passing", initiator=USER).trajectory_id

        def scope_of_its_own() -> uuid.UUID:
            return memory.open_scope(self.task.trajectory_id).scope_id

        return {
            "id": self.note.note_id,
            "trajectory_id": self.task.trajectory_id,
            "scope_id": scope.scope_id,
            "session_id": lambda: memory.start_session(initiator=USER).session_id,
            "window_id": self.window.window_id,
            "complete_trajectory.trajectory_id": task_of_its_own,
            "suspend_trajectory.trajectory_id": task_of_its_own,
            "resume_trajectory.trajectory_id": task_of_its_own,
            "admin.purge_trajectory.trajectory_id": task_of_its_own,
            "close_scope.scope_id": scope_of_its_own,
            "storage.scopes.close.scope_id": scope_of_its_own,
            "storage.turns.delete_by_scope.scope_id": scope_of_its_own,
            "storage.notes.update.key": self.passing.note_id,
            "storage.trajectories.update.key": self.task.trajectory_id,
            "goal": "a goal",
            "initiator": USER,
            "status": "success",
            "summary": "a summary",
            "role": "user",
            "content": self.unique,
            "turns": [{"role": "user", "content": "a"}],
            "messages": [{"role": "user", "content": "a"}],
            "artifact_type": "fact",
            "extraction_method": "explicit",
            "entity": "e",
            "entity_type": "t",
            "note_type": "fact",
            "confidence": 0.5,
            "query": "something",
            "queries": ["something"],
            "name": "note",
            "principal": memory.principal,
            "subscriber": lambda: lambda _: None,
            "forget.texts": ["nobody-has-this-name"],
            "resource": "cellar",
            "holder": "me",
            "token": caliber.LockToken("cellar", self.lock.token),
            "records": [{"subject": "s", "kind": "claim"}],
            "fact.insert.record": {"subject": "s", "kind": "claim"},
            "path": lambda: self.folder / f"{uuid.uuid4()}.zip",
            "relation": "note",
            "relation_plural": "notes",
            "data": [],
            "embedding": [0.5] * 32,
            "limit": 3,
            "keep": 3,
            "age_ms": 10**12,
            "content_hash": b"0" * 32,
            "space_id": uuid.UUID(int=1),
        }

    def calls(self) -> list[hostile.Call]:
        """Return every public call of the handle and what hangs on it."""
        memory, sound = self.memory, self.sound()
        out = list(hostile.public(memory, "", sound, SKIPPED))
        for prefix, facet in (
            ("agents.locks.", memory.agents.locks),
            ("events.", memory.events),
            ("admin.", memory.admin),
            ("storage.", memory.storage),
            ("notes.", memory.records("note")),
            ("turn_buffer.", memory.records("turn_buffer")),
            ("fact.", memory.records("fact")),
        ):
            out += hostile.public(facet, prefix, sound, SKIPPED)
        plans = {relation.plural: relation.name for relation in testing.inspect(memory).store.catalog.relations}
        for name in memory.storage:
            table = memory.storage.get(name)
            out += hostile.public(table, f"storage.{name}.", {**sound, "entity": None, "name": "nowhere"}, SKIPPED)
            for path in testing.inspect(memory).store.plans[plans[name]].lists:
                out.append(hostile.call_of(f"storage.{name}.{path}", getattr(table, path), sound))
        return out

    def works(self) -> None:
        """Write, leave behind and search as ever."""
        assert self.scope is not None
        text = self.unique()
        self.memory.append_turn(self.scope.scope_id, role="user", content=text)
        self.memory.flush()
        assert self.memory.search(text, kinds=("turn",)).hits
        # One of its own: a drawn call may have given the first one another text.
        self.memory.add_note(entity="e", entity_type="t", note_type="fact", content=text, confidence=0.5)
        assert self.memory.search(text, kinds=("note",)).hits
