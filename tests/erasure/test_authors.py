"""Turns that a user wrote into the tasks of others go with their author."""

from __future__ import annotations

from typing import Any

from support.byte_search import searched

import caliber
from caliber.model import Principal

ANA, BEN = "ana@example.com", "ben@example.com"
WORDS = b"ab negative"


def contents(memory: caliber.Caliber) -> list[str]:
    """Return the contents of all turns that are stored."""
    return [turn.text for turn in memory.acting_as(Principal.admin()).storage.turns.all()]


def shared_task(memory: caliber.Caliber, guest: str = BEN) -> tuple[caliber.Caliber, caliber.Caliber, Any]:
    """Return handles of a host and a guest, and the host's task that the guest may write to."""
    host, other = (memory.acting_as(Principal.user(name)) for name in (ANA, guest))
    task = host.start_trajectory("plan the trip")
    host.access.grant(to=guest, on=task.trajectory_id, right="write")
    return host, other, task


def test_turns_in_the_task_of_another_go_with_their_author(backend: Any, tmp_path: Any) -> None:
    memory = backend.open()
    host, guest, task = shared_task(memory)
    scope = host.current_scope(task.trajectory_id)
    own = host.append_turn(scope.scope_id, role="user", content="We leave on Monday.")
    written = guest.append_turn(scope.scope_id, role="user", content="My blood type is AB negative.")
    assert own.author_id is None
    assert written.author_id == memory.identities.resolve(BEN).id
    assert host.get(written.turn_id) == written

    assert memory.forget(user=BEN).proven

    assert contents(memory) == ["We leave on Monday."]
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_turns_that_the_application_remembers_for_a_guest_go_too(memory: caliber.Caliber) -> None:
    _, guest, task = shared_task(memory)
    memory.remember([{"role": "user", "content": "We leave on Monday."}], user=ANA, task=task.trajectory_id)
    memory.remember([{"role": "user", "content": "I like surfing."}], user=BEN, task=task.trajectory_id)
    guest.remember([{"role": "user", "content": "I like chess."}], task=task.trajectory_id)
    assert memory.forget(user=BEN).proven
    assert contents(memory) == ["We leave on Monday."]


def test_turns_of_an_author_who_was_merged_go_with_the_one_person(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory, "benny-old")
    scope = host.current_scope(task.trajectory_id)
    guest.append_turn(scope.scope_id, role="user", content="My blood type is AB negative.")
    memory.acting_as(Principal.admin()).identities.merge("benny-old", BEN)
    guest.append_turn(scope.scope_id, role="user", content="I like surfing.")
    assert memory.forget(user=BEN).proven
    assert contents(memory) == []


def test_an_agent_is_the_author_in_a_task_of_others_only(memory: caliber.Caliber) -> None:
    planner, writer = (memory.acting_as(Principal.agent(name)) for name in ("planner", "writer"))
    task = planner.start_trajectory("an open task")
    scope = planner.current_scope(task.trajectory_id)
    assert planner.append_turn(scope.scope_id, role="assistant", content="first").author_id is None
    written = writer.append_turn(scope.scope_id, role="assistant", content="second")
    assert written.author_id == memory.identities.resolve("writer", kind="agent").id
