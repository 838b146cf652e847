"""Row types of checkpoints and conflicts, the result of a recovery, and enums of their configuration."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum

from caliber.model.agents.registry import AgentId
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import CheckpointId, ConflictId, EntityRef, EntityType, ScopeId, TrajectoryId
from caliber.model.trajectory import Artifact, Scope, Trajectory


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A point a trajectory can be recovered from. ``state`` is JSON, packed by ``codec``. Source: K-023, C-267.

    ``recovered_to`` is the checkpoint from which the task was recovered right after; None of one that no recovery made.
    """

    checkpoint_id: CheckpointId
    trajectory_id: TrajectoryId
    turn_number: int
    codec: str
    state: bytes
    recoverable: bool
    created_at: datetime
    scope_id: ScopeId | None = None
    recovered_to: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The changes that a recovery made to a task, or with ``preview`` would make. Source: C-285, C-485.

    ``restored_to`` is when the checkpoint was made, and ``turn_number`` how many turns the task had then. Records are
    counted that were rolled back, and ``turns_restored`` those that are as they were again; ``records_rolled_back`` are
    notes and records of declared memories. Of the facts learnt from rolled-back turns ``facts_undone`` were taken back;
    ``facts_kept`` were corrected since, and stay. ``damaged`` are newer checkpoints that could not be read.
    ``before_id`` is a checkpoint of the task as it was just before: recover from it to take the recovery back. None
    where nothing had to be done.
    """

    trajectory_id: TrajectoryId
    checkpoint_id: CheckpointId
    restored_to: datetime
    turn_number: int
    scopes_rolled_back: int = 0
    turns_rolled_back: int = 0
    artifacts_rolled_back: int = 0
    records_rolled_back: int = 0
    subtasks_rolled_back: int = 0
    facts_undone: int = 0
    facts_kept: int = 0
    turns_restored: int = 0
    artifacts_restored: int = 0
    records_restored: int = 0
    subtasks_restored: int = 0
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


class ConflictType(StrEnum):
    """The ways in which two records are at odds. Source: C-432."""

    CONCURRENT_WRITE = "concurrent_write"
    CONTRADICTING_FACT = "contradicting_fact"
    INCOMPATIBLE_DECISION = "incompatible_decision"
    RESOURCE_CONTENTION = "resource_contention"
    GOAL_CONFLICT = "goal_conflict"


class ConflictStatus(StrEnum):
    """The state of a conflict: ``escalated`` waits for a person. Source: C-441."""

    DETECTED = "detected"
    RESOLVING = "resolving"
    RESOLVED = "resolved"
    ESCALATED = "escalated"


class ConflictWinner(StrEnum):
    """The side of a resolved conflict that was kept: ``both`` if it was no contradiction, ``none`` if a side changed.

    ``merged``: a third record stands for both. Source: C-417.
    """

    A = "a"
    B = "b"
    MERGED = "merged"
    BOTH = "both"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConflictResolutionRecord:
    """The end of a conflict. ``merged_item`` is the record that stands for both sides. Source: C-417.

    ``strategy`` is None where no strategy decided: a side was corrected.
    """

    strategy: ConflictResolution | None
    winner: ConflictWinner
    merged_item: EntityRef | None
    reason: str | None
    resolved_by: str
    resolved_at: datetime


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two records, or two agents about one thing, that are at odds. Source: C-401, C-417.

    ``item_a`` is the side with the lower id, ``agent_a_id`` the agent of that side. Both sides of a concurrent write
    are the record that both wrote; the side of an agent that contends for a lock is its claim on the ``resource``.
    ``trajectory_id`` is the task of both, if they are of one. ``escalated_to`` is the agent that is to decide; None of
    an escalated conflict leaves it to a person.
    """

    conflict_id: ConflictId
    conflict_type: ConflictType
    item_a: EntityRef
    item_b: EntityRef
    status: ConflictStatus
    reason: str
    detected_at: datetime
    detected_by: str
    updated_at: datetime
    trajectory_id: TrajectoryId | None = None
    strategy: ConflictResolution | None = None
    winner: ConflictWinner | None = None
    resolution_reason: str | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    agent_a_id: AgentId | None = None
    agent_b_id: AgentId | None = None
    resource: str | None = None
    escalated_to: AgentId | None = None
    merged_type: EntityType | str | None = None
    merged_id: uuid.UUID | None = None
    version: int = 1

    @property
    def resolution(self) -> ConflictResolutionRecord | None:
        """The end of the conflict; None while it is open."""
        if self.resolved_at is None or self.resolved_by is None or self.winner is None:
            return None
        kind, key = self.merged_type, self.merged_id
        merged = None if kind is None or key is None else EntityRef(kind, key)
        return ConflictResolutionRecord(
            self.strategy, self.winner, merged, self.resolution_reason, self.resolved_by, self.resolved_at
        )

    @property
    def is_open(self) -> bool:
        """True until the conflict is resolved."""
        return self.resolved_at is None

    @property
    def kept(self) -> EntityRef | None:
        """The side that was kept; None while the conflict is open, or if neither side was ended."""
        return {ConflictWinner.A: self.item_a, ConflictWinner.B: self.item_b}.get(self.winner)  # type: ignore[arg-type]

    @property
    def ended(self) -> EntityRef | None:
        """The side that was ended; None while the conflict is open, or if neither side was ended."""
        return {ConflictWinner.A: self.item_b, ConflictWinner.B: self.item_a}.get(self.winner)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Figures of a task, from the events that its reader may see. Source: C-293.

    ``total_tokens_input`` are the tokens of the windows that were assembled, ``total_tokens_output`` those of the turns
    of the assistant; ``duration_ms`` is the time from the first event to the last one.
    """

    trajectory_id: TrajectoryId
    duration_ms: int
    scopes_created: int
    artifacts_created: int
    notes_created: int
    context_assemblies: int
    total_tokens_input: int
    total_tokens_output: int
    checkpoints_created: int
    recoveries_performed: int
    errors: int


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task with its scopes, and the number of its records that its reader may see. Source: C-296."""

    trajectory: Trajectory
    scopes: tuple[Scope, ...]
    active_scope: Scope | None
    artifact_count: int
    note_count: int
    checkpoint_count: int


@dataclass(frozen=True, slots=True)
class ArtifactProvenance:
    """The origin of an artifact, and the versions that it superseded or that superseded it. Source: C-299, K-108.

    ``older`` and ``newer`` are in order, the nearest first; a version that its reader may not see ends them. How and
    from which turn it was made are fields of the artifact.
    """

    artifact: Artifact
    scope: Scope
    trajectory: Trajectory
    older: tuple[Artifact, ...]
    newer: tuple[Artifact, ...]
