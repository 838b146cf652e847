"""Messages between agents: sending, claiming, acknowledging, replies, limits, on each database."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend
from support.inspection import inspect
from support.threads import begin
from support.waits import until

import caliber
from caliber.agents.mail import delivery
from caliber.agents.mail.receiving import checked, wakeups_of
from caliber.model import EntityRef, FixedClock, Principal
from caliber.model.agents import AgentMessage, MessagePriority, MessageState, MessageType
from caliber.model.agents.registry import AgentLifecycle
from caliber.model.errors import (
    DTypeError,
    InvalidValue,
    MailboxFull,
    MessageDeliveryFailed,
    NotFound,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
    Unavailable,
)
from caliber.schema.relations import AGENT, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork

pytestmark = pytest.mark.databases("all")

Opened = Callable[..., caliber.Caliber]
LEASE_MS = 30_000
REST = ("custom", None, "low", None, 0, None, None, (), None)
"""The parts of a plain message, as ``checked`` takes them."""


@pytest.fixture
def open_store(backend: Backend) -> Opened:
    def opened(*agents: str, **knobs: Any) -> caliber.Caliber:
        memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, **knobs)
        for name in agents or ("ann", "bob", "eve"):
            memory.agents.register(name, type="worker" if name != "ann" else "boss")
        return memory

    return opened


def mail(memory: caliber.Caliber, name: str) -> Any:
    return memory.acting_as(Principal.agent(name)).agents.messages


def archive(memory: caliber.Caliber, name: str) -> None:
    """End the life of an agent, as an operator does."""

    def work(uow: Any) -> None:
        agent = uow.find(AGENT, EntityRef.agent(name).id.bytes)
        uow.update(AGENT, dataclasses.replace(agent, lifecycle=AgentLifecycle.ARCHIVED))

    inspect(memory).engine.write(work)


def payloads(messages: list[AgentMessage]) -> list[Any]:
    return [each.payload for each in messages]


def test_many_messages_are_sent_together_or_not_at_all(open_store: Opened) -> None:
    memory = open_store(agents__messages__pending_max=3)
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    sent = ann.send_many([1, {"n": 2}], to="bob", topic="a", priority="high")
    assert payloads(sent) == [1, {"n": 2}]
    assert {(each.topic, each.priority) for each in sent} == {("a", MessagePriority.HIGH)}
    assert ann.send_many([], to="bob") == []
    with pytest.raises(MailboxFull):
        ann.send_many([3, 4], to="bob")
    with pytest.raises(InvalidValue, match="payload"):
        ann.send_many([3, float("inf")], to="bob")
    with pytest.raises(DTypeError):
        ann.send_many(3, to="bob")
    with pytest.raises(MessageDeliveryFailed):
        ann.send_many([3], to="stranger")
    with pytest.raises(RequiredFieldMissing):
        ann.send_many([3])
    ann.send_many([3], to="bob")
    assert payloads(bob.claim(9)) == [1, 3], "of one topic the next waits"
    assert len(mail(memory, "eve").list()) == 0
    assert payloads(ann.send_many(["any", "of them"], to_type="worker")) == ["any", "of them"]


def test_a_message_is_delivered_once_and_acknowledged_once(open_store: Opened) -> None:
    memory = open_store()
    sent = mail(memory, "ann").send({"do": ["this", 1, None]}, to="bob", message_type="task_request", topic="a")
    assert sent.message_type is MessageType.TASK_REQUEST
    assert sent.state(sent.created_at) is MessageState.PENDING
    assert mail(memory, "eve").claim() == []
    (got,) = mail(memory, "bob").claim(10)
    assert (got.message_id, got.payload, got.attempts) == (sent.message_id, {"do": ["this", 1, None]}, 1)
    assert got.delivered_at is not None
    assert mail(memory, "bob").claim(10) == []
    assert mail(memory, "bob").ack(got) == 1
    assert mail(memory, "bob").ack(got) == 0
    kept = mail(memory, "ann").get(sent.message_id)
    assert kept.acknowledged_at is not None
    assert mail(memory, "bob").claim(10) == []


def test_the_first_agent_of_a_type_that_claims_a_message_gets_it(open_store: Opened) -> None:
    memory = open_store()
    ann = mail(memory, "ann")
    ann.send("for one of you", to_type="worker", message_type=MessageType.HANDOFF_NOTE)
    assert payloads(mail(memory, "eve").claim()) == ["for one of you"]
    assert mail(memory, "bob").claim() == []
    assert mail(memory, "ann").claim() == []
    ann.send("for those who come", to_type="reviewer")
    assert ann.list(state="pending")[0].to_agent_type == "reviewer"
    memory.agents.register("late", type="reviewer")
    assert payloads(mail(memory, "late").claim()) == ["for those who come"]


def test_a_broadcast_is_a_message_to_each_other_agent(open_store: Opened) -> None:
    memory = open_store()
    sent = mail(memory, "ann").broadcast("all", idempotency_key="k")
    assert {each.to_agent_id for each in sent} == {EntityRef.agent("bob").id, EntityRef.agent("eve").id}
    assert len({each.broadcast_id for each in sent}) == 1
    assert mail(memory, "ann").broadcast("all", idempotency_key="k") == sent
    for name in ("bob", "eve"):
        (got,) = mail(memory, name).claim(5)
        mail(memory, name).ack(got)
    assert mail(memory, "ann").claim() == []


def test_the_more_urgent_message_is_delivered_first_then_the_older_one(open_store: Opened) -> None:
    memory = open_store()
    ann = mail(memory, "ann")
    for number, priority in enumerate(("low", "normal", "critical", "high", "critical")):
        ann.send(number, **({"to": "bob"} if number % 2 else {"to_type": "worker"}), priority=priority)
    assert payloads(mail(memory, "bob").claim(10)) == [2, 4, 3, 1, 0]
    assert MessagePriority.CRITICAL.rank < MessagePriority.HIGH.rank


def test_a_message_that_nobody_acknowledges_becomes_a_dead_letter(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__messages__attempts_max=2)
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    ann.send("poison", to="bob", topic="t")
    ann.send("after it", to="bob", topic="t")
    for _ in range(2):
        assert payloads(bob.claim(10)) == ["poison"]
        clock.advance(ms=LEASE_MS)
    assert payloads(bob.claim(10)) == ["after it"]
    (dead,) = ann.list(state="dead")
    assert (dead.payload, dead.attempts) == ("poison", 2)
    again = ann.redeliver(dead.message_id)
    assert again.attempts == 0
    assert payloads(bob.claim(10)) == ["poison"]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_an_urgent_message_that_waited_for_a_dead_letter_comes_first(open_store: Opened, limit: int) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__messages__attempts_max=1)
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    ann.send("poison", to_type="worker", topic="t", priority="low")
    ann.send("urgent", to_type="worker", topic="t", priority="critical")
    assert payloads(bob.claim(10)) == ["poison"]
    clock.advance(ms=LEASE_MS)
    ann.send("other", to_type="worker", priority="low")
    assert payloads(bob.claim(limit)) == ["urgent", "other"][:limit]


def test_a_receiver_whose_clock_is_behind_takes_no_live_lease(open_store: Opened) -> None:
    """Its own lease is shorter than the difference; so it is for one that was stopped after it read the clock."""
    clock = FixedClock()
    memory = open_store(clock=clock)
    mail(memory, "ann").send("held", to_type="worker")
    (held,) = mail(memory, "bob").claim()
    engine = inspect(memory).engine

    def claim(uow: UnitOfWork) -> list[AgentMessage]:
        return delivery.claim(uow, engine.config, uow.get(AGENT, EntityRef.agent("eve").id.bytes), 1, 1_000)

    for behind_ms in (2, 3_600_000):
        clock.advance(ms=-behind_ms)
        assert mail(memory, "eve").claim(lease_ms=1) == []
        assert engine.write(claim) == []
    assert mail(memory, "bob").ack(held) == 1


def test_an_effect_and_its_acknowledgement_stand_or_fall_together(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock)
    engine = inspect(memory).engine
    mail(memory, "ann").send("count", to_type="worker")
    (slow,) = mail(memory, "bob").claim()
    clock.advance(ms=LEASE_MS)
    (quick,) = mail(memory, "eve").claim()
    sender = memory.agents.get("eve")

    def effect(message: AgentMessage) -> Callable[[Any], Any]:
        def work(uow: Any) -> None:
            assert message.claimed_by is not None
            assert len(delivery.ack(uow, message.claimed_by, [message])) == 1
            out = checked(engine, Principal.admin(), "done", ("ann", None, False), REST, None)
            delivery.send(uow, engine.config, sender, out)

        return work

    engine.write(effect(quick))
    with pytest.raises(MessageDeliveryFailed):
        engine.write(effect(slow))
    assert payloads(mail(memory, "ann").claim(10)) == ["done"]


def test_a_request_waits_for_its_reply(open_store: Opened) -> None:
    memory = open_store()
    bob = mail(memory, "bob")
    asked = threading.Event()

    def answer() -> None:
        for message in bob.listen(idle_ms=10_000):
            asked.set()
            first = bob.reply(message, {"sum": sum(message.payload)})
            assert (
                bob.reply(message, {"other": 1}).message_id == first.message_id
            )  # the first may be acknowledged by now
            return

    thread = begin(answer)
    reply = mail(memory, "ann").request([1, 2], to="bob", timeout_ms=20_000, idempotency_key="k")
    thread.result()
    assert asked.is_set()
    assert reply.payload == {"sum": 3}
    assert reply.message_type is MessageType.ANSWER
    assert reply.acknowledged_at is not None
    assert mail(memory, "ann").request([1, 2], to="bob", timeout_ms=20_000, idempotency_key="k") == reply
    assert mail(memory, "ann").claim(10) == []


def test_a_request_without_a_reply_in_time_fails_and_is_not_delivered_later(open_store: Opened) -> None:
    memory = open_store()
    with pytest.raises(MessageDeliveryFailed, match="no reply") as refused:
        mail(memory, "ann").request("?", to="bob", timeout_ms=30)
    assert refused.value.retryable
    assert mail(memory, "bob").claim() == []


def test_a_reply_after_the_deadline_is_refused(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock)
    with pytest.raises(MessageDeliveryFailed):
        mail(memory, "ann").request("?", to="bob", timeout_ms=30)
    (got,) = mail(memory, "bob").claim()  # by the store's clock it is due still
    clock.advance(ms=30)
    with pytest.raises(MessageDeliveryFailed, match="deadline"):
        mail(memory, "bob").reply(got, "late")
    assert mail(memory, "bob").ack(got) == 1


def test_a_reply_to_a_plain_message_is_a_message(open_store: Opened) -> None:
    memory = open_store()
    sent = mail(memory, "ann").send("report?", to="bob")
    (got,) = mail(memory, "bob").claim()
    mail(memory, "bob").reply(got, "all well", message_type="task_result")
    (reply,) = mail(memory, "ann").claim()
    assert (reply.payload, reply.reply_to) == ("all well", sent.message_id)
    assert mail(memory, "ann").get(sent.message_id).outcome == "acknowledged"


def test_nobody_is_no_receiver(open_store: Opened) -> None:
    memory = open_store()
    ann = mail(memory, "ann")
    with pytest.raises(MessageDeliveryFailed, match="not registered"):
        ann.send("?", to="stranger")
    archive(memory, "eve")
    with pytest.raises(MessageDeliveryFailed, match="archived"):
        ann.send("?", to="eve")
    for address in ({}, {"to": "bob", "to_type": "worker"}):
        with pytest.raises(RequiredFieldMissing):
            ann.send("?", **address)
    assert ann.list() == []
    archive(memory, "bob")
    assert ann.broadcast("alone") == []


def test_an_agent_may_write_to_itself(open_store: Opened) -> None:
    memory = open_store()
    ann = mail(memory, "ann")
    ann.send("remember", to="ann", delay_ms=0)
    assert payloads(ann.claim()) == ["remember"]


def test_a_receiver_with_too_many_messages_gets_no_more(open_store: Opened) -> None:
    memory = open_store(agents__messages__pending_max=2)
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    first = ann.send(1, to="bob", idempotency_key="k")
    ann.send(2, to="bob")
    with pytest.raises(MailboxFull) as refused:
        ann.send(3, to="bob")
    assert refused.value.retryable
    assert isinstance(refused.value, MessageDeliveryFailed)
    assert ann.send(1, to="bob", idempotency_key="k").message_id == first.message_id
    bob.ack(bob.claim())
    ann.send(3, to="bob")


def test_a_payload_is_limited(open_store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.agents.mail.receiving.PAYLOAD_MAX_BYTES", 100)
    memory = open_store()
    ann = mail(memory, "ann")
    ann.send("x" * 98, to="bob")
    with pytest.raises(InvalidValue, match="more than 100"):
        ann.send("x" * 99, to="bob")
    ann.send({"zero": "\x00", "é": (1, 2)}, to="bob")
    assert payloads(mail(memory, "bob").claim(5))[1] == {"zero": "\x00", "é": [1, 2]}


def test_only_sender_and_receiver_and_admins_see_a_message(open_store: Opened) -> None:
    memory = open_store()
    sent = mail(memory, "ann").send("secret", to="bob")
    for name in ("ann", "bob"):
        assert mail(memory, name).get(sent.message_id).payload == "secret"
        assert len(mail(memory, name).list()) == 1
    assert mail(memory, "eve").list() == []
    with pytest.raises(NotFound):
        mail(memory, "eve").get(sent.message_id)
    with pytest.raises(NotFound):
        mail(memory, "eve").redeliver(sent.message_id)
    assert memory.agents.messages.get(sent.message_id).payload == "secret"
    user = memory.acting_as(Principal.user("maria")).agents.messages
    for call in (
        lambda: user.get(sent.message_id),
        lambda: user.list(),
        lambda: user.send("x", to="bob"),
        lambda: user.claim(),
        lambda: user.listen(),
    ):
        with pytest.raises(PermissionDenied):
            call()
    with pytest.raises(PermissionDenied):
        mail(memory, "ann").claim(agent="bob")
    app = memory.acting_as(Principal.application()).agents.messages
    with pytest.raises(RequiredFieldMissing):
        app.list()
    (got,) = app.claim(agent="bob")
    with pytest.raises(PermissionDenied):
        mail(memory, "eve").ack(got)
    assert app.ack(got, agent="bob") == 1


def test_agents_that_must_be_registered_are(open_store: Opened) -> None:
    memory = open_store(agents__registration="required")
    for call in (
        lambda: mail(memory, "stranger").send("x", to="bob"),
        lambda: mail(memory, "stranger").claim(),
        lambda: mail(memory, "stranger").listen(),
    ):
        with pytest.raises(NotRegistered):
            call()


@pytest.mark.parametrize("lifecycle", ["hibernated", "archived"])
def test_an_agent_that_may_not_act_does_not_receive(open_store: Opened, lifecycle: str) -> None:
    memory = open_store()
    memory.agents.set_lifecycle(lifecycle, "bob")
    for call in (mail(memory, "bob").claim, mail(memory, "bob").listen):
        with pytest.raises(PermissionDenied, match=lifecycle):
            call()


def test_a_message_about_a_task_outlives_it(open_store: Opened) -> None:
    memory = open_store()
    task = memory.start_trajectory("task", initiator=EntityRef.agent("ann"))
    sent = mail(memory, "ann").send("about it", to="bob", trajectory_id=task.trajectory_id)
    assert sent.trajectory_id == task.trajectory_id
    with pytest.raises(NotFound):
        mail(memory, "ann").send("?", to="bob", trajectory_id=uuid.uuid4())
    engine = inspect(memory).engine

    def delete(uow: Any) -> None:
        uow.delete(TRAJECTORY, uow.find(TRAJECTORY, task.trajectory_id.bytes))

    engine.write(delete)
    assert mail(memory, "bob").get(sent.message_id).trajectory_id is None


def test_messages_about_a_task_go_when_its_person_is_forgotten_or_it_is_purged(open_store: Opened) -> None:
    memory = open_store()
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    asked = memory.acting_as(Principal.agent("ann"))
    tasks = [asked.start_trajectory("task", user=user).trajectory_id for user in ("zorblatt", "other", "third")]
    sent = [ann.send(f"about {at}", to="bob", trajectory_id=task) for at, task in enumerate(tasks)]
    assert memory.forget(user="zorblatt").erased["agent_message"] == 1
    assert memory.admin.purge_trajectory(tasks[1]).erased["agent_message"] == 1
    assert payloads(bob.list()) == ["about 2"]
    assert bob.get(sent[2].message_id).trajectory_id == tasks[2]


def test_words_of_a_person_go_from_payloads(open_store: Opened) -> None:
    memory = open_store()
    ann = mail(memory, "ann")
    sent = ann.send({"text": "call maria today"}, to="bob")
    memory.forget(user="maria", texts=["maria"])
    assert "maria" not in str(ann.get(sent.message_id).payload)


def test_ended_messages_are_kept_for_the_retention_only(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, message_retention="1h")
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    ann.send("done", to="bob")
    bob.ack(bob.claim())
    pending = ann.send("pending", to="bob")
    clock.advance(ms=3_600_000)
    memory.admin.maintain()
    assert len(ann.list()) == 2
    clock.advance(ms=1)
    assert memory.admin.maintain()["messages"] == 1
    assert [each.message_id for each in ann.list()] == [pending.message_id]


def test_a_job_sweeps_by_itself(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, message_retention="1h", retention__sweep_every_ms="1h")
    ann, bob = mail(memory, "ann"), mail(memory, "bob")
    ann.send("done", to="bob")
    bob.ack(bob.claim())
    clock.advance(ms=2 * 3_600_000)
    memory.jobs.run_due()
    assert ann.list() == []


def test_a_receiver_that_waits_is_woken_by_a_send(open_store: Opened) -> None:
    memory = open_store()
    got: list[Any] = []

    def receive() -> None:
        for message in mail(memory, "bob").listen(idle_ms=20_000):
            mail(memory, "bob").ack(message)
            got.append(message.payload)
            if len(got) == 3:
                return

    thread = begin(receive)
    for number in range(3):
        mail(memory, "ann").send(number, to="bob", topic="t")
        until(lambda number=number: len(got) > number)
    thread.result()
    assert got == [0, 1, 2]
    assert list(mail(memory, "bob").listen(idle_ms=0)) == []


def test_closing_the_handle_ends_a_wait(open_store: Opened) -> None:
    memory = open_store()
    failed: list[BaseException] = []
    bob = mail(memory, "bob")

    def receive() -> None:
        try:
            list(bob.listen())
        except Unavailable as error:
            failed.append(error)

    thread = begin(receive)
    until(lambda: wakeups_of(inspect(memory).engine).awaited)
    memory.close()
    thread.result()
    assert len(failed) == 1
