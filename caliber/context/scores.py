"""Relevance of candidates to the query.

Source: C-453, C-455, K-096.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import AssemblyPlan
from caliber.model.errors import InvalidVector
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.vectors import VectorSnapshot, as_query

NO_EMBEDDING: Final = "no_embedding"
MISMATCH: Final = "embedding_mismatch"
_ZERO = np.float32(0)

Scores = tuple[NDArray[np.float32], NDArray[np.bool_]]


class Scorer:
    """Scores rows against one query; ``degraded`` names what it could not do.

    Three cases: no query, everything counts fully; a query without a vector, everything is neutral; a query vector,
    similarity where there is one to compare with. A vector that cannot be compared is an error, never a guess.
    """

    __slots__ = ("_comparable", "_has_query", "_neutral", "_query", "_snapshot", "_space", "degraded")

    def __init__(self, inputs: AssemblyInputs, plan: AssemblyPlan) -> None:
        self._snapshot = inputs.snapshot
        self._space = inputs.space_id
        self._neutral = np.float32(plan.config.assembly.neutral_relevance)
        self._has_query = inputs.query is not None or inputs.query_embedding is not None
        self._query: NDArray[np.float32] | None = None
        self._comparable = False
        self.degraded: list[str] = []
        if inputs.query_embedding is None:
            if self._has_query:
                self.degraded.append(NO_EMBEDDING)
            return
        vector = np.asarray(inputs.query_embedding)
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise InvalidVector(reason="the query vector must be one row of finite numbers")
        space = None if self._space is None else self._snapshot.spaces.get(self._space)
        if space is not None and space.dimensions == vector.shape[0]:
            self._comparable = True
            self._query = as_query(vector, space.dimensions)
        else:
            self.degraded.append(MISMATCH)

    def score(self, relation: str, owners: RelationSnapshot, rows: NDArray[np.int64]) -> Scores:
        """Return the relevance of rows in [0, 1], and which of them could not be compared."""
        count = len(rows)
        none = np.zeros(count, np.bool_)
        if not self._has_query:
            return np.ones(count, np.float32), none
        scores = np.full(count, self._neutral, np.float32)
        if not count or (self._query is None and MISMATCH not in self.degraded):
            return scores, none
        if self._query is None:
            bad = self._embedded(relation, owners, rows)
            scores[bad] = _ZERO
            return scores, bad
        vectors = self._vectors(relation)
        if vectors is None:
            return scores, none
        similarity, present = vectors.scores(self._query, owners, rows)
        return owners.evaluator.relevance(similarity, present, self._neutral), none

    def search(
        self, relation: str, owners: RelationSnapshot, allowed: NDArray[np.bool_], limit: int, least: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Return the ``limit`` most similar of the allowed rows, best first; None without a query to compare."""
        if self._query is None:
            return None
        vectors = self._vectors(relation)
        if vectors is None or not limit:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return vectors.best(self._query, owners, allowed, limit, least)

    def _vectors(self, relation: str) -> VectorSnapshot | None:
        if self._space is None:
            return None
        return self._snapshot.vectors.get((relation, self._space))

    def _embedded(self, relation: str, owners: RelationSnapshot, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows have a vector, in the query's space if that is known, else in any."""
        known = self._space in self._snapshot.spaces
        marked = np.zeros(owners.length, np.bool_)
        for (owner_relation, space), vectors in self._snapshot.vectors.items():
            if owner_relation == relation and (space == self._space or not known):
                owner_rows = vectors.owner_rows(owners)
                marked[owner_rows[owner_rows >= 0]] = True
        return marked[rows]
