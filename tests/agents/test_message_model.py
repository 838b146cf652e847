"""Messages against a model: what is due, in which order it is delivered, and who may end a claim.

Agents send, claim, acknowledge, give back, die with their claims; the clock jumps both ways. Source: C-369 to C-373.
"""

from __future__ import annotations

import datetime
import itertools
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.databases import Backend
from support.evidence import examples

import caliber
from caliber.agents.mail.delivery import PUT_BACK_US
from caliber.model import FixedClock, Principal
from caliber.model.agents import AgentMessage, MessagePriority, MessageState
from caliber.model.errors import InvalidStateTransition, MailboxFull, MessageDeliveryFailed, PermissionDenied

MS = 1_000
ATTEMPTS, PENDING = 2, 6
SENDERS, RECEIVERS = st.sampled_from(["ann", "bob"]), st.sampled_from(["bob", "eve"])
PRIORITIES, TOPICS = st.sampled_from(list(MessagePriority)), st.sampled_from([None, "a", "b"])
DELAYS, LEASES = st.sampled_from([0, 0, 0, 500, 90_000]), st.sampled_from([100, 2_000, 50_000])
LIVES = st.sampled_from([None, None, None, 400, 30_000])
Letter = tuple[str, str | None, str | None, MessagePriority, int, int | None, str | None]
LETTERS: st.SearchStrategy[Letter] = st.tuples(
    SENDERS, st.none() | RECEIVERS, TOPICS, PRIORITIES, DELAYS, LIVES, st.sampled_from([None, None, None, "once"])
)
"""Sender; receiver, None for the type; topic; priority; delay and life in ms; whether it has a key."""
JUMPS = st.sampled_from([-90_000_000, -60_000, -900, 0, 1, 99, 100, 400, 500, 2_000, 60_000])


