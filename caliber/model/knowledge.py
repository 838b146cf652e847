"""Data types of long-term knowledge: notes, edges between records, usage counts. Source: C-026 to C-057."""

from __future__ import annotations

import uuid
from dataclasses import field
from datetime import datetime
from enum import StrEnum

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EdgeId, EntityRef, EntityType, NoteId, TrajectoryId
from caliber.model.trust import TrustLabel

NOBODY = uuid.UUID(int=0)  # the application without a user, an administrator, the system


class NoteType(StrEnum):
    CONVENTION = "convention"
    STRATEGY = "strategy"
    GOTCHA = "gotcha"
    FACT = "fact"
    PREFERENCE = "preference"
    RELATIONSHIP = "relationship"
    PROCEDURE = "procedure"
    META = "meta"
    DECISION = "decision"
    ARCHITECTURE = "architecture"
    COORDINATION = "coordination"
    PATTERN = "pattern"
    SKILL = "skill"
    BUG = "bug"
    TEST = "test"
    IMPLEMENTATION = "implementation"
    UNTYPED = "untyped"  # its author gave it no type


class EdgeRelation(StrEnum):
    """The relations that CALIBER knows; a link may have a name of its program's own besides."""

    SUPPORTS = "supports"
    CONTRADICTS = "contradicts"
    SUPERSEDES = "supersedes"
    RELATED_TO = "related_to"
    CAUSED_BY = "caused_by"
    LINK = "link"


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
    """Hot counters of a record, written behind (O-10), of one reader: the user, else the agent, else neither."""

    owner_type: EntityType | str
    owner_id: uuid.UUID
    access_count: int
    last_accessed_at: datetime
    used_by: uuid.UUID = NOBODY
    usage_id: uuid.UUID = NOBODY
    version: int = 1

    def __post_init__(self) -> None:  # both ids, bit by bit: one operation for the keys of many
        if self.usage_id == NOBODY:
            object.__setattr__(self, "usage_id", uuid.UUID(int=self.owner_id.int ^ self.used_by.int))


@dataclass(frozen=True, slots=True)
class Edge:
    """A typed link between two records. Units: weight 0–1. Source: K-201."""

    edge_id: EdgeId
    source: EntityRef
    target: EntityRef
    relation: EdgeRelation | str
    weight: float
    base_weight: float
    created_at: datetime
    auto_linked: bool = True
    user_created: bool = False
    last_traversed_at: datetime | None = None
    removed_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A record that links lead to: how many there are on the way, and the last of them."""

    record: EntityRef
    distance: int
    link: Edge
