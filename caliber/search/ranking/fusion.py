"""Score fusion: normalized leg scores, scores of date, recency and importance, weighted sums, and the best hits.

Source: M-032 to M-047, K-119, K-120, K-202; reciprocal ranks: Cormack, Clarke and Büttcher (SIGIR 2009). Formulas:
docs/search.md.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig, SearchWeights
from caliber.kernels.joining.join import NEIGHBOURS, QUOTIENT, STRETCHED, VALUES, Best, Part, best_scores, dense, join
from caliber.resident.mirror import RelationSnapshot
from caliber.search.filtering.filters import Found
from caliber.search.ranking.legs import Floats, Ints, KindSearch, Nearest
from caliber.search.request import Request

LEGS = ("vector", "keyword", "graph", "importance")
LEAST = 1e-6
"""Score of a candidate without evidence: it ranks last, but is returned."""

_TOP_IMPORTANCE = 10.0
NEUTRAL_IMPORTANCE: Final = 5.0
"""Importance of a record that has none."""
RRF_CONSTANT: Final = 60
"""Rank at which a reciprocal rank counts half."""


@dataclass(slots=True)
class Joined:
    """The scores of one kind's candidates, the names of their parts, and the best of them.

    Shapes: score ``f64[m]``
    """

    score: Floats
    names: tuple[str, ...]
    best: Best
    finders: tuple[int, Floats, Floats | None]
    """The number of candidates of each leg with a score above 0: by vector, by word and by link."""

    def explained(self) -> list[tuple[dict[str, float], tuple[str, ...]]]:
        """Return the share of each part in the best scores, and the legs that found them.

        Parts that are zero are left out; legs are named even if their weight is zero.
        """
        at = self.best.places
        near, by_word, by_link = self.finders
        worded = (by_word.take(at) > 0).tolist()
        linked = [False] * len(at) if by_link is None else (by_link.take(at) > 0).tolist()
        shares = self.best.contributions.T.tolist()
        out = []
        for parts, place, word, link in zip(shares, at.tolist(), worded, linked, strict=True):
            breakdown = dict(filter(_SHARE, zip(self.names, parts, strict=True)))
            out.append((breakdown, _FOUND_BY[place < near, word, link]))
        return out


_SHARE = operator.itemgetter(1)
_FOUND_BY = {
    found: tuple(itertools.compress(LEGS, found)) for found in itertools.product((False, True), repeat=len(LEGS) - 1)
}


class Hit(NamedTuple):
    """A candidate among the best: place of its kind among the kinds, its own among the candidates, row and score.

    ``at`` is its place among the best of its kind.
    """

    kind: int
    place: int
    row: int
    score: float
    at: int


def effective_weights(weights: SearchWeights, missing: Sequence[str]) -> dict[str, float]:
    """Return each leg's weight; that of missing legs goes to the others in proportion (M-041)."""
    configured = {leg: 0.0 if leg in missing else float(getattr(weights, leg)) for leg in LEGS}
    total = sum(configured.values())
    return configured if total == 0 else {leg: weight / total for leg, weight in configured.items()}


def keyword_parts(searched: Sequence[KindSearch], settings: SearchConfig) -> list[tuple[Part | None, Part | None]]:
    """Return, for each kind, keyword scores between 0 and 1: a text's own, and the boost by its neighbours.

    A kind without scores has None.
    """
    if settings.normalisation == "saturation":
        out: list[tuple[Part | None, Part | None]] = []
        for item in searched:
            rise = _rise(item.own_scores)
            out.append((values(rise), values(_rise(item.keyword) - rise)))
        return out
    peak = 0.0
    for item in searched:
        scores = item.keyword[item.allowed.take(item.rows)] if item.mixed else item.keyword
        peak = max(peak, float(scores.max(initial=0.0)))
    if peak <= 0:
        return [(None, None)] * len(searched)
    return [
        (
            Part(QUOTIENT, item.own_scores, by=peak),
            None if item.keyword is item.own_scores else Part(NEIGHBOURS, item.keyword, item.own_scores, by=peak),
        )
        for item in searched
    ]


def values(scores: Floats) -> Part:
    """Return scores that are a part as they stand."""
    return Part(VALUES, np.ascontiguousarray(scores, np.float64))


