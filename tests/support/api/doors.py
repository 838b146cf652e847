"""A store with something of everything in it, and its public calls with arguments with which each is sound."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from support.api import hostile
from support.api.hostile import Call, Fresh
from support.configs import AGENT, USER
from support.inspection import inspect

import caliber
from caliber import EntityRef, EntityType, Principal
from caliber.model.errors import InvalidValue
from caliber.model.knowledge import Edge, EdgeRelation, Usage
from caliber.model.references import EdgeId

SKIPPED: Final = frozenset(
    (
        "close",
        "storage.bulk_read",  # hands out a reader that is in the middle of its session
        "admin.rebuild_search",  # no argument but switches, and slow
        "admin.vacuum",
    )
)
_CORRECTIONS: Final = ("delete", "end", "get", "supersede", "undo", "update")
_WORK: Final = ("assign", "cancel", "claim", "complete", "depend", "get", "release", "reopen", "start", "update")
_BEHIND: Final = frozenset(
    ("change", "event", "usage", "job", "embedding", "embedding_cache", "context_window", "identity")
)
"""Relations that other threads, and calls made before, write behind; and names, which are stored when first used."""
_NOTE: Final[dict[str, Any]] = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5}
_NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)


def fill(memory: caliber.Caliber) -> SimpleNamespace:
    """Write a row of nearly every relation; return the records, by what they are."""
    ids = SimpleNamespace()
    session = memory.start_session(initiator=AGENT)
    ids.task = memory.start_trajectory("find the fault", initiator=AGENT, session=session.session_id, tags=["a", "b"])
    task = ids.task.trajectory_id
    ids.scope = scope = memory.current_scope(task)
    assert scope is not None
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    memory.append_turn(scope.scope_id, role="user", content="where is the fault in the cellar?", name="ada")
    memory.append_turn(scope.scope_id, role="assistant", content="", tool_calls=[call])
    memory.append_turn(scope.scope_id, role="tool", content=b"raw \xff", tool_call_id="1")
    ids.artifact = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="the fault is old", extraction_method="explicit",
        confidence=0.5, ttl="1h",
    )  # fmt: skip
    ids.note, ids.passing = (
        memory.add_note(
            **_NOTE, content=f"fault number {at}", importance=5, tags=["t"], visible_to=["executor"],
            source_trajectory_ids=[task],
        )
        for at in range(2)
    )  # fmt: skip
    memory.storage.notes.update(ids.passing.note_id, content="fault number nought")
    ends = [EntityRef(EntityType.NOTE, each.note_id) for each in (ids.note, ids.passing)]
    memory.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.SUPPORTS, 0.5, 0.5, _NOW))
    memory.storage.usages.insert(Usage(EntityType.NOTE, ids.passing.note_id, 1, _NOW))
    memory.records("fact").insert(
        subject="fault", content="a fault by nature", kind="claim", score=0.5, count=3, certain=True, seen_at=_NOW,
        about={"a": [1]}, owner=uuid.uuid4(), trajectory=task,
    )  # fmt: skip
    ids.lock = memory.agents.locks.acquire("cellar", holder="me", lease_ms=10**9)
    ids.window = memory.assemble_context(task, query="fault")
    ids.checkpoint = memory.pcp.checkpoint(task)
    ids.learned = memory.remember([{"role": "user", "content": "I live in Rome."}], user="ada")
    agents, work = memory.agents, memory.workspace
    for name in ("ada", "bob"):
        agents.register(name, type="worker", can_delegate_to=["worker"])
    agents.groups.create("team", "round_robin")
    agents.groups.add("team", "ada")
    ids.message = agents.messages.send({"a": 1}, to="bob", agent="ada")
    ids.delegation = agents.delegations.delegate("do it", parent=task, to="bob", agent="ada")
    memory.access.grant(to="ada", on=task)
    ids.work, ids.day = work.todos.add("a"), work.calendar.add("a", _NOW)
    work.values.set("key", {"a": 1})
    memory.close_scope(memory.open_scope(task).scope_id)
    memory.flush()
    ids.first = {}
    for name in memory.storage:
        with contextlib.suppress(InvalidValue):  # a few relations cannot be paged through
            ids.first[name] = next(iter(memory.storage.get(name).all()), None)
    return ids


class Doors:
    """The public calls of a handle to a filled store."""

    def __init__(self, memory: caliber.Caliber, ids: SimpleNamespace, folder: Path) -> None:
        self.memory, self.ids, self._folder = memory, ids, folder
        self._numbers = itertools.count()
        self._store = inspect(memory).store
        self._counts = [
            (name, plans.count) for name, plans in self._store.plans.items() if name not in _BEHIND and plans.count
        ]

    def _unique(self) -> str:
        return f"text {next(self._numbers)}"

    def _conflict(self) -> uuid.UUID:
        notes = [self.memory.add_note(**_NOTE, content=self._unique()).note_id for _ in range(2)]
        ends = [EntityRef(EntityType.NOTE, note) for note in notes]
        found = self.memory.conflicts.report(*ends, conflict_type="contradicting_fact", reason="both")
        return found.conflict_id

    def counts(self) -> dict[str, int]:
        """Return how many rows each relation has, but those that are written behind."""
        with self._store.read() as session:
            return {name: session.run(plan, ())[0][0] for name, plan in self._counts}

    def sound(self) -> dict[str, Any]:
        """Return values with which calls are sound, by parameter or by its annotation."""
        memory, ids = self.memory, self.ids
        task, scope = ids.task.trajectory_id, ids.scope.scope_id
        own_task = Fresh(lambda: memory.start_trajectory("passing", initiator=AGENT).trajectory_id)
        own_scope = Fresh(lambda: memory.open_scope(task).scope_id)
        return {
            ": Id": task, ": uuid.UUID": task, ": str": "a", ": int": 1, ": float": 0.5, ": datetime": _NOW,
            ": Any": "a", ": EntityRef": USER, ": str | EntityRef": "ada", ": ContextWindow": ids.window.window_id,
            ": LockToken": caliber.LockToken("cellar", ids.lock.token), ": Principal": memory.principal,
            ": Subscriber": Fresh(lambda: lambda _: None),
            ": Iterable[Mapping[str, Any]]": [{"role": "user", "content": "a"}],
            ": Iterable[str]": ["a"], ": Sequence[str]": ["a"], ": Sequence[str | EntityRef]": ["ada"],
            ": Sequence[Any]": [1], ": AgentMessage": ids.message, "id": ids.note.note_id, "scope_id": scope,
            "turns": [{"role": "user", "content": "a"}],
            "session_id": Fresh(lambda: memory.start_session(initiator=AGENT).session_id),
            "window_id": ids.window.window_id, "before": ids.window.window_id, "after": ids.window.window_id,
            "learned_id": ids.learned.learned_id, "message_id": ids.message.message_id,
            "delegation_id": ids.delegation.delegation_id, "conflict": Fresh(self._conflict),
            "artifact": ids.artifact.artifact_id,
            **dict.fromkeys((f"artifacts.{name}.id" for name in _CORRECTIONS), ids.artifact.artifact_id),
            **dict.fromkeys((f"calendar.{name}.id" for name in _CORRECTIONS), ids.day.event_id),
            **dict.fromkeys((f"todos.{name}.id" for name in _WORK), ids.work.todo_id),
            **dict.fromkeys((f"{name}.agent" for name in ("groups.remove", "todos.claim", "todos.assign")), "ada"),
            **dict.fromkeys((f"{name}.user" for name in ("remember", "start_session", "start_trajectory")), "ada"),
            **dict.fromkeys((f"{name}.to" for name in ("send", "send_many", "request", "delegate", "initiate")), "bob"),
            "locks.acquire.holder": "me", "locks.renew.holder": "me", "groups.name": "team", "lifecycle": "active",
            "set_status.status": "idle", "request.timeout_ms": 1, "recover.checkpoint": ids.checkpoint.checkpoint_id,
            "complete_trajectory.trajectory_id": own_task, "suspend_trajectory.trajectory_id": own_task,
            "resume_trajectory.trajectory_id": own_task, "admin.purge_trajectory.trajectory_id": own_task,
            "close_scope.scope_id": own_scope, "storage.scopes.close.scope_id": own_scope,
            "storage.turns.delete_by_scope.scope_id": own_scope, "delete_note.id": ids.passing.note_id,
            "initiator": USER, "status": "success", "role": "user", "append_turn.content": Fresh(self._unique),
            "add_note.content": Fresh(self._unique), "artifact_type": "fact", "extraction_method": "explicit",
            "entity_type": "t", "note_type": "fact", "records.name": "note", "forget.texts": ["nobody-has-this-name"],
            "resource": "cellar", "holder": "me", "groups.create.pattern": "round_robin",
            "conflict_type": "contradicting_fact", "keep": "both",
            "item_a": EntityRef(EntityType.NOTE, ids.note.note_id),
            "item_b": EntityRef(EntityType.NOTE, ids.passing.note_id), "task": task, "delegate.task": "do it",
            "records": [{"subject": "s", "kind": "claim"}], "fact.insert.record": {"subject": "s", "kind": "claim"},
            "path": Fresh(lambda: self._folder / f"{uuid.uuid4()}.zip"), "relation": "note", "relation_plural": "notes",
            "data": [], "embedding": [0.5] * 32, "keep_last": 3, "age_ms": 10**12, "content_hash": b"0" * 32,
            "space_id": uuid.UUID(int=1),
        }  # fmt: skip

    def calls(self) -> list[Call]:
        """Return every public call of the handle and of what hangs on it."""
        memory, sound = self.memory, self.sound()
        out = list(hostile.doors(memory, "", sound, SKIPPED))
        for name in ("ada", "bob"):
            out += hostile.doors(memory.acting_as(Principal.agent(name)).agents, f"{name}.agents.", sound, SKIPPED)
        for name in ("note", "turn_buffer", "fact"):
            out += hostile.doors(memory.records(name), f"{name}.", sound, SKIPPED)
        relations = {relation.plural: relation for relation in self._store.catalog.relations}
        for name in memory.storage:
            table, relation, first = memory.storage.get(name), relations[name], self.ids.first.get(name)
            of_table = {**sound, "insert.entity": first, "name": "nowhere"}
            if first is not None:
                of_table |= dict.fromkeys(("get.key", "update.key"), _columns(relation.key, first))
            out += hostile.doors(table, f"storage.{name}.", of_table, SKIPPED)
            for path in relation.paths:
                given = {**sound, "by": () if first is None else _columns(path.by, first)}
                out.append(hostile.call_of(f"storage.{name}.{path.name}", getattr(table, path.name), given))
        return out

    def works(self) -> None:
        """Write, leave behind and search as ever."""
        text = self._unique()
        scope = self.memory.open_scope(self.ids.task.trajectory_id)
        self.memory.append_turn(scope.scope_id, role="user", content=text)
        self.memory.flush()
        assert self.memory.search(text, kinds=("turn",)).hits
        # One of its own: a drawn call may have given the first one another text.
        self.memory.add_note(**_NOTE, content=text)
        assert self.memory.search(text, kinds=("note",)).hits


def _columns(names: Iterable[str], record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, name, "a") for name in names)
