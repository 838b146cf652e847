"""Inspection of a database file's first bytes before SQLite opens it, to tell a new, torn or foreign file.

When a database is created, SQLite writes its first page as soon as the rollback journal, which records that the file
was empty, is on the disk. A power cut may leave any part of that page. SQLite rolls it back when the file is opened
next, with one exception: it takes a file of one byte for an empty one, removes the journal, and the byte stays.

Files are read through SQLite's own VFS. It knows the locks that connections of this process hold on a database, and
closes a descriptor of it only once they are gone; Python would drop them (``model/process/files.py``).
"""

from __future__ import annotations

import enum
import stat
from pathlib import Path
from typing import Final

import apsw

from caliber.model.process.interrupts import let_through

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
