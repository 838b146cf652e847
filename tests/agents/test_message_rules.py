"""Rules of messages: redelivery, idempotency, payloads, full mailboxes, and messages that an agent makes up."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend
from support.threads import begin
from support.waits import until

import caliber
from caliber.model import EntityRef, FixedClock, Principal
from caliber.model.agents import AgentMessage, MessageState
from caliber.model.errors import (
    Conflict,
    DTypeError,
    InvalidStateTransition,
    InvalidValue,
    MessageDeliveryFailed,
    NotFound,
    PermissionDenied,
)
from caliber.model.events import EventType

pytestmark = pytest.mark.databases("all")

Opened = Callable[..., caliber.Caliber]
LEASE_MS = 30_000


@pytest.fixture
def open_store(backend: Backend) -> Opened:
    def opened(**knobs: Any) -> caliber.Caliber:
        memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, **knobs)
        for name in ("ann", "bob", "eve"):
            memory.agents.register(name, type="worker" if name != "ann" else "boss")
        return memory

    return opened


def mail(memory: caliber.Caliber, name: str) -> Any:
    return memory.acting_as(Principal.agent(name)).agents.messages


@pytest.mark.parametrize("name", ["ann", "bob", "eve"])
def test_no_agent_takes_a_claim_away_while_its_lease_runs(open_store: Opened, name: str) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock)
    mail(memory, "ann").send("work", to_type="worker")
    (got,) = mail(memory, "bob").claim()
    clock.advance(ms=LEASE_MS - 1)
    with pytest.raises(InvalidStateTransition, match="wait for the end of its lease"):
        mail(memory, name).redeliver(got.message_id)
    assert mail(memory, "bob").extend(got) == 1
    clock.advance(ms=LEASE_MS)
    assert mail(memory, name).redeliver(got.message_id).attempts == 0
    (again,) = mail(memory, "eve").claim()
    assert memory.acting_as(Principal.admin()).agents.messages.redeliver(again.message_id).claim_id is None


def test_an_idempotency_key_with_other_content_is_a_conflict(open_store: Opened) -> None:
    memory = open_store()
    ann = memory.acting_as(Principal.agent("ann"))
    task = ann.start_trajectory("task").trajectory_id
    scope = ann.current_scope(task).scope_id
    artifacts = [
        ann.create_artifact(scope, artifact_type="fact", content=text, extraction_method="explicit").artifact_id
        for text in ("one", "two")
    ]
    content: dict[str, Any] = {
        "payload": {"n": [1]}, "to": "bob", "trajectory_id": task, "artifact_ids": artifacts[:1],
        "expires_in_ms": 60_000, "idempotency_key": "k",
    }  # fmt: skip

    def send(**other: Any) -> Any:
        fields = content | other
        return ann.agents.messages.send(fields.pop("payload"), **fields)

    sent = send()
    assert send().message_id == send(payload={"n": (1,)}).message_id == sent.message_id
    for other in (
        {"payload": {"n": [True]}},
        {"payload": {"n": [2]}},
        {"to": "eve"},
        {"trajectory_id": None},
        {"scope_id": scope},
        {"artifact_ids": artifacts},
        {"artifact_ids": artifacts[1:]},
        {"expires_in_ms": 60_001},
        {"expires_in_ms": None},
        {"priority": "high"},
        {"topic": "t"},
    ):
        with pytest.raises(Conflict):
            send(**other)
    plain = ann.agents.messages.send(1, to="bob", message_type="question", idempotency_key="k2")
    with pytest.raises(Conflict):
        ann.agents.messages.request(1, to="bob", timeout_ms=1_000, idempotency_key="k2")
    with pytest.raises(Conflict):
        ann.agents.messages.send(True, to="bob", message_type="question", idempotency_key="k2")
    with pytest.raises(Conflict):
        ann.agents.messages.broadcast({"n": [1]}, message_type="custom", idempotency_key="k")
    assert [each.message_id for each in ann.agents.messages.list()] == [plain.message_id, sent.message_id]


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "payload",
    [
        float("inf"),
        {"a": [float("-inf")]},
        float("nan"),
        2**63,
        10**400,
        "\ud800",
        {"\ud800": 1},
        nested(65),
        nested(900),
        {1: 2},
        {"a": {1, 2}},
    ],
    ids=["inf", "minus_inf", "nan", "65_bits", "huge", "surrogate", "surrogate_key", "deep", "deeper", "key", "set"],
)
def test_a_payload_that_no_database_keeps_is_refused(open_store: Opened, payload: Any) -> None:
    ann = mail(open_store(), "ann")
    with pytest.raises((InvalidValue, DTypeError), match="payload"):
        ann.send(payload, to="bob")
    ann.send("work", to="ann")
    (got,) = ann.claim()
    with pytest.raises((InvalidValue, DTypeError), match="payload"):
        ann.reply(got, payload)


def test_a_payload_is_read_as_it_was_returned(open_store: Opened) -> None:
    memory = open_store()
    for payload in (-0.0, [-0.0, 0], 1.0, 1e22, 2**63 - 1, {"\x00": (None, True)}, nested(64)):
        sent = mail(memory, "ann").send(payload, to="bob")
        (got,) = mail(memory, "bob").claim()
        mail(memory, "bob").ack(got)
        assert repr(got.payload) == repr(sent.payload)
    assert repr(mail(memory, "ann").send(-0.0, to="bob").payload) == "0.0"


def test_a_broadcast_leaves_out_full_mailboxes_and_agents_that_are_not_active(open_store: Opened) -> None:
    memory = open_store(agents__messages__pending_max=1)
    memory.agents.register("dan")
    memory.agents.set_lifecycle("hibernated", "dan")
    ann, bob, eve = (mail(memory, name) for name in ("ann", "bob", "eve"))
    ann.send("waiting", to="bob")
    sent = ann.broadcast("all", idempotency_key="k")
    assert [each.to_agent_id for each in sent] == [EntityRef.agent("eve").id]
    assert ann.broadcast("none") == []
    assert [each.payload for each in bob.claim(5)] == ["waiting"]
    # Again it is the broadcast of before, whichever agents have room by now.
    assert [each.message_id for each in ann.broadcast("all", idempotency_key="k")] == [sent[0].message_id]
    eve.ack(eve.claim())
    assert [each.message_id for each in ann.broadcast("all", idempotency_key="k")] == [sent[0].message_id]
    with pytest.raises(Conflict):
        ann.broadcast("other", idempotency_key="k")
    assert [each.to_agent_id for each in ann.broadcast("more")] == [EntityRef.agent("eve").id]


@pytest.fixture
def memory(backend: Backend) -> caliber.Caliber:
    memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0)
    memory.agents.register("ann", type="boss")
    for name in ("bob", "eve"):
        memory.agents.register(name, type="worker")
    return memory


def refused(call: Callable[..., Any], message: AgentMessage, *rest: Any) -> None:
    with pytest.raises((PermissionDenied, MessageDeliveryFailed)):
        call(message, *rest)


def test_only_the_claimant_reads_the_id_of_its_claim(memory: caliber.Caliber) -> None:
    sent = mail(memory, "ann").send("work", to_type="worker", idempotency_key="k")
    (got,) = mail(memory, "bob").claim()
    assert got.claim_id is not None
    assert mail(memory, "bob").get(sent.message_id).claim_id == got.claim_id
    assert mail(memory, "bob").list()[0].claim_id == got.claim_id
    admin = memory.acting_as(Principal.admin()).agents.messages
    for seen in (
        mail(memory, "ann").get(sent.message_id),
        mail(memory, "eve").get(sent.message_id),
        *mail(memory, "eve").list(),
        *admin.list(),
        mail(memory, "ann").send("work", to_type="worker", idempotency_key="k"),
    ):
        assert (seen.claim_id, seen.claimed_by) == (None, EntityRef.agent("bob").id)
        assert seen.state(seen.created_at) is MessageState.DELIVERED


@pytest.mark.parametrize("name", ["ann", "eve"])
@pytest.mark.parametrize("claimant", [None, "ann", "eve"])
def test_no_other_agent_ends_a_claim(memory: caliber.Caliber, name: str, claimant: str | None) -> None:
    sent = mail(memory, "ann").send("work", to_type="worker", topic="t")
    (got,) = mail(memory, "bob").claim()
    other = mail(memory, name)
    forged_by = None if claimant is None else EntityRef.agent(claimant).id
    for claim_id in (got.claim_id, None, uuid.uuid4()):
        forged = dataclasses.replace(got, claimed_by=forged_by, claim_id=claim_id)
        for call in (other.ack, other.release, other.extend):
            refused(call, forged)
        refused(other.reply, forged, "mine")
    assert mail(memory, "eve").claim() == []
    assert mail(memory, "ann").list(state="delivered")[0].message_id == sent.message_id
    assert mail(memory, "bob").ack(got) == 1
    with pytest.raises(PermissionDenied):
        other.ack(dataclasses.replace(got, claimed_by=forged_by))


def test_a_claim_is_the_rows_whatever_the_message_holds(memory: caliber.Caliber) -> None:
    mail(memory, "ann").send("work", to="bob")
    (got,) = mail(memory, "bob").claim()
    assert mail(memory, "bob").ack(dataclasses.replace(got, claimed_by=None, mailbox=uuid.uuid4(), topic="x")) == 1


def test_a_reply_goes_by_the_stored_message(memory: caliber.Caliber) -> None:
    bob = memory.acting_as(Principal.agent("bob"))
    hidden = memory.acting_as(Principal.agent("ann")).start_trajectory("hidden", user="ana")
    sent = mail(memory, "eve").send("hello", to="bob", topic="t", priority="low", idempotency_key="k")
    (got,) = bob.agents.messages.claim()
    forged = dataclasses.replace(
        got,
        from_agent_id=EntityRef.agent("ann").id,
        trajectory_id=hidden.trajectory_id,
        awaits_reply=True,
        expires_at=got.created_at,
        rank=0,
    )
    reply = bob.agents.messages.reply(forged, "well")
    assert mail(memory, "ann").list() == []
    assert (reply.to_agent_id, reply.trajectory_id, reply.rank) == (EntityRef.agent("eve").id, None, sent.rank)
    assert all(event.event_type != EventType.MESSAGE_SEND for event in memory.trace(hidden.trajectory_id))
    assert [each.payload for each in mail(memory, "eve").claim()] == ["well"]


def test_a_request_takes_only_the_reply_of_the_agent_that_claimed_it(memory: caliber.Caliber) -> None:
    replies: list[AgentMessage] = []
    asking = mail(memory, "ann")

    def ask() -> None:
        replies.append(asking.request("?", to_type="worker", timeout_ms=60_000))

    thread = begin(ask)
    until(lambda: bool(asking.list()))
    (request,) = asking.list()
    # It sees the request, as an agent of the type, and did not claim it.
    mail(memory, "eve").send("forged", to="ann", reply_to=request.message_id)
    (got,) = mail(memory, "bob").claim()
    mail(memory, "bob").send("early", to="ann", reply_to=got.message_id)
    mail(memory, "bob").reply(got, "true")
    thread.result()
    assert [each.payload for each in replies] == ["true"]
    assert [each.payload for each in asking.claim(5)] == ["forged", "early"]


def test_a_message_refers_only_to_one_that_its_sender_received(memory: caliber.Caliber) -> None:
    to_bob = mail(memory, "ann").send("for bob", to="bob").message_id
    to_workers = mail(memory, "ann").send("for workers", to_type="worker").message_id
    for name, key in (("eve", to_bob), ("ann", to_bob), ("ann", to_workers), ("bob", uuid.uuid4())):
        with pytest.raises(NotFound):
            mail(memory, name).send("?", to="ann", reply_to=key)
    assert mail(memory, "ann").claim(5) == []
    for name, key in (("bob", to_bob), ("eve", to_workers)):
        assert mail(memory, name).send("!", to="ann", reply_to=key).reply_to == key
    memory.agents.register("bob", type="lead")
    mail(memory, "bob").send("!", to="ann", reply_to=to_bob)
