"""The legs of a search: words, vectors. Each scores the rows of every searched kind; what joins them is in ``fusion``.

Source: M §1.3, K-119; docs/search.md.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import KeywordConfig
from caliber.kernels import KeywordRule, KeywordSnapshot, Lending, QueryWord
from caliber.resident.conversation import neighbours
from caliber.resident.keywords import ASKS
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.search.query import Query
from caliber.search.similar import SimilarTerms

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_READ_AT_ONCE = 256
"""Texts whose words are read before it is asked whether that was enough."""


@dataclass(slots=True)
class Searched:
    """One kind of record in one search.

    ``visible`` is what the principal may see and what is in force; ``allowed`` besides meets the filters. Statistics
    are of the visible, hits of the allowed. Shapes: both ``bool[owners.length]``.
    """

    kind: str
    owners: RelationSnapshot
    visible: Bools
    allowed: Bools
    words: KeywordSnapshot
    own: Floats = field(default_factory=lambda: np.zeros(0))
    keyword: Floats = field(default_factory=lambda: np.zeros(0))
    vector: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def asks(self) -> NDArray[np.uint8]:
        """Which records end with a question. Shapes: ``uint8[owners.length]``."""
        return self.words.flags[: self.owners.length] & np.uint8(ASKS)


# --- words ----------------------------------------------------------------------------------------


class Figures(Protocol):
    """What is counted over a whole store, of which a search sees only a part."""

    @property
    def texts(self) -> int:
        """How many texts are in sight, over all kinds that are searched."""
        ...

    def counts(self, terms: Sequence[str]) -> NDArray[np.int64]:
        """Return how many texts in sight hold each term."""
        ...

    def mean_length(self, kind: str) -> float:
        """Return how many terms a text of a kind has in the mean; 0 without any."""
        ...


def keyword_leg(
    searched: Sequence[Searched],
    query: Query,
    settings: KeywordConfig,
    similar: SimilarTerms | None,
    figures: Figures | None = None,
) -> None:
    """Score every visible row by the words of the query: ``own``, and ``keyword`` with what neighbours lend.

    How many texts there are, how many hold a term and how long they are is counted over what is visible, so that
    what is hidden leaves no trace. ``figures`` has counted it where the rows are only a part of a store.
    """
    groups = _groups(searched, query, similar)
    total = sum(int(np.count_nonzero(item.visible)) for item in searched) if figures is None else figures.texts
    words = _weighed(searched, groups, total, settings.similar_max, figures)
    for item in searched:
        mean = _mean_length(item) if figures is None else figures.mean_length(item.kind)
        item.own, item.keyword = _scores(item, words, settings, mean)


@dataclass(frozen=True, slots=True)
class _Group:
    """What stands for one word of a query: terms, the word's own first if it has one, and how near each is to it."""

    terms: NDArray[np.int64]
    near: Floats
    own: bool
    beginning: bool = False


def _groups(searched: Sequence[Searched], query: Query, similar: SimilarTerms | None) -> list[_Group]:
    vocabulary = searched[0].words.dictionary
    out = []
    for term in query.terms:
        number = vocabulary.terms.get(term, -1)
        terms, near = np.array([number] if number >= 0 else [], np.int64), np.ones(int(number >= 0))
        if similar is not None:
            like, how = similar.of(term)
            terms, near = np.concatenate((terms, like)), np.concatenate((near, how))
        out.append(_Group(terms, near, number >= 0))
    for beginning in query.beginnings:
        begun = vocabulary.terms_beginning(beginning)
        seen = [term for term, parts in begun.items() if not parts or _spelt_so(searched, term, parts)]
        terms = np.array(seen, np.int64)
        out.append(_Group(terms, np.ones(len(terms)), own=False, beginning=True))
    return out


def _spelt_so(searched: Sequence[Searched], term: int, parts: Sequence[int]) -> bool:
    """Return whether a visible text holds a term in one of these spellings: a hidden one must not open a stem."""
    for item in searched:
        rows = item.words.documents(term, item.visible)
        for start in range(0, len(rows), _READ_AT_ONCE):
            some = rows[start : start + _READ_AT_ONCE]
            if any((item.words.phrase([part], some) > 0).any() for part in parts):
                return True
    return False


def _weighed(
    searched: Sequence[Searched], groups: Sequence[_Group], total: int, most: int, figures: Figures | None
) -> list[QueryWord]:
    """Return the words with the strengths of their terms; a similar common word never counts as a rare one."""
    every = np.concatenate([group.terms for group in groups]) if groups else np.zeros(0, np.int64)
    if not len(every):
        return []
    if figures is None:
        counts = np.zeros(len(every), np.int64)
        for item in searched:
            counts += item.words.counts(every, item.visible)
    else:
        vocabulary = searched[0].words.dictionary
        counts = figures.counts([vocabulary.term_texts(term, term + 1)[0] for term in every.tolist()])
    rarity = _rarities(counts, total)
    out = []
    start = 0
    for group in groups:
        here = slice(start, start + len(group.terms))
        start = here.stop
        # Cut off by nearness among what is visible, so that hidden words push nobody out.
        kept = np.flatnonzero(counts[here])[:most]
        if not len(kept):
            continue
        if group.own:
            own = float(rarity[here][0])
        else:  # the beginning of words is as rare as all of them together; a word that is nowhere, as rare as can be
            own = _idf(min(total, int(counts[here].sum())) if group.beginning else 0, total)
        strengths = group.near[kept] * np.minimum(rarity[here][kept], own)
        out.append(QueryWord(group.terms[kept], strengths, own))
    return out


