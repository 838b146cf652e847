"""Turns that whoever may append deletes: the last ones, all of a scope, or one.

Source: docs/api.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.configs import policy
from support.drawn import needs
from support.providers import ScriptedSummarizer
from support.threads import at_once

from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import (
    ConstraintViolation,
    DTypeError,
    InvalidValue,
    LockExpired,
    NotFound,
    PermissionDenied,
)

CLOSING = policy(
    "scope_close",
    {"action": "summarize", "target": "turn_buffer"},
    {"action": "extract_artifacts", "target": "turn_buffer"},
)


@pytest.fixture
def memory(backend: Any) -> Any:
    return backend.open()


def talk(memory: Any, count: int = 4, **who: Any) -> tuple[Any, Any, list[Any]]:
    task = memory.start_trajectory("talk", **(who or {"user": "anna"}))
    scope = memory.current_scope(task.trajectory_id)
    said = [{"role": "user" if at % 2 == 0 else "assistant", "content": f"word{at} of the talk"} for at in range(count)]
    return task, scope, memory.append_turns(scope.scope_id, said)


def found(memory: Any, scope: Any) -> list[Any]:
    return list(memory.records("turn_buffer").find(scope_id=scope.scope_id, order_by="sequence"))


def test_the_last_turns_go_and_all_do(memory: Any) -> None:
    task, scope, turns = talk(memory)
    assert memory.delete_turns(scope.scope_id, last=1) == turns[3:]
    assert found(memory, scope) == turns[:3]
    assert memory.delete_turns(scope.scope_id, last=2) == turns[1:3]
    memory.flush()
    assert not memory.search("word2").hits
    assert "word2" not in memory.assemble_context(task.trajectory_id, query="talk").text
    again = memory.append_turn(scope.scope_id, role="user", content="word9")
    assert again.sequence > turns[3].sequence, "places are not given again"
    assert memory.delete_turns(scope.scope_id) == [turns[0], again]
    assert memory.delete_turns(scope.scope_id) == memory.delete_turns(scope.scope_id, last=5) == []
    assert memory.append_turn(scope.scope_id, role="user", content="anew").content == b"anew"


def test_one_turn_goes(memory: Any) -> None:
    _, scope, turns = talk(memory)
    assert memory.delete_turn(turns[1].turn_id) == turns[1]
    assert found(memory, scope) == [turns[0], *turns[2:]]
    with pytest.raises(NotFound):
        memory.delete_turn(turns[1].turn_id)


def test_a_window_that_showed_it_is_replayed(memory: Any) -> None:
    task, scope, _ = talk(memory)
    window = memory.assemble_context(task.trajectory_id, query="word3")
    assert "word3" in window.text
    memory.flush()
    memory.delete_turns(scope.scope_id)
    assert memory.replay(window.window_id).text == window.text


def test_a_key_that_went_with_its_turn_is_free(memory: Any) -> None:
    _, scope, _ = talk(memory)
    first = memory.append_turn(scope.scope_id, role="user", content="a", idempotency_key="m1")
    memory.delete_turn(first.turn_id)
    again = memory.append_turn(scope.scope_id, role="user", content="b", idempotency_key="m1")
    assert again.turn_id != first.turn_id


def test_what_may_not_be_deleted_stays(memory: Any) -> None:
    task, scope, turns = talk(memory)
    with pytest.raises(InvalidValue, match="last"):
        memory.delete_turns(scope.scope_id, last=0)
    with pytest.raises(DTypeError, match="last"):
        memory.delete_turns(scope.scope_id, last="all")
    with pytest.raises(NotFound):
        memory.delete_turns(task.trajectory_id)
    with pytest.raises(LockExpired):
        memory.delete_turns(scope.scope_id, guard=LockToken("file", 1))
    memory.close_scope(scope.scope_id)
    for call in (partial(memory.delete_turns, scope.scope_id), partial(memory.delete_turn, turns[0].turn_id)):
        with pytest.raises(ConstraintViolation, match="is closed"):
            call()
    other = memory.open_scope(task.trajectory_id)
    memory.suspend_trajectory(task.trajectory_id)
    with pytest.raises(ConstraintViolation, match="is suspended"):
        memory.delete_turns(other.scope_id)
    assert found(memory, scope) == turns


def test_a_user_deletes_of_its_own_task_and_of_no_other(memory: Any) -> None:
    anna, bo = (memory.acting_as(Principal.user(name)) for name in ("anna", "bo"))
    task = anna.start_trajectory("talk")
    scope = anna.current_scope(task.trajectory_id)
    said = anna.append_turn(scope.scope_id, role="user", content="mine")
    with pytest.raises(NotFound):
        bo.delete_turns(scope.scope_id)
    with pytest.raises(NotFound):
        bo.delete_turn(said.turn_id)
    anna.access.grant(to="bo", on=task.trajectory_id, right="write")
    own = bo.append_turn(scope.scope_id, role="user", content="a guest's")
    with pytest.raises(PermissionDenied, match="may not delete a turn of others"):
        bo.delete_turn(said.turn_id)
    with pytest.raises(PermissionDenied, match="may not delete a turn of others"):
        bo.delete_turns(scope.scope_id)
    assert bo.delete_turns(scope.scope_id, last=1) == [own]
    assert anna.delete_turns(scope.scope_id, last=1) == [said]


@needs("sharing")
def test_two_that_take_the_last_turn_take_two(backend: Any) -> None:
    handles = [backend.open(embedding_provider=None) for _ in range(2)]
    _, scope, turns = talk(handles[0], 8)
    handles[1].search("word", consistency="latest")
    popped = at_once([partial(each.delete_turns, scope.scope_id, last=1) for each in handles] * 2)
    assert sorted(turn.sequence for (turn,) in popped) == [4, 5, 6, 7]
    handles[0].search("word", consistency="latest")
    assert found(handles[0], scope) == turns[:4]


def test_a_transaction_takes_it_back(memory: Any) -> None:
    _, scope, turns = talk(memory)

    def fail() -> None:
        with memory.transaction():
            memory.delete_turns(scope.scope_id)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found(memory, scope) == turns


@pytest.mark.parametrize("operation", ["summarize", "extract_artifacts"])
def test_a_scope_that_closes_keeps_nothing_of_turns_deleted_meanwhile(backend: Any, operation: str) -> None:
    provider = ScriptedSummarizer()
    memory = backend.open(summarization_provider=provider, policies=[CLOSING])
    task = memory.start_trajectory("talk", user="anna")
    scope = memory.current_scope(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="KEEP the pin 1234")

    def before(name: str) -> None:
        if name == operation:
            provider.before = lambda _: None
            memory.delete_turns(scope.scope_id)

    provider.before = before
    closed = memory.close_scope(scope.scope_id)
    memory.flush()
    assert operation in provider.calls
    assert "1234" not in (closed.summary or "")
    assert memory.storage.artifacts.count() == 0
    assert not memory.search("pin 1234").hits
