"""Notes that are drawn from a task: only the user's own words teach about the user, and what ended stays ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.configs import policy

import caliber
from caliber.model.time import FixedClock, from_us

CONSOLIDATE = policy(
    "task_end",
    {"action": "extract_artifacts", "target": "turn_buffer"},
    {"action": "consolidate_notes", "target": "trajectory"},
)
SUMMARIZE = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def memory(backend: Any, clock: FixedClock) -> Any:
    return backend.open(clock=clock, policies=[CONSOLIDATE, SUMMARIZE | {"name": "summing"}])


def drawn(memory: Any, *turns: tuple[str, str], **names: str) -> list[str]:
    """Return the notes that hold after a task of one user with these turns."""
    ana = memory.acting_as(caliber.Principal.user("ana"))
    task = ana.start_trajectory("talk of dinner").trajectory_id
    scope = ana.current_scope(task).scope_id
    for role, text in turns:
        more = {"tool_call_id": "1"} if role == "tool" else {}
        ana.append_turn(scope, role=role, content=text, name=names.get(role), **more)
    ana.close_scope(scope)
    ana.complete_trajectory(task, status="success", summary="")
    return [note.content for note in ana.records("note").find(valid=True)]


@pytest.mark.parametrize("role", ["assistant", "tool", "system"])
def test_nobody_else_states_a_preference_of_the_user(memory: Any, role: str) -> None:
    notes = drawn(memory, ("user", "What goes with fish?"), (role, "I prefer a dry Riesling. My favourite is Chablis."))
    assert not [note for note in notes if "Riesling" in note or "Chablis" in note]


def test_the_user_does(memory: Any) -> None:
    notes = drawn(memory, ("user", "I prefer a dry Riesling with fish."), ("assistant", "I prefer beer with fish."))
    assert notes == ["I prefer a dry Riesling with fish."]


def test_a_guest_does_not_under_a_name_of_his_own(memory: Any) -> None:
    turns = ("user", "I prefer a dry Riesling with fish."), ("assistant", "Noted.")
    assert drawn(memory, *turns, user="bob") == []
    assert drawn(memory, *turns, user="Ana") == ["I prefer a dry Riesling with fish."]


@pytest.mark.parametrize("ended", ["end_note", "delete_note"])
def test_what_is_decided_again_after_it_ended_holds(memory: Any, clock: FixedClock, ended: str) -> None:
    said = "user", "We decided to always deploy pgbouncer on Mondays."
    (content,) = drawn(memory, said)
    (note,) = memory.records("note").find(valid=True)
    getattr(memory.acting_as(caliber.Principal.user("ana")), ended)(note.note_id)
    clock.advance(us=1_000_000)
    assert memory.records("note").find(valid=True) == []
    assert drawn(memory, said) == [content]


def test_a_note_of_another_namespace_is_left_alone(memory: Any, clock: FixedClock) -> None:
    drawn(memory, ("user", "We decided to always deploy pgbouncer on Mondays."))
    (note,) = memory.records("note").find(valid=True)
    ana = memory.acting_as(caliber.Principal.user("ana"))
    ana.update_note(note.note_id, namespace="work")
    clock.advance(us=1_000_000)
    assert len(drawn(memory, ("user", "We decided to always deploy pgbouncer on Tuesdays."))) == 2


def test_a_note_that_is_about_to_end_takes_nothing_once_it_has(memory: Any, clock: FixedClock) -> None:
    drawn(memory, ("user", "We decided to always deploy pgbouncer on Mondays."))
    (note,) = memory.records("note").find(valid=True)
    until = from_us(clock.now_us()) + timedelta(days=1)
    memory.acting_as(caliber.Principal.user("ana")).update_note(note.note_id, valid_until=until)
    clock.advance(us=2 * 86_400_000_000)
    notes = drawn(memory, ("user", "We decided to always deploy pgbouncer on Tuesdays."))
    assert notes == ["We decided to always deploy pgbouncer on Tuesdays."]
