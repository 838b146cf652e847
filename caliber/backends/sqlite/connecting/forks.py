"""Fork safety of SQLite: makes ``os.fork`` wait for running calls, and gives the child fresh connections.

SQLite keeps its knowledge of an open file once per process: the locks and the map of the log's index. A forked child
inherits that knowledge but none of its parent's locks: files that it believes locked stay locked for ever, and files
that it believes to hold locks on are not protected. Its mutexes are inherited in their state of that moment.

So a fork waits until no thread is inside SQLite. In the child the parent's connections are never touched again, not
even closed, since closing a file releases all locks of the process on it. SQLite sees the files under other identities
there, finds no knowledge about them, and starts afresh, as in any other process. Nothing changes in the parent.

A fork waits for the end of a call, not of a transaction, and no longer than ``fork_wait_ms``; a child that was
forked nevertheless refuses to open SQLite. Source: docs/decisions/0199.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import apsw

from caliber.kernels import dispatch
from caliber.model.errors import CaliberError, Unavailable
from caliber.model.process.files import HeldFiles
from caliber.model.process.interrupts import managed
from caliber.storage.waiting import Flag

_UNQUIET: Final = (
    "this process was forked while another thread was at work in SQLite, and waiting for it took too long: open the"
    " store in a process that is spawned"
)


def _forked() -> Unavailable:
    return Unavailable(
        "the connection was opened before fork(); open the store again in this process",
        reason="forked",
        retryable=False,
    )


class Inherited:
    """Replacement, in a forked child, for a connection of the parent."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _forked()

    def get_autocommit(self) -> bool:
        """Return True: this process is in no transaction, whatever its parent is doing."""
        return True

    def close(self, force: bool = False) -> None:
        """Leave it to the parent."""


class Calls:
    """Something that calls SQLite, a call at a time, and each within ``turn()``."""

    __slots__ = ("__weakref__", "fork_wait_ms", "lock")

    def __init__(self, fork_wait_ms: int) -> None:
        self.fork_wait_ms = fork_wait_ms
        self.lock = threading.RLock()
        """A thread that forks within its own call waits for the others only."""
        forks.add(self)

    def turn(self) -> threading.RLock:
        """Return the lock to hold during a call, after a fork that waits."""
        if forks.coming:
            forks.pass_by()
        return self.lock

    def forked(self) -> None:
        """Take note that this process is a child of the one that made this."""

    @managed
    def connected(self, path: Path, flags: int) -> Iterator[apsw.Connection]:
        """Lend a plain connection, to be used within turns. Raises: apsw.Error."""
        held = HeldFiles(str(path))
        try:
            with self.turn():
                raw = apsw.Connection(str(path), flags=flags)
            try:
                yield raw
            finally:
                with self.turn():
                    raw.close()
        finally:
            held.release()


class Forks:
    """Keeps calls of SQLite and forks of this process apart."""

    def __init__(self) -> None:
        self.coming = False
        """Whether a fork waits or is under way."""
        self._pid = os.getpid()
        self._refusal: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._one = threading.RLock()
        self._adding = threading.RLock()
        self._over = Flag()
        self._forker: int | None = None
        self._depth = 0
        self._held: list[Any] = []
        self._quiet = False
        self._all: weakref.WeakSet[Calls] = weakref.WeakSet()

    def add(self, calls: Calls) -> None:
        """Have forks wait for these calls."""
        self.check()
        with self._adding:
            self._all.add(calls)

    def check(self) -> None:
        """Raise Unavailable in a child that was forked while SQLite was at work."""
        if self._pid != os.getpid():
            self.in_child()  # forked past Python, or this is called by a hook that comes before ours
        if self._refusal is not None:
            raise Unavailable(self._refusal, reason="forked", retryable=False)

    def pass_by(self) -> None:
        """Let a fork go first: a thread that calls again and again would never let it have the lock."""
        over = self._over
        if self.coming and self._forker != threading.get_ident():
            over.wait()

    def before(self) -> None:
        """Wait until no other thread is in SQLite, and keep them out."""
        self._one.acquire()
        self._depth += 1
        if self._depth > 1:
            return
        self._forker = threading.get_ident()
        self._over = Flag()
        self.coming = True
        self._adding.acquire()
        self._held.append(self._adding)
        began = time.monotonic()
        quiet = True
        for calls in list(self._all):
            left_s = began + calls.fork_wait_ms / 1000 - time.monotonic()
            if calls.lock.acquire(timeout=min(max(0.0, left_s), threading.TIMEOUT_MAX)):
                self._held.append(calls.lock)
            else:
                quiet = False
        self._quiet = quiet

    def in_parent(self) -> None:
        """Let calls continue."""
        if not self._depth:
            return  # the state before it was interrupted
        self._depth -= 1
        if not self._depth:
            self._quiet = False
            while self._held:
                self._held.pop().release()
            self.coming = False
            self._forker = None
            self._over.set()
        self._one.release()

    def in_child(self) -> None:
        """Abandon the parent's connections for good, and make SQLite start afresh."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        inherited, quiet = list(self._all), self._quiet
        self.coming = False
        self._begin()
        for calls in inherited:
            calls.forked()
        if not inherited and not apsw.connections():
            return
        if not quiet:
            self._refusal = _UNQUIET
        if self._refusal is None:
            try:
                _begin_anew()
            except (CaliberError, apsw.Error) as error:
                self._refusal = f"SQLite cannot begin anew in a forked process: {error}"


def _begin_anew() -> None:
    """Give files new identities for SQLite. Raises: MissingRequired, apsw.Error."""
    calls = dispatch.system_calls()
    dispatch.set_mark(int.from_bytes(os.urandom(8), "little"))
    system = apsw.VFS("caliber-fork", "unix")
    try:
        for name, address in calls.items():
            system.xSetSystemCall(name, address)
    finally:
        system.unregister()


def keep(raw: Any) -> None:
    """Have an object outlive this process: not even the end of the interpreter closes it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))


forks: Final = Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=forks.in_child)
