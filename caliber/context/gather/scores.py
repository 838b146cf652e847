"""Relevance scores of candidates against the query: by the full hybrid search, or by vector similarity alone.

Source: C-453, C-455, K-096; issue "Search in native memory", item 8; docs/search.md (In windows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import AssemblyPlan
from caliber.model.errors import InvalidVector
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.vectors import as_query
from caliber.search.request import Pool, Relevance, Request

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher

NO_EMBEDDING: Final = "no_embedding"
MISMATCH: Final = "embedding_mismatch"
NEUTRAL_RELEVANCE: Final = 0.5
"""Relevance of every record where the query cannot be compared, or of a record without a vector."""
_ONE: Final = np.float32(1)
_ZERO: Final = np.float32(0)

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scored:
    """Relevance in [0, 1] of some rows, those that could not be compared, and the parts of a search's score.

    Shapes: all ``[n]``
    """

    relevance: Floats
    error: NDArray[np.bool_] | None = None
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def at(self, places: NDArray[np.int64] | slice) -> Scored:
        """Return those of some of the rows."""
        error = None if self.error is None else self.error[places]
        return Scored(self.relevance[places], error, {name: part[places] for name, part in self.parts.items()})


@dataclass(frozen=True, slots=True)
class Picked:
    """The notes that a query picks, best first. ``filter`` names the limit that excluded others, down to ``worst``."""

    rows: Rows
    scored: Scored
    filter: str
    worst: float | None


class Scorer(Protocol):
    """Scores rows against one query; ``degraded`` names the parts that failed.

    ``ranks`` is true if a limit keeps the most relevant rows, not the newest.
    """

    degraded: Sequence[str]
    ranks: bool

    def score(self, relation: str, owners: RelationSnapshot, rows: Rows) -> Scored:
        """Return the relevance of rows."""
        ...

    def pick(self, notes: RelationSnapshot, allowed: NDArray[np.bool_]) -> Picked | None:
        """Return the notes that a query picks; None when there is nothing to pick them by."""
        ...


def scorer_of(
    inputs: AssemblyInputs, plan: AssemblyPlan, pools_of: Callable[[], Sequence[Pool]], searcher: Searcher
) -> Scorer:
    """Return the scorer of an assembly's candidates.

    Raises: InvalidVector
    """
    pools: Sequence[Pool] = ()

    def wanted() -> Sequence[Pool]:
        nonlocal pools
        pools = pools_of()
        return pools

    scorer, found = judge(inputs, plan, wanted, searcher)
    if found is None:
        return scorer
    return BySearch({pool.kind: item for pool, item in zip(pools, found, strict=True)}, pools, scorer.degraded)


def judge(
    inputs: AssemblyInputs, plan: AssemblyPlan, pools_of: Callable[[], Sequence[Pool]], searcher: Searcher
) -> tuple[Flat | BySimilarity, list[Relevance] | None]:
    """Return the search result of each pool, or the scorer where no search judges.

    Raises: InvalidVector
    """
    neutral = np.float32(NEUTRAL_RELEVANCE)
    vector, mismatch = compared(inputs)
    if plan.config.assembly.relevance == "vector":
        if vector is not None or mismatch:
            return BySimilarity(inputs, vector), None
        return (Flat(_ONE) if inputs.query is None else Flat(neutral, (NO_EMBEDDING,))), None
    text = inputs.query or ""
    if inputs.query_embedding is None and not text.strip():
        return Flat(_ONE), None
    missing = without_vector(inputs, mismatch=mismatch)
    request = Request(
        snapshot=inputs.snapshot,
        text=text,
        vector=vector,
        without_vector=missing,
        space_id=inputs.space_id,
        kinds=(),
        limit=1,
        readers=inputs.readers,
        as_of_us=inputs.as_of_us,
        now_us=inputs.now_us,
        moment=inputs.moment,
    )
    pools = pools_of()
    found, without = searcher.relevance(request, pools)
    flat = Flat(neutral, () if without is None else (without,))
    if any(item.scores.any() for item in found) or (vector is not None and _has_vectors(inputs, pools)):
        return flat, found
    return flat, None


def compared(inputs: AssemblyInputs) -> tuple[Floats | None, bool]:
    """Return the query's vector if there is one to compare with others, and whether there is one that cannot be."""
    if inputs.query_embedding is None:
        return None, False
    vector = np.asarray(inputs.query_embedding)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InvalidVector(reason="the query vector must be one row of finite numbers")
    space = None if inputs.space_id is None else inputs.snapshot.spaces.get(inputs.space_id)
    if space is None or space.dimensions != vector.shape[0]:
        return None, True
    return as_query(vector, space.dimensions), False


def without_vector(inputs: AssemblyInputs, *, mismatch: bool) -> str | None:
    """Return the note on a query without a vector; None where the reason is known and nothing is missing."""
    if mismatch:
        return MISMATCH
    return None if inputs.vector_expected is False else inputs.without_vector or NO_EMBEDDING


def _has_vectors(inputs: AssemblyInputs, pools: Sequence[Pool]) -> bool:
    return any((pool.kind, inputs.space_id) in inputs.snapshot.vectors for pool in pools)


