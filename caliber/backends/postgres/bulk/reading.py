"""Bulk read of one PostgreSQL table in a single snapshot: binary COPY to Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from caliber.backends.postgres.bulk.target import Connection, Target, limit
from caliber.backends.postgres.bulk.texts import from_server
from caliber.kernels.copy.rows import CopyReader
from caliber.schema.relation import Relation
from caliber.storage.bulk import arrow
from caliber.storage.compile.spelling import quote, quote_all

_READ_BYTES: Final = 1 << 20


def read(connection: Connection, target: Target, relation: Relation, batch_rows: int) -> Iterator[Any]:
    """Yield every row of a relation, as of one snapshot, as ``pyarrow.RecordBatch``."""
    names = ", ".join(quote(column.name) for column in relation.columns)
    keys = ("ordinal",) if relation.ordinal else relation.key
    order = quote_all(keys)
    text = f"COPY (SELECT {names} FROM {target.table(relation.name)} ORDER BY {order}) TO STDOUT (FORMAT binary)"
    reader = CopyReader([arrow.field_of(column) for column in relation.columns])
    with connection.transaction(), connection.cursor() as cursor:
        limit(connection, target, "min_reader_version")
        with cursor.copy(text) as copy:
            for piece in joined(copy):
                for part in reader.feed(piece, rows_max=batch_rows):
                    columns = {column.field.name: column for column in part.columns}
                    for declared in relation.columns:
                        columns[declared.name] = from_server(columns[declared.name], declared, part.rows)
                    yield arrow.batch_from_columns(relation, list(columns.values()), part.rows)
    reader.close()


def joined(copy: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
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
