"""Joining the legs: scores between 0 and 1, weights, ranks, boosts, and the order of hits.

Source: M-032 to M-047, K-119, K-202; reciprocal ranks: Cormack, Clarke and Büttcher (SIGIR 2009); maximal marginal
relevance: Carbonell and Goldstein (SIGIR 1998). Formulas: docs/search.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig, SearchWeights
from caliber.kernels import Evaluator, best_scores
from caliber.resident.mirror import RelationSnapshot
from caliber.search.dates import Interval
from caliber.search.legs import Bools, Floats, Ints, Nearest, Searched

LEGS = ("vector", "keyword", "graph", "importance")
LEAST = 1e-6
"""Score of what a leg found and nothing speaks for: it comes last, and is there."""

_TOP_IMPORTANCE = 10.0
_BEFORE = 3.0
"""A record from before the days that a query names counts off this many times as fast as one from after them."""


@dataclass(slots=True)
class Joined:
    """The scores of one kind's candidates, and the shares of other scores that they are made of.

    Shapes: ``f64[m]`` each
    """

    score: Floats
    parts: dict[str, tuple[float, Floats]] = field(default_factory=dict)
    finders: dict[str, Floats | int] = field(default_factory=dict)
    """What each leg found: scores above 0, or so many of the first."""

    def explained(self, places: Sequence[int]) -> list[tuple[dict[str, float], tuple[str, ...]]]:
        """Return what each part adds to the score of each of some candidates, and the legs that found it.

        Parts that add nothing are left out; legs are named whatever they count for.
        """
        at = np.array(places, np.int64)
        parts = [(name, share, scores.take(at).tolist()) for name, (share, scores) in self.parts.items()]
        finders = [
            (leg, (at < found if isinstance(found, int) else found.take(at) > 0).tolist())
            for leg in LEGS
            if (found := self.finders.get(leg)) is not None
        ]
        return [
            (
                {name: part for name, share, scores in parts if (part := share * scores[place])},
                tuple([leg for leg, found in finders if found[place]]),
            )
            for place in range(len(places))
        ]


class Hit(NamedTuple):
    """A candidate among the best: place of its kind among the kinds, its own among the candidates, row and score."""

    kind: int
    place: int
    row: int
    score: float


def weights_in_force(weights: SearchWeights, missing: Sequence[str]) -> dict[str, float]:
    """Return each leg's weight; that of missing legs goes to the others in proportion (M-041)."""
    given = {leg: 0.0 if leg in missing else float(getattr(weights, leg)) for leg in LEGS}
    total = sum(given.values())
    return given if total == 0 else {leg: weight / total for leg, weight in given.items()}


def keyword_scores(searched: Sequence[Searched], settings: SearchConfig) -> list[tuple[Floats, Floats]]:
    """Return, for each kind, scores by words between 0 and 1: a text's own, and what its neighbours lent it."""
    if settings.normalisation == "saturation":
        return [(_rise(item.own), _rise(item.keyword) - _rise(item.own)) for item in searched]
    peak = max(_peak(item) for item in searched)
    if peak <= 0:
        return [(np.zeros(len(item.own)), np.zeros(len(item.own))) for item in searched]
    out = []
    for item in searched:
        own = item.own / peak
        lent = np.zeros(len(own)) if item.keyword is item.own else item.keyword / peak - own
        out.append((own, lent))
    return out


def _peak(item: Searched) -> float:
    if item.unfiltered:
        return float(item.keyword.max(initial=0.0))
    return float(item.keyword.max(where=item.inside(), initial=0.0))


def _rise(scores: Floats) -> Floats:
    out: Floats = scores / (scores + 1)
    return out


def vector_scores(searched: Sequence[Searched], nearest: Nearest, settings: SearchConfig) -> list[Floats]:
    """Return, for each kind, scores by vector between 0 and 1; 0 for what is not among the nearest."""
    out = [np.zeros(len(item.rows)) for item in searched]
    if nearest.best is None:
        return out
    best, floor = nearest.best, nearest.least
    for scored, near in zip(out, nearest.similarities, strict=True):
        similarities = near.astype(np.float64)
        if settings.normalisation != "peak":
            scores = np.clip(similarities, 0.0, 1.0)
        elif best > floor:
            scores = (similarities - floor) / (best - floor)
        else:
            scores = np.ones(len(similarities))
        scored[: len(scores)] = scores
    return out


