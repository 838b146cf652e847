"""Vector kernels against the twins, bit for bit, on every instruction set. Design section 5, "Determinism"."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.evidence import examples, proving
from support.kernels.instruction_sets import COMPILED, running_on, searched
from support.kernels.twins import vectors as twins
from support.kernels.vector_kernels import row_sums

from caliber import kernels
from caliber.kernels.vectors import scoring

METRICS = {"cosine": twins.COSINE, "l2": twins.L2, "inner_product": twins.INNER_PRODUCT}
# Around the edges of eight lanes, four rows and a whole register, up to a usual embedding.
LENGTHS = [*range(1, 34), 63, 64, 65, 384] if proving() else [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 384]
DIMENSIONS = st.one_of(st.integers(1, 33), st.sampled_from([63, 64, 65, 255, 256, 257]))
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1e-20, 1e20]
VALUES = st.one_of(
    st.sampled_from(SPECIAL),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-3, 3).map(float),  # many equal scores
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Rows and a query at any element offset within a cache line, so that vector loads are unaligned."""
    n, dimensions = draw(st.integers(0, 11)), draw(DIMENSIONS)
    values = draw(hnp.arrays(np.float32, (n + 1, dimensions), elements=VALUES, fill=VALUES))
    start = draw(st.integers(0, 15))
    buffer = np.empty(start + n * dimensions, np.float32)
    rows = buffer[start:].reshape(n, dimensions)
    rows[:] = values[:n]
    query = np.concatenate([np.zeros(start, np.float32), values[n]])[start:]
    return rows, query


def same_bits(left: np.ndarray, right: np.ndarray) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes(), (left, right)


