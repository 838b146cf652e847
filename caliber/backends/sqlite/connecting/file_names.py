"""Check that an open SQLite store's files were not removed or replaced on disk.

A removed or replaced file lives on for the process that has it open: SQLite reports writes to it as committed, and
nobody will ever read them. The log and its index must not be replaced either: the next process to open the store would
use the new ones.
"""

from __future__ import annotations

import enum
import os
import stat
from pathlib import Path
from typing import Final

import apsw

from caliber.model.errors import Unavailable
from caliber.model.process.interrupts import let_through, suppress

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
