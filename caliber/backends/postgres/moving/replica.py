"""PostgreSQL as source or target of a tenant move: reads and writes rows by COPY, adds constraints at the end.

An unfinished copy is a schema whose comment names the move and the attempt; every transaction of an attempt first
checks that it still owns the copy. Its tables have keys only: rules and references between rows would refuse them one
by one, and indexes are built faster over existing rows. ``fence`` and those after it keep every program from writing
to a tenant that moves. Source: docs/decisions/0131.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import RawCursor

from caliber.backends.postgres import schema as schemas
from caliber.backends.postgres.bulk.copying import columns_in, copy_in, keys_of, pieces_of, read, sent
from caliber.backends.postgres.connecting.dialling import connect
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.maintaining.maintenance import PostgresSnapshot
from caliber.backends.postgres.schema import catalog_in
from caliber.backends.postgres.searching.search_plans import state_table
from caliber.backends.postgres.statements import ADVISORY_CLASS, FENCE, MOVED, own
from caliber.backends.postgres.store import shared_for
from caliber.backends.postgres.writing.notify import channel_of
from caliber.config.storage import PostgresConfig
from caliber.dump.dumped_relations import BATCH_ROWS
from caliber.dump.moving import Key, no_store, something_else, taken_over
from caliber.model.errors import CaliberError, Unavailable
from caliber.model.process.interrupts import managed
from caliber.model.time import from_us
from caliber.schema.catalog import Catalog
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import BY_NAME, CHANGE, MEMORY_TYPE, RELATIONS, SCHEMA_MIGRATION
from caliber.schema.relations.storage import TABLE_PREFIX
from caliber.storage.compile.plan import compile_relation, plans_of
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.maintain.maintenance import FenceState
from caliber.storage.migrate.migrations import baseline_of, checksum_of

Connection = psycopg.Connection[Any]

_MARK: Final = "caliber move "


class _Reading(PostgresSnapshot):
    """See ``Reading``; one REPEATABLE READ transaction."""

    def __init__(self, connection: Connection, dialect: PostgresDialect, finished: bool) -> None:
        super().__init__(connection, dialect)
        self._own = own(dialect)
        self.mark: str = self._one("SELECT pg_current_snapshot()::text") if finished else ""
        versions = dialect.table(SCHEMA_MIGRATION.name)
        self.schema_version: int = self._one(f"SELECT coalesce(max(schema_version), 0) FROM {versions}")

    def _one(self, text: str, *parameters: Any) -> Any:
        with RawCursor(self._connection) as cursor:
            row = cursor.execute(text, parameters).fetchone()
        return None if row is None else row[0]

    def some(self, relation: Relation, ordinals: list[int]) -> Iterator[Any]:
        numbers = ", ".join(map(str, ordinals))
        return read(self._connection, self._dialect.table, relation, BATCH_ROWS, f"WHERE ordinal IN ({numbers})")

    def changes_since(self, mark: Any) -> list[bytes] | None:
        if self._one(self._own["feed.reach"].sql, mark):
            return None
        with RawCursor(self._connection) as cursor:
            return [bytes(row[2]) for row in cursor.execute(self._own["feed.since"].sql, (mark,))]


class _Writing:
    """See ``Writing``."""

    def __init__(self, connection: Connection, dialect: PostgresDialect) -> None:
        self._connection = connection
        self._dialect = dialect

    def remove_between(self, relation: Relation, after: Key | None, upto: Key | None) -> None:
        row = f"ROW({', '.join(keys_of(relation))})"
        conditions: list[str] = []
        values: list[Any] = []
        for sign, bound in ((">", after), ("<=", upto)):
            if bound is not None:
                marks = ", ".join(f"${len(values) + at}" for at in range(1, len(bound) + 1))
                conditions.append(f"{row} {sign} ROW({marks})")
                # PostgreSQL compares the columns of ids with UUIDs, not bytes.
                ids = [relation.column(name).type is ColumnType.UUID for name in relation.key]
                values += (uuid.UUID(bytes=value) if is_id else value for is_id, value in zip(ids, bound, strict=True))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._execute(f"DELETE FROM {self._dialect.table(relation.name)}{where}", values)

    def remove(self, relation: Relation, ordinals: list[int]) -> None:
        table = self._dialect.table(relation.name)
        self._execute(f"DELETE FROM {table} WHERE ordinal = ANY ($1::bigint[])", [ordinals])

    def _execute(self, text: str, values: list[Any]) -> None:
        with RawCursor(self._connection) as cursor:
            cursor.execute(text.encode(), values)

    def add(self, relation: Relation, batches: Iterable[Any]) -> None:
        pieces = (piece for batch in batches for piece in pieces_of(sent(relation, batch)))
        copy_in(self._connection, columns_in(self._dialect.table(relation.name), relation), pieces)


class PostgresReplica:
    """See ``Replica``."""

    def __init__(self, settings: PostgresConfig, *, clock_us: Callable[[], int]) -> None:
        self._schema = settings.schema_name
        self._shared = shared_for(settings)
        self._clock_us = clock_us
        self._known: PostgresDialect | None = None
        self.shown = self._shared.store

    def close(self) -> None:
        """Its connections are closed after each use."""

    # --- connections -----------------------------------------------------------------------------

    @managed
    def _connection(self) -> Iterator[Connection]:
        opened = connect(self._shared)
        failed: CaliberError
        try:
            if self._known is None:
                schemas.check_server(opened, self._shared.store)
                self._known = schemas.dialect_for(opened, self._schema, self._shared.store)
            opened.pg.exit_pipeline_mode()  # where there can be no COPY
            yield opened.raw
        except psycopg.Error as error:
            failed = translate_driver(error, self._shared.store)
        else:
            return
        finally:
            opened.close()
        raise failed from failed.__cause__

    @property
    def _dialect(self) -> PostgresDialect:
        assert self._known is not None
        return self._known

    @managed
    def reading(self) -> Iterator[_Reading]:
        with self._connection() as connection, connection.transaction():
            connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(b"SET LOCAL statement_timeout = 0")
            connection.execute(b"SET LOCAL idle_in_transaction_session_timeout = 0")
            yield _Reading(connection, self._dialect, self._comment(connection) is None)

    @managed
    def _alone(self, connection: Connection) -> Iterator[None]:
        """Run a transaction that no other attempt's runs beside."""
        with connection.transaction():
            connection.execute(b"SET LOCAL statement_timeout = 0")
            connection.execute(b"SET LOCAL synchronous_commit = on")
            connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_CLASS, self._schema))
            yield

    @managed
    def writing(self, token: str) -> Iterator[_Writing]:
        with self._connection() as connection, self._alone(connection):
            self._require_ours(connection, token)
            yield _Writing(connection, self._dialect)

    # --- the state of a copy ---------------------------------------------------------------------

    def _comment(self, connection: Connection) -> str | None:
        """Return the note on an unfinished move in the schema's comment."""
        row = connection.execute(
            b"SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (self._schema,)
        ).fetchone()
        text = None if row is None else row[0]
        return text.removeprefix(_MARK) if text is not None and text.startswith(_MARK) else None

    def _require_ours(self, connection: Connection, token: str) -> None:
        comment = self._comment(connection)
        if comment is None or comment.split()[1] != token:
            raise taken_over(self._schema)

    def _mark(self, connection: Connection, epoch: str, token: str) -> None:
        schema = quote(self._schema)
        connection.execute(f"COMMENT ON SCHEMA {schema} IS '{_MARK}{epoch} {token}'".encode())

    def _epoch(self, connection: Connection) -> str | None:
        """Return the epoch of a complete store, or None if there is none."""
        tables = self._tables(connection)
        if SCHEMA_MIGRATION.name not in tables:
            return None
        table = self._dialect.table(SCHEMA_MIGRATION.name)
        row = connection.execute(f"SELECT epoch FROM {table} LIMIT 1".encode()).fetchone()
        return None if row is None else str(row[0])

    def _tables(self, connection: Connection) -> set[str]:
        rows = connection.execute(
            b"SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            b" WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
            (self._schema,),
        )
        return {row[0] for row in rows}

    def _drop(self, connection: Connection) -> None:
        """Empty the schema, and drop it where we may."""
        connection.execute(f"DROP SCHEMA IF EXISTS {quote(self._schema)} CASCADE".encode())

    # --- where it goes ---------------------------------------------------------------------------

    def prepare(self, epoch: str, token: str, catalog: Catalog) -> bool:
        with self._connection() as connection, self._alone(connection):
            comment = self._comment(connection)
            if comment is not None and comment.split()[0] == epoch:
                self._mark(connection, epoch, token)
                self._make_memories(connection, catalog)
                return False
            tables = self._tables(connection)
            if tables and comment is None and self._epoch(connection) == epoch:
                self._empty(connection, tables)  # an attempt that ended between its last two steps
            elif tables or comment is not None:
                raise something_else(self.shown)
            found = connection.execute(b"SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone()
            if found is None:
                connection.execute(f"CREATE SCHEMA {quote(self._schema)}".encode())
            self._mark(connection, epoch, token)
            for relation in RELATIONS:
                connection.execute(self._bare(relation))
            self._make_memories(connection, catalog)
        return True

    def _bare(self, relation: Relation) -> bytes:
        bare = dataclasses.replace(relation, uniques=(), foreign_keys=(), paths=(), _by_name={})
        return compile_relation(bare, self._dialect).create[0].encode()

    def _make_memories(self, connection: Connection, catalog: Catalog) -> None:
        """Recreate the tables of memories: an earlier attempt may have copied others."""
        for name in self._tables(connection):
            if name.startswith(TABLE_PREFIX) and name not in BY_NAME:
                connection.execute(f"DROP TABLE {self._dialect.table(name)} CASCADE".encode())
        for relation in catalog.declared_relations:
            connection.execute(self._bare(relation))

    def _empty(self, connection: Connection, tables: Iterable[str]) -> None:
        for name in sorted(tables):
            connection.execute(f"DROP TABLE IF EXISTS {self._dialect.table(name)} CASCADE".encode())
        for name in (FENCE, MOVED):
            connection.execute(f"DROP FUNCTION IF EXISTS {self._dialect.table(name)}() CASCADE".encode())

    def finish(self, epoch: str, token: str, numbers: Mapping[str, int], catalog: Catalog) -> None:
        with self._connection() as connection:
            with self._alone(connection):
                self._require_ours(connection, token)
                plans = schemas.compile_plans(self._dialect)
                own_tables = state_table(self._dialect)
                statements = [statement for plan in plans.values() for statement in plan.create]
                for statement in own_tables:
                    connection.execute(statement.encode())
                for each in plans_of(catalog, plans, self._dialect).values():
                    for statement in each.create[1:]:
                        connection.execute(statement.encode())
                for relation in catalog.relations:
                    for statement in self._references(relation):
                        connection.execute(statement.encode())
                self._go_on_from(connection, numbers, catalog)
                self._record(connection, epoch, checksum_of([*statements, *own_tables]))
                connection.execute(f"COMMENT ON SCHEMA {quote(self._schema)} IS NULL".encode())
            for relation in catalog.relations:
                connection.execute(f"ANALYZE {self._dialect.table(relation.name)}".encode())

    def _references(self, relation: Relation) -> Iterator[str]:
        for key in relation.foreign_keys:
            yield (
                f"ALTER TABLE {self._dialect.table(relation.name)} ADD FOREIGN KEY ({quote(key.column)})"
                f" REFERENCES {self._dialect.table(key.relation)} ({quote(key.target)})"
                f" ON DELETE {key.on_delete.upper()}"
            )

    def _go_on_from(self, connection: Connection, numbers: Mapping[str, int], catalog: Catalog) -> None:
        """Give out no ordinal again, and number changes on from the last one, which readers look for."""
        for relation in catalog.relations:
            last = numbers.get(relation.name, 0)
            if last:
                column = "ordinal" if relation.ordinal else "sequence"
                sequence = self._dialect.table(f"{relation.name}_{column}_seq")
                connection.execute(b"SELECT setval(%s::regclass, %s)", (sequence, last))
        last = numbers.get(CHANGE.name, 0)
        if last:
            table = self._dialect.table(CHANGE.name)
            connection.execute(
                f"INSERT INTO {table} (sequence, writer, entries, created_at) VALUES (%s, %s, %s, %s)".encode(),
                (last, os.urandom(16), b"", from_us(self._clock_us())),
            )

    def _record(self, connection: Connection, epoch: str, checksum: bytes) -> None:
        row = baseline_of(checksum, self._clock_us(), epoch)
        values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        names = quote_all(values)
        marks = ", ".join(["%s"] * len(values))
        table = self._dialect.table(SCHEMA_MIGRATION.name)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})".encode(), tuple(values.values()))

    def discard(self, epoch: str) -> None:
        with self._connection() as connection, self._alone(connection):
            comment = self._comment(connection)
            unfinished = comment is not None and comment.split()[0] == epoch
            if unfinished or (comment is None and self._epoch(connection) == epoch):
                self._drop(connection)

    # --- where it leaves -------------------------------------------------------------------------

    def fence(self, state: FenceState, token: str, wait_ms: int) -> None:
        with self._connection() as connection:
            fence(connection, self._dialect, state, token, wait_ms)

    def lift(self, token: str | None) -> None:
        with self._connection() as connection:
            if GATE in self._tables(connection):
                lift(connection, self._dialect, token)

    def fenced_by(self) -> str | None:
        with self._connection() as connection:
            return token_of(connection, self._dialect)

    def drop(self) -> None:
        with self._connection() as connection, self._alone(connection):
            tables = self._tables(connection)
            if not tables:
                return
            comments = connection.execute(schemas.COMMENTS.format(schema=self._schema).encode()).fetchall()
            if not schemas.is_store(dict(comments)):
                raise no_store(self.shown)
            self._drop(connection)


