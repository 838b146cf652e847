"""SQLite as source or target of a tenant move: the copy is a temporary file, renamed when it is complete.

Its ``user_version`` names the attempt that fills it; each transaction of an attempt first checks that it still owns it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from caliber.backends.sqlite.bulk import SqliteSnapshot, insert_batch
from caliber.backends.sqlite.connecting.connection import APPLICATION_ID, SqliteConnection, check_version, file_state
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.connecting.forks import FileState
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.moving import fence as fences
from caliber.backends.sqlite.schema import PLANS, clear_beside, options_for, take_place
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.config.storage import StorageConfig
from caliber.dump.moving import Key, no_store, something_else, taken_over
from caliber.model.errors import CaliberError, StorageError, Unavailable
from caliber.model.process.files import sync
from caliber.model.process.interrupts import managed
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import CHANGE, RELATIONS, SCHEMA_MIGRATION
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.plan import compile_relation, plans_of
from caliber.storage.compile.session import Counter
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.maintain.maintenance import FenceState
from caliber.storage.migrate.migrations import baseline_of, checksum_of

UNFINISHED: Final = ".moving"
_MARK: Final = "caliber_move"


def _number(token: str) -> int:
    """Return a token as ``user_version`` holds it, never 0."""
    return zlib.crc32(token.encode()) >> 1 or 1


_OWN_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'memory_*' AND name <> 'memory_type'"
    " ORDER BY rowid DESC"
)


def _bare(relation: Relation) -> str:
    """Return the statement that makes a table without indexes and rules: those are made faster over existing rows."""
    return compile_relation(dataclasses.replace(relation, uniques=(), paths=(), _by_name={}), DIALECT).create[0]


class _Reading(SqliteSnapshot):
    """See ``Reading``; one read transaction."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self.mark: int = self.sequence
        newest = f"SELECT coalesce(max(schema_version), 0) FROM {SCHEMA_MIGRATION.name}"
        self.schema_version: int = connection.command(newest)[0][0]

    def some(self, relation: Relation, ordinals: list[int]) -> Iterator[Any]:
        return self.read(relation, where=f"WHERE ordinal IN ({', '.join(map(str, ordinals))})")

    def changes_since(self, mark: Any) -> list[bytes] | None:
        rows = self._connection.run(STATEMENTS["change.since"], (mark,))
        if rows and rows[0][0] != mark + 1:
            return None
        return [row[2] for row in rows]


