"""A SQLite file as a CALIBER store: create, migrate, open, read and write."""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from caliber.backends.sqlite.connection import (
    APPLICATION_ID,
    Counter,
    OpenOptions,
    SqliteConnection,
    check_version,
)
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.erasing import SqliteEraser
from caliber.backends.sqlite.fence import has_moved
from caliber.backends.sqlite.full_text import SqliteFullText
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.backends.sqlite.writer import SqliteWriter
from caliber.model.enums import ContextPersistence
from caliber.model.errors import Conflict, InternalError, SchemaMismatch, Unavailable
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import RELATIONS, SCHEMA_MIGRATION
from caliber.schema.relations.runtime import Migration
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting, Progress
from caliber.storage.feed import SequenceFeed
from caliber.storage.migrations import MIGRATIONS, SCHEMA_VERSION, check_versions
from caliber.storage.moved import elsewhere
from caliber.storage.plan import RelationPlans, compile_relation
from caliber.storage.protocol import Follower
from caliber.storage.session import StatementSession
from caliber.storage.unit_of_work import UnitOfWork
from caliber.storage.vector_index import VectorIndexes

if TYPE_CHECKING:
    from caliber.backends.sqlite.care import SqliteCare
    from caliber.config import CaliberConfig, StorageConfig

T = TypeVar("T")

_HEADER = b"SQLite format 3\x00"

PLANS: dict[str, RelationPlans] = {relation.name: compile_relation(relation, DIALECT) for relation in RELATIONS}


def _settings(config: CaliberConfig) -> StorageConfig:
    storage: Any = config.storage
    if storage.adapter != "sqlite":
        raise InternalError("the SQLite backend was given another adapter's configuration")
    settings: StorageConfig = storage
    return settings


def options_of(config: CaliberConfig) -> OpenOptions:
    """Return the connection's knobs from the configuration."""
    return options_for(_settings(config))


def options_for(storage: StorageConfig) -> OpenOptions:
    """As ``options_of``, of the section alone."""
    path = storage.resolve_path()
    return OpenOptions(
        # Absolute: connections are made later too, when the program may have changed its directory.
        path=path if storage.in_memory else os.path.abspath(path),  # noqa: PTH100  (links stay as they are)
        busy_timeout_ms=storage.busy_timeout_ms,
        mmap_bytes=storage.mmap_bytes,
        cache_kib=storage.cache_kib,
        wal_autocheckpoint_pages=storage.wal_autocheckpoint_pages,
        statement_cache=storage.statement_cache,
    )


def file_of(options: OpenOptions) -> Path:
    """Return where the file of a store is."""
    return Path(options.path)


def _exists(file: Path) -> bool:
    """Return whether there is something at a path. Raises: Unavailable where that cannot be asked."""
    try:
        return file.exists()
    except OSError as error:
        raise Unavailable(
            f"{file.name[:100]} is unavailable (cannot open): the path cannot be looked up; correct storage.path, or"
            " make its folders accessible",
            reason="cannot open",
            retryable=False,
        ) from error


def checksum(statements: list[str]) -> bytes:
    """Return what a schema version's statements are known by."""
    return hashlib.sha256("\n".join(statements).encode()).digest()


