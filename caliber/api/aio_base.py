"""Asynchronous classes written by hand: they wait in the event loop for locks, messages, events and values.

``aio_proxy`` derives the classes of the API from these and leaves out the names that a class here defines. Calls run
on a bounded pool of threads, so the event loop never waits for a disk or a lock; kernels and SQLite release the
interpreter lock there. At most ``aio.queue`` calls wait for a thread; further calls wait in the loop. A call that is
cancelled before a thread takes it never runs. A call that a thread has taken runs to its end, so no write is left half
done; its result is dropped. Source: O-4, K-206.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from caliber.agents.mail.messages import Messages
from caliber.agents.mail.receiving import Receiving
from caliber.api.aio_proxy import AsyncFace, CallThreads, described, face_of, plain_function, returned_facet
from caliber.api.caliber import Caliber
from caliber.engine.transaction import Transaction, inner
from caliber.events.bus import Subscriber
from caliber.model import arguments
from caliber.model.agents import AgentMessage, Lock, LockMode, LockToken, MessagePriority, MessageType
from caliber.model.deadline import check, earliest
from caliber.model.errors import DTypeError
from caliber.model.events import Event
from caliber.model.joining import JOINED, joined_in
from caliber.model.references import EntityRef, Id
from caliber.trajectory.events import Events

if TYPE_CHECKING:
    from caliber.agents.locks import LockService
    from caliber.model.workspace import WorkspaceValue
    from caliber.workspace.values import Values


T = TypeVar("T")


def in_loop(subscriber: Subscriber, events: Events) -> Subscriber:
    """Return a subscriber that has ``subscriber`` called in the running event loop. Raises: DTypeError."""
    if inspect.iscoroutinefunction(subscriber):
        raise DTypeError(field="subscriber", expected="a plain callable", got="a coroutine function")
    if not callable(subscriber):
        raise DTypeError(field="subscriber", expected="a callable", got=type(subscriber).__name__)
    loop = asyncio.get_running_loop()

    def hand_over(event: Event) -> None:
        loop.call_soon_threadsafe(events._deliver, subscriber, event)

    return hand_over


def aio_of(memory: Caliber) -> Any:
    """Return the asynchronous face of an open handle; those of a store share their threads."""
    engine, settings = memory._engine, memory.config.aio
    calls = engine.find_part(CallThreads)
    if calls is None:
        engine.add(calls := CallThreads(settings.workers, settings.queue))
    return face_of(Caliber)(memory, calls)


class AsyncHandle(AsyncFace, of="Caliber"):
    """The asynchronous handle, as far as it is written by hand."""

    _sync: Caliber

    @property
    def sync(self) -> Caliber:
        """The same handle for synchronous code."""
        return self._sync

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commit the writes of all calls in the block together at its end, or none. See ``Caliber.transaction``."""
        engine, loop = self._sync._engine, asyncio.get_running_loop()
        engine.check_open()
        joined = joined_in(engine.store)
        if joined is not None:
            with inner(joined):
                yield
            return
        async with self._calls.room:  # as one call, however many are in it
            before, executor = JOINED.get(), ThreadPoolExecutor(1, thread_name_prefix="caliber-aio-transaction")
            made = Transaction(engine, executor)
            try:
                await loop.run_in_executor(executor, made.begin)
                JOINED.set(made)
                yield
                JOINED.set(before)
                await loop.run_in_executor(executor, made.commit)
            finally:
                JOINED.set(before)
                await asyncio.shield(loop.run_in_executor(executor, made.leave))
                executor.shutdown(wait=False)

    async def close(self) -> None:
        """Drain the queues and release everything. See ``Caliber.close``."""
        # On a separate thread: the pool may be full of calls that only closing will end.
        await asyncio.to_thread(self._sync.close)
        self._calls.shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncLocking(AsyncFace, of="LockService"):
    """Locks that wait in the event loop."""

    _sync: LockService

    async def acquire(
        self,
        resource: str,
        *,
        holder: str | None = None,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
    ) -> Lock:
        """Take a lock, waiting in the event loop. See ``LockService.acquire``.

        Cancelled while a thread is at it, it may have taken the lock all the same: that ends with its lease, and the
        same holder may ask again.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        acquiring = self._sync._acquiring(resource, holder, lease_ms, mode, wait_ms, _setter(woken))
        try:
            while (lock := await self._run(acquiring.attempt)) is None:
                # A thread that waited here would be missing from the pool when the lock is released.
                await _wait(woken, acquiring.pause_s())
                woken.clear()
            return lock
        finally:
            if acquiring.waits:
                # Not a task, which the end of the loop would cancel before a thread is free.
                await asyncio.shield(loop.run_in_executor(None, acquiring.end))

    @contextlib.asynccontextmanager
    async def hold(
        self,
        resource: str,
        *,
        holder: str | None = None,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
    ) -> AsyncIterator[LockToken]:
        """Hold a lock for the block, and give its token. See ``LockService.hold``."""
        lock = await self.acquire(resource, holder=holder, lease_ms=lease_ms, mode=mode, wait_ms=wait_ms)
        renewing = self._sync._renewing(lock, lease_ms)
        loop = asyncio.get_running_loop()
        try:
            renewing.start()
            yield LockToken(lock.resource, lock.token)
        finally:
            await asyncio.shield(loop.run_in_executor(None, self._sync._let_go, lock, renewing))


class AsyncListening(AsyncFace, of="Receiving"):
    """Receivers of messages that wait in the event loop, not on a thread of the pool."""

    _sync: Receiving

    async def listen(
        self,
        *,
        idle_ms: int | None = None,
        batch: int = 1,
        lease_ms: int | None = None,
        agent: str | EntityRef | None = None,
    ) -> AsyncIterator[AgentMessage]:
        """Yield messages as they arrive, each claimed for ``lease_ms``. See ``Receiving.listen``."""
        idle_s = None if idle_ms is None else arguments.as_whole(idle_ms, "idle_ms") / 1000
        until = None if idle_s is None else time.monotonic() + idle_s
        woken = asyncio.Event()
        while True:
            found: list[AgentMessage] = []
            with await self._run(self._sync._waiting, agent, _setter(woken)):
                while not found:
                    woken.clear()
                    found = await self._run(self._sync.claim, batch, lease_ms=lease_ms, agent=agent)
                    if found:
                        break
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    due = await self._run(self._sync._due_s, agent)
                    await _wait(woken, due if left is None else min(due, left))
            for message in found:
                yield message
            until = None if idle_s is None else time.monotonic() + idle_s


class AsyncRequesting(AsyncFace, of="Messages"):
    """Requests whose senders wait in the event loop."""

    _sync: Messages

    async def request(
        self,
        payload: Any,
        *,
        timeout_ms: int,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        message_type: MessageType | str = MessageType.QUESTION,
        priority: MessagePriority | str = MessagePriority.NORMAL,
        trajectory_id: Id | None = None,
        scope_id: Id | None = None,
        artifact_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        agent: str | EntityRef | None = None,
    ) -> AgentMessage:
        """Send a message and wait in the event loop for its reply; return the reply. See ``Messages.request``."""
        begun = time.monotonic()
        kind, about = (message_type, priority), (trajectory_id, scope_id, artifact_ids)
        sync, woken = self._sync, asyncio.Event()
        sent = await self._run(sync._request, payload, timeout_ms, (to, to_type), kind, about, idempotency_key, agent)
        until = begun + timeout_ms / 1000
        with sync._waiting_for(sent, _setter(woken)):
            while True:
                woken.clear()
                reply = await self._run(sync._take_reply, sent)
                left = until - time.monotonic()
                if reply is not None:
                    return reply
                if left <= 0:
                    raise sync._no_reply(sent)
                await _wait(woken, left)


def _setter(woken: asyncio.Event) -> Callable[[], None]:
    """Return a function that sets an event of the running loop from any thread."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the call with it
            loop.call_soon_threadsafe(woken.set)

    return wake


