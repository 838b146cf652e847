"""Column loops (validity, ranking, graph walk) in NumPy, used without Numba; ``kernels.jit.loops`` gives the same bits.

Every function takes the arrays it writes to, and returns a count, or ``BAD_INDEX`` when an index points outside its
column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.jit.loops import BAD_INDEX, FEW

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def _outside(values: NDArray[Any], size: int) -> bool:
    return bool(len(values)) and (int(values.min()) < 0 or int(values.max()) >= size)


def valid_rows(
    live: Bools, ended: NDArray[np.uint8], first: Ints, second: Ints, third: Ints, bounds: Ints,
    codes: NDArray[np.int32], allowed: Bools, out: Bools,
) -> int:  # fmt: skip
    """Mark the live rows that have not ended, whose instants lie within bounds, and whose code is allowed."""
    np.logical_and(live, ended == 0, out=out)
    for column, low, high in zip((first, second, third), bounds[::2], bounds[1::2], strict=True):
        _within(column, low, high, out)
    if len(codes):
        if _outside(codes, len(allowed)):
            return BAD_INDEX
        out &= allowed[codes]
    return len(live)


def _within(column: Ints, low: np.int64, high: np.int64, out: Bools) -> None:
    """Clear the rows outside; a bound that no value can exceed is not evaluated."""
    if low == high:
        out &= column == low
        return
    if low > _LEAST:
        out &= column >= low
    if high < _MOST:
        out &= column <= high


_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def keep_members(mask: Bools, column: NDArray[Any], values: NDArray[Any]) -> int:
    """Unmark the rows whose value is not one of ``values``, which are sorted."""
    if len(values) > FEW:
        mask &= np.isin(column, values)
        return len(mask)
    found = np.zeros(len(mask), np.bool_)
    for value in values:
        found |= column == value
    mask &= found
    return len(mask)


def carry(numbers: Ints, rows: Ints, allowed: Bools, out: Bools) -> int:
    """Mark each number whose row is allowed; ``out`` starts unmarked."""
    if _outside(numbers, len(out)) or _outside(rows, len(allowed)):
        return BAD_INDEX
    out[numbers] = allowed[rows]
    return len(out)


def newest(mask: Bools, created: Ints, limit: int, out: Ints) -> int:
    """Write the marked rows at least as new as the ``limit``-th newest, in order of row; return how many."""
    rows = np.flatnonzero(mask)
    if len(rows) > limit:
        instants = created[rows]
        rows = rows[instants >= np.partition(instants, len(rows) - limit)[len(rows) - limit]]
    out[: len(rows)] = rows
    return len(rows)


def relevance(similarity: Floats, present: Bools, neutral: np.float32, out: Floats) -> int:
    """Write the similarity within [0, 1] where there is one, else the neutral value."""
    np.maximum(similarity, np.float32(0), out=out)
    # Not clip alone: of -0 and +0 it may take either, and the bits have to be the same everywhere.
    out += np.float32(0)
    np.minimum(out, np.float32(1), out=out)
    np.copyto(out, neutral, where=~present)
    return len(out)


def adjacency(sources: Ints, targets: Ints, nodes: int, indptr: Ints, order: Ints) -> int:
    """Write the edges in order of source, target and place, and where each source begins."""
    if _outside(sources, nodes) or _outside(targets, nodes):
        return BAD_INDEX
    order[:] = np.lexsort((targets, sources))
    np.cumsum(np.bincount(sources, minlength=nodes), out=indptr[1:])
    return len(sources)


def walk(
    indptr: Ints, indices: NDArray[np.int32], weights: Floats, seeds: Ints, scores: Floats, decay: float,
    max_hops: int, mask: Bools, score: Floats, hop: NDArray[np.int16], via: Ints,
) -> int:  # fmt: skip
    """Spread scores from the seeds, one hop at a time; ``score``, ``hop`` and ``via`` start at 0, -1 and -1."""
    if _outside(seeds, len(score)):
        return BAD_INDEX
    if len(mask):
        seeds, scores = seeds[mask[seeds]], scores[mask[seeds]]
    np.maximum.at(score, seeds, scores)
    frontier = np.unique(seeds[score[seeds] > 0])
    hop[frontier] = 0
    for step in range(1, max_hops + 1):
        counts = indptr[frontier + 1] - indptr[frontier]
        edges = _spans(indptr[frontier], counts)
        targets = indices[edges]
        got = np.repeat(score[frontier].astype(np.float64), counts) * weights[edges].astype(np.float64) * decay
        better = got.astype(np.float32) > score[targets]
        if len(mask):
            better &= mask[targets]
        targets, brought = targets[better], got.astype(np.float32)[better]
        parents = np.repeat(frontier, counts)[better]
        if not len(targets):
            break
        np.maximum.at(score, targets, brought)
        best = brought == score[targets]
        frontier = np.unique(targets).astype(np.int64)
        via[frontier] = _MOST
        np.minimum.at(via, targets[best], parents[best])
        hop[frontier] = step
    return len(score)


def _spans(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers of spans, one span after another."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
