"""Costs of locks and messages in statements and round trips, and what a cheap transaction must still notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend, note
from support.drawn import needs

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model import LockToken
from caliber.testing import inspect

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
