"""PostgreSQL implementation of ``Store``: opens a tenant's schema, reads and writes it."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from caliber.backends.postgres import schema as schemas
from caliber.backends.postgres.bulk.store import PostgresBulk
from caliber.backends.postgres.connecting.connection import BEGIN, COMMIT, CONNECT_TIMEOUT_MS, PgConnection, Shared
from caliber.backends.postgres.connecting.dialling import connect, dsn_of
from caliber.backends.postgres.connecting.errors import takes_no_writes
from caliber.backends.postgres.connecting.external_pool import ExternalPool
from caliber.backends.postgres.connecting.pool import Pool
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.maintaining.erasing import PostgresEraser
from caliber.backends.postgres.maintaining.maintenance import PostgresMaintenance
from caliber.backends.postgres.searching.full_text import FullTextWriter, PostgresFullText
from caliber.backends.postgres.searching.vector_index import PostgresVectorIndex
from caliber.backends.postgres.statements import holding, irregular, own, reserving
from caliber.backends.postgres.writing.feed import SnapshotFeed
from caliber.backends.postgres.writing.listener import Listener, place_of
from caliber.backends.postgres.writing.notify import CommitNotifier, channel_of, prefix_of
from caliber.backends.postgres.writing.writer import Limits, PostgresWriter
from caliber.model.context import ContextPersistence
from caliber.model.errors import InternalError, InvalidValue, MissingRequired, TransactionFailed
from caliber.model.joining import JOINED, joined_in, refuse_inside
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.memory_types import MemoryType
from caliber.schema.relation import Relation
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.plan import Dialect, Plan, plans_of
from caliber.storage.compile.session import StatementSession, store_closed
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.maintenance import FenceState, elsewhere
from caliber.storage.migrate.memory_steps import MigrationPlan, Wanted
from caliber.storage.protocol import CommitSignal, ConnectionPool, Follower, RemoteEventListener, VectorIndexes
from caliber.storage.sql.full_text import FullText, may_be_indexed, texts_of
from caliber.storage.sql.search_statements import with_memories
from caliber.storage.stored_memories import catalog_of, check_declared, declared_in
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from pathlib import Path

    from caliber.config import CaliberConfig, PostgresConfig
    from caliber.dump.archive import Archive

T = TypeVar("T")

POOL_TIMEOUT_MS: Final = 5_000
"""Longest wait for a free connection."""
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_opened = itertools.count()


def _settings(config: CaliberConfig) -> PostgresConfig:
    storage: Any = config.storage
    if storage.adapter != "postgres":
        raise InternalError("the PostgreSQL backend was given another adapter's configuration")
    settings: PostgresConfig = storage
    return settings


def shared_of(config: CaliberConfig, *, lent: bool = False) -> Shared:
    """Return the common state of a configured store's connections; those of an external pool need no DSN."""
    return shared_for(_settings(config), lent=lent)


def shared_for(settings: PostgresConfig, *, lent: bool = False) -> Shared:
    """As ``shared_of``, of the section alone."""
    return Shared(
        store=f"PostgreSQL schema {settings.schema_name}",
        dsn="" if lent else dsn_of(settings),
        # A pool between us and the server may lend one connection to several stores, one after the other.
        prefix=f"caliber_{os.getpid()}_{next(_opened)}_".encode(),
        prepared_max=settings.prepared_max,
        qualifier=f"{quote(settings.schema_name)}.",
        channel=None if settings.feed_dsn is None else channel_of(settings.schema_name),
    )


