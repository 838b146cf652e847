"""A store's files as bytes, read through SQLite's own VFS.

SQLite knows the locks that connections of this process hold on a database, and closes a descriptor of it only once they
are gone; Python would close it at once, which drops them (``model/process/files.py``). The index of the log (``-shm``)
is not read: SQLite has no such care for it, and it holds numbers of pages, no content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from caliber.backends.sqlite.connecting.forks import Calls

_PIECE_BYTES: Final = 4 << 20


def raw_file(path: str, vfs: str | None, access: int = apsw.SQLITE_OPEN_READONLY) -> apsw.VFSFile:
    """Open a database, its log or its journal; the caller closes it. Raises: apsw.Error."""
    return apsw.VFSFile(vfs or "", path, [apsw.SQLITE_OPEN_MAIN_DB | access, 0])


def pieces_of(path: str, vfs: str | None, calls: Calls) -> Iterator[bytes]:
    """Yield the content of a file piece by piece, in turns of ``calls``. Raises: apsw.Error."""
    with calls.turn():
        file = raw_file(path, vfs)
    try:
        at, size = 0, file.xFileSize()
        while at < size:
            with calls.turn():
                piece = file.xRead(min(_PIECE_BYTES, size - at), at)
            if not piece:
                return  # it was shortened meanwhile
            yield piece
            at += len(piece)
    finally:
        with calls.turn():
            file.xClose()
