"""Graph leg of a search: scores records beside the best hits, or linked to them by edges.

The graph of the edges is in memory, by node number, with the row of each node in its kind's mirror.

Source: M-035, M-037, M-038; design, section 6; docs/search.md.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.kernels.graph import Csr, Edges, Walk, walk
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.conversation import neighbours
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.traits import NEVER_US
from caliber.search.filtering.visible import VisibleCache
from caliber.search.ranking.fusion import Hit, best_hits
from caliber.search.ranking.legs import Bools, Floats, Ints, KindSearch
from caliber.search.request import Request

DEPTH: Final = 2
"""Hops from the hits of the other legs. Source: M-035."""
SEEDS: Final = 5
"""Hits of the other legs that links are followed from. Source: M-035."""
DECAY: Final = 0.5
"""Factor of a score for each hop."""
_NO_ROWS, _NO_SCORES = np.zeros(0, np.int64), np.zeros(0)


@dataclass(frozen=True, slots=True)
class LinkGraph:
    """The visible links at one boundary: the graph, by kind the row of each node, and which may be seen."""

    linked: Linked
    rows: dict[str, Ints]
    visible: Bools
    any: bool
    """Whether any visible link exists; one between hidden records does not count."""


@dataclass(slots=True)
class Reached:
    """The records that links lead to: rows of each kind, their scores, and the edges of the way."""

    found: list[tuple[Ints, Floats]]
    links: LinkGraph | None = None
    walked: Walk | None = None

    def edges_to(self, kind: str, row: int) -> list[int]:
        """Return the rows of the edges on the way to a row of a kind; empty if no edge led to it."""
        if self.links is None or self.walked is None or kind not in self.links.rows:
            return []
        found = np.flatnonzero(self.links.rows[kind] == row)
        path = self.walked.path(int(found[0])) if len(found) else []
        graph, rows = self.links.linked.graph, self.links.linked.rows
        return [int(rows[graph.edge(one, other)]) for one, other in itertools.pairwise(path)]


_Brought = list[tuple[Ints, Floats]]


class GraphLeg:
    """Follows links from seeds, the best of the other legs; each hop keeps ``DECAY`` of a score."""

    def __init__(self, settings: SearchConfig, visibilities: VisibleCache, kinds: Sequence[str]) -> None:
        self._settings = settings.graph
        self._counts = settings.weights.graph > 0
        self._searched = kinds
        self._visible_cache = visibilities
        self._links = Links()
        self._places = Places()
        # The latest graph and the inputs it was built from: reused while none of them has changed.
        self._newest: tuple[tuple[object, ...], LinkGraph] | None = None

    def links(self, request: Request, searched: Sequence[KindSearch]) -> LinkGraph | None:
        """Return the visible links, or None if there are none, or they have no weight."""
        snapshot = request.snapshot
        if not self._counts or not snapshot["edge"].live_mask.any():
            return None
        kinds = [kind for kind in self._searched if kind not in snapshot.gone and snapshot[kind].relation.linked]
        visibilities = {item.kind: item.visibility for item in searched}
        for kind in kinds:
            if kind not in visibilities:
                visibilities[kind] = self._visible_cache.of(
                    snapshot[kind], request.readers, request.as_of_us, request.now_us, archived=request.archived
                )
        made_of = (snapshot["edge"].live_mask, *(visibilities[kind].visible for kind in kinds))
        newest = self._newest
        if newest is not None and all(one is other for one, other in zip(newest[0], made_of, strict=True)):
            return newest[1]
        linked = self._links.of(snapshot["edge"])
        rows_of = self._places.of(linked, [snapshot[kind] for kind in kinds])
        visible = np.zeros(linked.graph.nodes, np.bool_)
        for kind, rows in zip(kinds, rows_of, strict=True):
            is_row = rows >= 0
            visible[is_row] = visibilities[kind].visible[rows[is_row]]
        sources = np.repeat(visible, np.diff(linked.graph.indptr))
        any_link = bool((sources & visible[linked.graph.indices]).any())
        links = LinkGraph(linked, dict(zip(kinds, rows_of, strict=True)), visible, any_link)
        self._newest = (made_of, links)
        return links

    def has_links(self, links: LinkGraph | None) -> bool:
        """Return whether there is anything to follow."""
        return self._counts and (self._settings.conversation or (links is not None and links.any))

    def reach(
        self,
        request: Request,
        searched: Sequence[KindSearch],
        base: Sequence[Floats],
        weight: float,
        links: LinkGraph | None,
    ) -> Reached:
        """Return, for each kind, the rows that a path from a seed leads to, and the best score that any path brings.

        Seeds are the best of ``base``, whatever the filters; hidden records are neither reached nor passed.
        """
        if not weight:
            return Reached([(_NO_ROWS, _NO_SCORES) for _ in searched])
        seeds = best_hits(searched, base, SEEDS)
        brought: list[_Brought] = [[] for _ in searched]
        out = Reached([], links)
        if self._settings.conversation:
            self._converse(searched, seeds, brought)
        if links is not None:
            out.walked = self._follow(request, searched, seeds, brought, links)
        out.found = [_best_of(pieces) for pieces in brought]
        return out

    def _converse(self, searched: Sequence[KindSearch], seeds: Sequence[Hit], brought: Sequence[_Brought]) -> None:
        """Give the records beside seeds their share."""
        for place, item in enumerate(searched):
            seeds_of_kind = [seed for seed in seeds if seed.kind == place]
            following = item.owners.layout.relation.neighbours
            if following is None or not seeds_of_kind:
                continue
            beside = neighbours(item.owners, following.by)
            for step in (beside.before, beside.after):
                rows = np.array([seed.row for seed in seeds_of_kind], np.int64)
                scores = np.array([seed.score for seed in seeds_of_kind], np.float64)
                for _ in range(DEPTH):
                    rows, scores = step(rows), scores * DECAY
                    there = rows >= 0
                    there[there] = item.visible[rows[there]]
                    rows, scores = rows[there], scores[there]
                    brought[place].append((rows, scores))

    def _follow(
        self,
        request: Request,
        searched: Sequence[KindSearch],
        seeds: Sequence[Hit],
        brought: Sequence[_Brought],
        links: LinkGraph,
    ) -> Walk | None:
        """Walk the edges through visible records of every kind."""
        linked = links.linked
        starts: dict[int, float] = {}
        for seed in seeds:
            node = linked.nodes.get(searched[seed.kind].owners.entity_id(seed.row).bytes, -1)
            if 0 <= node < linked.graph.nodes:
                starts[node] = seed.score
        if not starts:
            return None
        walked = walk(
            linked.graph,
            np.array(list(starts), np.int64),
            np.array(list(starts.values()), np.float32),
            decay=DECAY,
            max_hops=DEPTH,
            mask=links.visible,
            evaluator=request.snapshot["edge"].evaluator,
        )
        gained = np.flatnonzero(walked.hop > 0)
        for place, item in enumerate(searched):
            if item.kind in links.rows:
                rows = links.rows[item.kind][gained]
                is_row = rows >= 0
                brought[place].append((rows[is_row], walked.score[gained][is_row].astype(np.float64)))
        return walked


def _best_of(pieces: _Brought) -> tuple[Ints, Floats]:
    """Return each row once, with the best score above 0 that any piece has for it."""
    if not pieces:
        return _NO_ROWS, _NO_SCORES
    rows, scores = np.concatenate([rows for rows, _ in pieces]), np.concatenate([scores for _, scores in pieces])
    rows, scores = rows[scores > 0], scores[scores > 0]
    distinct, place = np.unique(rows, return_inverse=True)
    best = np.zeros(len(distinct))
    np.maximum.at(best, place, scores)
    return distinct, best


def edge_ids(snapshot: ResidentSnapshot, rows: Sequence[int]) -> tuple[uuid.UUID, ...]:
    """Return the ids of rows of edges, each once."""
    edges = snapshot["edge"]
    return tuple(edges.entity_id(row) for row in dict.fromkeys(rows))


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
