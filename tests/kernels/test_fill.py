"""BudgetFill against its twin on every path, and what it refuses. docs/windows.md, O-8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from support.kernels.instruction_sets import PORTABLE, running_on, searched
from support.kernels.twins.fill import TwinFill

from caliber.kernels import fill as kernel
from caliber.model.errors import InvalidValue, ShapeError

Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[tuple[list[int], int, int, int]]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n, sections = draw(st.integers(0, 24)), draw(st.integers(1, 4))

    def column(values: st.SearchStrategy[int], length: int = n) -> list[int]:
        return draw(st.lists(values, min_size=length, max_size=length))

    few = st.integers(0, 3)
    cost = column(st.integers(0, 60))
    short = [length // 2 if draw(st.booleans()) else -1 for length in cost]
    lines = column(st.integers(0, 3)), column(st.integers(-4, 12)), column(st.integers(-1, 9))
    candidates = np.array([column(st.integers(0, sections - 1)), cost, *lines, short, [0] * n], np.int64)
    shares = st.sampled_from([0, 0, 20, 60, 150, 400])
    table = [column(st.sampled_from([0, 0, 7]), sections), column(few, sections)]
    table += [column(st.sampled_from([-1, -1, 90]), sections), column(shares, sections), column(shares, sections)]
    measures = np.array([draw(few), draw(few), draw(st.integers(0, 4)), min([0, *cost]) + draw(st.integers(0, 5))])
    codes = np.array(column(st.sampled_from([0, 0, 0, 0, 1, 4, 6, 12])), np.uint8)
    places = st.lists(st.integers(0, n - 1), max_size=30) if n else st.just([])
    walk = st.tuples(places, st.integers(-5, 500), st.sampled_from([-1, -1, 0, 50, 200]), st.integers(0, 3))
    return candidates.reshape(7, n), np.array(table, np.int64), measures, codes, draw(st.lists(walk, max_size=3))


@pytest.mark.parametrize("path", PORTABLE)
@searched(problem=problems())
def test_walks_and_prices_equal_the_twin(path: str, problem: Problem) -> None:
    candidates, sections, measures, codes, walks = problem
    twin = TwinFill(candidates, sections, measures, codes)
    with running_on(path):
        made = kernel.BudgetFill(candidates, sections, measures, codes)
        for places, room, limit, how in walks:
            found = made.walk(np.array(places, np.int64), room, limit, how)
            assert found == twin.walk(places, room, limit, how)
            assert codes.tolist() == twin.codes
            assert sections[kernel.USED].tolist() == twin.used
        for place, cost in enumerate(candidates[kernel.COST].tolist()):
            for leaving in (False, True):
                assert made.price(place, cost, leaving=leaving) == twin.price(place, cost, leaving=leaving)


@pytest.mark.parametrize(
    ("row", "value"),
    [(kernel.SECTION, 2), (kernel.SECTION, -1), (kernel.PASSAGE, -1), (kernel.COST, 2**40), (kernel.NUMBER, -(2**40))],
)
def test_what_is_no_column_or_place_is_refused(row: int, value: int) -> None:
    table, measures, codes = np.zeros((5, 2), np.int64), np.zeros(4, np.int64), np.zeros(3, np.uint8)
    wrong = np.zeros((7, 3), np.int64)
    made = kernel.BudgetFill(wrong.copy(), table, measures, codes)
    wrong[row, 1] = value
    with pytest.raises(InvalidValue):
        kernel.BudgetFill(wrong, table, measures, codes)
    with pytest.raises(ShapeError):
        kernel.BudgetFill(wrong[:6], table, measures, codes)
    for place in (-1, 3):
        with pytest.raises(InvalidValue):
            made.walk(np.array([place]), 10)
