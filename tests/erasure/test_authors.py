"""Turns that a user wrote into the tasks of others go with their author."""

from __future__ import annotations

from typing import Any

from support.byte_search import searched
from support.configs import policy

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


DONE: dict[str, Any] = {"status": "success", "summary": "done"}


def knowledge(memory: caliber.Caliber) -> list[str]:
    """Return the contents of all notes and artifacts that are stored."""
    storage = memory.acting_as(Principal.admin()).storage
    return sorted([note.content for note in storage.notes.all()] + [each.text for each in storage.artifacts.all()])


def test_what_rules_drew_from_the_turns_of_a_guest_goes_with_them(backend: Any, tmp_path: Any) -> None:
    memory = backend.open(
        policies=[
            policy("scope_close", {"action": "extract_artifacts", "target": "turn_buffer"}),
            policy("task_end", {"action": "consolidate_notes", "target": "trajectory"}, name="end"),
        ]
    )
    host, guest, task = shared_task(memory)
    scope = host.current_scope(task.trajectory_id)
    host.append_turn(scope.scope_id, role="user", content="Decision: we always leave on a Monday morning.")
    guest.append_turn(scope.scope_id, role="user", content="Decision: my blood type is AB negative.")
    host.complete_trajectory(task.trajectory_id, **DONE)
    assert sum("AB negative" in each for each in knowledge(memory)) == 2
    assert sum("Monday" in each for each in knowledge(memory)) == 2

    report = memory.forget(user=BEN)

    assert not any("AB negative" in each for each in knowledge(memory))
    assert sum("Monday" in each for each in knowledge(memory)) == 2
    assert not report.findings
    # Whether a note says it in other words is for people to judge.
    assert not report.proven
    assert "of tasks that the subject wrote in" in report.remaining[0]
    assert "notes (" in report.remaining[0]
    assert "artifacts" not in report.remaining[0], "these have a source turn"
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_notes_and_artifacts_of_no_turn_go_if_they_repeat_a_guest_and_are_reported_else(
    memory: caliber.Caliber,
) -> None:
    host, guest, task = shared_task(memory)
    elsewhere = host.start_trajectory("paint the house")
    guest.append_turn(host.current_scope(task.trajectory_id).scope_id, role="user", content="I have AB negative blood!")
    about: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}
    kept: dict[str, Any] = {"artifact_type": "fact", "extraction_method": "explicit"}
    for each in (task, elsewhere):
        source = [each.trajectory_id]
        scope = host.current_scope(each.trajectory_id).scope_id
        host.create_artifact(scope, content=f"Ben says: i have AB negative  blood ({each.goal})", **kept)
        host.create_artifact(scope, content=f"rare blood ({each.goal})", **kept)
        host.add_note(**about, content=f"I have AB negative blood. {each.goal}", source_trajectory_ids=source)
        host.add_note(**about, content=f"he is of a rare type: {each.goal}", source_trajectory_ids=source)
    before = knowledge(memory)
    assert len(before) == 8
    report = memory.forget(user=BEN)
    assert knowledge(memory) == [each for each in before if elsewhere.goal in each or "AB negative" not in each]
    assert not report.proven
    assert "artifacts (1), notes (1) of tasks that the subject wrote in" in report.remaining[0]


def test_what_was_learnt_from_other_turns_of_the_task_is_clear(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    for each in (host, guest):
        each.remember([{"role": "user", "content": "I like chess."}], task=task.trajectory_id)
    assert memory.forget(user=BEN).proven
    assert len(knowledge(memory)) == 1
