"""Data types of tasks: sessions, trajectories, scopes, turns, artifacts. Source: C-026 to C-057."""

from __future__ import annotations

import json
import uuid
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import (
    ArtifactId,
    CheckpointId,
    EntityRef,
    NoteId,
    ScopeId,
    SessionId,
    TrajectoryId,
    TurnId,
    TurnSummaryId,
)
from caliber.model.trust import TrustLabel


class TurnRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class TrajectoryStatus(StrEnum):
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"


class ScopeStatus(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


class OutcomeStatus(StrEnum):
    SUCCESS = "success"
    PARTIAL = "partial"
    FAILURE = "failure"
    SYSTEM_ABORT = "system_abort"


class ArtifactType(StrEnum):
    ERROR_LOG = "error_log"
    CODE_PATCH = "code_patch"
    DESIGN_DECISION = "design_decision"
    USER_PREFERENCE = "user_preference"
    FACT = "fact"
    CONSTRAINT = "constraint"
    TOOL_RESULT = "tool_result"
    INTERMEDIATE_OUTPUT = "intermediate_output"
    CUSTOM = "custom"


class ExtractionMethod(StrEnum):
    EXPLICIT = "explicit"
    INFERRED = "inferred"
    USER_PROVIDED = "user_provided"


class TTLKind(StrEnum):
    PERSISTENT = "persistent"
    SESSION = "session"
    SCOPE = "scope"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class TTL:
    """The lifetime of an artifact. Units: ``duration_ms`` only with kind ``duration``. Source: C-012 to C-014."""

    kind: TTLKind
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call an assistant turn made; ``arguments`` is the JSON text the model wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Session:
    session_id: SessionId
    initiator: EntityRef
    started_at: datetime
    last_active_at: datetime
    ended_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class TrajectoryOutcome:
    """The outcome of a trajectory; set exactly once. Source: C-035."""

    status: OutcomeStatus
    summary: str
    artifacts_produced: tuple[ArtifactId, ...]
    notes_generated: tuple[NoteId, ...]
    duration_ms: int
    tokens_input: int
    tokens_output: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A task. ``goal`` is kept only under the knob ``store_goal_text``. Source: C-031, K-027.

    ``initiator`` is the user it is for, who alone sees it, or the agent or system that starts it; ``user_id`` is then
    the user whose task or session it is a part of. ``agent_id`` is the agent that works on it for a user, and sees it.
    """

    trajectory_id: TrajectoryId
    status: TrajectoryStatus
    initiator: EntityRef
    goal_hash: bytes
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    goal: str | None = None
    tags: tuple[str, ...] = ()
    outcome: TrajectoryOutcome | None = None
    parent_trajectory_id: TrajectoryId | None = None
    session_id: SessionId | None = None
    user_id: uuid.UUID | None = None
    agent_id: uuid.UUID | None = None
    turn_count: int = 0
    tokens_input: int = 0
    tokens_output: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class Scope:
    """A stretch of a trajectory, one context's worth; ``trust`` is its least trusted turn's. Source: C-037, K-021."""

    scope_id: ScopeId
    trajectory_id: TrajectoryId
    sequence_number: int
    start_turn: int
    opened_at: datetime
    last_activity_at: datetime
    end_turn: int | None = None
    start_turn_id: TurnId | None = None
    end_turn_id: TurnId | None = None
    closed_at: datetime | None = None
    summary: str | None = None
    summary_tokens: int = 0
    trust: TrustLabel = TrustLabel.WEB
    artifact_ids: tuple[ArtifactId, ...] = ()
    checkpoint_id: CheckpointId | None = None
    next_sequence: int = 0
    turn_count: int = 0
    tokens_input: int = 0
    tokens_output: int = 0
    rolled_back_at: datetime | None = None
    """When a recovery took its summary out of use: it tells of turns after the checkpoint."""
    version: int = 1

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def created_at(self) -> datetime:
        """The same instant as ``opened_at`` (K-021)."""
        return self.opened_at


@dataclass(frozen=True, slots=True)
class Turn:
    """One message in a scope. ``turn_number`` counts through the whole trajectory (K-022).

    ``author_id`` is the user or agent that wrote it, if not the task's own; ``utc_offset_s`` its offset, if not UTC.
    ``thinking`` are the thoughts of an answer as its provider signed them; ``is_error``: it is the result of a tool
    that failed. ``raw_form`` is ``raw`` as it is stored.
    """

    turn_id: TurnId
    trajectory_id: TrajectoryId
    scope_id: ScopeId
    sequence: int
    turn_number: int
    role: TurnRole
    content: bytes
    token_count: int
    created_at: datetime
    occurred_at: datetime | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    thinking: tuple[dict[str, Any], ...] | None = field(default=None, hash=False)
    is_error: bool | None = None
    model_id: str | None = None
    idempotency_key: str | None = None
    trust: TrustLabel = TrustLabel.WEB
    rolled_back_at: datetime | None = None
    raw_form: bytes | None = field(default=None, repr=False)
    author_id: uuid.UUID | None = None
    utc_offset_s: int | None = None
    version: int = 1

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are shown as replacement characters."""
        return self.content.decode("utf-8", "replace")

    @property
    def raw(self) -> Any:
        """The message as its program has it, a value of JSON or bytes, which ``append_turn`` was given; or None."""
        form = self.raw_form
        return None if form is None else form[1:] if form.startswith(b"\0") else json.loads(form)


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """A summary of a block of turns of an open scope: all of its turns numbered ``first_turn`` to ``last_turn``.

    ``source_turns`` are those turns, ``trust`` is the label of the least trusted of them, and ``model_id`` names the
    model or the rules that made the summary. Units: ``content`` counts ``token_count`` tokens.
    """

    turn_summary_id: TurnSummaryId
    trajectory_id: TrajectoryId
    scope_id: ScopeId
    first_turn: int
    last_turn: int
    content: str
    token_count: int
    source_turns: tuple[TurnId, ...]
    model_id: str
    created_at: datetime
    trust: TrustLabel = TrustLabel.WEB
    version: int = 1


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of an artifact. Source: C-044."""

    source_turn: int | None
    extraction_method: ExtractionMethod
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A typed output kept beyond its scope; ``retired_at`` is when its TTL ended. Source: C-040, K-026."""

    artifact_id: ArtifactId
    trajectory_id: TrajectoryId
    scope_id: ScopeId
    artifact_type: ArtifactType
    schema_version: str
    content: bytes
    content_hash: bytes = field(repr=False)
    extraction_method: ExtractionMethod
    ttl: TTL
    token_count: int
    created_at: datetime
    updated_at: datetime
    confidence: float | None = None
    source_turn: int | None = None
    session_id: SessionId | None = None
    expires_at: datetime | None = None
    superseded_by: ArtifactId | None = None
    rolled_back_at: datetime | None = None
    retired_at: datetime | None = None
    occurred_at: datetime | None = None
    idempotency_key: str | None = None
    trust: TrustLabel = TrustLabel.WEB
    author_id: uuid.UUID | None = None
    version: int = 1

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.source_turn, self.extraction_method, self.confidence)

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are shown as replacement characters."""
        return self.content.decode("utf-8", "replace")