class _Writing:
    """See ``Writing``."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def _delete(self, relation: Relation, where: str, values: Sequence[Any]) -> None:
        with self._connection.turn():
            self._connection.raw.execute(f"DELETE FROM {quote(relation.name)}{where}", values).fetchall()

    def remove_between(self, relation: Relation, after: Key | None, upto: Key | None) -> None:
        row = f"({quote_all(relation.key)})"
        bounds = [(sign, bound) for sign, bound in ((">", after), ("<=", upto)) if bound is not None]
        conditions = [f"{row} {sign} ({', '.join('?' for _ in bound)})" for sign, bound in bounds]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._delete(relation, where, [value for _, bound in bounds for value in bound])

    def remove(self, relation: Relation, ordinals: list[int]) -> None:
        self._delete(relation, " WHERE ordinal IN (SELECT value FROM json_each(?))", (dump_json(ordinals),))

    def add(self, relation: Relation, batches: Iterable[Any]) -> None:
        for batch in batches:
            insert_batch(self._connection, relation, batch)


class SqliteReplica:
    """See ``Replica``."""

    def __init__(self, settings: StorageConfig, *, clock_us: Callable[[], int]) -> None:
        check_version()
        self._options = options_for(settings)
        self._file = Path(self._options.path)
        self._unfinished = Path(f"{self._file}{UNFINISHED}")
        self._clock_us = clock_us
        self.shown = self._options.shown

    def close(self) -> None:
        """Its connections are closed after each use."""

    # --- connections -----------------------------------------------------------------------------

    @managed
    def _connected(self, file: Path, begin: str, *, create: bool = False) -> Iterator[SqliteConnection]:
        if not create and not file.exists():
            raise Unavailable(f"there is no store at {file}", reason="missing", retryable=False)
        options = dataclasses.replace(self._options, path=str(file))
        connection = SqliteConnection(options, Counter(), memory_name="", create=create)
        try:
            # A copy inserts one relation after the other, in any order of references.
            connection.command("PRAGMA foreign_keys = OFF")
            if create:
                connection.command("PRAGMA journal_mode = WAL")
            with connection.transaction(begin):
                yield connection
        except apsw.Error as error:
            raise translate(error, str(file)) from error
        finally:
            connection.close()

    @managed
    def reading(self) -> Iterator[_Reading]:
        file = self._file if self._file.exists() else self._unfinished
        with self._connected(file, "BEGIN") as connection:
            yield _Reading(connection)

    @managed
    def writing(self, token: str) -> Iterator[_Writing]:
        with self._connected(self._unfinished, "BEGIN IMMEDIATE") as connection:
            self._require_ours(connection, token)
            yield _Writing(connection)

    # --- where it goes ---------------------------------------------------------------------------

    def _require_ours(self, connection: SqliteConnection, token: str) -> None:
        if connection.pragma("user_version") != _number(token):
            raise taken_over(self.shown)

    def _epoch_of(self, file: Path, *tables_of_epochs: str) -> str | None:
        """Return the epoch that one of the tables of a file names, or None."""
        if not file.exists() or file_state(str(file)) is FileState.INTERRUPTED:
            return None
        with self._connected(file, "BEGIN") as connection:
            tables = {row[0] for row in connection.command("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            for name in tables_of_epochs:
                rows = connection.command(f"SELECT epoch FROM {name} LIMIT 1") if name in tables else []
                if rows:
                    return str(rows[0][0])
        return None

    def prepare(self, epoch: str, token: str, catalog: Catalog) -> bool:
        if self._file.exists():
            if self._epoch_of(self._file, SCHEMA_MIGRATION.name) != epoch:
                raise something_else(self.shown)
            _remove(self._file)  # an attempt that ended between its last two steps
            _remove(self._unfinished)
        if not self._file.parent.exists():
            raise Unavailable(
                f"cannot create {self._file.name}: its folder does not exist; create the folder first",
                reason="cannot open",
                retryable=False,
            )
        stored_epoch = self._epoch_of(self._unfinished, _MARK)
        if stored_epoch != epoch:
            _remove(self._unfinished)  # of a move that was given up, or an attempt that ended in the last steps
            stored_epoch = None
        with self._connected(self._unfinished, "BEGIN IMMEDIATE", create=True) as connection:
            connection.command(f"PRAGMA user_version = {_number(token)}")
            if stored_epoch is None:
                for relation in RELATIONS:
                    connection.command(_bare(relation))
            for (name,) in connection.command(_OWN_TABLES):
                connection.command(f"DROP TABLE {quote(name)}")
            for relation in catalog.declared_relations:
                connection.command(_bare(relation))
            if stored_epoch is None:
                connection.command(f"CREATE TABLE {_MARK} (epoch TEXT NOT NULL) STRICT")
                connection.command(f"INSERT INTO {_MARK} VALUES ('{epoch}')")
        return stored_epoch is None

    def finish(self, epoch: str, token: str, numbers: Mapping[str, int], catalog: Catalog) -> None:
        with self._connected(self._unfinished, "BEGIN IMMEDIATE") as connection:
            self._require_ours(connection, token)
            statements = [statement for plans in PLANS.values() for statement in plans.create]
            for each in plans_of(catalog, PLANS, DIALECT).values():
                for statement in each.create[1:]:
                    connection.command(statement)
            dangling = connection.command("PRAGMA foreign_key_check")
            if dangling:
                raise StorageError(f"a row of {dangling[0][0]} refers to nothing", reason="verification")
            self._go_on_from(connection, numbers, catalog)
            row = baseline_of(checksum_of(statements), self._clock_us(), epoch)
            plans = PLANS[SCHEMA_MIGRATION.name]
            connection.run(plans.insert, plans.codec.encode(row))
            connection.command(f"DROP TABLE {_MARK}")
            connection.command("PRAGMA user_version = 0")
            connection.command(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.command("COMMIT")
            # The file must stand alone: no log may remain beside it.
            connection.command("PRAGMA wal_checkpoint(TRUNCATE)")
        if not self._file.exists():
            clear_beside(self._file)
        try:
            take_place(self._unfinished, self._file)
        except FileExistsError as error:
            raise something_else(self.shown) from error
        except FileNotFoundError as error:
            raise taken_over(self.shown) from error
        clear_beside(self._unfinished)

    def _go_on_from(self, connection: SqliteConnection, numbers: Mapping[str, int], catalog: Catalog) -> None:
        """Give out no ordinal again, and number changes on from the last one, which readers look for."""
        for relation in catalog.relations:
            last = numbers.get(relation.name, 0)
            if relation.ordinal and last:
                connection.command(f"DELETE FROM sqlite_sequence WHERE name = '{relation.name}'")
                connection.command(f"INSERT INTO sqlite_sequence VALUES ('{relation.name}', {last})")
        last = numbers.get(CHANGE.name, 0)
        if last:
            now_us = self._clock_us()
            connection.command(
                f"INSERT INTO {CHANGE.name} (sequence, writer, entries, created_at)"
                f" VALUES ({last}, randomblob(16), x'', {now_us})"
            )

    def discard(self, epoch: str) -> None:
        for file in (self._unfinished, self._file):
            if self._epoch_of(file, _MARK, SCHEMA_MIGRATION.name) == epoch:
                _remove(file)

    # --- where it leaves -------------------------------------------------------------------------

    def fence(self, state: FenceState, token: str, wait_ms: int) -> None:
        options, self._options = self._options, dataclasses.replace(self._options, busy_timeout_ms=wait_ms)
        try:
            with self._connected(self._file, "BEGIN IMMEDIATE") as connection:
                fences.fence(connection, state, token)
        finally:
            self._options = options

    def lift(self, token: str | None) -> None:
        if self._file.exists():
            with self._connected(self._file, "BEGIN IMMEDIATE") as connection:
                fences.lift(connection, token)

    def fenced_by(self) -> str | None:
        with self._connected(self._file, "BEGIN") as connection:
            return fences.token_of(connection)

    def drop(self) -> None:
        if self._file.exists() and not self._is_store():
            raise no_store(self.shown)
        _remove(self._file)

    def _is_store(self) -> bool:
        """Return whether the file is a CALIBER store, or the remains of an interrupted creation."""
        if not self._file.stat().st_size:
            return True
        try:
            with self._connected(self._file, "BEGIN") as connection:
                application_id: int = connection.pragma("application_id")
        except CaliberError:
            return False
        return application_id == APPLICATION_ID


def _remove(file: Path) -> None:
    # The file first: its leftovers then belong to no file, and the next creation may find them.
    file.unlink(missing_ok=True)
    clear_beside(file)
    sync(file.parent)
