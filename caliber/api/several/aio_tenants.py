"""Tenants for programs of an event loop: ``async with caliber.aio.Tenants(config) as tenants``."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from caliber.api.aio_proxy import CallThreads, described, plain_function
from caliber.api.asynchronous import AsyncCaliber
from caliber.api.tenants import WAIT_MS, PooledCaliber, Tenants
from caliber.dsl.loading import ConfigSource
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import Unavailable
from caliber.model.progress import Tracer
from caliber.model.tenants import tenant_name
from caliber.model.time import Clock
from caliber.tenancy.pool import PoolStats

P = ParamSpec("P")
T = TypeVar("T")
WAIT_STEP_S: Final = 0.005
"""The wait between two attempts to take a tenant of a full pool."""


class _SharedThreads(CallThreads):
    """The threads of a pool, lent to the handle of one tenant."""

    def __init__(self, lender: CallThreads) -> None:
        self._lender = lender

    async def run(self, call: Callable[[], T]) -> T:
        return await self._lender.run(call)

    def shut(self) -> None:
        """Do nothing: other tenants use them."""


def _threaded(
    method: Callable[Concatenate[Tenants, P], T],
) -> Callable[Concatenate[AsyncTenants, P], Coroutine[Any, Any, T]]:
    """Return a method of tenants as a coroutine that runs on a thread."""

    async def call(self: AsyncTenants, /, *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.sync, *args, **options)

    return described(call, plain_function(method), f"AsyncTenants.{method.__name__}", "Tenants")  # type: ignore[arg-type]


class AsyncTenants:
    """The tenants of a configuration, for one event loop. See ``caliber.Tenants``.

    The calls of all tenants run on ``aio.workers`` threads.
    """

    def __init__(
        self,
        config: ConfigSource,
        *,
        max_open: int = 256,
        clock: Clock | None = None,
        create: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Keep the arguments; ``async with`` opens the directory. Raises there: as ``caliber.Tenants``."""
        options: dict[str, Any] = {"max_open": max_open, "clock": clock, "create": create, "tracer": tracer}
        self._make = functools.partial(Tenants, config, **options)
        self._made: Tenants | None = None
        self._threads: CallThreads | None = None

    async def __aenter__(self) -> Self:
        self._made = await asyncio.to_thread(self._make)
        settings = self._made.aio_settings
        self._threads = CallThreads(settings.workers, settings.queue)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sync(self) -> Tenants:
        """The same tenants for synchronous code. Raises: Unavailable before ``async with``."""
        if self._made is None:
            raise Unavailable("use it in `async with`, which opens it", reason="closed", retryable=False)
        return self._made

    async def close(self) -> None:
        """Release everything. See ``Tenants.close``."""
        await asyncio.to_thread(self.sync.close)
        if self._threads is not None:
            self._threads.shut()

    @asynccontextmanager
    async def open(
        self, name: str, *, create: bool = False, principal: Principal | None = None, wait_ms: int = WAIT_MS
    ) -> AsyncIterator[AsyncCaliber]:
        """Open a tenant for as long as the block runs, waiting in the event loop. See ``Tenants.open``."""
        until = time.monotonic() + arguments.as_whole(wait_ms, "wait_ms") / 1_000
        tenants, tenant, lease = self.sync, tenant_name(name), object()
        take = functools.partial(tenants.take, tenant, lease, create=create, principal=principal)
        give_back = functools.partial(tenants.give_back, tenant, lease)
        while True:
            try:
                memory = await _taken(take, give_back)
                break
            except Unavailable as error:
                # A thread that waited here would be missing when the place is given back.
                left = until - time.monotonic()
                if error.context.get("reason") != "busy" or left <= 0:
                    raise
            await asyncio.sleep(min(WAIT_STEP_S, left))
        assert self._threads is not None
        try:
            yield AsyncCaliber(memory, _SharedThreads(self._threads))
        finally:
            # Not a task, which the end of the loop would cancel before a thread is free.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, give_back))

    def stats(self) -> PoolStats:
        """Return the counts of the pool. See ``Tenants.stats``."""
        return self.sync.stats()

    all = _threaded(Tenants.all)
    get = _threaded(Tenants.get)
    config = _threaded(Tenants.config)
    create = _threaded(Tenants.create)
    migrate = _threaded(Tenants.migrate)
    move = _threaded(Tenants.move)
    abort_move = _threaded(Tenants.abort_move)
    drop_old = _threaded(Tenants.drop_old)
    drop = _threaded(Tenants.drop)


async def _taken(take: Callable[[], PooledCaliber], give_back: Callable[[], None]) -> PooledCaliber:
    """Take a tenant on a thread; cancelled, give back the one that still comes."""
    cancelled = False

    def taking() -> PooledCaliber:
        try:
            return take()
        finally:
            if cancelled:
                give_back()

    loop = asyncio.get_running_loop()
    try:
        return await asyncio.shield(loop.run_in_executor(None, taking))
    except asyncio.CancelledError:
        cancelled = True
        loop.run_in_executor(None, give_back)  # if it was taken just now
        raise
