"""Bounds of what a call of ``remember`` reads again of the talk before it."""

from __future__ import annotations

from typing import Any

import pytest

import caliber
from caliber.learning.reading import MessageReader

LONG = "The harbour was busy that morning and the boats came in late. " * 300
AGAIN = 16_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the messages that rules have looked at."""
    lengths: list[int] = []

    def counted(name: str) -> Any:
        original = getattr(MessageReader, name)

        def call(self: MessageReader, text: str, *rest: Any) -> Any:
            lengths.append(len(text))
            return original(self, text, *rest)

        return call

    for name in ("read", "hear"):
        monkeypatch.setattr(MessageReader, name, counted(name))
    return lengths


def remember(memory: caliber.Caliber, text: str) -> list[str]:
    learned = memory.remember([{"role": "user", "content": text}], user="maria")
    return [decision.statement for decision in learned.decisions]


def test_a_long_message_is_looked_at_once(memory: caliber.Caliber, read: list[int]) -> None:
    remember(memory, f"I live in Rome. {LONG}")
    assert max(read) > len(LONG)
    for text in ("I like jazz.", "I like chess.", "I have a dog."):
        read.clear()
        remember(memory, text)
        assert max(read) < 100


def test_many_messages_of_middling_length_are_looked_at_within_bounds(memory: caliber.Caliber, read: list[int]) -> None:
    for number in range(14):
        read.clear()
        text = f"{number} {LONG[:1_500]}"
        remember(memory, text)
        assert sum(read) <= len(text) + AGAIN


def test_a_part_is_played_for_many_messages(memory: caliber.Caliber) -> None:
    remember(memory, "Let's role-play: you are an innkeeper, and I am a knight.")
    for number in range(12):
        assert remember(memory, f"My name is Roland the {number}th and I live in Camelot.") == []
    remember(memory, "Enough of this game.")
    assert remember(memory, "My name is Maria.") == ["is called Maria"]