def _rise(scores: Floats) -> Floats:
    out: Floats = scores / (scores + 1)
    return out


def vector_parts(searched: Sequence[KindSearch], nearest: Nearest, settings: SearchConfig) -> list[Part | None]:
    """Return, for each kind, vector scores between 0 and 1; None for a kind without scores, 0 for rows not among the
    nearest.
    """
    if nearest.best is None:
        return [None] * len(searched)
    best, floor = nearest.best, nearest.least
    out: list[Part | None] = []
    for item, near in zip(searched, nearest.similarities, strict=True):
        if settings.normalisation == "peak" and best > floor:
            out.append(Part(STRETCHED, near=near, low=floor, by=best - floor))
            continue
        scores = np.zeros(len(item.rows))
        peak = settings.normalisation == "peak"
        scores[: len(near)] = 1.0 if peak else np.clip(near.astype(np.float64), 0.0, 1.0)
        out.append(values(scores))
    return out


def rank_scores(searched: Sequence[KindSearch], leg: Sequence[Floats]) -> list[Floats]:
    """Return ``(c + 1) / (c + rank)`` of each score of a leg, counted over the hits of all kinds; 0 stays 0."""
    constant = RRF_CONSTANT
    inside = [item.allowed.take(item.rows) for item in searched]
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


class Legs(NamedTuple):
    """The scores of each leg, by kind; None: the leg has no scores."""

    own: Sequence[Part | None]
    neighbours: Sequence[Part | None]
    vector: Sequence[Part | None]
    graph: Sequence[Part | None]


def dense_legs(searched: Sequence[KindSearch], parts: Sequence[Part | None]) -> list[Floats]:
    """Return the scores of one leg as arrays, by kind."""
    return [
        np.zeros(len(item.rows)) if part is None else dense(part, item.rows)
        for item, part in zip(searched, parts, strict=True)
    ]


def ranked_legs(searched: Sequence[KindSearch], legs: Legs) -> Legs:
    """Return the legs with ranks for scores; a text's own words and its neighbours' have one rank."""
    own, neighbours, vector, graph = (dense_legs(searched, parts) for parts in legs)
    whole = [mine + theirs for mine, theirs in zip(own, neighbours, strict=True)]
    ranked = (map(values, rank_scores(searched, leg)) for leg in (whole, vector, graph))
    by_word, by_vector, by_graph = map(list, ranked)
    return Legs(by_word, [None] * len(searched), by_vector, by_graph)


def of_words_and_vectors(
    own: Sequence[Floats], neighbours: Sequence[Floats], vector: Sequence[Floats], weights: Mapping[str, float]
) -> list[Floats]:
    """Return the score of each row by words and vectors alone, between 0 and 1."""
    by_word, by_vector = weights["keyword"], weights["vector"]
    total = (by_word + by_vector) or 1.0
    return [
        (by_word * (mine + theirs) + by_vector * near) / total
        for mine, theirs, near in zip(own, neighbours, vector, strict=True)
    ]


# --- times and boosts ------------------------------------------------------------------------------


_EVERY = slice(None)


def times_us(owners: RelationSnapshot, rows: Ints | slice = _EVERY) -> Ints:
    """Return when each record happened, or was written if unknown. Shapes: ``int64[n]`` of those rows."""
    times: Ints
    *others, times = [owners.column(name)[rows] for name in owners.relation.times.happened]
    for column in reversed(others):
        times = np.where(column == np.iinfo(np.int64).min, times, column)
    return times


def recency_scores(times: NDArray[np.int64], now_us: int, half_life_ms: int) -> Floats:
    """Return 1 for now, a half at the half-life, a third at twice that."""
    age = np.maximum(now_us - times, 0).astype(np.float64)
    scores: Floats = 1.0 / (1.0 + age / (half_life_ms * 1_000))
    return scores


def importance_scores(owners: RelationSnapshot, rows: Ints | slice = _EVERY) -> Floats:
    """Return importance / 10; ``NEUTRAL_IMPORTANCE`` where a record has none. Shapes: ``f64[n]`` of those rows."""
    if owners.relation.usage.importance is None:
        count = owners.length if isinstance(rows, slice) else len(rows)
        return np.full(count, NEUTRAL_IMPORTANCE / _TOP_IMPORTANCE)
    importance = owners.column(owners.relation.usage.importance)[rows]
    scores: Floats = np.where(importance < 0, NEUTRAL_IMPORTANCE, importance) / _TOP_IMPORTANCE
    return scores


