"""Data types of the domain: ids, entities, enums, errors, time, windows. Imports the standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.model.access import Principal, PrincipalKind
    from caliber.model.agents import AgentRole, Lock, LockMode, LockToken
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
    from caliber.model.memories import MemoryCategory
    from caliber.model.pcp import Checkpoint, ConflictResolution, PruneStrategy, RecoveryFrequency
    from caliber.model.policies import Trigger
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

_HOME = {
    "TTL": "trajectory",
    "AgentRole": "agents",
    "Artifact": "trajectory",
    "ArtifactType": "trajectory",
    "AssemblyAction": "context",
    "AssemblyDecision": "windows",
    "CachedEmbedding": "embedding",
    "Checkpoint": "pcp",
    "Clock": "time",
    "ConfigDocument": "storage",
    "ConflictResolution": "pcp",
    "ContentVersion": "context",
    "ContextPersistence": "context",
    "ContextSection": "windows",
    "ContextWindow": "windows",
    "CutOff": "windows",
    "DecisionCode": "context",
    "DistanceMetric": "embedding",
    "Durability": "storage",
    "Edge": "knowledge",
    "EdgeRelation": "knowledge",
    "EmbedMode": "embedding",
    "Embedding": "embedding",
    "EmbeddingSpace": "embedding",
    "EntityRef": "references",
    "EntityType": "references",
    "Erasure": "erasure",
    "ErasureKind": "erasure",
    "Event": "events",
    "CorrectionAction": "events",
    "EventFamily": "events",
    "EventType": "events",
    "ExtractionMethod": "trajectory",
    "FixedClock": "time",
    "ForgetReport": "erasure",
    "Lock": "agents",
    "LockMode": "agents",
    "LockToken": "agents",
    "MemoryCategory": "memories",
    "Message": "windows",
    "Note": "knowledge",
    "NoteType": "knowledge",
    "OutcomeStatus": "trajectory",
    "Position": "windows",
    "Principal": "access",
    "PrincipalKind": "access",
    "Provenance": "trajectory",
    "PruneStrategy": "pcp",
    "ReadConsistency": "search",
    "RecoveryFrequency": "pcp",
    "ResultStatus": "search",
    "Scope": "trajectory",
    "ScopeStatus": "trajectory",
    "SearchHit": "windows",
    "SearchResult": "windows",
    "Searched": "erasure",
    "SectionType": "context",
    "Session": "trajectory",
    "SourceRef": "windows",
    "Reach": "context",
    "SourceType": "context",
    "SpaceState": "embedding",
    "StoredWindow": "context",
    "SystemClock": "time",
    "TTLKind": "trajectory",
    "ToolCall": "trajectory",
    "Trajectory": "trajectory",
    "TrajectoryOutcome": "trajectory",
    "TrajectoryStatus": "trajectory",
    "Trigger": "policies",
    "TrustLabel": "trust",
    "Turn": "trajectory",
    "TurnRole": "trajectory",
    "Usage": "knowledge",
    "ValidationMode": "storage",
    "VectorIndexType": "embedding",
    "WindowDurability": "context",
}

__all__ = [
    "TTL",
    "AgentRole",
    "Artifact",
    "ArtifactType",
    "AssemblyAction",
    "AssemblyDecision",
    "CachedEmbedding",
    "Checkpoint",
    "Clock",
    "ConfigDocument",
    "ConflictResolution",
    "ContentVersion",
    "ContextPersistence",
    "ContextSection",
    "ContextWindow",
    "CorrectionAction",
    "CutOff",
    "DecisionCode",
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
    "Lock",
    "LockMode",
    "LockToken",
    "MemoryCategory",
    "Message",
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
    # A room that needs one subsystem's data does not wait for that of the others.
    if name not in _HOME:
        raise AttributeError(f"module 'caliber.model' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"caliber.model.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