CODES: Final = {FenceState.MOVING: "CBM01", FenceState.MOVED: "CBM02"}
"""CALIBER's own SQLSTATEs; ``errors`` maps them to exceptions."""
REMOVING_MS: Final = 2_000
"""How long triggers that refuse nothing are tried to be removed."""
_PATIENCE_MS: Final = 300
"""How long this lock request blocks others, while it waits itself, before it steps back."""
_PAUSE_S: Final = 0.2
GATE: Final = "text_state"
"""The table that write transactions read as they begin."""
_AGAIN: Final = frozenset({"55P03", "40P01"})


def fence(connection: Connection, dialect: PostgresDialect, state: FenceState, token: str, wait_ms: int) -> None:
    """Refuse all writes from now on. Raises: Unavailable when writes under way do not end in time."""

    def work() -> None:
        table = dialect.table
        connection.execute(f"LOCK TABLE {table(GATE)} IN ACCESS EXCLUSIVE MODE".encode())
        _alone(connection, dialect)
        name = table(FENCE)
        body = f"BEGIN RAISE EXCEPTION 'caliber: {state.value}' USING ERRCODE = '{CODES[state]}'; END"
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $fence$ {body} $fence$".encode()
        )
        connection.execute(f"COMMENT ON FUNCTION {name}() IS '{token}'".encode())
        if state is FenceState.MOVED:
            moved = f"{table(MOVED)}() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
            connection.execute(f"CREATE OR REPLACE FUNCTION {moved}".encode())
            connection.execute(b"SELECT pg_notify(%s, %s)", (channel_of(dialect.schema), token))
        else:
            connection.execute(f"DROP FUNCTION IF EXISTS {table(MOVED)}()".encode())
        events = "INSERT OR UPDATE OR DELETE OR TRUNCATE"
        for relation in catalog_in(connection, table(MEMORY_TYPE.name)).relations:
            connection.execute(
                f"CREATE OR REPLACE TRIGGER {quote(FENCE)} BEFORE {events} ON {table(relation.name)}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()".encode()
            )

    _patiently(connection, work, wait_ms)


