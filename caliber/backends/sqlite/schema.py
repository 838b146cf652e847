"""File and schema of a SQLite store: options from the configuration, creation, migration, checks, SQL plans."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caliber.backends.sqlite.connecting.connection import (
    APPLICATION_ID,
    EMPTY,
    OpenOptions,
    SqliteConnection,
    check_version,
    file_state,
)
from caliber.backends.sqlite.connecting.errors import NO_STORE
from caliber.backends.sqlite.connecting.forks import FileState
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.model.errors import Conflict, InternalError, SchemaMismatch, Unavailable
from caliber.model.process.files import BESIDE, sync
from caliber.model.process.interrupts import let_through
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relation import Relation
from caliber.schema.relations import MEMORY_TYPE, RELATIONS, SCHEMA_MIGRATION
from caliber.schema.relations.storage import Migration
from caliber.storage.compile.plan import RelationPlans, column_definition, compile_relation, plans_of
from caliber.storage.compile.session import Counter
from caliber.storage.migrate.migrations import (
    baseline_of,
    changed_by,
    check_migratable,
    check_needed,
    check_versions,
    checksum_of,
    migration_of,
    missing_versions,
    statements_of,
)
from caliber.storage.stored_memories import declared_in, first_memories, stored_memories
from caliber.storage.write.changes import UPSERT, pack_changes

if TYPE_CHECKING:
    from caliber.config import CaliberConfig, StorageConfig
    from caliber.schema.memory_types import MemoryType
    from caliber.storage.migrate.memory_steps import MemoryStep, MigrationPlan, Wanted

PLANS: dict[str, RelationPlans] = {relation.name: compile_relation(relation, DIALECT) for relation in RELATIONS}

CACHE_KIB: Final = 16_384
"""Page cache of each connection."""
STATEMENT_CACHE: Final = 256
"""Prepared statements that a connection keeps."""
FORK_WAIT_MS: Final = 10_000
"""Longest wait of a fork for calls of SQLite to end; a child forked after that must not open the store."""


def settings_of(config: CaliberConfig) -> StorageConfig:
    """Return the section of this database."""
    storage: Any = config.storage
    if storage.adapter != "sqlite":
        raise InternalError("the SQLite backend was given another adapter's configuration")
    settings: StorageConfig = storage
    return settings


def options_of(config: CaliberConfig) -> OpenOptions:
    """Return the connection's knobs from the configuration."""
    return options_for(settings_of(config))


def options_for(storage: StorageConfig) -> OpenOptions:
    """As ``options_of``, of the section alone."""
    path = storage.resolve_path()
    return OpenOptions(
        # Absolute: connections are made later too, when the program may have changed its directory.
        path=path if storage.in_memory else os.path.abspath(path),  # noqa: PTH100  (links stay as they are)
        busy_timeout_ms=storage.busy_timeout_ms,
        cache_kib=CACHE_KIB,
        wal_autocheckpoint_pages=storage.wal_autocheckpoint_pages,
        statement_cache=STATEMENT_CACHE,
        fork_wait_ms=FORK_WAIT_MS,
    )


def file_of(options: OpenOptions) -> Path:
    """Return the file of a store."""
    return Path(options.path)


def exists(file: Path) -> bool:
    """Return whether there is a file at a path.

    Raises: SchemaMismatch for a folder, a pipe and the like, which SQLite may wait for; Unavailable where that cannot
        be asked.
    """
    try:
        there = file.exists()
        if there and not file.is_file():
            what = "a folder" if file.is_dir() else "a pipe, a socket or a device"
            raise SchemaMismatch(store=str(file), reason=f"it is {what}; storage.path must name a file")
        return there
    except (OSError, ValueError) as error:
        let_through(error)
        raise Unavailable(
            f"{file.name[:100]} is unavailable (cannot open): the path cannot be looked up; correct storage.path, or"
            " make its folders accessible",
            reason="cannot open",
            retryable=False,
        ) from error


def baseline(connection: SqliteConnection, now_us: int, declared: Sequence[MemoryType]) -> bool:
    """Create every relation and record the schema version, in one transaction; return whether the file was blank.

    Raises: InvalidValue for a declared memory that no relation can be made of.
    """
    statements = [statement for plans in PLANS.values() for statement in plans.create]
    memories = first_memories(declared, now_us)
    memory_plans = plans_of(BUILT_IN.with_memories(memories), PLANS, DIALECT)
    with connection.transaction():
        if not _holds_nothing(connection):
            return False  # another process was first
        for statement in statements:
            connection.command(statement)
        row = baseline_of(checksum_of(statements), now_us)
        plans = PLANS[SCHEMA_MIGRATION.name]
        connection.run(plans.insert, plans.codec.encode(row))
        for statement in (line for name in memory_plans if name not in PLANS for line in memory_plans[name].create):
            connection.command(statement)
        plans = PLANS[MEMORY_TYPE.name]
        for memory in memories:
            connection.run(plans.insert, plans.codec.encode(memory))
        connection.command(f"PRAGMA application_id = {APPLICATION_ID}")
        return True


