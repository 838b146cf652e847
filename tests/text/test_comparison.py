"""Contradictions and consolidation by careful rules."""

from __future__ import annotations

import pytest

from caliber.model.providers import ConsolidationAction, ConsolidationMember
from caliber.text.comparison import decide_consolidation


def cluster(*contents: str) -> list[ConsolidationMember]:
    return [ConsolidationMember(f"k{index}", content, index) for index, content in enumerate(contents)]


@pytest.mark.parametrize(
    ("contents", "survivor"),
    [
        (("The cache is on.", "the cache is on"), "k1"),
        (("The cache is on. It is fast.", "It is fast."), "k0"),
        (("One thing. Two things.", "Two things.", "two things. one thing"), "k2"),
        ((" ".join(f"word{i}" for i in range(99)) + " end", " ".join(f"word{i}" for i in range(99)) + " stop"), "k1"),
    ],
)
def test_near_identical_memories_give_way_to_the_newest_that_says_it_all(
    contents: tuple[str, ...], survivor: str
) -> None:
    # M-108, M-109
    (decision,) = decide_consolidation([cluster(*contents)])
    assert decision.action is ConsolidationAction.SUPERSEDE
    assert decision.survivor == survivor
    assert decision.keys == tuple(f"k{index}" for index in range(len(contents)))


LONG = " ".join(["the quick brown fox jumps over the lazy dog near the river bank"] * 5)


@pytest.mark.parametrize(
    "contents",
    [
        ("The cache is on.", "The log is off."),
        (f"{LONG} 80", f"{LONG} 81"),
        (f"{LONG} here", f"{LONG} not here"),
        (f"{LONG} enabled", f"{LONG} disabled"),
        ("only one",),
        (),
    ],
)
def test_what_differs_is_kept(contents: tuple[str, ...]) -> None:
    (decision,) = decide_consolidation([cluster(*contents)])
    assert decision.action is ConsolidationAction.KEEP
    assert decision.survivor is None


def test_decisions_come_in_the_order_of_clusters() -> None:
    decisions = decide_consolidation([cluster("a b", "c d"), cluster("same", "same"), cluster("x")])
    assert [decision.action.value for decision in decisions] == ["keep", "supersede", "keep"]


def test_of_equals_of_one_instant_the_choice_is_stable() -> None:
    members = [ConsolidationMember(key, "same", 5) for key in ("b", "a")]
    assert decide_consolidation([members])[0].survivor == decide_consolidation([members[::-1]])[0].survivor == "a"
