"""Reference implementation in NumPy of the score fusion kernel ``cal_join``, and the data type of its parts.

Sums are made in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

VALUES: Final = 0
QUOTIENT: Final = 1
NEIGHBOURS: Final = 2
STRETCHED: Final = 3
FLAGGED: Final = 4
"""Kinds of parts; as CAL_PART_* of caliber.h."""

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


class Part(NamedTuple):
    """The scores of one leg or boost for each candidate.

    ``how`` selects the formula: VALUES scores; QUOTIENT scores / by; NEIGHBOURS scores / by - less / by; STRETCHED
    (near - low) / by of the first candidates, 0 of the others; FLAGGED 1 where the row's flags have a bit of ``flag``.

    Shapes:  scores, less f64[n]; near f32[m], m <= n; flags uint8[rows]
    """

    how: int
    scores: Doubles | None = None
    less: Doubles | None = None
    near: npt.NDArray[np.float32] | None = None
    flags: npt.NDArray[np.uint8] | None = None
    flag: int = 0
    by: float = 1.0
    low: float = 0.0


Weighted = Sequence[tuple[float, Part]]
"""Parts, each with its share of the whole."""


def dense(part: Part, rows: Ints) -> Doubles:
    """Return a part's score of every candidate."""
    if part.how == STRETCHED:
        assert part.near is not None
        out = np.zeros(len(rows))
        out[: len(part.near)] = (part.near.astype(np.float64) - part.low) / part.by
        return out
    if part.how == FLAGGED:
        assert part.flags is not None
        marked: Doubles = ((part.flags[rows] & np.uint8(part.flag)) != 0).astype(np.float64)
        return marked
    assert part.scores is not None
    if part.how == VALUES:
        return part.scores
    if part.how == QUOTIENT:
        return part.scores / part.by
    assert part.less is not None
    return part.scores / part.by - part.less / part.by


def join(
    parts: Weighted,
    rows: Ints,
    tie: npt.NDArray[np.uint64],
    k: int,
    inside: npt.NDArray[np.uint8] | None,
    least: float,
) -> tuple[Doubles, Ints, npt.NDArray[np.float32], Doubles]:
    """Return all scores, places and scores of the best, and the contribution of each part to them."""
    scores = np.zeros(len(rows))
    for share, part in parts:
        scores += share * dense(part, rows)
    scores = np.maximum(scores, least)
    if inside is not None:
        scores[inside[rows] == 0] = 0.0
    places, best = best_scores(scores, k, tie, rows)
    return scores, places, best, contributions(parts, rows, places)


def contributions(parts: Weighted, rows: Ints, places: Ints) -> Doubles:
    """Return each part's share in the scores of some places; 0 for a place below 0."""
    out = np.zeros((len(parts), len(places)))
    is_candidate = places >= 0
    for at, (share, part) in enumerate(parts):
        out[at, is_candidate] = share * dense(part, rows)[places[is_candidate]]
    return out


def best_scores(
    scores: npt.NDArray[np.float64],
    k: int,
    tie: npt.NDArray[np.uint64] | None,
    rows: npt.NDArray[np.int64] | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the best ``k`` scores above 0 in canonical order."""
    with np.errstate(over="ignore"):
        rounded = scores.astype(np.float32)
    places = np.flatnonzero(rounded > 0)
    if tie is None:
        order = np.lexsort((places, -rounded[places]))
    else:
        ties = tie[places if rows is None else rows[places]]
        order = np.lexsort((places, ties[:, 1], ties[:, 0], -rounded[places]))
    ids = places[order[:k]].astype(np.int64)
    return ids, rounded[ids]
