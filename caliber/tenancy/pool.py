"""Pool of open tenants: the last ones used stay open, and none is closed while it is used.

Its users hold leases, which they make before they ask and give back in any case: an interrupt (Ctrl-C, a time limit)
leaves no tenant in use, half open or half closed. Tenants are closed by threads of their own, so a caller that opens
one does not wait for the end of another.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from caliber.engine.background import STOP_S
from caliber.engine.worker import Worker
from caliber.model.deadline import check, remaining_s
from caliber.model.errors import Conflict, Unavailable
from caliber.model.process.interrupts import managed
from caliber.storage.waiting import Condition, apart

H = TypeVar("H")

CLOSING_MOST: Final = 4
"""Tenants that are closed at once, beside the open ones."""

CLOSINGS_A_TRIM: Final = 64
"""Closings after which freed memory is given back. It lies between blocks of open tenants, some 0.15 MB a closing."""

_pools: weakref.WeakSet[HandlePool[Any]] = weakref.WeakSet()


class _State(Enum):
    CLAIMED = "claimed"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


@dataclass(slots=True)
class _Entry(Generic[H]):
    """A tenant of the pool, with the leases of its users; that of its opener is the first of them."""

    state: _State = _State.CLAIMED
    handle: H | None = None
    users: set[object] = field(default_factory=set)
    retired: bool = False
    """Whether the last user closes it."""
    closer: Worker | None = None


@dataclass(slots=True)
class PoolStats:
    """Counts of a pool: tenants open now and used now, and what happened since it was made."""

    open: int = 0
    in_use: int = 0
    hits: int = 0
    opened: int = 0
    closed: int = 0
    failed_closings: int = 0


class HandlePool(Generic[H]):
    """At most ``max_open`` open handles by name, and ``CLOSING_MOST`` being closed. Safe to share between threads."""

    def __init__(
        self,
        max_open: int,
        *,
        opening: Callable[[str], H],
        closing: Callable[[H], None],
        usable: Callable[[H], bool],
    ) -> None:
        self._max_open = max_open
        self._opening = opening
        self._closing = closing
        self._usable = usable
        self._condition = Condition()
        self._entries: OrderedDict[str, _Entry[H]] = OrderedDict()
        self._closers: set[Worker] = set()
        """The threads that close an entry each."""
        self._refused: tuple[str, str] | None = None
        """Why nothing is opened any more: a message and a reason."""
        self._counts = PoolStats()
        _pools.add(self)

    def take(self, name: str, lease: object, wait_s: float) -> H:
        """Return the handle of a name, which stays open until ``give_back`` of the lease. It is opened when needed.

        Raises: Unavailable (``closed``; ``forked``; ``busy``, retryable, when all places are in use for ``wait_s``),
            and the errors of opening
        """
        try:
            with self._condition:
                entry = self._claim(name, lease, time.monotonic() + wait_s)
                if entry.handle is not None:
                    return entry.handle
            # To its end, even if the caller is interrupted meanwhile: the next one finds it open.
            return apart(lambda: self._open(name, entry))
        except BaseException:
            try:
                self.give_back(name, lease)
            finally:
                self.give_back(name, lease)  # the first one was interrupted, perhaps
            raise

    def _claim(self, name: str, lease: object, until: float) -> _Entry[H]:
        """Return an open entry, or a new one for the caller to open, with the lease among its users."""
        while True:
            self._check()
            entry = self._entries.get(name)
            idle = None
            if entry is not None and entry.state is _State.OPEN:
                if not entry.retired and self._usable(entry.handle):  # type: ignore[arg-type]
                    entry.users.add(lease)
                    self._counts.hits += 1
                    self._entries.move_to_end(name)
                    return entry
                entry.retired = True
                idle = None if entry.users else (name, entry)
            elif entry is None:
                if len(self._entries) - len(self._closers) < self._max_open:
                    entry = self._entries[name] = _Entry(users={lease})
                    return entry
                idle = self._oldest_idle()
            if idle is not None and len(self._closers) < CLOSING_MOST:
                self._leave(*idle)
                continue
            # Nobody uses a tenant that is being closed, or whose opener was interrupted: it is waited for in any case.
            closing = idle is not None or (entry is not None and entry.state is _State.CLOSING)
            abandoned = (each.state is _State.OPENING and not each.users for each in self._entries.values())
            unused = closing or (entry is None and any(abandoned))
            left = until + STOP_S * unused - time.monotonic()
            if (bound := remaining_s()) is not None:
                left = min(left, bound)
            if left <= 0:
                check("other callers used the tenants")
                what = f"all {self._max_open} open tenants are" if entry is None else f"tenant {name} is"
                raise Unavailable(
                    f"{what} busy: try again, or raise max_open and wait_ms", reason="busy", retryable=True
                )
            self._start_closers()
            self._condition.wait(min(left, 0.1) if self._closers else left)

    def _check(self) -> None:
        if self._refused is not None:
            message, reason = self._refused
            raise Unavailable(message, reason=reason, retryable=False)

    def _oldest_idle(self) -> tuple[str, _Entry[H]] | None:
        idle = ((name, entry) for name, entry in self._entries.items() if entry.state is _State.OPEN)
        return next(((name, entry) for name, entry in idle if not entry.users), None)

    def _open(self, name: str, entry: _Entry[H]) -> H:
        with self._condition:
            if self._entries.get(name) is not entry:  # its interrupted opener gave it back before this began
                raise Unavailable("the opening was given up", reason="closed", retryable=True)
            entry.state = _State.OPENING
        try:
            handle = self._opening(name)
        except BaseException:
            self._remove(name, entry)
            raise
        with self._condition:
            if self._entries.get(name) is not entry:
                self._check()  # this is a child, which was forked while its parent opened the tenant
            entry.handle, entry.state = handle, _State.OPEN
            entry.retired = self._refused is not None
            self._entries.move_to_end(name)
            self._counts.opened += 1
            if entry.retired and not entry.users:
                self._leave(name, entry)
            self._condition.notify_all()
        return handle

    def _remove(self, name: str, entry: _Entry[H]) -> None:
        with self._condition:
            if self._entries.get(name) is entry:
                del self._entries[name]
            self._condition.notify_all()

    # --- closing ---------------------------------------------------------------------------------

    def _leave(self, name: str, entry: _Entry[H]) -> Worker:
        """Have an entry closed that no thread can take any more; the caller has the lock."""
        closer = Worker(lambda: self._close(name, entry, closer), "caliber-pool")
        self._closers.add(closer)
        entry.closer = closer
        entry.state = _State.CLOSING
        self._start_closers()
        return closer

    def _start_closers(self) -> None:
        """Start each closer; one that was interrupted before, or refused by the system, is started by who waits."""
        for closer in list(self._closers):
            with suppress(Unavailable):
                closer.start()

    def _close(self, name: str, entry: _Entry[H], closer: Worker) -> None:
        """Close an entry; a failure is counted, since no caller waits for it."""
        with self._condition:  # else its closing was interrupted before it began
            closed = entry.state is _State.CLOSING and entry.closer is closer
        failed = closed
        try:
            if closed and entry.handle is not None:
                self._closing(entry.handle)
            failed = False
        except Exception:  # noqa: S110  (counted; its rows are committed, and queued entries were lost)
            pass
        finally:
            with self._condition:
                self._closers.discard(closer)
                self._counts.closed += closed
                self._counts.failed_closings += failed
                if closed:
                    entry.handle = None  # the entry and its closer hold each other
                    self._remove(name, entry)
                trims = closed and self._counts.closed % CLOSINGS_A_TRIM == 0
        if trims:
            give_back_freed()

    def give_back(self, name: str, lease: object) -> None:
        """End the use of a lease, if there is one; a retired handle is closed by its last user."""
        closer = None
        with self._condition:
            entry = self._entries.get(name)
            if entry is None or lease not in entry.users:
                return
            # The lease last: interrupted, this is done again.
            if entry.state is _State.CLAIMED:  # interrupted before it was opened
                self._remove(name, entry)
            elif entry.state is _State.OPEN and entry.retired and entry.users == {lease}:
                closer = self._leave(name, entry)
            entry.users.discard(lease)
            self._condition.notify_all()
        if closer is not None:
            closer.join(threading.TIMEOUT_MAX)

    @managed
    def excluded(self, name: str) -> Iterator[None]:
        """Keep a name closed for as long as the block runs. Raises: Conflict while it is used."""
        lease = object()
        try:
            with self._condition:
                self._check()
                while (entry := self._entries.get(name)) is not None:
                    if entry.users:
                        raise Conflict(f"tenant {name} is in use", entity_type="tenant", id=name, reason="in use")
                    if entry.state is _State.OPEN and len(self._closers) < CLOSING_MOST:
                        self._leave(name, entry)
                    self._start_closers()
                    self._condition.wait(0.1)
                self._entries[name] = _Entry(users={lease})
            yield
        finally:
            try:
                self.give_back(name, lease)
            finally:
                self.give_back(name, lease)

    def stats(self) -> PoolStats:
        """Return the counts of this moment."""
        with self._condition:
            entries = [entry for entry in self._entries.values() if entry.state is _State.OPEN]
            return replace(self._counts, open=len(entries), in_use=sum(bool(entry.users) for entry in entries))

    def close(self) -> None:
        """Take no more names and close what is idle; handles in use are closed by their last users.

        If interrupted, it continues when it is called again.
        """
        with self._condition:
            if self._refused is None:
                self._refused = ("the pool of tenants is closed", "closed")
            for entry in self._entries.values():
                entry.retired = True
            while (idle := self._oldest_idle()) or self._closers:
                if idle is not None and len(self._closers) < CLOSING_MOST:
                    self._leave(*idle)
                    continue
                self._start_closers()
                self._condition.wait(0.1)

    def forked(self) -> None:
        """Take note that this process is a child of the one that made the pool: the open tenants are its parent's."""
        self._condition = Condition()
        self._entries = OrderedDict()
        self._closers = set()
        self._refused = ("they were opened before fork(); make caliber.Tenants again in this process", "forked")


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's; other C libraries give memory back by themselves."""


def give_back_freed() -> None:
    """Give back every free page, also those between blocks in use, which glibc keeps for good otherwise.

    Other threads that allocate wait for some milliseconds at most: it goes from one arena to the next.
    Source: malloc_trim(3)
    """
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
