"""Order among hits that are alike: a newer value first, and maximal marginal relevance.

Source: docs/search.md (Joining); Carbonell and Goldstein, SIGIR 1998.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import cosine_batch
from caliber.kernels.joining.join import join
from caliber.search.ranking.fusion import Joined, times_us, values
from caliber.search.ranking.legs import KindSearch
from caliber.search.request import Request

_ALIKE_POOL: Final = 8
"""The best candidates of a kind, among which a newer value comes first."""
_STATEMENT_TERMS: Final = 32
"""Longer texts state more than one value."""
_COMMON, _LEAST_COMMON = 0.6, 3
"""The least share of words, and the least number, that two statements of one thing have in common."""
_AS_RELEVANT: Final = 0.8
"""The least share of a statement's score that a newer one needs to come first."""
_BELOW: Final = 1 - 2**-20


def newer_first(
    item: KindSearch, joined: Joined, terms: frozenset[str], terms_of: Callable[[str], tuple[str, ...]], most: int
) -> Joined:
    """Return scores in which a statement is below a newer one of the same thing with another value.

    "The server is at 10.0.0.5" is below "The server is at 10.0.0.9 now", unless the query names what only it holds.
    """
    ties = item.owners.ties()
    places = joined.best.places[:_ALIKE_POOL]
    if len(places) < _ALIKE_POOL and most < _ALIKE_POOL:
        places = joined.best.by(joined.score, _ALIKE_POOL).places
    rows = item.rows[places]
    times, exact = times_us(item.owners, rows).tolist(), joined.score[places]
    apart = (exact[1:] <= exact[:-1] * _BELOW).all()
    if apart and sorted(times, reverse=True) == times:  # newer ones are first already
        return joined
    scores = exact.tolist()
    sizes, own = item.words.lengths[rows].tolist(), item.own_scores[places].tolist()
    short = [at for at, size in enumerate(sizes) if _LEAST_COMMON <= size <= _STATEMENT_TERMS and own[at] > 0]
    pairs = [
        (old, new)
        for old, new in itertools.permutations(short, 2)
        if times[new] > times[old]
        and scores[old] * _AS_RELEVANT <= scores[new]
        and _COMMON * max(sizes[old], sizes[new]) <= min(sizes[old], sizes[new])
        and _COMMON * own[old] <= own[new]
    ]
    if not any(scores[old] > scores[new] * _BELOW for old, new in pairs):
        return joined
    pairs.sort(key=lambda pair: (-times[pair[0]], pair))
    words = [frozenset(words) for words in item.words.words(rows.tolist())]
    head = None if item.owners.relation.text is None else item.owners.relation.text.head
    heads = [0] * len(rows) if head is None else item.owners.column(head)[rows].tolist()
    lowered = False
    for old, new in pairs:
        one, other = words[old], words[new]
        common = len(one & other)
        if (
            common >= _LEAST_COMMON
            and _COMMON * max(len(one), len(other)) <= common < min(len(one), len(other))
            and heads[new] == heads[old]
            and not any(terms.intersection(terms_of(item.words.dictionary.word(word))) for word in one - other)
        ):
            below = scores[new] * _BELOW
            scores[old], lowered = min(scores[old], below), lowered or below < scores[old]
    if not lowered:
        return joined
    after = joined.score.copy()
    after[places] = scores
    parts = [*joined.best.parts, (1.0, values(after - joined.score))]
    best = join(parts, item.rows, ties, 0).by(after, most)
    return replace(joined, score=after, names=(*joined.names, "outdated"), best=best)


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


def likeness(searched: Sequence[KindSearch], request: Request, best: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
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
