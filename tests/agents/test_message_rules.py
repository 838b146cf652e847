"""Rules of messages: redelivery, idempotency, payloads, full mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend

import caliber
from caliber.model import FixedClock, Principal
from caliber.model.errors import InvalidStateTransition

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
