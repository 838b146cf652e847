"""Tasks with a name of the application's own: started once, found again, by one process and by many.

Source: docs/adapters (sessions of frameworks); docs/python-api.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import needs
from support.threads import at_once

from caliber.model.access import Principal
from caliber.model.errors import Conflict, DTypeError, InvalidValue, NotFound, PermissionDenied, RequiredFieldMissing
from caliber.model.references import id_of_key


def test_a_key_is_that_of_one_task(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    task = memory.start_trajectory("talk", user="anna", key="chat 1")
    assert memory.trajectory("chat 1") == memory.trajectory(key="chat 1") == task
    with pytest.raises(Conflict, match="a task has this key"):
        memory.start_trajectory("talk", user="anna", key="chat 1")
    assert memory.start_trajectory("another goal", user="anna", key="chat 1", exist_ok=True) == task
    with pytest.raises(Conflict, match="goes on with one of its user"):
        memory.start_trajectory("another goal", user="bo", key="chat 1", exist_ok=True)
    assert memory.start_trajectory("talk", user="anna", key="chat 2").trajectory_id != task.trajectory_id
    memory.complete_trajectory(task.trajectory_id, status="success")
    again = memory.start_trajectory("talk", user="anna", key="chat 1", exist_ok=True)
    assert (again.trajectory_id, again.status) == (task.trajectory_id, "completed"), "ended, as it is"
    assert memory.current_scope(memory.trajectory("chat 2").trajectory_id) is not None
    assert memory.storage.trajectories.count() == 2


@given(st.text(max_size=20), st.text(max_size=20))
def test_other_keys_are_other_tasks(one: str, other: str) -> None:
    assert (id_of_key(one) == id_of_key(other)) is (one == other)
    assert id_of_key(one).version == 8


@pytest.mark.parametrize("key", ["%_", "a:b", "line\nbreak", "é\u0301", "\U0001f600", " a ", "a'\"\\"])
def test_any_short_text_is_a_key(backend: Any, key: str) -> None:
    memory = backend.open(embedding_provider=None)
    task = memory.start_trajectory("talk", user="anna", key=key)
    assert memory.trajectory(key).trajectory_id == task.trajectory_id


def test_what_is_no_key_is_said(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    for wrong in ("", " ", "x" * 10_000, "\ud800"):
        with pytest.raises(InvalidValue, match="key"):
            memory.start_trajectory("talk", user="anna", key=wrong)
    with pytest.raises(DTypeError, match="key"):
        memory.trajectory(5)
    with pytest.raises(RequiredFieldMissing, match="key is required"):
        memory.trajectory(None)
    with pytest.raises(InvalidValue, match="is for a task with a key"):
        memory.start_trajectory("talk", user="anna", exist_ok=True)
    with pytest.raises(NotFound):
        memory.trajectory("nobody's")
    assert memory.storage.trajectories.count() == 0


def test_the_application_goes_on_with_the_task_of_a_user(backend: Any) -> None:
    memory = backend.open(embedding_provider=None).acting_as(Principal.application())
    task = memory.start_trajectory("talk", user="anna", key="chat 1")
    assert memory.trajectory("chat 1") == memory.start_trajectory("talk", user="anna", key="chat 1", exist_ok=True)
    turn = memory.append_turn(memory.current_scope(task.trajectory_id).scope_id, role="user", content="hello")
    assert memory.delete_turn(turn.turn_id) == turn


def test_a_task_of_others_is_not_given_away(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    anna, bo = (memory.acting_as(Principal.user(name)) for name in ("anna", "bo"))
    task = anna.start_trajectory("talk", key="chat 1")
    assert anna.trajectory("chat 1") == anna.start_trajectory("talk", key="chat 1", exist_ok=True) == task
    with pytest.raises(NotFound):
        bo.trajectory("chat 1")
    with pytest.raises(Conflict, match="a task has this key"):
        bo.start_trajectory("talk", key="chat 1", exist_ok=True)
    anna.access.grant(to="bo", on=task.trajectory_id, right="read")
    with pytest.raises(PermissionDenied):
        bo.start_trajectory("talk", key="chat 1", exist_ok=True)


@needs("sharing")
def test_of_many_that_start_at_once_one_does(backend: Any) -> None:
    handles = [backend.open(embedding_provider=None) for _ in range(2)]
    start = [partial(each.start_trajectory, "talk", user="anna", key="chat 1", exist_ok=True) for each in handles] * 4
    started = at_once(start)
    assert len({task.trajectory_id for task in started}) == 1
    assert handles[0].storage.trajectories.count() == 1


def test_a_task_that_is_gone_gives_its_key_back(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    task = memory.start_trajectory("talk", user="anna", key="chat 1")
    memory.storage.trajectories.delete(task.trajectory_id)
    with pytest.raises(NotFound):
        memory.trajectory("chat 1")
    again = memory.start_trajectory("talk again", user="anna", key="chat 1", exist_ok=True)
    assert (again.trajectory_id, again.goal) == (task.trajectory_id, "talk again")


def test_a_key_is_taken_with_the_rest_of_a_transaction(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)

    def start_and_fail() -> None:
        with memory.transaction():
            memory.start_trajectory("talk", user="anna", key="chat 1")
            raise KeyError

    with pytest.raises(KeyError):
        start_and_fail()
    with pytest.raises(NotFound):
        memory.trajectory("chat 1")
    assert memory.start_trajectory("talk", user="anna", key="chat 1") == memory.trajectory("chat 1")
