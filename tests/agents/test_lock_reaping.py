"""Removal of ended locks and expired requests: rows go, and tokens keep rising. Source: C-364 to C-368, K-037."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.databases import note
from support.inspection import inspect

from caliber.agents.locking import lock_queue
from caliber.kernels import uuid7
from caliber.model import FixedClock, LockMode, LockToken
from caliber.model.errors import LockExpired
from caliber.model.references import LockWaiterId

LONG_MS = 60_000


def token_of(lock: Any) -> LockToken:
    return LockToken(lock.resource, lock.token)


def test_reap_removes_leases_and_requests_that_ran_out(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None)
    for holder in "abc":
        memory.agents.locks.acquire("file", holder=holder, mode="shared", lease_ms=1_000)
    clock.advance(ms=1_000)
    assert memory.agents.locks.reap() == 3
    assert memory.agents.locks.list() == []
    assert memory.agents.locks.reap() == 0


def test_tokens_rise_where_the_last_row_of_a_resource_was_removed(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None, retention__apply_every_ms=0)
    locks = memory.agents.locks
    lasting = locks.acquire("lasting", holder="a", lease_ms=2 * LONG_MS)
    before = [locks.acquire(f"file {at}", holder="a", lease_ms=1_000) for at in range(3)]
    released = locks.acquire("released", holder="a", lease_ms=2 * LONG_MS)
    locks.release(token_of(released), holder="a")
    clock.advance(ms=LONG_MS)
    removed = memory.admin.maintain()
    assert removed["locks"] == len([*before, released])
    assert locks.list() == [lasting]
    assert memory.storage.locks.count() == 2, "the lock that lasts, and one row for the tokens of all others"
    clock.advance(ms=-10 * LONG_MS)
    for lock in [*before, released]:
        with pytest.raises(LockExpired):
            note(memory, "late", guard=token_of(lock))
        again = locks.acquire(lock.resource, holder="b", lease_ms=1_000)
        assert again.token > lock.token, "although the clock was put back"
    clock.advance(ms=1_000)
    assert locks.reap() == len([*before, released])
    assert memory.storage.locks.count() == 2


def test_removals_at_the_same_time_as_acquisitions_lose_no_token(backend: Any) -> None:
    locks, rounds = backend.open(embedding_provider=None).agents.locks, 40

    def use(holder: str) -> list[tuple[str, int]]:
        given = []
        for at in range(rounds):
            lock = locks.acquire(f"file {at % 3}", holder=holder, wait_ms=LONG_MS, lease_ms=LONG_MS)
            given.append((lock.resource, lock.token))
            assert locks.release(token_of(lock), holder=holder)
        return given

    def remove() -> int:
        return sum(locks.reap() for _ in range(rounds))

    with ThreadPoolExecutor(6) as pool:
        removals = [pool.submit(remove) for _ in range(2)]
        users = [pool.submit(use, f"h{at}") for at in range(4)]
        removed, given = sum(each.result(120) for each in removals), [each.result(120) for each in users]
    removed += locks.reap()  # those that ended last: beside other work no removal may have met one before
    assert removed > 0
    everything = [one for each in given for one in each]
    assert len(set(everything)) == len(everything), "no token was given twice"
    for each in given:
        for resource in {name for name, _ in each}:
            tokens = [token for name, token in each if name == resource]
            assert tokens == sorted(tokens)


def test_reap_removes_expired_requests(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None, retention__apply_every_ms=0)
    locks, store = memory.agents.locks, inspect(memory).store
    monkeypatch.setattr(lock_queue, "PAGE", 2)
    for at in range(5):
        locks.acquire(f"file {at}", holder="a", lease_ms=LONG_MS)
        request = lock_queue.Request(f"file {at}", "b", LockMode.EXCLUSIVE, LONG_MS, 1_000, LockWaiterId(uuid7()))
        store.write(lambda uow, request=request: lock_queue.attempt(uow, request, lambda *_: None))
    assert locks.reap() == 0
    clock.advance(ms=1_000)
    assert memory.admin.maintain()["locks"] == 5, "in pages"
    assert memory.storage.lock_waiters.count() == 0
    assert len(locks.list()) == 5
