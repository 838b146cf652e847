"""Readers of text on one hostile line or many, at 4 kB and 16 kB: the time ends soon, and grows with the text.

Unlike ``test_any_text`` this measures processor time, so that time inside of a regular expression counts too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import caliber
from caliber.config.secret import has_credentials, scrub, show
from caliber.dsl import parse
from caliber.learning.reading import MessageReader
from caliber.model.errors import CaliberError
from caliber.model.trajectory import TurnRole
from caliber.text.blocks import find_blocks, find_errors, is_diff
from caliber.text.dates import Moment
from caliber.text.naming import name_entity
from caliber.text.note_rules import verify_contradiction
from caliber.text.sections import split, title_of
from caliber.text.sentences import split_sentences
from caliber.text.statements import find_statements

pytestmark = pytest.mark.prove

PARTS = (
    "I like tea. ", "and and ", "word ", "(", '"', "a,", "1 ", "e\u0301", "x", " ", "\n", "- a\n", "# ", "# h\n", "=",
    "=\n", "| a ", "`", "```\n", "<!-- ", "![", "[a](", "http://a.b/", "://a", "a://b@", "2026-01-02 ", "yesterday ",
    "not ", "Bob ", "a.b.", "a-", "@@ -1 +1 @@\n", "diff --git a/a b/a\n", "    at a\n", "Traceback:\n", "Error: ",
    "password=", "env:", "{", "\t", "\\", "é", "漢", "😀", "\u200d", "/a/b", "--", "I live here for now ", "because ",
)  # fmt: skip
SHORT, LONG = 4_000, 16_000
SOON_S, GROWTH = 0.2, 8.0
"""Less time is no matter; four times the text may take this many times as long."""
ROLES = frozenset(TurnRole)
READERS: dict[str, Callable[[str], Any]] = {
    "rules": lambda text: list(MessageReader().read(text, Moment(0))),
    "sentences": split_sentences,
    "contradiction": lambda text: verify_contradiction(text, f"{text} not"),
    "names": name_entity,
    "statements": lambda text: list(find_statements(text, ROLES)),
    "blocks": find_blocks,
    "errors": find_errors,
    "diff": is_diff,
    "sections of Markdown": lambda text: split("a.md", text),
    "sections of reStructuredText": lambda text: split("a.rst", text),
    "sections of AsciiDoc": lambda text: split("a.adoc", text),
    "title": lambda text: title_of("a.md", text),
    "language": parse,
    "secrets": lambda text: (scrub(text), show(text), has_credentials(text)),
}


def seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    with contextlib.suppress(CaliberError):  # such as the language, which refuses most texts
        call()
    return time.process_time() - began


def too_slow(read: Callable[[str], Any], part: str) -> str | None:
    times = [seconds(lambda size=size: read((part * size)[:size])) for size in (SHORT, LONG)]
    for _ in range(3):  # what is slow is slow each time: a collection of garbage, or another thread, is not
        if times[1] <= SOON_S or times[1] <= GROWTH * times[0]:
            return None
        times[1] = min(times[1], seconds(lambda: read((part * LONG)[:LONG])))
    return f"{part!r}: {times[0]:.2f} s for {SHORT} characters, {times[1]:.2f} s for {LONG}"


@pytest.mark.parametrize("name", READERS)
def test_time_of_a_reader_grows_with_the_text(name: str) -> None:
    assert [slow for part in PARTS if (slow := too_slow(READERS[name], part))] == []


def test_planted_quadratic_reader_is_found() -> None:
    def quadratic(text: str) -> int:
        return sum(text[at:].count(letter) for at in range(len(text)) for letter in "abcdefgh")

    assert too_slow(quadratic, "a")


def test_time_of_a_conversation_grows_with_its_texts(file_backend: Any) -> None:
    memory = file_backend.open(jobs__poll_ms=0)
    user = memory.acting_as(caliber.Principal.user("ana"))

    def talk(text: str) -> None:
        task = user.start_trajectory("talk").trajectory_id
        scope = user.current_scope(task).scope_id
        user.append_turn(scope, role="user", content=text)
        user.assemble_context(task)
        user.assemble_context(task, query=text)
        user.search(text)
        user.close_scope(scope)
        user.complete_trajectory(task, status="success", summary="said")
        memory.flush()

    assert [slow for part in PARTS if (slow := too_slow(talk, part))] == []
