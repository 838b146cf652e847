"""Maintenance of a SQLite store: status, vacuum, views, snapshots, and copies of the file, checked when made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import apsw

from caliber.backends.sqlite.bulk import SqliteSnapshot, last_ordinals
from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.connecting.forks import Calls
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.schema import check_allowed
from caliber.model.errors import StorageError
from caliber.model.process.files import open_descriptor, sync
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.storage.compile.plan import RelationPlans, index_names
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.maintenance import IndexStatus, RelationStatus, StoreStatus, Vacuumed
from caliber.storage.maintain.views import MARK, views_for

_PAGES: Final = 100
"""Pages copied between two reports of progress."""

Opened = Callable[[], AbstractContextManager[SqliteConnection]]


class SqliteMaintenance:
    """See ``caliber.storage.maintain.maintenance.Maintenance``."""

    copies_files = True

    def __init__(
        self,
        options: OpenOptions,
        plans: dict[str, RelationPlans],
        reading: Opened,
        transaction: Opened,
        alone: Opened,
    ) -> None:
        self._options = options
        self._plans = plans
        self._reading = reading
        self._transaction = transaction
        self._alone = alone

    # --- views -----------------------------------------------------------------------------------

    def create_views(self) -> list[str]:
        with self._transaction() as connection:
            _drop_views(connection)
            existing = {name for (name,) in connection.command("SELECT name FROM sqlite_schema")}
            made = list(views_for(DIALECT, existing))
            for name, comment, select in made:
                connection.command(f"CREATE VIEW {quote(name)} AS /* {comment} */ {select}")
        return [name for name, _, _ in made]

    def drop_views(self) -> list[str]:
        with self._transaction() as connection:
            return _drop_views(connection)

    # --- state -----------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        with self._reading() as connection:
            rows = {name: connection.run(plans.count, ())[0][0] for name, plans in self._plans.items()}
            objects = connection.command("SELECT name, tbl_name, type FROM sqlite_schema")
            sizes: dict[str, int] = dict(connection.command("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
            migrations = connection.run(self._plans["schema_migration"].lists["list_all"], ())
            newest = self._plans["schema_migration"].codec.decode(migrations[-1])
            sequence = connection.command("SELECT coalesce(max(sequence), 0) FROM change")[0][0]
            page = connection.pragma("page_size")
            size, free = page * connection.pragma("page_count"), page * connection.pragma("freelist_count")
        indexes = [IndexStatus(name, of, sizes.get(name, 0)) for name, of, kind in objects if kind == "index"]
        relations = [
            RelationStatus(
                name, count, sizes.get(name, 0), sum(index.bytes for index in indexes if index.relation == name)
            )
            for name, count in rows.items()
        ]
        return StoreStatus(
            adapter="sqlite",
            store=self._options.shown,
            schema_version=newest.schema_version,
            min_reader_version=newest.min_reader_version,
            min_writer_version=newest.min_writer_version,
            epoch=newest.epoch,
            sequence=sequence,
            changes=rows["change"],
            bytes=size,
            free_bytes=free,
            wal_bytes=self._wal_bytes(),
            relations=tuple(relations),
            indexes=tuple(sorted(indexes, key=lambda index: index.name)),
        )

    def _wal_bytes(self) -> int | None:
        if self._options.in_memory:
            return None
        wal = Path(self._options.shown.removeprefix("file:") + "-wal")
        return wal.stat().st_size if wal.exists() else 0

    # --- room ------------------------------------------------------------------------------------

    def vacuum(self, *, full: bool, progress: Progress) -> Vacuumed:  # noqa: ARG002  (it always is)
        """See ``Maintenance.vacuum``; SQLite always rewrites the whole file, and needs as much room again meanwhile."""
        steps = ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)")
        before = self._bytes(), self._wal_bytes()
        with self._alone() as connection:
            for done, step in enumerate(steps):
                progress("vacuuming", done, len(steps))
                connection.command(step)
            progress("vacuuming", len(steps), len(steps))
        return Vacuumed(before[0], self._bytes(), before[1], self._wal_bytes())

    def _bytes(self) -> int:
        with self._reading() as connection:
            size: int = connection.pragma("page_size") * connection.pragma("page_count")
        return size

    # --- all of it -------------------------------------------------------------------------------

    @managed
    def snapshot(self) -> Iterator[SqliteSnapshot]:
        with self._reading() as connection:
            # A process that does not know the newest schema would leave out new relations.
            check_allowed(connection, self._options.shown, "schema_version")
            yield SqliteSnapshot(connection)

    def copy_to(self, path: Path, progress: Progress) -> tuple[str, int]:
        os.close(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        with self._reading() as connection:
            # A transaction that has read keeps its boundary while pages are copied, whatever other processes write.
            whole = SqliteSnapshot(connection)
            copy_pages(connection.raw, path, progress, self._options.fork_wait_ms)
        check_file(path, self._options.fork_wait_ms)
        return whole.epoch, whole.sequence

    def ordinals(self, session: StatementSession) -> dict[str, int]:
        return last_ordinals(session)  # type: ignore[arg-type]

    def missing(self, session: StatementSession) -> list[str]:
        connection: SqliteConnection = session  # type: ignore[assignment]
        present = {row[0] for row in connection.command("SELECT name FROM sqlite_schema")}
        found = []
        for name, plans in self._plans.items():
            there = {row[1] for row in connection.command(f"PRAGMA table_info({quote(name)})")}
            found += [f"column {column} of {name}" for column in plans.codec.names if column not in there]
            found += [f"index {index} of {name}" for index in index_names(plans) if index not in present]
        return found


def _drop_views(connection: SqliteConnection) -> list[str]:
    """Remove CALIBER's views only; return their names."""
    rows = connection.command(f"SELECT name FROM sqlite_schema WHERE type = 'view' AND instr(sql, '/* {MARK}') > 0")
    for (name,) in rows:
        connection.command(f"DROP VIEW {quote(name)}")
    return sorted(name for (name,) in rows)


