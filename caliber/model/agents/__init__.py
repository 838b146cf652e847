"""Agents that share a store: locks, which are leases on resources with fencing tokens."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.ids import LockId
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
