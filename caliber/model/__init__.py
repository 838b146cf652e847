"""Data types of the domain: ids, entities, enums, errors, time, windows. Imports the standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber.model.access import AgentRole as AgentRole
    from caliber.model.access import Principal as Principal
    from caliber.model.access import PrincipalKind as PrincipalKind
    from caliber.model.agents import AgentMessage as AgentMessage
    from caliber.model.agents import Lock as Lock
    from caliber.model.agents import LockMode as LockMode
    from caliber.model.agents import LockToken as LockToken
    from caliber.model.agents import LockWaiter as LockWaiter
    from caliber.model.agents import MessageOutcome as MessageOutcome
    from caliber.model.agents import MessagePriority as MessagePriority
    from caliber.model.agents import MessageState as MessageState
    from caliber.model.agents import MessageType as MessageType
    from caliber.model.agents.registry import Agent as Agent
    from caliber.model.agents.registry import AgentGroup as AgentGroup
    from caliber.model.agents.registry import AgentLifecycle as AgentLifecycle
    from caliber.model.agents.registry import AgentStatus as AgentStatus
    from caliber.model.agents.registry import GroupMember as GroupMember
    from caliber.model.agents.registry import GroupPattern as GroupPattern
    from caliber.model.agents.registry import MemoryAccess as MemoryAccess
    from caliber.model.context import AssemblyAction as AssemblyAction
    from caliber.model.context import ContentVersion as ContentVersion
    from caliber.model.context import ContextPersistence as ContextPersistence
    from caliber.model.context import DecisionCode as DecisionCode
    from caliber.model.context import Reach as Reach
    from caliber.model.context import SectionType as SectionType
    from caliber.model.context import SourceType as SourceType
    from caliber.model.context import StoredWindow as StoredWindow
    from caliber.model.context import WindowDurability as WindowDurability
    from caliber.model.declared import MemoryCategory as MemoryCategory
    from caliber.model.declared import Trigger as Trigger
    from caliber.model.embedding import CachedEmbedding as CachedEmbedding
    from caliber.model.embedding import DistanceMetric as DistanceMetric
    from caliber.model.embedding import Embedding as Embedding
    from caliber.model.embedding import EmbeddingSpace as EmbeddingSpace
    from caliber.model.embedding import EmbedMode as EmbedMode
    from caliber.model.embedding import SpaceState as SpaceState
    from caliber.model.embedding import VectorIndexType as VectorIndexType
    from caliber.model.erasure import Erasure as Erasure
    from caliber.model.erasure import ErasureKind as ErasureKind
    from caliber.model.erasure import ForgetReport as ForgetReport
    from caliber.model.erasure import Searched as Searched
    from caliber.model.events import CorrectionAction as CorrectionAction
    from caliber.model.events import Event as Event
    from caliber.model.events import EventFamily as EventFamily
    from caliber.model.events import EventType as EventType
    from caliber.model.knowledge import Edge as Edge
    from caliber.model.knowledge import EdgeRelation as EdgeRelation
    from caliber.model.knowledge import Neighbour as Neighbour
    from caliber.model.knowledge import Note as Note
    from caliber.model.knowledge import NoteType as NoteType
    from caliber.model.knowledge import Usage as Usage
    from caliber.model.pcp import Checkpoint as Checkpoint
    from caliber.model.pcp import ConflictResolution as ConflictResolution
    from caliber.model.pcp import ConflictStatus as ConflictStatus
    from caliber.model.pcp import ConflictType as ConflictType
    from caliber.model.pcp import ConflictWinner as ConflictWinner
    from caliber.model.pcp import Disagreement as Disagreement
    from caliber.model.pcp import PruneStrategy as PruneStrategy
    from caliber.model.pcp import RecoveryFrequency as RecoveryFrequency
    from caliber.model.references import EntityRef as EntityRef
    from caliber.model.references import EntityType as EntityType
    from caliber.model.storage import ConfigDocument as ConfigDocument
    from caliber.model.storage import Durability as Durability
    from caliber.model.storage import ReadConsistency as ReadConsistency
    from caliber.model.storage import ResultStatus as ResultStatus
    from caliber.model.storage import ValidationMode as ValidationMode
    from caliber.model.time import Clock as Clock
    from caliber.model.time import FixedClock as FixedClock
    from caliber.model.time import SystemClock as SystemClock
    from caliber.model.trajectory import TTL as TTL
    from caliber.model.trajectory import Artifact as Artifact
    from caliber.model.trajectory import ArtifactType as ArtifactType
    from caliber.model.trajectory import ExtractionMethod as ExtractionMethod
    from caliber.model.trajectory import OutcomeStatus as OutcomeStatus
    from caliber.model.trajectory import Provenance as Provenance
    from caliber.model.trajectory import Scope as Scope
    from caliber.model.trajectory import ScopeStatus as ScopeStatus
    from caliber.model.trajectory import Session as Session
    from caliber.model.trajectory import ToolCall as ToolCall
    from caliber.model.trajectory import Trajectory as Trajectory
    from caliber.model.trajectory import TrajectoryOutcome as TrajectoryOutcome
    from caliber.model.trajectory import TrajectoryStatus as TrajectoryStatus
    from caliber.model.trajectory import TTLKind as TTLKind
    from caliber.model.trajectory import Turn as Turn
    from caliber.model.trajectory import TurnRole as TurnRole
    from caliber.model.trust import TrustLabel as TrustLabel
    from caliber.model.windows import AssemblyDecision as AssemblyDecision
    from caliber.model.windows import ContextSection as ContextSection
    from caliber.model.windows import ContextWindow as ContextWindow
    from caliber.model.windows import CutOff as CutOff
    from caliber.model.windows import Message as Message
    from caliber.model.windows import Position as Position
    from caliber.model.windows import SearchHit as SearchHit
    from caliber.model.windows import SearchResult as SearchResult
    from caliber.model.windows import SourceRef as SourceRef

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
    "knowledge": "Edge EdgeRelation Neighbour Note NoteType Usage",
    "pcp": (
        "Checkpoint ConflictResolution ConflictStatus ConflictType ConflictWinner "
        "PruneStrategy Disagreement RecoveryFrequency"
    ),
    "references": "EntityRef EntityType",
    "storage": "ConfigDocument Durability ReadConsistency ResultStatus ValidationMode",
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

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'caliber.model' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"caliber.model.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
