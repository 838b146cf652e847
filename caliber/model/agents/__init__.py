"""Agents that share a store: locks, which are leases on resources with fencing tokens."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.ids import LockId, LockWaiterId
from caliber.model.lazy_dataclass import dataclass


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


@dataclass(frozen=True, slots=True)
class LockWaiter:
    """A request in the queue for a resource, in the order of ``ticket``; its waiter renews it. Source: C-365."""

    waiter_id: LockWaiterId
    resource: str
    holder: str
    """The principal that waits, and would hold the lock."""
    mode: LockMode
    ticket: int
    queued_at: datetime
    renewed_at: datetime
    expires_at: datetime
    version: int = 1
