"""Joining the legs: scores between 0 and 1, weights, ranks, boosts, and the order of hits.

Source: M-032 to M-047, K-119, K-202; reciprocal ranks: Cormack, Clarke and Büttcher (SIGIR 2009); maximal marginal
relevance: Carbonell and Goldstein (SIGIR 1998). Formulas: docs/search.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig, SearchWeights
from caliber.kernels import Evaluator, best_scores
from caliber.resident.mirror import RelationSnapshot
from caliber.search.dates import Interval
from caliber.search.legs import Bools, Floats, Nearest, Searched
from caliber.search.words import NAMES_A_TIME

LEGS = ("vector", "keyword", "graph", "importance")
LEAST = 1e-6
"""Score of what a leg found and nothing speaks for: it comes last, and is there."""

_TOP_IMPORTANCE = 10.0
_BEFORE = 3.0
"""A record from before the days that a query names counts off this many times as fast as one from after them."""


@dataclass(slots=True)
class Joined:
    """The scores of one kind's rows, and the shares of other scores that they are made of.

    Shapes: ``f64[owners.length]`` each
    """

    score: Floats
    parts: dict[str, tuple[float, Floats]] = field(default_factory=dict)
    finders: dict[str, Bools] = field(default_factory=dict)

    def breakdown(self, row: int) -> dict[str, float]:
        """Return what each part adds to the score of a row, without those that add nothing."""
        found = {name: share * float(scores[row]) for name, (share, scores) in self.parts.items()}
        return {name: part for name, part in found.items() if part}

    def found_by(self, row: int) -> tuple[str, ...]:
        """Return the legs that found a row, whatever they count for."""
        return tuple(leg for leg in LEGS if leg in self.finders and self.finders[leg][row])


def weights_in_force(weights: SearchWeights, missing: Sequence[str]) -> dict[str, float]:
    """Return each leg's weight; that of missing legs goes to the others in proportion (M-041)."""
    given = {leg: 0.0 if leg in missing else float(getattr(weights, leg)) for leg in LEGS}
    total = sum(given.values())
    return given if total == 0 else {leg: weight / total for leg, weight in given.items()}


def keyword_scores(searched: Sequence[Searched], settings: SearchConfig) -> list[tuple[Floats, Floats]]:
    """Return, for each kind, scores by words between 0 and 1: a text's own, and what its neighbours lent it."""
    if settings.normalisation == "saturation":
        return [(item.own / (item.own + 1), _rise(item.keyword) - _rise(item.own)) for item in searched]
    peak = max((float(item.keyword[item.allowed].max(initial=0.0)) for item in searched), default=0.0)
    if peak <= 0:
        return [(np.zeros(len(item.own)), np.zeros(len(item.own))) for item in searched]
    return [(item.own / peak, item.keyword / peak - item.own / peak) for item in searched]


def _rise(scores: Floats) -> Floats:
    out: Floats = scores / (scores + 1)
    return out


def vector_scores(searched: Sequence[Searched], nearest: Nearest, settings: SearchConfig) -> list[Floats]:
    """Return, for each kind, scores by vector between 0 and 1; 0 for what is not among the nearest."""
    out = [np.zeros(item.owners.length) for item in searched]
    if not len(nearest.rows):
        return out
    similarities = nearest.similarities.astype(np.float64)
    scores = np.clip(similarities, 0.0, 1.0)
    if settings.normalisation == "peak":
        best, floor = similarities[0], similarities[-1]
        scores = (similarities - floor) / (best - floor) if best > floor else np.ones(len(similarities))
    for place, scored in enumerate(out):
        here = nearest.kinds == place
        scored[nearest.rows[here]] = scores[here]
    return out


def rank_scores(searched: Sequence[Searched], legs: Sequence[Sequence[Floats]], settings: SearchConfig) -> None:
    """Replace the scores of each leg by ``(c + 1) / (c + rank)``, counted over all kinds; 0 stays 0."""
    constant = settings.rrf_constant
    for leg in legs:
        every = np.concatenate([scores[item.allowed] for item, scores in zip(searched, leg, strict=True)])
        ties = np.concatenate([item.owners.ties()[item.allowed] for item in searched])
        rank = np.empty(len(every), np.int64)
        rank[np.lexsort((ties[:, 1], ties[:, 0], -every))] = np.arange(1, len(every) + 1)
        ranked = np.where(every > 0, (constant + 1) / (constant + rank), 0.0)
        start = 0
        for item, scores in zip(searched, leg, strict=True):
            count = int(np.count_nonzero(item.allowed))
            scores[item.allowed] = ranked[start : start + count]
            start += count


# --- boosts ---------------------------------------------------------------------------------------


def times_us(owners: RelationSnapshot) -> NDArray[np.int64]:
    """Return when each record happened, or was written if nobody says. Shapes: ``int64[owners.length]``."""
    name = owners.relation.name
    if name == "scope":
        return owners.column("opened_at")
    occurred, created = owners.column("occurred_at"), owners.column("created_at")
    times: NDArray[np.int64] = np.where(occurred == np.iinfo(np.int64).min, created, occurred)
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


def importance_scores(owners: RelationSnapshot, neutral: float) -> Floats:
    """Return importance / 10; ``neutral`` where a record has none."""
    if owners.relation.name != "note":
        return np.full(owners.length, neutral / _TOP_IMPORTANCE)
    importance = owners.column("importance")
    scores: Floats = np.where(importance < 0, neutral, importance) / _TOP_IMPORTANCE
    return scores


def names_time(item: Searched) -> Bools:
    """Return which records name a time."""
    flags: Bools = (item.words.flags[: item.owners.length] & np.uint8(NAMES_A_TIME)) != 0
    return flags


# --- order ----------------------------------------------------------------------------------------


def joined(
    evaluator: Evaluator,
    weighted: Sequence[tuple[str, float, Floats]],
    found: Bools,
    total: float,
    finders: dict[str, Bools],
) -> Joined:
    """Return weighted parts, as shares of ``total``, the most that any row could have, and their sum.

    The score of what was not found is 0.
    """
    parts = {name: (weight / total, scores) for name, weight, scores in weighted if weight}
    return Joined(evaluator.combine(list(parts.values()), found, LEAST), parts, finders)


def best_rows(searched: Sequence[Searched], scored: Sequence[Floats], limit: int) -> list[tuple[int, int, float]]:
    """Return place of the kind, row and score of the best rows of all kinds; score descending, ties by id."""
    kinds, rows, scores, ties = [], [], [], []
    for place, (item, score) in enumerate(zip(searched, scored, strict=True)):
        tie = item.owners.ties()
        found, best = best_scores(score, limit, tie=np.ascontiguousarray(tie))
        kinds.append(np.full(len(found), place, np.int64))
        rows.append(found)
        scores.append(best)
        ties.append(tie[found])
    tie, score = np.concatenate(ties), np.concatenate(scores)
    order = np.lexsort((tie[:, 1], tie[:, 0], -score))[:limit]
    kind, row = np.concatenate(kinds)[order], np.concatenate(rows)[order]
    return list(zip(kind.tolist(), row.tolist(), score[order].tolist(), strict=True))


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
