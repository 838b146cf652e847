"""``Caliber.agents`` for asyncio: the same calls with ``async``. Source: C-364 to C-368, O-4, K-206."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from caliber.engine.leases import WAIT_STEP_S, LockService
from caliber.model import arguments
from caliber.model.agents import Lock, LockMode, LockToken
from caliber.model.errors import LockAcquisitionFailed


class AsyncLocks:
    """``LockService`` with ``async`` methods; each means what its namesake there means."""

    def __init__(self, locks: LockService, run: Callable[..., Awaitable[Any]]) -> None:
        self._locks = locks
        self._run = run

    async def acquire(
        self,
        resource: str,
        *,
        holder: str,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
    ) -> Lock:
        """See ``LockService.acquire``; it waits in the event loop, and takes a thread only to look.

        Cancelled while a thread is at it, it may have taken the lock all the same: that ends with its lease, and the
        same holder may ask again.
        """
        until = time.monotonic() + arguments.as_whole(wait_ms, "wait_ms") / 1000
        while True:
            try:
                lock: Lock = await self._run(
                    self._locks.acquire, resource, holder=holder, lease_ms=lease_ms, mode=mode, wait_ms=0
                )
                return lock
            except LockAcquisitionFailed:
                # A thread that waited would be missing where the lock is to be given back.
                left = until - time.monotonic()
                if left <= 0:
                    raise
            await asyncio.sleep(min(WAIT_STEP_S, left))

    async def renew(self, token: LockToken, *, holder: str, lease_ms: int | None = None) -> Lock:
        """See ``LockService.renew``."""
        lock: Lock = await self._run(self._locks.renew, token, holder=holder, lease_ms=lease_ms)
        return lock

    async def release(self, token: LockToken, *, holder: str) -> bool:
        """See ``LockService.release``."""
        return bool(await self._run(self._locks.release, token, holder=holder))

    async def held(self, resource: str) -> list[Lock]:
        """See ``LockService.held``."""
        locks: list[Lock] = await self._run(self._locks.held, resource)
        return locks

    async def reap(self) -> int:
        """See ``LockService.reap``."""
        return int(await self._run(self._locks.reap))