def matrix_of(rows: np.ndarray, metric: str = "cosine") -> kernels.VectorMatrix:
    matrix = kernels.VectorMatrix(rows.shape[1], metric)
    matrix.append(rows)
    return matrix


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@searched(problem=problems())
def test_sums_equal_the_twin_before_rounding(path: str, metric: str, problem: tuple[np.ndarray, np.ndarray]) -> None:
    """In f64, because rounding to f32 hides a wrong order of additions in all but one case of half a billion."""
    rows, query = problem
    with running_on(path):
        found = row_sums(rows, query, metric=METRICS[metric])
        norms = scoring.row_norms(rows, field="rows")
    same_bits(found, twins.sums(rows, query, metric=METRICS[metric]))
    same_bits(norms, twins.norms(rows))


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dimensions", LENGTHS)
def test_sums_of_random_rows_equal_the_twin(path: str, metric: str, dimensions: int) -> None:
    generator = np.random.default_rng(dimensions)
    rows = generator.standard_normal((50, dimensions), dtype=np.float32)
    query = generator.standard_normal(dimensions, dtype=np.float32)
    with running_on(path):
        found = row_sums(rows, query, metric=METRICS[metric])
    same_bits(found, twins.sums(rows, query, metric=METRICS[metric]))


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@searched(problem=problems())
def test_scores_equal_the_twin(path: str, metric: str, problem: tuple[np.ndarray, np.ndarray]) -> None:
    rows, query = problem
    expected = twins.scores(rows, query, metric=METRICS[metric])
    with running_on(path):
        snapshot = matrix_of(rows, metric).snapshot()
        same_bits(snapshot.scores(query, np.arange(rows.shape[0])), expected)
        backwards = np.arange(rows.shape[0])[::-1]
        same_bits(snapshot.scores(query, backwards), np.ascontiguousarray(expected[::-1]))


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("metric", METRICS)
@searched(problem=problems(), data=st.data())
def test_topk_equals_the_twin(
    path: str, metric: str, problem: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    rows, query = problem
    n = rows.shape[0]
    mask = data.draw(st.none() | hnp.arrays(np.bool_, n))
    tie = data.draw(st.none() | hnp.arrays(np.uint64, (n, 2), elements=st.sampled_from([0, 1, 2**64 - 1])))
    retired = np.flatnonzero(data.draw(hnp.arrays(np.bool_, n)))
    scores = twins.scores(rows, query, metric=METRICS[metric])
    floor = data.draw(st.none() | st.floats(-1, 1) | st.sampled_from([float(s) for s in scores] or [0.0]))
    k = data.draw(st.integers(0, n + 2))
    keep = np.ones(n, np.bool_) if mask is None else mask.copy()
    keep[retired] = False
    expected = twins.topk(
        rows, query, k, metric=METRICS[metric], min_similarity=-math.inf if floor is None else floor, keep=keep, tie=tie
    )
    with running_on(path):
        matrix = matrix_of(rows, metric)
        matrix.retire(retired)
        ids, found = matrix.topk(query, k, min_similarity=floor, mask=mask, tie=tie)
    same_bits(ids, expected[0])
    same_bits(found, expected[1])


@pytest.mark.parametrize("path", COMPILED)
@searched(problem=problems(), data=st.data())
def test_cosine_functions_equal_the_twins(
    path: str, problem: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    rows, query = problem
    n = rows.shape[0]
    k = data.draw(st.integers(0, n + 1))
    threshold = data.draw(st.floats(-1, 1) | st.sampled_from([0.0, 1.0, -1.0]))
    limit = data.draw(st.integers(0, 60))
    left_out = np.array(data.draw(st.lists(st.sampled_from([0, 0, 1, 255]), min_size=n, max_size=n)), np.uint8)
    with running_on(path):
        ids, scores = kernels.cosine_topk(rows, query, k)
        batch = kernels.cosine_batch(rows, np.stack([query, -query, query]))
        pairs = kernels.pairs_above(rows, threshold, max_pairs=limit)
        groups = kernels.near_groups(rows, threshold, left_out=left_out)
    same_bits(groups, twins.near_groups(rows, threshold, left_out=left_out))
    expected_ids, expected_scores = twins.topk(rows, query, k)
    same_bits(ids, expected_ids)
    same_bits(scores, expected_scores)
    same_bits(batch, np.stack([twins.scores(rows, each, metric=twins.COSINE) for each in (query, -query, query)]))
    index, score, truncated = twins.pairs_above(rows, threshold, max_pairs=limit)
    same_bits(pairs.index, index)
    same_bits(pairs.score, score)
    assert pairs.truncated == truncated


def test_the_twin_adds_in_the_order_it_states() -> None:
    """Lane i mod 8 in index order, then 4-2-1: worked out by hand in Python floats, one addition at a time."""
    generator = np.random.default_rng(3)
    for dimensions in (1, 7, 8, 9, 20, 384):
        row = generator.standard_normal(dimensions, dtype=np.float32)
        query = generator.standard_normal(dimensions, dtype=np.float32)
        lane = [0.0] * 8
        for i, (a, b) in enumerate(zip(row.tolist(), query.tolist(), strict=True)):
            lane[i % 8] += a * b
        four = [lane[j] + lane[j + 4] for j in range(4)]
        two = [four[j] + four[j + 2] for j in range(2)]
        assert twins.sums(row[np.newaxis], query, metric=twins.COSINE)[0] == two[0] + two[1]


@given(problem=problems())
@settings(max_examples=examples(60))
def test_the_twin_itself_is_close_to_the_exact_value(problem: tuple[np.ndarray, np.ndarray]) -> None:
    """The twin and C could agree on nonsense: compare with rational arithmetic."""
    rows, query = problem
    found = twins.scores(rows, query, metric=twins.INNER_PRODUCT).astype(np.float64)
    for row, score in zip(rows.tolist(), found.tolist(), strict=True):
        terms = [Fraction(a) * Fraction(b) for a, b in zip(row, query.tolist(), strict=True)]
        exact, size = sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))
        # 2^-24 for the rounding to f32, n * 2^-53 of the terms' size for the sum, half the smallest denormal.
        bound = abs(exact) / 2**24 + size * len(terms) / 2**52 + Fraction(2) ** -149
        if math.isinf(score):
            # Only a sum that may be beyond f32 rounds to infinity, and then with its own sign.
            assert (exact if score > 0 else -exact) + bound >= Fraction(float(np.finfo(np.float32).max))
        else:
            assert abs(Fraction(score) - exact) <= bound


