"""Merged users are one person: facts, corrections, windows and grants under every name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import caliber
from caliber.model import Principal

OLD, NEW = "guest-17", "maria@example.com"
PAIRS = list(itertools.product((OLD, NEW), repeat=2))


@pytest.fixture
def handles(memory: caliber.Caliber) -> dict[str, caliber.Caliber]:
    """Handles of the user under both names, merged after each has taught a fact."""
    out = {name: memory.acting_as(Principal.user(name)) for name in (OLD, NEW)}
    out[OLD].remember([{"role": "user", "content": "I'm allergic to nuts."}])
    out[NEW].remember([{"role": "user", "content": "I live in Berlin."}])
    memory.acting_as(Principal.admin()).identities.merge(OLD, NEW)
    return out


@pytest.mark.parametrize("name", [OLD, NEW])
def test_facts_under_either_name_are_in_windows_of_either(handles: dict[str, caliber.Caliber], name: str) -> None:
    task = handles[name].start_trajectory("where do I live, and what am I allergic to?")
    window = handles[name].assemble_context(task.trajectory_id)
    assert "allergic to nuts" in window.text
    assert "lives in Berlin" in window.text


@pytest.mark.parametrize(("author", "corrector"), PAIRS)
def test_facts_are_corrected_under_either_name(
    handles: dict[str, caliber.Caliber], author: str, corrector: str
) -> None:
    handles[author].remember([{"role": "user", "content": "My dog is called Rex."}])
    for hit in handles[corrector].search("nuts Berlin Rex", kinds=["note"]).hits:
        corrected = handles[corrector].update_note(hit.id, content=f"{hit.content}!")
        assert handles[corrector].undo_note(corrected.note_id).content == hit.content
        handles[corrector].delete_note(hit.id)
    assert not handles[author].search("nuts Berlin Rex", kinds=["note"]).hits


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_notes_of_one_name_are_the_others_too(handles: dict[str, caliber.Caliber], author: str, reader: str) -> None:
    note = handles[author].add_note(entity="the car", entity_type="thing", content="is blue", confidence=0.9)
    assert handles[reader].update_note(note.note_id, content="is red").content == "is red"
    assert handles[reader].end_note(note.note_id).valid_until is not None


@pytest.mark.parametrize(("author", "reader"), PAIRS)
def test_windows_of_one_name_are_read_under_the_other(
    handles: dict[str, caliber.Caliber], author: str, reader: str
) -> None:
    task = handles[author].start_trajectory("where do I live?")
    window = handles[author].assemble_context(task.trajectory_id)
    handles[author].flush()
    assert handles[reader].replay(window.window_id).text == window.text
    assert handles[reader].explain(window.window_id) is not None


@pytest.mark.parametrize(("grantee", "reader"), PAIRS)
def test_grants_to_one_name_hold_for_the_other(
    memory: caliber.Caliber, handles: dict[str, caliber.Caliber], grantee: str, reader: str
) -> None:
    host = memory.acting_as(Principal.user("host@example.com"))
    task = host.start_trajectory("plan the trip")
    scope = host.current_scope(task.trajectory_id)
    host.access.grant(to=grantee, on=task.trajectory_id, right="write")
    turn = handles[reader].append_turn(scope.scope_id, role="user", content="We leave on Monday.")
    assert handles[reader].get(turn.turn_id) == turn
    note = handles[grantee].add_note(entity="z", entity_type="thing", content="is shared", confidence=0.9)
    grant = handles[reader].access.grant(to="host@example.com", on=note.note_id)
    assert host.get(note.note_id).content == "is shared"
    handles[reader].access.revoke(grant.grant_id)


def test_a_stranger_corrects_nothing(memory: caliber.Caliber, handles: dict[str, caliber.Caliber]) -> None:
    note: Any = handles[OLD].add_note(entity="z", entity_type="thing", content="open", confidence=0.9)
    handles[NEW].access.grant(to="eve", on=note.note_id)
    eve = memory.acting_as(Principal.user("eve"))
    with pytest.raises(caliber.model.errors.PermissionDenied):
        eve.update_note(note.note_id, content="mine")
