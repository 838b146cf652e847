"""Wrong input to a kernel is a typed error, the same on every path; ``rank_and_fill`` by example: order, sums, groups.

Source: issue 2, "Bad input"; design section 6; C-223, C-456 to C-461.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import each

from caliber import kernels
from caliber.kernels import FillDecision
from caliber.model.errors import DTypeError, InputError, InvalidValue, NonFiniteError, ShapeError

HALF = kernels.BytesEstimator(3.5)
NONE_OUT = np.zeros(3, np.uint8)


@pytest.fixture(params=kernels.available_paths(), autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.forced_path(request.param):
        yield request.param


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


def with_value(value: float) -> np.ndarray:
    rows = f32(3, 9)
    rows[2, 8] = value
    return rows


def snapshot() -> kernels.Snapshot:
    matrix = kernels.VectorMatrix(9)
    matrix.append(f32(3, 9))
    return matrix.snapshot()


def columns(n: int = 3) -> kernels.RankColumns:
    return kernels.RankColumns(
        priority=np.zeros(n, np.int32),
        relevance=np.ones(n, np.float32),
        age_us=np.zeros(n, np.int64),
        tokens=np.ones(n, np.int32),
        tie=np.zeros((n, 2), np.uint64),
        group=np.full(n, -1, np.int32),
        section=np.zeros(n, np.int32),
    )


def fill(c: kernels.RankColumns | None = None, **changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "budget": 10,
        "section_budget": np.array([-1], np.int32),
        "section_overhead": np.array([0], np.int32),
        "separator_tokens": 0,
        "min_relevance": 0.0,
    }
    return kernels.rank_and_fill(columns() if c is None else c, **{**arguments, **changed})


WRONG: dict[str, tuple[type[InputError], Callable[[], Any]]] = {
    "rows f64": (DTypeError, lambda: kernels.cosine_topk(np.ones((3, 9)), f32(9), 1)),
    "rows big endian": (DTypeError, lambda: kernels.cosine_topk(f32(3, 9).astype(">f4"), f32(9), 1)),
    "rows list": (DTypeError, lambda: kernels.cosine_topk([[1.0]], f32(1), 1)),  # type: ignore[arg-type]
    "rows 1-D": (ShapeError, lambda: kernels.cosine_topk(f32(9), f32(9), 1)),
    "rows without columns": (ShapeError, lambda: kernels.cosine_topk(f32(3, 0), f32(0), 1)),
    "rows strided": (InvalidValue, lambda: kernels.cosine_topk(f32(3, 18)[:, ::2], f32(9), 1)),
    "rows fortran": (InvalidValue, lambda: kernels.cosine_topk(np.asfortranarray(f32(3, 9)), f32(9), 1)),
    "rows misaligned": (
        InvalidValue,
        lambda: kernels.cosine_topk(
            np.frombuffer(bytearray(4 * 9 + 1), np.uint8)[1:].view(np.float32).reshape(1, 9), f32(9), 1
        ),
    ),
    "rows NaN": (NonFiniteError, lambda: kernels.cosine_topk(with_value(np.nan), f32(9), 1)),
    "rows inf": (NonFiniteError, lambda: kernels.cosine_topk(with_value(np.inf), f32(9), 1)),
    "query f64": (DTypeError, lambda: snapshot().topk(np.ones(9), 1)),  # type: ignore[arg-type]
    "query length": (ShapeError, lambda: snapshot().topk(f32(8), 1)),
    "query 2-D": (ShapeError, lambda: snapshot().topk(f32(1, 9), 1)),
    "query NaN": (NonFiniteError, lambda: snapshot().topk(with_value(np.nan)[2], 1)),
    "query -inf": (NonFiniteError, lambda: snapshot().scores(with_value(-np.inf)[2], np.array([0]))),
    "queries length": (ShapeError, lambda: snapshot().topk_many(f32(2, 8), 1)),
    "k negative": (InvalidValue, lambda: snapshot().topk(f32(9), -1)),
    "k float": (DTypeError, lambda: snapshot().topk(f32(9), 1.0)),  # type: ignore[arg-type]
    "k bool": (DTypeError, lambda: snapshot().topk(f32(9), True)),
    "min_similarity NaN": (NonFiniteError, lambda: snapshot().topk(f32(9), 1, min_similarity=np.nan)),
    "min_similarity text": (DTypeError, lambda: snapshot().topk(f32(9), 1, min_similarity="a")),  # type: ignore[arg-type]
    "mask length": (ShapeError, lambda: snapshot().topk(f32(9), 1, mask=np.ones(2, np.bool_))),
    "mask int64": (DTypeError, lambda: snapshot().topk(f32(9), 1, mask=np.ones(3, np.int64))),
    "tie length": (ShapeError, lambda: snapshot().topk(f32(9), 1, tie=np.ones((2, 2), np.uint64))),
    "tie signed": (DTypeError, lambda: snapshot().topk(f32(9), 1, tie=np.ones((3, 2), np.int64))),  # type: ignore[arg-type]
    "ids unknown": (InvalidValue, lambda: snapshot().scores(f32(9), np.array([3]))),
    "ids negative": (InvalidValue, lambda: snapshot().rows(np.array([-1]))),
    "ids int32": (DTypeError, lambda: snapshot().rows(np.array([0], np.int32))),  # type: ignore[arg-type]
    "dimensions 0": (InvalidValue, lambda: kernels.VectorMatrix(0)),
    "dimensions text": (DTypeError, lambda: kernels.VectorMatrix("9")),  # type: ignore[arg-type]
    "metric": (InvalidValue, lambda: kernels.VectorMatrix(9, "hamming")),
    "append width": (ShapeError, lambda: kernels.VectorMatrix(9).append(f32(1, 8))),
    "append NaN": (NonFiniteError, lambda: kernels.VectorMatrix(9).append(with_value(np.nan))),
    "retire unknown": (InvalidValue, lambda: kernels.VectorMatrix(9).retire(np.array([0]))),
    "batch width": (ShapeError, lambda: kernels.cosine_batch(f32(3, 9), f32(3, 8))),
    "batch NaN": (NonFiniteError, lambda: kernels.cosine_batch(f32(3, 9), with_value(np.nan))),
    "pairs NaN": (NonFiniteError, lambda: kernels.pairs_above(with_value(np.nan), 0.5, max_pairs=1)),
    "groups NaN": (NonFiniteError, lambda: kernels.near_groups(with_value(np.nan), 0.5, left_out=NONE_OUT)),
    "groups threshold": (NonFiniteError, lambda: kernels.near_groups(f32(3, 9), np.nan, left_out=NONE_OUT)),
    "groups length": (ShapeError, lambda: kernels.near_groups(f32(3, 9), 0.5, left_out=NONE_OUT[:2])),
    "groups type": (DTypeError, lambda: kernels.near_groups(f32(3, 9), 0.5, left_out=NONE_OUT.view(np.bool_))),
    "pairs threshold": (NonFiniteError, lambda: kernels.pairs_above(f32(3, 9), np.nan, max_pairs=1)),
    "pairs max": (InvalidValue, lambda: kernels.pairs_above(f32(3, 9), 0.5, max_pairs=-1)),
    "uuid7_batch negative": (InvalidValue, lambda: kernels.uuid7_batch(-1)),
    "uuid7_batch float": (DTypeError, lambda: kernels.uuid7_batch(1.5)),  # type: ignore[arg-type]
    "sha256 text": (DTypeError, lambda: kernels.sha256_batch(["a"])),  # type: ignore[list-item]
    "sha256 wide view": (DTypeError, lambda: kernels.sha256_batch([memoryview(np.ones(4))])),  # type: ignore[list-item]
    "spans data": (DTypeError, lambda: kernels.sha256_spans(np.ones(3, np.int8), np.array([0, 3]))),  # type: ignore[arg-type]
    "spans offsets float": (DTypeError, lambda: kernels.sha256_spans(np.ones(3, np.uint8), np.array([0.0, 3.0]))),  # type: ignore[arg-type]
    "spans no offsets": (ShapeError, lambda: kernels.sha256_spans(np.ones(3, np.uint8), np.empty(0, np.int64))),
    "spans decreasing": (InvalidValue, lambda: kernels.sha256_spans(np.ones(3, np.uint8), np.array([0, 2, 1]))),
    "spans beyond": (InvalidValue, lambda: kernels.sha256_spans(np.ones(3, np.uint8), np.array([0, 4], np.int32))),
    "spans negative": (InvalidValue, lambda: kernels.sha256_spans(np.ones(3, np.uint8), np.array([-1, 3], np.int32))),
    "tokens bytes": (DTypeError, lambda: kernels.estimate_tokens(b"a", estimator=HALF)),  # type: ignore[arg-type]
    "tokens estimator": (DTypeError, lambda: kernels.estimate_tokens("a", estimator=3.5)),  # type: ignore[arg-type]
    "tokens batch": (DTypeError, lambda: kernels.estimate_tokens_batch([b"a"], estimator=HALF)),  # type: ignore[list-item]
    "tokens spans": (
        InvalidValue,
        lambda: kernels.estimate_tokens_spans(np.ones(3, np.uint8), np.array([0, 4]), estimator=HALF),
    ),
    "truncate limit": (DTypeError, lambda: kernels.truncate_to_tokens("a", 1.5, estimator=HALF)),  # type: ignore[arg-type]
    "truncate text": (DTypeError, lambda: kernels.truncate_to_tokens(None, 1, estimator=HALF)),  # type: ignore[arg-type]
    "divisor 0": (InvalidValue, lambda: kernels.BytesEstimator(0)),
    "divisor negative": (InvalidValue, lambda: kernels.BytesEstimator(-3.5)),
    "divisor NaN": (InvalidValue, lambda: kernels.BytesEstimator(float("nan"))),
    "divisor inf": (InvalidValue, lambda: kernels.BytesEstimator(float("inf"))),
    "divisor digits": (InvalidValue, lambda: kernels.BytesEstimator(1 / 3)),
    "divisor text": (DTypeError, lambda: kernels.BytesEstimator("3.5")),  # type: ignore[arg-type]
    "rank dtype": (DTypeError, lambda: fill(replace(columns(), tokens=np.ones(3, np.int64)))),
    "rank length": (ShapeError, lambda: fill(replace(columns(), age_us=np.ones(2, np.int64)))),
    "rank tie shape": (ShapeError, lambda: fill(replace(columns(), tie=np.ones((3, 1), np.uint64)))),
    "rank relevance NaN": (NonFiniteError, lambda: fill(replace(columns(), relevance=with_value(np.nan)[2, 6:]))),
    "rank relevance inf": (NonFiniteError, lambda: fill(replace(columns(), relevance=with_value(np.inf)[2, 6:]))),
    "rank tokens": (InvalidValue, lambda: fill(replace(columns(), tokens=np.array([1, -1, 1], np.int32)))),
    "rank section": (InvalidValue, lambda: fill(replace(columns(), section=np.array([0, 1, 0], np.int32)))),
    "rank section negative": (InvalidValue, lambda: fill(replace(columns(), section=np.array([0, -1, 0], np.int32)))),
    "rank group": (InvalidValue, lambda: fill(replace(columns(), group=np.array([0, -2, 0], np.int32)))),
    "rank group over sections": (
        InvalidValue,
        lambda: fill(
            replace(columns(), group=np.array([7, -1, 7], np.int32), section=np.array([0, 0, 1], np.int32)),
            section_budget=np.array([-1, -1], np.int32),
            section_overhead=np.array([0, 0], np.int32),
        ),
    ),
    "rank budget": (InvalidValue, lambda: fill(budget=-1)),
    "rank budget float": (DTypeError, lambda: fill(budget=1.0)),
    "rank section_budget": (InvalidValue, lambda: fill(section_budget=np.array([-2], np.int32))),
    "rank overhead": (InvalidValue, lambda: fill(section_overhead=np.array([-1], np.int32))),
    "rank overhead length": (ShapeError, lambda: fill(section_overhead=np.array([0, 0], np.int32))),
    "rank separator": (InvalidValue, lambda: fill(separator_tokens=-1)),
    "rank min_relevance": (NonFiniteError, lambda: fill(min_relevance=np.nan)),
}


@each("case", WRONG)
def test_wrong_input_is_a_typed_error(case: str) -> None:
    kind, call = WRONG[case]
    with pytest.raises(InputError) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.context["field"]


def test_a_refused_append_adds_nothing() -> None:
    matrix = kernels.VectorMatrix(9)
    matrix.append(f32(2, 9))
    before = matrix.snapshot()
    with pytest.raises(NonFiniteError):
        matrix.append(with_value(np.nan))
    assert (matrix.size, len(matrix), matrix.snapshot()) == (2, 2, before)


def test_empty_input_is_not_wrong() -> None:
    ids, scores = kernels.cosine_topk(f32(0, 9), f32(9), 5)
    assert (ids.dtype, ids.shape, scores.dtype, scores.shape) == (np.int64, (0,), np.float32, (0,))
    assert kernels.cosine_batch(f32(0, 9), f32(2, 9)).shape == (2, 0)
    assert kernels.cosine_batch(f32(2, 9), f32(0, 9)).shape == (0, 2)
    assert kernels.near_groups(f32(1, 9), 0.0, left_out=NONE_OUT[:1]).tolist() == [-1]
    assert kernels.near_groups(f32(0, 9), 0.0, left_out=NONE_OUT[:0]).tolist() == []
    assert kernels.pairs_above(f32(1, 9), 0.0, max_pairs=9).index.shape == (0, 2)
    assert kernels.pairs_above(f32(0, 9), 0.0, max_pairs=9).index.shape == (0, 2)
    assert kernels.uuid7_batch(0).shape == (0, 16)
    assert kernels.sha256_batch([]).shape == (0, 32)
    assert kernels.estimate_tokens_batch([], estimator=HALF).shape == (0,)
    order, decision = fill(columns(0))
    assert (order.shape, decision.shape) == ((0,), (0,))
    matrix = kernels.VectorMatrix(3)
    assert matrix.topk(f32(3), 4)[0].shape == (0,)
    assert matrix.append(f32(0, 3)).shape == (0,)
    assert matrix.compact().shape == (0,)


IN = FillDecision.INCLUDED
NO_BUDGET = FillDecision.EXCLUDED_BUDGET
NO_SECTION = FillDecision.EXCLUDED_SECTION_BUDGET
NO_GROUP = FillDecision.EXCLUDED_GROUP
NO_RELEVANCE = FillDecision.EXCLUDED_RELEVANCE


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
