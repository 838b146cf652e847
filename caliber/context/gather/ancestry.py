"""Parent tasks of a task, and the limit on how many of their records a window inherits.

Source: C-251, K-097.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.model.pcp import PruneStrategy
from caliber.resident.mirror import RelationSnapshot
from caliber.search.usage import Uses


def ancestors_of(trajectories: RelationSnapshot, key: bytes, max_depth: int) -> tuple[list[bytes], bytes | None]:
    """Return the keys of the trajectories above ``key``, nearest first, at most ``max_depth`` of them.

    A chain that comes back to itself ends there; then the key it came back to is returned too.
    """
    place = trajectories.layout.codec.index("parent_trajectory_id")
    out: list[bytes] = []
    seen = {key}
    while len(out) < max_depth:
        row = trajectories.find(key)
        if row < 0:
            break
        parent: bytes | None = trajectories.packed(row)[place]
        if parent is None:
            break
        if parent in seen:
            return out, parent
        out.append(parent)
        seen.add(parent)
        key = parent
    return out, None


def keep_of_ancestors(
    uses: Uses,
    owners: RelationSnapshot,
    rows: NDArray[np.int64],
    relevance: NDArray[np.float32],
    depth: NDArray[np.int64],
    room: int,
    strategy: PruneStrategy,
) -> NDArray[np.int64]:
    """Return the places in ``rows`` that the strategy keeps.

    Lru keeps the most recently used, Relevance the best scores, Hybrid the lowest product of both ranks; ties go by
    nearness, then age, then id.
    """
    if room <= 0:
        return np.empty(0, np.int64)
    created = owners.column(owners.relation.age)[rows]
    tie = owners.ties().take(rows, axis=0)
    last = (tie[:, 1], tie[:, 0], -created, depth)
    by_use: NDArray[np.int64] = np.zeros(len(rows), np.int64)
    by_score: NDArray[np.int64] = np.zeros(len(rows), np.int64)
    if strategy is not PruneStrategy.RELEVANCE:
        by_use[np.lexsort((*last, -np.maximum(created, uses.of(owners, rows)[1])))] = np.arange(len(rows))
    if strategy is not PruneStrategy.LRU:
        by_score[np.lexsort((*last, -relevance))] = np.arange(len(rows))
    if strategy is PruneStrategy.LRU:
        return np.argsort(by_use)[:room]
    if strategy is PruneStrategy.RELEVANCE:
        return np.argsort(by_score)[:room]
    return np.lexsort((*last, (by_use + 1) * (by_score + 1)))[:room]
