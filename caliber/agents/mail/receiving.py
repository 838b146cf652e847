"""Receiving side of ``memory.agents.messages``: wake-ups, claim, listen, acknowledge, give back; checked arguments."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from caliber.access.acting import ActingAgent, acting_agent, admitted, agent_named, registered
from caliber.agents.mail import delivery
from caliber.agents.mail.delivery import Outgoing
from caliber.engine.commit_waiters import CommitWaiter, waiters_of
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import AgentMessage, MessageId, MessagePriority, MessageType, mailbox_of_type
from caliber.model.agents.registry import Agent
from caliber.model.deadline import check, remaining_s
from caliber.model.errors import DTypeError, InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.events import Event, EventType
from caliber.model.process.interrupts import managed
from caliber.model.references import ArtifactId, EntityRef, ScopeId, TrajectoryId
from caliber.model.time import MS_US
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT_MESSAGE, SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.json_values import plain_json
from caliber.storage.waiting import Flag
from caliber.storage.write.unit_of_work import UnitOfWork

PENDING: Final = "message_pending"
"""The type of the event that wakes receivers; its subject is a mailbox. It is never logged."""
POLL_MS: Final = 15
"""Interval of looks for messages of other processes, where the database does not notify of them."""
_making: Final = threading.Lock()


class Wakeups:
    """The receivers of an open tenant that wait in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = waiters_of(engine)
        self._lock = threading.Lock()
        self._waiting = 0
        self._unsubscribe: Callable[[], None] | None = None
        self._every_ms = POLL_MS
        if not engine.store.sees_every_commit:
            self._every_ms = max(POLL_MS, engine.config.resident.feed_poll_ms)
        self.sweep_at_s = 0.0
        """When, on the monotonic clock, a send enqueues the next sweep."""

    @managed
    def waiting(self, mailboxes: frozenset[uuid.UUID], wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake``, on any thread, whenever one of the mailboxes may have a message, until the block ends."""
        with self._waiters.waiting(
            CommitWaiter({(PENDING, each) for each in mailboxes}, wake, self._every_ms, is_mirrored=False)
        ):
            with self._lock:
                self._waiting += 1
                if self._unsubscribe is None:
                    self._unsubscribe = self._engine.bus.subscribe(self._heard, remote=True)
            try:
                yield
            finally:
                with self._lock:
                    self._waiting -= 1
                    if not self._waiting and self._unsubscribe is not None:
                        self._unsubscribe()  # without subscribers no event is made for them
                        self._unsubscribe = None

    @property
    def awaited(self) -> bool:
        """True while a receiver waits."""
        return self._waiting > 0

    def notify(self, uow: UnitOfWork, mailboxes: Sequence[uuid.UUID]) -> None:
        """Wake the receivers of mailboxes in every process, after the commit of this transaction."""
        events = [
            self._engine.event(PENDING, subject=(AGENT_MESSAGE.name, mailbox), at_us=uow.now_us)
            for mailbox in dict.fromkeys(mailboxes)
        ]
        uow.logged.extend(events)  # notified, and not written to the log

        def publish() -> None:
            for event in events:
                self._engine.bus.publish(event)

        uow.on_commit.append(publish)

    def _heard(self, event: Event) -> None:
        if event.event_type == EventType.EVENTS_MISSED:
            self._waiters.wake_all()
        elif event.event_type == PENDING and event.subject_id is not None:
            self._waiters.notify((PENDING, event.subject_id))


def wakeups_of(engine: Engine) -> Wakeups:
    """Return the part of an open tenant, made when it is first needed."""
    found = engine.find_part(Wakeups)
    if found is None:
        with _making:
            found = engine.find_part(Wakeups)
            if found is None:
                found = Wakeups(engine)
                engine.add(found)
    return found


class Receiving:
    """The messages to an agent."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._knobs = engine.config.agents.messages

    def claim(
        self, limit: int = 1, *, lease_ms: int | None = None, agent: str | EntityRef | None = None
    ) -> list[AgentMessage]:
        """Claim the messages that are due, most urgent first, for ``lease_ms``; return at most ``limit``, or none.

        No other claim gets them until the lease is over. ``ack`` ends them; a message whose receiver does not
        acknowledge it is delivered again, ``agents.messages.attempts_max`` times, and then kept as a dead letter.

        Raises: InputError kinds; NotRegistered; PermissionDenied.
        """
        most, lease_us = arguments.as_whole(limit, "limit", 1), self._lease_us(lease_ms)
        acting = self._acting(agent)
        receiver = self._receiver(acting)
        ranks = self._ranks(receiver)
        if ranks == (None, None):
            return []

        def work(uow: UnitOfWork) -> list[AgentMessage]:
            found = registered(uow, self._engine.config, acting)
            seen = ranks if found.agent_type == receiver.agent_type else None
            return delivery.claim(uow, self._engine.config, found, most, lease_us, seen)

        return self._engine.write(work)

    def listen(
        self,
        *,
        idle_ms: int | None = None,
        batch: int = 1,
        lease_ms: int | None = None,
        agent: str | EntityRef | None = None,
    ) -> Iterator[AgentMessage]:
        """Yield messages as they arrive, each claimed for ``lease_ms``; end after ``idle_ms`` without one.

        Waiting costs nothing: a commit wakes the receiver. It claims ``batch`` messages at once: their leases begin
        together. Call ``ack`` for each.

        Raises: InputError kinds; NotRegistered; PermissionDenied; Unavailable when the handle is closed.
        """
        idle = None if idle_ms is None else arguments.as_whole(idle_ms, "idle_ms") / 1_000
        most = arguments.as_whole(batch, "batch", 1)
        self._lease_us(lease_ms)
        self._receiver(self._acting(agent))
        return self._listen(idle, most, lease_ms, agent)

    def _listen(
        self, idle_s: float | None, batch: int, lease_ms: int | None, agent: str | EntityRef | None
    ) -> Iterator[AgentMessage]:
        until = None if idle_s is None else time.monotonic() + idle_s
        woken = Flag()
        while True:
            found = self.claim(batch, lease_ms=lease_ms, agent=agent)
            if not found:
                with self._waiting(agent, woken.set):
                    # Only now nothing is missed: a message may have come before.
                    while not (found := self.claim(batch, lease_ms=lease_ms, agent=agent)):
                        if not self._wait(woken, agent, until):
                            return
                        woken.clear()
            yield from found
            until = None if idle_s is None else time.monotonic() + idle_s

    def _wait(self, woken: Flag, agent: str | EntityRef | None, until: float | None) -> bool:
        """Wait until woken, or a lease of another ends; return False once ``until`` has passed."""
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return False
        check("messages were waited for")
        woken.wait(min(each for each in (self._due_s(agent), left, remaining_s()) if each is not None))
        return True

    def _waiting(self, agent: str | EntityRef | None, wake: Callable[[], None]) -> Any:
        """Return a context in which ``wake`` is called, on any thread, when a message for an agent may have come."""
        return self._wakeups.waiting(frozenset(self._boxes(self._receiver(self._acting(agent)))), wake)

    def _due_s(self, agent: str | EntityRef | None) -> float:
        """Return the time until a lease or delay ends, or a look is due in any case."""
        own, of_type = self._boxes(self._receiver(self._acting(agent)))
        now, most = self._engine.clock.now_us(), self._knobs.lease_ms * MS_US
        next_us = self._engine.read(lambda uow: uow.select("message.next", own.bytes, of_type.bytes, now))[0][0]
        return (most if next_us is None else min(next_us - now, most)) / 1_000_000

    def ack(self, messages: AgentMessage | Sequence[AgentMessage], *, agent: str | EntityRef | None = None) -> int:
        """Acknowledge claimed messages: they are never delivered again. Return how many were not acknowledged yet.

        Raises: InputError kinds; MessageDeliveryFailed for a message whose lease is over and that was claimed again;
            PermissionDenied for one that another agent has claimed.
        """
        return self._held(messages, agent, delivery.ack)

    def extend(
        self,
        messages: AgentMessage | Sequence[AgentMessage],
        *,
        lease_ms: int | None = None,
        agent: str | EntityRef | None = None,
    ) -> int:
        """Let the leases of claimed messages begin again, for longer work. Return their number.

        Raises: as ``ack``.
        """
        lease_us = self._lease_us(lease_ms)
        return self._held(messages, agent, lambda uow, own, held: delivery.extend(uow, own, held, lease_us))

    def release(
        self,
        messages: AgentMessage | Sequence[AgentMessage],
        *,
        delay_ms: int = 0,
        agent: str | EntityRef | None = None,
    ) -> int:
        """Give claimed messages back, to be delivered again after ``delay_ms``. Return their number.

        Raises: as ``ack``.
        """
        delay_us = delay_of(delay_ms) * MS_US

        def work(uow: UnitOfWork, agent_id: uuid.UUID, held: Sequence[AgentMessage]) -> list[delivery.Changed]:
            released = delivery.release(uow, agent_id, held, delay_us)
            self._wakeups.notify(uow, [each.mailbox for each in released])
            return released

        return self._held(messages, agent, work)

    def _held(
        self,
        messages: AgentMessage | Sequence[AgentMessage],
        agent: str | EntityRef | None,
        work: Callable[[UnitOfWork, uuid.UUID, Sequence[AgentMessage]], list[delivery.Changed]],
    ) -> int:
        given: Any = [messages] if isinstance(messages, AgentMessage) else messages
        held = [as_message(each) for each in arguments.as_items(given, "messages", "claimed messages")]
        acting = self._acting(agent)

        def in_transaction(uow: UnitOfWork) -> int:
            changed = work(uow, acting.ref.id, held)
            # Of a sender and topic the next one may be due now.
            self._wakeups.notify(uow, [each.mailbox for each in changed if each.in_order])
            return len(changed)

        return self._engine.write(in_transaction) if held else 0

    # --- the agent ---------------------------------------------------------------------------------

    @property
    def _wakeups(self) -> Wakeups:
        return wakeups_of(self._engine)

    def _acting(self, agent: str | EntityRef | None) -> ActingAgent:
        self._engine.check_open()
        return acting_agent(self._engine, self._principal, agent, "exchange messages as")

    def _receiver(self, acting: ActingAgent) -> Agent:
        """Return the agent that receives. Raises: as ``admitted``."""
        return admitted(self._engine, acting)

    def _boxes(self, agent: Agent) -> tuple[uuid.UUID, uuid.UUID]:
        return agent.agent_id, mailbox_of_type(agent.agent_type)

    def _ranks(self, agent: Agent) -> delivery.Ranks:
        """Return the ranks of the most urgent messages to an agent and to its type; None where none is due."""
        own, of_type = self._boxes(agent)
        values = (own.bytes, of_type.bytes, *delivery.ready_at(self._engine.clock.now_us()))
        ranks: delivery.Ranks = self._engine.read(lambda uow: uow.select("message.ready", *values))[0]
        return ranks

    def _lease_us(self, lease_ms: int | None) -> int:
        return arguments.as_duration_ms(self._knobs.lease_ms if lease_ms is None else lease_ms, "lease_ms") * MS_US


PAYLOAD_MAX_BYTES: Final = 262_144
"""Longest payload of a message, as JSON; and longest words of a delegation or handoff together."""
_TYPES: Final[dict[str, MessageType | str]] = {each.value: each for each in MessageType}


def checked(
    engine: Engine,
    principal: Principal,
    payload: Any,
    address: tuple[Any, Any, bool],
    rest: tuple[Any, ...],
    idempotency_key: Any,
    *,
    awaits: bool = False,
) -> Outgoing:
    """Return a message as it can be sent.

    ``rest``: type, topic, priority, expires_in_ms, delay_ms, trajectory, scope, artifacts, reply_to.
    """
    message_type, topic, priority, expires_in_ms, delay_ms, trajectory_id, scope_id, artifact_ids, reply_to = rest
    to, to_type, everyone = address
    if not everyone and (to is None) == (to_type is None):
        raise RequiredFieldMissing("give either to, an agent, or to_type, a type of agents", field="to")
    task = _of_task(engine, principal, TRAJECTORY, trajectory_id, "trajectory_id")
    scope = _of_task(engine, principal, SCOPE, scope_id, "scope_id")
    return Outgoing(
        to=None if to is None else agent_named(engine, to, "to").ref,
        to_type=arguments.as_name(to_type, "to_type"),
        everyone=everyone,
        message_type=message_type_of(message_type),
        topic=arguments.as_name(topic, "topic"),
        priority=arguments.as_enum(priority, MessagePriority, "priority"),
        payload=checked_payload(payload),
        expires_in_ms=None if expires_in_ms is None else arguments.as_duration_ms(expires_in_ms, "expires_in_ms"),
        delay_ms=delay_of(delay_ms),
        trajectory_id=None if task is None else TrajectoryId(task),
        scope_id=None if scope is None else ScopeId(scope),
        artifact_ids=tuple(ArtifactId(each) for each in arguments.as_uuids(artifact_ids, "artifact_ids")),
        reply_to=None if reply_to is None else MessageId(arguments.as_uuid(reply_to, "reply_to")),
        awaits_reply=awaits,
        idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
    )


def _of_task(engine: Engine, principal: Principal, relation: Relation, given: Any, field: str) -> uuid.UUID | None:
    """Return the id of a task or scope that the principal sees. Raises: NotFound."""
    if given is None:
        return None
    key = arguments.as_uuid(given, field)
    if not Searching(engine, principal).sees(relation, key):
        raise NotFound(entity_type=relation.name, id=key)
    return key


def message_type_of(value: Any) -> MessageType | str:
    """Return a type of messages: a member of the enumeration, or another short text."""
    name = arguments.as_text(value, "message_type", limit=arguments.MAX_NAME_CHARS)
    return _TYPES.get(name, name)


def delay_of(value: Any) -> int:
    """Return a delay, which may be 0. Units: ms. Raises: InputError kinds."""
    return arguments.as_duration_ms(value, "delay_ms") if arguments.as_whole(value, "delay_ms") else 0


def checked_payload(payload: Any) -> Any:
    """Return a JSON value as it will be read. Raises: as ``plain_json``; InvalidValue for one too long."""
    plain = plain_json(payload, "payload")
    size = len(dump_json(plain).encode())
    if size > PAYLOAD_MAX_BYTES:
        reason = f"{size} bytes of JSON are more than {PAYLOAD_MAX_BYTES}: store an artifact, and send its id"
        raise InvalidValue(field="payload", reason=reason)
    return plain


def as_message(value: Any) -> AgentMessage:
    """Return a message. Raises: DTypeError."""
    if not isinstance(value, AgentMessage):
        raise DTypeError(field="message", expected="AgentMessage", got=type(value).__name__)
    return value
