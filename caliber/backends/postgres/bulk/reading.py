"""Bulk read of one PostgreSQL table in a single snapshot: binary COPY to Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from caliber.backends.postgres.bulk.target import Connection
from caliber.backends.postgres.bulk.texts import from_server
from caliber.kernels.copy.rows import CopyReader
from caliber.schema.relation import ColumnType, Relation
from caliber.storage.bulk import arrow
from caliber.storage.compile.spelling import quote, quote_all

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
