"""The graph leg: what is linked with the best that words and vectors found.

Source: M-035, M-037, M-038; docs/search.md.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import GraphConfig
from caliber.kernels.graph import Walk, walk
from caliber.resident.conversation import neighbours
from caliber.resident.memory import ResidentSnapshot
from caliber.search.filters import KINDS, masks
from caliber.search.fusion import best_rows
from caliber.search.legs import Bools, Floats, Searched
from caliber.search.links import Linked, Links, Places
from caliber.search.request import Request


@dataclass(slots=True)
class Reached:
    """What links lead to: scores of each kind's rows, and how to name the edges that brought them."""

    scores: list[Floats]
    linked: Linked | None = None
    walked: Walk | None = None
    nodes: list[NDArray[np.int64]] = field(default_factory=list)

    def edges_to(self, place: int, row: int) -> list[int]:
        """Return the rows of the edges on the way to a row of a kind; none for what no edge led to."""
        if self.linked is None or self.walked is None:
            return []
        found = np.flatnonzero(self.nodes[place] == row)
        path = self.walked.path(int(found[0])) if len(found) else []
        graph, rows = self.linked.graph, self.linked.rows
        return [int(rows[graph.edge(one, other)]) for one, other in itertools.pairwise(path)]


class GraphLeg:
    """Follows links from seeds, the best of the other legs; each hop keeps ``decay`` of a score."""

    def __init__(self, settings: GraphConfig) -> None:
        self._settings = settings
        self._links = Links()
        self._places = Places()

    def has_links(self, request: Request, searched: Sequence[Searched]) -> bool:
        """Return whether there is anything to follow: a link between hidden records is none."""
        if self._settings.conversation:
            return True
        if not request.snapshot["edge"].count():
            return False
        linked, _, visible = self._in_sight(request, searched)
        sources = np.repeat(visible, np.diff(linked.graph.indptr))
        return bool((sources & visible[linked.graph.indices]).any())

    def reach(self, request: Request, searched: Sequence[Searched], base: Sequence[Floats], weight: float) -> Reached:
        """Return, for each kind, the best that any path from a seed brings a row, 0 for what none reaches.

        Seeds are the best of ``base``, whatever the filters say; what may not be seen is neither reached nor passed.
        """
        out = Reached([np.zeros(item.owners.length) for item in searched])
        if not weight:
            return out
        in_sight = [np.where(item.visible, scores, 0.0) for item, scores in zip(searched, base, strict=True)]
        seeds = best_rows(searched, in_sight, self._settings.seeds)
        if self._settings.conversation:
            self._converse(searched, seeds, out.scores)
        if request.snapshot["edge"].count():
            self._follow(request, searched, seeds, out)
        return out

    def _converse(
        self, searched: Sequence[Searched], seeds: Sequence[tuple[int, int, float]], out: Sequence[Floats]
    ) -> None:
        """Give the turns beside seeds their share."""
        for place, item in enumerate(searched):
            mine = [(row, score) for kind, row, score in seeds if kind == place]
            if item.kind != "turn" or not mine:
                continue
            beside = neighbours(item.owners, "scope_id")
            for step in (beside.before, beside.after):
                rows = np.array([row for row, _ in mine], np.int64)
                scores = np.array([score for _, score in mine], np.float64)
                for _ in range(self._settings.depth):
                    rows, scores = step(rows), scores * self._settings.decay
                    there = rows >= 0
                    there[there] = item.visible[rows[there]]
                    rows, scores = rows[there], scores[there]
                    np.maximum.at(out[place], rows, scores)

    def _follow(
        self, request: Request, searched: Sequence[Searched], seeds: Sequence[tuple[int, int, float]], out: Reached
    ) -> None:
        """Walk the edges that somebody made, through records of every kind that may be seen."""
        linked, rows_of, visible = self._in_sight(request, searched)
        starts: dict[int, float] = {}
        for place, row, score in seeds:
            node = linked.nodes.get(searched[place].owners.entity_id(row).bytes, -1)
            if 0 <= node < linked.graph.nodes:
                starts[node] = score
        if not starts:
            return
        settings = self._settings
        walked = walk(
            linked.graph,
            np.array(list(starts), np.int64),
            np.array(list(starts.values()), np.float32),
            decay=settings.decay,
            max_hops=settings.depth,
            mask=visible,
            evaluator=request.snapshot["edge"].evaluator,
        )
        out.linked, out.walked = linked, walked
        brought = np.where(walked.hop > 0, walked.score, np.float32(0)).astype(np.float64)
        for place, item in enumerate(searched):
            rows = rows_of[KINDS.index(item.kind)]
            out.nodes.append(rows)
            known = rows >= 0
            np.maximum.at(out.scores[place], rows[known], brought[known])

    def _in_sight(
        self, request: Request, searched: Sequence[Searched]
    ) -> tuple[Linked, list[NDArray[np.int64]], Bools]:
        """Return the graph, the row of each node kind by kind, and which nodes may be seen."""
        snapshot = request.snapshot
        linked = self._links.of(snapshot["edge"])
        rows_of = self._places.of(linked, [snapshot[kind] for kind in KINDS])
        visible = np.zeros(linked.graph.nodes, np.bool_)
        for kind, rows in zip(KINDS, rows_of, strict=True):
            known = rows >= 0
            if known.any():
                visible[known] = self._visible(request, searched, kind)[rows[known]]
        return linked, rows_of, visible

    def _visible(self, request: Request, searched: Sequence[Searched], kind: str) -> Bools:
        for item in searched:
            if item.kind == kind:
                return item.visible
        found = masks(request.snapshot[kind], {}, request.notes, request.as_of_us, request.now_us)
        assert found is not None  # without filters no column can be missing
        return found[0]


def edge_ids(snapshot: ResidentSnapshot, rows: Sequence[int]) -> tuple[uuid.UUID, ...]:
    """Return the ids of rows of edges, each once."""
    edges = snapshot["edge"]
    return tuple(edges.entity_id(row) for row in dict.fromkeys(rows))
