"""Closeness of a search in the database to the same search of resident memory: which hits come, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from caliber.model import ResultStatus

DEPTH = 10


def compared(stored: Any, resident: Any, query: str, **options: Any) -> tuple[Any, float, list[bool]]:
    """Return the result of the database, how many of its first hits are of the best, and which pairs are in order.

    A hit is of the best if it scores no less than the last of the best in memory; pairs that score alike have no order.
    """
    result = stored.search(query, **options)
    expected = resident.search(query, consistency="latest", **options)
    every = resident.search(query, consistency="latest", **{**options, "limit": 500})
    assert (result.status, result.reason) == (ResultStatus.DEGRADED, "not_resident")
    assert result.analysis.words == expected.analysis.words
    scores = {hit.id: hit.score for hit in every.hits}
    found, wanted = ([hit.id for hit in each.hits[:DEPTH]] for each in (result, expected))
    least = scores[wanted[-1]] if wanted else 0.0
    good = sum(scores.get(key, -1.0) >= least for key in found)
    share = good / max(len(wanted), len(found)) if wanted or found else 1.0
    places = {hit.id: place for place, hit in enumerate(every.hits)}
    pairs = [
        (places[one], places[other])
        for one, other in itertools.combinations([key for key in found if key in places], 2)
        if scores[one] != scores[other]
    ]
    return result, share, [first < second for first, second in pairs]


def check_close(stored: Any, resident: Any, asked: Iterable[tuple[str, dict[str, Any]]], least: float = 0.95) -> None:
    """Fail unless the answers to some questions are close to those of memory."""
    shares, orders = [], []
    for query, options in asked:
        _, share, order = compared(stored, resident, query, **options)
        shares.append(share)
        orders += order
    assert np.mean(shares) >= least, shares
    assert not orders or np.mean(orders) >= least, np.mean(orders)
