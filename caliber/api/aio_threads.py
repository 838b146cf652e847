"""Bounded thread pool that runs the synchronous calls of ``caliber.aio``; handles or tenants share one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from caliber.model.errors import Unavailable

T = TypeVar("T")


class CallThreads:
    """Runs calls on at most ``workers`` threads; at most ``queue`` more wait for one."""

    def __init__(self, workers: int, queue: int) -> None:
        self.executor = ThreadPoolExecutor(workers, thread_name_prefix="caliber-aio")
        self._room = asyncio.Semaphore(workers + queue)
        self._shut = False

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` on a thread and return its result without blocking the loop. Raises: Unavailable when shut."""
        async with self._room:
            if self._shut:  # also where it was shut while this call waited for room
                raise Unavailable("the handle is closed; open the store again", reason="closed", retryable=False)
            # The spans of the caller are in its context.
            run = contextvars.copy_context().run
            return await asyncio.get_running_loop().run_in_executor(self.executor, run, call)

    def shut(self) -> None:
        """Accept no more calls; running and queued calls are finished."""
        self._shut = True
        self.executor.shutdown(wait=False)
