"""Keyword leg (BM25) and vector leg of a search, and ``KindSearch``: the candidates of one kind that they score.

Source: M §1.3, K-119; docs/search.md.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import KeywordConfig
from caliber.kernels import KeywordRule, KeywordSnapshot, NeighbourBoost, QueryWord
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.conversation import neighbours
from caliber.resident.keywords import ASKS
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.search.filtering.visible import VisibleRows
from caliber.search.query import Query
from caliber.search.ranking.similar import SimilarTerms

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NO_ROWS, _NO_SCORES, _NO_SUMS = np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0)
_FIRST, _LAST = operator.itemgetter(0), operator.itemgetter(-1)
_READ_AT_ONCE = 256
"""Texts whose words are read before checking whether that was enough."""
_RARITIES = 16_384
"""Logarithms that are remembered: searches of one store ask for few, again and again."""
FAR_SHARE: Final = 0.625
"""Share of ``search.keyword.neighbour_boost`` that a turn borrows from the neighbours of its neighbours."""
SIMILAR_MAX: Final = 64
"""Most similar words that stand in for one."""
UNSEEN_TEXTS: Final = 100
"""Texts without any of the words that count when the floor measures rarity: words of a small store are rare."""


@dataclass(slots=True)
class KindSearch:
    """One kind of record in one search, and its candidates: what some leg found, row by row.

    ``visible`` is what the principal may see and what is in force; ``allowed`` besides meets the filters. Statistics
    are of the visible, hits of the allowed. A candidate may be visible and not allowed: links lead on from it.

    Shapes: visible and allowed ``bool[owners.length]``; rows ``int64[m]``, each once; own_scores and keyword ``f64[m]``
    """

    kind: str
    owners: RelationSnapshot
    visibility: VisibleRows
    allowed: Bools
    words: KeywordSnapshot
    rows: Ints = field(default_factory=_NO_ROWS.copy)
    own_scores: Floats = field(default_factory=_NO_SUMS.copy)
    keyword: Floats = field(default_factory=_NO_SUMS.copy)
    mixed: bool = False
    """Whether there may be candidates that are no hits."""
    excluded: Ints | None = None
    """Visible rows that lend nothing and are no candidates."""
    meant: Bools | None = None
    """The mask of rows whose texts mean the days of the query."""

    @property
    def visible(self) -> Bools:
        """The mask of rows that are valid and visible to the principal."""
        return self.visibility.visible

    def searchable(self) -> Bools:
        """Return the visible rows that words may find, or that boost neighbours. Shapes: ``bool[owners.length]``"""
        if self.excluded is None or not len(self.excluded):
            return self.visibility.visible
        searchable = self.visibility.visible.copy()
        searchable[self.excluded] = False
        return searchable

    def inside(self) -> Bools | None:
        """Return the candidates that may be hits; None: all. Shapes: ``bool[m]``."""
        return self.allowed.take(self.rows) if self.mixed else None

    def places_of(self, rows: Ints) -> Ints:
        """Return the place of each row among the candidates, -1 for a row that is no candidate."""
        place = np.full(self.owners.length, -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        return place[rows]

    def add(self, rows: Ints) -> Ints:
        """Make rows candidates, each given once; return the place of each."""
        places = self.places_of(rows)
        fresh = rows[places < 0]
        if len(fresh):
            places[places < 0] = np.arange(len(self.rows), len(self.rows) + len(fresh))
            self.rows = np.concatenate((self.rows, fresh))
            self.own_scores, self.keyword = (
                padded(self.own_scores, len(self.rows)),
                padded(self.keyword, len(self.rows)),
            )
        return places


def padded(scores: Floats, length: int) -> Floats:
    """Return scores with zeros for the candidates that came since."""
    return scores if len(scores) == length else np.concatenate((scores, np.zeros(length - len(scores))))


# --- words ----------------------------------------------------------------------------------------


class Coverage(NamedTuple):
    """The words of a query as evidence: what each adds to the share of the query that a record covers.

    ``total`` is the weight of all words; ``texts`` is the number of texts that rarity is measured among.
    """

    words: list[QueryWord]
    total: float
    texts: int

    def weight(self, count: int) -> float:
        """Return the weight of a word that the given number of texts contain."""
        return idf(count, self.texts)


def keyword_leg(
    searched: Sequence[KindSearch],
    query: Query,
    settings: KeywordConfig,
    similar: SimilarTerms | None,
    *,
    linked: bool,
) -> Coverage:
    """Score the candidates by the words of the query, and add all records that words find to the candidates.

    The leg counts texts, terms and lengths over visible records only, so that hidden records leave no trace.
    ``linked`` asks for candidates that filters leave out as well. Returns the words as evidence.
    """
    groups = _groups(searched, query, similar)
    words, coverage = _weighed(searched, groups, SIMILAR_MAX, UNSEEN_TEXTS)
    for item in searched:
        mean = item.visibility.mean_length(item.words)
        item.mixed = linked and item.allowed is not item.visible
        searchable = item.searchable()
        _score(item, words, settings, mean, searchable, searchable if linked else item.allowed)
    return coverage


class _Group(NamedTuple):
    """The terms that match one word of a query, its own term first if it has one, and the nearness of each.

    A ``filler`` is no evidence.
    """

    terms: list[int]
    near: list[float]
    own: bool
    beginning: bool = False
    filler: bool = False


def _groups(searched: Sequence[KindSearch], query: Query, similar: SimilarTerms | None) -> list[_Group]:
    vocabulary = searched[0].words.dictionary
    out = []
    alike = [None] * len(query.terms) if similar is None else similar.of(query.terms)
    for term, others in zip(query.terms, alike, strict=True):
        number = vocabulary.terms.get(term, -1)
        terms, near = ([number], [1.0]) if number >= 0 else ([], [])
        if others is not None and len(others[0]):
            terms += others[0].tolist()
            near += others[1].tolist()
        out.append(_Group(terms, near, number >= 0, filler=term in query.fillers))
    for beginning in query.prefixes:
        begun = vocabulary.terms_beginning(beginning)
        seen = [term for term, parts in begun.items() if not parts or _in_sight(searched, term, parts)]
        out.append(_Group(seen, [1.0] * len(seen), own=False, beginning=True))
    return out


def _in_sight(searched: Sequence[KindSearch], term: int, parts: tuple[int, ...]) -> bool:
    """Return whether a visible text holds a term in one of these spellings: a hidden one must not open a stem."""
    for item in searched:
        remembered = item.visibility.remembered.get((term, parts))
        if remembered is None:
            remembered = item.visibility.remember((term, parts), _spelt_so(item, term, parts))
        if remembered:
            return True
    return False


def _spelt_so(item: KindSearch, term: int, parts: Sequence[int]) -> bool:
    rows = item.words.documents(term, item.visible)
    for start in range(0, len(rows), _READ_AT_ONCE):
        some = rows[start : start + _READ_AT_ONCE]
        if any((item.words.phrase([part], some) > 0).any() for part in parts):
            return True
    return False


def _weighed(
    searched: Sequence[KindSearch],
    groups: Sequence[_Group],
    most: int,
    unseen: int,
) -> tuple[list[QueryWord], Coverage]:
    """Return the words with the strengths of their terms, for scores and as evidence.

    A similar common word never counts as a rare one. As evidence a word is as rare as among ``unseen`` more texts
    without it.
    """
    every: list[int] = []
    for group in groups:
        every += group.terms
    total, texts = 0, list[int]()  # how many visible texts there are, and hold each term
    for item in searched:
        total += item.visibility.count
        if every:
            counted = item.words.counts(every, item.visibility.visible).tolist()
            texts = list(map(operator.add, texts, counted)) if texts else counted
    among = total + unseen
    words, evidence, weight, start = [], [], 0.0, 0
    for group in groups:
        counts = texts[start : start + len(group.terms)]
        start += len(group.terms)
        if group.own:
            common = counts[0]
        else:  # the beginning of words is as rare as all of them together; a word that is nowhere, as rare as can be
            common = min(total, sum(counts)) if group.beginning else 0
        own, telling = idf(common, total), idf(common, among)
        if not group.filler:
            weight += telling
        if not any(counts):
            continue
        terms: list[int] = []
        strengths: list[float] = []
        shares: list[float] = []
        for term, near, count in zip(group.terms, group.near, counts, strict=True):
            # The cut-off is by nearness among visible words, so that hidden words displace none.
            if count and len(terms) < most:
                terms.append(term)
                strengths.append(near * min(idf(count, total), own))
                shares.append(near * min(idf(count, among), telling))
        words.append(QueryWord(terms, strengths, own))
        if not group.filler:
            evidence.append(QueryWord(terms, shares, telling))
    return words, Coverage(evidence, weight, among)


@lru_cache(maxsize=_RARITIES)
def idf(count: int, total: int) -> float:
    """Return how rare a term is that ``count`` of ``total`` texts hold; never negative."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def _score(
    item: KindSearch,
    words: Sequence[QueryWord],
    settings: KeywordConfig,
    mean_length: float,
    searchable: Bools,
    kept: Bools,
) -> None:
    if not words or not mean_length:
        item.own_scores = item.keyword = np.zeros(len(item.rows))
        return
    rule = KeywordRule(settings.k1, settings.b, mean_length, settings.saturate)
    boost = _neighbour_boost(item, settings)
    item.rows, item.own_scores, item.keyword = item.words.scores(
        words, searchable, rule, boost, kept=kept, given=item.rows
    )
    if boost is None:
        item.keyword = item.own_scores  # the same array: there is no boost


