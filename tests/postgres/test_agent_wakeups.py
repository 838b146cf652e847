"""Receivers and requests for locks that wait on PostgreSQL: woken by NOTIFY, and without it by a look now and then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.databases import PostgresBackend
from support.inspection import inspect
from support.waits import until

import caliber
from caliber.agents.mail.receiving import wakeups_of
from caliber.model import LockToken, Principal

FEED = "CALIBER_TEST_FEED_DSN"
LONG_MS, SOON_S = 600_000, 60
"""No lease, place or interval of a look ends within the time that a waiter has to be woken in."""
KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "policies": [],
    "jobs__poll_ms": 0,
    "resident__feed_poll_ms": LONG_MS,
    "agents__messages__lease_ms": LONG_MS,
    "agents__heartbeat_timeout_ms": 10 * LONG_MS,
}


@pytest.fixture
def pg(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    monkeypatch.setenv(FEED, postgres)
    for name in ("mail.receiving.POLL_MS", "locks.PLACE_MS", "locks.POLL_MS"):
        monkeypatch.setattr(f"caliber.agents.{name}", LONG_MS)
    yield made
    made.close()


def two(pg: PostgresBackend, **overrides: Any) -> list[caliber.Caliber]:
    """Open two handles, which know of each other's commits as two processes do."""
    return [pg.open(pg.config(**{**KNOBS, **overrides})) for _ in range(2)]


def get_lock_of_the_other(one: caliber.Caliber, other: caliber.Caliber) -> str:
    lock = one.agents.locks.acquire("file", holder="a", lease_ms=LONG_MS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: other.agents.locks.acquire("file", holder="b", wait_ms=LONG_MS))
        try:
            until(one.agents.locks.waiting)
            one.agents.locks.release(LockToken("file", lock.token), holder="a")
            return waiting.result(SOON_S).holder
        finally:
            other.close()


def test_a_receiver_is_woken_by_a_message_of_another_process(pg: PostgresBackend) -> None:
    one, other = two(pg, storage__feed_dsn=f"env:{FEED}")
    for name in ("ann", "bob"):
        one.agents.register(name)
    messages = other.acting_as(Principal.agent("bob")).agents.messages
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: next(messages.listen()))
        try:
            until(lambda: wakeups_of(inspect(other).engine).awaited)
            one.acting_as(Principal.agent("ann")).agents.messages.send("at once", to="bob")
            assert waiting.result(SOON_S).payload == "at once"
        finally:
            other.close()


def test_a_request_for_a_lock_is_woken_by_a_release_of_another_process(pg: PostgresBackend) -> None:
    assert get_lock_of_the_other(*two(pg, storage__feed_dsn=f"env:{FEED}")) == "b"


def test_without_listen_a_request_for_a_lock_looks_now_and_then(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a direct connection nothing is notified, as behind a pool that lends connections by transaction."""
    monkeypatch.setattr("caliber.agents.locks.POLL_MS", 50)
    assert get_lock_of_the_other(*two(pg)) == "b"
