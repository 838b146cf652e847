"""The sharing of one transaction by many writers of a process.

Threads that arrive while another one commits wait in line; whoever gets the writer next takes all of them into one
transaction, each in its own savepoint, and one commit acknowledges them all. A call returns only when its work is
durable. Source: design, section 4.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from caliber.model.errors import CaliberError, TransactionFailed, Unavailable
from caliber.storage.unit_of_work import UnitOfWork

T = TypeVar("T")


class Request:
    """One piece of work in line, and what became of it."""

    __slots__ = ("done", "error", "result", "unit", "work")

    def __init__(self, work: Callable[[UnitOfWork], Any]) -> None:
        self.work = work
        self.unit: UnitOfWork | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False


class GroupWriter:
    """Lets one thread at a time run a transaction: for itself or, when ``grouped``, for all that wait."""

    def __init__(self, *, grouped: bool, max_batch: int, wait_us: int) -> None:
        self._grouped = grouped
        self._group_max_batch = max_batch
        self._group_wait_s = wait_us / 1e6
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()

    def _transaction(self, batch: list[Request], own: Request, deadline: float | None) -> None:
        """Run a batch in one transaction and mark its requests done; ``own`` is the calling thread's."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raise Unavailable when the store was closed meanwhile."""
        raise NotImplementedError

    def write(self, work: Callable[[UnitOfWork], T], *, deadline_ms: int | None = None) -> T:
        request = Request(work)
        deadline = None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
        if self._grouped:
            self._waiting.append(request)
        patience_s = -1 if deadline_ms is None else min(deadline_ms / 1000, threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=patience_s):
            return self._give_up(request)  # type: ignore[no-any-return]
        try:
            if not request.done:
                self._check_usable()
                batch = self._take_batch(request)
                self._transaction(batch, request, deadline)
        finally:
            self._lock.release()
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[no-any-return]

    def exclusive(self) -> threading.Lock:
        """Return the lock that keeps transactions out while the connection is used for something else."""
        return self._lock

    def _give_up(self, request: Request) -> Any:
        try:
            if self._grouped:
                self._waiting.remove(request)
        except ValueError:
            # Somebody took it into a transaction meanwhile: it is too late to give up, its end decides.
            with self._lock:
                if not request.done:
                    self._waiting.remove(request)  # it went back in line: its leader gave up before it began
            if request.error is not None:
                raise request.error from None
            if request.done:
                return request.result
        raise Unavailable("the deadline passed while other writers were busy; nothing was written", reason="timeout")

    def _take_batch(self, own: Request) -> list[Request]:
        if not self._grouped:
            return [own]
        if self._group_wait_s and len(self._waiting) < self._group_max_batch:
            time.sleep(self._group_wait_s)
        batch: list[Request] = []
        while self._waiting and len(batch) < self._group_max_batch:
            batch.append(self._waiting.popleft())
        if own not in batch:
            self._waiting.remove(own)
            batch.append(own)
        return batch


def copy_for(error: BaseException) -> CaliberError:
    """Return a fresh error for a companion: threads must not share a traceback, nor one's interrupt stop another."""
    if isinstance(error, CaliberError):
        copy = type(error)(error.message, retryable=error.retryable, **error.context)
    else:
        copy = TransactionFailed(reason=type(error).__name__, retryable=True)
    copy.__cause__ = error
    return copy
