"""Waiters of this process for commits: for locks, messages and changed values, of this process or of another one.

A commit of this process wakes those who wait for one of its keys. Another process's commit wakes all, as soon as the
feed of changes notices it: PostgreSQL notifies of it where ``storage.feed_dsn`` is set. Elsewhere one thread looks for
all waiters: on SQLite after a write to the log, where the system reports one, else at their intervals.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from caliber.engine.background import STOP_S
from caliber.engine.engine import Engine
from caliber.engine.worker import Worker
from caliber.model.errors import ConfigError
from caliber.model.joining import refuse_inside
from caliber.model.process.interrupts import let_through, managed
from caliber.storage.protocol import CommitSignal
from caliber.storage.waiting import Flag
from caliber.storage.write.unit_of_work import RowChange

Key = tuple[str, str | uuid.UUID]
"""What is waited for: its kind, and which of that kind."""
CHANGED: Final = "changed"
"""The kind of a relation that a commit changes; which one is its name."""
_AFTER_WRITE: Final = 1 / 8
"""Share of its interval after which a look follows a write to the log."""
_BACKOFF: Final = 4
"""Factor by which each look without news makes the next one later."""
_BACKOFF_MAX: Final = 64
"""Intervals between two looks at most."""
_REST_AFTER_NEWS: Final = 1 / 2
"""Share of its interval that follows a look after a commit: a busy writer costs no look for each commit."""
_making: Final = threading.Lock()


class CommitWaiter:
    """A call that waits; any thread calls ``wake`` when its event may have happened."""

    def __init__(
        self, keys: Collection[Key], wake: Callable[[], None], every_ms: int, *, is_mirrored: bool = True
    ) -> None:
        self.keys = keys
        """A commit of this process that has one of them wakes it."""
        self.wake = wake
        self.every_s = every_ms / 1_000
        """Interval of looks for other processes' commits; 0 never looks."""
        self.is_mirrored = is_mirrored
        """True if memory holds what it waits for, so that the feed of changes names it on every database."""
        self.due_s = 0.0
        """When, on the monotonic clock, it is to look itself, for what no feed names; at first as soon as any does."""


