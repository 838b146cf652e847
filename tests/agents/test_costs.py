"""Costs of locks and messages in statements and round trips, and what a cheap transaction must still notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend, note
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.agents.mail import delivery
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model import EntityRef, LockToken, Principal
from caliber.model.agents import AgentMessage, MessagePriority
from caliber.schema.relations import AGENT
from caliber.storage.write.unit_of_work import UnitOfWork

pytestmark = pytest.mark.databases("all")

KNOBS: dict[str, Any] = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0, "resident__feed_poll_ms": 0}
STATEMENTS = {"sqlite": 14, "postgres": 8}
"""Of an acquisition and a release: on SQLite with BEGIN, COMMIT and a look for records of others."""
ROUND_TRIPS = 6


def pair(memory: caliber.Caliber) -> None:
    locks = memory.agents.locks
    lock = locks.acquire("file", holder="agent:a")
    assert locks.release(LockToken("file", lock.token), holder="agent:a")


def statements_of(memory: caliber.Caliber, call: Callable[[], Any]) -> int:
    before = inspect(memory).store.statement_count()
    call()
    return inspect(memory).store.statement_count() - before


def test_a_free_lock_takes_few_statements_and_round_trips(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = backend.open(**KNOBS)
    store: Any = inspect(memory).store
    pair(memory)
    pair(memory)
    trips: list[int] = []
    exchange = PgConnection.exchange

    def counting(connection: PgConnection, *commands: Any) -> Any:
        trips.append(1)
        return exchange(connection, *commands)

    monkeypatch.setattr(PgConnection, "exchange", counting)
    assert statements_of(memory, lambda: pair(memory)) <= STATEMENTS[store.adapter]
    assert len(trips) <= ROUND_TRIPS


@needs("sharing")
def test_a_transaction_that_records_no_change_still_reads_those_of_others(backend: Backend) -> None:
    memory, other = backend.open(**KNOBS), backend.open(**KNOBS)
    pair(memory)
    note(other, "of another process")
    pair(memory)
    assert [each.content for each in memory.storage.notes.all()] == ["of another process"]
    assert inspect(memory).engine.memory.sequence == inspect(other).engine.memory.sequence


def test_a_batch_of_messages_takes_few_statements(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    for name in ("ann", "bob"):
        memory.agents.register(name, type="worker")
    send = memory.acting_as(Principal.agent("ann")).agents.messages.send
    messages = memory.acting_as(Principal.agent("bob")).agents.messages
    for number in range(13):
        send(number, to_type="worker")
    assert messages.ack(messages.claim()) == 1
    found: list[Any] = []
    around = 6 if inspect(memory).store.adapter == "sqlite" else 0  # of both transactions
    assert statements_of(memory, lambda: found.extend(messages.claim(10))) <= 3 + around
    assert [each.payload for each in found] == list(range(1, 11))
    assert statements_of(memory, lambda: messages.ack(found)) <= 1 + around
    assert statements_of(memory, lambda: found.extend(messages.claim(10))) <= 3 + around, "no second look"
    assert [each.payload for each in found[10:]] == [11, 12]


def test_a_claim_whose_look_is_out_of_date_looks_again(backend: Backend) -> None:
    """The urgent message that the look found is gone by the time of the claim; the other one is delivered."""
    memory = backend.open(**KNOBS)
    for name in ("ann", "bob"):
        memory.agents.register(name, type="worker")
    send = memory.acting_as(Principal.agent("ann")).agents.messages.send
    messages = memory.acting_as(Principal.agent("bob")).agents.messages
    urgent = send("urgent", to="bob", priority="critical")
    send("other", to_type="worker", priority="low")
    engine = inspect(memory).engine

    def work(uow: UnitOfWork) -> list[AgentMessage]:
        bob = uow.find(AGENT, EntityRef.agent("bob").id.bytes)
        return delivery.claim(uow, engine.config, bob, 1, 1_000_000, (urgent.rank, MessagePriority.LOW.rank))

    assert [each.payload for each in messages.claim()] == ["urgent"]
    assert [each.payload for each in engine.write(work)] == ["other"]