def _exists_already(file: Path) -> Conflict:
    return Conflict(entity_type="store", id=str(file), reason="it exists already; open it, or pass exist_ok=True")


def create(config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None:
    """Create the store's file and schema.

    Raises: Conflict when the file is there already and ``exist_ok`` is false; Unavailable when it cannot be made.
    """
    check_version()
    options = options_of(config)
    if options.in_memory:
        raise SchemaMismatch(store=":memory:", reason="a store in memory is created by opening it; just open it")
    file = file_of(options)
    if exists(file) and not is_blank(file, options):
        if not exist_ok:
            raise _exists_already(file)
        connection = SqliteConnection(options, Counter(), memory_name="")
        try:
            check_schema(connection, options)
        finally:
            connection.close()
        return
    if not file.parent.exists():
        raise Unavailable(
            f"cannot create {file.name}: its folder does not exist; create the folder first",
            reason="cannot open",
            retryable=False,
        )
    connection = SqliteConnection(options, Counter(), memory_name="", create=True)
    try:
        connection.command("PRAGMA journal_mode = WAL")
        if baseline(connection, clock_us(), declared_in(config)):
            connection.command("PRAGMA wal_checkpoint(TRUNCATE)")
        elif exist_ok:
            check_schema(connection, options)
        else:
            raise _exists_already(file)
    finally:
        connection.close()
    sync(file.parent)


def is_blank(file: Path, options: OpenOptions) -> bool:
    """Return whether a file is blank: it is empty, or holds the remains of an interrupted creation."""
    state = file_state(str(file))
    if state is not FileState.DATABASE:
        return state in (FileState.EMPTY, FileState.INTERRUPTED)
    connection = SqliteConnection(options, Counter(), memory_name="")
    try:
        return _holds_nothing(connection)
    finally:
        connection.close()


def _holds_nothing(connection: SqliteConnection) -> bool:
    objects: int = connection.command("SELECT count(*) FROM sqlite_schema")[0][0]
    return not objects and connection.pragma("application_id") == 0


def clear_beside(file: Path) -> None:
    """Remove the log that a deleted file left behind: SQLite would take it for that of the next file."""
    for ending in BESIDE:
        Path(f"{file}{ending}").unlink(missing_ok=True)


def take_place(made: Path, file: Path) -> None:
    """Give a whole file its name, and take no other file's place. Raises: FileExistsError, FileNotFoundError."""
    try:
        os.link(made, file)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:  # a file system without links
        let_through(error)
        if file.exists():
            raise FileExistsError(str(file)) from None
        made.rename(file)
    else:
        made.unlink()
    sync(file.parent)


def _applied(connection: SqliteConnection, options: OpenOptions) -> list[Migration]:
    application_id = connection.pragma("application_id")
    if application_id != APPLICATION_ID:
        empty = _holds_nothing(connection) and is_blank(file_of(options), options)
        raise SchemaMismatch(store=options.shown, reason=EMPTY if empty else NO_STORE)
    plans = PLANS[SCHEMA_MIGRATION.name]
    rows = connection.run(plans.lists["list_all"], ())
    return [plans.codec.decode(row) for row in rows]


def check_schema(connection: SqliteConnection, options: OpenOptions) -> str:
    """Return the epoch of a store that this version may use. Raises: SchemaMismatch."""
    applied = _applied(connection, options)
    check_versions(options.shown, applied)
    return str(applied[0].epoch)


def migrate(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> list[int]:
    """Apply every missing schema version, then every step of memories, each in its own transaction.

    Return the versions applied. Raises: as ``plan_migration``.
    """
    from caliber.storage.migrate.memory_steps import Wanted

    options = options_of(config)
    target = Wanted(declared_in(config), tuple(drop))
    connection = open_existing(options)
    try:
        applied = apply_versions(connection, options, clock_us)
        while _take_step(connection, options, target, clock_us()):
            pass
        return applied
    finally:
        connection.close()


def plan_migration(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> MigrationPlan:
    """Return the steps of ``migrate``. Raises: SchemaMismatch, InvalidValue (see ``memory_steps.next_step``)."""
    from caliber.storage.migrate.memory_steps import MigrationPlan, Wanted, left_alone, memory_steps

    options = options_of(config)
    target = Wanted(declared_in(config), tuple(drop))
    connection = open_existing(options)
    try:
        missing = missing_versions(_migrations(connection, options))
        rows = stored_memories(connection, PLANS)
        found = memory_steps(options.shown, rows, target, DIALECT, from_us(clock_us()))
        steps = [_with_texts(connection, step) for step in found]
    finally:
        connection.close()
    return MigrationPlan(missing, tuple(steps), tuple(left_alone(rows, target)))


def _with_texts(connection: SqliteConnection, step: MemoryStep) -> MemoryStep:
    """Return a step as it has to be taken in a store that has full text."""
    from caliber.backends.sqlite.searching.full_text import SPOIL, read_state
    from caliber.storage.migrate.memory_steps import with_texts

    state = read_state(connection)
    return with_texts(step, None if state is None else state.memories, SPOIL)


def _take_step(connection: SqliteConnection, options: OpenOptions, target: Wanted, now_us: int) -> bool:
    """Take the next step towards the target memories in its own transaction; return whether there was one."""
    from caliber.storage.migrate.memory_steps import next_step

    with connection.transaction():
        # Only now: another migrator may have been first.
        rows = stored_memories(connection, PLANS)
        step = next_step(options.shown, rows, target, DIALECT, from_us(now_us))
        if step is None:
            return False
        for statement in _with_texts(connection, step).statements:
            connection.command(statement)
        plans = PLANS[MEMORY_TYPE.name]
        plan = plans.insert if step.is_new else plans.upsert
        connection.run(plan, plans.codec.encode(step.row))
        connection.run(STATEMENTS["change.insert"], (os.urandom(16), step.record, now_us))
    return True


def _migrations(connection: SqliteConnection, options: OpenOptions) -> list[Migration]:
    applied = _applied(connection, options)
    check_migratable(options.shown, applied)
    return applied


def apply_versions(connection: SqliteConnection, options: OpenOptions, clock_us: Callable[[], int]) -> list[int]:
    """Apply every missing schema version, each in its own transaction; return those applied."""
    missing = missing_versions(_migrations(connection, options))
    return [version for version in missing if _apply(connection, options, version, clock_us())]


def _apply(connection: SqliteConnection, options: OpenOptions, version: int, now_us: int) -> bool:
    """Apply one schema version in its own transaction; return whether it was still missing."""
    statements = statements_of(version, DIALECT)
    with connection.transaction():
        applied = _migrations(connection, options)  # only now: another migrator may have been first
        if version not in missing_versions(applied):
            return False
        for statement in statements:
            connection.command(statement)
        for _, relation in changed_by(version):
            _check_table(connection, options, relation)
        # Other connections read the schema again. SQLite does that itself for ALTER TABLE and CREATE.
        connection.command(f"PRAGMA schema_version = {connection.pragma('schema_version') + 1}")
        plans = PLANS[SCHEMA_MIGRATION.name]
        row = migration_of(version, checksum_of(statements), now_us, applied[0].epoch)
        connection.run(plans.insert, plans.codec.encode(row))
        # Programs that have the store open see by its number that others committed, and check whether they may go on.
        entry = (SCHEMA_MIGRATION.code, UPSERT, version, version)
        connection.run(STATEMENTS["change.insert"], (os.urandom(16), pack_changes([entry]), now_us))
    return True


def _check_table(connection: SqliteConnection, options: OpenOptions, relation: Relation) -> None:
    """Refuse a table that lacks a column as it is declared. Raises: SchemaMismatch."""
    found = connection.command(f"SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = '{relation.name}'")
    for column in relation.columns:
        if not found or column_definition(relation, column, DIALECT) not in found[0][0]:
            raise SchemaMismatch(
                store=options.shown,
                reason=f"its column {relation.name}.{column.name} was changed from outside; restore a backup",
            )


def open_existing(options: OpenOptions, counter: Counter | None = None) -> SqliteConnection:
    """Return a connection to an existing store. Raises: Unavailable, SchemaMismatch."""
    if not options.in_memory:
        file = file_of(options)
        if not exists(file):
            raise Unavailable(
                f"there is no store at {file}; run `caliber create`, or check storage.path",
                reason="missing",
                retryable=False,
            )
    return SqliteConnection(options, counter or Counter(), memory_name=f"caliber-{uuid.uuid4()}")


def begin_read(connection: SqliteConnection, store: str) -> None:
    """Begin a transaction that reads. Raises: as ``check_allowed``."""
    check_allowed(connection, store, "min_reader_version", "BEGIN; ")


def check_allowed(connection: SqliteConnection, store: str, column: str, before: str = "") -> None:
    """Refuse a store whose migrations exclude this version from reading, or writing. Raises: SchemaMismatch."""
    rows = connection.command(f"{before}SELECT max({column}) FROM {SCHEMA_MIGRATION.name}")
    check_needed(store, rows[0][0] or 0)
