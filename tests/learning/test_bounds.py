"""Bounds of what a call of ``remember`` reads again of the talk before it."""

from __future__ import annotations

from typing import Any

import pytest

import caliber
from caliber.learning.rules.reading import Reader

LONG = "The harbour was busy that morning and the boats came in late. " * 300
AGAIN = 4_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the messages that rules have analysed."""
    lengths: list[int] = []
    original = Reader.read

    def counted(self: Reader, text: str) -> Any:
        lengths.append(len(text))
        return original(self, text)

    monkeypatch.setattr(Reader, "read", counted)
    return lengths


def remember(memory: caliber.Caliber, text: str) -> list[str]:
    learned = memory.remember([{"role": "user", "content": text}], user="maria")
    return [decision.statement for decision in learned.decisions]


def test_a_long_message_is_analysed_once(memory: caliber.Caliber, read: list[int]) -> None:
    remember(memory, f"I live in Rome. {LONG}")
    assert max(read) > len(LONG)
    for text in ("I like jazz.", "I like chess.", "I have a dog."):
        read.clear()
        remember(memory, text)
        assert sum(read) <= len(text) + AGAIN
        assert max(read) < 100


def test_many_messages_of_middling_length_are_analysed_within_bounds(memory: caliber.Caliber, read: list[int]) -> None:
    for number in range(12):
        read.clear()
        text = f"{number} {LONG[:1_500]}"
        remember(memory, text)
        assert sum(read) <= len(text) + AGAIN
        assert len(read) <= 1 + 8


def test_people_of_a_short_message_before_a_long_batch_are_known(memory: caliber.Caliber, read: list[int]) -> None:
    remember(memory, "My daughter Zosia is 6.")
    assert remember(memory, f"{LONG} She loves dinosaurs.") == ["likes dinosaurs"]
    assert read[-2:] == [len("My daughter Zosia is 6."), len(f"{LONG} She loves dinosaurs.")]
