"""The closed sets of the model; every member equals its lower-case text."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class EntityType(StrEnum):
    """Kinds of records that errors, references and events can name. Source: C-016, K-011."""

    TRAJECTORY = "trajectory"
    SCOPE = "scope"
    TURN = "turn"
    TURN_SUMMARY = "turn_summary"
    ARTIFACT = "artifact"
    NOTE = "note"
    SESSION = "session"
    AGENT = "agent"
    USER = "user"
    SYSTEM = "system"
    EDGE = "edge"
    CHECKPOINT = "checkpoint"
    CONTEXT_WINDOW = "context_window"
    EMBEDDING = "embedding"
    EMBEDDING_SPACE = "embedding_space"
    EVENT = "event"
    LOCK = "lock"
    MESSAGE = "message"
    DELEGATION = "delegation"
    HANDOFF = "handoff"
    CONFLICT = "conflict"
    JOB = "job"
    CONFIG = "config"


def kind_named(name: str) -> EntityType | str:
    """Return a kind of record by its name; records of a declared memory are called as their relation.

    Raises: ValueError
    """
    return name if name.startswith("memory_") else EntityType(name)


class TurnRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class TrustLabel(StrEnum):
    """Where content came from, from the most to the least trusted; the order of the members is the order of trust.

    What a model wrote has no label of its own: its words are made of whatever it read. Source: design, section 10.
    """

    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"
    WEB = "web"

    @property
    def distrust(self) -> int:
        """The place in the order of trust: 0 for the most trusted; labels themselves compare as texts."""
        return _ORDER_OF_TRUST.index(self)


_ORDER_OF_TRUST = tuple(TrustLabel)


def least_trusted(first: TrustLabel, *others: TrustLabel) -> TrustLabel:
    """Return the label of content made of parts that carry these: it is trusted no more than any of them."""
    return max((first, *others), key=_ORDER_OF_TRUST.index)


class MemoryCategory(StrEnum):
    EPHEMERAL = "ephemeral"
    WORKING = "working"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    META = "meta"


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


class NoteType(StrEnum):
    CONVENTION = "convention"
    STRATEGY = "strategy"
    GOTCHA = "gotcha"
    FACT = "fact"
    PREFERENCE = "preference"
    RELATIONSHIP = "relationship"
    PROCEDURE = "procedure"
    META = "meta"


class EdgeRelation(StrEnum):
    SUPPORTS = "supports"
    CONTRADICTS = "contradicts"
    SUPERSEDES = "supersedes"
    RELATED_TO = "related_to"
    CAUSED_BY = "caused_by"
    LINK = "link"


class TTLKind(StrEnum):
    PERSISTENT = "persistent"
    SESSION = "session"
    SCOPE = "scope"
    DURATION = "duration"


class SectionType(StrEnum):
    """Sections of a context window.

    ``user`` is the conversation before the last user message, ``current`` that message and what followed it,
    ``recall`` what a search brought back from earlier. Source: C-053.
    """

    SYSTEM = "system"
    PERSONA = "persona"
    NOTES = "notes"
    HISTORY = "history"
    ARTIFACTS = "artifacts"
    USER = "user"
    RECALL = "recall"
    CURRENT = "current"
    CUSTOM = "custom"


class SourceType(StrEnum):
    """Where a candidate of an assembly came from."""

    SYSTEM = "system"
    PERSONA = "persona"
    TURN = "turn"
    ARTIFACT = "artifact"
    NOTE = "note"
    SCOPE_SUMMARY = "scope_summary"
    TURN_SUMMARY = "turn_summary"
    EXTRA = "extra"
    MEMORY = "memory"


class AssemblyAction(StrEnum):
    INCLUDE = "include"
    EXCLUDE = "exclude"
    COMPRESS = "compress"
    TRUNCATE = "truncate"


class ResultStatus(StrEnum):
    """What a window or a search came to; degraded says with a reason what was missing."""

    OK = "ok"
    EMPTY = "empty"
    DEGRADED = "degraded"


class ErasureKind(StrEnum):
    """What was erased: whoever was to be forgotten, a task, or a whole store."""

    SUBJECT = "subject"
    TRAJECTORY = "trajectory"
    STORE = "store"


class LockMode(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class EventFamily(StrEnum):
    TRACE = "trace"
    COGNITION = "cognition"
    ACTIVITY = "activity"
    AUDIT = "audit"
    IMPORTANCE = "importance"


class EventType(StrEnum):
    """Events of family trace. Source: C-295, and the policy channels of C-242."""

    TRAJECTORY_START = "trajectory_start"
    TRAJECTORY_COMPLETE = "trajectory_complete"
    TRAJECTORY_SUSPEND = "trajectory_suspend"
    TRAJECTORY_RESUME = "trajectory_resume"
    SCOPE_OPEN = "scope_open"
    SCOPE_CLOSE = "scope_close"
    ARTIFACT_CREATE = "artifact_create"
    ARTIFACT_RETRIEVE = "artifact_retrieve"
    NOTE_CREATE = "note_create"
    NOTE_UPDATE = "note_update"
    NOTE_RETRIEVE = "note_retrieve"
    MEMORY_INSERT = "memory_insert"
    MEMORY_UPDATE = "memory_update"
    MEMORY_ARCHIVE = "memory_archive"
    MEMORY_DELETE = "memory_delete"
    CONTEXT_ASSEMBLE = "context_assemble"
    CONTEXT_INJECT = "context_inject"
    CHECKPOINT_CREATE = "checkpoint_create"
    CHECKPOINT_RECOVER = "checkpoint_recover"
    POLICY_EXECUTE = "policy_execute"
    RETENTION_APPLY = "retention_apply"
    VALIDATION_RUN = "validation_run"
    SESSION_START = "session_start"
    SESSION_END = "session_end"
    FORGET = "forget"
    NOTIFY = "notify"
    EVENTS_MISSED = "events_missed"
    ERROR = "error"
    EMBED_TRUNCATE = "embed_truncate"
    SPACE_FILL = "space_fill"
    SPACE_SWITCH = "space_switch"
    SPACE_DROP = "space_drop"


class PrincipalKind(StrEnum):
    HUMAN = "human"
    AGENT = "agent"
    SYSTEM = "system"


class AgentRole(StrEnum):
    """Roles that own and see notes. Source: M-118, M-120."""

    ORCHESTRATOR = "orchestrator"
    OPTIMIZER = "optimizer"
    REVIEWER = "reviewer"
    EXECUTOR = "executor"


class DistanceMetric(StrEnum):
    COSINE = "cosine"
    L2 = "l2"
    INNER_PRODUCT = "inner_product"


class VectorIndexType(StrEnum):
    HNSW = "hnsw"
    IVF_FLAT = "ivf_flat"
    EXACT = "exact"


class ContextPersistence(StrEnum):
    EPHEMERAL = "ephemeral"
    TTL = "ttl"
    PERMANENT = "permanent"


class ValidationMode(StrEnum):
    ON_MUTATION = "on_mutation"
    ALWAYS = "always"


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


class Durability(StrEnum):
    COMMIT = "commit"
    GROUP = "group"


class EmbedMode(StrEnum):
    BEHIND = "behind"
    COMMIT = "commit"
    OFF = "off"


class ReadConsistency(StrEnum):
    LOCAL = "local"
    LATEST = "latest"


class WindowDurability(StrEnum):
    BEHIND = "behind"
    COMMIT = "commit"


class SpaceState(StrEnum):
    ACTIVE = "active"
    BUILDING = "building"
    RETIRED = "retired"


class Trigger(StrEnum):
    """What a policy reacts to; ``schedule`` carries a cron text besides. Source: C-147."""

    TASK_START = "task_start"
    TASK_END = "task_end"
    SCOPE_CLOSE = "scope_close"
    TURN = "turn"
    SCHEDULE = "schedule"


class DecisionCode(IntEnum):
    """Why a candidate is, or is not, in a window; the stable code kept with the window."""

    INCLUDED = 1
    EXCLUDED_RELEVANCE = 2
    EXCLUDED_SECTION_BUDGET = 3
    EXCLUDED_BUDGET = 4
    EXCLUDED_GROUP = 5
    INCLUDED_TRUNCATED = 6
    EXCLUDED_DOSAGE = 7
    EXCLUDED_ERROR = 8
    EXCLUDED_DUPLICATE = 9
    EXCLUDED_EVICTED = 10
    EXCLUDED_SHOWN = 11
