"""Codes: bounds that always hold, and searches that equal scoring every row. csrc/vectors/codes.h; C-190.

The twin here is the search without codes, which test_vectors_properties.py holds to NumPy bit for bit.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.evidence import examples, scale, share
from support.kernels.instruction_sets import COMPILED, EMULATED, LOCAL, running_on, searched
from support.kernels.native_builds import build, on_path, with_fault
from support.kernels.twins import vectors as twins
from support.kernels.vector_kernels import row_sums, score_bounds
from support.kernels.vector_problems import KINDS, Problem, drawn, segment_of

from caliber import kernels
from caliber.kernels.dispatch import running
from caliber.kernels.vectors import scoring

METRICS = {"cosine": twins.COSINE, "l2": twins.L2, "inner_product": twins.INNER_PRODUCT}
DIMENSIONS = st.sampled_from([64, 65, 66, 95, 96, 97, 127, 128, 129, 200, 255, 256, 257, 384])
SCALES = st.sampled_from([1.0, 1e-3, 1e3, 1e-38, 1e-42, 3e37, 1e19, 1e-19])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n = draw(st.sampled_from([1, 63, 64, 65, 200, 300, 400, 511, 512, 513]))
    return drawn(draw(st.integers(0, 2**32)), n, draw(DIMENSIONS), draw(st.sampled_from(KINDS)), draw(SCALES))


def check_bounds(problem: Problem, metric: int) -> None:
    """Assert that every score lies in its bounds, and that the filter passes whatever reaches a threshold."""
    if not problem.query.any():
        return
    segment = segment_of(problem.rows)
    scores = twins.scores(problem.rows, problem.query, metric=metric)
    for threshold in {
        -math.inf,
        float(np.sort(scores)[scores.size // 2]),
        float(scores.max()),
        float(scores[0]),
        math.inf,
    }:
        lower, upper, passed = score_bounds(segment, problem.query, threshold, metric=metric)
        assert (lower <= scores).all(), problem.kind
        assert (scores <= upper).all(), problem.kind
        assert passed[scores >= threshold].all(), problem.kind


def check_search(problem: Problem, metric: int, k: int, *, seed: int) -> None:
    """Assert that a search with codes gives the bits of the twin, over two segments, with all that narrows it."""
    generator = np.random.default_rng(seed)
    rows, query = problem.rows, problem.query
    n = rows.shape[0]
    live = (generator.random(n) < 0.8).astype(np.uint8)
    mask = generator.random(n) < generator.choice([0.02, 0.5, 1.0])
    live[-1] = mask[-1] = 1
    scores = twins.scores(rows, query, metric=metric)
    floor = float(generator.choice(scores))
    tie = generator.integers(0, 3, (n, 2)).astype(np.uint64)
    for cut, flags, asked_mask, asked_floor, asked_tie in (
        (n // 2, None, None, None, None),
        (int(generator.integers(0, n + 1)), live, mask, None, tie),
        (max(0, n - 9), live, mask, None, None),
        (1, None, None, floor, tie),
        (n, live, None, floor, None),
    ):
        parts = [segment_of(part) for part in (rows[:cut], rows[cut:])]
        keep = np.ones(n, np.bool_)
        if flags is not None:
            parts = [p._replace(live=f) for p, f in zip(parts, (flags[:cut], flags[cut:]), strict=True)]
            keep &= flags.astype(np.bool_)
        if asked_mask is not None:
            keep &= asked_mask
        asked = scoring.bounds(n, k, asked_floor, asked_mask, asked_tie)
        ((ids, found),) = scoring.search(parts, rows.shape[1], metric, query[None], asked)
        every = np.flatnonzero(keep & (scores >= np.float32(asked.floor)))
        expected = every[twins.canonical_order(scores[every], every, asked_tie)[:k]]
        assert ids.tolist() == expected.tolist(), problem.kind
        assert found.tobytes() == scores[expected].tobytes(), problem.kind


def check_close_scores() -> None:
    """Assert the same where codes leave nothing open, and a bin of bounds holds several scores."""
    generator = np.random.default_rng(5)
    rows = generator.choice(np.array([-1, 1], np.float32), (256, 4096))
    query = np.zeros(4096, np.float32)
    query[::2] = 1
    segment = segment_of(rows)
    for metric in METRICS.values():
        expected = twins.scores(rows, query, metric=metric)
        order = np.lexsort((np.arange(256), -expected))
        for k in range(1, 33):
            asked = scoring.bounds(256, k, None, None, None)
            ((ids, scores),) = scoring.search([segment], 4096, metric, query[None], asked)
            assert ids.tolist() == order[:k].tolist()
            assert scores.tobytes() == expected[order[:k]].tobytes()


def check_pairs(problem: Problem, *, seed: int) -> None:
    """Assert that the pairs found by codes are those of the twin, cut off anywhere."""
    generator = np.random.default_rng(seed)
    rows = problem.rows[: int(generator.integers(60, 140))]
    n = rows.shape[0]
    everything = twins.pairs_above(rows, -1.0, max_pairs=n * n)
    scores = everything[1]
    for threshold in (float(generator.choice(scores)) if n > 1 else 0.5, 0.0, 0.9, 1.0):
        reached = scores >= np.float32(threshold)
        total = int(reached.sum())
        for limit in {0, 1, total // 2, max(0, total - 1), total, total + 1}:
            pairs = kernels.pairs_above(rows, threshold, max_pairs=limit)
            # Not as lists: making them took most of the time of this file.
            assert np.array_equal(pairs.index, everything[0][reached][:limit]), problem.kind
            assert pairs.score.tobytes() == scores[reached][:limit].tobytes(), problem.kind
            assert pairs.truncated == (total > limit), problem.kind


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=problems(), seed=st.integers(0, 2**32), examples=scale(50, 1000, daily=12))
def test_pairs_found_by_codes_equal_the_twin(path: str, problem: Problem, seed: int) -> None:
    with running_on(path):
        check_pairs(problem, seed=seed)


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=problems(), seed=st.integers(0, 2**32), examples=scale(50, 1000, daily=12))
def test_groups_found_by_codes_equal_the_twin(path: str, problem: Problem, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = problem.rows[: int(generator.integers(60, 140))]
    scores = twins.pairs_above(rows, -1.0, max_pairs=len(rows) ** 2)[1]
    left_out = (generator.random(len(rows)) < generator.choice([0.0, 0.3])).astype(np.uint8)
    for threshold in (float(generator.choice(scores)) if len(scores) else 0.5, 0.0, 0.9, 1.0):
        with running_on(path):
            found = kernels.near_groups(rows, threshold, left_out=left_out)
        assert found.tolist() == twins.near_groups(rows, threshold, left_out=left_out).tolist(), problem.kind


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=problems())
def test_codes_equal_the_twin(path: str, problem: Problem) -> None:
    stride = scoring.code_stride(problem.rows.shape[1])
    norms = twins.norms(problem.rows)
    with running_on(path):
        made = scoring.code_rows(problem.rows, norms)
    assert made is not None
    for ours, theirs in zip(made, twins.code_rows(problem.rows, norms, stride), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@given(problem=problems())
@settings(max_examples=examples(40, 5000))
def test_errors_of_codes_are_upper_bounds_in_exact_arithmetic(problem: Problem) -> None:
    """b^2 |x|^2 >= |x - |x| a r|^2 up to what |x| is rounded by; rational arithmetic knows no rounding."""
    rows = problem.rows[:3]
    norms = twins.norms(rows)
    codes, scales, errors = twins.code_rows(rows, norms, scoring.code_stride(rows.shape[1]))
    for row, norm, code, one_scale, error in zip(
        rows, norms.tolist(), codes, scales.tolist(), errors.tolist(), strict=True
    ):
        if norm == 0.0:
            assert error == 0.0
            continue
        step = Fraction(one_scale) * Fraction(norm)
        left = sum(
            ((Fraction(x) - step * (int(c) - 128)) ** 2 for x, c in zip(row.tolist(), code.tolist(), strict=False)),
            Fraction(0),
        )
        assert left <= (Fraction(error) * Fraction(norm)) ** 2


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@searched(problem=problems())
def test_scores_lie_within_their_bounds(path: str, metric: str, problem: Problem) -> None:
    with running_on(path):
        check_bounds(problem, METRICS[metric])


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@searched(problem=problems(), k=st.sampled_from([1, 2, 3, 20, 50, 64, 10_000]), seed=st.integers(0, 2**32))
def test_a_search_with_codes_equals_one_without(path: str, metric: str, problem: Problem, k: int, seed: int) -> None:
    with running_on(path):
        check_search(problem, METRICS[metric], k, seed=seed)


@pytest.mark.parametrize("metric", METRICS)
@given(problem=problems())
def test_bounds_are_the_same_on_every_path(metric: str, problem: Problem) -> None:
    if not problem.query.any():
        return
    seen = set()
    for path in COMPILED:
        with running_on(path):
            segment = segment_of(problem.rows)
            answers = score_bounds(segment, problem.query, 0.1, metric=METRICS[metric])
        seen.add(b"".join(answer.tobytes() for answer in answers))
    assert len(seen) == 1


# An emulated path is given one of the metrics, as each takes its time; check_search draws the others.
SEARCHES = [*product(LOCAL, METRICS), *zip(EMULATED, METRICS, strict=False)]


@pytest.mark.parametrize(("path", "metric"), SEARCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_searches_of_every_kind_equal_the_twin(path: str, metric: str, kind: str) -> None:
    """Against NumPy itself, through the public class, over more than one segment of it."""
    problem = drawn(7, 4500, 128, kind, 1.0)
    matrix = kernels.VectorMatrix(128, metric)
    with running_on(path):
        matrix.append(problem.rows)
        for k in (1, 20, 500):
            ids, scores = matrix.topk(problem.query, k)
            expected = twins.topk(problem.rows, problem.query, k, metric=METRICS[metric])
            assert ids.tolist() == expected[0].tolist()
            assert scores.tobytes() == expected[1].tobytes()


@pytest.mark.parametrize("path", LOCAL)
def test_scores_closer_than_a_bin_equal_the_twin(path: str) -> None:
    with running_on(path):
        check_close_scores()


@pytest.mark.parametrize("path", COMPILED)
def test_many_queries_equal_one_at_a_time(path: str) -> None:
    generator = np.random.default_rng(3)
    matrix = kernels.VectorMatrix(96)
    queries = generator.standard_normal((150, 96), dtype=np.float32)
    queries[[0, 70, 149]] = 0  # without a direction, among others that have one
    with running_on(path):
        matrix.append(generator.standard_normal((5000, 96), dtype=np.float32))
        matrix.retire(np.arange(0, 5000, 7))
        for query, (ids, scores) in zip(queries, matrix.topk_many(queries, 11, min_similarity=-0.5), strict=True):
            alone = matrix.topk(query, 11, min_similarity=-0.5)
            assert ids.tolist() == alone[0].tolist()
            assert scores.tobytes() == alone[1].tobytes()


# --- faults that these tests must see ----------------------------------------------------------

# File of csrc/, what stands there, what stands there instead.
MUTANTS = {
    "bound halved": ("vectors/codes.h", "middle - radius, high = middle + radius",
                     "middle - radius / 2, high = middle + radius / 2"),
    "bound of the filter halved": (
        "vectors/vectors_avx2.c",
        "_mm256_mul_ps(_mm256_loadu_ps(errors + i), weight)",
        "_mm256_mul_ps(_mm256_loadu_ps(errors + i), _mm256_set1_ps((float)(0.5 / query->scale)))",
    ),
    "row error forgotten": ("vectors/codes.h", "* query->error + (double)error +", "* query->error +"),
    "query error forgotten": ("vectors/codes.h", "(1.0 + (double)error) * query->error", "0.0 * query->error"),
    "tie order flipped": ("heap.h", "return a < b;", "return a > b;"),
    "tie column flipped": ("heap.h", "return x[0] < y[0];", "return x[0] > y[0];"),
    "equal to the threshold dropped": ("vectors/topk.c", "if (!(s->waiting[i].upper < s->threshold)) {",
                                       "if (s->waiting[i].upper > s->threshold) {"),
    "best candidate lost": ("vectors/topk.c", "for (size_t i = 0; i < s->waiting_count;) {",
                            "for (size_t i = 1; i < s->waiting_count;) {"),
    "first of a bin for its lowest": ("vectors/topk.c", "if (one->count++ == 0 || floor < one->lowest) {",
                                      "if (one->count++ == 0) {"),
    "floor of half as many": ("vectors/topk.c", "].count >= s->k) {", "].count >= (s->k + 1) / 2) {"),
    "bins the wrong way round": ("vectors/topk.c", "at < CAL_BINS - 1 ? (size_t)at :",
                                 "at < CAL_BINS - 1 ? CAL_BINS - 1 - (size_t)at :"),
    "equal to the threshold not scored": ("vectors/topk.c", "if (!(next->upper < s->threshold)) {",
                                          "if (next->upper > s->threshold) {"),
    "last row lost": ("vectors/topk.c",
                      "for (size_t i = 0; i < segment->count; i += CAL_BLOCK) {\n            const size_t count",
                      "for (size_t i = 0; i + 1 < segment->count; i += CAL_BLOCK) {\n            const size_t count"),
    "last codes lost": ("vectors/vectors_avx2.c",
                        "for (size_t j = 0; j < stride; j += 32) {\n            const __m256i q",
                        "for (size_t j = 0; j + 32 < stride; j += 32) {\n            const __m256i q"),
    "tail of a row lost": ("vectors/codes.c", "for (size_t i = whole; i < dimensions; i++) {",
                           "for (size_t i = whole; i + 1 < dimensions; i++) {"),
    "retired rows found": ("vectors/topk.c", "if (segment->live) {", "if (!segment) {"),
    "mask of the wrong row": ("vectors/topk.c", "set_flags(mask + first, count)", "set_flags(mask, count)"),
    "eight flags for one": ("vectors/topk.c", "} else if (eight != 0) {", "} else if (0) {"),
    "sums saturated": ("vectors/codes.c", "most * shrink / 127.0", "most * shrink / 150.0"),
    "limit of pairs raised too early": ("vectors/pairs.c", "if (s->truncated && s->best.capacity > 0) {",
                                        "if (s->best.count > 0) {"),
    "pair of neighbours lost": ("vectors/pairs.c", "block : first + q + 1;", "block : first + q + 2;"),
    "pairs of zero rows lost": ("vectors/pairs.c", "for (size_t j = first + q + 1; j",
                                "for (size_t j = first + q + 2; j"),
    "lanes folded in another order": ("vectors/vectors_avx2.c", "_mm256_add_pd(low, high);",
                                      "_mm256_hadd_pd(low, high);"),
    "tail of one element lost": ("vectors/vectors_avx2.c", "if (whole != dimensions) {",
                                 "if (whole + 1 < dimensions) {"),
    "upper lanes of differences from the lower query": (
        "vectors/vectors_avx2.c",
        "_mm256_sub_pd(widen_high(row), query_high)",
        "_mm256_sub_pd(widen_high(row), query_low)",
    ),
    "bound of the filter of products halved": (
        "vectors/vectors_avx2.c",
        "const __m256d error = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(errors)), weight);",
        "const __m256d error = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(errors)), _mm256_set1_pd(0.5));",
    ),
    "filter's answers one row off": ("vectors/vectors_avx2.c",
                                     "_mm256_movemask_ps(_mm256_cmp_ps(upper, least, _CMP_NLT_UQ)) << i;",
                                     "_mm256_movemask_ps(_mm256_cmp_ps(upper, least, _CMP_NLT_UQ)) << (i + 1);"),
    "plain C: seven lanes": ("vectors/vectors_scalar.c", "lane[i % LANES] += (double)row[i] * (double)query[i];",
                             "lane[i % 7] += (double)row[i] * (double)query[i];"),
    "plain C: seven lanes of differences": ("vectors/vectors_scalar.c", "lane[i % LANES] += difference * difference;",
                                            "lane[i % 7] += difference * difference;"),
    "plain C: last code lost": ("vectors/vectors_scalar.c", "for (size_t j = 0; j < stride; j++) {",
                                "for (size_t j = 0; j + 1 < stride; j++) {"),
    "plain C: bound of the filter halved": ("vectors/vectors_scalar.c", "errors[i] * weight;",
                                            "errors[i] * (float)(0.5 / query->scale);"),
    "plain C: bound of the filter of products halved": (
        "vectors/vectors_scalar.c", "((double)errors[i] * weight + constant)", "((double)errors[i] * 0.5 + constant)"
    ),
}  # fmt: skip


def every_check() -> None:
    """Run the tests above over a fixed set of problems."""
    for number, kind in enumerate(KINDS):
        for metric in METRICS.values():
            for dimensions, n in ((65, 300), (128, 515)):
                problem = drawn(number, n, dimensions, kind, 1.0)
                segment = segment_of(problem.rows)
                assert segment.codes is not None
                expected = twins.code_rows(problem.rows, segment.norms, scoring.code_stride(dimensions))
                assert all((ours == twin).all() for ours, twin in zip(segment.codes, expected, strict=True))
                sums = row_sums(problem.rows, problem.query, metric=metric)
                assert (sums == twins.sums(problem.rows, problem.query, metric=metric)).all()
                check_bounds(problem, metric)
                check_search(problem, metric, 20, seed=number)
        check_pairs(drawn(number, 140, 65, kind, 1.0), seed=number)
    check_close_scores()


@pytest.mark.prove
@pytest.mark.parametrize("path", LOCAL)
def test_the_kernels_built_for_mutants_are_right_without_one(path: str, unchanged: Path, tmp_path: Path) -> None:
    with running(on_path(build(tmp_path / "built", unchanged=unchanged), path)):
        every_check()


@pytest.mark.prove
@pytest.mark.parametrize("name", share(MUTANTS, 3))
def test_a_planted_fault_is_seen(name: str, unchanged: Path, tmp_path: Path) -> None:
    with running(with_fault(MUTANTS[name], tmp_path / "built", unchanged)), pytest.raises(AssertionError):
        every_check()
