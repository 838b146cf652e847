"""Words that mean nearly the same: which stems of a store may stand in for a word of a query, and how far."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import VectorMatrix, Vocabulary
from caliber.llm.word_vectors import DIMENSIONS, WordVectors

_KEPT = 4_096
"""Words of recent queries whose similar words are remembered."""


@dataclass(slots=True)
class _Found:
    """Terms similar to a word, and how many terms of the store had been looked at."""

    terms: NDArray[np.int64]
    cosines: NDArray[np.float32]
    looked_at: int


class SimilarTerms:
    """Every term of a vocabulary that has a vector, and searches among them."""

    def __init__(self, vectors: WordVectors, vocabulary: Vocabulary, *, least: float) -> None:
        self._vectors = vectors
        self._vocabulary = vocabulary
        self._least = least
        self._matrix = VectorMatrix(DIMENSIONS, "cosine")
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, _Found] = OrderedDict()

    def of(self, term: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the terms whose cosine with ``term`` reaches the least, and the cosines. Shapes: ``[m]``, ``[m]``."""
        with self._lock:
            count = self._catch_up()
            found = self._recent.get(term)
            if found is None or found.looked_at < count:
                found = self._recent[term] = self._search(term, found, count)
                if len(self._recent) > _KEPT:
                    self._recent.popitem(last=False)
            self._recent.move_to_end(term)
            return found.terms, found.cosines

    def _catch_up(self) -> int:
        """Give a vector to each term that came since; return how many terms there are."""
        terms = self._vocabulary.terms
        known, count = self._matrix.size, len(terms)
        if known < count:
            fresh = self._vocabulary.term_texts(known, count)
            # What is no word (numbers, paths) has no vector: a row of zeros, which is like nothing.
            spoken = [at for at, text in enumerate(fresh) if text.isalpha()]
            rows = np.zeros((len(fresh), DIMENSIONS), np.float32)
            if spoken:
                rows[spoken] = self._vectors.vectors([fresh[at] for at in spoken])
            self._matrix.append(rows)
        return count

    def _search(self, term: str, before: _Found | None, count: int) -> _Found:
        start = 0 if before is None else before.looked_at
        query = self._vectors.vectors([term])[0]
        terms, cosines = np.zeros(0, np.int64), np.zeros(0, np.float32)
        if term.isalpha() and query.any():
            snapshot = self._matrix.snapshot()
            mask = None
            if start:
                mask = np.zeros(count, np.bool_)
                mask[start:] = True
            terms, cosines = snapshot.topk(query, count - start, min_similarity=self._least, mask=mask)
        if before is not None:
            terms, cosines = np.concatenate((before.terms, terms)), np.concatenate((before.cosines, cosines))
        return _Found(terms, cosines, count)

    @property
    def nbytes(self) -> int:
        return int(self._matrix.snapshot().nbytes)
