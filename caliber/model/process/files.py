"""Files opened by path, except the files of a store that this process has open.

A POSIX lock belongs to a process and a file: closing any descriptor of the file drops every lock that the process holds
on it. SQLite protects an open database, and the index of its log, by such locks. Without them the next process that
closes the database removes the log under the one that still writes to it, and acknowledged writes are lost.

So only this module opens files by path. A backend reads the files of its open stores through the database's own library
(``backends/sqlite/connecting/forks.py``). A test looks for other calls.
"""

from __future__ import annotations

import errno
import gc
import os
import weakref
from io import BufferedReader
from pathlib import Path
from typing import Final

from caliber.model.process.interrupts import let_through

BESIDE: Final = ("-wal", "-shm", "-journal")
"""The endings of the files that SQLite keeps beside a database."""
IN_USE: Final = "it belongs to a store that this process has open"

Identity = tuple[int, int]


class InUse(OSError):
    """The file belongs to a store that this process has open."""


def identity_of(path: str | os.PathLike[str]) -> Identity | None:
    """Return the identity of a file, whatever its name; None without one, or without the right to look."""
    try:
        found = os.stat(path)  # noqa: PTH116  (a Path would cost as much again)
    except (OSError, ValueError) as error:
        let_through(error)
        return None
    return found.st_dev, found.st_ino


class HeldFiles:
    """The files of one open database; they are held while this object lives."""

    def __init__(self, path: str) -> None:
        self._base = os.path.realpath(path)  # as SQLite resolves it: the log of a symbolic link is beside its target
        self._first = identity_of(self._base)
        self._names = (self._base, *(f"{self._base}{ending}" for ending in BESIDE))
        self.has_other_name = any(
            each._base != self._base and self._first is not None and each._main() == self._first for each in _all_held()
        )
        """Whether the process has the file open under another name, where SQLite would look for another log."""
        _held[id(self)] = self

    def release(self) -> None:
        """Hold them no longer: the database is closed, or did not open."""
        _held.pop(id(self), None)

    def _main(self) -> Identity | None:
        """Return which file the database is; one that was created is known from its first asking on."""
        if self._first is None:
            self._first = identity_of(self._base)
        return self._first

    def have(self, wanted: Identity) -> bool:
        """Return whether a file is one of these, also after the database was renamed."""
        return wanted == self._main() or any(identity_of(name) == wanted for name in self._names)


_held: Final = weakref.WeakValueDictionary[int, HeldFiles]()


def is_in_use(path: str | os.PathLike[str]) -> bool:
    """Return whether a file belongs to a store that this process has open, under whatever name."""
    if not _is_held(path):
        return False
    gc.collect()  # a handle that was dropped unclosed, by an error perhaps, may have had it
    return _is_held(path)


def _is_held(path: str | os.PathLike[str]) -> bool:
    found = _all_held()
    wanted = identity_of(path) if found else None
    return wanted is not None and any(held.have(wanted) for held in found)


def _all_held() -> list[HeldFiles]:
    return [held for ref in _held.valuerefs() if (held := ref()) is not None]


def refuse_in_use(path: str | os.PathLike[str]) -> None:
    """Refuse a file that a library is about to read, write or replace by its path. Raises: InUse."""
    if is_in_use(path):
        raise InUse(errno.EBUSY, f"{IN_USE}; close the store, or name another file", str(path))


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading. Raises: OSError, and InUse among them."""
    refuse_in_use(path)
    return path.open("rb")


def read_bytes(path: Path, most: int = -1) -> bytes:
    """Return the content of a file, or the first bytes of it. Raises: as ``open_file``."""
    with open_file(path) as file:
        return file.read(most)


def open_descriptor(path: Path, flags: int) -> int:
    """Return a descriptor of a file; one that is created is for its owner alone. Raises: as ``open_file``."""
    refuse_in_use(path)
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk. Raises: as ``open_file``."""
    handle = open_descriptor(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
