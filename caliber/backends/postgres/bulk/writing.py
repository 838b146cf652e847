"""Writing of whole rows, as they are, into one PostgreSQL table by binary COPY."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from caliber.backends.postgres.bulk.target import Connection
from caliber.backends.postgres.bulk.texts import for_server
from caliber.dump.dumped_relations import columns_of
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyRows, copy_tuples
from caliber.schema.relation import Relation
from caliber.storage.compile.spelling import quote_all

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
