"""Folders for servers that tests start: reachable by every user, in memory where there is room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter: pytest's own are closed, and root's server runs as somebody else.

    A cluster is a thousand files, which some file systems take seconds to make and forget. Nothing here has to survive
    the machine, so memory will do.
    """
    place = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES else None
    folder = Path(tempfile.mkdtemp(dir=place))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
