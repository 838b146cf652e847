"""Waiting for locks: fair order, leases renewed behind, broken locks, and removal of ended ones.

Source: C-364 to C-368, K-037.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from support.databases import note
from support.drawn import needs
from support.inspection import inspect
from support.waits import until

import caliber
from caliber.agents.locking import lock_queue
from caliber.agents.locks import Renewals
from caliber.kernels import uuid7
from caliber.model import FixedClock, LockMode, LockToken, Principal
from caliber.model.errors import LockAcquisitionFailed, LockExpired, PermissionDenied, RequiredFieldMissing, Unavailable
from caliber.model.events import EventFamily, EventType
from caliber.model.references import LockWaiterId

LONG_MS = 60_000
ADMIN = Principal.admin()


@pytest.fixture
def memory(backend: Any) -> caliber.Caliber:
    memory: caliber.Caliber = backend.open(embedding_provider=None)
    return memory


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def token_of(lock: Any) -> LockToken:
    return LockToken(lock.resource, lock.token)


@contextmanager
def counted_rows(entity: type[Any]) -> Iterator[list[int]]:
    """Count the entities of a type that are made."""
    made, begin = [0], entity.__init__

    def counting(self: Any, *given: Any, **named: Any) -> None:
        made[0] += 1
        begin(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entity, "__init__", counting)
        yield made


Ask = Callable[..., Future[Any]]


@pytest.fixture
def ask(memory: caliber.Caliber, pool: ThreadPoolExecutor) -> Ask:
    """Ask for a lock on a thread; return once the request has its place in the queue."""

    def asked(
        resource: str, holder: str, mode: str = "exclusive", wait_ms: int = LONG_MS, by: Any = None
    ) -> Future[Any]:
        locks = (by or memory).agents.locks
        places = len(memory.agents.locks.waiting())
        future = pool.submit(
            lambda: locks.acquire(resource, holder=holder, mode=mode, wait_ms=wait_ms, lease_ms=LONG_MS)
        )
        until(lambda: len(memory.agents.locks.waiting()) > places or future.done())
        return future

    return asked


def test_requests_get_the_lock_in_their_order(memory: caliber.Caliber, ask: Ask) -> None:
    locks = memory.agents.locks
    lock = locks.acquire("file", holder="first")
    asked = [ask("file", f"h{at}") for at in range(5)]
    assert [each.holder for each in locks.waiting()] == [f"h{at}" for at in range(5)]
    for at, future in enumerate(asked):
        assert not any(each.done() for each in asked[at:])
        locks.release(token_of(lock), holder=lock.holder)
        lock = future.result(30)
        assert lock.holder == f"h{at}"
    assert locks.waiting() == []


def test_a_lease_that_runs_out_lets_the_next_one_on(memory: caliber.Caliber, ask: Ask) -> None:
    first = memory.agents.locks.acquire("file", holder="a", lease_ms=150)
    began = time.monotonic()
    assert ask("file", "b").result(30).token == first.token + 1
    assert time.monotonic() - began < 1.5, "it waits for the lease, not for its own next look"


def test_holders_that_wait_for_each_other_wait_until_the_first_time_is_over(memory: caliber.Caliber, ask: Ask) -> None:
    locks = memory.agents.locks
    one, two = (locks.acquire(each, holder=each, lease_ms=LONG_MS) for each in ("one", "two"))
    waiting = ask("two", "one")
    with pytest.raises(LockAcquisitionFailed) as caught:
        locks.acquire("one", holder="two", wait_ms=200)
    assert (caught.value.resource, caught.value.holder, caught.value.retryable) == ("one", "one", True)
    assert [each.holder for each in locks.waiting()] == ["one"], "it left no request behind"
    locks.release(token_of(two), holder="two")
    waiting.result(30)
    locks.release(token_of(one), holder="one")


def test_tokens_of_a_lock_rise_although_its_name_was_erased(memory: caliber.Caliber) -> None:
    before = memory.agents.locks.acquire("file of zorblatt", holder="a", lease_ms=3_600_000)
    memory.forget(user="zorblatt", texts=["zorblatt"])
    assert memory.agents.locks.list() == []
    with pytest.raises(LockExpired):
        memory.workspace.values.set("key", 1, guard=token_of(before))
    after = memory.agents.locks.acquire("file of zorblatt", holder="b")
    assert after.token > before.token
    with pytest.raises(LockExpired):
        memory.workspace.values.set("key", 1, guard=token_of(before))


def test_a_deadline_ends_a_wait_and_leaves_no_request(memory: caliber.Caliber) -> None:
    memory.agents.locks.acquire("file", holder="a")
    for wait_ms in (0, 100):
        with pytest.raises(LockAcquisitionFailed), caliber.deadline(LONG_MS):
            memory.agents.locks.acquire("file", holder="b", wait_ms=wait_ms)
    with pytest.raises(Unavailable, match="deadline"), caliber.deadline(200):
        memory.agents.locks.acquire("file", holder="b", wait_ms=LONG_MS)
    assert memory.agents.locks.waiting() == []


def test_an_agent_need_not_name_itself_and_cannot_be_another(memory: caliber.Caliber) -> None:
    planner, other = (memory.acting_as(Principal.agent(name)).agents.locks for name in ("planner", "other"))
    lock = planner.acquire("file")
    assert lock.holder == "agent:planner"
    with pytest.raises(RequiredFieldMissing, match="holder"):
        memory.agents.locks.acquire("file")
    for call in (other.release, other.renew):
        with pytest.raises(PermissionDenied):
            call(token_of(lock))
        with pytest.raises(PermissionDenied):
            call(token_of(lock), holder="agent:planner")
    before = planner.acquire("another file", lease_ms=LONG_MS)
    renewed = planner.renew(token_of(lock), lease_ms=LONG_MS)
    assert renewed.token == lock.token
    assert renewed.expires_at >= before.expires_at, "the whole lease, from now on"
    assert planner.release(token_of(lock))
    assert not planner.release(token_of(lock)), "twice"
    with pytest.raises(LockExpired):
        planner.renew(token_of(lock))


def test_a_block_holds_a_lock_longer_than_its_lease(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None)
    locks = memory.agents.locks
    with locks.hold("file", holder="a", lease_ms=300) as token:
        first = locks.held("file")[0].expires_at
        for _ in range(3):  # longer than the lease, however busy the machine is
            clock.advance(ms=200)
            before = locks.held("file")[0].version
            # The first may have begun before the clock went on, the second did not.
            until(lambda: locks.held("file")[0].version >= before + 2)  # noqa: B023  (called here)
        assert locks.held("file")[0].expires_at > first
        note(memory, "guarded", guard=token)
        with pytest.raises(LockAcquisitionFailed), locks.hold("file", holder="b"):
            pass
    assert locks.held("file") == []
    with pytest.raises(KeyError), locks.hold("file", holder="b") as token:
        raise KeyError
    assert locks.held("file") == []
    with pytest.raises(LockExpired):
        note(memory, "late", guard=token)


def test_a_block_that_gets_a_lock_it_shares_renews_it_before_its_old_lease_ends(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing: list[Renewals] = []
    monkeypatch.setattr(Renewals, "start", lambda self: renewing.append(self))  # the test takes its turns
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None)
    locks, store = memory.agents.locks, inspect(memory).store
    first = locks.acquire("file", holder="readers", mode="shared", lease_ms=3_000)
    writer = lock_queue.Request("file", "writer", LockMode.EXCLUSIVE, LONG_MS, LONG_MS, LockWaiterId(uuid7()))
    store.write(lambda uow: lock_queue.attempt(uow, writer, lambda *_: None))
    clock.advance(ms=2_700)
    again = locks.acquire("file", holder="readers", mode="shared", lease_ms=LONG_MS)
    assert again == first
    with locks.hold("file", holder="readers", mode="shared", lease_ms=LONG_MS) as token:
        assert token == token_of(first)
        task = renewing[-1]

        def next_ms() -> float:
            return (task.next_s() - time.monotonic()) * 1_000

        assert next_ms() <= 101, "a third of what is left"
        task.turn()
        assert next_ms() > 19_000, "a third of the lease"
    outcome = store.write(lambda uow: lock_queue.attempt(uow, writer, lambda *_: None))
    assert outcome.holder == "writer", "the first block that ends lets the writer on"


def test_an_admin_breaks_locks_and_the_log_names_it(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    admin, agent = memory.acting_as(ADMIN), memory.acting_as(Principal.agent("planner"))
    with agent.agents.locks.hold("file", lease_ms=LONG_MS) as token:
        for other in (agent, memory.acting_as(Principal.application())):
            with pytest.raises(PermissionDenied):
                other.agents.locks.break_lock("file")
        (broken,) = admin.agents.locks.break_lock("file")
        assert broken.token == token.token
        with pytest.raises(LockExpired):
            note(memory, "late", guard=token)
        assert admin.agents.locks.break_lock("file") == []
        lock = admin.agents.locks.acquire("file", holder="agent:other")
    assert admin.agents.locks.held("file") == [lock], "leaving the block does not release another's"
    (event,) = [each for each in admin.storage.events.all() if each.event_type == EventType.LOCK_BREAK]
    assert (event.family, event.principal) == (EventFamily.AUDIT, ADMIN.label)
    assert event.payload == {"resource": "file", "holder": "agent:planner", "token": token.token}


def test_one_that_waits_gets_a_broken_lock(memory: caliber.Caliber, ask: Ask) -> None:
    memory.agents.locks.acquire("file", holder="a", lease_ms=LONG_MS)
    waiting = ask("file", "b")
    memory.acting_as(ADMIN).agents.locks.break_lock("file")
    assert waiting.result(30).holder == "b"


@needs("sharing")
def test_a_release_in_another_handle_wakes_the_next(backend: Any) -> None:
    first, second = backend.open(embedding_provider=None), backend.open(embedding_provider=None)
    lock = first.agents.locks.acquire("file", holder="a", lease_ms=LONG_MS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: second.agents.locks.acquire("file", holder="b", wait_ms=LONG_MS))
        until(first.agents.locks.waiting)
        began = time.monotonic()
        first.agents.locks.release(token_of(lock), holder="a")
        assert waiting.result(30).holder == "b"
    assert time.monotonic() - began < 1.5, "it was woken, before its own next look"


def test_a_look_at_locks_writes_nothing(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, embedding_provider=None, agents__registration="required")
    memory.agents.register("planner")
    planner = memory.acting_as(Principal.agent("planner")).agents.locks
    planner.acquire("file", lease_ms=1_000)
    memory.agents.locks.acquire("other", holder="app", lease_ms=LONG_MS)
    store = inspect(memory).store

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a write transaction")

    monkeypatch.setattr(type(store), "write", refuse)
    clock.advance(ms=40_000)
    for locks, resources in ((memory.agents.locks, ["other"]), (planner, [])):
        assert [each.resource for each in locks.list()] == resources
        assert [each.resource for each in locks.held("other")] == resources
        assert locks.held("file") == [], "its lease ran out"
        assert locks.waiting() == []
    monkeypatch.undo()
    assert memory.storage.locks.count() == 2, "a look deletes no row"


def test_a_closed_handle_ends_those_who_wait(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    memory.agents.locks.acquire("file", holder="a", lease_ms=LONG_MS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: memory.agents.locks.acquire("file", holder="b", wait_ms=LONG_MS))
        until(memory.agents.locks.waiting)
        memory.close()
        with pytest.raises(Unavailable):
            waiting.result(10)


def test_waiting_costs_next_to_nothing(memory: caliber.Caliber, ask: Ask) -> None:
    lock = memory.agents.locks.acquire("file", holder="a", lease_ms=LONG_MS)
    waiting = ask("file", "b")
    began, used = time.monotonic(), time.process_time()
    with pytest.raises(TimeoutError):
        waiting.result(1)
    share = (time.process_time() - used) / (time.monotonic() - began)
    assert share < 0.05, "a tenth of what polling every 5 ms took"
    memory.agents.locks.release(token_of(lock), holder="a")
    waiting.result(30)


def test_the_asynchronous_form_waits_and_renews(backend: Any) -> None:
    config, clock = backend.config(embedding_provider=None), FixedClock()
    backend.create(config)

    async def run() -> None:
        async with await caliber.aio.open(config, clock=clock) as memory:
            locks = memory.agents.locks
            async with locks.hold("file", holder="a", lease_ms=300) as token:
                tasks = [
                    asyncio.create_task(locks.acquire("file", holder=f"h{at}", wait_ms=LONG_MS)) for at in range(3)
                ]
                while len(await locks.waiting()) < 3:
                    await asyncio.sleep(0)
                tasks[1].cancel()
                for _ in range(3):  # longer than the lease, however busy the machine is
                    clock.advance(ms=200)
                    before = (await locks.held("file"))[0].version
                    # The first may have begun before the clock went on, the second did not.
                    while (await locks.held("file"))[0].version < before + 2:
                        await asyncio.sleep(0)
                assert (await locks.held("file"))[0].token == token.token
                assert not any(task.done() for task in (tasks[0], tasks[2]))
                while len(await locks.waiting()) > 2:  # the one that was cancelled leaves
                    await asyncio.sleep(0)
            first, third = sorted([tasks[0], tasks[2]], key=lambda task: task is tasks[2])
            done, _ = await asyncio.wait([first, third], return_when=asyncio.FIRST_COMPLETED)
            lock = done.pop().result()
            await locks.release(token_of(lock), holder=lock.holder)
            await asyncio.gather(first, third)

    asyncio.run(run())


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
