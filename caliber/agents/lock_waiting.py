"""Waiters of this process for locks: each is woken when a lock or request that it waits for has ended.

A commit of this process wakes them itself. Another process's is noticed by the feed of changes, which names the ended
row: PostgreSQL notifies of it where ``storage.feed_dsn`` is set; elsewhere the waiters look, one of them for all, every
``agents.lock_poll_ms``. A lease that runs out is met by a timer.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Final

from caliber.engine.engine import Engine
from caliber.model.errors import ConfigError
from caliber.storage.write.unit_of_work import RowChange

_SHORTEST_S: Final = 0.001
_making = threading.Lock()


class Waiter:
    """A request that waits; ``wake`` is called, by any thread, when it is to be tried again."""

    def __init__(self, resource: str, wake: Callable[[], None]) -> None:
        self.resource = resource
        self.wake = wake
        self.awaited: Collection[uuid.UUID] | None = None
        """The locks and requests whose end wakes it; None for any of the resource."""


class LockWaiters:
    """The waiters of an open tenant: a follower of its commits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: tuple[Waiter, ...] = ()
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._poll_s = engine.config.agents.lock_poll_ms / 1_000
        try:
            engine.store.require_remote_events()
            self.is_notified = True
            """True if the store notifies of other processes' commits."""
        except ConfigError:
            self.is_notified = False

    def add(self, waiter: Waiter) -> None:
        """Wake a waiter from now on."""
        with self._lock:
            self._waiters = (*self._waiters, waiter)

    def remove(self, waiter: Waiter) -> None:
        """Do not wake a waiter any more."""
        with self._lock:
            self._waiters = tuple(each for each in self._waiters if each is not waiter)

    def wake(self, resource: str, ended: uuid.UUID) -> None:
        """Wake the waiters for the end of a lock or request."""
        for waiter in self._waiters:
            if waiter.resource == resource and (waiter.awaited is None or ended in waiter.awaited):
                waiter.wake()

    def pause_s(self, free_in_us: int, place_ms: int) -> float:
        """Return how long a waiter sleeps at most before it tries again: it renews its place, or a lease runs out."""
        return min(max(_SHORTEST_S, free_in_us / 1_000_000), place_ms / 3_000)

    @property
    def step_s(self) -> float:
        """The longest sleep of a waiter before it looks for other processes' commits."""
        return threading.TIMEOUT_MAX if self.is_notified else self._poll_s

    def look(self) -> None:
        """Look for other processes' commits, unless another waiter just did."""
        now_s = time.monotonic()
        if now_s - self._looked_s < 0.9 * self._poll_s:
            return
        self._looked_s = now_s
        self._engine.follow_feed()

    # --- following commits -------------------------------------------------------------------------

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Do nothing: a call that ends a lock wakes those who wait for it."""

    def changed_elsewhere(self) -> None:
        self.loaded()

    def loaded(self) -> None:
        for waiter in self._waiters:
            waiter.wake()

    def drain(self) -> None:
        """Do nothing: what is waited for is another's."""

    def close(self) -> None:
        self.loaded()  # each meets the closed handle


def waiters_of(engine: Engine) -> LockWaiters:
    """Return the waiters of a tenant; the first that waits makes them."""
    found = engine.find_part(LockWaiters)
    if found is None:
        with _making:
            found = engine.find_part(LockWaiters)
            if found is None:
                found = LockWaiters(engine)
                engine.add(found)
                engine.follow(found)
    return found
