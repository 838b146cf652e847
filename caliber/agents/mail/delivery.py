"""Transactions of messages: send once, claim by lease, acknowledge, give back, reply.

Each function takes the transaction that it is part of, so a receiver can acknowledge a message in the transaction of
its effect: both stand, or neither. A claim is named by ``claim_id``; a receiver that was slower than its lease finds
another one, and its whole transaction is undone.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from caliber.access.identities import not_registered
from caliber.config import CaliberConfig
from caliber.kernels import uuid7
from caliber.model.agents import (
    AgentMessage,
    MessageId,
    MessageOutcome,
    MessagePriority,
    MessageType,
    mailbox_of_reply,
    mailbox_of_type,
)
from caliber.model.agents.registry import Agent, AgentLifecycle
from caliber.model.errors import Conflict, MailboxFull, MessageDeliveryFailed, NotFound, PermissionDenied
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ArtifactId, EntityRef, ScopeId, TrajectoryId
from caliber.model.time import EPOCH, MS_US, from_us
from caliber.schema.relations import AGENT, AGENT_MESSAGE
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.json_values import same_json
from caliber.storage.write.unit_of_work import UnitOfWork

BY_KEY: Final = ("from_agent_id", "idempotency_key")
_LOWEST: Final = MessagePriority.LOW.rank
_COMPARED: Final = (
    *("to_agent_type", "message_type", "topic", "rank", "reply_to", "awaits_reply"),
    *("trajectory_id", "scope_id", "artifact_ids"),
)
PUT_BACK_US: Final = 86_400_000_000
"""How far ahead a lease must begin to be that of a clock that has been put back since: farther than clocks differ.

Less would take live leases: from a receiver whose clock is ahead, or by one that was stopped after it read the clock.
"""
Ranks: TypeAlias = tuple[int | None, int | None]
"""The ranks of the most urgent messages to an agent and to its type; None where none is due."""
_LOST: Final = (
    "its lease is over, and others may process it: undo the effect, or give claim() a longer lease_ms, or call extend()"
)


_UNCLAIMED: Final = "it was not claimed: pass a message as claim(), listen() or request() returned it"


class Changed(NamedTuple):
    """A message whose claim its agent has ended or prolonged: its queue, and whether it is one of a topic."""

    mailbox: uuid.UUID
    in_order: bool


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as its sender wrote it, checked. Exactly one of ``to``, ``to_type`` and ``everyone`` is set."""

    to: EntityRef | None
    message_type: MessageType | str
    priority: MessagePriority
    payload: Any
    to_type: str | None = None
    everyone: bool = False
    topic: str | None = None
    expires_in_ms: int | None = None
    delay_ms: int = 0
    trajectory_id: TrajectoryId | None = None
    scope_id: ScopeId | None = None
    artifact_ids: tuple[ArtifactId, ...] = ()
    reply_to: MessageId | None = None
    awaits_reply: bool = False
    idempotency_key: str | None = None


def send(uow: UnitOfWork, config: CaliberConfig, sender: Agent, out: Outgoing) -> tuple[list[AgentMessage], bool]:
    """Insert a message, or one for each receiver of a broadcast; return them, and whether they are new.

    The same sender's ``idempotency_key`` again returns what the first call sent. A broadcast leaves out agents that are
    not active, and those whose mailbox is full.

    Raises: MessageDeliveryFailed for an unknown or archived receiver; MailboxFull; Conflict for a key that came with
        another message; NotFound for a ``reply_to`` that the sender did not receive.
    """
    broadcast = uuid7()
    if out.everyone and out.idempotency_key is not None:
        # The agents that it reaches may be others by now.
        again = dataclasses.replace(_message(uow, sender, out, None, sender.agent_id), broadcast_id=broadcast)
        if uow.find_by(AGENT_MESSAGE, BY_KEY, sender.agent_id.bytes, out.idempotency_key) is not None:
            return _sent_before(uow, again), False
    messages = [
        _message(uow, sender, out, out.to_type if to is None else None, to)
        for to in _receivers(uow, config, sender, out)
    ]
    if out.everyone:
        messages = [dataclasses.replace(each, broadcast_id=broadcast) for each in messages]
    # The first one has the key for all of a broadcast.
    keyless = [dataclasses.replace(each, idempotency_key=None) for each in messages[1:]]
    for at, message in enumerate([*messages[:1], *keyless]):
        if not uow.insert_new(AGENT_MESSAGE, message):
            return _sent_before(uow, message), False
        messages[at] = message
    if out.reply_to is not None:
        _check_received(uow, sender, out.reply_to)
    if not out.everyone:
        _check_room(uow, config, messages[0].mailbox)
    return messages, bool(messages)


