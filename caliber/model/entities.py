"""The records of CALIBER as pure data: frozen, slotted, without behaviour.

One entity is one row of one relation (``caliber.schema.relations``), field for field; the few composite
fields (``initiator``, ``ttl``) are declared there too. Validation belongs to the services that write. What does not say
where it came from is trusted least.

Source: C-026 to C-057, relations.md.
"""

from __future__ import annotations

import unicodedata
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from caliber.model.enums import (
    AgentRole,
    ArtifactType,
    DistanceMetric,
    EdgeRelation,
    EntityType,
    ErasureKind,
    EventFamily,
    ExtractionMethod,
    LockMode,
    NoteType,
    OutcomeStatus,
    PrincipalKind,
    SpaceState,
    TrajectoryStatus,
    Trigger,
    TrustLabel,
    TTLKind,
    TurnRole,
)
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.ids import (
    ArtifactId,
    CheckpointId,
    EdgeId,
    EventId,
    LockId,
    NoteId,
    ScopeId,
    SessionId,
    SpaceId,
    TrajectoryId,
    TurnId,
    TurnSummaryId,
    WindowId,
)

_USERS: Final = uuid.UUID("6c1d1f0e-3f0a-5c55-9a53-6a1c7e0b9d42")
"""The namespace of users' names, as ``uuid.uuid5`` takes it; it never changes."""


@dataclass(frozen=True, slots=True)
class EntityRef:
    """A typed pointer to any record, agent or user. Source: C-017."""

    entity_type: EntityType
    id: uuid.UUID

    @classmethod
    def user(cls, name: str) -> EntityRef:
        """Return the user of a name: the same reference in every program, and with ``caliber ingest --for``.

        The id is the UUID version 5 of the name, in Unicode form NFC and without white space around it, in the
        namespace 6c1d1f0e-3f0a-5c55-9a53-6a1c7e0b9d42. ``maria`` and ``Maria`` are two users.
        Raises: DTypeError; InvalidValue for an empty name.
        """
        if not isinstance(name, str):
            raise DTypeError(field="name", expected="str", got=type(name).__name__)
        plain = unicodedata.normalize("NFC", name).strip()
        if not plain:
            raise InvalidValue(field="name", reason="must not be empty")
        return cls(EntityType.USER, uuid.uuid5(_USERS, plain))


