"""Kernels against the libraries people would use instead. Goals: design section 9."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import pytest
import simsimd
import usearch
import uuid_utils
import uuid_utils.compat
from usearch.index import MetricKind
from usearch.index import search as usearch_search

from caliber import kernels

faiss.omp_set_num_threads(1)

PATHS = kernels.available_paths()
NATIVE = [path for path in PATHS if path != "off"]
BEST = PATHS[-1]
SEED = int(os.environ.get("CALIBER_SEED", "1"))
DIMENSIONS, K = 384, 20
NUMPY = f"NumPy {np.__version__}"
FAISS = f"faiss {faiss.__version__} IndexFlatIP"
FAISS_SQ8 = f"faiss {faiss.__version__} SQ8 + refine"
SIMSIMD = f"simsimd {simsimd.__version__}"
USEARCH = f"usearch {usearch.__version__} exact"
UUID_UTILS = f"uuid_utils.compat {uuid_utils.__version__}"

pytestmark = pytest.mark.benchmark(min_rounds=15, max_time=0.5, warmup=True, warmup_iterations=2)


def ours(benchmark: Any, task: str, path: str, goal: float | None = None) -> None:
    """Describe one of our rows; only the best path of this machine carries the goal."""
    benchmark.group = task
    benchmark.extra_info["label"] = path
    if goal is not None and path == BEST:
        benchmark.extra_info["goal"] = goal


def peer(benchmark: Any, task: str, name: str) -> None:
    """Describe a peer's row."""
    benchmark.group = task
    benchmark.extra_info["peer"] = name


