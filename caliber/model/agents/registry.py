"""The registry's data types: agents that share a store, and groups of agents that speak in turn."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import NewType

from caliber.model.access import AgentRole
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, EntityType

AgentId = NewType("AgentId", uuid.UUID)
GroupId = NewType("GroupId", uuid.UUID)
MemberId = NewType("MemberId", uuid.UUID)


class AgentStatus(StrEnum):
    """The state of an agent at run time. Source: C-397, C-442."""

    IDLE = "idle"
    ACTIVE = "active"
    BLOCKED = "blocked"
    FAILED = "failed"


class AgentLifecycle(StrEnum):
    """The stage of an agent's life: only active agents act. Source: P-011."""

    ACTIVE = "active"
    HIBERNATED = "hibernated"
    ARCHIVED = "archived"


class GroupPattern(StrEnum):
    """The order in which the members of a group speak. Source: P-013, P-015."""

    ROUND_ROBIN = "round_robin"
    DYNAMIC = "dynamic"
    SUPERVISOR = "supervisor"
    PIPELINE = "pipeline"
    VOTING = "voting"


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """The kinds of records that an agent reads and writes, each with ``all`` or ``own``. Source: C-417, C-422."""

    read: Mapping[str, str]
    write: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the registry. ``status`` is its state at run time, ``lifecycle`` the stage of its life.

    ``can_delegate_to`` are the types of agents that it may give work to. Source: C-397, P-010, P-011.
    """

    agent_id: AgentId
    name: str
    agent_type: str
    capabilities: tuple[str, ...]
    role: AgentRole | None
    memory_access: MemoryAccess | None
    status: AgentStatus
    lifecycle: AgentLifecycle
    can_delegate_to: tuple[str, ...]
    reports_to: AgentId | None
    created_at: datetime
    updated_at: datetime
    last_heartbeat: datetime
    description: str | None = None
    version: int = 1

    @property
    def ref(self) -> EntityRef:
        """The reference to the agent, as tasks and turns hold it."""
        return EntityRef(EntityType.AGENT, self.agent_id)


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """A group of agents; ``spoken`` is the number of turns that its members have had. Source: P-012."""

    group_id: GroupId
    name: str
    pattern: GroupPattern
    spoken: int
    created_at: datetime
    updated_at: datetime
    last_speaker_id: AgentId | None = None
    description: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, with its role in it, such as ``supervisor``. Source: P-014.

    ``position`` orders the members; it is the order in which they joined.
    """

    member_id: MemberId
    group_id: GroupId
    agent_id: AgentId
    position: int
    joined_at: datetime
    role: str | None = None
    version: int = 1
