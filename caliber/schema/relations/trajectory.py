"""Relations of tasks: session to artifact. Source: C-388 to C-393, K-021 to K-043, K-210."""

from __future__ import annotations

import uuid
from typing import Any

from caliber.model.context import SectionType, SourceType
from caliber.model.events import EventType
from caliber.model.ids import ArtifactId, NoteId
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import (
    TTL,
    Artifact,
    ArtifactType,
    ExtractionMethod,
    OutcomeStatus,
    Scope,
    Session,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    TrajectoryStatus,
    TTLKind,
    Turn,
    TurnRole,
    TurnSummary,
)
from caliber.model.trust import TrustLabel
from caliber.schema.derived import OnlyWith, Sha256, Tokens
from caliber.schema.erase import Erase, MadeFrom, Redaction
from caliber.schema.relation import (
    AccessPath,
    Composite,
    ForeignKey,
    Relation,
    Residence,
    Unique,
    blob,
    boolean,
    enum,
    instant,
    integer,
    json_,
    real,
    stamped,
    text,
    text_array,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import (
    ALWAYS_US,
    FACTS,
    NEVER_US,
    NO_OFFSET_S,
    Block,
    Counted,
    Ends,
    Enters,
    Exported,
    Links,
    Memory,
    Neighbours,
    Owned,
    Pruned,
    Resident,
    Rights,
    Text,
    Times,
    Trust,
    Use,
    Window,
)

_COLUMN, _TEXT = Residence.COLUMN, Residence.TEXT


def _outcome_to_json(outcome: TrajectoryOutcome) -> dict[str, Any]:
    return {
        "status": outcome.status.value,
        "summary": outcome.summary,
        "artifacts_produced": [str(item) for item in outcome.artifacts_produced],
        "notes_generated": [str(item) for item in outcome.notes_generated],
        "duration_ms": outcome.duration_ms,
        "tokens_input": outcome.tokens_input,
        "tokens_output": outcome.tokens_output,
    }


def _outcome_from_json(body: dict[str, Any]) -> TrajectoryOutcome:
    return TrajectoryOutcome(
        status=OutcomeStatus(body["status"]),
        artifacts_produced=tuple(ArtifactId(uuid.UUID(item)) for item in body["artifacts_produced"]),
        notes_generated=tuple(NoteId(uuid.UUID(item)) for item in body["notes_generated"]),
        **{name: body[name] for name in ("summary", "duration_ms", "tokens_input", "tokens_output")},
    )


def _calls_to_json(calls: tuple[ToolCall, ...]) -> list[list[str]]:
    return [[call.id, call.name, call.arguments] for call in calls]


def _calls_from_json(body: list[list[str]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(*item) for item in body)


_LEAST = "the least trusted label of its turns, so of its summary"
_INITIATOR = Composite("initiator", EntityRef, (("entity_type", "initiator_type"), ("id", "initiator_id")))

SESSION = Relation(
    name="session",
    plural="sessions",
    entity=Session,
    code=1,
    comment="A span of work that temporary artifacts and working memory hang on.",
    derived=None,  # ids and instants
    erase=Erase(),
    ordinal=True,
    versioned=True,
    resident=Resident(framed=True),
    by_id=True,
    links=None,  # none is made to a session
    rights=Rights(owner=Owned("initiator"), kind="trajectory"),
    trust=None,  # not personal data
    exported=Exported.RECORDS,
    key=("session_id",),
    composites=(_INITIATOR,),
    columns=(
        uuid_("session_id"),
        enum("initiator_type", EntityType),
        uuid_("initiator_id"),
        stamped("started_at"),
        stamped("last_active_at"),
        instant("ended_at", nullable=True),
        version(),
    ),
    paths=(AccessPath("list_open", (), ("started_at",), where=(("ended_at", True),)),),
)

TRAJECTORY = Relation(
    name="trajectory",
    plural="trajectories",
    entity=Trajectory,
    code=2,
    comment="A task of an agent, from its goal to its outcome.",
    derived=(Sha256("goal_hash", ("goal",)),),
    erase=Erase(owned=("user_id",)),
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("parent_trajectory_id", "session_id", "initiator_id"), framed=True, evicted=7),
    by_id=True,
    links=Links(),
    rights=Rights(owner=Owned("initiator", user="user_id", agent="agent_id")),
    trust=None,  # a goal is its initiator's
    exported=Exported.RECORDS,
    memory=Memory(
        "trajectory",
        names=(("id", "trajectory_id"), ("goal_summary", "goal")),
        stays="a task stays until it is purged; retention is for what it left behind (turn_buffer, artifact, note)",
    ),
    key=("trajectory_id",),
    composites=(_INITIATOR,),
    columns=(
        uuid_("trajectory_id"),
        enum("status", TrajectoryStatus, residence=_COLUMN),
        enum("initiator_type", EntityType, residence=_COLUMN),
        uuid_("initiator_id", residence=Residence.INTERNED),
        blob("goal_hash", length=32),
        stamped("created_at", residence=_COLUMN),
        stamped("updated_at"),
        stamped("last_activity_at"),
        text("goal", nullable=True, residence=_TEXT),
        text_array("tags"),
        json_("outcome", _outcome_to_json, _outcome_from_json, nullable=True, redact=Redaction.WORDS),
        uuid_("parent_trajectory_id", nullable=True),
        uuid_("session_id", nullable=True),
        uuid_("user_id", nullable=True, identity=True, residence=Residence.INTERNED),
        uuid_("agent_id", nullable=True, identity=True, residence=Residence.INTERNED),
        integer("turn_count", check=(0, None), derived_from="turn"),
        integer("tokens_input", check=(0, None), derived_from="turn"),
        integer("tokens_output", check=(0, None), derived_from="turn"),
        version(),
    ),
    foreign_keys=(
        ForeignKey("parent_trajectory_id", "trajectory", "trajectory_id", "set null"),
        ForeignKey("session_id", "session", "session_id", "set null"),
    ),
    paths=(
        AccessPath("list_by_status", ("status",), ("created_at", "ordinal"), limited=True),
        AccessPath(
            "list_children", ("parent_trajectory_id",), ("created_at", "ordinal"), (("parent_trajectory_id", False),)
        ),
        AccessPath("list_by_initiator", ("initiator_type", "initiator_id"), ("created_at", "ordinal"), limited=True),
        AccessPath("list_by_session", ("session_id",), ("created_at", "ordinal"), where=(("session_id", False),)),
    ),
)

SCOPE = Relation(
    name="scope",
    plural="scopes",
    entity=Scope,
    code=3,
    comment="A stretch of a trajectory, one context's worth; never reopens once closed.",
    derived=(Tokens("summary_tokens", ("summary",)),),
    erase=Erase(made_from=(MadeFrom(("scope_id",), "turn", ("scope_id",), empties="summary"),)),
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("trajectory_id",), framed=True, evicted=6),
    by_id=True,
    links=Links(),
    rights=Rights(task="trajectory_id"),
    trust=Trust("trust", least_of="turn"),
    exported=Exported.RECORDS,
    memory=Memory(
        "scope",
        names=(("id", "scope_id"), ("sequence", "sequence_number"), ("created_at", "opened_at")),
        vectors=("summary_embedding",),
        parents=("trajectory",),
        stays="a scope stays with its task; retention is for what is in it (turn_buffer, artifact)",
    ),
    key=("scope_id",),
    columns=(
        uuid_("scope_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        integer("sequence_number", check=(0, None), residence=_COLUMN),
        integer("start_turn", check=(0, None), derived_from="turn"),
        stamped("opened_at", residence=_COLUMN),
        stamped("last_activity_at"),
        integer("end_turn", nullable=True, check=(0, None), derived_from="turn"),
        uuid_("start_turn_id", nullable=True, derived_from="turn"),
        uuid_("end_turn_id", nullable=True, derived_from="turn"),
        instant("closed_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        text("summary", nullable=True, residence=_TEXT, content=True, derived_from="turn"),
        integer("summary_tokens", check=(0, None), residence=_COLUMN, derived_from="turn"),
        enum("trust", TrustLabel, residence=_COLUMN, comment=_LEAST, derived_from="turn"),
        uuid_array("artifact_ids", derived_from="artifact"),
        uuid_("checkpoint_id", nullable=True),
        integer("next_sequence", check=(0, None), derived_from="turn"),
        integer("turn_count", check=(0, None), derived_from="turn"),
        integer("tokens_input", check=(0, None), derived_from="turn"),
        integer("tokens_output", check=(0, None), derived_from="turn"),
        instant("rolled_back_at", nullable=True, residence=Residence.FLAG),
        version(),
    ),
    active=("rolled_back_at",),  # its summary; turns from before the checkpoint stay
    text=Text(("summary",), embedded="summary", tokens="summary_tokens"),
    times=Times(happened=("opened_at",), entered="closed_at"),
    window=Window(
        Enters.CONVERSATION,
        source=5,
        section=SectionType.HISTORY,
        source_type=SourceType.SCOPE_SUMMARY,
        template="- {summary}",
        age="sequence_number",
        most="max_scopes_in_window",
        brief=True,
    ),
    uniques=(Unique(("trajectory_id", "sequence_number")),),
    foreign_keys=(ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade", locked_first=True),),
    paths=(
        AccessPath("list_by_trajectory", ("trajectory_id",), ("sequence_number",)),
        AccessPath("list_open", ("trajectory_id",), ("sequence_number",), where=(("closed_at", True),)),
    ),
)

TURN = Relation(
    name="turn",
    plural="turns",
    entity=Turn,
    code=4,
    comment="One message in a scope. Content is kept as bytes, whatever they are.",
    derived=(Tokens("token_count", ("content",)),),
    erase=Erase(names=("name",), owned=("author_id",)),
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("scope_id",), evicted=2),
    by_id=True,
    links=Links(),
    rights=Rights(task="trajectory_id"),
    trust=Trust("trust"),
    exported=Exported.RECORDS,
    neighbours=Neighbours(
        by="scope_id",
        order="sequence",
        speaker="role",
        counted=(
            Counted("sequence", "scope", "scope_id", "next_sequence", "turn_count"),
            Counted("turn_number", "trajectory", "trajectory_id", "turn_count", "turn_count"),
        ),
    ),
    memory=Memory(
        "turn_buffer", names=(("id", "turn_id"),), vectors=("content_embedding",), parents=("scope", "trajectory")
    ),
    key=("turn_id",),
    columns=(
        uuid_("turn_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        uuid_("scope_id", residence=Residence.INTERNED),
        integer("sequence", check=(0, None)),
        integer("turn_number", check=(0, None), residence=_COLUMN),
        enum("role", TurnRole, residence=_COLUMN, content=True),
        enum("trust", TrustLabel, residence=_COLUMN, comment="where the content came from"),
        blob("content", residence=_TEXT, content=True, redact=Redaction.WORDS),
        integer("token_count", check=(0, None), residence=_COLUMN),
        stamped("created_at", residence=_COLUMN),
        instant("occurred_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        text("name", nullable=True, residence=Residence.INTERNED, content=True),
        json_("tool_calls", _calls_to_json, _calls_from_json, content=True, initial="[]", redact=Redaction.WORDS),
        text("tool_call_id", nullable=True, content=True),
        json_("thinking", list, tuple, nullable=True, content=True, redact=Redaction.WORDS),
        boolean("is_error", nullable=True, content=True),
        text("model_id", nullable=True),
        text("idempotency_key", nullable=True, per_record=True, redact=Redaction.NEW_KEY),
        instant("rolled_back_at", nullable=True, residence=Residence.FLAG),
        uuid_("author_id", nullable=True, comment="the user or agent that wrote it; NULL: one of the task's own"),
        integer("utc_offset_s", nullable=True, check=(-86_400, 86_400), residence=_COLUMN, resident_null=NO_OFFSET_S),
        version(),
    ),
    active=("rolled_back_at",),
    uniques=(
        Unique(("scope_id", "sequence")),
        Unique(("trajectory_id", "turn_number")),
        Unique(("trajectory_id", "idempotency_key"), where=(("idempotency_key", False),)),
    ),
    foreign_keys=(
        ForeignKey("scope_id", "scope", "scope_id", "cascade", alike="trajectory_id"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
    ),
    text=Text(("content",), embedded="content", head="name"),
    window=Window(Enters.CONVERSATION, source=7, source_type=SourceType.TURN),  # as a line of a recalled passage
    ends=Ends(Pruned.DELETED, together=("trajectory_id",), summed="artifact"),
    paths=(AccessPath("list_by_scope", ("scope_id",), ("sequence",)),),
)

TURN_SUMMARY = Relation(
    name="turn_summary",
    plural="turn_summaries",
    entity=TurnSummary,
    code=49,
    comment="A summary of a block of turns of an open scope; it goes when one of its turns goes or changes.",
    derived=(Tokens("token_count", ("content",)),),
    erase=Erase(),
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("trajectory_id", "scope_id"), evicted=5),
    by_id=True,
    links=None,  # it is derived again
    rights=Rights(task="trajectory_id", kind="turn"),
    trust=Trust("trust"),
    exported=Exported.ON_REQUEST,  # derived again where the turns are
    key=("turn_summary_id",),
    columns=(
        uuid_("turn_summary_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        uuid_("scope_id", residence=Residence.INTERNED),
        integer("first_turn", check=(0, None), residence=_COLUMN, comment="the number of its first turn"),
        integer("last_turn", check=(0, None), residence=_COLUMN, comment="the number of its last turn"),
        text("content", residence=_TEXT, content=True),
        integer("token_count", check=(0, None), residence=_COLUMN),
        enum("trust", TrustLabel, residence=_COLUMN, comment="the least trusted label of its source turns"),
        uuid_array("source_turns"),
        text("model_id", comment="the model or the rules that made it"),
        stamped("created_at", residence=_COLUMN),
        version(),
    ),
    block=Block("turn", by="scope_id", number="turn_number", first="first_turn", last="last_turn"),
    uniques=(Unique(("scope_id", "first_turn")),),
    foreign_keys=(
        ForeignKey("scope_id", "scope", "scope_id", "cascade", alike="trajectory_id"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
    ),
    window=Window(
        Enters.CONVERSATION,
        source=8,
        section=SectionType.HISTORY,
        source_type=SourceType.TURN_SUMMARY,
        template="- {content}",
        most="max_scopes_in_window",
        brief=True,
    ),
    paths=(
        AccessPath("list_by_scope", ("scope_id",), ("first_turn",)),
        AccessPath("list_by_trajectory", ("trajectory_id",), ("first_turn",)),
    ),
)

ARTIFACT = Relation(
    name="artifact",
    plural="artifacts",
    entity=Artifact,
    code=5,
    comment="A typed output kept beyond its scope; equal content of a label is kept once per trajectory and type.",
    derived=(Sha256("content_hash", ("content",)), Tokens("token_count", ("content",))),
    erase=Erase(
        owned=("author_id",),
        made_from=(MadeFrom(("trajectory_id", "source_turn"), "turn", ("trajectory_id", "turn_number")),),
    ),
    rules=(OnlyWith("ttl_ms", "ttl_kind", TTLKind.DURATION),),
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("trajectory_id",), evicted=1),
    by_id=True,
    links=Links(),
    rights=Rights(task="trajectory_id", grantable=True),
    trust=Trust("trust"),
    exported=Exported.RECORDS,
    memory=Memory(
        "artifact", names=(("id", "artifact_id"),), vectors=("content_embedding",), parents=("scope", "trajectory")
    ),
    key=("artifact_id",),
    composites=(Composite("ttl", TTL, (("kind", "ttl_kind"), ("duration_ms", "ttl_ms"))),),
    columns=(
        uuid_("artifact_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        uuid_("scope_id"),
        enum("artifact_type", ArtifactType, residence=_COLUMN, content=True),
        text("schema_version"),
        blob("content", residence=_TEXT, content=True, redact=Redaction.WORDS),
        blob("content_hash", length=32),
        enum("extraction_method", ExtractionMethod),
        enum("trust", TrustLabel, residence=_COLUMN, comment="where the content came from"),
        enum("ttl_kind", TTLKind),
        integer("ttl_ms", nullable=True, check=(1, None)),
        integer("token_count", check=(0, None), residence=_COLUMN),
        stamped("created_at", residence=_COLUMN),
        stamped("updated_at"),
        real("confidence", nullable=True, check=(0, 1), residence=_COLUMN, resident_null=-1.0),
        integer("source_turn", nullable=True, check=(0, None)),
        uuid_("session_id", nullable=True),
        instant("expires_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        uuid_("superseded_by", nullable=True, residence=Residence.FLAG),
        instant("rolled_back_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        instant("retired_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        instant("occurred_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        text("idempotency_key", nullable=True, per_record=True, redact=Redaction.NEW_KEY),
        uuid_("author_id", nullable=True, comment="the user or agent that made it; NULL: one of the task's own"),
        version(),
    ),
    uniques=(
        Unique(
            ("trajectory_id", "content_hash", "artifact_type", "trust"),
            where=(("superseded_by", True), ("rolled_back_at", True), ("retired_at", True)),
        ),
        Unique(("trajectory_id", "idempotency_key"), where=(("idempotency_key", False),)),
    ),
    foreign_keys=(
        ForeignKey("scope_id", "scope", "scope_id", "cascade", alike="trajectory_id"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("session_id", "session", "session_id", "set null"),
        ForeignKey("superseded_by", "artifact", "artifact_id", "set null"),
    ),
    text=Text(("content",), embedded="content"),
    usage=Use(retrieved=EventType.ARTIFACT_RETRIEVE),
    active=("rolled_back_at", "superseded_by", "retired_at"),
    times=Times(until="expires_at"),
    grounded=FACTS,
    window=Window(
        Enters.TASK,
        source=3,
        section=SectionType.ARTIFACTS,
        source_type=SourceType.ARTIFACT,
        template="[{artifact_type}]\n{content}",
        most="max_artifacts_in_window",
        whole=True,
    ),
    ends=Ends(
        Pruned.ARCHIVED,
        archive="retired_at",
        supersede="superseded_by",
        recovered="rolled_back_at",
        doubted="confidence",
        together=("trajectory_id",),
        lasting=("ttl_kind", TTLKind.PERSISTENT),
    ),
    paths=(
        AccessPath("list_by_trajectory", ("trajectory_id",), ("created_at", "ordinal")),
        AccessPath("list_by_scope", ("scope_id",), ("created_at", "ordinal")),
        AccessPath("list_by_type", ("trajectory_id", "artifact_type"), ("created_at", "ordinal")),
        AccessPath("list_by_hash", ("trajectory_id", "content_hash"), ("created_at", "ordinal")),
        AccessPath("list_by_session", ("session_id",), ("created_at", "ordinal"), where=(("session_id", False),)),
        AccessPath(
            "list_superseded_by", ("superseded_by",), ("created_at", "ordinal"), where=(("superseded_by", False),)
        ),
    ),
)
