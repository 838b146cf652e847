"""Rules of messages: redelivery, idempotency, payloads, full mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend

import caliber
from caliber.model import EntityRef, FixedClock, Principal
from caliber.model.errors import Conflict, DTypeError, InvalidStateTransition, InvalidValue

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
        "payload": {"n": [1]},
        "to": "bob",
        "trajectory_id": task,
        "artifact_ids": artifacts[:1],
        "expires_in_ms": 60_000,
        "idempotency_key": "k",
    }

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
