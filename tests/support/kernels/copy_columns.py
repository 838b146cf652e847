"""Columns of COPY as Python values, read without help of the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caliber.kernels.copy.columns import CopyColumn, CopyKind
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyRows, copy_tuples
from caliber.model.errors import InvalidRow

NUMBERS = {
    CopyKind.INT2: np.int16, CopyKind.INT4: np.int32, CopyKind.INT8: np.int64, CopyKind.FLOAT4: np.float32,
    CopyKind.FLOAT8: np.float64, CopyKind.INSTANT: np.int64,
}  # fmt: skip


def rows_of(columns: Sequence[CopyColumn], count: int) -> list[list[Any]]:
    """Return the values of decoded columns, row by row, read without help of the kernels."""
    out: list[list[Any]] = [[] for _ in range(count)]
    for column in columns:
        present = np.unpackbits(column.validity, bitorder="little")[:count]
        assert column.missing == count - present.sum()
        for row in range(count):
            out[row].append(value_at(column, row) if present[row] else None)
    return out


def value_at(column: CopyColumn, row: int) -> Any:
    kind, values = column.field.kind, column.values
    if kind is CopyKind.BOOL:
        return bool(np.unpackbits(values, bitorder="little")[row])
    if kind in NUMBERS:
        return values.view(NUMBERS[kind])[row]
    if kind is CopyKind.UUID:
        return values[16 * row : 16 * row + 16].tobytes()
    start, end = map(int, column.offsets[row : row + 2])
    if kind in (CopyKind.VECTOR, CopyKind.HALFVEC):
        return values.view(np.float32)[start:end].tobytes()
    if kind is CopyKind.UUID_ARRAY:
        return [values[16 * at : 16 * at + 16].tobytes() for at in range(start, end)]
    if kind is CopyKind.TEXT_ARRAY:
        return [values[column.items[at] : column.items[at + 1]].tobytes() for at in range(start, end)]
    return values[start:end].tobytes()


def copy_chunks(batches: Iterator[CopyRows], *, chunk_bytes: int = 1 << 18) -> Iterator[bytes | memoryview]:
    """Yield all that COPY ... FROM STDIN (FORMAT binary) takes; each piece is overwritten by the next.

    Raises:  InvalidRow, with the row counted from the first batch on
    """
    yield COPY_HEADER
    before = 0
    for batch in batches:
        try:
            yield from copy_tuples(batch, chunk_bytes=chunk_bytes)
        except InvalidRow as error:
            raise InvalidRow(row=before + error.row, field=error.field, reason=error.reason) from error
        before += batch.rows
    yield COPY_TRAILER
