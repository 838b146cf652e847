"""Connection pool of one PostgreSQL store: opens on demand, checks on checkout, replaces dead connections.

``with_lock_retry`` retries table locks with short timeouts, so that other writers never wait long.
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Final, TypeVar

from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model.deadline import earliest
from caliber.model.errors import CaliberError, Conflict, Unavailable
from caliber.model.process.interrupts import managed
from caliber.storage.compile.session import store_closed
from caliber.storage.waiting import Places

DOUBT_S: Final = 1.0
"""After one connection broke, others are tested before use for this long: mostly they break together."""


class BasePool:
    """The state that every pool keeps: how many connections it opened, and until when to distrust them."""

    def __init__(self) -> None:
        self._closed = False
        self._doubted_until = 0.0
        self.made = 0
        self.replaced = 0

    def check_open(self) -> None:
        """Raise Unavailable when the store was closed."""
        if self._closed:
            raise store_closed()

    def _doubt(self) -> None:
        self.replaced += 1
        self._doubted_until = monotonic() + DOUBT_S


class Pool(BasePool):
    """At most ``size`` connections. The thread that needs one opens it, so it gets the error if that fails."""

    def __init__(self, make: Callable[[float | None], PgConnection], *, size: int, timeout_ms: int) -> None:
        super().__init__()
        self._make = make
        self._timeout_s = timeout_ms / 1_000
        self._size = size
        self._places = Places(size)
        self._lock = threading.Lock()
        self.idle: list[PgConnection] = []
        self._dying: list[PgConnection] = []
        """Connections that were idle at the close."""

    @managed
    def connection(self, *, deadline: float | None = None, ask: bool = False) -> Iterator[PgConnection]:
        """Lend a connection, in no transaction; with ``ask`` test it first, for work that is not retried.

        It observes ``deadline``, or the call's if that is earlier. Raises: Unavailable when none is free in time.
        """
        deadline = earliest(deadline)
        patience = self._timeout_s
        if deadline is not None:
            patience = max(0.0, min(patience, deadline - monotonic()))
        holder = object()
        try:
            if not self._places.take(holder, patience):
                raise Unavailable(
                    f"all {self._size} connections are in use; try again, or raise storage.pool_max",
                    reason="out of connections",
                )
            connection = self._take(ask, deadline)
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            try:
                self._places.leave(holder)
            finally:
                if holder in self._places.holders:  # interrupted: in another thread no handler runs
                    start_new_thread(self._places.leave, (holder,))

    @managed
    def extra(self, *, deadline: float | None = None) -> Iterator[PgConnection]:
        """Lend a connection beyond the limit, for a moment: all others may be broken, and held by waiting threads."""
        connection = self._make(deadline)
        try:
            yield connection
        finally:
            connection.close()

    def _take(self, ask: bool, deadline: float | None) -> PgConnection:
        while True:
            self.check_open()
            with self._lock:
                connection = self.idle.pop() if self.idle else None
            if connection is None:
                made = self._make(deadline)
                self.made += 1
                return made
            connection.deadline = deadline
            ask = ask or monotonic() < self._doubted_until
            if not connection.is_dead() and (not ask or connection.answers()):
                return connection
            self._doubt()
            connection.close()
            self._drop_silent(connection)
            if deadline is not None and monotonic() >= deadline:
                raise Unavailable("the deadline passed before the server answered; nothing was asked", reason="timeout")

    def _drop_silent(self, silent: PgConnection) -> None:
        """Close the idle connections if one fell silent: they share its network, and would be silent too."""
        if not silent.silent:
            return
        with self._lock:
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    def _give_back(self, connection: PgConnection) -> None:
        try:
            connection.reset()
        except CaliberError:
            connection.close()  # the server rolls back; the user of the connection has its own error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed and not connection.broken:
                self.idle.append(connection)
                return
            if not self._closed:
                self._doubt()
        connection.close()
        self._drop_silent(connection)

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are returned."""
        with self._lock:
            self._closed = True
            self._dying += self.idle
            self.idle = []
        while self._dying:
            self._dying[-1].close()  # again does no harm: this may be interrupted, and done once more
            self._dying.pop()


T = TypeVar("T")

Transaction = Callable[[int], AbstractContextManager[PgConnection]]
"""Lends a connection in a transaction with the given lock timeout. Units: ms"""

TURN_MS: Final = 200
"""How long one attempt waits for a table lock: later writers queue behind it."""
_PAUSE_S: Final = 0.05
_RACES_MAX: Final = 10


def with_lock_retry(transaction: Transaction, work: Callable[[PgConnection], T], lock_timeout_ms: int) -> T:
    """Run work in its own transaction, and retry while others hold its locks; 0 ms: without limit.

    Raises: Unavailable, reason ``locked``, and whatever ``work`` raises
    """
    until = time.monotonic() + lock_timeout_ms / 1_000 if lock_timeout_ms else float("inf")
    races = 0
    while True:
        try:
            with transaction(TURN_MS) as connection:
                return work(connection)
        except Conflict:  # a deadlock, or a concurrent creation of the same object
            races += 1
            if races > _RACES_MAX or time.monotonic() >= until:
                raise
        except Unavailable as error:
            if error.context.get("reason") != "locked" or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)
