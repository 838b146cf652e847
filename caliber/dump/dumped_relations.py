"""Relations as dumps hold them (ordinals as ordinary columns, in the order of references), and row digests.

Windows and stored contents refer to rows by ordinal, so a restore must keep ordinals; a bulk load would reassign them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from caliber.kernels.copy.columns import CopyColumn, CopyKind
from caliber.kernels.copy.rows import CopyRows, copy_tuples
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Column, Relation, integer
from caliber.schema.traits import Place
from caliber.storage.bulk import arrow
from caliber.storage.bulk.columns import Columns, rewritten

BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 4 << 20
"""Record batches are cut at either; one row alone may be larger."""

_CHUNK_BYTES: Final = 1 << 18


def dumped(relation: Relation) -> Relation:
    """Return a relation whose ordinal is a column, and its key."""
    if not relation.ordinal:
        return relation
    return dataclasses.replace(
        relation, ordinal=False, columns=(integer("ordinal"), *relation.columns), key=("ordinal",), _by_name={}
    )


def dump_relations(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the relations of a dump in the order of references, declarations of memories first.

    Change records belong to a position, migrations to the database.
    """
    kept = (relation for relation in catalog.relations if relation.place is not Place.DATABASE)
    return tuple(map(dumped, sorted(kept, key=lambda relation: relation.place is not Place.DECLARATIONS)))


def relations_to_empty(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the same, as they can be emptied."""
    return tuple(catalog.by_name[relation.name] for relation in reversed(dump_relations(catalog)))


def record_relations(catalog: Catalog) -> tuple[Relation, ...]:
    """Return the relations that hold records: the others exist as soon as a store is created and opened."""
    return tuple(relation for relation in relations_to_empty(catalog) if relation.place is Place.RECORDS)


def columns_of(declared: Iterable[Column], batch: Any, first_row: int) -> Columns:
    """Return a record batch as buffers, by column. Raises: DTypeError, InvalidRow."""
    return {each.name: arrow.column_from(batch, each, first_row=first_row) for each in declared}


def _plain(column: CopyColumn, declared: Column, rows: int) -> CopyColumn:
    """Return a column that COPY accepts whatever its texts hold, zero characters included."""
    kind = column.field.kind
    if kind in (CopyKind.TEXT, CopyKind.JSONB):
        return dataclasses.replace(column, field=dataclasses.replace(column.field, kind=CopyKind.BYTES))
    if kind is CopyKind.TEXT_ARRAY:
        return rewritten(column, declared, rows, _escaped)
    return column


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\1", b"\1\1").replace(b"\0", b"\1\2")


class RowsDigest:
    """SHA-256 of rows, independent of the database and of batch sizes.

    ``columns`` are the hashed ones, where these are not all.
    """

    def __init__(self, relation: Relation, columns: Sequence[Column] | None = None) -> None:
        self._columns = relation.columns if columns is None else columns
        self._hash = hashlib.sha256(relation.name.encode())
        self.rows = 0

    def add(self, columns: Columns, rows: int) -> None:
        """Take rows in, in the order of their keys."""
        ordered = [_plain(columns[each.name], each, rows) for each in self._columns]
        for piece in copy_tuples(CopyRows(ordered, rows), chunk_bytes=_CHUNK_BYTES):
            self._hash.update(piece)
        self.rows += rows

    def add_batch(self, batch: Any) -> None:
        """Take a record batch in."""
        self.add(columns_of(self._columns, batch, self.rows), batch.num_rows)

    def hex(self) -> str:
        """Return the digest of the rows added so far."""
        return self._hash.hexdigest()