def send_many(uow: UnitOfWork, config: CaliberConfig, sender: Agent, outs: Sequence[Outgoing]) -> list[AgentMessage]:
    """Insert messages to one receiver, in their order, all of them or none; return them. Without idempotency keys.

    Raises: as ``send``.
    """
    (to,) = _receivers(uow, config, sender, outs[0])
    messages = [_message(uow, sender, out, out.to_type if to is None else None, to) for out in outs]
    for message in messages:
        uow.insert(AGENT_MESSAGE, message)
    _check_room(uow, config, messages[0].mailbox)
    return messages


def _check_received(uow: UnitOfWork, agent: Agent, message_id: MessageId) -> None:
    """Raise NotFound unless a message is to an agent, to its type, or was claimed by it."""
    found: AgentMessage | None = uow.find(AGENT_MESSAGE, message_id.bytes)
    of_type = mailbox_of_type(agent.agent_type)
    if found is None or not (agent.agent_id in (found.to_agent_id, found.claimed_by) or found.mailbox == of_type):
        raise NotFound(entity_type=AGENT_MESSAGE.name, id=message_id)


def _receivers(uow: UnitOfWork, config: CaliberConfig, sender: Agent, out: Outgoing) -> list[uuid.UUID | None]:
    if out.everyone:
        rows = [codec_of(AGENT).decode(row) for page in uow.pages(AGENT) for row in page]
        active = [each.agent_id for each in rows if each.lifecycle is AgentLifecycle.ACTIVE]
        return [each for each in active if each != sender.agent_id and _has_room(uow, config, each, 0)]
    if out.to is None:
        return [None]
    receiver: Agent | None = uow.find(AGENT, out.to.id.bytes)
    if receiver is None or receiver.lifecycle is AgentLifecycle.ARCHIVED:
        state = "is not registered" if receiver is None else "is archived"
        raise MessageDeliveryFailed(message_id=None, reason=f"agent {out.to.id} {state}, and nothing was sent")
    return [out.to.id]


def _message(uow: UnitOfWork, sender: Agent, out: Outgoing, to_type: str | None, to: uuid.UUID | None) -> AgentMessage:
    mailbox = mailbox_of_type(to_type) if to_type is not None else to
    assert mailbox is not None  # one of both is given
    later = from_us(uow.now_us + out.delay_ms * MS_US)
    return AgentMessage(
        message_id=MessageId(uuid7()),
        mailbox=mailbox,
        from_agent_id=sender.agent_id,
        to_agent_id=to,
        to_agent_type=to_type,
        message_type=out.message_type,
        topic=out.topic,
        rank=out.priority.rank,
        payload=out.payload,
        created_at=from_us(uow.now_us),
        # Without a delay it is due whatever the clocks do.
        available_at=later if out.delay_ms else EPOCH,
        claimed_at=from_us(uow.now_us) if out.delay_ms else None,
        expires_at=None if out.expires_in_ms is None else from_us(uow.now_us + out.expires_in_ms * MS_US),
        trajectory_id=out.trajectory_id,
        scope_id=out.scope_id,
        artifact_ids=out.artifact_ids,
        reply_to=out.reply_to,
        awaits_reply=out.awaits_reply,
        idempotency_key=out.idempotency_key,
    )


