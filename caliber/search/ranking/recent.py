"""Ranking for an empty query: recently used and important records first. Source: M-043, K-120."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caliber.config.search import SearchConfig
from caliber.search.filtering.filters import Found
from caliber.search.ranking import fusion
from caliber.search.ranking.legs import KindSearch
from caliber.search.request import Request

_HALF = 0.5


def recent_rows(searched: Sequence[KindSearch], request: Request, settings: SearchConfig) -> list[Found]:
    """Return the allowed rows by the mean of how recent and how important they are; using a record makes it recent."""
    if not searched:
        return []
    uses = request.uses
    recency, importance, scores = [], [], []
    for item in searched:
        times = fusion.times_us(item.owners).copy()
        rows = np.flatnonzero(item.allowed)
        times[rows] = np.maximum(times[rows], uses.of(item.owners, rows)[1])
        recent = fusion.recency_scores(times, request.now_us, settings.boosts.recency_half_life_ms)
        important = fusion.importance_scores(item.owners)
        recency.append(_HALF * recent)
        importance.append(_HALF * important)
        item.rows = np.arange(item.owners.length)
        scores.append(np.where(item.allowed, recency[-1] + importance[-1], 0.0))
    return [
        Found(
            searched[hit.kind].owners,
            hit.row,
            hit.score,
            {"recency": float(recency[hit.kind][hit.row]), "importance": float(importance[hit.kind][hit.row])},
            ("importance",),
        )
        for hit in fusion.best_hits(searched, scores, request.limit)
    ]
