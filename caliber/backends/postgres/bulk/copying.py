"""Rows of one PostgreSQL table by binary COPY: written as they are, and read in one snapshot to record batches.

Text columns are escaped where PostgreSQL would alter or refuse them: NUL characters, and numbers in JSON.
``Target`` and ``limit`` say where a load goes, and limit its transactions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg

from caliber.backends.postgres.connecting.connection import Shared
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.connecting.wire import ESCAPE, from_jsonb, json_text
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.statements import irregular
from caliber.dump.dumped_relations import columns_of
from caliber.kernels.copy.columns import CopyColumn, CopyKind
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyReader, CopyRows, copy_tuples
from caliber.model.errors import CaliberError
from caliber.model.time import from_us
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.bulk import arrow
from caliber.storage.bulk.columns import rewritten
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.migrate.migrations import check_needed

Connection = psycopg.Connection[Any]


class Target:
    """The schema of one load, and the writer and instant of its change records."""

    def __init__(
        self, shared: Shared, dialect: PostgresDialect, lock_timeout_ms: int, now_us: int, owners: Sequence[Relation]
    ) -> None:
        self._store = shared.store
        self._schema = dialect.schema
        self.channel = shared.channel
        self.table = dialect.table
        self.statements = irregular(dialect)
        self.lock_timeout_ms = lock_timeout_ms
        self.now = from_us(now_us)
        self.owners = owners
        """The relations whose records have vectors."""
        self.writer = os.urandom(16)  # no handle's id, so that our own memory reads the changes as it does foreign ones

    def sequence(self, relation: str) -> str:
        """Return the name of the sequence of a relation's ordinals, as a text that is cast to ``regclass``."""
        return f"{quote(self._schema)}.{quote(f'{relation}_ordinal_seq')}"

    def translate(self, error: psycopg.Error) -> CaliberError:
        """Return the error of ours for one of the driver's."""
        return translate_driver(error, self._store)


def limit(connection: Connection, target: Target, needs: str) -> None:
    """Set the limits of the transaction, for it alone: a pool may lend the connection to others afterwards.

    Raises: SchemaMismatch when the store was migrated beyond what this version may use; ``needs`` is the column of it.
    """
    needed = connection.execute(
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', %s, true),"
        f" set_config('synchronous_commit', 'on', true), (SELECT max({needs}) FROM {target.table('schema_migration')})",
        (str(target.lock_timeout_ms),),
    ).fetchone()
    check_needed("the store", 0 if needed is None else needed[3] or 0)


_CHUNK_BYTES: Final = 1 << 18


def copy_in(connection: Connection, into: str, pieces: Iterable[memoryview]) -> None:
    """Send tuples of COPY to a table; ``into`` names it and its columns."""
    with connection.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN (FORMAT binary)".encode()) as copy:
        copy.write(COPY_HEADER)
        for piece in pieces:
            copy.write(piece)
        copy.write(COPY_TRAILER)


def pieces_of(rows: CopyRows) -> Iterator[memoryview]:
    """Yield the tuples of a batch; each piece is overwritten by the next."""
    return copy_tuples(rows, chunk_bytes=_CHUNK_BYTES)


def sent(relation: Relation, batch: Any) -> CopyRows:
    """Return a record batch of a relation of ``dump_relations`` as it is sent."""
    columns = columns_of(relation.columns, batch, 0)
    return CopyRows([for_server(columns[each.name], each, batch.num_rows) for each in relation.columns], batch.num_rows)


def columns_in(table: str, relation: Relation) -> str:
    """Return a table with the columns of a relation, as ``copy_in`` takes it."""
    return f"{table} ({quote_all(column.name for column in relation.columns)})"


_ESCAPE: Final = ESCAPE.encode()


def for_server(column: CopyColumn, declared: Column, rows: int) -> CopyColumn:
    """Return a column as its rows are written one by one, too; see ``wire``."""
    kind = column.field.kind
    if kind in (CopyKind.TEXT, CopyKind.TEXT_ARRAY):
        raw = column.values.tobytes()
        return rewritten(column, declared, rows, _escaped) if b"\0" in raw or _ESCAPE in raw else column
    if kind is CopyKind.JSONB:
        raw = column.values.tobytes()
        if b"\\u0000" in raw or b"e+" in raw or _ESCAPE in raw:
            return rewritten(column, declared, rows, lambda text: json_text(text.decode()).encode())
    return column


def from_server(column: CopyColumn, declared: Column, rows: int) -> CopyColumn:
    """Return a column as it was before ``for_server``."""
    kind = column.field.kind
    if kind is CopyKind.JSONB:
        return rewritten(column, declared, rows, lambda text: from_jsonb(b"\1" + text).encode())
    if kind in (CopyKind.TEXT, CopyKind.TEXT_ARRAY) and _ESCAPE in column.values.tobytes():
        return rewritten(column, declared, rows, _unescaped)
    return column


def _escaped(text: bytes) -> bytes:
    return text.replace(_ESCAPE, _ESCAPE + b"1").replace(b"\0", _ESCAPE + b"0")


def _unescaped(text: bytes) -> bytes:
    return text.replace(_ESCAPE + b"0", b"\0").replace(_ESCAPE + b"1", _ESCAPE)


_READ_BYTES: Final = 1 << 20
_TEXTUAL: Final = frozenset({ColumnType.TEXT, ColumnType.ENUM})


def keys_of(relation: Relation) -> list[str]:
    """Return the expressions that order rows by bytes, independent of the database's collation."""
    if relation.ordinal:
        return [quote("ordinal")]
    return [quote(name) + (' COLLATE "C"' if relation.column(name).type in _TEXTUAL else "") for name in relation.key]


def read(
    connection: Connection, table: Callable[[str], str], relation: Relation, batch_rows: int, where: str = ""
) -> Iterator[Any]:
    """Yield the rows of a relation in the order of their keys, inside the caller's transaction.

    Each batch is a ``pyarrow.RecordBatch``. ``where`` is a condition, ``WHERE`` included, on the rows to read.
    """
    names = quote_all(column.name for column in relation.columns)
    chosen = f"SELECT {names} FROM {table(relation.name)} {where} ORDER BY {', '.join(keys_of(relation))}"
    reader = CopyReader([arrow.field_of(column) for column in relation.columns])
    with connection.cursor() as cursor, cursor.copy(f"COPY ({chosen}) TO STDOUT (FORMAT binary)".encode()) as copy:
        for piece in _joined(copy):
            for part in reader.feed(piece, rows_max=batch_rows):
                columns = [
                    from_server(column, declared, part.rows)
                    for column, declared in zip(part.columns, relation.columns, strict=True)
                ]
                yield arrow.batch_from_columns(relation, columns, part.rows)
    reader.close()


def _joined(copy: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Yield the server's rows, which arrive one at a time, in larger pieces."""
    pieces: list[bytes | bytearray | memoryview] = []
    size = 0
    for piece in copy:
        pieces.append(piece)
        size += len(piece)
        if size >= _READ_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)
