"""rank_and_fill by example: order, arithmetic, groups. C-223, C-456 to C-461."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caliber import kernels
from caliber.kernels import FillDecision

IN = FillDecision.INCLUDED
NO_BUDGET = FillDecision.EXCLUDED_BUDGET
NO_SECTION = FillDecision.EXCLUDED_SECTION_BUDGET
NO_GROUP = FillDecision.EXCLUDED_GROUP
NO_RELEVANCE = FillDecision.EXCLUDED_RELEVANCE


@pytest.fixture(params=kernels.available_paths(), autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.forced_path(request.param):
        yield request.param


def run(
    tokens: list[int],
    *,
    budget: int = 1000,
    caps: tuple[int, ...] = (-1, -1),
    overhead: tuple[int, ...] = (0, 0),
    separator: int = 0,
    floor: float = 0.0,
    **given: Any,
) -> tuple[list[int], list[int]]:
    n = len(tokens)
    columns = kernels.RankColumns(
        priority=np.array(given.get("priority", [0] * n), np.int32),
        relevance=np.array(given.get("relevance", [1.0] * n), np.float32),
        age_us=np.array(given.get("age", range(n)), np.int64),
        tokens=np.array(tokens, np.int32),
        tie=np.array(given.get("tie", [[0, 0]] * n), np.uint64).reshape(n, 2),
        group=np.array(given.get("group", [-1] * n), np.int32),
        section=np.array(given.get("section", [0] * n), np.int32),
    )
    order, decision = kernels.rank_and_fill(
        columns,
        budget=budget,
        section_budget=np.array(caps, np.int32),
        section_overhead=np.array(overhead, np.int32),
        separator_tokens=separator,
        min_relevance=floor,
    )
    assert order.dtype == np.int64
    assert decision.dtype == np.uint8
    return order.tolist(), decision.tolist()


def test_order_is_priority_relevance_age_tie_index() -> None:  # C-456
    order, _ = run(
        [1] * 7,
        priority=[-5, 5, 5, 5, 5, 5, 5],
        relevance=[1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9],
        age=[0, 0, 7, -7, 7, 7, 7],
        tie=[[0, 0], [0, 0], [2, 0], [9, 9], [1, 2**64 - 1], [1, 3], [2, 0]],
    )
    assert order == [3, 5, 4, 2, 6, 1, 0]


def test_negative_zero_relevance_equals_zero() -> None:
    assert run([1, 1], relevance=[-0.0, 0.0], age=[2, 1])[0] == [1, 0]
    assert run([1], relevance=[-0.0], floor=0.0)[1] == [IN]


def test_later_smaller_candidates_still_fit() -> None:  # C-457
    assert run([60, 50, 40], budget=100)[1] == [IN, NO_BUDGET, IN]


def test_relevance_is_checked_before_budget() -> None:  # C-458
    assert run([999, 1], budget=100, relevance=[0.1, 0.3], floor=0.3)[1] == [NO_RELEVANCE, IN]


def test_section_budget_is_checked_before_the_budget() -> None:
    assert run([50, 50, 50], budget=60, caps=(40, -1), section=[0, 1, 1])[1] == [NO_SECTION, IN, NO_BUDGET]
    assert run([0, 1], caps=(0, -1))[1] == [IN, NO_SECTION]


def test_overhead_once_and_separators_between() -> None:  # C-461
    # 5 + 10, then 2 + 10, then 2 + 10: 39 in the section; the other one costs 3 + 10.
    given: dict[str, Any] = {"overhead": (5, 3), "separator": 2, "section": [0, 0, 0, 1]}
    assert run([10, 10, 10, 10], budget=39 + 13, **given)[1] == [IN] * 4
    assert run([10, 10, 10, 10], budget=39 + 12, **given)[1] == [IN, IN, IN, NO_BUDGET]
    assert run([10, 10, 10, 10], caps=(39, 13), **given)[1] == [IN] * 4
    assert run([10, 10, 10, 10], caps=(38, 12), **given)[1] == [IN, IN, NO_SECTION, NO_SECTION]


def test_what_is_refused_costs_nothing() -> None:
    # The first one does not fit, so the second is still the first of its section and pays the overhead.
    assert run([100, 5], budget=10, overhead=(5, 0), separator=4)[1] == [NO_BUDGET, IN]


def test_a_section_of_empty_items_still_separates() -> None:
    assert run([0, 0, 0], budget=7, overhead=(3, 0), separator=2)[1] == [IN] * 3
    assert run([0, 0, 0], budget=6, overhead=(3, 0), separator=2)[1] == [IN, IN, NO_BUDGET]


def test_a_group_goes_in_whole_or_not_at_all() -> None:
    # O-8: a tool call and its result.
    given: dict[str, Any] = {"group": [-1, 4, -1, 4], "separator": 1}
    # Group: 10 + 10, a separator inside, one before it: 22 after the first 10.
    order, decision = run([10, 10, 10, 10], budget=32, **given)
    assert (order, decision) == ([0, 1, 3, 2], [IN, IN, NO_BUDGET, IN])
    order, decision = run([10, 10, 10, 10], budget=31, **given)
    assert (order, decision) == ([0, 1, 3, 2], [IN, NO_BUDGET, IN, NO_GROUP])
    assert run([10, 10, 10, 10], caps=(31, -1), **given)[1] == [IN, NO_SECTION, IN, NO_GROUP]


def test_a_group_is_as_relevant_as_its_best_member() -> None:
    given: dict[str, Any] = {"group": [0, 0, 1, 1], "priority": [1, 0, 0, 0], "floor": 0.5}
    assert run([1] * 4, relevance=[0.1, 0.5, 0.4, 0.4], **given)[1] == [IN, IN, NO_RELEVANCE, NO_RELEVANCE]


def test_group_numbers_may_be_any() -> None:
    top = 2**31 - 1
    assert run([5, 5, 5], budget=10, group=[top, -1, top])[1] == [IN, NO_BUDGET, IN]
    assert run([5, 5, 5], budget=10, group=[top, 3, top])[1] == [IN, NO_BUDGET, IN]


def test_large_sums_do_not_wrap() -> None:
    top = 2**31 - 1
    assert run([top] * 4, budget=3 * top)[1] == [IN, IN, IN, NO_BUDGET]
    assert run([top] * 2, budget=2**63 - 1, caps=(top, -1))[1] == [IN, NO_SECTION]


def test_a_budget_of_nothing_takes_nothing_that_costs() -> None:
    assert run([1, 0], budget=0)[1] == [NO_BUDGET, IN]
    assert run([0], budget=0, overhead=(1, 0))[1] == [NO_BUDGET]


def test_codes_are_those_of_c() -> None:
    from caliber._native import lib

    for decision in FillDecision:
        assert getattr(lib, f"CAL_FILL_{decision.name}") == decision