def _rarities(counts: NDArray[np.int64], total: int) -> Floats:
    """Return ``_idf`` of each count: one logarithm for each distinct one."""
    distinct, place = np.unique(counts, return_inverse=True)
    rarities: Floats = np.array([_idf(count, total) for count in distinct.tolist()])[place]
    return rarities


def _idf(count: int, total: int) -> float:
    """Return how rare a term is; never negative."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def _mean_length(item: Searched) -> float:
    """Return how many terms a visible text has in the mean; 0 without any."""
    visible = int(np.count_nonzero(item.visible))
    if not visible:
        return 0.0
    # Lengths are counts of terms: their sum is exact in any order.
    return int(np.dot(item.words.lengths[: item.owners.length].astype(np.int64), item.visible)) / visible


def _scores(
    item: Searched, words: Sequence[QueryWord], settings: KeywordConfig, mean_length: float
) -> tuple[Floats, Floats]:
    if not words or not mean_length:
        return np.zeros(item.owners.length), np.zeros(item.owners.length)
    rule = KeywordRule(settings.k1, settings.b, mean_length, settings.saturate)
    return item.words.scores(words, item.visible, rule, _lending(item, settings))


def _lending(item: Searched, settings: KeywordConfig) -> Lending | None:
    lent = (settings.lend_near, settings.lend_far, settings.lend_answer)
    if item.kind != "turn" or not any(lent):
        return None
    before, after = neighbours(item.owners, "scope_id").columns()
    return Lending(before, after, item.asks, *lent)


def phrase_rows(item: Searched, phrases: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """Return the allowed rows that hold at least one of the phrases, in order."""
    vocabulary = item.words.dictionary
    found: list[NDArray[np.int64]] = []
    for phrase in phrases:
        parts = [vocabulary.parts.get(part, -1) for part in phrase]
        if -1 in parts:
            continue
        # The rarest of the parts' terms names the texts that have to be read. A letter alone may have no postings.
        spoken = [part for part, text in zip(parts, phrase, strict=True) if len(text) > 1]
        terms = sorted({term for part in spoken for term in vocabulary.terms_of_part.get(part, ())[:1]})
        if terms:
            counts = item.words.counts(terms, item.allowed)
            rows = item.words.documents(terms[int(np.argmin(counts))], item.allowed)
        else:
            rows = np.flatnonzero(item.allowed)
        found.append(rows[item.words.phrase(parts, rows) > 0])
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


# --- vectors --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nearest:
    """The rows nearest in meaning, best first, over all kinds: place of the kind, row, similarity."""

    kinds: NDArray[np.int64]
    rows: NDArray[np.int64]
    similarities: NDArray[np.float32]
    start: int = 0
    """How many are nearer than the first."""

    def parted(self, count: int) -> tuple[Nearest, Nearest]:
        """Return the first ``count``, and the rest."""
        return (
            Nearest(self.kinds[:count], self.rows[:count], self.similarities[:count]),
            Nearest(self.kinds[count:], self.rows[count:], self.similarities[count:], count),
        )


def vector_leg(
    searched: Sequence[Searched],
    vectors: dict[tuple[str, uuid.UUID], VectorSnapshot],
    space_id: uuid.UUID,
    query: NDArray[np.float32],
    *,
    candidates: int,
    min_similarity: float,
) -> Nearest:
    """Return the ``candidates`` allowed rows whose vectors are nearest to the query's; ties by id."""
    kinds, rows, similarities, ties = [], [], [], []
    for place, item in enumerate(searched):
        index = vectors.get((item.kind, space_id))
        if index is None or not item.owners.length:
            continue
        found, scores = index.best(query, item.owners, item.allowed, candidates, min_similarity)
        kinds.append(np.full(len(found), place, np.int64))
        rows.append(found)
        similarities.append(scores)
        ties.append(item.owners.ties()[found])
    if not rows:
        nothing = np.zeros(0, np.int64)
        return Nearest(nothing, nothing, np.zeros(0, np.float32))
    tie = np.concatenate(ties)
    score = np.concatenate(similarities)
    order = np.lexsort((tie[:, 1], tie[:, 0], -score))[:candidates]
    return Nearest(np.concatenate(kinds)[order], np.concatenate(rows)[order], score[order])
