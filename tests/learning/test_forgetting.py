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
        for person in ("maria@example.com", "bob", "Anna", "bob's sister")
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


def test_a_relative_by_name_is_forgotten_by_that_name(memory: caliber.Caliber) -> None:
    memory.remember(said("My sister Anna lives in Porto. I live in Rome."), user="bob")
    memory.forget(entity=caliber.EntityRef.user("Anna"))
    assert "lives in Porto" not in contents(memory)
    assert "lives in Rome" in contents(memory)


def test_a_job_that_waits_is_forgotten_with_the_user(backend: Any) -> None:
    memory = backend.open(jobs__poll_ms=0)
    memory.remember(said("I live in Berlin."), user="maria@example.com", wait=False)
    assert memory.forget(user="maria@example.com").proven
    assert memory.jobs.run_due() == 0
    assert contents(memory) == set()
    assert memory.jobs.list(kind="learning") == []
