"""Facet ``memory.agents.messages``: messages between agents, delivered by lease and acknowledged.

A message to an agent reaches each of its processes' claims once; one to a type reaches the first agent of the type that
claims it; a broadcast is a message to each registered agent. Source: C-369 to C-373, C-423 to C-425, K-034, K-035.
"""

from __future__ import annotations

import builtins
import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from caliber.access.acting import ActingAgent, find_agent, registered
from caliber.agents.mail import delivery
from caliber.agents.mail.receiving import Receiving, as_message, checked, checked_payload, message_type_of
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.model import arguments
from caliber.model.agents import (
    AgentMessage,
    MessagePriority,
    MessageState,
    MessageType,
    mailbox_of_reply,
)
from caliber.model.deadline import check, earliest
from caliber.model.errors import InvalidStateTransition, MessageDeliveryFailed, NotFound
from caliber.model.events import EventType
from caliber.model.references import EntityRef, Id
from caliber.model.time import EPOCH, MS_US, from_us
from caliber.schema.relations import AGENT_MESSAGE
from caliber.storage.waiting import Flag
from caliber.storage.write.unit_of_work import UnitOfWork

SWEEP: Final = "agents.messages"
"""The job that ends expired messages and deletes those that were kept long enough."""


class Messages(Receiving):
    """The messages of the agents of a store.

    Every call acts for an agent: that of the handle, or the one that the application or an admin names as ``agent``. An
    agent sees what it sent and what is addressed to it; users see none.
    """

    # --- sending -----------------------------------------------------------------------------------

    def send(
        self,
        payload: Any,
        *,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        message_type: MessageType | str = MessageType.CUSTOM,
        topic: str | None = None,
        priority: MessagePriority | str = MessagePriority.NORMAL,
        expires_in_ms: int | None = None,
        delay_ms: int = 0,
        trajectory_id: Id | None = None,
        scope_id: Id | None = None,
        artifact_ids: Sequence[Id] = (),
        reply_to: Id | None = None,
        idempotency_key: str | None = None,
        agent: str | EntityRef | None = None,
    ) -> AgentMessage:
        """Send a message to an agent, or to the first agent of a type that claims it; return it once it is durable.

        ``payload`` is any JSON value. Of messages from one sender with one ``topic`` to one receiver, none is delivered
        before the one before it was acknowledged, has expired or is dead; others go by ``priority``, then by age. After
        ``expires_in_ms`` it is not delivered any more. The same ``idempotency_key`` again sends nothing, and returns
        the first message, for as long as that is kept; all but ``delay_ms`` must be the same. ``reply_to`` names a
        message that the sender received.

        Raises: InputError kinds; NotFound; NotRegistered; MessageDeliveryFailed for an unknown or archived receiver;
            MailboxFull, to try again later; Conflict for a key that came with another message; PermissionDenied for a
            user.
        """
        rest = (message_type, topic, priority, expires_in_ms, delay_ms, trajectory_id, scope_id, artifact_ids, reply_to)
        out = checked(self._engine, self._principal, payload, (to, to_type, False), rest, idempotency_key)
        return self._send(agent, out)[0]

    def send_many(
        self,
        payloads: Sequence[Any],
        *,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        message_type: MessageType | str = MessageType.CUSTOM,
        topic: str | None = None,
        priority: MessagePriority | str = MessagePriority.NORMAL,
        expires_in_ms: int | None = None,
        delay_ms: int = 0,
        trajectory_id: Id | None = None,
        scope_id: Id | None = None,
        agent: str | EntityRef | None = None,
    ) -> builtins.list[AgentMessage]:
        """Send a message a payload to one receiver, in their order, with one commit: all of them, or none.

        A hundred messages so take as many syncs of the disk as one. The other arguments hold for each of them.

        Raises: as ``send``; MailboxFull where not all of them have room.
        """
        given = arguments.as_items(payloads, "payloads", "a sequence of payloads")
        rest = (message_type, topic, priority, expires_in_ms, delay_ms, trajectory_id, scope_id, (), None)
        bodies = [checked_payload(each) for each in given]
        first = checked(self._engine, self._principal, None, (to, to_type, False), rest, None)
        outs = [dataclasses.replace(first, payload=body) for body in bodies]
        acting = self._acting(agent)

        def work(uow: UnitOfWork) -> builtins.list[AgentMessage]:
            sender = registered(uow, self._engine.config, acting)
            messages = delivery.send_many(uow, self._engine.config, sender, outs)
            self._announce(uow, acting, messages)
            return messages

        return self._engine.write(work) if outs else []

    def broadcast(
        self,
        payload: Any,
        *,
        message_type: MessageType | str = MessageType.BROADCAST,
        topic: str | None = None,
        priority: MessagePriority | str = MessagePriority.NORMAL,
        expires_in_ms: int | None = None,
        trajectory_id: Id | None = None,
        scope_id: Id | None = None,
        artifact_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        agent: str | EntityRef | None = None,
    ) -> list[AgentMessage]:
        """Send a message to every other active agent; return one for each agent that it was sent to.

        An agent whose mailbox is full is left out, and so is one that is hibernated or archived: the result has no
        message to it.

        Raises: as ``send``, but not MailboxFull.
        """
        rest = (message_type, topic, priority, expires_in_ms, 0, trajectory_id, scope_id, artifact_ids, None)
        out = checked(self._engine, self._principal, payload, (None, None, True), rest, idempotency_key)
        return self._send(agent, out)

    def _send(self, agent: str | EntityRef | None, out: delivery.Outgoing) -> list[AgentMessage]:
        acting = self._acting(agent)

        def work(uow: UnitOfWork) -> list[AgentMessage]:
            sender = registered(uow, self._engine.config, acting)
            messages, new = delivery.send(uow, self._engine.config, sender, out)
            if new:
                self._announce(uow, acting, messages)
            return [as_seen_by(each, sender.agent_id) for each in messages]

        return self._engine.write(work)

    def _announce(self, uow: UnitOfWork, acting: ActingAgent, messages: Sequence[AgentMessage]) -> None:
        """Wake the receivers after the commit; a message about a task is an event of it."""
        self._wakeups.notify(uow, [each.mailbox for each in messages])
        first = messages[0]
        if first.trajectory_id is not None:
            self._engine.emit(
                uow,
                EventType.MESSAGE_SEND,
                principal=acting.label,
                trajectory_id=first.trajectory_id,
                scope_id=first.scope_id,
                payload={"id": str(first.message_id), "type": str(first.message_type), "messages": len(messages)},
            )
        every_s = self._engine.config.retention.sweep_every_ms / 1_000
        if every_s and time.monotonic() >= self._wakeups.sweep_at_s:
            due = from_us(uow.now_us + int(every_s * 1_000_000))
            self._engine.part(JobQueue).enqueue(uow, SWEEP, key="sweep", due_at=due, within_s=every_s)
            uow.on_commit.append(lambda: setattr(self._wakeups, "sweep_at_s", time.monotonic() + every_s))

    # --- request and reply -------------------------------------------------------------------------

    def request(
        self,
        payload: Any,
        *,
        timeout_ms: int,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        message_type: MessageType | str = MessageType.QUESTION,
        priority: MessagePriority | str = MessagePriority.NORMAL,
        trajectory_id: Id | None = None,
        scope_id: Id | None = None,
        artifact_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        agent: str | EntityRef | None = None,
    ) -> AgentMessage:
        """Send a message and wait for its reply; return the reply, acknowledged.

        The request expires after ``timeout_ms``: it is not delivered, and not replied to, any more. With the same
        ``idempotency_key`` a caller that was interrupted waits for the reply to its first request, also with another
        ``timeout_ms``.

        Raises: as ``send``; MessageDeliveryFailed when no reply came in time.
        """
        kind, about = (message_type, priority), (trajectory_id, scope_id, artifact_ids)
        sent = self._request(payload, timeout_ms, (to, to_type), kind, about, idempotency_key, agent)
        until = earliest(time.monotonic() + arguments.as_duration_ms(timeout_ms, "timeout_ms") / 1_000)
        assert until is not None  # of two, one is given
        woken = Flag()
        with self._waiting_for(sent, woken.set):
            while True:
                woken.clear()
                found = self._take_reply(sent)
                left = until - time.monotonic()
                if found is not None:
                    return found
                if left <= 0:
                    check("the reply was waited for")
                    raise self._no_reply(sent)
                woken.wait(min(left, self._knobs.lease_ms / 1_000))

    def _request(
        self,
        payload: Any,
        timeout_ms: int,
        address: tuple[Any, Any],
        kind: tuple[Any, Any],
        about: tuple[Any, Any, Any],
        idempotency_key: str | None,
        agent: str | EntityRef | None,
    ) -> AgentMessage:
        self._engine.check_open()
        timeout = arguments.as_duration_ms(timeout_ms, "timeout_ms")
        rest = (kind[0], None, kind[1], timeout, 0, *about, None)
        out = checked(self._engine, self._principal, payload, (*address, False), rest, idempotency_key, awaits=True)
        return self._send(agent, out)[0]

    def _waiting_for(self, request: AgentMessage, wake: Callable[[], None]) -> Any:
        return self._wakeups.waiting(frozenset({mailbox_of_reply(request.message_id)}), wake)

    def _no_reply(self, request: AgentMessage) -> MessageDeliveryFailed:
        reason = "no reply came before its deadline, and it is not delivered any more"
        return MessageDeliveryFailed(message_id=request.message_id, reason=reason, retryable=True)

    def _take_reply(self, request: AgentMessage) -> AgentMessage | None:
        self._engine.check_open()
        found = self._engine.read(lambda uow: uow.select_path(AGENT_MESSAGE, "list_replies", request.message_id.bytes))
        if not any(delivery.is_reply_to(request, each) for each in found):
            return None
        return self._engine.write(lambda uow: delivery.take_reply(uow, request))

    def reply(
        self,
        message: AgentMessage,
        payload: Any,
        *,
        message_type: MessageType | str = MessageType.ANSWER,
        agent: str | EntityRef | None = None,
    ) -> AgentMessage:
        """Acknowledge a claimed message and send a reply to its sender, both or neither; return the reply.

        A second reply to one message sends nothing, and returns the first.

        Raises: as ``ack`` and ``send``; MessageDeliveryFailed once the deadline of the request has passed.
        """
        held, kind = as_message(message), message_type_of(message_type)
        body = checked_payload(payload)
        acting = self._acting(agent)

        def work(uow: UnitOfWork) -> AgentMessage:
            sender = registered(uow, self._engine.config, acting)
            answered, made, new = delivery.reply(uow, self._engine.config, sender, held, body, kind)
            if new:
                self._announce(uow, acting, [made])
                if answered.topic is not None:  # the next one of the topic may be due now
                    self._wakeups.notify(uow, [answered.mailbox])
            return as_seen_by(made, sender.agent_id)

        return self._engine.write(work)

    # --- looking -----------------------------------------------------------------------------------

    def get(self, message_id: Id, *, agent: str | EntityRef | None = None) -> AgentMessage:
        """Return a message that the agent sent or receives. Raises: InputError kinds; NotFound; PermissionDenied."""
        key = arguments.as_uuid(message_id, "message_id")
        boxes = self._seen(agent)
        found: AgentMessage | None = self._engine.read(lambda uow: uow.find(AGENT_MESSAGE, key.bytes))
        if found is None or not (boxes is None or _is_of(found, boxes)):
            raise NotFound(entity_type=AGENT_MESSAGE.name, id=key)
        return as_seen_by(found, None if boxes is None else boxes[0])

    def list(
        self, *, state: MessageState | str | None = None, limit: int = 100, agent: str | EntityRef | None = None
    ) -> list[AgentMessage]:
        """Return messages that the agent sent or receives, the newest first; an admin that names none gets all.

        ``state`` is pending, delivered, acknowledged, expired or dead; dead ones are the dead letters.

        Raises: InputError kinds; PermissionDenied.
        """
        wanted = "" if state is None else arguments.as_enum(state, MessageState, "state").value
        most = arguments.as_whole(limit, "limit", 1)
        boxes = self._seen(agent)
        statement = "message.list" if boxes is None else "message.list_of"
        values = (wanted, self._engine.clock.now_us(), most, *(each.bytes for each in boxes or ()))
        found = self._engine.read(lambda uow: uow.select_entities(AGENT_MESSAGE, statement, *values))
        reader = None if boxes is None else boxes[0]
        return [as_seen_by(each, reader) for each in found]

    def redeliver(self, message_id: Id, *, agent: str | EntityRef | None = None) -> AgentMessage:
        """Let a dead letter, or a message whose receiver is lost, be delivered again at once; return it.

        Its attempts begin anew, and its claim is lost. Only an administrator ends a claim before its lease is over.

        Raises: NotFound; PermissionDenied; InvalidStateTransition for a message that is pending, acknowledged or has
            expired, or whose lease runs.
        """
        key = arguments.as_uuid(message_id, "message_id")
        boxes = self._seen(agent)

        def work(uow: UnitOfWork) -> AgentMessage:
            found: AgentMessage | None = uow.find(AGENT_MESSAGE, key.bytes)
            if found is None or not (boxes is None or _is_of(found, boxes)):
                raise NotFound(entity_type=AGENT_MESSAGE.name, id=key)
            now = from_us(uow.now_us)
            state = found.state(now)
            held = state is MessageState.DELIVERED and found.available_at > now and not self._principal.is_admin
            if held or state not in (MessageState.DEAD, MessageState.DELIVERED):
                raise InvalidStateTransition(
                    f"message {key} is held by its receiver: wait for the end of its lease" if held else None,
                    entity_type=AGENT_MESSAGE.name,
                    from_state=state.value,
                    to_state=MessageState.PENDING.value,
                )
            self._wakeups.notify(uow, [found.mailbox])
            stored: AgentMessage = uow.update(AGENT_MESSAGE, _anew(found))
            return stored

        return self._engine.write(work)

    def _seen(self, agent: str | EntityRef | None) -> tuple[uuid.UUID, uuid.UUID] | None:
        """Return the mailboxes whose messages the call may see; None for an admin that names no agent, who sees all."""
        if agent is None and self._principal.is_admin:
            self._engine.check_open()
            return None
        acting = self._acting(agent)
        found = find_agent(self._engine, acting.ref)
        return self._boxes(found) if found is not None else (acting.ref.id, acting.ref.id)


def _is_of(message: AgentMessage, boxes: tuple[uuid.UUID, uuid.UUID]) -> bool:
    return boxes[0] in (message.from_agent_id, message.to_agent_id, message.claimed_by) or message.mailbox == boxes[1]


def as_seen_by(message: AgentMessage, agent_id: uuid.UUID | None) -> AgentMessage:
    """Return a message without the id of its claim, unless the claim is the reader's: the id is what ends it."""
    if message.claim_id is None or message.claimed_by == agent_id:
        return message
    return dataclasses.replace(message, claim_id=None)


def _anew(message: AgentMessage) -> AgentMessage:
    return dataclasses.replace(
        message,
        available_at=EPOCH,
        claimed_at=None,
        claim_id=None,
        claimed_by=None,
        attempts=0,
        ended_at=None,
        outcome=None,
    )


def sweep(engine: Engine, claim: Claim) -> int:
    """Run the job ``agents.messages``: end expired messages, and delete those that were kept long enough."""
    del claim  # doing it twice does no harm

    def work(uow: UnitOfWork) -> int:
        expired = uow.execute("message.expire", uow.now_us)
        return expired + uow.execute("message.prune", uow.now_us - engine.config.message_retention * MS_US)

    return engine.write(work)
