"""Recall stops where relevance stops: no budget is filled with what has little in common with the question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import caliber

TALKS = (
    ("I moved to Lisbon last spring.", "A lovely town to live in."),
    ("My cat is called Biscuit, she is afraid of thunder.", "Poor Biscuit, storms are loud."),
    ("I take pills for my thyroid at seven.", "I shall keep that in mind."),
    ("We went to the museum with Tom.", "Which pictures did you like?"),
    ("My brother Tom works as a nurse in Porto.", "That is a hard profession."),
    ("I want to learn to play the cello.", "A teacher would help."),
    ("The car needs new brakes.", "Do not wait too long."),
    ("I bought a red bicycle for Mia.", "She will be happy."),
    ("The meeting with the bank is on Friday at ten.", "Good luck with it."),
    ("The neighbours have a new baby, called Oskar.", "Congratulations to them."),
    ("The dentist said that I need a crown.", "That sounds expensive."),
    ("We plan a trip to the Azores in August.", "The islands are green."),
)
ONE_FACT = {"What is my cat called?": "Biscuit", "Where does Tom work?": "Porto", "When do I take my pills?": "seven"}
NOTHING = ("What is the capital of Mongolia?", "How tall is the Eiffel tower?", "Explain quantum entanglement to me.")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[caliber.Caliber]:
    with caliber.open(caliber.profiles.chat_companion(tmp_path / "memory.db"), create=True) as opened:
        for _ in range(3):
            for said, answer in TALKS:
                task = opened.start_trajectory("a talk", user="ana").trajectory_id
                messages = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
                opened.remember(messages, user="ana", task=task)
        yield opened


def asked(memory: caliber.Caliber, question: str) -> tuple[str, int]:
    """Return the text of what a window recalls, and its tokens."""
    task = memory.start_trajectory("a question", user="ana").trajectory_id
    memory.remember([{"role": "user", "content": question}], user="ana", task=task)
    window: Any = memory.assemble_context(task)
    recalled = [each for each in window.sections if each.name in ("recall", "notes", "artifacts", "history")]
    return "".join(each.content for each in recalled), sum(each.token_count for each in recalled)


def test_a_window_recalls_what_the_question_asks_for_and_no_more(memory: caliber.Caliber) -> None:
    # issue 40, item 6
    for question, answer in ONE_FACT.items():
        text, tokens = asked(memory, question)
        assert answer in text, question
        assert tokens <= 300, (question, tokens, text)
    for question in NOTHING:
        assert asked(memory, question) == ("", 0), question