def _sent_before(uow: UnitOfWork, message: AgentMessage) -> list[AgentMessage]:
    first: AgentMessage | None = uow.find_by(
        AGENT_MESSAGE, BY_KEY, message.from_agent_id.bytes, message.idempotency_key
    )
    if first is None:
        raise Conflict(
            entity_type=AGENT_MESSAGE.name, id=message.message_id, reason="its key was just taken", retryable=True
        )
    if not _is_same(first, message):
        raise Conflict(
            entity_type=AGENT_MESSAGE.name,
            id=first.message_id,
            reason="the idempotency key came before with another message",
        )
    if first.broadcast_id is None:
        return [first]
    return uow.select_path(AGENT_MESSAGE, "list_broadcast", first.broadcast_id.bytes)


def _is_same(first: AgentMessage, message: AgentMessage) -> bool:
    """Return whether a message that came again is the first one, as its sender wrote it; a request may wait longer."""
    is_broadcast = first.broadcast_id is not None
    return (
        is_broadcast is (message.broadcast_id is not None)
        and (is_broadcast or first.to_agent_id == message.to_agent_id)
        and all(getattr(first, name) == getattr(message, name) for name in _COMPARED)
        and same_json(first.payload, message.payload)
        and (message.awaits_reply or _lasts(first) == _lasts(message))
    )


def _lasts(message: AgentMessage) -> timedelta | None:
    return None if message.expires_at is None else message.expires_at - message.created_at


def _check_room(uow: UnitOfWork, config: CaliberConfig, mailbox: uuid.UUID) -> None:
    """Raise MailboxFull where a queue holds more messages than it may, with those of this transaction."""
    if not _has_room(uow, config, mailbox, 1):
        raise MailboxFull(pending=config.agents.messages.pending_max)


def _has_room(uow: UnitOfWork, config: CaliberConfig, mailbox: uuid.UUID, new: int) -> bool:
    """Return whether a queue holds no more messages than it may; ``new`` of them are this transaction's."""
    most = config.agents.messages.pending_max - 1 + new
    waiting: int = uow.select("message.backlog", mailbox.bytes, uow.now_us, most + 1)[0][0]
    return waiting <= most


# --- receiving -------------------------------------------------------------------------------------


def claim(
    uow: UnitOfWork, config: CaliberConfig, agent: Agent, limit: int, lease_us: int, seen: Ranks | None = None
) -> list[AgentMessage]:
    """Claim the most urgent messages to an agent and to its type, in the order of delivery.

    ``seen``: the ranks of the most urgent ones, as read just before this transaction. A message that was delivered as
    often as it may be ends as dead instead.
    """
    boxes = (agent.agent_id, mailbox_of_type(agent.agent_type))
    claim_id = uuid7()
    found: dict[tuple[int, int], AgentMessage] = {}
    """By rank and age: the end of one as dead lets a more urgent one of its topic follow."""
    while len(found) < limit:
        before, seen = seen, None
        ranks = before or uow.select("message.ready", *(each.bytes for each in boxes), *ready_at(uow.now_us))[0]
        ready = [box for box, rank in zip(boxes, ranks, strict=True) if rank is not None]
        if not ready:
            break
        most = _LOWEST if len(ready) == 1 else min(rank for rank in ranks if rank is not None)
        rows: list[Any] = []
        for box in ready:
            left = limit - len(found) - len(rows)
            if left > 0:
                values = (most, uow.now_us, uow.now_us + lease_us, uow.now_us + PUT_BACK_US, claim_id.bytes)
                rows += uow.select("message.claim", box.bytes, *values, agent.agent_id.bytes, left)
        if not rows:
            if before is not None:  # others took them since
                continue
            break  # others have just locked them
        fit = _fit(uow, config, rows)
        found |= fit
        if len(ready) == 1 and len(fit) == len(rows):
            break  # its only mailbox gave all that it may: an end of one as dead could let another follow
    return [found[place] for place in sorted(found)]


