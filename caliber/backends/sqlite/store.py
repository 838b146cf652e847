"""SQLite implementation of ``Store``: opens a file, reads and writes it."""

from __future__ import annotations

import functools
import uuid
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from caliber.backends.sqlite.connecting.connection import (
    SqliteConnection,
    check_version,
)
from caliber.backends.sqlite.connecting.forks import FileNames
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.moving.fence import has_moved, state_of
from caliber.backends.sqlite.schema import (
    PLANS,
    baseline,
    begin_read,
    check_schema,
    file_of,
    open_existing,
    options_of,
    settings_of,
)
from caliber.backends.sqlite.searching.full_text import SqliteFullText
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.backends.sqlite.writer import SqliteWriter
from caliber.model.context import ContextPersistence
from caliber.model.errors import IncompatibleOptions
from caliber.model.joining import JOINED, joined_in, refuse_inside
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.plan import Dialect, plans_of
from caliber.storage.compile.session import Counter, StatementSession, store_closed
from caliber.storage.maintain.maintenance import elsewhere
from caliber.storage.protocol import (
    CommitSignal,
    ConnectionPool,
    Follower,
    RemoteEventListener,
    SequenceFeed,
    VectorIndexes,
)
from caliber.storage.sql.full_text import texts_of
from caliber.storage.sql.search_statements import with_memories
from caliber.storage.stored_memories import catalog_of, check_declared, declared_in
from caliber.storage.waiting import Places
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.backends.sqlite.maintaining.erasing import SqliteEraser
    from caliber.backends.sqlite.maintaining.maintenance import SqliteMaintenance
    from caliber.config import CaliberConfig

T = TypeVar("T")


