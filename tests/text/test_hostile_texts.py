"""Hostile texts in each reader of text: twice the text takes about twice the calls of functions, and ends soon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from caliber.dsl import parse
from caliber.learning.reading import MessageReader
from caliber.model.errors import CaliberError
from caliber.text.dates import DateReader, Moment
from caliber.text.key_sentences import key_sentences
from caliber.text.naming import name_entity
from caliber.text.note_rules import verify_contradiction
from caliber.text.sections import parts, title_of
from caliber.text.sentences import split_sentences

PARTS = (
    "I quit a. ", "I live in Rome. ", "My sister Anna is 5. ", "well ", "((((", '"', "'", "“", "a, ", "and and ",
    "12345 ", "e\u0301", "x", "\n", " ", "<!--", "![", "for now ", "no, it's Porto. ", "- a\n",
    "> b\n", "# \t", "`", "```\n",
)  # fmt: skip
READERS: dict[str, Callable[[str], Any]] = {
    "rules": lambda text: list(MessageReader().read(text, Moment(0))),
    "sentences": split_sentences,
    "key sentences": lambda text: key_sentences(text, "quit", lambda spans: len(spans) < 9),
    "contradiction": lambda text: verify_contradiction(text, f"{text} not"),
    "names": name_entity,
    "dates": lambda text: DateReader().find(text, date(2026, 1, 1)),
    "markdown": lambda text: title_of("a.md", text),
    "parts": parts,
    "language": parse,
}
SMALL = 2_000
FEW = 10_000
"""Calls below which growth is no matter."""


def calls(read: Callable[[str], Any], text: str) -> int:
    count = 0

    def counted(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        read(text)
    except CaliberError:
        pass  # the language refuses most of them
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", READERS)
def test_twice_the_text_takes_about_twice_the_work(name: str) -> None:
    read, wrong = READERS[name], []
    for part in PARTS:
        small, large = (calls(read, (part * size)[:size]) for size in (SMALL, 2 * SMALL))
        if large > FEW and large > 2.6 * small:
            wrong.append(f"{part!r}: {small} calls for {SMALL} characters, {large} for twice as many")
    assert wrong == []
