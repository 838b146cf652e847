"""Waiters for commits of other processes: how often one thread looks for all, and what wakes them."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.configs import config
from support.databases import Backend
from support.drawn import needs
from support.inspection import inspect
from support.threads import begin
from support.waits import until

import caliber
from caliber.agents.locking import lock_queue
from caliber.agents.mail.receiving import wakeups_of
from caliber.backends.sqlite.connecting.file_writes import writes_to
from caliber.engine.commit_waiters import CommitWaiter, CommitWaiters, waiters_of, wake_waiters
from caliber.model import LockToken, Principal
from caliber.model.errors import MessageDeliveryFailed, MissingRequired, Unavailable

LONG_MS = 600_000
KNOBS: dict[str, Any] = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0, "resident__feed_poll_ms": 0}


class Signal:
    """Reports of writes as a script has them; after its last one the waiters are closed."""

    def __init__(self, *reports: bool | None) -> None:
        self._reports = iter(reports)
        self.waits: list[float] = []
        self.end: Callable[[], None] = lambda: None

    def wait(self, timeout_s: float) -> bool | None:
        """Return the next report."""
        self.waits.append(timeout_s)
        for report in self._reports:
            return report
        self.end()
        return None

    def wake(self) -> None:
        """Do nothing: the script goes on by itself."""

    def close(self) -> None:
        """Do nothing."""


class Tenant:
    """A tenant whose looks are counted; the store notifies of nothing."""

    def __init__(self, signal: Signal | None, *, feed_poll_ms: int = 0, news: tuple[int, ...] = ()) -> None:
        self.signal = signal
        self.looks = 0
        self.failing = False
        self.errors: list[BaseException] = []
        self.sees_every_commit = True
        self._news = news
        self.in_memory = False
        self.store = self.config = self.resident = self.storage = self
        self.feed_poll_ms = feed_poll_ms
        self.waiters = CommitWaiters(self)  # type: ignore[arg-type]

    def require_remote_events(self) -> None:
        """Refuse, as a store that sends none."""
        raise MissingRequired(field="storage.feed_dsn")

    def commit_signal(self) -> Signal | None:
        """Return the script."""
        return self.signal

    def follow_feed(self) -> None:
        """Count a look."""
        self.looks += 1
        if self.failing:
            raise Unavailable("gone", reason="test")
        if self.looks in self._news:
            self.waiters.changed_elsewhere()

    def record_error(self, where: str, error: BaseException) -> None:
        """Keep an error."""
        self.errors.append(error)


def run(tenant: Tenant, *every_ms: int, resting: list[float] | None = None) -> list[str]:
    """Let the thread's loop run over the script of a tenant, with waiters; return the names of those it woke."""
    woken: list[str] = []
    waiters = tenant.waiters
    waiters.waiters = tuple(
        CommitWaiter((), lambda name=str(each): woken.append(name), each)
        for each in every_ms  # type: ignore[misc]
    )
    rests = [] if resting is None else resting
    waiters.woken.wait = lambda timeout=None: rests.append(timeout) or False  # type: ignore[assignment, method-assign]

    def end() -> None:
        waiters.closed = True

    tenant.signal.end = end
    waiters.run()
    return woken


def test_an_idle_waiter_looks_less_and_less() -> None:
    signal = Signal(*[False] * 7)
    tenant = Tenant(signal)
    assert run(tenant, 16) == []
    assert signal.waits == [0.002, 0.008, 0.032, 0.128, 0.512, 1.024, 1.024, 1.024]
    assert tenant.looks == 7, "one look a wait"


def test_a_write_is_followed_by_looks_until_its_commit_shows() -> None:
    signal, rests = Signal(True, False, False, False), []
    tenant = Tenant(signal, news=(3,))
    assert run(tenant, 16, 800, resting=rests) == ["16", "800"], "all waiters, once"
    assert signal.waits == [0.002, 0.002, 0.008, 0.002, 0.008]
    assert rests == [0.002, 0.008], "before the first look, and after the news"


def test_a_wake_up_that_fails_ends_neither_the_thread_nor_the_write() -> None:
    tenant, woken = Tenant(None), []

    def fail() -> None:
        raise RuntimeError("Event loop is closed")

    tenant.sees_every_commit = False
    waiters = tenant.waiters
    made = (
        CommitWaiter([("kind", "k")], fail, 1, is_mirrored=False),
        CommitWaiter([("kind", "k")], lambda: woken.append(1), 1),
    )
    waiters.waiters = made
    made[0].due_s = 0.0
    waiters.notify(("kind", "k"))
    waiters.changed_elsewhere()
    waiters.look(1.0)
    assert len(woken) == 2
    assert [type(error) for error in tenant.errors] == [RuntimeError] * 3


