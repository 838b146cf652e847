"""Forgetting of learnt facts with the person that they are about, also where another user taught them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend
from support.providers import ScriptedLearner

import caliber
from caliber.llm.protocols import ExtractedFact
from caliber.model import Principal
from caliber.model.learning import PersonAttribute


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def contents(memory: caliber.Caliber) -> set[str]:
    """Return the contents of every note that is stored, in force or not."""
    return {
        note.content
        for person in ("maria@example.com", "bob", "Anna", "bob's sister", "Ben Miller")
        for note in memory.storage.notes.find_by_entity(person, "person")
    }


def test_the_user_takes_along_what_the_user_taught(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin. My sister Anna lives in Porto."), user="maria@example.com")
    memory.remember(said("I moved to Lisbon."), user="maria@example.com")
    memory.remember(said("I live in Rome."), user="bob")
    assert contents(memory) >= {"lives in Berlin", "lives in Lisbon", "lives in Porto", "lives in Rome"}
    report = memory.forget(user="maria@example.com")
    assert report.proven
    assert contents(memory) == {"lives in Rome"}
    assert memory.storage.person_facts.count() == 1


def test_facts_that_others_taught_about_a_person_go_too(backend: Any) -> None:
    provider = ScriptedLearner()
    memory = backend.open(summarization_provider=provider)
    memory.identities.resolve("maria@example.com")
    provider.facts = lambda turns: [
        ExtractedFact(
            "maria@example.com", PersonAttribute.HOME, "lives in Oslo", "lives in Oslo", turns[-1].turn_number
        ),
        ExtractedFact("user", PersonAttribute.LIKES, "jazz", "likes jazz", turns[-1].turn_number),
    ]
    memory.remember(said("maria@example.com lives in Oslo, and jazz is mine"), user="bob")
    assert contents(memory) == {"lives in Oslo", "likes jazz"}
    assert memory.forget(user="maria@example.com").proven
    assert contents(memory) == {"likes jazz"}


def test_a_relative_of_another_user_stays_and_goes_with_that_user(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Lima."), user="Anna")
    memory.remember(said("My sister Anna lives in Porto. I live in Rome."), user="bob")
    report = memory.forget(user="Anna")
    assert contents(memory) == {"lives in Rome", "lives in Porto", "sister is called Anna"}
    assert not report.proven, "Anna is still named: a sister of bob"
    assert "may name somebody else" in report.remaining[0]
    memory.forget(user="bob")
    assert contents(memory) == set()


def test_relatives_of_two_users_are_two_persons(memory: caliber.Caliber) -> None:
    for user in ("bob", "maria@example.com"):
        memory.remember(said("My sister Anna lives in Porto."), user=user)
    people = {fact.person for fact in memory.storage.person_facts.all() if fact.value == "porto"}
    assert len(people) == 2
    assert caliber.EntityRef.user("Anna") not in people


def test_a_relative_is_forgotten_alone_by_reference(memory: caliber.Caliber) -> None:
    memory.remember(said("My sister Anna lives in Porto. I live in Rome."), user="bob")
    (anna,) = {fact.person for fact in memory.storage.person_facts.all() if fact.value == "porto"}
    memory.forget(entity=anna)
    assert "lives in Porto" not in contents(memory)
    assert "lives in Rome" in contents(memory)


def test_a_relative_whom_the_application_merged_goes_with_the_user(memory: caliber.Caliber) -> None:
    memory.remember(said("My sister Anna lives in Porto."), user="bob")
    (anna,) = {fact.person for fact in memory.storage.person_facts.all() if fact.value == "porto"}
    admin = memory.acting_as(caliber.Principal.admin())
    admin.identities.merge(anna, "anna@example.com")
    memory.remember(said("My sister Anna moved to Lisbon."), user="bob")
    assert {fact.person for fact in memory.storage.person_facts.all() if fact.value in ("porto", "lisbon")} == {
        admin.identities.resolve("anna@example.com")
    }
    memory.forget(user="anna@example.com")
    assert contents(memory).isdisjoint({"lives in Porto", "lives in Lisbon"})


def test_relatives_of_merged_users_are_one_person(memory: caliber.Caliber) -> None:
    memory.remember(said("My sister Anna lives in Porto."), user="bobby-old")
    memory.acting_as(caliber.Principal.admin()).identities.merge("bobby-old", "bob")
    learned = memory.remember(said("My sister Anna moved to Lisbon."), user="bob")
    assert [decision.action.value for decision in learned.decisions] == ["nothing", "update"]


def test_a_full_name_in_the_chat_of_another_goes(memory: caliber.Caliber) -> None:
    memory.identities.add("Ben Miller", "ben@example.com")
    memory.remember(said("My brother Ben Miller lives in Prague."), user="ana@example.com")
    assert memory.forget(user="ben@example.com").proven


def test_a_job_that_waits_is_forgotten_with_the_user(backend: Any) -> None:
    memory = backend.open(jobs__poll_ms=0)
    memory.remember(said("I live in Berlin."), user="maria@example.com", wait=False)
    assert memory.forget(user="maria@example.com").proven
    assert memory.jobs.run_due() == 0
    assert contents(memory) == set()
    assert memory.jobs.list(kind="learning") == []


# --- recovery --------------------------------------------------------------------------------------


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