def rank_scores(searched: Sequence[Searched], leg: Sequence[Floats], settings: SearchConfig) -> list[Floats]:
    """Return ``(c + 1) / (c + rank)`` of each score of a leg, counted over the hits of all kinds; 0 stays 0."""
    constant = settings.rrf_constant
    inside = [item.inside() for item in searched]
    every = np.concatenate([scores[mask] for mask, scores in zip(inside, leg, strict=True)])
    ties = np.concatenate(
        [item.owners.ties().take(item.rows[mask], axis=0) for item, mask in zip(searched, inside, strict=True)]
    )
    rank = np.empty(len(every), np.int64)
    rank[np.lexsort((ties[:, 1], ties[:, 0], -every))] = np.arange(1, len(every) + 1)
    ranked = np.where(every > 0, (constant + 1) / (constant + rank), 0.0)
    out = []
    start = 0
    for mask in inside:
        count = int(np.count_nonzero(mask))
        scores = np.zeros(len(mask))
        scores[mask] = ranked[start : start + count]
        out.append(scores)
        start += count
    return out


# --- boosts ---------------------------------------------------------------------------------------


_EVERY = slice(None)


def times_us(owners: RelationSnapshot, rows: Ints | slice = _EVERY) -> Ints:
    """Return when each record happened, or was written if nobody says. Shapes: ``int64[n]`` of those rows."""
    if owners.relation.name == "scope":
        return owners.column("opened_at")[rows]
    occurred, created = owners.column("occurred_at")[rows], owners.column("created_at")[rows]
    times: Ints = np.where(occurred == np.iinfo(np.int64).min, created, occurred)
    return times


def date_scores(times: NDArray[np.int64], when: Interval, slack_ms: int) -> Floats:
    """Return 1 for what is of the days, falling to 0 ``slack_ms`` after them, and three times as fast before."""
    first, last, slack = when.first_us, when.last_us, slack_ms * 1_000
    early, late = (first - times).astype(np.float64) * _BEFORE, (times - last).astype(np.float64)
    gap = np.where(times < first, early, np.maximum(late, 0.0))
    scores: Floats = np.clip(1.0 - gap / slack, 0.0, 1.0)
    return scores


def recency_scores(times: NDArray[np.int64], now_us: int, half_life_ms: int) -> Floats:
    """Return 1 for now, a half at the half-life, a third at twice that."""
    age = np.maximum(now_us - times, 0).astype(np.float64)
    scores: Floats = 1.0 / (1.0 + age / (half_life_ms * 1_000))
    return scores


def importance_scores(owners: RelationSnapshot, neutral: float, rows: Ints | slice = _EVERY) -> Floats:
    """Return importance / 10; ``neutral`` where a record has none. Shapes: ``f64[n]`` of those rows."""
    if owners.relation.name != "note":
        count = owners.length if isinstance(rows, slice) else len(rows)
        return np.full(count, neutral / _TOP_IMPORTANCE)
    importance = owners.column("importance")[rows]
    scores: Floats = np.where(importance < 0, neutral, importance) / _TOP_IMPORTANCE
    return scores


# --- order ----------------------------------------------------------------------------------------


def joined(
    evaluator: Evaluator,
    weighted: Sequence[tuple[str, float, Floats]],
    found: Bools,
    total: float,
    finders: dict[str, Floats | int],
    silent: Collection[str] = (),
) -> Joined:
    """Return weighted parts, as shares of ``total``, the most that any row could have, and their sum.

    The score of what was not found is 0. ``silent`` parts are 0 throughout.
    """
    parts = {name: (weight / total, scores) for name, weight, scores in weighted if weight}
    spoken = [part for name, part in parts.items() if name not in silent]
    return Joined(evaluator.combine(spoken, found, LEAST), parts, finders)


def best_hits(searched: Sequence[Searched], scored: Sequence[Floats], limit: int) -> list[Hit]:
    """Return the best candidates of all kinds; score descending, ties by id."""
    found: list[Hit] = []
    ties: list[NDArray[np.uint64]] = []
    for kind, (item, score) in enumerate(zip(searched, scored, strict=True)):
        if not len(score):
            continue
        tie = item.owners.ties()
        places, best = best_scores(score, limit, tie=tie, rows=item.rows)
        rows = item.rows.take(places)
        found.extend(map(Hit, itertools.repeat(kind), places.tolist(), rows.tolist(), best.tolist()))
        if len(searched) > 1:
            ties.append(tie[rows])
    if len(ties) < 2:  # in order already
        return found
    tie = np.concatenate(ties)
    order = np.lexsort((tie[:, 1], tie[:, 0], np.array([-hit.score for hit in found])))[:limit]
    return [found[at] for at in order.tolist()]


def diversified(scores: NDArray[np.float64], likeness: NDArray[np.float64], share: float, limit: int) -> list[int]:
    """Return the order in which hits are taken: each the best by (1 - share) * score - share * likeness to those taken.

    Shapes: scores ``[n]``, best first; likeness ``[n, n]``
    """
    taken: list[int] = []
    left = list(range(len(scores)))
    most_like = np.zeros(len(scores))
    while left and len(taken) < limit:
        value = (1 - share) * scores[left] - share * most_like[left]
        chosen = left.pop(int(np.argmax(value)))
        taken.append(chosen)
        most_like = np.maximum(most_like, likeness[chosen])
    return taken
