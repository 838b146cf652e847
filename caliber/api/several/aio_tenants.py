"""Tenants for programs of an event loop: ``async with caliber.aio.Tenants(config) as tenants``."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from caliber.api.aio_threads import CallThreads
from caliber.api.asynchronous import AsyncCaliber
from caliber.api.tenants import WAIT_MS, PooledCaliber, Tenants
from caliber.config import CaliberConfig
from caliber.dsl.loading import ConfigSource
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import Unavailable
from caliber.model.progress import Progress, Tracer
from caliber.model.tenants import Tenant, tenant_name
from caliber.model.time import Clock
from caliber.tenancy.move import MoveReport
from caliber.tenancy.pool import PoolStats

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

    async def all(self, *, dropped: bool = False) -> list[Tenant]:
        """Return the tenants by name. See ``Tenants.all``."""
        return await asyncio.to_thread(self.sync.all, dropped=dropped)

    async def get(self, name: str) -> Tenant:
        """Return a tenant. See ``Tenants.get``."""
        return await asyncio.to_thread(self.sync.get, name)

    async def config(self, name: str) -> CaliberConfig:
        """Return the configuration of one tenant. See ``Tenants.config``."""
        return await asyncio.to_thread(self.sync.config, name)

    async def create(self, name: str, *, source: str | None = None, exist_ok: bool = False) -> Tenant:
        """Create a tenant with an empty store. See ``Tenants.create``."""
        return await asyncio.to_thread(self.sync.create, name, source=source, exist_ok=exist_ok)

    async def migrate(self, name: str) -> list[int]:
        """Bring a tenant's store up to this version's schema. See ``Tenants.migrate``."""
        return await asyncio.to_thread(self.sync.migrate, name)

    async def move(self, name: str, source: str, *, progress: Progress | None = None) -> MoveReport:
        """Move a tenant to another data source while it is used. See ``Tenants.move``."""
        return await asyncio.to_thread(self.sync.move, name, source, progress=progress)

    async def abort_move(self, name: str) -> Tenant:
        """Give a move up. See ``Tenants.abort_move``."""
        return await asyncio.to_thread(self.sync.abort_move, name)

    async def drop_old(self, name: str) -> Tenant:
        """Remove what a tenant left behind when it moved. See ``Tenants.drop_old``."""
        return await asyncio.to_thread(self.sync.drop_old, name)

    async def drop(self, name: str) -> Tenant:
        """Remove a tenant with all that it remembers. See ``Tenants.drop``."""
        return await asyncio.to_thread(self.sync.drop, name)


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
