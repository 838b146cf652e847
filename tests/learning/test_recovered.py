"""Facts of turns that a recovery rolls back and brings back: what a user took back stays so. # C-137, docs/pcp.md"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend

import caliber
from caliber.model import Principal

TOLD = "I am allergic to nuts. My dog is called Rex."
DOG, NUTS = "dog is called Rex", "is allergic to nuts"
TAKEN_BACK: dict[str, tuple[Callable[[Any, Any, Any], Any], set[str]]] = {
    "nothing": (lambda ana, learned, nuts: None, {DOG, NUTS}),
    "the batch": (lambda ana, learned, nuts: ana.learning.undo(learned.learned_id), set()),
    "a deleted fact": (lambda ana, learned, nuts: ana.delete_note(nuts), {DOG}),
    "an ended fact": (lambda ana, learned, nuts: ana.end_note(nuts), {DOG}),
    "a changed fact": (lambda ana, learned, nuts: ana.update_note(nuts, content="eats nuts"), {DOG, "eats nuts"}),
}


def facts(memory: caliber.Caliber) -> set[str]:
    return {note.content for note in memory.records("note").find()}


def settled(memory: caliber.Caliber) -> None:
    while memory.jobs.run_due():
        pass
    memory.flush()


def test_what_a_user_took_back_does_not_return_with_a_recovery(backend: Backend) -> None:
    memory = backend.open(jobs__poll_ms=0)
    for number, (name, (take_back, left)) in enumerate(TAKEN_BACK.items()):
        ana = memory.acting_as(Principal.user(f"ana {number}"))
        task = ana.start_trajectory("talk").trajectory_id
        checkpoint = ana.pcp.checkpoint(task)
        learned = ana.remember([{"role": "user", "content": TOLD}], task=task)
        nuts = next(note.note_id for note in ana.records("note").find() if note.content == NUTS)
        take_back(ana, learned, nuts)
        assert facts(ana) == left, name
        recovery = ana.pcp.recover(task, checkpoint.checkpoint_id)
        settled(memory)
        assert DOG not in facts(ana), name
        ana.pcp.recover(task, recovery.before_id)
        settled(memory)
        assert facts(ana) == left, name


@pytest.mark.parametrize("told", [("I moved to Lisbon.", "I no longer live in Lisbon."), ("I live in Rome.",) * 2])
def test_turns_that_come_back_teach_in_their_order(backend: Backend, told: tuple[str, ...]) -> None:
    memory = backend.open(jobs__poll_ms=0)
    ana = memory.acting_as(Principal.user("ana"))
    task = ana.start_trajectory("talk").trajectory_id
    ana.remember([{"role": "user", "content": "I live in Porto."}], task=task)
    checkpoint = ana.pcp.checkpoint(task)
    for text in told:
        ana.remember([{"role": "user", "content": text}], task=task)
    before = {note.content for note in ana.records("note").find(valid=True)}
    recovery = ana.pcp.recover(task, checkpoint.checkpoint_id)
    ana.pcp.recover(task, recovery.before_id)
    settled(memory)
    assert {note.content for note in ana.records("note").find(valid=True)} == before
