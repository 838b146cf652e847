"""The sentence of a fact that has ended comes back by recall with a mark, beside what holds; others as they are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import caliber
from caliber.context.texts import OUTDATED_LEAD

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[caliber.Caliber]:
    kept = {"kind": "permanent"}
    config = caliber.profiles.chat_companion(
        tmp_path / "memory.db",
        embedding_provider=None,
        context_window_persistence=kept,
        retention={"windows_ms": "forever"},
    )
    with caliber.open(config, create=True) as opened:
        yield opened


def told(memory: caliber.Caliber, *texts: str, days: int, user: str = "ana") -> Any:
    """Return the facts that one conversation taught, some days ago, which is over."""
    at = NOW - dt.timedelta(days=days)
    task = memory.start_trajectory("talk", user=user).trajectory_id
    messages = [{"role": "user", "content": text, "occurred_at": at} for text in texts]
    return memory.remember(messages, task=task, user=user)


def asked(memory: caliber.Caliber, question: str, user: str = "ana") -> Any:
    task = memory.start_trajectory("a question", user=user).trajectory_id
    memory.remember([{"role": "user", "content": question}], user=user, task=task)
    return memory.assemble_context(task)


ENDED = [
    ("I live in Hamburg.", "I moved to Lisbon.", "Where do I live?", "lives in Lisbon"),
    ("I work at Zalando.", "I started a new job at Siemens.", "Where do I work?", "works at Siemens"),
    ("I'm allergic to peanuts.", "I'm no longer allergic to peanuts.", "What am I allergic to?", ""),
    ("My favorite color is blue.", "Forget that my favorite color is blue.", "What is my favorite color?", ""),
    ("I'm 34 years old.", "I just turned 35.", "How old am I, in years?", "is 35 years old"),
]


def test_sentences_that_no_longer_hold_are_marked(memory: caliber.Caliber) -> None:
    told(memory, *[before for before, *_ in ENDED], days=60)
    told(memory, *[after for _, after, *_ in ENDED], days=10)
    for before, after, question, holds in ENDED:
        window = asked(memory, question)
        assert f"{OUTDATED_LEAD}{before}" in window.text
        assert holds in window.text
        assert OUTDATED_LEAD + after not in window.text
        assert memory.replay(window.window_id, user="ana").text == window.text


def test_a_move_after_a_move_marks_the_sentences_of_both(memory: caliber.Caliber) -> None:
    for at, text in enumerate(("I live in Hamburg.", "I moved to Lisbon.", "I moved to Porto.")):
        told(memory, text, days=90 - 30 * at)
    text = asked(memory, "In which place do I live, where have I moved to?").text
    assert f"{OUTDATED_LEAD}I live in Hamburg." in text
    assert f"{OUTDATED_LEAD}I moved to Lisbon." in text
    assert "] I moved to Porto." in text


def test_the_same_sentence_of_another_conversation_is_marked_too(memory: caliber.Caliber) -> None:
    told(memory, "I live in Hamburg.", days=60)
    told(memory, "As I said, I live in Hamburg, near the river.", days=50)
    told(memory, "I moved to Lisbon.", days=10)
    assert asked(memory, "Where do I live?").text.count(OUTDATED_LEAD) == 2


def test_what_was_taken_back_is_marked(memory: caliber.Caliber) -> None:
    learned = told(memory, "I live in Hamburg.", days=60)
    memory.learning.undo(learned.learned_id)
    assert f"{OUTDATED_LEAD}I live in Hamburg." in asked(memory, "Where do I live?").text


def test_what_holds_or_is_about_another_thing_is_not_marked(memory: caliber.Caliber) -> None:
    told(memory, "I live in Hamburg.", days=60)
    told(memory, "I moved to Lisbon.", days=40)
    told(memory, "We visited Hamburg, it was lovely.", days=30)
    told(memory, "I live in Hamburg.", days=20, user="bob")
    text = asked(memory, "What about Lisbon and Hamburg?").text
    assert f"{OUTDATED_LEAD}I live" in text
    assert text.count(OUTDATED_LEAD) == 1
    assert OUTDATED_LEAD not in asked(memory, "Where do I live, in Hamburg?", user="bob").text


def test_who_moves_back_lives_there_again(memory: caliber.Caliber) -> None:
    for at, text in enumerate(("I live in Hamburg.", "I moved to Lisbon.", "I moved to Hamburg.")):
        told(memory, text, days=90 - 30 * at)
    text = asked(memory, "Where do I live, have I moved?").text
    assert f"{OUTDATED_LEAD}I moved to Lisbon." in text
    assert text.count(OUTDATED_LEAD) == 1