@dataclass(frozen=True, slots=True)
class TTL:
    """How long an artifact lives. Units: ``duration_ms`` only with kind ``duration``. Source: C-012 to C-014."""

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
    """What came of a trajectory; set exactly once. Source: C-035."""

    status: OutcomeStatus
    summary: str
    artifacts_produced: tuple[ArtifactId, ...]
    notes_generated: tuple[NoteId, ...]
    duration_ms: int
    tokens_input: int
    tokens_output: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A task. ``goal`` is kept only under the knob ``store_goal_text``. Source: C-031, K-027."""

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
    """One message in a scope. ``turn_number`` counts through the whole trajectory (K-022)."""

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
    model_id: str | None = None
    idempotency_key: str | None = None
    trust: TrustLabel = TrustLabel.WEB
    version: int = 1

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are shown as replacement characters."""
        return self.content.decode("utf-8", "replace")


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
    """Where an artifact came from. Source: C-044."""

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
    version: int = 1

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.source_turn, self.extraction_method, self.confidence)

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are shown as replacement characters."""
        return self.content.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Note:
    """Knowledge kept beyond its trajectory. Units: confidence 0–1, importance 1–10. Source: C-046, K-200."""

    note_id: NoteId
    entity: str
    entity_type: str
    note_type: NoteType
    content: str
    content_hash: bytes = field(repr=False)
    fingerprint: bytes
    confidence: float
    token_count: int
    created_at: datetime
    updated_at: datetime
    importance: float | None = None
    base_importance: float | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    source_trajectory_ids: tuple[TrajectoryId, ...] = ()
    occurred_at: datetime | None = None
    namespace: str | None = None
    tags: tuple[str, ...] = ()
    visible_to: tuple[str, ...] | None = None
    created_by: str | None = None
    superseded_by: NoteId | None = None
    archived_at: datetime | None = None
    idempotency_key: str | None = None
    trust: TrustLabel = TrustLabel.WEB
    version: int = 1

    @property
    def active(self) -> bool:
        return self.archived_at is None and self.superseded_by is None


@dataclass(frozen=True, slots=True)
class Usage:
    """Hot counters of a record, written behind (O-10)."""

    owner_type: EntityType | str
    owner_id: uuid.UUID
    access_count: int
    last_accessed_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """A typed link between two records. Units: weight 0–1. Source: K-201."""

    edge_id: EdgeId
    source: EntityRef
    target: EntityRef
    relation: EdgeRelation
    weight: float
    base_weight: float
    created_at: datetime
    auto_linked: bool = True
    user_created: bool = False
    last_traversed_at: datetime | None = None
    removed_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """One model's vectors: comparable among themselves, with nothing else. Source: K-187."""

    space_id: SpaceId
    model_id: str
    dimensions: int
    metric: DistanceMetric
    state: SpaceState
    created_at: datetime
    version: int = 1

    @property
    def name(self) -> str:
        """What people call it: model, dimensions and, unless it is the cosine, the metric."""
        metric = "" if self.metric is DistanceMetric.COSINE else f"+{self.metric.value}"
        return f"{self.model_id}@{self.dimensions}{metric}"


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one record (or of one chunk of it) in one space. Shapes: vector f32-LE bytes, 4·d."""

    space_id: SpaceId
    owner_type: EntityType | str
    owner_id: uuid.UUID
    chunk_index: int
    content_hash: bytes = field(repr=False)
    vector: bytes
    generated_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class CachedEmbedding:
    content_hash: bytes = field(repr=False)
    model_id: str
    dimensions: int
    vector: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ContentVersion:
    """What a record said before a write changed or removed it; kept for replay (design, section 5)."""

    owner_type: EntityType | str
    owner_ordinal: int
    owner_version: int
    owner_id: uuid.UUID
    body: str
    replaced_at: datetime
    trajectory_id: uuid.UUID | None = None


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
class Lock:
    """A lease on a resource. Units: ``token`` rises with every acquisition. Source: C-364 to C-368, K-037."""

    lock_id: LockId
    resource: str
    holder: str
    mode: LockMode
    token: int
    acquired_at: datetime
    expires_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class LockToken:
    """Proof of a lock, passed as ``guard`` to a write: the write fails once the lock is lost."""

    resource: str
    token: int


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event log. Source: C-294, K-193."""

    event_id: EventId
    family: EventFamily
    event_type: str
    created_at: datetime
    trajectory_id: TrajectoryId | None = None
    scope_id: ScopeId | None = None
    subject_type: EntityType | str | None = None
    subject_id: uuid.UUID | None = None
    principal: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Erasure:
    """One act of forgetting: how far it is, and how much it took. It holds nothing of what was erased."""

    erasure_id: uuid.UUID
    kind: ErasureKind
    counts: dict[str, int]
    begun_at: datetime
    finished_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """How far a rule on a schedule is. It holds no words: ``rule_id`` is a digest of the rule. Source: C-238.

    All that came due up to ``covered_at`` is done; ``due_at`` is the run under way, with ``actions_done`` actions done
    and ``attempts`` failed ones of the next.
    """

    rule_id: uuid.UUID
    covered_at: datetime
    due_at: datetime | None = None
    actions_done: int = 0
    attempts: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class PendingTrigger:
    """What the start of a task or a turn set off, until its actions are done. Source: C-229, C-235.

    ``principal_…`` is who set it off. Who took it up last did so at ``begun_at`` and raised ``version``; only the
    holder of that version may do it. ``attempts`` counts those who took it up after the one that stored it.
    """

    trigger_id: uuid.UUID
    trajectory_id: TrajectoryId
    scope_id: ScopeId | None
    trigger: Trigger
    principal_kind: PrincipalKind
    principal_id: str
    principal_role: AgentRole | None
    principal_admin: bool
    created_at: datetime
    begun_at: datetime
    attempts: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class PendingInjection:
    """What a trigger asked to be in the next window of a trajectory, until a window has taken it. Source: K-065.

    ``injection_id`` is made of the trajectory and ``origin``; a trigger that fires again raises ``version``.
    """

    injection_id: uuid.UUID
    trajectory_id: TrajectoryId
    origin: str
    memory: str
    kind: str
    created_at: datetime
    count: int | None = None
    min_relevance: float | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A configuration that was accepted, kept under its hash; secrets are references in it."""

    config_hash: bytes
    kind: str
    body: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A persisted context window: its recorded inputs and decisions, packed by ``caliber.context``."""

    window_id: WindowId
    trajectory_id: TrajectoryId
    assembled_at: datetime
    max_tokens: int
    used_tokens: int
    config_hash: bytes
    text_hash: bytes
    record: bytes
    expires_at: datetime | None = None


Entity = Session | Trajectory | Scope | Turn | Artifact | Note | Edge | EmbeddingSpace | Checkpoint | Lock | Event
