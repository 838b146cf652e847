"""Eraser of SQLite: rewrites the file without erased bytes, reads stored bytes for the proof, destroys a store.

FTS5 tables are merged first. VACUUM rewrites every page, so nothing is left in free pages or inside pages; a checkpoint
in mode TRUNCATE then empties the log. Both need a moment without readers of an older boundary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import apsw

from caliber.backends.sqlite.connecting import connection as connecting
from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.connecting.forks import Calls, raw_file
from caliber.model.errors import StorageError, Unavailable
from caliber.model.process.files import BESIDE, open_descriptor, sync
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.spelling import quote
from caliber.storage.protocol import Place

_PIECE_BYTES: Final = 4 << 20
_PAUSE_S: Final = 0.05


class SqliteEraser:
    """The eraser of one open store. ``exclusive`` keeps our own transactions out and lends the writer's connection."""

    hold: Plan | None = None

    def __init__(
        self,
        options: OpenOptions,
        exclusive: Callable[[], AbstractContextManager[SqliteConnection]],
        reading: Callable[[], AbstractContextManager[SqliteConnection]],
        let_readers_go: Callable[[], None],
    ) -> None:
        self._options = options
        self._exclusive = exclusive
        self._reading = reading
        self._let_readers_go = let_readers_go

    def scrub(self, wait_s: float) -> list[str]:
        until = time.monotonic() + wait_s
        remains = self._rewrite(until)
        if self._options.in_memory or remains:
            return remains
        while True:
            with self._exclusive() as connection:
                busy, _, _ = connection.command("PRAGMA wal_checkpoint(TRUNCATE)")[0]
            if not busy:
                return []
            if time.monotonic() > until:
                return ["the log could not be emptied: somebody is reading an older state of the file; try again then"]
            time.sleep(_PAUSE_S)

    def scrub_log(self, wait_s: float) -> list[str]:  # noqa: ARG002  (the log is empty by now)
        return []

    def _rewrite(self, until: float) -> list[str]:
        while True:
            try:
                with self._exclusive() as connection:
                    tables = connection.command("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
                    names = {row[0] for row in tables}
                    for table in (name for name, made_by in tables if made_by and " USING fts5(" in made_by):
                        connection.command(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
                    if any(name.startswith("sqlite_stat") for name in names):
                        connection.command("ANALYZE")  # samples of columns
                    connection.command("VACUUM")
                return []
            except StorageError as error:
                if not error.retryable or time.monotonic() > until:
                    return [f"the file could not be rewritten: {error.message}"]
            time.sleep(_PAUSE_S)

    def places(self) -> Iterator[Place]:
        with self._reading() as connection:
            # Tables of an index that holds its own text elsewhere are read through the tables behind them.
            tables = connection.command(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            )
            for (name,) in tables:
                yield Place(f"table {name}", "column", self._values(connection, name), apart=True)
            if self._options.in_memory:
                with connection.turn():
                    image = connection.raw.serialize("main")
                yield Place("the database in memory", "file", iter([image]))
        yield from (place for place, there in self._read_files() if there)

    def _values(self, connection: SqliteConnection, table: str) -> Iterator[bytes]:
        for row in connection.each(f"SELECT * FROM {quote(table)}"):
            for value in row:
                if isinstance(value, str):
                    yield value.encode("utf-8", "surrogatepass")
                elif isinstance(value, bytes):
                    yield value

    def destroy(self, wait_s: float) -> list[str]:  # noqa: ARG002  (SQLite waits for busy_timeout_ms)
        if self._options.in_memory:
            return []
        self._let_readers_go()
        with self._exclusive() as connection:
            # Leaving WAL mode needs exclusive access to the file, and removes the log.
            try:
                alone = connection.pragma("journal_mode = DELETE") == "delete"
            except StorageError as error:
                if error.context.get("reason") != "locked":
                    raise
                alone = False
            if not alone:
                raise Unavailable(
                    "other processes have the store open; close them, and purge it again", reason="locked"
                )
            connection.close()
        for file in self._files():
            if file.exists():
                _overwrite(file)
        sync(self._files()[0].parent)
        return []

    def leftovers(self) -> Iterator[Place]:
        yield from (place for place, _ in self._read_files())

    def _read_files(self) -> Iterator[tuple[Place, bool]]:
        """Yield the files that hold content, and whether each is there."""
        for file in () if self._options.in_memory else self._files():
            if not file.name.endswith("-shm"):  # see ``raw_file``; it holds numbers of pages
                there = file.exists()
                yield Place(file.name, "file", self._pieces(file) if there else iter(())), there

    def _pieces(self, file: Path) -> Iterator[bytes]:
        try:
            yield from _pieces(str(file), Calls(self._options.fork_wait_ms))
        except apsw.Error as error:
            raise translate(error, self._options.shown) from error

    def _files(self) -> list[Path]:
        path = Path(self._options.shown.removeprefix("file:"))
        return [path.with_name(path.name + suffix) for suffix in ("", *BESIDE)]

    def out_of_reach(self) -> list[str]:
        if self._options.in_memory:
            return ["what the operating system moved from memory to its swap space"]
        return [
            "copies of the file: backups, snapshots of the file system, replicas",
            "blocks that the file system or the disk gave up and has not overwritten",
        ]


def _pieces(path: str, calls: Calls) -> Iterator[bytes]:
    with calls.turn():
        file = raw_file(path, connecting.VFS)
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


def _overwrite(file: Path) -> None:
    """Write zeros over a file, then remove it: no process opens it by its name meanwhile."""
    doomed = file.with_name(f"{file.name}.purged")
    file.rename(doomed)
    with os.fdopen(open_descriptor(doomed, os.O_RDWR), "r+b") as handle:
        remaining = doomed.stat().st_size
        while remaining > 0:
            remaining -= handle.write(bytes(min(remaining, _PIECE_BYTES)))
        handle.flush()
        os.fsync(handle.fileno())
    doomed.unlink()