async def _wait(woken: asyncio.Event, seconds: float | None) -> bool:
    """Wait until woken, ``seconds`` at most; return whether it was. Raises: Unavailable when the deadline passed."""
    until = earliest(None if seconds is None else time.monotonic() + seconds)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(woken.wait(), None if until is None else max(0.0, until - time.monotonic()))
    check("the call waited to be woken")
    return woken.is_set()


class AsyncSubscribing(AsyncFace, of="Events"):
    """Subscriptions whose subscribers run in the event loop."""

    _sync: Events

    def subscribe(
        self, subscriber: Subscriber, *, event_type: str | None = None, remote: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` in the event loop after each commit; it must not wait. See ``Events.subscribe``."""
        return self._sync.subscribe(in_loop(subscriber, self._sync), event_type=event_type, remote=remote)


class AsyncWatching(AsyncFace, of="Values"):
    """Values of the workspace whose watches wait in the event loop."""

    _sync: Values

    async def watch(self, prefix: str = "", *, timeout_ms: int | None = None) -> AsyncIterator[WorkspaceValue]:
        """Yield the changes of values whose keys begin with ``prefix``. See ``Values.watch``."""
        watch = await self._run(self._sync.watch, prefix, timeout_ms=timeout_ms)
        woken = asyncio.Event()
        watch.on_wake = _setter(woken)
        try:
            while not watch.closed:
                woken.clear()
                changes = await self._run(watch.changes)  # the first look finds what came before ``on_wake``
                for each in changes:
                    yield each
                if not changes and not await _wait(woken, None if timeout_ms is None else timeout_ms / 1000):
                    return
        finally:
            watch.close()


async def opened(call: Callable[[], Caliber]) -> Any:
    """Open a store on a thread; return its asynchronous handle. Cancelled, it closes the handle that still comes."""
    made: list[Caliber] = []
    cancelled = False

    def work() -> Caliber:
        made.append(call())
        if cancelled:
            made[0].close()
        return made[0]

    try:
        memory = await asyncio.to_thread(work)
    except asyncio.CancelledError:
        cancelled = True
        if made:  # the thread may have looked too early; closing again changes nothing
            asyncio.get_running_loop().run_in_executor(None, made[0].close)
        raise
    return aio_of(memory)


def as_coroutine(function: FunctionType) -> Any:
    """Return the asynchronous form of a function that opens a store, or does something with one that is not open."""
    plain = plain_function(function)
    if returned_facet(plain) is not None:

        async def run(*args: Any, **options: Any) -> Any:
            return await opened(functools.partial(function, *args, **options))

        return described(run, plain, plain.__name__, "caliber", f"Async{plain.__annotations__['return']}")

    async def call(*args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *args, **options)

    return described(call, plain, plain.__name__, "caliber")
