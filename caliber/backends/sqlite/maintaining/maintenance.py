"""Maintenance of a SQLite store: status, vacuum, views, snapshots, and copies of the file, checked when made; restore.

A backup is restored beside the old file, checked, then copied over it at once. An existing store is not replaced as a
file: a process that has it open would go on writing into the unlinked one. Its pages are overwritten in one
transaction, as any process would; the old content stays until that transaction commits.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from caliber.backends.sqlite.bulk import SqliteSnapshot, insert_batch, last_ordinals
from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection, check_version
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.connecting.forks import Calls
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.moving.fence import lift, state_of
from caliber.backends.sqlite.schema import (
    PLANS,
    apply_versions,
    baseline,
    check_allowed,
    check_schema,
    clear_beside,
    exists,
    file_of,
    is_blank,
    options_of,
    take_place,
)
from caliber.dump.archive import Archive, only_one
from caliber.dump.dumped_relations import dump_relations, record_relations
from caliber.model.errors import Conflict, InvalidValue, StorageError, Unavailable
from caliber.model.process.files import IN_USE, InUse, open_descriptor, sync
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relations.events import ERASURE
from caliber.storage.compile.plan import Plan, RelationPlans, compile_relation, index_names, plans_of
from caliber.storage.compile.session import Counter, StatementSession
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.maintenance import IndexStatus, RelationStatus, StoreStatus, Vacuumed, elsewhere
from caliber.storage.maintain.views import MARK, views_for
from caliber.storage.stored_memories import catalog_of
from caliber.storage.write.changes import RELOAD_RECORD

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


if TYPE_CHECKING:
    from caliber.config import CaliberConfig

_LEAP: Final = 1_000_000_000
"""How far the change numbers of a restored store lie beyond all that were ever given out before."""
_LAST: Final = Plan("change.last", "SELECT coalesce(max(sequence), 0) FROM change", (), ("last",))


def restore(
    config: CaliberConfig,
    source: Archive | Path,
    *,
    replace: bool,
    clock_us: Callable[[], int],
    progress: Progress,
) -> str:
    """Replace a store with a backup; return its new epoch.

    Raises: Conflict for a store with records unless ``replace``; StorageError for a backup that is damaged;
        SchemaMismatch, Unavailable. The store is then as it was.
    """
    check_version()
    options = options_of(config)
    if options.in_memory:
        raise InvalidValue(field="storage.path", reason="a store in memory cannot be restored; name a file")
    target = file_of(options)
    there = exists(target) and not is_blank(target, options)
    if there:
        _check_replaceable(options, target, replace)
    beside = target.with_name(f".{target.name}.restoring")
    with only_one(target):
        try:
            _clear(beside)
            made = dataclasses.replace(options, path=str(beside))
            if isinstance(source, Archive):
                _load(made, source, clock_us, progress)
            else:
                _copy(made, source, clock_us, progress)
            # Long after, not right after: others may commit until the very moment of taking over.
            last = 0
            if there:
                with _connected(options) as connection:
                    last = connection.run(_LAST, ())[0][0]
            epoch = _renew(made, last, clock_us)
            check_file(beside, made.fork_wait_ms)
            _check_readable(made)
            if there:
                check = functools.partial(_check_replaceable, options, target, replace)
                _take_over(made, options, check, progress)
            else:
                _put(beside, target, options)
        except apsw.Error as error:
            raise translate(error, str(target)) from error
        except InUse as error:
            raise Unavailable(f"{target.name} cannot be restored: {IN_USE}", reason="in use") from error
        finally:
            _clear(beside)
    return epoch


def _check_readable(made: OpenOptions) -> None:
    """Read what every opening and the report of a restore read: a copy has no digests of its rows.

    Raises: StorageError
    """
    with _connected(made) as connection:
        catalog = catalog_of(connection, PLANS)
        plans = plans_of(catalog, PLANS, DIALECT)
        for relation in record_relations(catalog):
            connection.run(plans[relation.name].count, ())
        erasures = plans[ERASURE.name]
        for row in connection.run(erasures.page, (-1, 1 << 31)):
            erasures.codec.key_of(row)


def _clear(beside: Path) -> None:
    beside.unlink(missing_ok=True)
    clear_beside(beside)


def _put(beside: Path, target: Path, options: OpenOptions) -> None:
    """Rename a complete file to its final name. Raises: Conflict if a store was created there meanwhile."""
    blank = target.exists() and is_blank(target, options)
    try:
        if blank or not target.exists():
            clear_beside(target)
        if blank:
            beside.replace(target)
            sync(target.parent)
        else:
            take_place(beside, target)
    except FileExistsError as error:
        reason = "another process created it meanwhile; --force replaces its contents"
        raise Conflict(entity_type="store", id=str(target), reason=reason) from error


@managed
def _connected(options: OpenOptions, *, create: bool = False) -> Iterator[SqliteConnection]:
    connection = SqliteConnection(options, Counter(), memory_name="", create=create)
    try:
        yield connection
    finally:
        connection.close()


def _check_replaceable(options: OpenOptions, target: Path, replace: bool) -> None:
    """Refuse a store with records unless they are to go, and one that is moving or has moved.

    Raises: Conflict, Unavailable, SchemaMismatch
    """
    with _connected(options) as connection:
        check_schema(connection, options)
        # A process that does not know the newest schema would replace records that it does not know.
        check_allowed(connection, options.shown, "schema_version")
        state = state_of(connection)
        if state is not None:
            raise elsewhere(str(target), state)
        catalog = catalog_of(connection, PLANS)
        plans = plans_of(catalog, PLANS, DIALECT)
        filled = any(connection.run(plans[each.name].count, ())[0][0] for each in record_relations(catalog))
        if filled and not replace:
            raise Conflict(
                entity_type="store", id=options.shown, reason="it holds records; --force replaces all of them"
            )


def _copy(made: OpenOptions, source: Path, clock_us: Callable[[], int], progress: Progress) -> None:
    """Copy a file that ``db backup`` or SQLite made."""
    if not source.is_file():
        raise InvalidValue(field=str(source), reason="there is no such file")
    check_file(source, made.fork_wait_ms)
    with Calls(made.fork_wait_ms).connected(source, apsw.SQLITE_OPEN_READONLY) as source_connection:
        copy_pages(source_connection, Path(made.path), progress, made.fork_wait_ms)
    with _connected(made) as connection:
        with connection.transaction():
            lift(connection, None)  # of a store that was about to move; this one is not
        shown = dataclasses.replace(made, path=str(source))
        apply_versions(connection, shown, clock_us)
        check_schema(connection, shown)


def _load(made: OpenOptions, archive: Archive, clock_us: Callable[[], int], progress: Progress) -> None:
    with _connected(made, create=True) as connection:
        connection.command("PRAGMA synchronous = OFF")  # until it is complete, the old one serves
        baseline(connection, clock_us(), ())
        with connection.transaction():
            for declared in archive.catalog.declared_relations:
                for statement in compile_relation(declared, DIALECT).create:
                    connection.command(statement)
            connection.command("PRAGMA defer_foreign_keys = ON")
            done = 0
            for relation in dump_relations(archive.catalog):
                for batch in archive.batches(relation):
                    insert_batch(connection, relation, batch)
                    done += batch.num_rows
                    progress("restoring rows", done, archive.rows)
                member = archive.member(relation)
                if member is not None and member.last_ordinal:
                    connection.command(f"DELETE FROM sqlite_sequence WHERE name = '{relation.name}'")
                    connection.command(f"INSERT INTO sqlite_sequence VALUES ('{relation.name}', {member.last_ordinal})")
            archive.verify(SqliteSnapshot(connection), progress)


def _renew(made: OpenOptions, last: int, clock_us: Callable[[], int]) -> str:
    """Begin a new epoch, which makes every follower of the replaced store reload."""
    epoch = str(uuid.uuid4())
    with _connected(made) as connection:
        sequence = max(last, int(connection.run(_LAST, ())[0][0])) + _LEAP
        with connection.transaction():
            connection.command(f"DELETE FROM {quote('change')}")
            for text, values in (
                (
                    "INSERT INTO change (sequence, writer, entries, created_at) VALUES (?1, ?2, ?3, ?4)",
                    (sequence, os.urandom(16), RELOAD_RECORD, clock_us()),
                ),
                ("UPDATE schema_migration SET epoch = ?1", (epoch,)),
            ):
                with connection.turn():
                    connection.raw.execute(text, values).fetchall()
    sync(Path(made.path))
    return epoch


def _take_over(made: OpenOptions, options: OpenOptions, check: Callable[[], None], progress: Progress) -> None:
    with _connected(options) as target, _connected(made) as source:
        if target.pragma("journal_mode") != "wal":
            target.command("PRAGMA journal_mode = WAL")
        # Records may have been added since the first check.
        pour(source.raw, target.raw, target, "taking over", progress, check)
        target.command("PRAGMA wal_checkpoint(TRUNCATE)")
