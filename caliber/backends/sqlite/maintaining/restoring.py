"""Restore of a backup into a SQLite store: built beside the old file, checked, then copied over it at once.

An existing store is not replaced as a file: a process that has it open would go on writing into the unlinked one. Its
pages are overwritten in one transaction, as any process would; the old content stays until that transaction commits.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from caliber.backends.sqlite.bulk import SqliteSnapshot, insert_batch
from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection, check_version
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.connecting.forks import Calls
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.maintaining.maintenance import check_file, copy_pages, pour
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
from caliber.model.errors import Conflict, InvalidValue, Unavailable
from caliber.model.process.files import IN_USE, InUse, sync
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relations.events import ERASURE
from caliber.storage.compile.plan import Plan, compile_relation, plans_of
from caliber.storage.compile.session import Counter
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.maintenance import elsewhere
from caliber.storage.stored_memories import catalog_of
from caliber.storage.write.changes import RELOAD_RECORD

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
