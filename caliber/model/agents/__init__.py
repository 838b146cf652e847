"""Agents that share a store: locks, which are leases with fencing tokens, and messages.

Source of messages: C-369 to C-373, C-399, C-423 to C-425.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NewType

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ArtifactId, LockId, LockWaiterId, ScopeId, TrajectoryId


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
    """Proof of a lock, passed as ``guard`` to a write of its holder: the write fails once the lock is lost."""

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


MessageId = NewType("MessageId", uuid.UUID)


class MessageType(StrEnum):
    """The purpose of a message. Other texts are allowed too. A HANDOFF_NOTE is read by its first reader alone."""

    TASK_REQUEST = "task_request"
    TASK_RESULT = "task_result"
    STATUS = "status"
    QUESTION = "question"
    ANSWER = "answer"
    HANDOFF_NOTE = "handoff_note"
    BROADCAST = "broadcast"
    CUSTOM = "custom"


class MessagePriority(StrEnum):
    """The urgency of a message: of two that wait, the more urgent one is delivered first, whatever their age."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """The place in the order of delivery; 0 comes first. Source: K-034."""
        return _RANKS.index(self)


_RANKS: Final = tuple(MessagePriority)


class MessageOutcome(StrEnum):
    """The end of a message. DEAD is a dead letter: it was delivered as often as it may be, and never acknowledged."""

    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    DEAD = "dead"


class MessageState(StrEnum):
    """The state of a message as people see it; the last three are outcomes."""

    PENDING = "pending"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """One message to one receiver: an agent, or the first claimant of a type.

    ``mailbox`` is the queue it waits in. ``claim_id`` names the claim that holds it, until ``available_at``; only that
    claim may acknowledge it, and only its agent reads the id. ``attempts`` is how often it was delivered.
    ``broadcast_id`` is common to the messages of one broadcast. ``awaits_reply``: its sender waits for the reply, which
    goes to no other reader.
    """

    message_id: MessageId
    mailbox: uuid.UUID
    from_agent_id: uuid.UUID
    to_agent_id: uuid.UUID | None
    to_agent_type: str | None
    message_type: MessageType | str
    topic: str | None
    rank: int
    payload: Any
    created_at: datetime
    available_at: datetime
    expires_at: datetime | None = None
    trajectory_id: TrajectoryId | None = None
    scope_id: ScopeId | None = None
    artifact_ids: tuple[ArtifactId, ...] = ()
    reply_to: MessageId | None = None
    awaits_reply: bool = False
    broadcast_id: uuid.UUID | None = None
    idempotency_key: str | None = None
    claim_id: uuid.UUID | None = None
    claimed_by: uuid.UUID | None = None
    claimed_at: datetime | None = None
    attempts: int = 0
    delivered_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: MessageOutcome | None = None
    version: int = 1

    @property
    def priority(self) -> MessagePriority:
        """The urgency of the message."""
        return _RANKS[self.rank]

    @property
    def acknowledged_at(self) -> datetime | None:
        """The time of its acknowledgement; None before."""
        return self.ended_at if self.outcome is MessageOutcome.ACKNOWLEDGED else None

    def state(self, now: datetime) -> MessageState:
        """Return the state at an instant: without acknowledgement it has expired from ``expires_at`` on."""
        if self.outcome is not None:
            return MessageState(self.outcome.value)
        if self.expires_at is not None and self.expires_at <= now:
            return MessageState.EXPIRED
        return MessageState.PENDING if self.claimed_by is None else MessageState.DELIVERED


def mailbox_of_type(agent_type: str) -> uuid.UUID:
    """Return the queue of the messages to a type of agents."""
    return _derived("type", agent_type)


def mailbox_of_reply(message_id: uuid.UUID) -> uuid.UUID:
    """Return the queue of the reply to one request: no reader but the one that waits for it looks there."""
    return _derived("reply", str(message_id))


def _derived(kind: str, name: str) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.sha256(f"caliber:mailbox:{kind}:{name}".encode()).digest()[:16], version=5)
