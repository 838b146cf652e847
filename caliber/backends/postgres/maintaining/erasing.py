"""Eraser of PostgreSQL: removes erased bytes from tables, statistics and WAL; reads stored bytes for the proof.

VACUUM FULL rewrites a table and drops the old files; it must keep the rows that older transactions may still see, so it
waits for them. Column statistics live in a catalogue of the server, which is rewritten too where permitted. The WAL
belongs to the server: it is advanced and read where rights allow, its remains are reported, and overwritten on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from caliber.backends.postgres.bulk.copying import Connection
from caliber.backends.postgres.maintaining.log import LogScrub
from caliber.storage.compile.plan import Plan
from caliber.storage.protocol import Place

_PIECE_BYTES: Final = 4 << 20
_LOG_MOST_BYTES: Final = 32 << 20
"""A longer log is not read: it counts as containing the erased bytes until its segments are gone."""
_PAUSE_S: Final = 0.05
_PATIENCE_MS: Final = 5_000
_STATISTICS: Final = "pg_catalog.pg_statistic"

# Transactions that began earlier may see deleted rows: other sessions, prepared transactions, standbys.
_OLDER: Final = """
    SELECT count(*) FROM (
        SELECT backend_xmin AS xmin FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL SELECT xmin FROM pg_replication_slots
    ) AS seen WHERE xmin IS NOT NULL AND age(xmin) >= age(%s::xid)
"""
# VACUUM skips tables of other owners with a warning, and continues.
_TABLES: Final = """
    SELECT c.relname, (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user)
        OR pg_has_role(c.relowner, 'USAGE')
        OR pg_has_role((SELECT d.datdba FROM pg_database AS d WHERE d.datname = current_database()), 'USAGE')
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'm') ORDER BY c.relname
"""
_FILES: Final = """
    WITH own AS (
        SELECT c.oid, c.reltoastrelid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relkind IN ('r', 'm')
        UNION SELECT oid, reltoastrelid FROM pg_class WHERE oid = 'pg_catalog.pg_statistic'::regclass
    ), stored AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0)
    SELECT c.oid::regclass::text, pg_relation_filepath(c.oid) FROM pg_class AS c WHERE c.oid IN (SELECT oid FROM stored)
       OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM stored))
"""
_SAMPLED: Final = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a
    JOIN pg_stats AS s ON s.attname = a.attname WHERE a.attrelid = %s::regclass
      AND (s.schemaname, s.tablename) = (SELECT n.nspname, c.relname FROM pg_class AS c
                                         JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = a.attrelid)
"""
_SHARED: Final = """
    SELECT pg_relation_filepath(c.oid) FROM pg_class AS s JOIN pg_class AS c ON c.oid IN (s.oid, s.reltoastrelid)
        OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN (s.oid, s.reltoastrelid))
    WHERE s.oid = 'pg_catalog.pg_statistic'::regclass
"""
_IS_OWNER: Final = """
    SELECT r.rolsuper OR d.datdba = r.oid FROM pg_roles AS r, pg_database AS d
    WHERE r.rolname = current_user AND d.datname = current_database()
"""


