"""The graph leg: what is linked with the best that words and vectors found.

Source: M-035, M-037, M-038; docs/search.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caliber.config.search import GraphConfig
from caliber.resident.conversation import neighbours
from caliber.resident.memory import ResidentSnapshot
from caliber.search.fusion import best_rows
from caliber.search.legs import Floats, Searched


class GraphLeg:
    """Follows links from seeds, the best of the other legs; each hop keeps ``decay`` of a score."""

    def __init__(self, settings: GraphConfig) -> None:
        self._settings = settings

    def has_links(self, snapshot: ResidentSnapshot) -> bool:
        """Return whether there is anything to follow."""
        return self._settings.conversation or snapshot["edge"].count() > 0

    def scores(
        self,
        searched: Sequence[Searched],
        own: Sequence[Floats],
        lent: Sequence[Floats],
        vector: Sequence[Floats],
        weights: Mapping[str, float],
    ) -> list[Floats]:
        """Return, for each kind, the best that any path from a seed brings a row, 0 for what none reaches."""
        out = [np.zeros(item.owners.length) for item in searched]
        if not weights["graph"]:
            return out
        total = weights["keyword"] + weights["vector"]
        if not total:
            return out
        base = [
            np.where(
                item.visible,
                (weights["keyword"] * (own[at] + lent[at]) + weights["vector"] * vector[at]) / total,
                0.0,
            )
            for at, item in enumerate(searched)
        ]
        seeds = best_rows(searched, base, self._settings.seeds)
        if self._settings.conversation:
            self._converse(searched, seeds, out)
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
