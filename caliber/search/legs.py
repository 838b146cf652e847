"""The legs of a search: words, vectors. Each scores the rows of every searched kind; what joins them is in ``fusion``.

Source: M §1.3, K-119; docs/search.md.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

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


def keyword_leg(
    searched: Sequence[Searched],
    query: Query,
    settings: KeywordConfig,
    similar: SimilarTerms | None,
    silent: frozenset[str],
) -> None:
    """Score every visible row by the words of the query: ``own``, and ``keyword`` with what neighbours lend.

    How many texts there are, how many hold a term and how long they are is counted over what is visible, so that
    what is hidden leaves no trace.
    """
    groups = _groups(searched, query, settings, similar, silent)
    total = sum(int(np.count_nonzero(item.visible)) for item in searched)
    counts = _counts(searched, sorted({term for group in groups for term, _ in group.members}))
    words = [word for group in groups if (word := _weighed(group, counts, total, settings.similar_max)).terms]
    for item in searched:
        item.own, item.keyword = _scores(item, words, settings)


@dataclass(frozen=True, slots=True)
class _Group:
    """What stands for one word of a query: terms, and how near each is to it. ``own`` is its own term, or -1."""

    own: int
    members: tuple[tuple[int, float], ...]


def _groups(
    searched: Sequence[Searched],
    query: Query,
    settings: KeywordConfig,
    similar: SimilarTerms | None,
    silent: frozenset[str],
) -> list[_Group]:
    vocabulary = searched[0].words.vocabulary
    out = []
    for term in query.terms:
        own = vocabulary.terms.get(term, -1)
        members = {} if own < 0 else {own: 1.0}
        if similar is not None and term not in silent:
            least = settings.similar_min
            found, cosines = similar.of(term)
            for number, cosine in zip(found.tolist(), cosines.tolist(), strict=True):
                near = (cosine - least) / (1 - least)
                if number not in members and near > 0 and vocabulary.term_texts(number, number + 1)[0] not in silent:
                    members[number] = min(near, 1.0)
        out.append(_Group(own, tuple(members.items())))
    for beginning in query.beginnings:
        starts = dict.fromkeys(vocabulary.terms_beginning(beginning), 1.0)
        out.append(_Group(-1, tuple(starts.items())))
    return out


def _counts(searched: Sequence[Searched], terms: Sequence[int]) -> dict[int, int]:
    """Return how many visible texts of all kinds hold each term."""
    if not terms:
        return {}
    counts = sum(item.words.counts(terms, item.visible) for item in searched)
    return dict(zip(terms, np.asarray(counts).tolist(), strict=True))


def _weighed(group: _Group, counts: dict[int, int], total: int, most: int) -> QueryWord:
    """Return a word with the strengths of its terms; a similar common word never counts as a rare one."""
    held = [(term, near) for term, near in group.members if counts[term]]
    # Cut off by nearness among what is visible, so that hidden words push nobody out.
    held = sorted(held, key=lambda member: -member[1])[:most]
    if group.own >= 0:
        rarity = _idf(counts[group.own], total)
    elif all(near == 1.0 for _, near in held):  # the beginning of words: as rare as all of them together
        rarity = _idf(min(total, sum(counts[term] for term, _ in held)), total)
    else:
        rarity = _idf(0, total)
    strengths = tuple(near * min(_idf(counts[term], total), rarity) for term, near in held)
    return QueryWord(tuple(term for term, _ in held), strengths, rarity)


def _idf(count: int, total: int) -> float:
    """Return how rare a term is; never negative."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def _scores(item: Searched, words: Sequence[QueryWord], settings: KeywordConfig) -> tuple[Floats, Floats]:
    length = item.owners.length
    visible = int(np.count_nonzero(item.visible))
    # Lengths are counts of terms: their sum is exact in any order.
    terms = int(np.dot(item.words.lengths[:length].astype(np.int64), item.visible)) if visible else 0
    if not words or not terms:
        return np.zeros(length), np.zeros(length)
    rule = KeywordRule(settings.k1, settings.b, terms / visible, settings.saturate)
    return item.words.scores(words, item.visible, rule, _lending(item, settings))


def _lending(item: Searched, settings: KeywordConfig) -> Lending | None:
    lent = (settings.lend_near, settings.lend_far, settings.lend_answer)
    if item.kind != "turn" or not any(lent):
        return None
    before, after = neighbours(item.owners, "scope_id").columns()
    return Lending(before, after, item.asks, *lent)


def phrase_rows(item: Searched, phrases: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """Return the allowed rows that hold at least one of the phrases, in order."""
    vocabulary = item.words.vocabulary
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
