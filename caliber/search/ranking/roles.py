"""Scores of records for a role, which re-rank the hits of its view. Source: M-142 to M-148."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.model.access import AgentRole
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.mirror import RelationSnapshot
from caliber.search.filtering.filters import Found
from caliber.search.ranking import fusion
from caliber.search.ranking.legs import Floats, Ints
from caliber.search.usage import Uses

CANDIDATES: Final = 50
"""Best hits that a view orders again; never fewer than the limit of the call."""
FULL_USES: Final = 10
"""Uses that count as frequent use, with 1."""
HALF_LIFE_MS: Final = 30 * 86_400_000
"""Half-life of recency, counted from the last use of a record."""
INTERESTING: Final = 0.8
"""Relevance of a type that the role is interested in."""
OTHER: Final = 0.3
"""Relevance of another type, or none."""


class RoleWeights(NamedTuple):
    """The share of each part in the score of a record for a role; the four add up to 1."""

    base: float
    access: float
    recency: float
    relevance: float


WEIGHTS: Final[Mapping[AgentRole, RoleWeights]] = {
    AgentRole.ORCHESTRATOR: RoleWeights(base=0.3, access=0.2, recency=0.4, relevance=0.1),
    AgentRole.OPTIMIZER: RoleWeights(base=0.4, access=0.3, recency=0.1, relevance=0.2),
    AgentRole.REVIEWER: RoleWeights(base=0.5, access=0.1, recency=0.2, relevance=0.2),
    AgentRole.EXECUTOR: RoleWeights(base=0.2, access=0.4, recency=0.3, relevance=0.1),
}


@dataclass(frozen=True, slots=True)
class RoleScoring:
    """The scores of one role. ``types`` are the values of ``column`` that it is interested in."""

    role: AgentRole
    column: str
    types: tuple[str, ...]
    limit: int
    """The most hits that are returned."""

    @property
    def candidates(self) -> int:
        """The most hits that are scored."""
        return max(self.limit, CANDIDATES)

    def _parts(self, owners: RelationSnapshot, rows: Ints, uses: Uses, at_us: int) -> dict[str, Floats]:
        counts, times = used(owners, rows, uses)
        importance = fusion.importance_scores(owners, rows)
        codes = [owners.enum_code(self.column, each) for each in self.types]
        interests = np.isin(owners.column(self.column)[rows], codes)
        return weighted_parts(self.role, importance, counts, times, interests, at_us)

    def ordered(self, found: Sequence[Found], uses: Uses, at_us: int) -> list[Found]:
        """Return the best hits of one kind by the role's score; ties in their order before."""
        if not found:
            return []
        parts = self._parts(found[0].relation, np.array([hit.row for hit in found], np.int64), uses, at_us)
        scores = sum(parts.values(), np.zeros(len(found)))
        order = np.argsort(-scores, kind="stable")[: self.limit].tolist()
        return [
            found[at]._replace(
                score=float(scores[at]), breakdown={name: float(part[at]) for name, part in parts.items()}
            )
            for at in order
        ]


def weighted_parts(
    role: AgentRole,
    importance: Floats,
    counts: Ints,
    times: Ints,
    interests: NDArray[np.bool_],
    at_us: int,
) -> dict[str, Floats]:
    """Return the weighted parts of the scores of records at an instant; the sum for a record lies in [0, 1].

    ``importance`` lies in [0, 1]; ``counts`` and ``times`` are how often and when last each was used, ``interests``
    whether the role is interested in its type. Shapes: ``[n]``
    """
    weights = WEIGHTS[role]
    return {
        "base": weights.base * importance,
        "access": weights.access * np.minimum(counts / FULL_USES, 1.0),
        "recency": weights.recency * fusion.recency_scores(times, at_us, HALF_LIFE_MS),
        "relevance": weights.relevance * np.where(interests, INTERESTING, OTHER),
    }


def used(owners: RelationSnapshot, rows: Ints, uses: Uses) -> tuple[Ints, Ints]:
    """Return how often each record was used, and when it was used last, or else entered."""
    counts, last = uses.of(owners, rows)
    return counts, np.where(counts > 0, last, owners.column(owners.relation.times.entered)[rows])