class PostgresEraser:
    """The eraser of one open store; it uses dedicated connections."""

    def __init__(
        self, lend: Callable[[], AbstractContextManager[Connection]], schema: str, hold: Plan, lock_timeout_ms: int
    ) -> None:
        self._lend = lend
        self._schema = schema
        self._lock_timeout_ms = lock_timeout_ms
        self.hold: Plan | None = hold
        self._unreachable: list[str] = []
        self._log_is_scrubbed = False

    def scrub(self, wait_s: float) -> list[str]:
        until = time.monotonic() + wait_s
        self._unreachable = []
        self._log_is_scrubbed = False
        with self._lend() as connection:
            now = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            assert now is not None
            remains = self._await_older(connection, now[0] & 0xFFFFFFFF, until)
            if remains:
                return remains
            for table, may in connection.execute(_TABLES, (self._schema,)).fetchall():
                if not may:
                    remains.append(
                        f"table {table} must be rewritten by its owner: run this as that role, or VACUUM FULL it"
                    )
                    continue
                named = sql.Identifier(self._schema, table)
                lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(named)
                remains += self._tried(
                    f"table {table} could not be rewritten",
                    until,
                    partial(self._patiently, connection, until, lock),  # VACUUM would wait without end
                    partial(connection.execute, sql.SQL("VACUUM (FULL, ANALYZE) {}").format(named)),
                )
                self._clear_samples(connection, table)
            self._statistics(connection, until)
            self._move_log_on(connection)
        return remains

    def scrub_log(self, wait_s: float) -> list[str]:
        with self._lend() as connection:
            remains = LogScrub(connection, wait_s).run()
            if not remains and not self._may_read(connection):
                remains = ["the server's log: this role may not read it afterwards (pg_read_server_files, pg_monitor)"]
        self._log_is_scrubbed = not remains
        return remains

    def _move_log_on(self, connection: Connection) -> None:
        for statement, what in (
            ("CHECKPOINT", "no right to a CHECKPOINT: pages in memory reach files later"),
            ("SELECT pg_switch_wal()", "no right to move the log on (pg_switch_wal)"),
            ("CHECKPOINT", ""),
        ):
            try:
                connection.execute(statement)
            except psycopg.Error:
                self._unreachable += [what] if what else []

    def destroy(self, wait_s: float) -> list[str]:
        until = time.monotonic() + wait_s
        self._unreachable = []
        with self._lend() as connection:
            drop = sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(self._schema))
            remains = self._tried(
                "the schema could not be dropped", until, partial(self._patiently, connection, until, drop)
            )
            if not remains:
                self._statistics(connection, until)
                self._move_log_on(connection)
        return remains

    def leftovers(self) -> Iterator[Place]:
        with self._lend() as connection:
            for name, statement in (
                ("schema", "SELECT nspname::text FROM pg_namespace WHERE nspname = %s"),
                ("statistics", "SELECT tablename::text FROM pg_stats WHERE schemaname = %s"),
            ):
                rows = connection.execute(statement, (self._schema,)).fetchall()
                yield Place(f"{name} {self._schema}", "column", iter([row[0].encode() for row in rows]), apart=True)

    def _await_older(self, connection: Connection, xid: int, until: float) -> list[str]:
        while True:
            row = connection.execute(_OLDER, (str(xid),)).fetchone()
            older = 0 if row is None else int(row[0])
            if not older:
                return []
            if time.monotonic() > until:
                seen = "the server keeps what they may still see; try again when they have ended"
                return [f"{older} transactions (or replication slots) are older than the erasure: {seen}"]
            time.sleep(_PAUSE_S)

    def _tried(self, what: str, until: float, *steps: Callable[[], object]) -> list[str]:
        while True:
            try:
                for step in steps:
                    step()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                if time.monotonic() > until:
                    return [f"{what}: it is in use; try again"]
            except psycopg.Error as error:
                return [f"{what} (SQLSTATE {error.sqlstate})"]
            else:
                return []

    def _patiently(self, connection: Connection, until: float, statement: sql.Composed) -> None:
        """Run a statement that waits for others, in a transaction: a pool would lend on session settings."""
        patience_ms = min(self._lock_timeout_ms or _PATIENCE_MS, max(1, int((until - time.monotonic()) * 1_000)))
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {patience_ms}")
            connection.execute(statement)

    def _clear_samples(self, connection: Connection, table: str) -> None:
        """Drop the samples of a table that is empty: ANALYZE, which finds no rows there, leaves earlier ones."""
        named = sql.Identifier(self._schema, table)
        if connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(named)).fetchone() is not None:
            return
        for column, kind in connection.execute(_SAMPLED, (named.as_string(connection),)).fetchall():
            if connection.info.server_version >= 180_000:
                clear: sql.Composed | sql.SQL = sql.SQL("SELECT pg_clear_attribute_stats({}, {}, {}, false)").format(
                    *(sql.Literal(name) for name in (self._schema, table, column))
                )
            else:
                # The same type again: nothing is rewritten, and its samples go.
                clear = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}").format(
                    named, sql.Identifier(column), sql.SQL(kind)
                )
            try:
                connection.execute(clear)
            except psycopg.Error as error:
                self._unreachable.append(
                    f"earlier samples of column {column} of the empty table {table} (SQLSTATE {error.sqlstate})"
                )

    def _statistics(self, connection: Connection, until: float) -> None:
        owner = connection.execute(_IS_OWNER).fetchone()
        if owner is None or not owner[0]:
            self._unreachable.append(
                f"earlier samples of columns: the database's owner may rewrite them, VACUUM FULL {_STATISTICS}"
            )
            return
        vacuum = partial(connection.execute, f"VACUUM (FULL) {_STATISTICS}")
        self._unreachable += self._tried(f"{_STATISTICS} could not be rewritten", until, vacuum)

    def places(self) -> Iterator[Place]:
        with self._lend() as connection:
            for table, _ in connection.execute(_TABLES, (self._schema,)).fetchall():
                yield Place(f"table {table}", "column", self._values(connection, table), apart=True)
            yield Place("statistics", "column", self._samples(connection), apart=True)
            if not self._may_read(connection):
                self._unreachable.append(
                    "the server's files: this role may not read them (pg_read_server_files); tables were read by SQL"
                )
                return
            shared = {row[0] for row in connection.execute(_SHARED).fetchall()}
            for name, path in connection.execute(_FILES, (self._schema,)).fetchall():
                for segment in self._segments(connection, path):
                    # The server's statistics are those of all tenants; ours were read by SQL.
                    kind = "shared" if path in shared else "file"
                    yield Place(f"{name} ({segment})", kind, self._file(connection, segment))
            yield from self._log(connection)

    def _may_read(self, connection: Connection) -> bool:
        try:
            connection.execute("SELECT pg_read_binary_file('PG_VERSION', 0, 1, true), pg_ls_waldir() LIMIT 1")
        except psycopg.Error:
            return False
        return True

    def _values(self, connection: Connection, table: str) -> Iterator[bytes]:
        columns = connection.execute(
            "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped",
            (sql.Identifier(self._schema, table).as_string(connection),),
        ).fetchall()
        read = [
            sql.Identifier(name) if kind == "bytea" else sql.SQL("{}::text").format(sql.Identifier(name))
            for name, kind in columns
        ]
        statement = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(read), sql.Identifier(self._schema, table))
        with connection.transaction(), connection.cursor("erased", row_factory=tuple_row, binary=True) as cursor:
            cursor.itersize = 500
            for row in cursor.execute(statement):
                for value in row:
                    if value is not None:
                        yield value.encode() if isinstance(value, str) else bytes(value)

    def _samples(self, connection: Connection) -> Iterator[bytes]:
        rows = connection.execute(
            "SELECT most_common_vals::text, histogram_bounds::text, most_common_elems::text FROM pg_stats"
            " WHERE schemaname = %s",
            (self._schema,),
        )
        for row in rows:
            yield from (value.encode() for value in row if value is not None)

    def _segments(self, connection: Connection, path: str) -> Iterator[str]:
        """Yield the files of a table: a large one has several."""
        number = 0
        while True:
            name = path if not number else f"{path}.{number}"
            found = connection.execute("SELECT size FROM pg_stat_file(%s, true)", (name,)).fetchone()
            if found is None or found[0] is None:
                return
            yield name
            number += 1

    def _file(self, connection: Connection, path: str) -> Iterator[bytes]:
        at = 0
        with connection.cursor(binary=True) as cursor:
            while True:
                row = cursor.execute(
                    "SELECT pg_read_binary_file(%s, %s, %s, true)", (path, at, _PIECE_BYTES)
                ).fetchone()
                if row is None or not row[0]:
                    return
                at += len(row[0])
                yield bytes(row[0])

    def _log(self, connection: Connection) -> Iterator[Place]:
        found = connection.execute("SELECT name, size FROM pg_ls_waldir() ORDER BY name").fetchall()
        total = sum(size for _, size in found)
        if self._log_is_scrubbed:
            for name, _ in found:  # no earlier segment is left: every match counts
                yield Place(f"log {name}", "file", self._file(connection, f"pg_wal/{name}"))
            return
        if total > _LOG_MOST_BYTES:
            self._unreachable.append(f"the server's log: {total >> 20} MB were not read")
            return
        for name, _ in found:
            yield Place(f"log {name}", "log", self._file(connection, f"pg_wal/{name}"))

    def out_of_reach(self) -> list[str]:
        kept = "" if self._log_is_scrubbed else " until its segments are removed or overwritten (scrub_log), and"
        return [
            *dict.fromkeys(self._unreachable),
            f"the server's log (WAL){kept} wherever it was archived",
            "backups, standbys and logical subscribers; the server's own message log",
            "blocks that the file system or the disk gave up and has not overwritten",
        ]
