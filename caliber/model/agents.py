"""Data types of agents: their roles, locks on resources, and the fencing token of a lock."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.ids import LockId
from caliber.model.lazy_dataclass import dataclass


class AgentRole(StrEnum):
    """Roles that own and see notes. Source: M-118, M-120."""

    ORCHESTRATOR = "orchestrator"
    OPTIMIZER = "optimizer"
    REVIEWER = "reviewer"
    EXECUTOR = "executor"


class LockMode(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Lock:
    """A lease on a resource. Units: ``token`` rises with every acquisition. Source: C-364 to C-368, K-037."""

    lock_id: LockId
    resource: str
    holder: str
    mode: LockMode
    token: int
    acquired_at: datetime
    expires_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class LockToken:
    """Proof of a lock, passed as ``guard`` to a write: the write fails once the lock is lost."""

    resource: str
    token: int
