"""Prefixes of prompts that providers cache: how much of a window stays from turn to turn.

Source: design section 5 (Prompt caches), issue "Windows that hold the answer", Build 5.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.evidence import share

import caliber
from caliber import EntityRef, EntityType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))
import fillers

BEFORE, APPENDED = 240, 100
ME = EntityRef(EntityType.USER, uuid.UUID(int=3))


def common(first: str, second: str) -> int:
    """Return how many characters two texts share at their beginning."""
    shortest = min(len(first), len(second))
    return next((at for at in range(shortest) if first[at] != second[at]), shortest)


def talk() -> list[str]:
    """A conversation in turns of some 35 words, about one thing after another."""
    exchanges = [pair for style in ("small_talk", "travel", "research") for pair in fillers.exchanges(style, 60, 35, 5)]
    return [text for pair in exchanges for text in pair]


@pytest.mark.parametrize("budget", share([4_000, 8_000], 1, daily=2))
def test_a_hundred_turns_keep_most_of_the_prefix(budget: int) -> None:
    config = caliber.profiles.reference(
        ":memory:",
        **{
            "token_budget": budget,
            "system_instructions": "Be brief. " * 20,
            "resident.feed_poll_ms": 0,
            "embedding.embed.turn": "commit",
            "policies": [],
        },
    )
    said = talk()
    roles = ("user", "assistant")
    with caliber.open(config) as memory:
        task = memory.start_trajectory("a long talk", initiator=ME).trajectory_id
        scope = memory.current_scope(task)
        memory.append_turns(
            scope.scope_id, [{"role": roles[at % 2], "content": text} for at, text in enumerate(said[:BEFORE])]
        )
        memory.flush()
        kept = total = 0
        before: Any = None
        for at in range(BEFORE, BEFORE + APPENDED):
            memory.append_turn(scope.scope_id, role=roles[at % 2], content=said[at])
            window = memory.assemble_context(task)
            sections = {section.name: section.token_count for section in window.sections}
            following = sum(sections.get(name, 0) for name in ("artifacts", "notes", "recall"))
            # The conversation fills its share; what follows the query then holds at most a quarter.
            assert following <= budget // 4
            assert next(message.role for message in window.messages) == "system"
            if before is not None:
                kept += common(before.text, window.text)
                total += len(window.text)
            before = window
    assert kept / total >= 0.7
