"""Diversification of hits: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import cosine_batch
from caliber.search.ranking.legs import Searched
from caliber.search.request import Request


def diversified(scores: NDArray[np.float64], likeness: NDArray[np.float64], share: float, limit: int) -> list[int]:
    """Return the order in which hits are taken: each the best by (1 - share) * score - share * likeness to those taken.

    Shapes: scores ``[n]``, best first; likeness ``[n, n]``
    """
    taken: list[int] = []
    remaining = list(range(len(scores)))
    most_like = np.zeros(len(scores))
    while remaining and len(taken) < limit:
        value = (1 - share) * scores[remaining] - share * most_like[remaining]
        chosen = remaining.pop(int(np.argmax(value)))
        taken.append(chosen)
        most_like = np.maximum(most_like, likeness[chosen])
    return taken


def likeness(searched: Sequence[Searched], request: Request, best: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return the cosine of each pair of hits, of their most alike chunks, 0 where one has no vector. Shapes: [n, n]"""
    vectors: list[NDArray[np.float32]] = []
    owner: list[int] = []
    for at, (place, row) in enumerate(best):
        item = searched[place]
        index = None if request.space_id is None else request.snapshot.vectors.get((item.kind, request.space_id))
        if index is not None and request.vector is not None:
            own_vectors = index.vectors(item.owners, row)
            vectors.append(own_vectors)
            owner.extend([at] * len(own_vectors))
    alike = np.zeros((len(best), len(best)), np.float64)
    if owner:
        rows = np.concatenate(vectors)
        np.maximum.at(alike, np.ix_(owner, owner), cosine_batch(rows, rows).astype(np.float64))
    return alike