class Flat:
    """Equal scores for all rows: there is no query, or nothing to compare with it."""

    __slots__ = ("_relevance", "degraded", "ranks")

    def __init__(self, relevance: np.float32, degraded: Sequence[str] = ()) -> None:
        self._relevance = relevance
        self.degraded = degraded
        self.ranks = False

    def score(self, relation: str, owners: RelationSnapshot, rows: Rows) -> Scored:  # noqa: ARG002
        """Return the one relevance for all rows."""
        return Scored(np.full(len(rows), self._relevance, np.float32))

    def pick(self, notes: RelationSnapshot, allowed: NDArray[np.bool_]) -> Picked | None:  # noqa: ARG002
        """Pick nothing."""
        return None


class BySearch:
    """Hits by kind: the score of a hit is its relevance; 0 for any other record."""

    __slots__ = ("_found", "_pools", "degraded", "ranks")

    def __init__(self, found: Mapping[str, Relevance], pools: Sequence[Pool], degraded: Sequence[str]) -> None:
        self._found = found
        self._pools = {pool.kind: pool for pool in pools}
        self.degraded = degraded
        self.ranks = True

    def score(self, relation: str, owners: RelationSnapshot, rows: Rows) -> Scored:  # noqa: ARG002
        """Return the relevance of the rows of a pool, which they must be."""
        found = self._found.get(relation)
        return Scored(np.zeros(len(rows), np.float32)) if found is None else found_scored(found)

    def pick(self, notes: RelationSnapshot, allowed: NDArray[np.bool_]) -> Picked | None:  # noqa: ARG002
        """Return the notes that were found, best first."""
        found = self._found.get(notes.relation.name)
        if found is None:  # no vector is needed, or there is none
            nothing = np.empty(0, np.int64)
            return Picked(nothing, Scored(np.empty(0, np.float32)), "relevance_limit", None)
        full = len(found.rows) == self._pools[notes.relation.name].limit
        worst = float(found.scores[-1]) if full else None
        return Picked(found.rows, found_scored(found), "relevance_limit" if full else "not_found", worst)


def found_scored(found: Relevance) -> Scored:
    """Return a search's result as relevance."""
    return Scored(np.minimum(found.scores, _ONE), None, found.parts)


class BySimilarity:
    """Similarity of vectors, where there are two to compare. A vector that cannot be compared is an error."""

    __slots__ = ("_neutral", "_query", "_snapshot", "_space", "degraded", "ranks")

    def __init__(self, inputs: AssemblyInputs, query: Floats | None) -> None:
        self._snapshot = inputs.snapshot
        self._space = inputs.space_id
        self._neutral = np.float32(NEUTRAL_RELEVANCE)
        self._query = query
        self.degraded: Sequence[str] = (MISMATCH,) if query is None else ()
        self.ranks = False

    def score(self, relation: str, owners: RelationSnapshot, rows: Rows) -> Scored:
        """Return similarities, neutral where a row has no vector."""
        scores = np.full(len(rows), self._neutral, np.float32)
        if not len(rows):
            return Scored(scores)
        if self._query is None:
            bad = self._embedded(relation, owners, rows)
            scores[bad] = _ZERO
            return Scored(scores, bad)
        vectors = None if self._space is None else self._snapshot.vectors.get((relation, self._space))
        if vectors is None:
            return Scored(scores)
        similarity, present = vectors.scores(self._query, owners, rows)
        return Scored(owners.evaluator.relevance(similarity, present, self._neutral))

    def pick(self, notes: RelationSnapshot, allowed: NDArray[np.bool_]) -> Picked | None:
        """Return the most similar notes."""
        return self.nearest(notes, allowed, limits.NOTE_SEARCH_LIMIT, limits.NOTE_MIN_SIMILARITY)

    def nearest(self, owners: RelationSnapshot, allowed: NDArray[np.bool_], limit: int, least: float) -> Picked | None:
        """Return the records most similar to the query, from a similarity on; None where it cannot be compared."""
        if self._query is None:
            return None
        vectors = None if self._space is None else self._snapshot.vectors.get((owners.relation.name, self._space))
        rows, similarity = np.empty(0, np.int64), np.empty(0, np.float32)
        if vectors is not None and limit:
            rows, similarity = vectors.best(self._query, owners, allowed, limit, least)
        full = len(rows) == limit and len(rows)
        name = "similarity_limit" if full or not limit else "min_similarity"
        worst = float(similarity[-1]) if full else float(least)
        return Picked(rows, Scored(np.clip(similarity, _ZERO, _ONE)), name, worst)

    def _embedded(self, relation: str, owners: RelationSnapshot, rows: Rows) -> NDArray[np.bool_]:
        """Return the rows that have a vector, in the query's space if that is known, else in any."""
        is_loaded = self._space in self._snapshot.spaces
        marked = np.zeros(owners.length, np.bool_)
        for (owner_relation, space), vectors in self._snapshot.vectors.items():
            if owner_relation == relation and (space == self._space or not is_loaded):
                owner_rows = vectors.owner_rows(owners)
                marked[owner_rows[owner_rows >= 0]] = True
        return marked[rows]