class CommitWaiters:
    """The waiters of an open tenant: a follower of its commits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self.waiters: tuple[CommitWaiter, ...] = ()
        self._pace_s = math.inf
        """The interval at which the thread looks."""
        self._feed_s = engine.config.resident.feed_poll_ms / 1_000
        self.woken = Flag()
        self._has_news = self._is_failing = self._has_written = False
        self.closed = False
        self.thread = Worker(self.run, "caliber-commits")
        self.signal: CommitSignal | None = None
        self.is_notified = engine.config.storage.in_memory or _has_remote_events(engine)
        """True if the database notifies of other processes' commits, or has none, and nobody looks for them."""
        if not self.is_notified:
            self.signal = engine.store.commit_signal()

    def add(self, waiter: CommitWaiter) -> None:
        """Wake a waiter from now on. Raises: Unavailable (``out of threads``); InvalidValue inside a transaction."""
        refuse_inside("a call in it waits for others", self._engine.store)
        with self._lock:
            self.waiters = (*self.waiters, waiter)
            is_sooner = self.interval_s() < self._pace_s
        if is_sooner and not self.is_notified and not self.closed:
            try:
                self.thread.start()
            except BaseException:
                self.remove(waiter)
                raise
            self._rouse()

    def remove(self, waiter: CommitWaiter) -> None:
        """Do not wake a waiter any more."""
        with self._lock:
            self.waiters = tuple(each for each in self.waiters if each is not waiter)

    @managed
    def waiting(self, waiter: CommitWaiter) -> Iterator[None]:
        """Wake a waiter until the block ends. Raises: as ``add``."""
        try:
            self.add(waiter)
            yield
        finally:
            self.remove(waiter)

    def wake_all(self) -> None:
        """Wake every waiter: what it waits for may have happened."""
        self._wake(self.waiters)

    def notify(self, *keys: Key) -> None:
        """Wake the waiters that have one of the keys."""
        self._wake(each for each in self.waiters if any(key in each.keys for key in keys))

    # --- looking for other processes' commits -------------------------------------------------------

    def interval_s(self) -> float:
        """Return the shortest interval of looks that a waiter asks for; infinity for none."""
        # Without a signal the engine looks for what memory holds, every ``resident.feed_poll_ms``.
        least = self._feed_s if self.signal is None and self._feed_s else math.inf
        wanted = (each.every_s for each in self.waiters if each.every_s < least or not each.is_mirrored)
        return min((each for each in wanted if each), default=math.inf)

    def run(self) -> None:
        """Look for commits until the store closes: the body of the thread."""
        try:
            self._look_for_commits()
        finally:
            if self.signal is not None:
                self.signal.close()

    def _look_for_commits(self) -> None:
        step_s = 0.0
        while True:
            self.woken.clear()  # first: whoever closes, or comes, sets it after that
            if self.closed:
                return
            with self._lock:
                every_s = self._pace_s = self.interval_s()
            if every_s == math.inf:
                self.woken.wait()
                step_s = 0.0
                continue
            step_s = min(max(step_s, every_s * _AFTER_WRITE), every_s * _BACKOFF_MAX)
            if self.signal is not None:
                written = self.signal.wait(step_s)
            else:
                written = None if self.woken.wait(every_s) else False
            if written is None:
                continue  # another waiter has come, or the end
            if written:
                step_s = every_s * _AFTER_WRITE
                self.woken.wait(step_s)  # a write to the log begins before its commit can be seen
            else:
                step_s *= _BACKOFF
            is_ours, self._has_written = written and self._has_written, False
            if self.look(time.monotonic()):
                step_s = 0.0
                self.woken.wait(every_s * _REST_AFTER_NEWS)
            elif is_ours:  # our own commits, however many, cause no more looks than another's
                self.woken.wait(every_s * _REST_AFTER_NEWS)

    def look(self, now_s: float) -> bool:
        """Look once; return whether another process had committed."""
        self._has_news = False
        try:
            self._engine.follow_feed()
            self._is_failing = False
        except Exception as error:
            let_through(error)
            if not self._is_failing and not self.closed:  # one report for each outage
                self._engine.record_error("commits", error)
            self._is_failing = True
        # Some look themselves, each at its own interval: no feed names what they wait for.
        for waiter in () if self._engine.store.sees_every_commit else self.waiters:
            if waiter.every_s and not waiter.is_mirrored and now_s >= waiter.due_s:
                waiter.due_s = now_s + waiter.every_s
                self._wake((waiter,))
        return self._has_news

    def _rouse(self) -> None:
        self.woken.set()
        if self.signal is not None:
            self.signal.wake()

    # --- as the engine sees it ----------------------------------------------------------------------

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Wake the waiters for a relation that a commit of ours changed; the write to the log is explained."""
        self._has_written = True
        if self.waiters:
            self.notify(*{(CHANGED, change.relation.name) for change in changes})

    def changed_elsewhere(self) -> None:
        """Wake all: another process has committed."""
        self._has_news = True
        self.wake_all()

    def loaded(self) -> None:
        """Wake all: commits may have been missed."""
        self.wake_all()

    def drain(self) -> None:
        """Do nothing: what is waited for is another's."""

    def close(self) -> None:
        """Wake all: they meet the closed handle."""
        self.closed = True
        self.wake_all()
        self._rouse()
        self.thread.join(STOP_S)
        if self.signal is not None and not self.thread.begun:
            self.signal.close()  # else the thread closes it, when it ends

    def _wake(self, waiters: Iterable[CommitWaiter]) -> None:
        for waiter in waiters:
            try:
                waiter.wake()
            except Exception as error:  # it ends neither the thread nor the write that was committed
                let_through(error)
                self._engine.record_error("commits", error)


def _has_remote_events(engine: Engine) -> bool:
    try:
        engine.store.require_remote_events()
    except ConfigError:
        return False
    return True


def waiters_of(engine: Engine) -> CommitWaiters:
    """Return the waiters of a tenant; the first that waits makes them."""
    found = engine.find_part(CommitWaiters)
    if found is None:
        with _making:
            found = engine.find_part(CommitWaiters)
            if found is None:
                found = CommitWaiters(engine)
                engine.follow(found)  # first: who finds it misses no commit
                engine.add(found)
    return found


def wake_waiters(engine: Engine, *keys: Key) -> None:
    """Wake the waiters of this process, if there are any, that have one of the keys."""
    found = engine.find_part(CommitWaiters)
    if found is not None:
        found.notify(*keys)