def copy_pages(source: apsw.Connection, path: Path, progress: Progress, fork_wait_ms: int) -> None:
    """Copy a database to a new file, and have it on disk when this returns. Raises: Unavailable."""
    calls = Calls(fork_wait_ms)
    try:
        with calls.connected(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) as target:
            pour(source, target, calls, "copying", progress)
            # A single file needs no log beside it.
            with calls.turn():
                target.execute("PRAGMA journal_mode = DELETE").fetchall()
        sync(path)
    except apsw.Error as error:
        raise translate(error, str(path)) from error


def pour(
    source: apsw.Connection,
    target: apsw.Connection,
    calls: Calls,
    stage: str,
    progress: Progress,
    check: Callable[[], None] | None = None,
) -> None:
    """Copy every page of ``source`` over ``target``, in one transaction of the target, in turns of ``calls``.

    ``check`` is called when no other process can write there any more, and nothing is written yet: its error aborts.
    """
    with calls.turn():
        backup = target.backup("main", source, "main")
    try:
        while not backup.done:
            # Before each step: the last one commits, and a callback that raises must find nothing done.
            progress(stage, backup.page_count - backup.remaining, max(1, backup.page_count))
            if check is not None:
                with calls.turn():
                    backup.step(0)  # locks
                check()
                check = None
            with calls.turn():
                backup.step(_PAGES)
    except BaseException:
        with calls.turn():
            backup.close(True)
        raise
    with calls.turn():
        backup.finish()


def check_file(path: Path, fork_wait_ms: int) -> None:
    """Raise StorageError unless SQLite finds a file whole."""
    calls = Calls(fork_wait_ms)
    try:
        with calls.connected(path, apsw.SQLITE_OPEN_READONLY) as connection, calls.turn():
            faults = [row[0] for row in connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    except apsw.Error as error:
        raise translate(error, str(path)) from error
    if faults:
        raise StorageError(f"{path.name} is damaged ({faults[0]}); take another backup", reason="damaged")
