"""Data class ``WindowFacts``: recorded inputs of an assembly (query, time, limits), and its sources' reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from caliber.context.plan import RECORDS, Measures
from caliber.context.rules import OneShot
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, SpaceId, TrajectoryId, WindowId
from caliber.model.windows import CutOff, Position


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """The recorded inputs of an assembly, and the reports of its candidate sources.

    Shapes: query_embedding ``f32[d]``. Units: microseconds since 1970; ``config_hash`` is hexadecimal.
    """

    window_id: WindowId
    trajectory_id: TrajectoryId
    scope_id: ScopeId | None
    principal: str
    position: Position
    config_hash: str
    evaluator: str
    measures: Measures
    max_tokens: int
    now_us: int
    as_of_us: int
    query: str | None
    query_embedding: NDArray[np.float32] | None
    space_id: SpaceId | None
    extra_sections: Mapping[str, str]
    cut_offs: tuple[CutOff, ...]
    degraded: tuple[str, ...]
    once: tuple[OneShot, ...] = ()
    query_from: str = "caller"
    """Where the query came from: the caller, the last user turn, or the goal of the task."""
    declared: Mapping[int, str] = field(default_factory=dict)
    """The relations of declared memories by the source that stands for each."""

    def relation_of(self, source: int) -> str | None:
        """Return the relation behind a source, or None for a text that is no record."""
        relation = RECORDS.get(source)
        return self.declared.get(source) if relation is None else relation.name
