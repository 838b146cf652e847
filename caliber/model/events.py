"""Data types of events: the event, its type, and the family that types belong to."""

from __future__ import annotations

import uuid
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType, EventId, ScopeId, TrajectoryId


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
    ARTIFACT_UPDATE = "artifact_update"
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
    CONFLICT_DETECT = "conflict_detect"
    CONFLICT_RESOLVE = "conflict_resolve"
    CONFLICT_ESCALATE = "conflict_escalate"
    SESSION_START = "session_start"
    SESSION_END = "session_end"
    FORGET = "forget"
    IDENTITY_MERGE = "identity_merge"
    GRANT = "grant"
    REVOKE = "revoke"
    MESSAGE_SEND = "message_send"
    AGENT_REGISTER = "agent_register"
    AGENT_LIFECYCLE = "agent_lifecycle"
    AGENT_FAIL = "agent_fail"
    LOCK_BREAK = "lock_break"
    LEARN = "learn"
    LEARN_UNDO = "learn_undo"
    DELEGATION_CREATE = "delegation_create"
    DELEGATION_ACCEPT = "delegation_accept"
    DELEGATION_START = "delegation_start"
    DELEGATION_COMPLETE = "delegation_complete"
    DELEGATION_REJECT = "delegation_reject"
    DELEGATION_FAIL = "delegation_fail"
    HANDOFF_INITIATE = "handoff_initiate"
    HANDOFF_ACCEPT = "handoff_accept"
    HANDOFF_COMPLETE = "handoff_complete"
    HANDOFF_REJECT = "handoff_reject"
    NOTIFY = "notify"
    EVENTS_MISSED = "events_missed"
    ERROR = "error"
    EMBED_TRUNCATE = "embed_truncate"
    SPACE_FILL = "space_fill"
    SPACE_SWITCH = "space_switch"
    SPACE_DROP = "space_drop"
    OPERATION = "operation"


def is_own(event_type: str) -> bool:
    """Return whether events of a type are a program's own: their names alone have a dot."""
    return "." in event_type


class CorrectionAction(StrEnum):
    """Modifications of a record that the audit log keeps. Source: M-134."""

    UPDATE = "update"
    MERGE = "merge"
    ARCHIVE = "archive"
    RESTORE = "restore"
    SUPERSEDE = "supersede"
    END = "end"
    DELETE = "delete"
    UNDO = "undo"


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