def baseline(connection: SqliteConnection, now_us: int) -> None:
    """Create every relation and record the schema version, in one transaction."""
    statements = [statement for plans in PLANS.values() for statement in plans.create]
    connection.command("BEGIN IMMEDIATE")
    try:
        for statement in statements:
            connection.command(statement)
        row = Migration(
            schema_version=SCHEMA_VERSION,
            name="baseline",
            checksum=checksum(statements),
            min_reader_version=MIGRATIONS[SCHEMA_VERSION].min_reader_version,
            min_writer_version=MIGRATIONS[SCHEMA_VERSION].min_writer_version,
            epoch=str(uuid.uuid4()),
            applied_at=from_us(now_us),
        )
        plans = PLANS[SCHEMA_MIGRATION.name]
        connection.run(plans.insert, plans.codec.encode(row))
        connection.command(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.command("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.command("ROLLBACK")
        raise


def create(config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None:
    """Create the store's file and schema.

    Raises: Conflict when the file is there already and ``exist_ok`` is false; Unavailable when it cannot be made.
    """
    check_version()
    options = options_of(config)
    if options.in_memory:
        raise SchemaMismatch(store=":memory:", reason="a store in memory is created by opening it; just open it")
    file = file_of(options)
    if _exists(file) and not is_blank(file, options):
        if not exist_ok:
            raise Conflict(
                entity_type="store", id=str(file), reason="it exists already; open it, or pass exist_ok=True"
            )
        connection = SqliteConnection(options, Counter(), memory_name="")
        try:
            check_schema(connection, options, writing=True)
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
        baseline(connection, clock_us())
        connection.command("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    sync_folder(file.parent)


def is_blank(file: Path, options: OpenOptions) -> bool:
    """Return whether nothing was ever created in a file: it is empty, or what a cut short creation left."""
    try:
        with file.open("rb") as handle:
            header = handle.read(len(_HEADER))
    except OSError:
        return False  # a folder, or not ours to read: opening it will say so
    if header != _HEADER:
        return not header
    connection = SqliteConnection(options, Counter(), memory_name="")
    try:
        return _holds_nothing(connection)
    finally:
        connection.close()


def _holds_nothing(connection: SqliteConnection) -> bool:
    objects: int = connection.command("SELECT count(*) FROM sqlite_schema")[0][0]
    return not objects and connection.pragma("application_id") == 0


def sync_folder(folder: Path) -> None:
    """Have what was created or removed in a folder survive the loss of power."""
    # A new file survives a crash only once its directory entry is on disk too.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _applied(connection: SqliteConnection, options: OpenOptions) -> list[Migration]:
    application_id = connection.pragma("application_id")
    if application_id != APPLICATION_ID:
        empty = _holds_nothing(connection) and is_blank(file_of(options), options)
        raise SchemaMismatch(
            store=options.shown,
            reason="the file is empty; run `caliber create`"
            if empty
            else "the file is not a CALIBER store; choose another path",
        )
    plans = PLANS[SCHEMA_MIGRATION.name]
    rows = connection.run(plans.lists["list_all"], ())
    return [plans.codec.decode(row) for row in rows]


def check_schema(connection: SqliteConnection, options: OpenOptions, *, writing: bool) -> str:
    """Return the epoch of a store that this version may use. Raises: SchemaMismatch."""
    applied = _applied(connection, options)
    check_versions(options.shown, applied, writing=writing)
    return str(applied[0].epoch)


def migrate(config: CaliberConfig, *, clock_us: Callable[[], int]) -> list[int]:
    """Apply every missing schema version, each in its own transaction; return the versions applied."""
    options = options_of(config)
    connection = _open_existing(options)
    try:
        applied = _applied(connection, options)
        done = {migration.schema_version for migration in applied}
        out = []
        for version in sorted(MIGRATIONS):
            step = MIGRATIONS[version]
            if version in done or version <= min(done):
                continue
            connection.command("BEGIN IMMEDIATE")
            try:
                for statement in step.statements(DIALECT.name):
                    connection.command(statement)
                plans = PLANS[SCHEMA_MIGRATION.name]
                row = Migration(
                    version,
                    step.name,
                    checksum(list(step.statements(DIALECT.name))),
                    step.min_reader_version,
                    step.min_writer_version,
                    applied[0].epoch,
                    from_us(clock_us()),
                )
                connection.run(plans.insert, plans.codec.encode(row))
                connection.command("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.command("ROLLBACK")
                raise
            out.append(version)
        return out
    finally:
        connection.close()


def _open_existing(options: OpenOptions, counter: Counter | None = None) -> SqliteConnection:
    if not options.in_memory:
        file = file_of(options)
        if not _exists(file):
            raise Unavailable(
                f"there is no store at {file}; run `caliber create`, or check storage.path",
                reason="missing",
                retryable=False,
            )
        if file.is_dir():
            raise SchemaMismatch(store=str(file), reason="it is a folder; storage.path must name a file")
    return SqliteConnection(options, counter or Counter(), memory_name=f"caliber-{uuid.uuid4()}")


class SqliteStore:
    """One open SQLite tenant. Source: C-474, K-178, design sections 3 and 4."""

    adapter = "sqlite"
    capabilities = frozenset({"feed", "group_commit", "full_text", "bulk"})

    def __init__(self, config: CaliberConfig, *, clock_us: Callable[[], int]) -> None:
        check_version()
        self._options = options_of(config)
        self._counter = Counter()
        self._memory_name = f"caliber-{uuid.uuid4()}"
        self.plans = PLANS
        self.statements = STATEMENTS
        self.feed = SequenceFeed(STATEMENTS)
        if self._options.in_memory:
            connection = SqliteConnection(self._options, self._counter, memory_name=self._memory_name, create=True)
            baseline(connection, clock_us())
        else:
            connection = _open_existing(self._options, self._counter)
        try:
            self.epoch = check_schema(connection, self._options, writing=True)
            if not self._options.in_memory and connection.pragma("journal_mode") != "wal":
                connection.command("PRAGMA journal_mode = WAL")
        except BaseException:
            connection.close()
            raise
        storage = _settings(config)
        self._connection = connection
        self._writer = SqliteWriter(
            connection,
            PLANS,
            STATEMENTS,
            durability=storage.durability,
            keep_content=config.context_window_persistence.kind is not ContextPersistence.EPHEMERAL,
            group_max_batch=storage.group_max_batch,
            group_wait_us=storage.group_wait_us,
            busy_timeout_ms=storage.busy_timeout_ms,
            clock_us=clock_us,
        )
        self.vector_index: VectorIndexes | None = None
        self.full_text = SqliteFullText(self._writer.full_text, PLANS, self._reading, self._transaction, clock_us)
        self.eraser = SqliteEraser(self._options, self._outside, self._reading)
        self._readers_max = storage.readers
        self._readers: queue.LifoQueue[SqliteConnection | None] = queue.LifoQueue()
        for _ in range(self._readers_max):
            self._readers.put(None)
        self._data_version = self._ask_data_version()
        self._closed = False

    @functools.cached_property
    def care(self) -> SqliteCare:
        """What looks after the store."""
        from caliber.backends.sqlite.care import SqliteCare

        return SqliteCare(self._options, PLANS, self._reading, self._transaction, self._outside)

    def write(self, work: Callable[[UnitOfWork], T], *, deadline_ms: int | None = None) -> T:
        self._check_open()
        return self._writer.write(work, deadline_ms=deadline_ms)

    def bulk_load(
        self, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting, progress: Progress
    ) -> BulkReport:
        from caliber.backends.sqlite import bulk

        self._check_open()
        plans = PLANS[relation.name]
        return self._writer.bulk(
            lambda connection, record: bulk.load(connection, plans, batches, on_existing, progress, record)
        )

    def bulk_read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        from caliber.backends.sqlite import bulk

        with self.read() as session:
            yield from bulk.read(session, PLANS[relation.name], batch_rows)

    @contextmanager
    def read(self) -> Iterator[StatementSession]:
        with self._reading() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[SqliteConnection]:
        self._check_open()
        connection = self._readers.get()
        if self._closed:
            self._readers.put(connection)  # for whoever else waits
            self._check_open()
        if connection is None:
            try:
                connection = SqliteConnection(self._options, self._counter, memory_name=self._memory_name)
            except BaseException:
                self._readers.put(None)
                raise
        try:
            connection.command("BEGIN")
            yield connection
        finally:
            try:
                if connection.in_transaction:
                    connection.command("ROLLBACK")
            finally:
                if self._closed:
                    connection.close()
                self._readers.put(None if self._closed else connection)

    def follow(self, follower: Follower | None) -> None:
        self._writer.follower = follower

    def changed_elsewhere(self) -> bool:
        # Asked on the writer's connection and outside its transactions: a reader's connection would also
        # report our own commits (design, section 5).
        if self._options.in_memory:
            return False
        with self._exclusive():
            changed = self._ask_data_version() != self._data_version
            moved = changed and has_moved(self._connection)
        if moved:
            raise elsewhere(self._options.shown)
        return changed

    def catch_up(self) -> None:
        if self._writer.follower is None or self._options.in_memory:
            return
        with self._exclusive():
            version = self._ask_data_version()
            self._connection.command("BEGIN")
            try:
                self._writer.follower.follow(self._connection)
            finally:
                self._connection.command("ROLLBACK")
            # Only now: had applying failed, the next question must still be answered with yes.
            self._data_version = version

    def listen(self, heard: Callable[[], None], failed: Callable[[str, BaseException], None]) -> None:
        """A file tells nobody: it is polled."""

    def _ask_data_version(self) -> int:
        return int(self._connection.pragma("data_version"))

    def statement_count(self) -> int:
        return self._counter.here()

    def facts(self) -> dict[str, Any]:
        with self._exclusive():
            page_size = self._connection.pragma("page_size")
            pages = self._connection.pragma("page_count")
            journal = self._connection.pragma("journal_mode")
            synchronous = self._connection.pragma("synchronous")
        facts: dict[str, Any] = {
            "adapter": self.adapter,
            "path": self._options.shown,
            "sqlite": apsw.sqlite_lib_version(),
            "apsw": apsw.apsw_version(),
            "journal_mode": journal,
            "synchronous": {0: "off", 1: "normal", 2: "full", 3: "extra"}.get(synchronous, str(synchronous)),
            "bytes": page_size * pages,
            "commits": self._writer.commits,
        }
        facts["summary"] = f"journal {journal}, synchronous {facts['synchronous']}, SQLite {facts['sqlite']}"
        wal = Path(str(file_of(self._options)) + "-wal")
        facts["wal_bytes"] = wal.stat().st_size if wal.exists() else 0
        return facts

    def integrity(self) -> list[str]:
        """Return what SQLite's own check finds; empty when sound."""
        with self.read() as session:
            connection: SqliteConnection = session  # type: ignore[assignment]
            rows = connection.command("PRAGMA integrity_check(20)")
            broken = [str(row[0]) for row in rows if row[0] != "ok"]
            broken += [f"dangling reference in {row[0]}" for row in connection.command("PRAGMA foreign_key_check")]
        return broken

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._writer.exclusive():
            while True:
                try:
                    connection = self._readers.get_nowait()
                except queue.Empty:
                    break
                if connection is not None:
                    connection.close()
            self._connection.close()
        self._readers.put(None)  # wakes who waits for a connection; those in use are closed when given back

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep transactions out while the writer's connection is used for something else."""
        self._check_open()
        with self._writer.exclusive():
            self._check_open()  # it may have been closed while this waited
            yield

    @contextmanager
    def _outside(self) -> Iterator[SqliteConnection]:
        """Lend the writer's connection outside transactions."""
        with self._exclusive():
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[SqliteConnection]:
        """Run a write transaction of the store's own."""
        with self._exclusive():
            self._connection.command("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.command("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.command("ROLLBACK")

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed; open it again", reason="closed", retryable=False)
