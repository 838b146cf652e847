"""In-memory graph of the edges between records, by node number, and the row of each node in its kind's mirror.

Source: M-038; design, section 6.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.graph import Csr, Edges
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.schema.traits import NEVER_US


@dataclass(frozen=True, slots=True)
class Linked:
    """The graph at one boundary. ``keys`` are the records' ids by node; an edge may be walked both ways."""

    graph: Csr
    keys: Sequence[bytes]
    nodes: dict[bytes, int]
    rows: NDArray[np.int64]
    """The row of each edge of the graph, by its number there."""


class Links:
    """The graph of one tenant; follows the mirror of edges."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset(None)

    def _reset(self, generation: Generation | None) -> None:
        self._generation = generation
        self._read = 0
        self._edges = Edges()
        self._numbers: dict[int, tuple[int, int]] = {}
        self._rows: list[int] = []
        self._keys: list[bytes] = []
        self._nodes: dict[bytes, int] = {}
        self._seen: RelationSnapshot | None = None
        self._linked: Linked | None = None

    def of(self, edges: RelationSnapshot) -> Linked:
        """Return the graph of the edges there are at a boundary."""
        with self._lock:
            if self._linked is None or self._seen is not edges:
                if self._generation is not edges.generation or edges.length < self._read:
                    self._reset(edges.generation)
                self._catch_up(edges)
                graph = self._edges.csr(len(self._keys), evaluator=edges.evaluator)
                self._seen = edges
                self._linked = Linked(graph, self._keys, self._nodes, np.array(self._rows, np.int64))
            return self._linked

    def _catch_up(self, edges: RelationSnapshot) -> None:
        gone = [row for row in self._numbers if not edges.live_mask[row]]
        if gone:
            self._edges.retire(np.array([number for row in gone for number in self._numbers.pop(row)], np.int64))
        codec = edges.layout.codec
        source_at, target_at = codec.index("source_id"), codec.index("target_id")
        weights, removed = edges.column("weight"), edges.column("removed_at")
        fresh = [row for row in range(self._read, edges.length) if edges.live_mask[row] and removed[row] == NEVER_US]
        self._read = edges.length
        if not fresh:
            return
        ends = [edges.packed(row) for row in fresh]
        sources = np.array([self._node(row[source_at]) for row in ends], np.int64)
        targets = np.array([self._node(row[target_at]) for row in ends], np.int64)
        strength = weights[fresh].astype(np.float32)
        there = self._edges.append(sources, targets, strength)
        back = self._edges.append(targets, sources, strength)
        self._numbers.update(zip(fresh, zip(there.tolist(), back.tolist(), strict=True), strict=True))
        self._rows.extend(fresh)
        self._rows.extend(fresh)

    def _node(self, key: bytes) -> int:
        number = self._nodes.get(key)
        if number is None:
            number = self._nodes[key] = len(self._keys)
            self._keys.append(key)
        return number


class Places:
    """The row of each node, kind by kind; looked up again only where a row has gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generations: tuple[Generation, ...] = ()
        self._rows: list[NDArray[np.int64]] = []

    def of(self, linked: Linked, owners: Sequence[RelationSnapshot]) -> list[NDArray[np.int64]]:
        """Return, for each kind, the live row of each node, or -1. Shapes: ``int64[nodes]`` each."""
        count = len(linked.graph.indptr) - 1
        with self._lock:
            generations = tuple(snapshot.generation for snapshot in owners)
            if generations != self._generations:
                self._generations = generations
                self._rows = [np.full(0, -1, np.int64) for _ in owners]
            out: list[NDArray[np.int64]] = []
            for at, snapshot in enumerate(owners):
                rows = self._rows[at]
                if len(rows) < count:
                    rows = np.concatenate((rows, np.full(count - len(rows), -1, np.int64)))
                rows = rows[:count].copy()
                current = (rows >= 0) & (rows < snapshot.length)
                current[current] = snapshot.live_mask[rows[current]]
                elsewhere = np.zeros(count, np.bool_)
                for other in out:
                    elsewhere |= other >= 0
                for node in np.flatnonzero(~current & ~elsewhere).tolist():
                    rows[node] = snapshot.find(linked.keys[node])
                rows[elsewhere] = -1
                out.append(rows)
            self._rows = out
            return [rows.copy() for rows in out]
