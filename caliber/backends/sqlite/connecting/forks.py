"""Fork safety of SQLite: makes ``os.fork`` wait for running calls, and gives the child fresh connections; moved files.

SQLite keeps its knowledge of an open file once per process: the locks and the map of the log's index. A forked child
inherits that knowledge but none of its parent's locks: files that it believes locked stay locked for ever, and files
that it believes to hold locks on are not protected. Its mutexes are inherited in their state of that moment.

So a fork waits until no thread is inside SQLite. In the child the parent's connections are never touched again, not
even closed, since closing a file releases all locks of the process on it. SQLite sees the files under other identities
there, finds no knowledge about them, and starts afresh, as in any other process. Nothing changes in the parent.

A fork waits for the end of a call, not of a transaction, and no longer than ``fork_wait_ms``; a child that was
forked nevertheless refuses to open SQLite. Source: docs/decisions/0199.

A removed or replaced file lives on for the process that has it open: SQLite reports writes to it as committed, and
nobody will ever read them. So an open store's files are checked. The log and its index must not be replaced either: the
next process to open the store would use the new ones.
"""

from __future__ import annotations

import ctypes
import enum
import os
import stat
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
from caliber.model.process.interrupts import let_through, managed, suppress
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


GONE: Final = "file gone"
REPLACED: Final = "file replaced"
EMPTIED: Final = "file emptied"

_WHAT: Final = {
    GONE: "was removed or moved away",
    REPLACED: "was replaced by another file",
    EMPTIED: "was cut to nothing",
}

Identity = tuple[int, int]


def _status(path: str) -> os.stat_result | None:
    """Return the status of a file, or None if it is missing. Raises: OSError."""
    try:
        return os.stat(path)  # noqa: PTH116  (asked before and after each commit: a Path would cost as much again)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(status: os.stat_result | None) -> Identity | None:
    """Return the identity of a file: no other file has it."""
    return None if status is None else (status.st_dev, status.st_ino)


class FileNames:
    """The files of one store, as they were when it was opened."""

    def __init__(self, path: str) -> None:
        """Check a store's file before it is opened. The log and its index are checked when they are used."""
        self._path = path
        self._filled = False
        own = None
        with suppress(OSError):  # opening it reports the fault
            status = _status(path)
            own = _identity(status)
            self._filled = status is not None and status.st_size > 0
        # The log of a symbolic link is beside its target.
        base = os.path.realpath(path)  # as SQLite resolves it, which reports cyclic links itself
        self.log = f"{base}-wal"
        """The path of the log."""
        self._known: dict[str, Identity | None] = {path: own}
        self._names = (path, self.log, f"{base}-shm")

    def check(self) -> None:
        """Raise Unavailable unless all names stand for the files that are open."""
        # Asked before and after each commit: without a call for each name, nor a Path, which would cost as much again.
        try:
            for name in self._names:
                try:
                    status = os.stat(name)  # noqa: PTH116
                    now: Identity | None = (status.st_dev, status.st_ino)
                except (FileNotFoundError, NotADirectoryError):
                    now = None
                if now != self._known.get(name):
                    self._differs(name, now)
                if now is not None and name is self._path and self._filled and not status.st_size:
                    raise self._lost(name, EMPTIED)
        except OSError as error:
            let_through(error)
            return  # without the right to look names cannot be checked; SQLite reports faults of the files

    def _differs(self, name: str, now: Identity | None) -> None:
        """Take note of a log, or its index, when it is first used. Raises: Unavailable for another file."""
        if name in self._known:
            raise self._lost(name, GONE if now is None else REPLACED)
        self._known[name] = now

    def log_is_anothers(self) -> bool:
        """Return whether another store's log has the name of ours: it is not ours to remove."""
        try:
            now = _identity(_status(self.log))
        except OSError as error:
            let_through(error)
            return True
        return now is not None and now != self._known.get(self.log, now)

    def _lost(self, name: str, reason: str) -> Unavailable:
        what = _WHAT[reason]
        return Unavailable(
            f"{self._path} is unavailable ({reason}): {Path(name).name} {what} while the store was open, so nothing"
            " more is written. Close all that have it open, see that the right file is there, and open the store again;"
            " a backup is put in place with `caliber db restore`",
            reason=reason,
            retryable=False,
            path=name,
        )


_HEADER: Final = b"SQLite format 3\x00"
_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
_PAGES_BEFORE: Final = slice(16, 20)
"""The place in a journal of the number of pages that the file had before its transaction."""


class FileState(enum.Enum):
    """State of a file, judged by its first bytes."""

    MISSING = "nothing there, or nothing that can be read"
    EMPTY = "no bytes"
    INTERRUPTED = "a part of the first page of a database whose creation was interrupted"
    DATABASE = "the header of a SQLite database"
    OTHER = "something else"


def state_of(path: str, vfs: str | None) -> FileState:
    """Return the state of a file, which is left as it is."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            return FileState.MISSING
        head = _head_of(path, vfs, len(_HEADER))
    except (OSError, apsw.Error) as error:
        let_through(error)
        return FileState.MISSING
    if not status.st_size:
        return FileState.EMPTY
    if head == _HEADER:
        return FileState.DATABASE
    begun = all(byte in (0, expected) for byte, expected in zip(head, _HEADER, strict=False))
    return FileState.INTERRUPTED if begun and _was_empty(path, vfs) else FileState.OTHER


def _was_empty(path: str, vfs: str | None) -> bool:
    """Return whether the file was empty before the transaction that its journal belongs to."""
    try:
        journal = _head_of(f"{path}-journal", vfs, _PAGES_BEFORE.stop)
    except apsw.Error:
        return False
    return journal.startswith(_JOURNAL) and journal[_PAGES_BEFORE] == bytes(4)


def undo_first_byte(path: str, vfs: str | None) -> None:
    """Empty an interrupted file of one byte. Its journal stays until the disk has this."""
    if Path(path).stat().st_size != 1:
        return
    file = raw_file(path, vfs, apsw.SQLITE_OPEN_READWRITE)
    try:
        file.xTruncate(0)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()


def _head_of(path: str, vfs: str | None, length: int) -> bytes:
    """Return the first bytes of a file. Of a file that is shorter, zeros at its end are left out."""
    file = raw_file(path, vfs)
    try:
        return file.xRead(length, 0)
    finally:
        file.xClose()


def raw_file(path: str, vfs: str | None, access: int = apsw.SQLITE_OPEN_READONLY) -> apsw.VFSFile:
    """Open a database, its log or its journal, but never the index of a log; the caller closes it. Raises: apsw.Error.

    SQLite keeps no descriptor of an index back until its locks are gone.
    """
    return apsw.VFSFile(vfs or "", path, [apsw.SQLITE_OPEN_MAIN_DB | access, 0])
