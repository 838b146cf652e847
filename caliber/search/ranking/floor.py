"""Relevance floor: the minimum evidence for a query to return hits at all, and for a candidate to be one.

Scores compare within one search: the best of some junk scores as high as the best of some answers. Evidence is
absolute: the similarity of a vector, and the share of the query's words that a record contains. Among candidates of a
query that has evidence, scores decide.

Hits that are alike are ordered: a newer value first, and maximal marginal relevance.

Source: docs/search.md (The floor, Joining); docs/decisions/0191; Carbonell and Goldstein, SIGIR 1998.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import FloorConfig
from caliber.kernels import KeywordRule, cosine_batch
from caliber.kernels.joining.join import join
from caliber.model.embedding import EmbeddingSpace
from caliber.model.windows import Evidence
from caliber.search.query import Query
from caliber.search.ranking.days import are_of, count_of_days
from caliber.search.ranking.fusion import Joined, times_us, values
from caliber.search.ranking.legs import Bools, Coverage, Floats, KindSearch, Nearest, phrase_rows
from caliber.search.request import Request

_HELD = KeywordRule(k1=0.0, b=0.0, mean_length=1.0, saturate=0.0)
"""Each word counts once, whatever the length of the text."""

_OF_OTHER_DAYS = 0.6
WORDS_ALONE: Final = 0.05
"""Least share of the words of a question without a vector, as ``search.floor.words`` for one with a vector."""
REST: Final = 0.2
"""Least score of the other hits of a question that finds anything; linked records need none."""
QUESTION_WORDS: Final = 3.0
"""Most rare words of a long question that need to be covered."""
SAYING_WORDS: Final = 4
"""Least words of a question of stop words alone that counts as quoted; a shorter one finds nothing."""
"""The least share of the words beside the days that a record of other days holds."""

_ANY = operator.methodcaller("any")
_CUT = re.compile(r"/\d+(?=@)")


class Floored(NamedTuple):
    """Candidates of a search with those below the floor at score 0, and the evidence that there was.

    ``below`` is set where legs found records and none reaches the floor. ``strength`` in [0, 1] is the best evidence of
    any record, 0.5 at the least similarity; it is 1 where nothing was measured.
    """

    joined: list[Joined]
    beyond: Sequence[tuple[int, int, float]]
    below: Evidence | None = None
    strength: float = 1.0


class Thresholds(NamedTuple):
    """The least evidence for one query. ``similarity`` None: no similarity was measured for the space."""

    similarity: np.float32 | None
    words: float
    rest: np.float32


def thresholds(
    settings: FloorConfig, similarities: dict[str, float], nearest: Nearest, space: EmbeddingSpace | None
) -> Thresholds:
    """Return those for a query whose vector was compared in a space, or had none; ``similarities`` as in settings."""
    if not nearest.compared:
        return Thresholds(None, min(settings.words, WORDS_ALONE), np.float32(REST))
    name = "" if space is None else space.name
    # Where a model cuts texts, ``MODEL/254@384``, makes no difference.
    least = similarities.get(name, similarities.get(_CUT.sub("", name)))
    return Thresholds(None if least is None else np.float32(least), settings.words, np.float32(REST))


class MinimumScore:
    """Judges the candidates of one query."""

    def __init__(self, query: Query, coverage: Coverage, least: Thresholds) -> None:
        self._query, self._coverage, self._least = query, coverage, least
        quoted = len(query.stop_word_phrase) >= SAYING_WORDS
        self._phrases = (*query.phrases, query.stop_word_phrase) if quoted else query.phrases

    def judge(
        self, searched: Sequence[KindSearch], joined: Sequence[Joined], nearest: Nearest, most: int, *, whole: bool
    ) -> Floored:
        """Return the candidates with those below the floor at score 0, and at most ``most`` of the best of each kind.

        ``whole`` asks for the score of every candidate and for the strength; else only the best must be right.
        """
        if self._least.words == 0:
            return Floored(list(joined), nearest.beyond)
        near = list(map(self._near, nearest.similarities))
        when = self._query.when
        bound = self._of_days(searched) if self._query.of_days_only else None
        if any(near) and not whole and bound is None and self._all_good(joined, most):
            return Floored(list(joined), self._beyond(nearest))
        of_days = 0 if when is None else count_of_days(searched, when)
        day = self._coverage.weight(of_days) if of_days else 0.0
        covered = list(map(self._covered, searched, itertools.repeat(day)))
        if bound is not None:
            _, strength = self._evidence(searched, covered, nearest)
            bound = self._with_other_days(searched, bound, near)
            return Floored(_kept(joined, bound, most), (), None, strength)
        strong = list(map(self._strong, searched, covered, near))
        if not any(map(_ANY, strong)):
            nothing = [np.zeros(len(mask), np.bool_) for mask in strong]
            evidence, strength = self._evidence(searched, covered, nearest)
            found = any((item.score > 0).any() for item in joined)
            return Floored(_kept(joined, nothing, most), (), evidence if found else None, strength)
        kept = list(map(operator.or_, strong, map(self._with_score, joined)))
        _, strength = self._evidence(searched, covered, nearest)
        return Floored(_kept(joined, kept, most), self._beyond(nearest), None, strength)

    def _of_days(self, searched: Sequence[KindSearch]) -> list[Bools] | None:
        """Return the candidates of the days that the query asks for; None where there is none."""
        when = self._query.when
        assert when is not None
        of_days = [item.allowed.take(item.rows) & are_of(item, when, item.rows) for item in searched]
        return of_days if any(mask.any() for mask in of_days) else None

    def _with_other_days(self, searched: Sequence[KindSearch], bound: list[Bools], near: Sequence[int]) -> list[Bools]:
        """Return the records of the days, and of others where two words or more beside the days find none of these."""
        if len(self._coverage.words) < 2:
            return bound
        rest = [self._covered(item, 0.0) for item in searched]
        answered = any(
            (self._strong(item, shares, count) & mask).any()
            for item, shares, count, mask in zip(searched, rest, near, bound, strict=True)
        )
        if answered:
            return bound
        return [
            mask | (item.allowed.take(item.rows) & (shares >= _OF_OTHER_DAYS))
            for item, shares, mask in zip(searched, rest, bound, strict=True)
        ]

    def _near(self, similarities: NDArray[np.float32]) -> int:
        """Return how many of the nearest candidates count as found by their vectors."""
        if self._query.lacks_evidence:
            return 0
        least = self._least.similarity
        if least is None:
            return len(similarities)
        return int(np.searchsorted(-similarities, -least, side="right"))

    def _all_good(self, joined: Sequence[Joined], most: int) -> bool:
        """Return whether the best of all kinds are found by their scores alone."""
        good = count = 0
        for item in joined:
            good += int(np.count_nonzero(item.best.best >= self._least.rest))
            count += len(item.best.best)
        return good >= most or good == count

    def _covered(self, item: KindSearch, day: float) -> Floats:
        """Return the share of the query that each candidate covers; its days are a word of weight ``day``."""
        coverage, when = self._coverage, self._query.when
        total = min(coverage.total + day, QUESTION_WORDS * coverage.weight(0))
        held = np.zeros(len(item.rows))
        if not total:
            return held
        if coverage.words:
            found = item.words.scores(coverage.words, item.visible, _HELD, kept=item.allowed, given=item.rows)
            held = found.own[: len(item.rows)]
        if when is not None:
            held = held + np.where(are_of(item, when, item.rows), day, 0.0)
        covered: Floats = held / total
        return covered

    def _strong(self, item: KindSearch, covered: Floats, near: int) -> Bools:
        """Return the candidates that count as found by their own evidence. Shapes: ``bool[m]``."""
        strong = covered >= self._least.words
        strong[:near] = True
        if self._phrases:
            strong |= np.isin(item.rows, phrase_rows(item, self._phrases))
        inside = item.inside()
        return strong if inside is None else strong & inside

    def _with_score(self, item: Joined) -> Bools:
        """Return the candidates that count as found beside others: by their score, or linked with the best."""
        linked = item.finders[2]
        good: Bools = item.score.astype(np.float32) >= self._least.rest
        return good if linked is None else good | (linked > 0)

    def _beyond(self, nearest: Nearest) -> Sequence[tuple[int, int, float]]:
        """Return the near records beyond the candidates that count as found."""
        least = self._least.similarity
        if self._query.lacks_evidence:
            return ()
        return nearest.beyond if least is None else [item for item in nearest.beyond if item[2] >= least]

    def _evidence(
        self, searched: Sequence[KindSearch], covered: Sequence[Floats], nearest: Nearest
    ) -> tuple[Evidence, float]:
        """Return the best evidence of any record, and how strong it is."""
        words = 0.0
        for item, shares in zip(searched, covered, strict=True):
            inside = item.inside()
            words = max(words, float(shares.max(initial=0.0) if inside is None else shares[inside].max(initial=0.0)))
        least = self._least.similarity
        best = None if self._query.lacks_evidence else nearest.best
        near = 0.0
        if best is not None:
            near = 1.0 if least is None or least <= 0 else max(best / float(least) / 2, 0.0)
        evidence = Evidence(best, None if least is None else float(least), words, self._least.words)
        return evidence, min(max(words, near), 1.0)


def _kept(joined: Sequence[Joined], kept: Sequence[Bools], most: int) -> list[Joined]:
    """Return joined scores with 0 for the candidates that are not kept, and the best of the others."""
    out = []
    for item, mask in zip(joined, kept, strict=True):
        scores = np.where(mask, item.score, 0.0)
        out.append(replace(item, score=scores, best=item.best.by(scores, most)))
    return out


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
