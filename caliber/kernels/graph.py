"""Graph in compressed sparse rows, built from a list of edges, and the walk that spreads seed scores hop by hop.

Source: issue "Search in native memory", graph leg; design, section 6; docs/kernels.md.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks
from caliber.kernels.evaluator import NUMPY, Evaluator
from caliber.kernels.jit.loops import BAD_INDEX
from caliber.model.errors import InvalidValue, NonFiniteError
from caliber.model.lazy_dataclass import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

MAX_NODES: Final = 2**31 - 1
MAX_HOPS: Final = 2**15 - 1
_NO_MASK: Final = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Csr:
    """Directed edges grouped by source. Those of node ``v`` are at ``indptr[v]`` to ``indptr[v + 1]``, by target.

    Shapes: indptr ``int64[nodes + 1]``, indices ``int32[m]``, weights ``f32[m]``, edges ``int64[m]`` Units: ``edges``
    is the place of each entry in the list that the graph was built from.
    """

    indptr: Ints
    indices: npt.NDArray[np.int32]
    weights: Floats
    edges: Ints

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.indptr) - 1

    def edge(self, source: int, target: int) -> int:
        """Return the strongest edge between two nodes, as its place in the list the graph was built from, or -1."""
        start, stop = int(self.indptr[source]), int(self.indptr[source + 1])
        low, high = start + np.searchsorted(self.indices[start:stop], (target, target + 1))
        return -1 if low == high else int(self.edges[low + int(np.argmax(self.weights[low:high]))])


@dataclass(frozen=True, slots=True)
class Walk:
    """The nodes that a walk reached: best score, hops, and the neighbour on the best path.

    A node that was not reached has score 0, hop -1 and via -1; a seed that nothing better reached has hop 0 and via -1.
    ``score[v]`` is what ``via[v]`` brought when it was ``hop[v] - 1`` hops from a seed. It may have been reached by a
    better path since, of ``max_hops`` hops and therefore not gone on with; otherwise its own score gives ``score[v]``.

    Shapes: score ``f32[nodes]``, hop ``int16[nodes]``, via ``int64[nodes]``
    """

    score: Floats
    hop: npt.NDArray[np.int16]
    via: Ints

    def path(self, node: int) -> list[int]:
        """Return the nodes from a seed to ``node``, both included; empty when it was not reached."""
        if self.hop[node] < 0:
            return []
        found = [node]
        while (before := int(self.via[found[-1]])) >= 0:
            found.append(before)
        return found[::-1]


def csr(
    sources: Ints, targets: Ints, nodes: int, *, weights: Floats | None = None, evaluator: Evaluator = NUMPY
) -> Csr:
    """Return the graph of edges from ``sources`` to ``targets``; the same edges in any order walk alike.

    Weights lie in [0, 1], and are 1 when they are left out. An edge that may be walked both ways is given twice;
    parallel edges stay, and the strongest of them counts.

    Shapes: sources and targets ``int64[m]``, weights ``f32[m]``
    Raises: DTypeError, ShapeError, InvalidValue, NonFiniteError
    """
    nodes = checks.whole(nodes, field="nodes", high=MAX_NODES)
    count, weights = _edge_list(sources, targets, weights)
    indptr, edges = np.zeros(nodes + 1, np.int64), np.empty(count, np.int64)
    if evaluator.loops.adjacency(sources, targets, nodes, indptr, edges) == BAD_INDEX:
        raise InvalidValue(field="sources and targets", reason=f"an edge leads out of the {nodes} nodes")
    return _frozen(indptr, targets[edges].astype(np.int32), weights[edges], edges)


def walk(
    graph: Csr,
    seeds: Ints,
    scores: Floats,
    *,
    decay: float,
    max_hops: int,
    mask: npt.NDArray[np.bool_] | None = None,
    evaluator: Evaluator = NUMPY,
) -> Walk:
    """Spread the scores of seeds breadth-first, each hop worth ``weight * decay`` of the node before.

    A node's score is the best that any path of at most ``max_hops`` hops brings it, its own as a seed among them. Of
    equal scores the one after fewer hops stands, then the one by the neighbour of the lowest number. A node that
    ``mask`` hides is neither reached nor passed through. What rounds to 0 is not reached.

    Shapes: seeds ``int64[s]``, scores ``f32[s]`` (0 or more), mask ``bool[nodes]``, True where it may be seen
    Units: decay in [0, 1], rounded to f32; a hop is ``score * weight * decay``, f64 in this order, rounded to f32
    Raises: DTypeError, ShapeError, InvalidValue, NonFiniteError
    """
    checks.view(seeds, checks.I64, 1, field="seeds")
    checks.shaped(scores, checks.F32, seeds.shape, field="scores")
    _finite(scores, "scores", math.inf)
    hops = checks.whole(max_hops, field="max_hops", high=MAX_HOPS)
    fraction = checks.threshold(decay, field="decay")
    if not 0.0 <= fraction <= 1.0:
        raise InvalidValue(field="decay", reason="must be between 0 and 1")
    if mask is None:
        mask = _NO_MASK
    else:
        checks.shaped(mask, np.dtype(np.bool_), (graph.nodes,), field="mask")
    score = np.zeros(graph.nodes, np.float32)
    hop = np.full(graph.nodes, -1, np.int16)
    via = np.full(graph.nodes, -1, np.int64)
    done = evaluator.loops.walk(
        graph.indptr, graph.indices, graph.weights, seeds, scores, fraction, hops, mask, score, hop, via
    )
    if done == BAD_INDEX:
        raise InvalidValue(field="seeds", reason=f"a seed is not one of the {graph.nodes} nodes")
    return Walk(score, hop, via)


class Edges:
    """A list of edges that grows and shrinks, and its graph, which is rebuilt on first use after a change.

    Written by one thread at a time; a ``Csr`` that was handed out never changes.
    """

    __slots__ = ("_built", "_count", "_live", "_sources", "_targets", "_weights")

    def __init__(self) -> None:
        self._sources: Ints = np.empty(0, np.int64)
        self._targets: Ints = np.empty(0, np.int64)
        self._weights: Floats = np.empty(0, np.float32)
        self._live: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._count = 0
        self._built: Csr | None = None

    def __len__(self) -> int:
        return int(np.count_nonzero(self._live[: self._count]))

    def append(self, sources: Ints, targets: Ints, weights: Floats | None = None) -> Ints:
        """Add edges; return their numbers, which they keep.

        Raises: DTypeError, ShapeError, InvalidValue, NonFiniteError
        """
        added, weights = _edge_list(sources, targets, weights)
        start, stop = self._count, self._count + added
        if stop > len(self._live):
            room = max(stop, 2 * len(self._live), 256)
            self._sources, self._targets = _grown(self._sources, room), _grown(self._targets, room)
            self._weights, self._live = _grown(self._weights, room), _grown(self._live, room)
        self._sources[start:stop] = sources
        self._targets[start:stop] = targets
        self._weights[start:stop] = weights
        self._live[start:stop] = True
        self._count = stop
        self._built = None
        return np.arange(start, stop)

    def retire(self, numbers: Ints) -> None:
        """Remove edges; an edge that is removed already is ignored. Raises: DTypeError, ShapeError, InvalidValue"""
        self._live[checks.row_ids(numbers, self._count, field="numbers")] = False
        self._built = None

    def csr(self, nodes: int, *, evaluator: Evaluator = NUMPY) -> Csr:
        """Return the graph of the edges there are; its ``edges`` are their numbers. Raises: as ``csr``"""
        if self._built is None or self._built.nodes != nodes:
            numbers = np.flatnonzero(self._live[: self._count])
            graph = csr(
                self._sources[numbers],
                self._targets[numbers],
                nodes,
                weights=self._weights[numbers],
                evaluator=evaluator,
            )
            self._built = _frozen(graph.indptr, graph.indices, graph.weights, numbers[graph.edges])
        return self._built


def _edge_list(sources: Ints, targets: Ints, weights: Floats | None) -> tuple[int, Floats]:
    count = len(checks.view(sources, checks.I64, 1, field="sources"))
    checks.shaped(targets, checks.I64, (count,), field="targets")
    if weights is None:
        return count, np.ones(count, np.float32)
    _finite(checks.shaped(weights, checks.F32, (count,), field="weights"), "weights", 1.0)
    return count, weights


def _grown(column: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    grown = np.empty(room, column.dtype)
    grown[: len(column)] = column
    return grown


def _frozen(indptr: Ints, indices: npt.NDArray[np.int32], weights: Floats, edges: Ints) -> Csr:
    for column in (indptr, indices, weights, edges):
        column.flags.writeable = False
    return Csr(indptr, indices, weights, edges)


def _finite(values: Floats, field: str, most: float) -> None:
    if not len(values):
        return
    least, largest = float(values.min()), float(values.max())
    if not (math.isfinite(least) and math.isfinite(largest)):
        raise NonFiniteError(field=field)
    if least < 0 or largest > most:
        limit = "0 or more" if most == math.inf else f"between 0 and {most:g}"
        raise InvalidValue(field=field, reason=f"must be {limit}")