def test_closing_wakes_the_waiters_before_it_waits_for_the_thread() -> None:
    done: list[str] = []
    signal = Signal()
    waiters = Tenant(signal).waiters
    signal.close = lambda: done.append("signal")  # type: ignore[method-assign]
    waiters.add(CommitWaiter((), lambda: done.append("woken"), 0))
    waiters.thread.join = lambda timeout: done.append("joined")  # type: ignore[method-assign]
    waiters.close()
    assert done == ["woken", "joined", "signal"]
    waiters.run()
    assert done[3:] == ["signal"], "a thread closes the signal when it ends"


def test_a_lock_named_as_a_relation_wakes_no_watch(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    woken: list[int] = []
    with memory.workspace.values.watch("plan") as watch:
        watch.on_wake = lambda: woken.append(1)
        wake_waiters(inspect(memory).engine, *lock_queue.keys("workspace_value", uuid.uuid4()))
        assert woken == []
        memory.workspace.values.set("plan", 1)
        assert len(woken) == 1


def test_a_close_while_the_thread_turns_round_ends_it() -> None:
    waiters = Tenant(None).waiters
    clear = waiters.woken.clear

    def close_just_before() -> None:
        waiters.closed = True
        waiters.woken.set()
        clear()

    waiters.woken.clear = close_just_before  # type: ignore[method-assign]
    waiters.woken.wait = lambda timeout=None: pytest.fail("it sleeps for ever")  # type: ignore[method-assign]
    waiters.run()


def test_a_refused_thread_leaves_no_waiter() -> None:
    waiters = Tenant(None).waiters

    def refuse() -> None:
        raise Unavailable("no", reason="out of threads")

    waiters.thread.start = refuse  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        waiters.add(CommitWaiter((), print, 15))
    assert waiters.waiters == ()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports writes")
def test_without_free_descriptors_writes_are_not_reported_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.touch()

    def refuse() -> None:
        raise OSError(24, "too many open files")

    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", refuse)
        assert writes_to(str(path)) is None
    assert len(list(opened.iterdir())) == before
    writes = writes_to(str(path))
    assert writes is not None
    path.write_text("x")
    assert writes.wait(60)
    writes.close()
    writes.close()
    assert len(list(opened.iterdir())) == before


def test_a_store_in_memory_has_no_thread_and_no_descriptors() -> None:
    memory = caliber.open(config(":memory:", **{**KNOBS, "resident__feed_poll_ms": 5}))
    locks = memory.agents.locks
    lock = locks.acquire("file", holder="a")
    locks.release(LockToken(lock.resource, lock.token), holder="a")
    engine = inspect(memory).engine
    assert engine.find_part(CommitWaiters) is None, "a process that only releases has no waiters"
    with memory.workspace.values.watch("plan") as watch:
        memory.workspace.values.set("plan", 1)
        assert next(watch).value == 1
        waiters = waiters_of(engine)
        assert waiters.signal is None
        assert not waiters.thread.begun
    memory.close()


def test_the_looks_that_our_own_commits_cause_are_rested_after() -> None:
    signal, rests = Signal(True, True, False, True), []
    tenant = Tenant(signal)
    wait, commits = signal.wait, iter((True, True, False, False, False))

    def wait_while_we_commit(timeout_s: float) -> bool | None:
        if next(commits):
            tenant.waiters.committed(())
        return wait(timeout_s)

    signal.wait = wait_while_we_commit  # type: ignore[method-assign]
    run(tenant, 16, resting=rests)
    assert tenant.looks == 4
    assert rests == [0.002, 0.008, 0.002, 0.008, 0.002], "no rest after the write that no commit of ours explains"


def test_another_waiter_causes_no_look() -> None:
    tenant = Tenant(Signal(None, None))
    run(tenant, 16)
    assert tenant.looks == 0


def test_a_failing_store_is_reported_once() -> None:
    tenant = Tenant(Signal(False, False, True))
    tenant.failing = True
    run(tenant, 16)
    assert tenant.looks == 3
    assert len(tenant.errors) == 1


@pytest.mark.parametrize(("signal", "feed_poll_ms", "every_ms", "is_mirrored", "interval_s"), [
    (None, 0, (50, 15), True, 0.015),
    (None, 200, (50, 900), True, 0.05),
    (None, 200, (200,), True, float("inf")),  # the engine itself looks that often
    (None, 200, (200,), False, 0.2),  # but it sees no message there
    (Signal(), 200, (200,), True, 0.2),
    (Signal(), 200, (0,), True, float("inf")),
    (Signal(), 200, (), True, float("inf")),
])  # fmt: skip
def test_the_shortest_interval_counts(
    signal: Signal | None, feed_poll_ms: int, every_ms: tuple[int, ...], is_mirrored: bool, interval_s: float
) -> None:
    waiters = Tenant(signal, feed_poll_ms=feed_poll_ms).waiters
    waiters.waiters = tuple(CommitWaiter((), print, each, is_mirrored=is_mirrored) for each in every_ms)
    assert waiters.interval_s() == interval_s


def test_each_receiver_looks_at_its_own_interval_where_no_feed_names_its_messages() -> None:
    tenant = Tenant(None)
    tenant.sees_every_commit = False
    woken: list[int] = []
    waiters = tenant.waiters
    waiters.thread.start = lambda: None  # type: ignore[method-assign]
    for every_ms, is_mirrored in ((100, False), (400, False), (0, False), (100, True)):
        waiters.add(CommitWaiter((), lambda ms=every_ms: woken.append(ms), every_ms, is_mirrored=is_mirrored))  # type: ignore[misc]
    now_s = time.monotonic()
    for at_ms in range(0, 1_000, 101):
        waiters.look(now_s + at_ms / 1_000)
    assert woken.count(100) == 10
    assert woken.count(400) == 3
    assert woken.count(0) == 0


@needs("sharing")
@pytest.mark.databases("all")
def test_a_receiver_that_waits_runs_no_statements(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.agents.mail.receiving.POLL_MS", LONG_MS)
    memory = backend.open(agents__messages__lease_ms=LONG_MS, **KNOBS)
    memory.agents.register("bob")
    looks: list[int] = []
    engine = inspect(memory).engine
    monkeypatch.setattr(engine, "follow_feed", lambda: looks.append(1))
    counts: list[int] = []
    bob = memory.acting_as(Principal.agent("bob")).agents.messages
    store = inspect(memory).store

    def receive() -> None:
        before = store.statement_count()
        counts.append(-before)
        try:
            list(bob.listen())
        except Unavailable:
            counts.append(store.statement_count() - before)

    thread = begin(receive)
    until(lambda: wakeups_of(engine).awaited)
    memory.close()
    thread.result()
    assert looks == []
    assert counts[-1] <= 16, "two looks at the mailbox, before and after it registered, and none while it slept"


@needs("sharing")
def test_a_watch_is_woken_by_another_process(backend: Backend) -> None:
    knobs = {**KNOBS, "resident__feed_poll_ms": 40 if sys.platform == "linux" else 5}
    one, other = backend.open(**knobs), backend.open(**knobs)
    with ThreadPoolExecutor(1) as pool, other.workspace.values.watch("plan") as watch:
        waiting = pool.submit(next, watch)
        one.workspace.values.set("plan", 0)
        assert waiting.result(60).value == 0
    assert waiters_of(inspect(other).engine).waiters == ()


def test_listen_and_request_wait_in_the_event_loop(backend: Backend) -> None:
    config = backend.config(**KNOBS)

    async def talk() -> list[Any]:
        async with await caliber.aio.open(config, create=True, principal=Principal.admin()) as memory:
            for name in ("ann", "bob"):
                await memory.agents.register(name, type="worker")
            ann, bob = (memory.acting_as(Principal.agent(name)).agents.messages for name in ("ann", "bob"))
            got: list[Any] = []

            async def answer() -> None:
                async for message in bob.listen():
                    got.append(message.payload)
                    await bob.reply(message, f"{message.payload}!")
                    if len(got) == 2:
                        return

            answering = asyncio.create_task(answer())
            got_back = [(await ann.request(word, to="bob", timeout_ms=60_000)).payload for word in ("one", "two")]
            await answering
            assert got == ["one", "two"]
            assert [each async for each in bob.listen(idle_ms=0)] == []
            with pytest.raises(MessageDeliveryFailed):
                await ann.request("nobody listens", to="bob", timeout_ms=1)
            return got_back

    assert asyncio.run(talk()) == ["one!", "two!"]


def test_a_listener_that_is_cancelled_leaves_no_waiter(backend: Backend) -> None:
    config = backend.config(**KNOBS)

    async def listen() -> None:
        async with await caliber.aio.open(config, create=True, principal=Principal.admin()) as memory:
            await memory.agents.register("bob")
            engine = inspect(memory.sync).engine
            bob = memory.acting_as(Principal.agent("bob")).agents.messages
            task = asyncio.create_task(anext(bob.listen()))
            while not waiters_of(engine).waiters:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert waiters_of(engine).waiters == ()

    asyncio.run(listen())