def ready_at(now_us: int) -> tuple[int, int]:
    """Return the instants between which a lease is not over: now, and where that of a clock put back begins."""
    return now_us, now_us + PUT_BACK_US


def _fit(uow: UnitOfWork, config: CaliberConfig, rows: Sequence[Any]) -> dict[tuple[int, int], AgentMessage]:
    """Return the claimed messages by rank and ordinal, without those that end as dead."""
    fit = {}
    for row in rows:
        message: AgentMessage = codec_of(AGENT_MESSAGE).decode(row)
        if message.attempts <= config.agents.messages.attempts_max:
            fit[message.rank, row[0]] = message
            continue
        uow.track(AGENT_MESSAGE, row)
        # The attempt that was refused here was none.
        ended = dataclasses.replace(message, attempts=message.attempts - 1, claim_id=None, claimed_by=None)
        uow.update(AGENT_MESSAGE, dataclasses.replace(ended, ended_at=from_us(uow.now_us), outcome=MessageOutcome.DEAD))
    return fit


def ack(uow: UnitOfWork, agent_id: uuid.UUID, messages: Iterable[AgentMessage]) -> list[Changed]:
    """End messages as acknowledged, in the transaction of their effect; return those that were not yet.

    Raises: MessageDeliveryFailed for a message whose claim was lost: nothing of the transaction may stand;
        PermissionDenied for one that another agent has claimed.
    """
    return _held(uow, "message.ack", agent_id, messages, ())


def extend(uow: UnitOfWork, agent_id: uuid.UUID, messages: Iterable[AgentMessage], lease_us: int) -> list[Changed]:
    """Let the leases of messages begin again. Raises: as ``ack``."""
    return _held(uow, "message.extend", agent_id, messages, (uow.now_us + lease_us,))


def release(uow: UnitOfWork, agent_id: uuid.UUID, messages: Iterable[AgentMessage], delay_us: int) -> list[Changed]:
    """Give messages back, to be delivered again after a delay. Raises: as ``ack``."""
    return _held(uow, "message.release", agent_id, messages, (uow.now_us + delay_us,))


def _held(
    uow: UnitOfWork, statement: str, agent_id: uuid.UUID, messages: Iterable[AgentMessage], values: tuple[int, ...]
) -> list[Changed]:
    """Change messages that an agent has claimed. Of the caller's messages only the ids count: rows have the rest."""
    claims: dict[uuid.UUID, dict[bytes, AgentMessage]] = defaultdict(dict)
    for message in messages:
        if message.claim_id is None:
            _check_claimant(uow, agent_id, message)
            raise MessageDeliveryFailed(message_id=message.message_id, reason=_UNCLAIMED)
        claims[message.claim_id][message.message_id.bytes] = message
    changed: list[Changed] = []
    for claim_id, held in sorted(claims.items()):
        ids = json.dumps(sorted(key.hex() for key in held))
        rows = uow.select(statement, ids, claim_id.bytes, uow.now_us, *values, agent_id.bytes)
        changed += [Changed(uuid.UUID(bytes=row[1]), row[2] is not None) for row in rows]
        for key in held.keys() - {row[0] for row in rows}:
            now = _check_claimant(uow, agent_id, held[key])
            again = now is not None and now.outcome is MessageOutcome.ACKNOWLEDGED and now.claim_id == claim_id
            if statement != "message.ack" or not again:
                raise MessageDeliveryFailed(message_id=held[key].message_id, reason=_LOST)
    return changed


