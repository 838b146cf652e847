"""Loops over whole columns: compiled by Numba beside the same in NumPy (design section 6). Equal answers come first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.contest import CPU, OURS, TWIN, Contender

from caliber.kernels import Evaluator, csr, open_evaluator, walk
from caliber.kernels.evaluator import NUMPY, Allowed, Within

numba = pytest.importorskip("numba", reason="the extra jit is not installed")

SEED = int(os.environ.get("CALIBER_SEED", "1"))
ROWS, NODES, EDGES = 100_000, 100_000, 1_000_000
NEVER = 2**62
NAMES = ("numba", "numpy")


@pytest.fixture(scope="module")
def evaluators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evaluator]:
    folder: Path = tmp_path_factory.mktemp("compiled")
    return {"numba": open_evaluator("numba", folder), "numpy": NUMPY}


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

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.live = random.random(ROWS) < 0.95
        self.ended = (random.random(ROWS) < 0.05).astype(np.uint8)
        archived = np.where(random.random(ROWS) < 0.05, 500, NEVER)
        start, until = random.integers(0, 1_000, ROWS), np.where(random.random(ROWS) < 0.1, 600, NEVER)
        self.rule = (Within(archived, NEVER, NEVER), Within(start, most=900), Within(until, least=901))
        self.codes = random.integers(0, 12, ROWS).astype(np.int32)
        self.allowed = Allowed(self.codes, random.random(12) < 0.7)
        self.created = np.sort(random.integers(0, 10**15, ROWS))
        self.ties = random.integers(0, 2**63, (ROWS, 2)).astype(np.uint64)
        self.numbers, self.owners = np.arange(ROWS), random.permutation(ROWS)
        self.similarity = random.standard_normal(ROWS, np.float32)


@pytest.fixture(scope="module")
def columns() -> Columns:
    return Columns()


def test_mask_of_notes(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    def mask(evaluator: Evaluator) -> Any:
        found = evaluator.in_force(columns.live, columns.ended, columns.rule, columns.allowed)
        evaluator.keep_members(found, columns.codes, np.array([1, 4, 7], np.int32))
        return found

    calls = {other: lambda other=other: mask(evaluators[other]) for other in NAMES}
    compared(contest, "mask of validity, visibility and a filter, 100k rows", calls)


def test_mask_carried_to_vectors(
    contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]
) -> None:
    calls = {
        other: lambda other=other: evaluators[other].carry(columns.numbers, columns.owners, columns.live, ROWS)
        for other in NAMES
    }
    compared(contest, "mask carried from records to vectors, 100k rows", calls)


def test_newest_rows(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    calls = {
        other: lambda other=other: evaluators[other].newest(columns.live, columns.created, columns.ties, 20)
        for other in NAMES
    }
    compared(contest, "20 newest of 100k rows", calls)


def test_relevance_of_rows(contest: Callable[..., None], columns: Columns, evaluators: dict[str, Evaluator]) -> None:
    half = np.float32(0.5)
    calls = {
        other: lambda other=other: evaluators[other].relevance(columns.similarity, columns.live, half)
        for other in NAMES
    }
    compared(contest, "relevance of 100k rows", calls)


# --- graphs -------------------------------------------------------------------------------------


class Graph:
    """A graph of a million edges, and twenty seeds."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.sources, self.targets = random.integers(0, NODES, (2, EDGES))
        self.weights = random.random(EDGES, np.float32)
        self.csr = csr(self.sources, self.targets, NODES, weights=self.weights)
        self.seeds = random.integers(0, NODES, 20)
        self.scores = random.random(20, np.float32)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph()


@pytest.mark.parametrize("hops", [2, 3, 4])
def test_walk(contest: Callable[..., None], graph: Graph, evaluators: dict[str, Evaluator], hops: int) -> None:
    def spread(evaluator: Evaluator) -> tuple[Any, ...]:
        found = walk(graph.csr, graph.seeds, graph.scores, decay=0.5, max_hops=hops, evaluator=evaluator)
        return found.score, found.hop, found.via

    calls = {other: lambda other=other: spread(evaluators[other]) for other in NAMES}
    compared(contest, f"walk of {hops} hops from 20 seeds, 100k nodes, 1M edges", calls)


def test_rows_of_a_graph(contest: Callable[..., None], graph: Graph, evaluators: dict[str, Evaluator]) -> None:
    def build(evaluator: Evaluator) -> tuple[Any, ...]:
        built = csr(graph.sources, graph.targets, NODES, weights=graph.weights, evaluator=evaluator)
        return built.indptr, built.indices, built.weights, built.edges

    calls = {other: lambda other=other: build(evaluators[other]) for other in NAMES}
    compared(contest, "1M edges to compressed rows", calls)
