"""Rules of learning over labelled chat: precision and corrections stay above their goals; recall is stated."""

from __future__ import annotations

from typing import Any

import pytest
from support import remember_run, remember_score

import caliber
from caliber.learning.rules.reading import Reader


def test_labelled_chat(memory: caliber.Caliber, record_property: Any) -> None:
    talks = remember_score.conversations()
    result = remember_score.score(talks, remember_run.answers(memory, talks))
    record_property("score", str(result))
    print(result)
    assert result.precision >= 0.9, result.faults
    assert result.corrections >= 0.9, result.faults
    assert result.recall >= 0.5, result.faults


def read(*texts: str) -> list[str]:
    """Return the statements of a conversation, an end with a minus before its value."""
    reader = Reader()
    out = []
    for text in texts:
        for found in reader.read(text):
            content = getattr(found, "content", None)
            if content is None:
                continue
            person = found.person  # type: ignore[union-attr]
            who = "" if person is None else f"{person.name or person.role}: "
            ends = f"-{found.attribute} {found.value}".strip()  # type: ignore[union-attr]
            out.append(who + (ends if found.ends else content))  # type: ignore[union-attr]
    return out


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("My name is Ana, I'm 34 years old.", ["is called Ana", "is 34 years old"]),
        ("I'm Carlos, 41, from Valencia", ["is called Carlos", "is 41 years old", "comes from Valencia"]),
        ("I grew up in Chicago but live in Denver now", ["grew up in Chicago", "lives in Denver"]),
        ("I work at Siemens as an engineer", ["works at Siemens", "works as an engineer"]),
        ("I'm a nurse at Charité", ["works as a nurse", "works at Charité"]),
        ("I left Siemens", ["-home Siemens"]),
        ("I no longer work at Siemens", ["-employer Siemens"]),
        ("I'm allergic to peanuts and shellfish", ["is allergic to peanuts", "is allergic to shellfish"]),
        ("I love hiking, swimming and jazz.", ["likes hiking, swimming and jazz"]),
        ("I don't like coffee anymore", ["-likes coffee"]),
        ("I'm not vegetarian any more", ["-diet vegetarian"]),
        ("I speak English and Polish", ["speaks English", "speaks Polish"]),
        ("My birthday is on 3 May.", ["has birthday on 3 May"]),
        ("My favourite band is Fleetwood Mac", ["favorite band: Fleetwood Mac"]),
        ("my dog is called Pixel", ["dog is called Pixel"]),
        ("my sister is vegan", ["sister: is vegan"]),
        ("I'm vegan, what can I cook?", ["is vegan"]),
        ("my timezone is CET", ["is in time zone CET"]),
        ("I got married last Saturday!!", ["is married"]),
    ],
)
def test_statements_are_read(text: str, facts: list[str]) -> None:
    assert read(text) == facts


@pytest.mark.parametrize(
    "text",
    [
        "Remember that.",
        "Am I allergic to nuts?",
        "Would you say I live in Rome?",
        "Imagine I live in Rome.",
        "My boss says I work at Siemens.",
        'He wrote: "I live in Rome and I love it".',
        "> I live in Rome",
        "```\nI live in Rome\n```",
        "I live in Rome, just kidding",
        "Write a poem: I live in Rome.",
        "I think I'm allergic to nuts",
        "I'm going to move to Rome",
        "I'd like a coffee",
        "I love it",
        "I like the first option",
        "I'm a bit tired",
        "I'm a huge mess",
        "I'm at the office",
        "I moved to the next chapter",
        "I moved to Linux",
        "I work from home on Fridays",
        "I'm allergic to Mondays",
        "I am in Berlin this week for a conference",
        "I'm 5 minutes away",
        "I have a meeting at 3",
        "Call me maybe",
    ],
)
def test_junk_is_not_read(text: str) -> None:
    assert read(text) == []


def test_pronouns_stand_for_the_person_spoken_of_last() -> None:
    assert read("My daughter Zosia is 6.", "She loves dinosaurs", "My brother is a chef. He lives in Rome") == [
        "daughter is called Zosia",
        "Zosia: is 6 years old",
        "Zosia: likes dinosaurs",
        "brother: works as a chef",
        "brother: lives in Rome",
    ]
    assert read("She loves dinosaurs") == []


@pytest.mark.parametrize(
    ("before", "after", "decision"),
    [
        ("I work at Google", "I got fired", ("end", "works at Google")),
        ("I work at Google", "I'm not at Google any more", ("end", "works at Google")),
        ("I'm a nurse", "I quit my job", ("end", "works as a nurse")),
        ("I'm a teacher", "I retired last month", ("update", "is retired")),
        ("my son Leo is 7", "Leo is 8 now", ("update", "is 8 years old")),
        ("my birthday is 15 May", "correction: 16 May", ("update", "has birthday on 16 May")),
        ("I moved to Oslo", "wait no, I meant Bergen", ("update", "lives in Bergen")),
        ("I live in Berlin", "I'm back in Dublin now", ("update", "lives in Dublin")),
        ("I live in Berlin", "Actually no, it's Potsdam", ("update", "lives in Potsdam")),
        ("I'm allergic to nuts", "turns out I'm not allergic to nuts after all", ("end", "is allergic to nuts")),
        ("I'm vegan", "I eat meat again", ("end", "is vegan")),
        ("I have a cat called Tom", "I don't have a cat anymore", ("end", "cat is called Tom")),
        ("my dog is called Rex", "my dog died last week", ("end", "dog is called Rex")),
        ("I hate coffee", "I actually like coffee now", ("update", "likes coffee")),
        ("I love tea and jazz", "I don't like jazz anymore", ("update", "likes tea")),
        ("I take ibuprofen", "I stopped taking ibuprofen", ("end", "takes ibuprofen")),
        ("my sister lives in Rome", "she moved to Milan", ("update", "lives in Milan")),
        ("My favourite colour is blue", "my favorite color is green now", ("update", "favorite color: green")),
    ],
)
def test_corrections_are_read(memory: caliber.Caliber, before: str, after: str, decision: tuple[str, str]) -> None:
    memory.remember([{"role": "user", "content": before}], user="maria")
    learned = memory.remember([{"role": "user", "content": after}], user="maria")
    assert [(each.action.value, each.statement) for each in learned.decisions] == [decision]


@pytest.mark.parametrize("text", ["no, thanks", "Sorry, Bob", "no, I meant that", "actually, never mind", "I meant it"])
def test_what_corrects_nothing_changes_nothing(memory: caliber.Caliber, text: str) -> None:
    memory.remember([{"role": "user", "content": "My name is Maria and I live in Berlin"}], user="maria")
    learned = memory.remember([{"role": "user", "content": text}], user="maria")
    assert learned.updated + learned.added + learned.ended == ()
