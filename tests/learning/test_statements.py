"""Costs of ``remember`` in statements, over a store that knows facts already."""

from __future__ import annotations

from typing import Any

import pytest
from support.databases import Backend
from support.inspection import inspect

import caliber

pytestmark = pytest.mark.databases("all")

KNOBS: dict[str, Any] = {
    "embedding__embed": {"default": "off"},
    "policies": [],
    "jobs__poll_ms": 0,
    "resident__feed_poll_ms": 0,
}
KNOWN = ("I live in Berlin.", "I work at Siemens.", "My sister Anna is a doctor.", "I have a dog named Rex.")
MOST = {"sqlite": 50, "postgres": 36}
"""Of two messages that teach one fact, each asked for once more before it is written: on SQLite with those that begin
and end transactions."""


def remembered(memory: caliber.Caliber, *texts: str) -> int:
    """Return how many statements it takes to learn from an exchange, on the thread of the caller."""
    before = inspect(memory).store.statement_count()
    messages = [{"role": "user" if not at % 2 else "assistant", "content": text} for at, text in enumerate(texts)]
    learned = memory.remember(messages, user="maria")
    assert len(learned.decisions) == 1
    return inspect(memory).store.statement_count() - before


def test_learning_takes_few_statements_however_much_is_known(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    for text in KNOWN:
        memory.remember([{"role": "user", "content": text}], user="maria")
    few = remembered(memory, "I love hiking.", "So do I.")
    assert few <= MOST[inspect(memory).store.adapter]
    for sport in ("chess", "tennis", "rowing", "judo", "golf", "cycling", "surfing", "skiing"):
        remembered(memory, f"I love {sport}.", f"What about {sport}?")
    assert remembered(memory, "I love sailing.", "What about sailing?") <= few