class Searching:
    """The same rows, prepared for each library, and a query that is not one of them."""

    def __init__(self, n: int) -> None:
        generator = np.random.default_rng(SEED)
        self.task = f"top-{K} cosine, {n // 1000}k x {DIMENSIONS}"
        self.rows = generator.standard_normal((n, DIMENSIONS), dtype=np.float32)
        self.query = self.rows[n // 3] + generator.standard_normal(DIMENSIONS, dtype=np.float32)
        self.unit = self.rows / np.linalg.norm(self.rows, axis=1, keepdims=True)
        self.unit_query = self.query / np.linalg.norm(self.query)
        matrix = kernels.VectorMatrix(DIMENSIONS)
        matrix.append(self.rows)
        self.snapshot = matrix.snapshot()
        self.index = faiss.IndexFlatIP(DIMENSIONS)
        self.index.add(self.unit)
        # Refining 5 * K candidates of a byte an element finds the same rows here, but does not promise to.
        quantizer = faiss.IndexScalarQuantizer(DIMENSIONS, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        self.refined = faiss.IndexRefineFlat(quantizer)
        self.refined.train(self.unit)
        self.refined.add(self.unit)
        self.refined.k_factor = 5
        self.with_peer = {
            NUMPY: self.with_numpy,
            FAISS: self.with_faiss,
            FAISS_SQ8: self.with_faiss_sq8,
            SIMSIMD: self.with_simsimd,
            USEARCH: self.with_usearch,
        }
        self.expected, self.scores = self.snapshot.topk(self.query, K)

    def with_numpy(self) -> np.ndarray:
        scores = self.unit @ self.unit_query
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    def with_faiss(self) -> np.ndarray:
        return self.index.search(self.unit_query[np.newaxis], K)[1][0]

    def with_faiss_sq8(self) -> np.ndarray:
        return self.refined.search(self.unit_query[np.newaxis], K)[1][0]

    def with_simsimd(self) -> np.ndarray:
        distances = np.asarray(simsimd.cdist(self.query[np.newaxis], self.rows, "cosine")).ravel()
        best = np.argpartition(distances, K)[:K]
        return best[np.argsort(distances[best])]

    def with_usearch(self) -> np.ndarray:
        found = usearch_search(self.unit, self.unit_query, K, MetricKind.IP, exact=True, threads=1)
        return found.keys.astype(np.int64)

    def check(self, ids: np.ndarray) -> None:
        # f32 sums of peers may swap neighbours whose exact scores are closer than their error.
        np.testing.assert_allclose(self.snapshot.scores(self.query, ids.astype(np.int64)), self.scores, atol=2e-6)


@pytest.fixture(scope="module", params=[10_000, 100_000], ids=["10k", "100k"])
def searching(request: pytest.FixtureRequest) -> Searching:
    return Searching(request.param)


@pytest.mark.parametrize("path", PATHS)
def test_topk(benchmark: Any, searching: Searching, path: str) -> None:
    ours(benchmark, searching.task, path, goal=3.0)
    with kernels.forced_path(path):
        ids, scores = searching.snapshot.topk(searching.query, K)
        np.testing.assert_array_equal(ids, searching.expected)
        np.testing.assert_array_equal(scores, searching.scores)
        benchmark(searching.snapshot.topk, searching.query, K)


def test_topk_beside_an_approximate_index(benchmark: Any, searching: Searching) -> None:
    if searching.rows.shape[0] <= 10_000:
        pytest.skip("compared with the others there")
    ours(benchmark, f"{searching.task}, an approximate index", BEST)
    benchmark(searching.snapshot.topk, searching.query, K)


@pytest.mark.parametrize("name", [NUMPY, FAISS, FAISS_SQ8, SIMSIMD, USEARCH])
def test_topk_of_peers(benchmark: Any, searching: Searching, name: str) -> None:
    # What may miss rows is a peer where a pass over the rows is short, and has a table row of its own where it is not.
    aside = name == FAISS_SQ8 and searching.rows.shape[0] > 10_000
    peer(benchmark, f"{searching.task}, an approximate index" if aside else searching.task, name)
    search = searching.with_peer[name]
    searching.check(search())
    benchmark(search)


MANY = 64
MANY_TASK = f"top-{K} cosine of {MANY} queries, 20k x {DIMENSIONS}"


class SearchingMany:
    """Queries at once, against a matrix product."""

    def __init__(self) -> None:
        generator = np.random.default_rng(SEED)
        rows = generator.standard_normal((20_000, DIMENSIONS), dtype=np.float32)
        self.queries = generator.standard_normal((MANY, DIMENSIONS), dtype=np.float32)
        self.columns = np.ascontiguousarray((rows / np.linalg.norm(rows, axis=1, keepdims=True)).T)
        self.units = self.queries / np.linalg.norm(self.queries, axis=1, keepdims=True)
        matrix = kernels.VectorMatrix(DIMENSIONS)
        matrix.append(rows)
        self.snapshot = matrix.snapshot()
        self.expected = self.snapshot.topk_many(self.queries, K)

    def with_numpy(self) -> np.ndarray:
        scores = self.units @ self.columns
        best = np.argpartition(scores, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        return np.take_along_axis(best, order, 1)


@pytest.fixture(scope="module")
def searching_many() -> SearchingMany:
    return SearchingMany()


@pytest.mark.parametrize("path", NATIVE)
def test_topk_many(benchmark: Any, searching_many: SearchingMany, path: str) -> None:
    ours(benchmark, MANY_TASK, path)
    with kernels.forced_path(path):
        found = searching_many.snapshot.topk_many(searching_many.queries, K)
        for (ids, _), (expected, _) in zip(found, searching_many.expected, strict=True):
            np.testing.assert_array_equal(ids, expected)
        benchmark(searching_many.snapshot.topk_many, searching_many.queries, K)


def test_topk_many_of_numpy(benchmark: Any, searching_many: SearchingMany) -> None:
    peer(benchmark, MANY_TASK, f"{NUMPY} GEMM")
    for ids, query, (_, scores) in zip(
        searching_many.with_numpy(), searching_many.queries, searching_many.expected, strict=True
    ):
        np.testing.assert_allclose(searching_many.snapshot.scores(query, ids), scores, atol=2e-6)
    benchmark(searching_many.with_numpy)


PAIRS_TASK = "pairs with cosine >= 0.2, 2k x 384"


def pair_rows() -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal((2000, DIMENSIONS), dtype=np.float32)


def pairs_with_numpy(rows: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    left, right = np.nonzero(np.triu(unit @ unit.T, 1) >= threshold)
    return left, right


@pytest.mark.parametrize("path", NATIVE)
def test_pairs_above(benchmark: Any, path: str) -> None:
    ours(benchmark, PAIRS_TASK, path)
    rows = pair_rows()
    with kernels.forced_path(path):
        found = kernels.pairs_above(rows, 0.2, max_pairs=100_000)
        left, right = pairs_with_numpy(rows, 0.2)
        agreed = set(map(tuple, found.index.tolist())) ^ set(zip(left.tolist(), right.tolist(), strict=True))
        assert len(agreed) <= 2  # pairs within f32's error of the threshold
        benchmark(kernels.pairs_above, rows, 0.2, max_pairs=100_000)


def test_pairs_above_of_numpy(benchmark: Any) -> None:
    peer(benchmark, PAIRS_TASK, f"{NUMPY} GEMM")
    benchmark(pairs_with_numpy, pair_rows(), 0.2)


def test_pairs_of_20k_rows_take_less_than_a_second(figure: Callable[..., None]) -> None:
    rows = np.random.default_rng(SEED).standard_normal((20_000, DIMENSIONS), dtype=np.float32)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        kernels.pairs_above(rows, 0.9, max_pairs=100_000)
        times.append(time.perf_counter() - started)
    figure("pairs with cosine >= 0.9, 20k x 384", sorted(times)[1], "s", at_most=1.0)


UUID_TASK, UUID_BATCH_TASK, UUIDS = "uuid7, one", "uuid7, 10k", 10_000


@pytest.mark.parametrize("path", NATIVE[-1:])
def test_uuid7(benchmark: Any, path: str) -> None:
    ours(benchmark, UUID_TASK, path, goal=2.0)
    with kernels.forced_path(path):
        assert type(kernels.uuid7()) is type(uuid_utils.compat.uuid7()) is uuid.UUID
        benchmark(kernels.uuid7)


def test_uuid7_of_uuid_utils(benchmark: Any) -> None:
    peer(benchmark, UUID_TASK, UUID_UTILS)
    benchmark(uuid_utils.compat.uuid7)


@pytest.mark.parametrize("path", NATIVE[-1:])
def test_uuid7_batch(benchmark: Any, path: str) -> None:
    ours(benchmark, UUID_BATCH_TASK, path, goal=20.0)
    with kernels.forced_path(path):
        benchmark(kernels.uuid7_batch, UUIDS)


def test_uuid7_batch_of_uuid_utils(benchmark: Any) -> None:
    peer(benchmark, UUID_BATCH_TASK, UUID_UTILS)
    benchmark(lambda: [uuid_utils.compat.uuid7().bytes for _ in range(UUIDS)])


SHA_TASK = "sha256, 1k x 512 B"


def items() -> list[bytes]:
    return [os.urandom(512) for _ in range(1000)]


@pytest.mark.parametrize("path", NATIVE)
def test_sha256_batch(benchmark: Any, path: str) -> None:
    ours(benchmark, SHA_TASK, path, goal=1.5)
    data = items()
    with kernels.forced_path(path):
        digests = [row.tobytes() for row in kernels.sha256_batch(data)]
        assert digests == [hashlib.sha256(item).digest() for item in data]
        benchmark(kernels.sha256_batch, data)


def test_sha256_of_hashlib(benchmark: Any) -> None:
    peer(benchmark, SHA_TASK, "hashlib loop")
    data = items()
    benchmark(lambda: [hashlib.sha256(item).digest() for item in data])


TOKENS_TASK = "token estimates, 10k texts"


def texts() -> list[str]:
    generator = np.random.default_rng(SEED)
    return ["word " * int(n) for n in generator.integers(1, 200, 10_000)]


@pytest.mark.parametrize("path", NATIVE[-1:])
def test_estimate_tokens_batch(benchmark: Any, path: str) -> None:
    ours(benchmark, TOKENS_TASK, path)
    data, estimator = texts(), kernels.BytesEstimator(3.5)
    with kernels.forced_path(path):
        assert kernels.estimate_tokens_batch(data, estimator=estimator).tolist() == tokens_in_python(data)
        benchmark(kernels.estimate_tokens_batch, data, estimator=estimator)


def tokens_in_python(data: list[str]) -> list[int]:
    return [-(-len(text.encode()) * 2 // 7) for text in data]


def test_estimate_tokens_of_python(benchmark: Any) -> None:
    peer(benchmark, TOKENS_TASK, "Python loop")
    benchmark(tokens_in_python, texts())


RANK_TASK, CANDIDATES, BUDGET = "rank_and_fill, 10k candidates", 10_000, 100_000


def candidates() -> kernels.RankColumns:
    generator = np.random.default_rng(SEED)
    n = CANDIDATES
    return kernels.RankColumns(
        priority=generator.integers(0, 6, n).astype(np.int32) * 10,
        relevance=generator.random(n, dtype=np.float32),
        age_us=generator.integers(0, 2**45, n),
        tokens=generator.integers(5, 400, n).astype(np.int32),
        tie=generator.integers(0, 2**63, (n, 2)).astype(np.uint64),
        group=np.full(n, -1, np.int32),
        section=generator.integers(0, 5, n).astype(np.int32),
    )


CAPS = np.array([-1, 40_000, 30_000, 20_000, 10_000], np.int32)
OVERHEAD = np.array([4, 4, 4, 4, 4], np.int32)


def fill(columns: kernels.RankColumns) -> tuple[np.ndarray, np.ndarray]:
    return kernels.rank_and_fill(
        columns, budget=BUDGET, section_budget=CAPS, section_overhead=OVERHEAD, separator_tokens=1, min_relevance=0.1
    )


def python_records(columns: kernels.RankColumns) -> list[tuple[int, float, int, int, tuple[int, ...], int]]:
    """The candidates as a Python program would hold them; not timed."""
    return [
        (priority, relevance, age, tokens, tuple(tie), section)
        for priority, relevance, age, tokens, tie, section in zip(
            columns.priority.tolist(),
            columns.relevance.tolist(),
            columns.age_us.tolist(),
            columns.tokens.tolist(),
            columns.tie.tolist(),
            columns.section.tolist(),
            strict=True,
        )
    ]


def fill_in_python(records: list[tuple[int, float, int, int, tuple[int, ...], int]]) -> tuple[list[int], list[int]]:
    """The plain loop: sort by a key, then take what fits."""
    caps, overhead, floor = CAPS.tolist(), OVERHEAD.tolist(), float(np.float32(0.1))
    order = sorted(range(len(records)), key=lambda i: (-records[i][0], -records[i][1], records[i][2], records[i][4], i))
    decision = [0] * len(records)
    used, section_used = 0, [0] * len(caps)
    started = [False] * len(caps)
    for i in order:
        _, relevance, _, tokens, _, section = records[i]
        if relevance < floor:
            decision[i] = 2
            continue
        cost = tokens + (1 if started[section] else overhead[section])
        if caps[section] >= 0 and section_used[section] + cost > caps[section]:
            decision[i] = 3
        elif used + cost > BUDGET:
            decision[i] = 4
        else:
            decision[i] = 1
            used += cost
            section_used[section] += cost
            started[section] = True
    return order, decision


@pytest.mark.parametrize("path", PATHS)
def test_rank_and_fill(benchmark: Any, path: str) -> None:
    ours(benchmark, RANK_TASK, path, goal=50.0)
    columns = candidates()
    with kernels.forced_path(path):
        order, decision = fill(columns)
        assert (order.tolist(), decision.tolist()) == fill_in_python(python_records(columns))
        benchmark(fill, columns)


def test_rank_and_fill_of_python(benchmark: Any) -> None:
    peer(benchmark, RANK_TASK, "Python sort + loop")
    benchmark(fill_in_python, python_records(candidates()))


def test_bytes_of_resident_rows(figure: Callable[..., None]) -> None:
    matrix = kernels.VectorMatrix(DIMENSIONS)
    matrix.append(np.ones((50_000, DIMENSIONS), np.float32))
    matrix.retire(np.arange(0, 50_000, 5))
    figure("vector bytes a row / 4d", matrix.nbytes / (50_000 * 4 * DIMENSIONS), "x", at_most=1.6)
