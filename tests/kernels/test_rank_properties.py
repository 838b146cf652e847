"""rank_and_fill against its twin and against its rules, on every path. C-456 to C-461, O-9."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels.instruction_sets import PORTABLE, running_on, searched
from support.kernels.twins.rank import rank_and_fill

from caliber import kernels
from caliber.kernels import FillDecision, RankColumns

RELEVANCE = st.sampled_from([0.0, -0.0, 0.3, 0.5, 1.0, -1.0, 1e-45, 3.4e38]) | st.floats(-2, 2, width=32)


@st.composite
def problems(draw: st.DrawFn) -> tuple[RankColumns, dict[str, Any]]:
    n, sections = draw(st.integers(0, 30)), draw(st.integers(1, 4))
    few = st.integers(-2, 2)

    def column(values: st.SearchStrategy[Any], dtype: type) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)

    section = column(st.integers(0, sections - 1), np.int32)
    group = column(st.sampled_from([-1, -1, 0, 1, 2]), np.int32)
    group = np.where(group < 0, -1, group * 10 + section).astype(np.int32)  # a group lives in one section
    ends = st.sampled_from([-(2**31), 2**31 - 1])
    columns = RankColumns(
        priority=column(few | ends, np.int32),
        relevance=column(RELEVANCE, np.float32),
        age_us=column(few | st.sampled_from([-(2**63), 2**63 - 1]), np.int64),
        tokens=column(st.integers(0, 40) | st.just(2**31 - 1), np.int32),
        tie=column(st.tuples(*[st.sampled_from([0, 1, 2**64 - 1])] * 2), np.uint64).reshape(n, 2),
        group=group,
        section=section,
    )
    return columns, {
        "budget": draw(st.integers(0, 400) | st.just(2**40)),
        "section_budget": np.array(
            draw(st.lists(st.integers(-1, 150), min_size=sections, max_size=sections)), np.int32
        ),
        "section_overhead": np.array(draw(st.lists(st.integers(0, 9), min_size=sections, max_size=sections)), np.int32),
        "separator_tokens": draw(st.integers(0, 3)),
        "min_relevance": draw(st.sampled_from([float("-inf"), 0.0, 0.3, 0.5, float("inf")])),
    }


@pytest.mark.parametrize("path", PORTABLE)
@searched(problem=problems())
def test_rank_and_fill_equals_the_twin(path: str, problem: tuple[RankColumns, dict[str, Any]]) -> None:
    columns, limits = problem
    expected = rank_and_fill(columns, **limits)
    with running_on(path):
        found = kernels.rank_and_fill(columns, **limits)
    for ours, twins in zip(found, expected, strict=True):
        assert ours.dtype == twins.dtype
        np.testing.assert_array_equal(ours, twins)


@given(problem=problems())
def test_what_goes_in_obeys_every_limit(problem: tuple[RankColumns, dict[str, Any]]) -> None:
    """Checked from the result alone, not from how it was made."""
    columns, limits = problem
    order, decision = kernels.rank_and_fill(columns, **limits)
    assert sorted(order.tolist()) == list(range(len(columns)))
    assert {*decision.tolist()} <= {*map(int, FillDecision)}
    total = 0
    for section, cap in enumerate(limits["section_budget"].tolist()):
        inside = np.flatnonzero((columns.section == section) & (decision == FillDecision.INCLUDED))
        if not inside.size:
            continue
        used = int(columns.tokens[inside].astype(np.int64).sum())
        used += int(limits["section_overhead"][section]) + limits["separator_tokens"] * (inside.size - 1)
        assert cap < 0 or used <= cap
        total += used
    assert total <= limits["budget"]
    for group in set(columns.group.tolist()) - {-1}:
        members = columns.group == group
        assert len(set((decision[members] == FillDecision.INCLUDED).tolist())) == 1
        places = np.flatnonzero(members[order])
        assert np.ptp(places) == places.size - 1  # together in the order
    alone = columns.group == -1
    low = columns.relevance < np.float32(limits["min_relevance"])
    np.testing.assert_array_equal(decision[alone] == FillDecision.EXCLUDED_RELEVANCE, low[alone])


@pytest.mark.parametrize("path", PORTABLE)
@pytest.mark.parametrize("n", [7, 8, 9, 23, 24, 25, 26, 63, 64, 65, 1000, 2047, 2048, 2049, 20_000])
def test_larger_sizes_equal_the_twin(path: str, n: int) -> None:
    generator = np.random.default_rng(n)
    section = generator.integers(0, 5, n).astype(np.int32)
    group = np.where(generator.random(n) < 0.3, generator.integers(0, n // 3 + 1, n) * 5 + section, -1)
    columns = RankColumns(
        priority=generator.integers(0, 4, n).astype(np.int32),
        relevance=generator.choice(np.linspace(0, 1, 50, dtype=np.float32), n),
        age_us=generator.integers(0, 100, n),
        tokens=generator.integers(0, 300, n).astype(np.int32),
        tie=generator.integers(0, 2**63, (n, 2)).astype(np.uint64),
        group=group.astype(np.int32),
        section=section,
    )
    limits: dict[str, Any] = {
        "budget": 40 * n,
        "section_budget": np.array([-1, 10 * n, 5 * n, 1000, 0], np.int32),
        "section_overhead": np.array([10, 9, 8, 7, 6], np.int32),
        "separator_tokens": 1,
        "min_relevance": 0.2,
    }
    expected = rank_and_fill(columns, **limits)
    with running_on(path):
        found = kernels.rank_and_fill(columns, **limits)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("path", PORTABLE)
@pytest.mark.parametrize("n", [24, 25, 300, 2048, 5000])
@pytest.mark.parametrize("shared", ["nothing", "rank", "rank and age", "all but the last key", "everything"])
def test_every_key_decides_where_those_before_it_are_equal(path: str, n: int, shared: str) -> None:
    """Over the whole range of each type, so that every bit of every key matters."""
    generator = np.random.default_rng(n)
    level = ["nothing", "rank", "rank and age", "all but the last key", "everything"].index(shared)
    zero = [np.zeros(n, np.int64)] * level
    keys = [*zero, *(generator.integers(-(2**62), 2**62, n) * 2 for _ in range(5 - level))][:4]
    relevance = (keys[0] >> 20).astype(np.float32)
    columns = RankColumns(
        priority=(keys[0] >> 60).astype(np.int32),
        relevance=relevance,
        age_us=keys[1],
        tokens=np.ones(n, np.int32),
        tie=np.stack([keys[2], keys[3]], axis=1).view(np.uint64),
        group=np.full(n, -1, np.int32),
        section=np.zeros(n, np.int32),
    )
    with running_on(path):
        order, decision = kernels.rank_and_fill(
            columns,
            budget=n // 2,
            section_budget=np.array([-1], np.int32),
            section_overhead=np.array([0], np.int32),
            separator_tokens=0,
            min_relevance=-math.inf,
        )
    expected = np.lexsort([columns.tie[:, 1], columns.tie[:, 0], columns.age_us, -relevance, -columns.priority])
    np.testing.assert_array_equal(order, expected)
    assert (decision[order] == np.where(np.arange(n) < n // 2, 1, 4)).all()


@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_million_candidates_take_seconds_at_most(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = 1_000_000
    columns = RankColumns(
        priority=generator.integers(0, 4, n).astype(np.int32),
        relevance=generator.random(n, dtype=np.float32),
        age_us=generator.integers(0, 2**50, n),
        tokens=generator.integers(0, 300, n).astype(np.int32),
        tie=np.zeros((n, 2), np.uint64),
        group=np.full(n, -1, np.int32),
        section=np.zeros(n, np.int32),
    )
    started = time.perf_counter()
    order, _ = kernels.rank_and_fill(
        columns,
        budget=10_000,
        section_budget=np.array([-1], np.int32),
        section_overhead=np.array([0], np.int32),
        separator_tokens=0,
        min_relevance=0.0,
    )
    assert time.perf_counter() - started < 10
    assert (np.diff(columns.priority[order]) <= 0).all()
