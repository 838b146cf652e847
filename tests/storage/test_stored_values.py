"""Values that a database cannot hold are typed errors on each, and the handle goes on. Source: issue, Bad input."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from support.configs import USER

import caliber
from caliber.model.errors import CaliberError

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
