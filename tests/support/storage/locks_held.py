"""Locks of this process on the files of SQLite stores, as the kernel lists them, and opens in Python that drop them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import caliber
from caliber.model.process.files import is_in_use

LOCKS = Path("/proc/locks")
AT_REST = {("", 1_073_741_826), ("-shm", 128)}
"""The locks of every open store: the ending of the file's name, and the first byte."""
_PACKAGE = str(Path(caliber.__file__).parent)
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120

dangerous: list[str] = []
"""The lines of the package that opened a file of an open store in Python."""


def locks_held(path: Path) -> set[tuple[str, int]]:
    """Return the locks of this process on a store's files."""
    files = {ending: Path(f"{path}{ending}") for ending in ("", "-shm")}
    endings = {file.stat().st_ino: ending for ending, file in files.items() if file.exists()}
    held = set()
    for line in LOCKS.read_text().splitlines():
        words = line.split()
        inode = int(words[5].rpartition(":")[2]) if words[1] == "POSIX" and words[4] == str(os.getpid()) else None
        if inode in endings:
            held.add((endings[inode], int(words[6])))
    return held


def watch() -> None:
    """Note each file of an open store that the package opens by its path, for the rest of this process."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike) and is_in_use(arguments[0]):
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_STANDARD, "<frozen")):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            dangerous.append(f"{frame.f_code.co_filename}:{frame.f_lineno} opened a file of an open store")