def create(config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None:
    """Create the store's schema. Raises: Conflict, SchemaMismatch, Unavailable, MissingRequired."""
    schemas.create(
        shared_of(config),
        _settings(config).schema_name,
        exist_ok=exist_ok,
        clock_us=clock_us,
        declared=declared_in(config),
    )


def migrate(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> list[int]:
    """Apply every missing schema version, all or none, then every step of memories; return the versions applied."""
    settings = _settings(config)
    timeout_ms = settings.lock_timeout_ms
    shared = shared_of(config)
    applied = schemas.migrate(shared, settings.schema_name, clock_us=clock_us, lock_timeout_ms=timeout_ms)
    target = Wanted(declared_in(config), tuple(drop))
    while schemas.take_step(shared, settings.schema_name, target, clock_us=clock_us, lock_timeout_ms=timeout_ms):
        pass
    return applied


def plan_migration(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> MigrationPlan:
    """Return the steps of ``migrate``. Raises: SchemaMismatch, InvalidValue (see ``memory_steps.next_step``)."""
    target = Wanted(declared_in(config), tuple(drop))
    return schemas.planned(shared_of(config), _settings(config).schema_name, target, clock_us=clock_us)


def restore(
    config: CaliberConfig, source: Archive | Path, *, replace: bool, clock_us: Callable[[], int], progress: Progress
) -> str:
    """Replace the tenant's records with an archive's; return its new epoch. Raises: see ``restoring``."""
    from caliber.backends.postgres.maintaining import restoring  # needs pyarrow, and few processes restore
    from caliber.dump.archive import Archive

    if not isinstance(source, Archive):
        raise InvalidValue(
            field=str(source),
            reason="is a file of SQLite; name it as storage.path, and back that store up as *.zip, which restores here",
        )
    return restoring.restore(
        shared_of(config), _settings(config), source, replace=replace, clock_us=clock_us, progress=progress
    )


class PostgresStore:
    """One open PostgreSQL tenant. Source: O-1, K-081, K-082, design sections 3 to 5."""

    adapter = "postgres"
    sees_every_commit = False
    capabilities = frozenset({"full text", "bulk"})

    def __init__(
        self,
        config: CaliberConfig,
        *,
        clock_us: Callable[[], int],
        connection_pool: ConnectionPool | None = None,
    ) -> None:
        settings = _settings(config)
        self._schema = settings.schema_name
        self._shared = shared_of(config, lent=connection_pool is not None)
        self._limits = Limits(settings.statement_timeout_ms, settings.lock_timeout_ms)
        self._closed = False
        self._feed_dsn = None if settings.feed_dsn is None else dsn_of(settings, settings.feed_dsn.resolve())
        self._polls = config.resident.feed_poll_ms > 0
        self._listener: Listener | None = None
        self._identity = identity = os.urandom(16)
        self._own: dict[str, Plan] = {}
        self._server: str | None = None
        self._pool: Pool | ExternalPool
        if connection_pool is None:
            self._pool = Pool(self._connect, size=settings.pool_max, timeout_ms=POOL_TIMEOUT_MS)
        else:
            self._pool = ExternalPool(connection_pool, self._arrived, timeout_ms=POOL_TIMEOUT_MS)
        try:
            dialect = self._open(declared_in(config))
            self.dialect: Dialect = dialect
            self.feed = SnapshotFeed(self._own, identity)
        except BaseException:
            self._pool.close()
            raise
        texts = texts_of(self.catalog)
        keeper = FullTextWriter(dialect, may_be_indexed(self.catalog))
        full_text = PostgresFullText(
            keeper, dialect, texts, self.plans, self.read, self._transaction, self._limits.lock_timeout_ms
        )
        self.full_text: FullText | None = full_text
        self._bulk = PostgresBulk(
            self._shared, self._pool.extra, dialect, self._limits.lock_timeout_ms, clock_us, full_text.loaded
        )
        self.vector_index: VectorIndexes | None = PostgresVectorIndex(
            config.vector,
            dialect,
            self._shared.vector_version,
            texts,
            self.read,
            self._transaction,
            self._bulk.connection,
            self._limits.lock_timeout_ms,
        )
        self.maintenance = PostgresMaintenance(self._bulk, dialect, self.plans, self._shared.store)
        self.eraser = PostgresEraser(
            self._bulk.connection, self._schema, holding(dialect, self.catalog), self._limits.lock_timeout_ms
        )
        self._writer = PostgresWriter(
            self._pool,
            self.plans,
            self.statements,
            self._own,
            self.feed,
            self.catalog,
            identity=identity,
            limits=self._limits,
            retries=settings.serialization_retries,
            durability=settings.durability,
            keep_content=config.context_window_persistence.kind is not ContextPersistence.EPHEMERAL,
            catch_up=self.catch_up,
            clock_us=clock_us,
            full_text=keeper,
            notifier=None if settings.feed_dsn is None else CommitNotifier(self._schema, identity),
        )

    def _open(self, declared: Sequence[MemoryType]) -> PostgresDialect:
        """Check the server and the schema, and make the plans for them."""
        with self._pool.connection(ask=True) as connection:
            dialect = schemas.require_store(connection, self._schema, self._shared.store)
            plans = schemas.compile_plans(dialect)
            self._own = own(dialect)
            self.epoch = schemas.check_schema(connection, plans, self._shared.store)
            self.catalog = catalog_of(connection, plans)
            check_declared(self._shared.store, self.catalog, declared)
            self.plans = plans_of(self.catalog, plans, dialect)
            self.statements = with_memories(irregular(dialect), self.catalog, dialect)
            self._shared.ordinals.plans = reserving(dialect, self.catalog)
            self._shared.ordinals.in_order = frozenset(each.name for each in self.catalog.relations if each.in_order)
            self._server = connection.run(self._own["session.server"], ())[0][0]
        return dialect

    def _connect(self, deadline: float | None) -> PgConnection:
        connection = connect(self._shared, deadline)
        try:
            self.look_at(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _arrived(self, raw: psycopg.Connection[Any], deadline: float | None) -> PgConnection:
        connection = PgConnection(raw, self._shared)
        connection.deadline = deadline
        self.look_at(connection)
        return connection

    def look_at(self, connection: PgConnection) -> None:
        """Notice that a new connection leads to another server, or to one that was restarted."""
        if self._server is None:
            return
        connection.silence_ms = CONNECT_TIMEOUT_MS
        server = connection.run(self._own["session.server"], ())[0][0]
        connection.silence_ms = None
        if server != self._server:
            self.feed.must_reload = True  # it may have been restored to an earlier state
            self._shared.ordinals.forget()
        self._server = server

    def write(self, work: Callable[[UnitOfWork], T], *, exclusive: bool = False) -> T:
        self._check_open()
        if JOINED.get() is not None and (joined := joined_in(self)) is not None:
            return joined.run(work)  # type: ignore[no-any-return]
        return self._writer.write(work, exclusive=exclusive)

    @managed
    def read(self) -> Iterator[StatementSession]:
        self._check_open()
        with self._pool.connection(ask=True) as connection:
            connection.silence_ms = self._limits.statement_timeout_ms or None  # the server itself ends it by then
            connection.open(_SNAPSHOT, self._own["session.limits"], self._limits.within(None))
            yield connection

    @managed
    def first_read(self) -> Iterator[StatementSession]:
        with self.read() as session:
            has_fence, moved, read_only = session.run(self._own["session.writable"], ())[0]
            if has_fence or moved:
                raise elsewhere(self._shared.store, FenceState.MOVED if moved else FenceState.MOVING)
            if read_only:
                raise takes_no_writes(self._shared.store)
            yield session

    @managed
    def _transaction(self, lock_timeout_ms: int) -> Iterator[PgConnection]:
        """Lend a connection in a transaction that changes no record, as long as it takes but for locks."""
        self._check_open()
        with self._pool.connection(ask=True) as connection:
            connection.open(BEGIN, self._own["session.limits"], ("0", str(lock_timeout_ms)))
            yield connection
            if connection.exchange(COMMIT)[-1].command_status != b"COMMIT":
                raise TransactionFailed(reason="the server rolled it back", retryable=True)

    def follow(self, follower: Follower | None) -> None:
        self._writer.follower = follower

    def changed_elsewhere(self) -> bool:
        self._check_open()
        question = self.feed.question()
        with self._pool.connection(ask=True) as connection:
            if question is None or self.feed.must_reload:
                return True
            foreign, moved = connection.run(self._own["feed.foreign"], question)[0]
        if moved:
            raise elsewhere(self._shared.store)
        return bool(foreign)

    def catch_up(self) -> None:
        follower = self._writer.follower
        if follower is None:
            return
        try:
            with self.read() as session:
                follower.follow(session)
        except BaseException:
            self.feed.must_reload = True  # it may have taken note of news that then could not be applied
            raise

    def commit_signal(self) -> CommitSignal | None:
        return None

    def require_remote_events(self) -> None:
        if self._feed_dsn is None:
            raise MissingRequired(
                "storage.feed_dsn is required to hear other processes' events: name a variable with a DSN that leads to"
                " the database without a pool in between, in the configuration of every process of the tenant",
                field="storage.feed_dsn",
            )

    def listen(self, handler: RemoteEventListener) -> None:
        if self._feed_dsn is None:
            return
        with self._pool.connection(ask=True) as connection:
            place = place_of(connection)
        shared = dataclasses.replace(self._shared, dsn=self._feed_dsn, setting="storage.feed_dsn")
        self._listener = Listener(shared, store_name=self._identity.hex(), place=place, handler=handler)
        self._listener.start()

    def bulk_load(
        self, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting, progress: Progress
    ) -> BulkReport:
        self._check_open()
        refuse_inside("a load is a transaction of its own", self)
        report = self._bulk.load(relation, batches, on_existing, progress, self.catalog.embedded)
        self._writer.apply_foreign_changes()
        return report

    def bulk_read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        self._check_open()
        return self._bulk.read(relation, batch_rows)

    def statement_count(self) -> int:
        return self._shared.counter.here()

    def facts(self) -> dict[str, Any]:
        with self.read() as session:
            connection: PgConnection = session  # type: ignore[assignment]
            size = connection.run(self._own["store.bytes"], (self._schema,))[0][0]
            version, commit, fsync = connection.command(
                "SELECT current_setting('server_version'), current_setting('synchronous_commit'),"
                " current_setting('fsync')"
            )[0]
        driver = f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__} implementation)"
        return {
            "adapter": self.adapter,
            "path": self._shared.store,
            "summary": f"PostgreSQL {version}, synchronous_commit {commit}, fsync {fsync}, {driver}",
            "schema": self._schema,
            "postgres": version,
            "driver": psycopg.__version__,
            "driver_implementation": psycopg.pq.__impl__,
            "synchronous": "full" if fsync == "on" else "off",
            "synchronous_commit": commit,
            "bytes": size,
            "feed": self._feed_facts(),
            "commits": self._writer.commits,
            "retried": self._writer.retried,
            "connections_made": self._pool.made,
            "connections_replaced": self._pool.replaced,
        }

    def _feed_facts(self) -> dict[str, Any]:
        listener = self._listener
        mode = "polling" if self._polls else "asking"
        if listener is None:
            return {"mode": mode}
        return {
            "mode": "listening" if listener.listening else mode,
            "notifications": listener.notifications,
            "connections": listener.connections,
            "fault": listener.fault,
            "channels": prefix_of(self._schema) + "*",
        }

    def integrity(self) -> list[str]:
        """Return the missing or invalid parts of the schema; empty when sound."""
        with self.read() as session:
            faults = [row[0] for row in session.run(self._own["store.faults"], (self._schema,))]
            present = {row[0] for row in session.run(self._own["store.columns"], (self._schema,))}
        declared = (
            (relation.name, name)
            for relation in self.catalog.relations
            for name in self.plans[relation.name].codec.names
        )
        faults += [
            f"column {name} of {table} is missing" for table, name in declared if f"{table}.{name}" not in present
        ]
        return faults

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.stop()
        self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed()
