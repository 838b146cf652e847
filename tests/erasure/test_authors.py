"""Turns that a user wrote into the tasks of others go with their author."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import policy
from support.erasure.byte_search import searched
from support.erasure.shared_tasks import ANA, BEN, WORDS, contents, shared_task
from support.memories import FACT

import caliber
from caliber.model import Principal


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
    left = [each for each in before if elsewhere.goal in each or "AB negative" not in each]
    assert knowledge(memory) == sorted([*left, task.goal])
    assert not report.proven
    assert report.redacted["note"] == 1
    assert "artifacts (1), notes (2) of tasks that the subject wrote in" in report.remaining[0]


def test_what_was_learnt_from_other_turns_of_the_task_is_clear(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    for each in (host, guest):
        each.remember([{"role": "user", "content": "I like chess."}], task=task.trajectory_id)
    assert memory.forget(user=BEN).proven
    assert len(knowledge(memory)) == 1


def test_what_a_guest_made_without_a_turn_goes_with_it(backend: Any, tmp_path: Any) -> None:
    memory = backend.open(memories=[FACT])
    host, guest, task = shared_task(memory)
    scope = host.current_scope(task.trajectory_id).scope_id
    kept: dict[str, Any] = {"artifact_type": "fact", "extraction_method": "explicit"}
    fact: dict[str, Any] = {"kind": "claim", "trajectory": task.trajectory_id}
    about: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}
    own = host.create_artifact(scope, content="We leave on Monday.", **kept)
    made = guest.create_artifact(scope, content="My blood type is AB negative.", **kept)
    other = guest.create_artifact(scope, content="I am AB negative.", **kept)
    later = host.artifacts.supersede(other.artifact_id, content="We leave by train.")
    last = guest.artifacts.supersede(own.artifact_id, content="We leave when my AB negative blood is there.")
    both = guest.create_artifact(scope, content="We are three.", **kept)
    host.create_artifact(scope, content="We are three.", **kept)
    host.records("fact").insert(subject="trip", content="We take the boat.", **fact)
    guest.records("fact").insert(subject="blood", content="I am AB negative.", **fact)
    memory.records("fact").insert(subject="trip", content="We take a taxi.", **fact)
    guest.add_note(**about, content="My blood is AB negative.", source_trajectory_ids=[task.trajectory_id])
    ben = memory.identities.resolve(BEN).id
    assert [each.author_id for each in (own, made, other, later, last, both)] == [None, ben, ben, None, ben, ben]

    report = memory.forget(user=BEN)

    assert not report.findings
    assert "artifacts (3) of tasks that the subject wrote in" in report.remaining[0], "its host may repeat its words"
    assert knowledge(memory) == ["We are three.", "We leave by train.", "We leave on Monday."]
    admin = memory.acting_as(Principal.admin())
    assert sorted(each.content for each in admin.records("fact").find()) == ["We take a taxi.", "We take the boat."]
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_an_artifact_that_the_host_repeats_with_its_key_is_the_hosts(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    scope = host.current_scope(task.trajectory_id).scope_id
    kept: dict[str, Any] = {"artifact_type": "fact", "extraction_method": "explicit", "idempotency_key": "one"}
    made = guest.create_artifact(scope, content="We are three.", **kept)
    assert guest.create_artifact(scope, content="We are three.", **kept) == made
    again = host.create_artifact(scope, content="We are three.", **kept)
    assert (again.artifact_id, again.author_id) == (made.artifact_id, None)
    assert guest.create_artifact(scope, content="We are three.", **kept) == again
    assert memory.forget(user=BEN).proven
    assert knowledge(memory) == ["We are three."]


def test_what_an_agent_made_in_the_task_of_another_goes_with_it(memory: caliber.Caliber) -> None:
    planner, writer = (memory.acting_as(Principal.agent(name)) for name in ("planner", "writer"))
    task = planner.start_trajectory("an open task")
    scope = planner.current_scope(task.trajectory_id).scope_id
    kept: dict[str, Any] = {"artifact_type": "fact", "extraction_method": "explicit"}
    author = memory.identities.resolve("writer", kind="agent")
    for agent, content, expected in ((planner, "first", None), (writer, "second", author.id)):
        said = agent.append_turn(scope, role="assistant", content=content)
        made = agent.create_artifact(scope, content=content, **kept)
        assert (said.author_id, made.author_id) == (expected, expected)
    assert not memory.acting_as(Principal.admin()).forget(entity=author).findings
    assert contents(memory) == knowledge(memory) == ["first"]


def test_a_second_erasure_knows_what_the_first_one_left(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    about: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}
    guest.append_turn(host.current_scope(task.trajectory_id).scope_id, role="user", content="I have AB negative blood!")
    notes = [
        host.add_note(**about, content=each, source_trajectory_ids=[task.trajectory_id])
        for each in ("His blood is of a rare type.", "He is of the rarest type.")
    ]
    admin = memory.acting_as(Principal.admin())
    assert "notes (2) of tasks that the subject" in memory.forget(user=BEN).remaining[0]
    for _ in range(2):
        report = memory.forget(user=BEN)
        assert not report.proven
        assert "notes (2) that an earlier erasure left" in report.remaining[0]
    host.delete_note(notes[0].note_id)
    admin.storage.notes.delete(notes[0].note_id)
    assert "notes (1) that an earlier erasure left" in memory.forget(user=BEN).remaining[0]
    (first, *_) = sorted(admin.storage.erasures.all(), key=lambda each: each.begun_at)
    assert set(first.unread) == {each.note_id for each in notes}
    admin.storage.erasures.update(first.erasure_id, unread=())
    assert memory.forget(user=BEN).proven


def test_earlier_contents_go_with_the_author_of_a_turn_that_is_there_no_more(backend: Any, tmp_path: Any) -> None:
    memory = backend.open()
    host, guest, task = shared_task(memory)
    admin, scope = memory.acting_as(Principal.admin()), host.current_scope(task.trajectory_id)
    about: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}
    own = host.append_turn(scope.scope_id, role="user", content="We leave on Monday.")
    first, second = (
        guest.append_turn(scope.scope_id, role="user", content=each)
        for each in ("My blood type is AB negative.", "It is the AB negative type of my mother.")
    )
    kept = [own, host.add_note(**about, content="He said: my blood type is AB negative", user=ANA)]
    kept[1] = admin.storage.notes.update(kept[1].note_id, source_trajectory_ids=(task.trajectory_id,))
    host.assemble_context(task.trajectory_id)
    memory.flush()
    admin.storage.turns.update(own.turn_id, content="We leave on Tuesday.")
    admin.storage.turns.update(first.turn_id, content="It is no matter.")
    host.update_note(kept[1].note_id, content="He told us something rare.")
    admin.storage.turns.delete(second.turn_id)
    assert admin.storage.content_versions.count() == 4

    report = memory.forget(user=BEN)

    assert not report.findings
    assert "notes (1) of tasks that the subject" in report.remaining[0]
    assert contents(memory) == ["We leave on Tuesday."]
    assert admin.storage.content_versions.count() == 1
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_a_merged_note_keeps_what_others_said(backend: Any, tmp_path: Any) -> None:
    memory = backend.open()
    host, guest, task = shared_task(memory)
    about: dict[str, Any] = {"entity": "trip", "entity_type": "thing", "confidence": 0.9}
    scope = host.current_scope(task.trajectory_id).scope_id
    other = memory.start_trajectory("count the guests", user="carl@example.com")
    guest.append_turn(scope, role="user", content="I need AB negative blood. Is that clear?\nThe harbour is closed!")
    memory.append_turn(memory.current_scope(other.trajectory_id).scope_id, role="user", content="Carl brings his drum.")
    tasks = [task.trajectory_id, other.trajectory_id]
    merged = memory.add_note(
        **about,
        content="We leave on Monday. I need AB negative blood.\n- the harbour is closed\nCarl brings his drum.",
        source_trajectory_ids=tasks,
    )
    alone = memory.add_note(**about, content="The harbour is closed. Is that clear?", source_trajectory_ids=tasks)

    report = memory.forget(user=BEN)

    admin = memory.acting_as(Principal.admin())
    (left,) = admin.storage.notes.all()
    assert (left.note_id, left.content) == (merged.note_id, "We leave on Monday.\nCarl brings his drum.")
    assert left.source_trajectory_ids == tuple(tasks)
    assert (report.erased["note"], report.redacted["note"]) == (1, 1)
    assert "notes (1) of tasks that the subject" in report.remaining[0]
    assert not list(searched(backend, memory, tmp_path, [WORDS, b"harbour"]))
    assert admin.admin.verify() == []

    report = memory.forget(user="carl@example.com")

    assert [each.content for each in admin.storage.notes.all()] == ["We leave on Monday."]
    assert alone.note_id != left.note_id
    assert "notes (1) of tasks that the subject" in report.remaining[0]
    assert not list(searched(backend, memory, tmp_path, [b"his drum"]))


def test_equal_words_of_another_user_stay_whole(memory: caliber.Caliber) -> None:
    ana, ben = (memory.acting_as(Principal.user(name)) for name in (ANA, BEN))
    said = {"entity": "harbour", "entity_type": "place", "note_type": "fact", "confidence": 0.9}
    note = ana.add_note(content="The harbour is closed today", **said)
    ana.update_note(note.note_id, content="The harbour is open")
    grant = ana.access.grant(to="carl@example.com", on=note.note_id)
    ben.add_note(content="The harbour is closed today.", **said)
    ben.add_note(content=f"see {note.note_id} and {grant.grant_id}", **said)
    logged = memory.acting_as(Principal.admin()).storage.events
    kept = {each.event_id: each.payload for each in logged.all() if str(each.event_type) in ("note_update", "grant")}
    assert len(kept) > 1

    assert memory.forget(user=BEN).proven

    assert {each.event_id: each.payload for each in logged.all() if each.event_id in kept} == kept
    assert ana.undo_note(note.note_id).content == "The harbour is closed today"


@pytest.mark.parametrize("word", ["Active.", "turn", "scope"])
def test_a_word_of_a_guest_damages_no_checkpoint(memory: caliber.Caliber, word: str) -> None:
    host, guest, task = shared_task(memory)
    scope = host.current_scope(task.trajectory_id)
    host.append_turn(scope.scope_id, role="user", content="We leave on Monday.")
    guest.append_turn(scope.scope_id, role="user", content=word if word != "scope" else f"see {scope.scope_id}")
    pcp = memory.acting_as(Principal.admin()).pcp
    made = pcp.checkpoint(task.trajectory_id)
    host.append_turn(scope.scope_id, role="user", content="later")
    assert memory.forget(user=BEN).proven
    assert pcp.recover(task.trajectory_id, made.checkpoint_id).checkpoint_id == made.checkpoint_id
    assert contents(memory).count("We leave on Monday.") == 1
