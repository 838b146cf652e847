"""Folders for servers that tests start: reachable by every user, in memory where there is room."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SERVER_BYTES, RUN_BYTES = 1 << 30, 4 << 30
"""Most bytes of a server, and of a whole run of the tests."""


def memory_folder(room_bytes: int = RUN_BYTES) -> Path | None:
    """Return a folder in memory that has room and runs programs, or None."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC or not os.access(MEMORY, os.W_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free > room_bytes else None


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter: pytest's own are closed, and root's server runs as somebody else.

    A cluster is a thousand files, which some file systems take seconds to make and forget. Nothing here has to survive
    the machine, so memory will do.
    """
    folder = Path(tempfile.mkdtemp(dir=memory_folder(SERVER_BYTES)))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