def _check_claimant(uow: UnitOfWork, agent_id: uuid.UUID, message: AgentMessage) -> AgentMessage | None:
    """Return a message as it is stored. Raises: PermissionDenied where its claim is another agent's."""
    now: AgentMessage | None = uow.find(AGENT_MESSAGE, message.message_id.bytes)
    if now is None or message.claim_id not in (None, now.claim_id) or now.claimed_by in (None, agent_id):
        return now
    resource = f"message {message.message_id}, which another agent has claimed"
    raise PermissionDenied(agent_id=str(agent_id), action="end the claim of", resource=resource)


# --- replies ---------------------------------------------------------------------------------------


def reply(
    uow: UnitOfWork,
    config: CaliberConfig,
    sender: Agent,
    claimed: AgentMessage,
    payload: Any,
    message_type: MessageType | str,
) -> tuple[AgentMessage, AgentMessage, bool]:
    """Acknowledge a message and send the reply to its sender; return both, and whether the reply is new.

    Raises: MessageDeliveryFailed for a lost claim, and a request whose deadline has passed; as ``send``.
    """
    changed = ack(uow, sender.agent_id, [claimed])
    message: AgentMessage = uow.get(AGENT_MESSAGE, claimed.message_id.bytes)
    if not changed:
        before: AgentMessage | None = uow.find_by(
            AGENT_MESSAGE, BY_KEY, sender.agent_id.bytes, _reply_key(message.message_id)
        )
        if before is not None:
            return message, before, False
    if message.awaits_reply and message.expires_at is not None and message.expires_at <= from_us(uow.now_us):
        reason = "its deadline has passed, and its sender no longer waits for a reply"
        raise MessageDeliveryFailed(message_id=message.message_id, reason=reason)
    receiver: Agent | None = uow.find(AGENT, message.from_agent_id.bytes)
    if receiver is None:
        raise not_registered(EntityRef("agent", message.from_agent_id))
    made = AgentMessage(
        message_id=MessageId(uuid7()),
        mailbox=mailbox_of_reply(message.message_id) if message.awaits_reply else message.from_agent_id,
        from_agent_id=sender.agent_id,
        to_agent_id=message.from_agent_id,
        to_agent_type=None,
        message_type=message_type,
        topic=None,
        rank=message.rank,
        payload=payload,
        created_at=from_us(uow.now_us),
        available_at=EPOCH,
        expires_at=message.expires_at if message.awaits_reply else None,
        trajectory_id=message.trajectory_id,
        scope_id=message.scope_id,
        reply_to=message.message_id,
        idempotency_key=_reply_key(message.message_id),
    )
    if not uow.insert_new(AGENT_MESSAGE, made):
        return message, _sent_before(uow, made)[0], False
    if not message.awaits_reply:
        _check_room(uow, config, made.mailbox)
    return message, made, True


def _reply_key(message_id: uuid.UUID) -> str:
    return f"reply to {message_id}"


def take_reply(uow: UnitOfWork, request: AgentMessage) -> AgentMessage | None:
    """Return the reply to a request, acknowledged in this transaction; None while there is none."""
    for each in uow.select_path(AGENT_MESSAGE, "list_replies", request.message_id.bytes):
        if is_reply_to(request, each):
            return each if each.ended_at is not None else _acknowledged(uow, each)
    return None


def is_reply_to(request: AgentMessage, message: AgentMessage) -> bool:
    """Return whether a message is the reply of the agent that claimed a request, and not a message that refers to it.

    Nothing but ``reply`` writes to the queue of a reply, in the transaction that ends the claim.
    """
    return message.mailbox == mailbox_of_reply(request.message_id)


def _acknowledged(uow: UnitOfWork, message: AgentMessage) -> AgentMessage:
    now: datetime = from_us(uow.now_us)
    done = dataclasses.replace(
        message, attempts=message.attempts + 1, delivered_at=now, ended_at=now, outcome=MessageOutcome.ACKNOWLEDGED
    )
    stored: AgentMessage = uow.update(AGENT_MESSAGE, done)
    return stored
