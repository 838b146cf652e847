"""Row type of a task's checkpoint, the result of a recovery, and enums of the configuration of both."""

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


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The changes that a recovery made to a task, or with ``preview`` would make. Source: C-285, C-485.

    ``restored_to`` is when the checkpoint was made, and ``turn_number`` how many turns the task had then. Records are
    counted that were rolled back, and ``turns_restored`` those that an earlier recovery had rolled back. Of the facts
    learnt from rolled-back turns ``facts_undone`` were taken back; ``facts_kept`` were corrected since, and stay.
    ``damaged`` are newer checkpoints that could not be read. ``before_id`` is a checkpoint of the task as it was just
    before: recover from it to take the recovery back. None where nothing had to be done.
    """

    trajectory_id: TrajectoryId
    checkpoint_id: CheckpointId
    restored_to: datetime
    turn_number: int
    scopes_rolled_back: int = 0
    turns_rolled_back: int = 0
    artifacts_rolled_back: int = 0
    facts_undone: int = 0
    facts_kept: int = 0
    turns_restored: int = 0
    artifacts_restored: int = 0
    new_scope_id: ScopeId | None = None
    recovered_at: datetime | None = None
    before_id: CheckpointId | None = None
    damaged: tuple[CheckpointId, ...] = ()
    preview: bool = False
    reason: str | None = None

    @property
    def success(self) -> bool:
        """True where the task is now as it was at the checkpoint."""
        return not self.preview


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
