"""BudgetFill against its twin on every path, and what it refuses. docs/windows.md, O-8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.kernels.instruction_sets import PORTABLE, running_on, searched
from support.kernels.twins.fill import TwinFill

from caliber.kernels import fill as kernel
from caliber.model.errors import DTypeError, InputError, InvalidValue, ShapeError

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


def filling(**changed: Any) -> tuple[kernel.BudgetFill, dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {
        "candidates": np.zeros((7, 3), np.int64), "sections": np.zeros((5, 2), np.int64),
        "measures": np.zeros(4, np.int64), "codes": np.zeros(3, np.uint8),
    }  # fmt: skip
    arrays["sections"][kernel.MOST] = -1
    arrays["candidates"][kernel.PASSAGE] = 1
    arrays.update(changed)
    return kernel.BudgetFill(**arrays), arrays


def test_a_filling_writes_into_no_read_only_array() -> None:
    for field in ("candidates", "sections", "codes"):
        array = filling()[1][field]
        array.flags.writeable = False
        with pytest.raises(InvalidValue, match=field):
            filling(**{field: array})
    with pytest.raises(InvalidValue, match="codes"):
        filling(codes=np.frombuffer(b"\0\0\0", np.uint8))


@pytest.mark.parametrize("passage", [2**20, 2**45, 2**63 - 1])
def test_a_sparse_passage_is_refused(passage: int) -> None:
    candidates = np.zeros((7, 3), np.int64)
    candidates[kernel.PASSAGE, 1] = passage
    with pytest.raises(InvalidValue, match="passage"):
        filling(candidates=candidates)


@pytest.mark.parametrize("shape", [(), (5,), (4, 2)])
def test_sections_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        filling(sections=np.zeros(shape, np.int64))


@pytest.mark.parametrize(
    ("array", "row", "value"),
    [("sections", row, sign * 2**60) for row in range(5) for sign in (-1, 1)]
    + [("measures", row, 2**40) for row in range(4)]
    + [("candidates", row, 2**40) for row in (kernel.SECTION, kernel.COST, kernel.LEAD, kernel.SHORT)]
    + [("candidates", kernel.SECTION, -1), ("candidates", kernel.SECTION, 2)],
)
def test_rows_changed_to_no_length_are_refused(array: str, row: int, value: int) -> None:
    made, arrays = filling()
    arrays[array][row] = value
    with pytest.raises(InvalidValue):
        made.walk(np.array([1]), 10)
    assert not arrays["codes"].any()


@pytest.mark.parametrize("link", [-1, 3, 2**62, -(2**63), 1])
def test_a_broken_ring_ends(link: int) -> None:
    made, arrays = filling()
    arrays["candidates"][kernel.LINK] = link
    arrays["candidates"][kernel.NUMBER] = [-(2**63), 2**63 - 1, 0]
    made.walk(np.array([0, 1, 2]), 10)
    made.price(0, 1, leaving=True)


@pytest.mark.parametrize(
    ("field", "arguments", "error"),
    [
        ("how", (10, -1, 9), InvalidValue), ("how", (10, -1, 2**40), InvalidValue), ("how", (10, -1, "9"), DTypeError),
        ("room", (2**60,), InvalidValue), ("room", (2**70,), InvalidValue), ("room", (-(2**60),), InvalidValue),
        ("limit", (10, 2**60), InvalidValue), ("limit", (10, 1.5), DTypeError),
    ],
)  # fmt: skip
def test_a_walk_names_the_argument_at_fault(field: str, arguments: tuple[Any, ...], error: type[InputError]) -> None:
    with pytest.raises(error) as raised:
        filling()[0].walk(np.array([0]), *arguments)
    assert raised.value.context["field"] == field


@pytest.mark.parametrize(
    ("field", "place", "cost", "error"),
    [
        ("place", -1, 1, InvalidValue), ("place", 3, 1, InvalidValue), ("place", 2**70, 1, InvalidValue),
        ("place", "1", 1, DTypeError), ("cost", 0, 2**40, InvalidValue), ("cost", 0, -(2**40), InvalidValue),
        ("cost", 0, 2**70, InvalidValue), ("cost", 0, None, DTypeError),
    ],
)  # fmt: skip
def test_a_price_names_the_argument_at_fault(field: str, place: Any, cost: Any, error: type[InputError]) -> None:
    with pytest.raises(error) as raised:
        filling()[0].price(place, cost)
    assert raised.value.context["field"] == field
