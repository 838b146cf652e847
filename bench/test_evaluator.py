"""Loops over whole columns: compiled by Numba beside the same in NumPy (design section 6). Equal answers come first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.contest import CPU, OURS, TWIN, Contender
from harness.reading import BUILD
from harness.report import amount

from caliber.kernels import Evaluator, csr, open_evaluator, walk
from caliber.kernels.evaluator import NUMPY, Allowed, Within

numba = pytest.importorskip("numba", reason="the extra jit is not installed")

SEED = int(os.environ.get("CALIBER_SEED", "1"))
ROWS, NODES, EDGES = 100_000, 100_000, 1_000_000
QUICK_ROWS, QUICK_NODES, QUICK_EDGES = 2_000, 2_000, 20_000
NEVER = 2**62
NAMES = ("numba", "numpy")


@pytest.fixture(scope="module")
def evaluators() -> dict[str, Evaluator]:
    return {"numba": open_evaluator("numba", BUILD / "compiled"), "numpy": NUMPY}


def compared(contest: Callable[..., None], task: str, calls: dict[str, Callable[[], Any]]) -> None:
    """Time both evaluators after their answers were found equal, bit for bit."""
    answers = [[np.asarray(part).tobytes() for part in _parts(calls[name]())] for name in NAMES]
    assert answers[0] == answers[1]
    contenders = [
        Contender(OURS, f"Numba {numba.__version__}", calls["numba"]),
        Contender(TWIN, f"NumPy {np.__version__}, the twin", calls["numpy"]),
    ]
    contest(task, contenders, clock=CPU)


def _parts(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


class Columns:
    """Notes as the mirror holds them: most in force, some archived, expired or hidden; written in order of time."""

    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(SEED)
        self.rows = rows
        self.live = random.random(rows) < 0.95
        self.ended = (random.random(rows) < 0.05).astype(np.uint8)
        archived = np.where(random.random(rows) < 0.05, 500, NEVER)
        start, until = random.integers(0, 1_000, rows), np.where(random.random(rows) < 0.1, 600, NEVER)
        self.rule = (Within(archived, NEVER, NEVER), Within(start, most=900), Within(until, least=901))
        self.codes = random.integers(0, 12, rows).astype(np.int32)
        self.allowed = Allowed(self.codes, random.random(12) < 0.7)
        self.created = np.sort(random.integers(0, 10**15, rows))
        self.ties = random.integers(0, 2**63, (rows, 2)).astype(np.uint64)
        self.numbers, self.owners = np.arange(rows), random.permutation(rows)
        self.similarity = random.standard_normal(rows, np.float32)

    @property
    def size(self) -> str:
        return f"{amount(self.rows)} rows"


@pytest.fixture(scope="module")
def columns(quick: bool) -> Columns:
    return Columns(QUICK_ROWS if quick else ROWS)


def test_mask_of_notes(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    def mask(evaluator: Evaluator) -> Any:
        found = evaluator.valid_rows(columns.live, columns.ended, columns.rule, columns.allowed)
        evaluator.keep_members(found, columns.codes, np.array([1, 4, 7], np.int32))
        return found

    calls = {other: lambda other=other: mask(evaluators[other]) for other in NAMES}
    compared(contest, f"mask of validity, visibility and a filter, {columns.size}", calls)


def test_mask_carried_to_vectors(
    contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]
) -> None:
    calls = {
        other: lambda other=other: evaluators[other].carry(columns.numbers, columns.owners, columns.live, columns.rows)
        for other in NAMES
    }
    compared(contest, f"mask carried from records to vectors, {columns.size}", calls)


def test_newest_rows(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    calls = {
        other: lambda other=other: evaluators[other].newest(columns.live, columns.created, columns.ties, 20)
        for other in NAMES
    }
    compared(contest, f"20 newest of {columns.size}", calls)


def test_relevance_of_rows(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    half = np.float32(0.5)
    calls = {
        other: lambda other=other: evaluators[other].relevance(columns.similarity, columns.live, half)
        for other in NAMES
    }
    compared(contest, f"relevance of {columns.size}", calls)


# --- graphs -------------------------------------------------------------------------------------


class Graph:
    """A graph with ten edges to a node, and twenty seeds."""

    def __init__(self, nodes: int, edges: int) -> None:
        random = np.random.default_rng(SEED)
        self.nodes, self.edges = nodes, edges
        self.sources, self.targets = random.integers(0, nodes, (2, edges))
        self.weights = random.random(edges, np.float32)
        self.csr = csr(self.sources, self.targets, nodes, weights=self.weights)
        self.seeds = random.integers(0, nodes, 20)
        self.scores = random.random(20, np.float32)


@pytest.fixture(scope="module")
def graph(quick: bool) -> Graph:
    return Graph(QUICK_NODES, QUICK_EDGES) if quick else Graph(NODES, EDGES)


@pytest.mark.parametrize("hops", [2, 3, 4])
def test_walk(contest: Callable[..., None], graph: Graph, evaluators: dict[str, Evaluator], hops: int) -> None:
    def spread(evaluator: Evaluator) -> tuple[Any, ...]:
        found = walk(graph.csr, graph.seeds, graph.scores, decay=0.5, max_hops=hops, evaluator=evaluator)
        return found.score, found.hop, found.via

    calls = {other: lambda other=other: spread(evaluators[other]) for other in NAMES}
    size = f"{amount(graph.nodes)} nodes, {amount(graph.edges)} edges"
    compared(contest, f"walk of {hops} hops from 20 seeds, {size}", calls)


def test_rows_of_a_graph(contest: Callable[..., None], graph: Graph, evaluators: dict[str, Evaluator]) -> None:
    def build(evaluator: Evaluator) -> tuple[Any, ...]:
        built = csr(graph.sources, graph.targets, graph.nodes, weights=graph.weights, evaluator=evaluator)
        return built.indptr, built.indices, built.weights, built.edges

    calls = {other: lambda other=other: build(evaluators[other]) for other in NAMES}
    compared(contest, f"{amount(graph.edges)} edges to compressed rows", calls)