def _neighbour_boost(item: KindSearch, settings: KeywordConfig) -> NeighbourBoost | None:
    near, following = settings.neighbour_boost, item.owners.layout.relation.neighbours
    if following is None or not near:
        return None
    before, after = neighbours(item.owners, following.by).columns()
    return NeighbourBoost(before, after, item.words.flagged(ASKS), near, FAR_SHARE * near, near)


def phrase_rows(item: KindSearch, phrases: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """Return the allowed rows that hold at least one of the phrases, in order."""
    vocabulary = item.words.dictionary
    found: list[NDArray[np.int64]] = []
    for phrase in phrases:
        parts = [vocabulary.parts.get(part, -1) for part in phrase]
        if -1 in parts:
            continue
        # Only texts that hold every part's term have to be read; those of a part alone that nothing else has the term
        # of need not. A letter alone may have no postings.
        spoken = [part for part, text in zip(parts, phrase, strict=True) if len(text) > 1]
        terms = sorted({term for part in spoken for term in vocabulary.terms_of_part.get(part, ())[:1]})
        rows = np.flatnonzero(item.allowed) if not terms else _holding_all(item, terms)
        if spoken == parts and len(parts) == 1 and vocabulary.is_sole_spelling(parts[0]):
            found.append(rows)
            continue
        found.append(rows[item.words.phrase(parts, rows) > 0])
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _holding_all(item: KindSearch, terms: Sequence[int]) -> NDArray[np.int64]:
    """Return the allowed rows that hold each of the terms."""
    held = item.allowed
    rows = np.zeros(0, np.int64)
    for at in np.argsort(item.words.counts(terms, item.allowed), kind="stable").tolist():
        rows = item.words.documents(terms[at], held)
        held = np.zeros(len(held), np.bool_)
        held[rows] = True
    return rows


# --- vectors --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nearest:
    """The similarities of the rows nearest in meaning, by kind, best first; they are the first candidates of each.

    ``best`` and ``least`` are those of all kinds together; ``best`` None: nothing is near. ``beyond`` has place of
    the kind, row and similarity of what is near after them, the nearest first; it is no candidate. ``compared`` says
    whether the query had a vector to compare.
    """

    similarities: list[NDArray[np.float32]]
    best: float | None = None
    least: float = 0.0
    beyond: Sequence[tuple[int, int, float]] = ()
    compared: bool = True


def vector_leg(
    searched: Sequence[KindSearch],
    vectors: dict[tuple[str, uuid.UUID], VectorSnapshot],
    space_id: uuid.UUID,
    query: NDArray[np.float32],
    *,
    candidates: int,
    most: int,
    min_similarity: float,
) -> Nearest:
    """Make candidates of the ``candidates`` allowed rows whose vectors are nearest to the query's; ties by id.

    ``most`` rows are scored, if that is more: further near rows beyond the candidates.
    """
    found: list[NDArray[np.float32]] = []
    most, count = max(candidates, most), 0
    for item in searched:
        index = vectors.get((item.kind, space_id))
        if index is None:
            item.rows, similarities = _NO_ROWS, _NO_SCORES
        else:
            item.rows, similarities = index.best(query, item.owners, item.allowed, most, min_similarity)
        found.append(similarities)
        count += len(similarities)
    beyond: Sequence[tuple[int, int, float]] = ()
    if count > candidates:
        beyond = _cut_off(searched, found, candidates, most)
        found = [scores[: len(item.rows)] for item, scores in zip(searched, found, strict=True)]
    some = list(filter(len, found))
    if not some:
        return Nearest(found)
    return Nearest(found, float(max(map(_FIRST, some))), float(min(map(_LAST, some))), beyond)


def _cut_off(
    searched: Sequence[KindSearch], found: Sequence[NDArray[np.float32]], candidates: int, most: int
) -> list[tuple[int, int, float]]:
    """Keep of each kind's rows, best first, those among the nearest of all kinds; return the rows after them."""
    rows = np.concatenate([item.rows for item in searched])
    tie = np.concatenate([item.owners.ties().take(item.rows, axis=0) for item in searched])
    kinds = np.repeat(np.arange(len(searched)), [len(scores) for scores in found])
    similarities = np.concatenate(found)
    order = np.lexsort((tie[:, 1], tie[:, 0], -similarities))
    kept = np.bincount(kinds[order[:candidates]], minlength=len(searched)).tolist()
    for item, count in zip(searched, kept, strict=True):
        item.rows = item.rows[:count]
    after = order[candidates:most]
    return list(zip(kinds[after].tolist(), rows[after].tolist(), similarities[after].tolist(), strict=True))
