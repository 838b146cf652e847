"""Exact search against the libraries people would use instead. Goals: design section 9.

The grid goes from 1k to 1M rows and from 128 to 1536 dimensions, as far as 5 GB of memory hold it: at a million rows
that is 384 dimensions. Queries are rows with as much noise again, sixteen of them in turn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.contest import ASIDE, CPU, OURS, PEER, Contender, paths
from harness.peers import peer
from harness.reading import plain_reads, plain_reads_of
from harness.report import amount
from harness.scale import usual

from caliber import kernels

faiss, hnswlib, simsimd = peer("faiss"), peer("hnswlib"), peer("simsimd")
usearch, usearch_index = peer("usearch"), peer("usearch.index")
if faiss is not None:
    faiss.omp_set_num_threads(1)

PATHS = kernels.available_paths()
SEED = int(os.environ.get("CALIBER_SEED", "1"))
K, QUERIES, CHUNK = 20, 16, 50_000
NUMPY = f"NumPy {np.__version__}"
# f32 sums of peers may swap neighbours whose exact scores are closer than their error.
CLOSE = 2e-6

FULL_GRID = [
    (128, 1_000), (128, 10_000), (128, 100_000), (128, 1_000_000),
    (384, 1_000), (384, 10_000), (384, 100_000), (384, 1_000_000),
    (768, 1_000), (768, 10_000), (768, 100_000),
    (1536, 1_000), (1536, 10_000), (1536, 100_000),
]  # fmt: skip
GRID = usual(
    [(128, 10_000), (384, 1_000), (384, 10_000), (384, 100_000), (768, 10_000), (1536, 10_000)], full=FULL_GRID
)
GOALS = {(384, 10_000): 3.0, (384, 100_000): 3.0}
QUICK = (384, 1_000)
COPIES = 3.4  # of the rows, at most: ours with codes, unit rows, and faiss' copy of those


def version(package: Any) -> str:
    return f"{package.__name__} {getattr(package, '__version__', '')}".rstrip()


def available_bytes() -> float:
    """Return how much memory can be had, if this system says."""
    said = Path("/proc/meminfo")
    if not said.exists():
        return math.inf
    lines = dict(line.split(":", 1) for line in said.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


class Searching:
    """The same rows, prepared for each library; every call is a search for the next query."""

    def __init__(self, dimensions: int, rows: int) -> None:
        self.dimensions, self.size = dimensions, rows
        generator = np.random.default_rng(SEED)
        self.unit = np.empty((rows, dimensions), np.float32)
        matrix = kernels.VectorMatrix(dimensions)
        for start in range(0, rows, CHUNK):
            chunk = generator.standard_normal((min(CHUNK, rows - start), dimensions), dtype=np.float32)
            matrix.append(chunk)
            np.divide(chunk, np.linalg.norm(chunk, axis=1, keepdims=True), out=self.unit[start : start + len(chunk)])
        self.snapshot = matrix.snapshot()
        near = self.snapshot.rows(generator.integers(0, rows, QUERIES))
        self.queries = near + generator.standard_normal(near.shape, dtype=np.float32)
        self.units = self.queries / np.linalg.norm(self.queries, axis=1, keepdims=True)
        if faiss is not None:
            self.flat = faiss.IndexFlatIP(dimensions)
            self.flat.add(self.unit)
            # faiss copies what it is given: the others read its copy, so that a million rows are there only twice.
            self.unit = faiss.rev_swig_ptr(self.flat.get_xb(), rows * dimensions).reshape(rows, dimensions)
        self.expected = [self.snapshot.topk(query, K) for query in self.queries]

    @property
    def bytes_f32(self) -> int:
        return 4 * self.size * self.dimensions

    @property
    def bytes_codes(self) -> int:
        """Codes, a scale and an error for each row. The few rows that are scored besides are not counted."""
        stride = -(-self.dimensions // 64) * 64
        return self.size * (stride + 8)

    def with_caliber(self, query: int) -> np.ndarray:
        return self.snapshot.topk(self.queries[query], K)[0]

    def with_numpy(self, query: int) -> np.ndarray:
        scores = self.unit @ self.units[query]
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    def with_faiss(self, query: int) -> np.ndarray:
        return self.flat.search(self.units[query : query + 1], K)[1][0]

    def with_simsimd(self, query: int) -> np.ndarray:
        distances = np.asarray(simsimd.cdist(self.units[query : query + 1], self.unit, "cosine")).ravel()
        best = np.argpartition(distances, K)[:K]
        return best[np.argsort(distances[best])]

    def with_usearch(self, query: int) -> np.ndarray:
        found = usearch_index.search(
            self.unit, self.units[query], K, usearch_index.MetricKind.IP, exact=True, threads=1
        )
        return found.keys.astype(np.int64)

    def with_faiss_sq8(self) -> Callable[[int], np.ndarray]:
        """Bytes an element, and 5 * K candidates of them scored again. That may miss rows; often it does not."""
        quantizer = faiss.IndexScalarQuantizer(
            self.dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        quantizer.train(self.unit[:CHUNK])
        quantizer.add(self.unit)
        refined = faiss.IndexRefine(quantizer, self.flat)
        refined.k_factor = 5
        parts = quantizer, refined  # faiss keeps pointers only
        return lambda query: parts[1].search(self.units[query : query + 1], K)[1][0]

    def with_hnsw(self, ef: int) -> Callable[[int], np.ndarray]:
        index = hnswlib.Index("ip", self.dimensions)
        index.init_index(self.size, M=16, ef_construction=200, random_seed=SEED)
        index.add_items(self.unit, num_threads=1)
        index.set_ef(ef)
        return lambda query: index.knn_query(self.units[query : query + 1], K, num_threads=1)[0][0]

    def in_turn(self, search: Callable[[int], Any]) -> Callable[[], Any]:
        numbers = cycle(range(QUERIES))
        return lambda: search(next(numbers))

    def check(self, search: Callable[[int], np.ndarray]) -> None:
        for number, (_, scores) in enumerate(self.expected):
            found = self.snapshot.scores(self.queries[number], search(number).astype(np.int64))
            np.testing.assert_allclose(found, scores, atol=CLOSE)

    def recall(self, search: Callable[[int], np.ndarray]) -> float:
        """The share of the best rows that was found; what scores as well as the last of them counts."""
        right = 0
        for number, (_, scores) in enumerate(self.expected):
            found = self.snapshot.scores(self.queries[number], np.unique(search(number)).astype(np.int64))
            right += int(np.count_nonzero(found >= scores[-1] - CLOSE))
        return right / (QUERIES * K)


def ours(searching: Searching, goal: float | None, everyone: bool) -> list[Contender]:
    """Every path where a goal is stated, else the best of them."""
    names = PATHS if everyone else PATHS[-1:]
    out = paths(searching.in_turn(searching.with_caliber), names, goal=goal, bytes_read=searching.bytes_codes)
    for contender in out:
        with contender.around():
            for query, (ids, scores) in zip(searching.queries, searching.expected, strict=True):
                found = searching.snapshot.topk(query, K)
                np.testing.assert_array_equal(found[0], ids)
                np.testing.assert_array_equal(found[1], scores)
    return out


def peers(searching: Searching, everyone: bool) -> list[Contender]:
    """Exact ones; and what may miss rows, with its recall beside it."""
    exact: dict[str, Callable[[int], np.ndarray]] = {NUMPY: searching.with_numpy}
    if faiss is not None:
        exact[f"{version(faiss)} Flat"] = searching.with_faiss
    if simsimd is not None:
        exact[version(simsimd)] = searching.with_simsimd
    if usearch is not None:
        exact[f"{version(usearch)} exact"] = searching.with_usearch
    out = []
    for name, search in exact.items():
        searching.check(search)
        out.append(Contender(PEER, name, searching.in_turn(search), bytes_read=searching.bytes_f32))
    judged = everyone and searching.size <= 10_000
    if faiss is not None:
        refined = searching.with_faiss_sq8()
        # The goal at 10k rows names it among the peers to beat. So it is one, if it finds the same rows.
        kind = PEER if judged else ASIDE
        if kind == PEER:
            searching.check(refined)
        name = f"{version(faiss)} SQ8 + refine"
        out.append(Contender(kind, name, searching.in_turn(refined), recall=searching.recall(refined)))
    if hnswlib is not None and judged:
        for ef in (200, 800):
            graph, name = searching.with_hnsw(ef), f"{version(hnswlib)} ef={ef}"
            out.append(Contender(ASIDE, name, searching.in_turn(graph), recall=searching.recall(graph)))
    return out


@pytest.mark.parametrize(("dimensions", "rows"), GRID, ids=[f"{d}-{amount(n)}" for d, n in GRID])
def test_topk(contest: Callable[..., None], quick: bool, dimensions: int, rows: int) -> None:
    if quick and (dimensions, rows) != QUICK:
        pytest.skip("left out by --quick")
    needed = COPIES * 4 * rows * dimensions
    if needed > available_bytes():
        pytest.skip(f"needs {needed / 1e9:.1f} GB of free memory")
    searching, goal = Searching(dimensions, rows), GOALS.get((dimensions, rows))
    everyone = quick or goal is not None
    contenders = [
        *ours(searching, goal, everyone),
        *peers(searching, everyone),
        *plain_reads_of(searching.bytes_codes),
        *plain_reads(searching.unit),
    ]
    contest(f"top-{K} cosine, {amount(rows)} x {dimensions}", contenders, clock=CPU, rows=rows, dimensions=dimensions)


MANY, MANY_ROWS, QUICK_MANY_ROWS, DIMENSIONS = 64, 20_000, 1_000, 384


def test_topk_many(contest: Callable[..., None], quick: bool) -> None:
    generator = np.random.default_rng(SEED)
    held = QUICK_MANY_ROWS if quick else MANY_ROWS
    rows = generator.standard_normal((held, DIMENSIONS), dtype=np.float32)
    queries = generator.standard_normal((MANY, DIMENSIONS), dtype=np.float32)
    columns = np.ascontiguousarray((rows / np.linalg.norm(rows, axis=1, keepdims=True)).T)
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    matrix = kernels.VectorMatrix(DIMENSIONS)
    matrix.append(rows)
    snapshot = matrix.snapshot()
    expected = snapshot.topk_many(queries, K)

    def with_numpy() -> np.ndarray:
        scores = units @ columns
        best = np.argpartition(scores, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        return np.take_along_axis(best, order, 1)

    searches = {f"{NUMPY} GEMM": with_numpy}
    if faiss is not None:
        flat = faiss.IndexFlatIP(DIMENSIONS)
        flat.add(np.ascontiguousarray(columns.T))
        searches[f"{version(faiss)} Flat"] = lambda: flat.search(units, K)[1]
    contenders = paths(lambda: snapshot.topk_many(queries, K), PATHS)
    for contender in contenders:
        with contender.around():
            for (ids, _), (wanted, _) in zip(snapshot.topk_many(queries, K), expected, strict=True):
                np.testing.assert_array_equal(ids, wanted)
    for name, search in searches.items():
        for ids, query, (_, scores) in zip(search(), queries, expected, strict=True):
            np.testing.assert_allclose(snapshot.scores(query, ids.astype(np.int64)), scores, atol=CLOSE)
        contenders.append(Contender(PEER, name, search))
    contest(f"top-{K} cosine of {MANY} queries, {amount(held)} x {DIMENSIONS}", contenders, clock=CPU)


def test_pairs(contest: Callable[..., None], quick: bool) -> None:
    held = 200 if quick else 2_000
    rows = np.random.default_rng(SEED).standard_normal((held, DIMENSIONS), dtype=np.float32)

    def with_numpy() -> tuple[np.ndarray, np.ndarray]:
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        left, right = np.nonzero(np.triu(unit @ unit.T, 1) >= 0.2)
        return left, right

    contenders = paths(lambda: kernels.pairs_above(rows, 0.2, max_pairs=100_000), PATHS)
    theirs = set(zip(*(side.tolist() for side in with_numpy()), strict=True))
    for contender in contenders:
        with contender.around():
            found = kernels.pairs_above(rows, 0.2, max_pairs=100_000)
        # Pairs within f32's error of the threshold may differ.
        assert len(set(map(tuple, found.index.tolist())) ^ theirs) <= 2
    contenders.append(Contender(PEER, f"{NUMPY} GEMM", with_numpy))
    contest(f"pairs with cosine >= 0.2, {amount(held)} x {DIMENSIONS}", contenders, clock=CPU)


def test_pairs_of_many_rows(contest: Callable[..., None], quick: bool) -> None:
    held = 200 if quick else 20_000
    rows = np.random.default_rng(SEED).standard_normal((held, DIMENSIONS), dtype=np.float32)
    first, second = held // 3, held // 2
    rows[second] = rows[first] * 2
    call = lambda: kernels.pairs_above(rows, 0.9, max_pairs=100_000)  # noqa: E731
    assert call().index.tolist() == [[first, second]]
    task = f"pairs with cosine >= 0.9, {amount(held)} x {DIMENSIONS}"
    contest(task, [Contender(OURS, PATHS[-1], call, at_most_s=1.0)], clock=CPU)


def test_bytes_of_resident_rows(figure: Callable[..., None], quick: bool) -> None:
    held = 1_000 if quick else 50_000
    matrix = kernels.VectorMatrix(DIMENSIONS)
    matrix.append(np.ones((held, DIMENSIONS), np.float32))
    matrix.retire(np.arange(0, held, 5))
    figure("vector bytes a row / 4d", matrix.nbytes / (held * 4 * DIMENSIONS), "x", at_most=1.6)