# --- order ----------------------------------------------------------------------------------------


def joined(
    item: KindSearch,
    weighted: Sequence[tuple[str, float, Part | None]],
    total: float,
    most: int,
    finders: tuple[int, Floats, Floats | None],
) -> Joined:
    """Return weighted parts, as shares of ``total``, the most that any row could have, their sum, and the best of it.

    The score of a row that may not be a hit is 0.
    """
    names: list[str] = []
    parts: list[tuple[float, Part]] = []
    for name, weight, part in weighted:
        if weight and part is not None:
            names.append(name)
            parts.append((weight / total, part))
    inside = item.allowed if item.mixed else None
    best = join(parts, item.rows, item.owners.ties(), most, inside=inside, least=LEAST)
    return Joined(best.scores, tuple(names), best, finders)


def best_rows(searched: Sequence[KindSearch], scored: Sequence[Joined], limit: int) -> list[Ints]:
    """Return the rows of the best candidates of all kinds together, by kind; within a kind score descending, then id.

    Shapes: ``int64[n]`` each.
    """
    rows = [item.rows.take(joined.best.places) for item, joined in zip(searched, scored, strict=True)]
    if sum(map(len, rows)) <= limit:
        return rows
    ties = np.concatenate(
        [item.owners.ties().take(rows_of_kind, axis=0) for item, rows_of_kind in zip(searched, rows, strict=True)]
    )
    scores = np.concatenate([joined.best.best for joined in scored])
    order = np.lexsort((ties[:, 1], ties[:, 0], -scores))[:limit]
    kept = np.zeros(len(scores), np.bool_)
    kept[order] = True
    starts = np.cumsum([0, *map(len, rows)]).tolist()
    return [
        rows_of_kind[kept[start : start + len(rows_of_kind)]] for rows_of_kind, start in zip(rows, starts, strict=False)
    ]


def best_hits(searched: Sequence[KindSearch], scored: Sequence[Floats], limit: int) -> list[Hit]:
    """Return the best candidates of all kinds by some scores; score descending, ties by id."""
    best = [
        best_scores(score, limit, tie=item.owners.ties(), rows=item.rows)
        for item, score in zip(searched, scored, strict=True)
    ]
    return merged(searched, best, limit)


def merged(searched: Sequence[KindSearch], best: Sequence[tuple[Ints, NDArray[np.float32]]], limit: int) -> list[Hit]:
    """Return the best candidates of all kinds, given those of each; score descending, ties by id."""
    found: list[Hit] = []
    ties: list[NDArray[np.uint64]] = []
    for kind, (item, (places, scores)) in enumerate(zip(searched, best, strict=True)):
        if not len(places):
            continue
        rows = item.rows.take(places)
        columns = (places.tolist(), rows.tolist(), scores.tolist(), range(len(places)))
        found.extend(map(Hit, itertools.repeat(kind), *columns))
        if len(searched) > 1:
            ties.append(item.owners.ties()[rows])
    if len(ties) < 2:  # in order already
        return found
    tie = np.concatenate(ties)
    order = np.lexsort((tie[:, 1], tie[:, 0], np.array([-hit.score for hit in found])))[:limit]
    return [found[at] for at in order.tolist()]


_HALF = 0.5


def recent_rows(searched: Sequence[KindSearch], request: Request, settings: SearchConfig) -> list[Found]:
    """Return the allowed rows by the mean of how recent and how important they are; using a record makes it recent."""
    if not searched:
        return []
    uses = request.uses
    recency, importance, scores = [], [], []
    for item in searched:
        times = times_us(item.owners).copy()
        rows = np.flatnonzero(item.allowed)
        times[rows] = np.maximum(times[rows], uses.of(item.owners, rows)[1])
        recent = recency_scores(times, request.now_us, settings.boosts.recency_half_life_ms)
        important = importance_scores(item.owners)
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
        for hit in best_hits(searched, scores, request.limit)
    ]