def lift(connection: Connection, dialect: PostgresDialect, token: str | None) -> None:
    """Let writes in again, unless the fence is another attempt's."""
    name = dialect.table(FENCE)
    with connection.transaction():
        _alone(connection, dialect)
        standing = token_of(connection, dialect)
        if standing is None or token not in (None, standing):
            return
        # At once, whatever reads the tables meanwhile: the triggers remain, but refuse nothing.
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'".encode()
        )
        connection.execute(f"COMMENT ON FUNCTION {name}() IS NULL".encode())
        connection.execute(f"DROP FUNCTION IF EXISTS {dialect.table(MOVED)}()".encode())

    def work() -> None:
        connection.execute(f"LOCK TABLE {dialect.table(GATE)} IN ACCESS EXCLUSIVE MODE".encode())
        _alone(connection, dialect)
        if token_of(connection, dialect) is None:  # no other fence was put up
            connection.execute(f"DROP FUNCTION IF EXISTS {name}() CASCADE".encode())

    with contextlib.suppress(Unavailable):  # they only cost a little, and the next fence uses them
        _patiently(connection, work, REMOVING_MS)


def _alone(connection: Connection, dialect: PostgresDialect) -> None:
    connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_CLASS, dialect.schema))


def token_of(connection: Connection, dialect: PostgresDialect) -> str | None:
    """Return the token of the fence that stands."""
    row = connection.execute(
        b"SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        b" WHERE n.nspname = %s AND p.proname = %s",
        (dialect.schema, FENCE),
    ).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def _patiently(connection: Connection, work: Callable[[], None], wait_ms: int) -> None:
    """Run ``work`` in a transaction that never holds others up for long."""
    until = time.monotonic() + wait_ms / 1_000
    while True:
        left_ms = max(1, int((until - time.monotonic()) * 1_000))
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {min(_PATIENCE_MS, left_ms)}".encode())
                connection.execute(b"SET LOCAL statement_timeout = 0")
                connection.execute(b"SET LOCAL synchronous_commit = on")
                work()
        except psycopg.Error as error:
            if error.sqlstate not in _AGAIN or time.monotonic() >= until:
                if error.sqlstate in _AGAIN:
                    raise Unavailable(
                        "a transaction that writes the tenant did not end in time: try again, or raise"
                        " tenancy.fence_ms",
                        reason="busy",
                    ) from error
                raise
        else:
            return
        time.sleep(_PAUSE_S)
