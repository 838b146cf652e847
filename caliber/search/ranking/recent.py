"""Ranking for an empty query: recently used and important records first. Source: M-043, K-120."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.resident.snapshot import ResidentSnapshot
from caliber.search.filtering.filters import Found
from caliber.search.ranking import fusion
from caliber.search.ranking.legs import Searched
from caliber.search.request import Request

_HALF = 0.5


def recent_rows(searched: Sequence[Searched], request: Request, settings: SearchConfig) -> list[Found]:
    """Return the allowed rows by the mean of how recent and how important they are; using a record makes it recent."""
    if not searched:
        return []
    used = _last_used(request.snapshot)
    recency, importance, scores = [], [], []
    for item in searched:
        times = fusion.times_us(item.owners).copy()
        for key, at in used:
            row = item.owners.find(key)
            if row >= 0:
                times[row] = max(int(times[row]), at)
        recent = fusion.recency_scores(times, request.now_us, settings.boosts.recency_half_life_ms)
        important = fusion.importance_scores(item.owners, settings.neutral_importance)
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


def _last_used(snapshot: ResidentSnapshot) -> list[tuple[bytes, int]]:
    """Return the keys of used records and when each was used last."""
    usage = snapshot["usage"]
    rows: NDArray[np.int64] = usage.rows()
    last = usage.column("last_accessed_at")
    place = usage.layout.key_places[0]
    return [(usage.packed(row)[place], int(last[row])) for row in rows.tolist()]