@dataclass
class Sent:
    """A message of the model; instants are in microseconds."""

    message: AgentMessage
    sender: str
    box: tuple[str, str]
    available: int = 0
    claimed: int | None = None
    claim: Any = None
    claimant: str | None = None
    attempts: int = 0
    outcome: MessageState | None = None

    def expires(self) -> int | None:
        at = self.message.expires_at
        return None if at is None else int((at - EPOCH) / datetime.timedelta(microseconds=1))

    def alive(self, now: int) -> bool:
        expires = self.expires()
        return self.outcome is None and (expires is None or expires > now)

    def state(self, now: int) -> MessageState:
        if self.outcome is not None:
            return self.outcome
        if not self.alive(now):
            return MessageState.EXPIRED
        return MessageState.PENDING if self.claim is None else MessageState.DELIVERED


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class MessageMachine(RuleBasedStateMachine):
    """Every answer of the store is the model's."""

    memory: caliber.Caliber
    clock: FixedClock
    examples = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.example = next(self.examples)
        """Agents and messages of other examples stay in the store."""
        self.sent: dict[Any, Sent] = {}
        self.keys: dict[tuple[str, str], AgentMessage] = {}
        self.claims: list[tuple[str, AgentMessage]] = []
        for name in ("ann", "bob", "eve"):
            self.memory.agents.register(self.name(name), type=self.name("boss" if name == "ann" else "worker"))

    def name(self, name: str) -> str:
        return f"{name} {self.example}"

    def mail(self, agent: str) -> Any:
        return self.memory.acting_as(Principal.agent(self.name(agent))).agents.messages

    # --- the model -------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now_us()

    def is_due(self, one: Sent) -> bool:
        if not one.alive(self.now):
            return False
        if one.available > self.now and (one.claimed is None or one.claimed < self.now + PUT_BACK_US):
            return False
        if one.message.topic is None:
            return True
        for earlier in self.sent.values():
            if earlier is one:
                return True
            same = (earlier.box, earlier.sender, earlier.message.topic) == (one.box, one.sender, one.message.topic)
            if same and earlier.alive(self.now):
                return False
        raise AssertionError("each is in the model")

    def due(self, agent: str) -> list[Sent]:
        boxes = (("to", agent), ("type", "worker"))
        return [one for one in self.sent.values() if one.box in boxes and self.is_due(one)]

    # --- sending ---------------------------------------------------------------------------------

    @initialize(letters=st.lists(LETTERS, min_size=3, max_size=8))
    def begin(self, letters: list[Letter]) -> None:
        for letter in letters:
            self.send(letter)

    @rule(letters=st.lists(LETTERS, min_size=1, max_size=4))
    def send_some(self, letters: list[Letter]) -> None:
        for letter in letters:
            self.send(letter)

    def send(self, letter: Letter) -> None:
        sender, to, topic, priority, delay, lives, key = letter
        address = {"to_type": self.name("worker")} if to is None else {"to": self.name(to)}
        box = ("type", "worker") if to is None else ("to", to)
        how: dict[str, Any] = {"topic": topic, "priority": priority, "expires_in_ms": lives}
        if key is not None:
            key = f"{box} {how}"
            if (sender, key) in self.keys:
                again = self.mail(sender).send(1, delay_ms=delay, idempotency_key=key, **how, **address)
                assert again.message_id == self.keys[sender, key].message_id
                return
        has_room = sum(one.box == box and one.alive(self.now) for one in self.sent.values()) < PENDING
        try:
            message = self.mail(sender).send(1, delay_ms=delay, idempotency_key=key, **how, **address)
        except MailboxFull:
            assert not has_room
            return
        assert has_room
        if key is not None:
            self.keys[sender, key] = message
        one = Sent(message, sender, box)
        if delay:
            one.available, one.claimed = self.now + delay * MS, self.now
        self.sent[message.message_id] = one

    # --- receiving -------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(agent=RECEIVERS, limit=st.integers(1, 4), lease=LEASES)
    def claim(self, agent: str, limit: int, lease: int) -> None:
        claimed = self.mail(agent).claim(limit, lease_ms=lease)
        taken = self.take(agent, limit)
        expected = sorted((one for one in self.sent.values() if one in taken), key=lambda one: one.message.rank)
        assert [each.message_id for each in claimed] == [one.message.message_id for one in expected]
        for message in claimed:
            one = self.sent[message.message_id]
            one.available, one.claimed = self.now + lease * MS, self.now
            one.claim, one.claimant, one.attempts = message.claim_id, agent, one.attempts + 1
            self.claims.append((agent, message))

    def take(self, agent: str, limit: int) -> list[Sent]:
        """Return the messages to deliver, one after the other; end those that died before they would be delivered."""
        taken: list[Sent] = []
        while len(taken) < limit:
            due = [one for one in self.due(agent) if one not in taken]
            if not due:
                break
            best = min(due, key=lambda one: (one.message.rank, one.box[0] != "to"))
            if best.attempts < ATTEMPTS:
                taken.append(best)
            else:
                best.outcome, best.claim, best.claimant = MessageState.DEAD, None, None
        return taken

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), what=st.sampled_from(["ack", "ack", "extend", "release"]), by=st.none() | RECEIVERS)
    def end(self, data: st.DataObject, what: str, by: str | None) -> None:
        claimant, message = data.draw(st.sampled_from(self.claims))
        agent = by or claimant
        one = self.sent[message.message_id]
        holds = one.claim == message.claim_id and one.claimant == agent
        call = getattr(self.mail(agent), what)
        arguments: dict[str, Any] = {"extend": {"lease_ms": 2_000}, "release": {"delay_ms": 500}}.get(what, {})
        try:
            changed = call(message, **arguments)
        except PermissionDenied:
            assert one.claim == message.claim_id
            assert one.claimant != agent
        except MessageDeliveryFailed:
            assert one.outcome is not None or not holds
            assert not (what == "ack" and holds and one.outcome is MessageState.ACKNOWLEDGED)
        else:
            assert holds
            assert changed == (one.outcome is None)
            if one.outcome is None and what == "ack":
                one.outcome = MessageState.ACKNOWLEDGED
            elif one.outcome is None:
                one.claimed = self.now
                one.available = self.now + (2_000 if what == "extend" else 500) * MS
                if what == "release":
                    one.claim = one.claimant = None

    # --- time and operators ----------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.sent.values())))
        may = one.state(self.now) in (MessageState.DEAD, MessageState.DELIVERED)
        try:
            self.memory.agents.messages.redeliver(one.message.message_id)
        except InvalidStateTransition:
            assert not may
        else:
            assert may
            one.available, one.claimed, one.claim, one.claimant, one.attempts = 0, None, None, None, 0
            one.outcome = None

    @rule(ms=JUMPS)
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule()
    def sweep(self) -> None:
        self.memory.admin.maintain()
        for one in self.sent.values():
            if one.outcome is None and not one.alive(self.now) and (one.claim is None or one.available <= self.now):
                one.outcome = MessageState.EXPIRED

    @invariant()
    def every_message_is_in_its_state(self) -> None:
        stored = {each.message_id: each for each in self.memory.agents.messages.list(limit=10_000)}
        now = EPOCH + datetime.timedelta(microseconds=self.now)
        for key, one in self.sent.items():
            assert stored[key].state(now) is one.state(self.now)
            assert stored[key].attempts == one.attempts


def test_messages_are_those_of_the_model(backend: Backend) -> None:
    at = FixedClock()

    class OnDatabase(MessageMachine):
        clock = at
        memory = backend.open(
            clock=at,
            embedding_provider=None,
            policies=[],
            jobs__poll_ms=0,
            agents__messages__attempts_max=ATTEMPTS,
            agents__messages__pending_max=PENDING,
            message_retention="52w",
        )

    run_state_machine_as_test(
        OnDatabase,
        settings=settings(
            max_examples=examples(20, 1_000), stateful_step_count=40, deadline=None, report_multiple_bugs=False
        ),
    )
