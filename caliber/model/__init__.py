"""Data types of the domain: ids, entities, enums, errors, time, windows. Imports the standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.model.access import AgentRole, Principal, PrincipalKind
    from caliber.model.agents import (
        AgentMessage,
        Lock,
        LockMode,
        LockToken,
        LockWaiter,
        MessageOutcome,
        MessagePriority,
        MessageState,
        MessageType,
    )
    from caliber.model.agents.registry import (
        Agent,
        AgentGroup,
        AgentLifecycle,
        AgentStatus,
        GroupMember,
        GroupPattern,
        MemoryAccess,
    )
    from caliber.model.context import (
        AssemblyAction,
        ContentVersion,
        ContextPersistence,
        DecisionCode,
        Reach,
        SectionType,
        SourceType,
        StoredWindow,
        WindowDurability,
    )
    from caliber.model.declared import MemoryCategory, Trigger
    from caliber.model.embedding import (
        CachedEmbedding,
        DistanceMetric,
        Embedding,
        EmbeddingSpace,
        EmbedMode,
        SpaceState,
        VectorIndexType,
    )
    from caliber.model.erasure import Erasure, ErasureKind, ForgetReport, Searched
    from caliber.model.events import CorrectionAction, Event, EventFamily, EventType
    from caliber.model.knowledge import Edge, EdgeRelation, Note, NoteType, Usage
    from caliber.model.pcp import (
        Checkpoint,
        ConflictResolution,
        ConflictStatus,
        ConflictType,
        ConflictWinner,
        Disagreement,
        PruneStrategy,
        RecoveryFrequency,
    )
    from caliber.model.references import EntityRef, EntityType
    from caliber.model.search import ReadConsistency, ResultStatus
    from caliber.model.storage import ConfigDocument, Durability, ValidationMode
    from caliber.model.time import Clock, FixedClock, SystemClock
    from caliber.model.trajectory import (
        TTL,
        Artifact,
        ArtifactType,
        ExtractionMethod,
        OutcomeStatus,
        Provenance,
        Scope,
        ScopeStatus,
        Session,
        ToolCall,
        Trajectory,
        TrajectoryOutcome,
        TrajectoryStatus,
        TTLKind,
        Turn,
        TurnRole,
    )
    from caliber.model.trust import TrustLabel
    from caliber.model.windows import (
        AssemblyDecision,
        ContextSection,
        ContextWindow,
        CutOff,
        Message,
        Position,
        SearchHit,
        SearchResult,
        SourceRef,
    )

_NAMES = {
    "access": "AgentRole Principal PrincipalKind",
    "agents": (
        "AgentMessage Lock LockMode LockToken LockWaiter MessageOutcome MessagePriority MessageState MessageType"
    ),
    "agents.registry": "Agent AgentGroup AgentLifecycle AgentStatus GroupMember GroupPattern MemoryAccess",
    "context": (
        "AssemblyAction ContentVersion ContextPersistence DecisionCode Reach SectionType SourceType "
        "StoredWindow WindowDurability"
    ),
    "declared": "MemoryCategory Trigger",
    "embedding": "CachedEmbedding DistanceMetric EmbedMode Embedding EmbeddingSpace SpaceState VectorIndexType",
    "erasure": "Erasure ErasureKind ForgetReport Searched",
    "events": "CorrectionAction Event EventFamily EventType",
    "knowledge": "Edge EdgeRelation Note NoteType Usage",
    "pcp": (
        "Checkpoint ConflictResolution ConflictResolutionRecord ConflictStatus ConflictType ConflictWinner "
        "PruneStrategy Disagreement RecoveryFrequency"
    ),
    "references": "EntityRef EntityType",
    "search": "ReadConsistency ResultStatus",
    "storage": "ConfigDocument Durability ValidationMode",
    "time": "Clock FixedClock SystemClock",
    "trajectory": (
        "Artifact ArtifactType ExtractionMethod OutcomeStatus Provenance Scope ScopeStatus Session TTL "
        "TTLKind ToolCall Trajectory TrajectoryOutcome TrajectoryStatus Turn TurnRole"
    ),
    "trust": "TrustLabel",
    "windows": (
        "AssemblyDecision ContextSection ContextWindow CutOff Message Position SearchHit SearchResult SourceRef"
    ),
}
"""The names of each module: a room that needs one subsystem's data does not wait for that of the others."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "TTL",
    "Agent",
    "AgentGroup",
    "AgentLifecycle",
    "AgentMessage",
    "AgentRole",
    "AgentStatus",
    "Artifact",
    "ArtifactType",
    "AssemblyAction",
    "AssemblyDecision",
    "CachedEmbedding",
    "Checkpoint",
    "Clock",
    "ConfigDocument",
    "ConflictResolution",
    "ConflictStatus",
    "ConflictType",
    "ConflictWinner",
    "ContentVersion",
    "ContextPersistence",
    "ContextSection",
    "ContextWindow",
    "CorrectionAction",
    "CutOff",
    "DecisionCode",
    "Disagreement",
    "DistanceMetric",
    "Durability",
    "Edge",
    "EdgeRelation",
    "EmbedMode",
    "Embedding",
    "EmbeddingSpace",
    "EntityRef",
    "EntityType",
    "Erasure",
    "ErasureKind",
    "Event",
    "EventFamily",
    "EventType",
    "ExtractionMethod",
    "FixedClock",
    "ForgetReport",
    "GroupMember",
    "GroupPattern",
    "Lock",
    "LockMode",
    "LockToken",
    "LockWaiter",
    "MemoryAccess",
    "MemoryCategory",
    "Message",
    "MessageOutcome",
    "MessagePriority",
    "MessageState",
    "MessageType",
    "Note",
    "NoteType",
    "OutcomeStatus",
    "Position",
    "Principal",
    "PrincipalKind",
    "Provenance",
    "PruneStrategy",
    "Reach",
    "ReadConsistency",
    "RecoveryFrequency",
    "ResultStatus",
    "Scope",
    "ScopeStatus",
    "SearchHit",
    "SearchResult",
    "Searched",
    "SectionType",
    "Session",
    "SourceRef",
    "SourceType",
    "SpaceState",
    "StoredWindow",
    "SystemClock",
    "TTLKind",
    "ToolCall",
    "Trajectory",
    "TrajectoryOutcome",
    "TrajectoryStatus",
    "Trigger",
    "TrustLabel",
    "Turn",
    "TurnRole",
    "Usage",
    "ValidationMode",
    "VectorIndexType",
    "WindowDurability",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'caliber.model' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"caliber.model.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
