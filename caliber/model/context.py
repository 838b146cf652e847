"""Enums of context windows (sections, sources, reach, decisions); rows of stored windows and injections."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import IntEnum, StrEnum

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType, TrajectoryId, WindowId


class SectionType(StrEnum):
    """Sections of a context window; ``user``, ``earlier`` and ``current`` hold the conversation. Source: C-053."""

    SYSTEM = "system"
    PERSONA = "persona"
    ABOUT_USER = "about_user"
    NOTES = "notes"
    HISTORY = "history"
    ARTIFACTS = "artifacts"
    USER = "user"
    EARLIER = "earlier"
    TOLD = "told"
    RECALL = "recall"
    CURRENT = "current"
    CUSTOM = "custom"


class SourceType(StrEnum):
    """The source of a candidate of an assembly."""

    SYSTEM = "system"
    PERSONA = "persona"
    TURN = "turn"
    ARTIFACT = "artifact"
    NOTE = "note"
    SCOPE_SUMMARY = "scope_summary"
    TURN_SUMMARY = "turn_summary"
    EXTRA = "extra"
    MEMORY = "memory"


class Reach(StrEnum):
    """The tasks whose records a window may recall: its own, those of its session, of its initiator, or all."""

    TRAJECTORY = "trajectory"
    SESSION = "session"
    OWNER = "owner"
    TENANT = "tenant"


class AssemblyAction(StrEnum):
    INCLUDE = "include"
    EXCLUDE = "exclude"
    COMPRESS = "compress"
    TRUNCATE = "truncate"


class ContextPersistence(StrEnum):
    EPHEMERAL = "ephemeral"
    TTL = "ttl"
    PERMANENT = "permanent"


class WindowDurability(StrEnum):
    BEHIND = "behind"
    COMMIT = "commit"


class DecisionCode(IntEnum):
    """The reason why a candidate is, or is not, in a window; the stable code kept with the window."""

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
    INCLUDED_COMPRESSED = 12
    EXCLUDED_CONFLICT = 13


@dataclass(frozen=True, slots=True)
class ContentVersion:
    """The content of a record before a write changed or removed it; kept for replay (design, section 5)."""

    owner_type: EntityType | str
    owner_ordinal: int
    owner_version: int
    owner_id: uuid.UUID
    body: str
    replaced_at: datetime
    trajectory_id: uuid.UUID | None = None
    author_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class PendingInjection:
    """A request of a trigger for the next window of a trajectory, until a window consumes it. Source: K-065.

    ``injection_id`` is derived from the trajectory and ``origin``; a trigger that fires again raises ``version``.
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
