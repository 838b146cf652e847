"""Regular expressions of the rooms that read users' text, on hostile inputs made from the expressions themselves."""

from __future__ import annotations

import re

import pytest
from support.slow_patterns import Hostile, hostile_inputs, patterns_of, slow_at

pytestmark = pytest.mark.prove

ROOMS = ("learning", "text", "dsl", "erasure", "search", "context", "importing", "cli")
SHORT, LONG, REPEATED = 64, 300, 22
"""Characters in which exponential time shows, and time that grows with a high power; repetitions of a long part."""
MOST_S = 0.05


def slow(pattern: re.Pattern[str], hostile: Hostile, *, anchored: bool = False) -> tuple[int, float] | None:
    longest = min(LONG, max(SHORT, REPEATED * len(hostile.part)))
    return slow_at(pattern, hostile, longest, MOST_S, anchored=anchored)


def test_no_pattern_takes_exponential_time() -> None:
    patterns = patterns_of(tuple(f"caliber.{room}" for room in ROOMS))
    assert len(patterns) > 200
    found = []
    for pattern, place in patterns.items():
        for hostile in sorted(hostile_inputs(pattern), key=str):
            if taken := slow(pattern, hostile, anchored=place.anchored):
                found.append(f"{place.module}.{place.name}: {taken[1]:.3f} s for {taken[0]} characters of {hostile}")
                break
    assert found == []


def test_hostile_inputs_find_the_patterns_that_are_known_to_be_slow() -> None:
    for known in (r"(a+)+$", r"(?:\w+\s?)*!", r"(?: for now| for \w+)*$", r"(?:.*,)*x", r"^(?:x|with my .+)*$"):
        pattern = re.compile(known)
        assert any(slow(pattern, each) for each in hostile_inputs(pattern)), known
    assert slow(re.compile(r"\w+\s"), Hostile("", "a", "!")) is None
