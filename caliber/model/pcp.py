"""Row type of a task's checkpoint, and enums of checkpoint frequency, pruning and conflict resolution."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.ids import CheckpointId, ScopeId, TrajectoryId
from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A point a trajectory can be recovered from. ``state`` is JSON, packed by ``codec``. Source: K-023, C-267."""

    checkpoint_id: CheckpointId
    trajectory_id: TrajectoryId
    turn_number: int
    codec: str
    state: bytes
    recoverable: bool
    created_at: datetime
    scope_id: ScopeId | None = None


class PruneStrategy(StrEnum):
    LRU = "lru"
    RELEVANCE = "relevance"
    HYBRID = "hybrid"


class RecoveryFrequency(StrEnum):
    PER_SCOPE = "per_scope"
    PER_TURN = "per_turn"
    MANUAL = "manual"


class ConflictResolution(StrEnum):
    NEWEST = "newest"
    HIGHEST_CONFIDENCE = "highest_confidence"
    MANUAL = "manual"