class SqliteStore:
    """One open SQLite tenant. Source: C-474, K-178, design sections 3 and 4."""

    adapter = "sqlite"
    dialect: Dialect = DIALECT
    sees_every_commit = True
    capabilities = frozenset({"full text", "bulk"})

    def __init__(
        self, config: CaliberConfig, *, clock_us: Callable[[], int], connection_pool: ConnectionPool | None = None
    ) -> None:
        """Open an existing store; refuse one that does not exist or has another schema version."""
        if connection_pool is not None:
            raise IncompatibleOptions(
                option_a="connection_pool",
                option_b="storage.adapter = sqlite",
                reason="a SQLite file uses no connection pool",
            )
        check_version()
        self._options = options_of(config)
        self._counter = Counter()
        self._memory_name = f"caliber-{uuid.uuid4()}"
        declared = declared_in(config)
        self.feed = SequenceFeed(STATEMENTS)
        files = None if self._options.in_memory else FileNames(self._options.path)
        if self._options.in_memory:
            connection = SqliteConnection(self._options, self._counter, memory_name=self._memory_name, create=True)
            baseline(connection, clock_us(), declared)
        else:
            connection = open_existing(self._options, self._counter)
        try:
            self.epoch = check_schema(connection, self._options)
            self.catalog = catalog_of(connection, PLANS)
            check_declared(self._options.shown, self.catalog, declared)
            if not self._options.in_memory and connection.pragma("journal_mode") != "wal":
                connection.command("PRAGMA journal_mode = WAL")
            if files is not None:
                files.check()
        except BaseException:
            connection.close()
            raise
        self._files = connection.files = files
        self.plans = plans_of(self.catalog, PLANS, DIALECT)
        self.statements = with_memories(STATEMENTS, self.catalog, DIALECT)
        storage = settings_of(config)
        self._connection = connection
        self._writer = SqliteWriter(
            connection,
            self.plans,
            self.statements,
            self.catalog,
            store=self._options.shown,
            durability=storage.durability,
            keep_content=config.context_window_persistence.kind is not ContextPersistence.EPHEMERAL,
            busy_timeout_ms=storage.busy_timeout_ms,
            clock_us=clock_us,
        )
        self.vector_index: VectorIndexes | None = None
        self.full_text = SqliteFullText(
            self._writer.full_text, texts_of(self.catalog), self.plans, self._reading, self._transaction, clock_us
        )
        self.readers = Places(storage.readers)
        self._idle: list[SqliteConnection] = []
        self._data_version = self._ask_data_version()
        self._closed = self._released = False

    @functools.cached_property
    def eraser(self) -> SqliteEraser:
        """The eraser of this store."""
        from caliber.backends.sqlite.maintaining.erasing import SqliteEraser

        return SqliteEraser(self._options, self._outside, self._reading, self.close_readers)

    @functools.cached_property
    def maintenance(self) -> SqliteMaintenance:
        """The maintenance of this store."""
        from caliber.backends.sqlite.maintaining.maintenance import SqliteMaintenance

        return SqliteMaintenance(self._options, self.plans, self._reading, self._transaction, self._outside)

    def write(self, work: Callable[[UnitOfWork], T], *, exclusive: bool = False) -> T:
        self._check_open()
        if JOINED.get() is not None and (joined := joined_in(self)) is not None:
            return joined.run(work)  # type: ignore[no-any-return]
        return self._writer.write(work, exclusive=exclusive)

    def bulk_load(
        self, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting, progress: Progress
    ) -> BulkReport:
        from caliber.backends.sqlite import bulk

        self._check_open()
        refuse_inside("a load is a transaction of its own", self)
        plans, owners = self.plans[relation.name], self.catalog.embedded
        return self._writer.bulk(
            lambda connection, record: bulk.load(connection, plans, batches, on_existing, progress, record, owners)
        )

    def bulk_read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        from caliber.backends.sqlite import bulk

        with self.read() as session:
            yield from bulk.read(session, self.plans[relation.name], batch_rows)

    @managed
    def read(self) -> Iterator[StatementSession]:
        with self._reading() as connection:
            yield connection

    @managed
    def first_read(self) -> Iterator[StatementSession]:
        # On the writer's connection: every connection reads the schema again, the larger part of opening a store.
        with self._exclusive():
            connection = self._connection
            connection.require_writable()
            try:
                begin_read(connection, self._options.shown)
                state = state_of(connection)
                if state is not None:
                    raise elsewhere(self._options.shown, state)
                yield connection
            finally:
                if connection.in_transaction:
                    connection.command("ROLLBACK")

    @managed
    def _reading(self) -> Iterator[SqliteConnection]:
        self._check_open()
        if self._options.in_memory:  # where a reader waits for the writer
            refuse_inside("a call in it reads the database", self)
        holder = object()
        connection = None
        try:
            self.readers.take(holder)
            self._check_open()  # it may have been closed while this waited
            connection = self._idle_reader() or self._new_reader()
            try:
                begin_read(connection, self._options.shown)
                yield connection
            finally:
                try:
                    if connection.in_transaction:
                        connection.command("ROLLBACK")
                finally:
                    if not connection.is_inherited:
                        if self._closed or connection.in_transaction:  # its end was interrupted
                            connection.close()
                        else:
                            self._idle.append(connection)
        finally:
            if connection is None or not connection.is_inherited:  # a parent's thread may hold that lock for ever
                try:
                    self.readers.leave(holder)
                finally:
                    if holder in self.readers.holders:  # interrupted: in another thread no handler runs
                        start_new_thread(self.readers.leave, (holder,))

    def _new_reader(self) -> SqliteConnection:
        connection = SqliteConnection(self._options, self._counter, memory_name=self._memory_name)
        try:
            if self._files is not None:
                self._files.check()  # else it reads another file than the writer writes
        except BaseException:
            connection.close()
            raise
        connection.files = self._files
        return connection

    def _idle_reader(self) -> SqliteConnection | None:
        """Take the most recently used idle connection, if any; an interrupt here loses only that connection."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

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
        if self._files is not None:
            self._files.check()
        return changed

    def catch_up(self) -> None:
        if self._writer.follower is None or self._options.in_memory:
            return
        with self._exclusive():
            version = self._ask_data_version()
            try:
                begin_read(self._connection, self._options.shown)
                self._writer.follower.follow(self._connection)
            finally:
                if self._connection.in_transaction:
                    self._connection.command("ROLLBACK")
            # Only now: had applying failed, the next question must still be answered with yes.
            self._data_version = version

    def commit_signal(self) -> CommitSignal | None:
        from caliber.backends.sqlite.connecting.file_writes import writes_to  # only for a process that waits

        return writes_to(None if self._files is None else self._files.log)

    def require_remote_events(self) -> None:
        raise IncompatibleOptions(
            option_a="events.subscribe(remote=True)",
            option_b="storage.adapter = sqlite",
            reason="SQLite sends no events to other processes; use PostgreSQL with storage.feed_dsn, or remote=False",
        )

    def listen(self, handler: RemoteEventListener) -> None:
        """Do nothing: a file sends no notifications, so it is polled."""

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
        """Return the findings of SQLite's own check; empty when sound."""
        with self.read() as session:
            connection: SqliteConnection = session  # type: ignore[assignment]
            rows = connection.command("PRAGMA integrity_check(20)")
            broken = [str(row[0]) for row in rows if row[0] != "ok"]
            broken += [f"dangling reference in {row[0]}" for row in connection.command("PRAGMA foreign_key_check")]
        return broken

    def close(self) -> None:
        if self._released:
            return
        self._closed = True
        with self._writer.exclusive():
            self.close_readers()
            self._connection.close()
        self.readers.close()  # waiters; connections in use are closed when returned
        self._released = True

    def close_readers(self) -> None:
        """Close idle connections; those in use are closed when returned, and the next reader opens its own."""
        while (connection := self._idle_reader()) is not None:
            connection.close()

    @managed
    def _exclusive(self) -> Iterator[None]:
        """Keep transactions out while the writer's connection is used for something else."""
        self._check_open()
        refuse_inside("a call in it needs the connection of the writer", self)
        with self._writer.exclusive():
            self._check_open()  # it may have been closed while this waited
            yield

    @managed
    def _outside(self) -> Iterator[SqliteConnection]:
        """Lend the writer's connection outside transactions."""
        with self._exclusive():
            yield self._connection

    @managed
    def _transaction(self) -> Iterator[SqliteConnection]:
        """Run a write transaction of the store's own."""
        with self._exclusive(), self._connection.transaction():
            yield self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed()
