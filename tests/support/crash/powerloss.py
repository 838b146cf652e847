"""A disk that loses power: an SQLite VFS that knows which writes were synced, and what may be left of the others.

Writes go through to the real files, so that everything works as always; beside them the VFS keeps, for each file, its
content as of its last sync and every write since. ``Disk.crash_images`` gives what a power cut may leave now: the
unsynced writes may all be gone, or be there in any part, or the last of them be torn.

File creation and deletion count as durable at once: SQLite syncs the folder itself where it matters.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

NAME = "caliber-powerloss"
SUBSETS = 2
"""Random parts of the unsynced writes tried at each cut, beside none, all but the last, and a torn last one."""

SECTOR = 512

Write = tuple[int, bytes] | int
"""Bytes at an offset, or a new length."""


def _apply(image: bytes, writes: list[Write]) -> bytes:
    if not writes:
        return image
    out = bytearray(image)
    for write in writes:
        if isinstance(write, int):
            del out[write:]
            continue
        offset, data = write
        if len(out) < offset:
            out.extend(bytes(offset - len(out)))
        out[offset : offset + len(data)] = data
    return bytes(out)


@dataclass
class FileState:
    """One file: what is surely on the disk, and what was written since."""

    synced: bytes
    pending: list[Write] = field(default_factory=list)


@dataclass(frozen=True)
class Cut:
    """The whole disk at one moment, and how many writes had been acknowledged by then."""

    why: str
    files: dict[str, tuple[bytes, tuple[Write, ...]]]
    acknowledged: int

    def images(self, rng: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield what the power cut may leave: a name, and each file's content."""
        yield "unsynced writes gone", {name: synced for name, (synced, _) in self.files.items()}
        if not any(pending for _, pending in self.files.values()):
            return
        yield "last write gone", self._image(lambda writes: writes[:-1])
        yield "last write torn", self._image(lambda writes: [*writes[:-1], *_torn(writes[-1:], rng)])
        for number in range(SUBSETS):
            yield f"part {number} there", self._image(lambda writes: [w for w in writes if rng.random() < 0.5])
        yield "everything there", self._image(lambda writes: writes)

    def torn_images(self, lengths: Iterable[int]) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield what the power cut may leave of files whose last unsynced write is torn, at each of some lengths."""
        for length in lengths:
            yield f"{length} bytes of the last write", self._image(lambda writes, n=length: _part(writes, slice(n)))

    def sector_images(self, rng: random.Random, number: int) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield what the power cut may leave when each sector of an unsynced write is there or not."""
        for at in range(number):
            yield f"sectors {at} there", self._image(lambda writes: _some_sectors(writes, rng))

    def _image(self, kept: Callable[[list[Write]], list[Write]]) -> dict[str, bytes]:
        return {
            name: _apply(synced, kept(list(pending)) if pending else [])
            for name, (synced, pending) in self.files.items()
        }


def _torn(last: list[Write], rng: random.Random) -> list[Write]:
    out: list[Write] = []
    for write in last:
        if isinstance(write, int) or len(write[1]) < 2:
            continue
        out.append((write[0], write[1][: rng.randrange(1, len(write[1]))]))
    return out


def _part(writes: list[Write], part: slice) -> list[Write]:
    *others, last = writes
    return writes if isinstance(last, int) else [*others, (last[0], last[1][part])]


def _some_sectors(writes: list[Write], rng: random.Random) -> list[Write]:
    out: list[Write] = []
    for write in writes:
        if isinstance(write, int):
            out.append(write)
            continue
        offset, data = write
        for at in range(0, len(data), SECTOR):
            if rng.random() < 0.5:
                out.append((offset + at, data[at : at + SECTOR]))
    return out


def put(files: dict[str, bytes], folder: Path) -> None:
    """Lay out what a cut left; shared memory went with the machine."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in files.items():
        if not file.endswith("-shm"):
            (folder / file).write_bytes(content)


class Disk(apsw.VFS):
    """The VFS. ``at_sync`` is called at every sync point, before what it syncs is safe."""

    def __init__(self) -> None:
        self.files: dict[str, FileState] = {}
        self.at_sync: Callable[[str], None] = lambda _: None
        self.syncs = 0
        self._lock = threading.RLock()
        super().__init__(NAME, "")

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802  (SQLite's names)
        return DiskFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        with self._lock:
            super().xDelete(name, sync)
            self.files.pop(name, None)

    def opened(self, name: str) -> None:
        with self._lock:
            if name not in self.files:
                path = Path(name)
                self.files[name] = FileState(path.read_bytes() if path.exists() else b"")

    def wrote(self, name: str, write: Write) -> None:
        with self._lock:
            if name in self.files:
                self.files[name].pending.append(write)

    def sync(self, name: str) -> None:
        with self._lock:
            self.syncs += 1
            self.at_sync(name)
            state = self.files.get(name)
            if state is not None:
                state.synced = _apply(state.synced, state.pending)
                state.pending = []

    def now(self, why: str, acknowledged: int) -> Cut:
        """Return the disk as it is at this moment."""
        with self._lock:
            files = {Path(name).name: (state.synced, tuple(state.pending)) for name, state in self.files.items()}
            return Cut(why, files, acknowledged)


class DiskFile(apsw.VFSFile):
    """A file on that disk. Shared memory stays with the machine, hence is gone after a cut."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("", name, flags)
        if self._name:
            disk.opened(self._name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        if self._name:
            self._disk.wrote(self._name, (offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        if self._name:
            self._disk.wrote(self._name, size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        # The real file need not reach the real disk: this test has its own.
        if self._name:
            self._disk.sync(self._name)
