"""Forgetting of learnt facts with the person that they are about, also where another user taught them."""

from __future__ import annotations

from typing import Any

from support.providers import ScriptedLearner

import caliber
from caliber.llm.facts import ExtractedFact
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