@pytest.mark.parametrize("path", COMPILED)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 4095, 4096, 4097, 9000])
def test_search_over_segments_equals_the_twin(path: str, n: int) -> None:
    generator = np.random.default_rng(n)
    rows = generator.integers(-2, 3, (n, 12)).astype(np.float32)  # few values, so many ties
    tie = generator.integers(0, 3, (n, 2)).astype(np.uint64)
    mask = generator.random(n) < 0.9
    retired = np.flatnonzero(generator.random(n) < 0.2)
    keep = mask.copy()
    keep[retired] = False
    for k in (1, 20, n):
        query = generator.integers(-2, 3, 12).astype(np.float32)
        expected = twins.topk(rows, query, k, keep=keep, tie=tie)
        with running_on(path):
            matrix = kernels.VectorMatrix(12)
            for chunk in np.array_split(rows, 7):
                matrix.append(np.ascontiguousarray(chunk))
            matrix.retire(retired)
            ids, scores = matrix.topk(query, k, mask=mask, tie=tie)
        same_bits(ids, expected[0])
        same_bits(scores, expected[1])


GUARD = """
import ctypes, mmap, sys
import numpy as np
from caliber import kernels
from caliber.kernels import dispatch
from caliber.kernels.vectors import scoring
page = 64 * mmap.PAGESIZE
area = mmap.mmap(-1, page + mmap.PAGESIZE)
raw = np.frombuffer(area, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
if libc.mprotect(ctypes.c_void_p(raw.ctypes.data + page), ctypes.c_size_t(mmap.PAGESIZE), 0):
    sys.exit(3)
def at_end(array):
    place = raw[page - array.nbytes : page].view(array.dtype).reshape(array.shape)
    place[...] = array
    return place
generator = np.random.default_rng(1)
for path in kernels.available_paths():
    with kernels.forced_path(path):
        for d in range(1, 34):
            rows = generator.standard_normal((5, d), dtype=np.float32)
            kernels.cosine_topk(at_end(rows), rows[0].copy(), 3)
            kernels.cosine_batch(rows, at_end(rows))
            kernels.pairs_above(at_end(rows), 0.0, max_pairs=9)
            kernels.near_groups(at_end(rows), 0.0, left_out=np.zeros(5, np.uint8))
        for d in (64, 65, 127, 128):
            rows = generator.standard_normal((300, d), dtype=np.float32)
            norms = scoring.row_norms(rows, field="rows")
            codes = scoring.code_rows(rows, norms)
            for n in (257, 260, 263, 300):
                part = codes.part(300 - n, 300)
                ended = scoring.Codes(at_end(part.codes), part.scales, part.errors)
                segment = scoring.Segment(rows[300 - n :], norms[300 - n :], ended, None, n)
                scoring.search([segment], d, 0, rows[:1], scoring.bounds(n, 5, None, None, None))
        for n in range(130):
            kernels.sha256_spans(at_end(np.ones(n, np.uint8)), np.array([0, n]))
            kernels.sha256_spans(at_end(np.ones(n, np.uint8)), np.array([n // 2, n]))
            kernels.sha256_spans(at_end(np.ones(20 * n, np.uint8)), np.arange(21) * n)
if "avx2" in kernels.available_paths():  # eight spans at once, as on CPUs without SHA-NI
    native = dispatch.native()
    dispatch._chosen = native._replace(features=native.lib.CAL_CPU_AVX2)
    for n in range(130):
        kernels.sha256_spans(at_end(np.ones(20 * n, np.uint8)), np.arange(21) * n)
print("ok")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="uses mprotect through the C library")
def test_no_kernel_reads_past_the_end_of_its_input() -> None:
    """Inputs end where an unreadable page begins: one byte too far kills the child."""
    done = subprocess.run([sys.executable, "-c", GUARD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr
