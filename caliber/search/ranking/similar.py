"""Query expansion by similar words: stems of the store whose word vectors are near those of a query word."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import VectorMatrix, Vocabulary
from caliber.llm.local.word_vectors import DIMENSIONS, WordVectors

_ONE_BY_ONE = 1_024
"""New terms up to this number are scored one by one: a search would scan the others too."""

_KEPT = 4_096
"""Words of recent queries whose similar words are remembered."""


@dataclass(slots=True)
class _Found:
    """Terms similar to a word with their nearness, nearest first, and the number of terms that were compared."""

    terms: NDArray[np.int64]
    near: NDArray[np.float64]
    looked_at: int


class SimilarTerms:
    """Every term of a vocabulary that has a vector, and searches among them."""

    def __init__(
        self, vectors: WordVectors, vocabulary: Vocabulary, stop_terms: frozenset[str], *, least: float
    ) -> None:
        self._vectors = vectors
        self._stop_terms = stop_terms
        self._vocabulary = vocabulary
        self._least = least
        self._matrix = VectorMatrix(DIMENSIONS, "cosine")
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, _Found] = OrderedDict()

    def of(self, terms: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return, for each of ``terms``, the similar ones, nearest first, with nearness: 0 at the least cosine, 1 at 1.

        Stop words have no similar terms; the term itself is left out.

        Shapes:  int64[m], f64[m] each
        """
        out = []
        with self._lock:
            count, recent = self._catch_up(), self._recent
            for term in terms:
                found = recent.get(term)
                if found is None or found.looked_at < count:
                    found = recent[term] = self._search(term, found, count)
                    if len(recent) > _KEPT:
                        recent.popitem(last=False)
                recent.move_to_end(term)
                out.append((found.terms, found.near))
        return out

    def warm(self) -> None:
        """Give their vectors to the terms that there are."""
        with self._lock:
            self._catch_up()

    def _catch_up(self) -> int:
        """Give a vector to each term that came since; return how many terms there are."""
        terms = self._vocabulary.terms
        size, count = self._matrix.size, len(terms)
        if size < count:
            fresh = self._vocabulary.term_texts(size, count)
            # Terms that are no words (numbers, paths) have no vector: a row of zeros, similar to nothing.
            spoken = [at for at, text in enumerate(fresh) if text.isalpha() and text not in self._stop_terms]
            rows = np.zeros((len(fresh), DIMENSIONS), np.float32)
            if spoken:
                rows[spoken] = self._vectors.vectors([fresh[at] for at in spoken])
            self._matrix.append(rows)
        return count

    def _search(self, term: str, before: _Found | None, count: int) -> _Found:
        start = 0 if before is None else before.looked_at
        terms, near = np.zeros(0, np.int64), np.zeros(0, np.float64)
        spoken = term.isalpha() and term not in self._stop_terms
        query = self._vectors.vectors([term] if spoken else [])
        if query.any():
            own_term = self._vocabulary.terms.get(term, count)
            if start and count - start <= _ONE_BY_ONE:
                terms = np.arange(start, count)
                cosines = self._matrix.snapshot().scores(query[0], terms)
                alike = (cosines >= np.float32(self._least)) & (terms != own_term)
                terms, cosines = terms[alike], cosines[alike]
            else:
                mask = np.ones(count, np.bool_)
                mask[:start] = False
                mask[own_term : own_term + 1] = False
                terms, cosines = self._matrix.snapshot().topk(
                    query[0], count - start, min_similarity=self._least, mask=mask
                )
            near = np.clip((cosines.astype(np.float64) - self._least) / (1 - self._least), 0.0, 1.0)
            terms, near = terms[near > 0], near[near > 0]
        if before is not None:
            if not len(terms):
                return _Found(before.terms, before.near, count)
            terms, near = np.concatenate((before.terms, terms)), np.concatenate((before.near, near))
            order = np.lexsort((terms, -near))
            terms, near = terms[order], near[order]
        if (near[1:] == near[:-1]).any():
            # Ties by spelling: term numbers depend on insertion order, which differs between indexes of the same texts.
            texts = [self._vocabulary.term_texts(term, term + 1)[0] for term in terms.tolist()]
            order = np.array(sorted(range(len(texts)), key=lambda at: (-near[at], texts[at])), np.int64)
            terms, near = terms[order], near[order]
        return _Found(terms, near, count)

    @property
    def nbytes(self) -> int:
        return int(self._matrix.snapshot().nbytes)
