"""Data types of calls to extraction and summary providers: turns, notes, consolidation; token counter type.

Source: C-245, C-246, C-497, K-014, K-015.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import ArtifactType, TurnRole

TokenCounter: TypeAlias = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class ExtractionTurn:
    """One turn, as extraction sees it."""

    turn_number: int
    role: TurnRole
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ExtractedArtifact:
    """Something worth keeping that was found in a turn. Units: confidence 0 to 1; ``source_turn`` a turn number."""

    artifact_type: ArtifactType
    content: str
    confidence: float
    source_turn: int | None


@dataclass(frozen=True, slots=True)
class TrajectoryDigest:
    """A trajectory as note generation reads it: its goal and, once it has ended, its summary."""

    goal: str | None
    summary: str | None


@dataclass(frozen=True, slots=True)
class GeneratedNote:
    """A note about one entity. Units: confidence 0 to 1."""

    entity: str
    entity_type: str
    note_type: NoteType
    content: str
    confidence: float


@dataclass(frozen=True, slots=True)
class MergedNote:
    """One note merged from two about the same entity, with the confidence of the merged note."""

    entity: str
    entity_type: str
    note_type: NoteType
    content: str
    confidence: float


class ConsolidationAction(StrEnum):
    """The action on a cluster of similar memories. Source: M-108, M-109."""

    MERGE = "merge"
    SUPERSEDE = "supersede"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class ConsolidationMember:
    """One memory of a cluster. ``key`` is the caller's own name for it and comes back in the decision."""

    key: str
    content: str
    created_us: int


@dataclass(frozen=True, slots=True)
class ConsolidationDecision:
    """The decision about one cluster: ``survivor`` is set for supersede, ``content`` for merge."""

    action: ConsolidationAction
    keys: tuple[str, ...]
    survivor: str | None = None
    content: str | None = None
