"""Values that a database cannot hold are typed errors on each, and the handle goes on. Source: issue, Bad input."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from support.configs import USER
from support.inspection import inspect

import caliber
from caliber.model.errors import CaliberError, StorageError

WORDS = ("\0", "a\0b", "\ud800", "a\ud800b")


def _refused_or_stored(call: Any) -> None:
    with contextlib.suppress(CaliberError):
        call()


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_texts_that_are_none_are_typed_errors(backend: Any, word: str) -> None:
    memory: caliber.Caliber = backend.open()
    task = memory.start_trajectory("go on", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    note = memory.add_note(entity="e", entity_type="t", note_type="fact", content="something", confidence=0.5)
    for call in (
        lambda: memory.start_trajectory(word, initiator=USER, tags=[word]),
        lambda: memory.append_turn(scope.scope_id, role="user", content="a", name=word, idempotency_key=word),
        lambda: memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=word, extraction_method="explicit", schema_version=word
        ),
        lambda: memory.storage.notes.update(note.note_id, entity=word),
        lambda: memory.storage.notes.find_by_entity(word),
        lambda: memory.records("note").find(entity=word),
        lambda: memory.search(word, filter={"entity": word}),
        lambda: memory.agents.locks.held(word),
        lambda: memory.agents.locks.acquire(word, holder=word),
        lambda: memory.trace(task.trajectory_id, event_type=f"caliber_{word}"),
        lambda: memory.append_turn(scope.scope_id, role="user", content="a", guard=caliber.LockToken(word, 1)),
        lambda: memory.close_scope(scope.scope_id, guard=caliber.LockToken("a", 2**70)),
    ):
        _refused_or_stored(call)
    memory.append_turn(scope.scope_id, role="user", content="as ever")
    memory.flush()
    assert memory.search("as ever").hits


DAMAGES = {
    "label of a scope": ("UPDATE {scope} SET trust = 'no label'", "scope", "append"),
    "status of a task": ("UPDATE {trajectory} SET status = 'none'", "trajectory", "append"),
    "time after the calendar": ("UPDATE {turn} SET occurred_at = 253402300800000000", "turn", "recall"),
    "time before the calendar": ("UPDATE {turn} SET occurred_at = -62135596800000001", "turn", "ask"),
}


@pytest.mark.parametrize("backend", ["sqlite", "sqlite-memory"], indirect=True)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_that_a_call_meets_is_named(backend: Any, damage: str) -> None:
    statement, kind, call = DAMAGES[damage]
    memory: caliber.Caliber = backend.open()
    task = memory.start_trajectory("lighthouses", initiator=USER)
    other = memory.start_trajectory("another goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content="lighthouses by the sea")
    memory.flush()
    backend.tamper(memory, "PRAGMA ignore_check_constraints = ON")
    backend.damage(memory, statement)
    if call != "append":
        inspect(memory).resident.reload()
    calls = {
        "append": lambda: memory.append_turn(scope.scope_id, role="user", content="more"),
        "recall": lambda: memory.assemble_context(other.trajectory_id, query="lighthouses"),
        "ask": lambda: memory.assemble_context(other.trajectory_id, query="lighthouses last week"),
    }
    key = {"scope": scope.scope_id, "trajectory": task.trajectory_id, "turn": turn.turn_id}[kind]
    with pytest.raises(StorageError, match=f"a stored {kind} is damaged .{key}: "):
        calls[call]()
