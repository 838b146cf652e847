"""Columns of a record batch as buffers: seen as NumPy arrays, made from values, and turned into rows of a driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels.copy import CopyColumn, CopyKind
from caliber.model.errors import InvalidRow
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.arrow import KINDS, field_of
from caliber.storage.codec import Row, dump_json

Columns = dict[str, CopyColumn]

_DTYPES: dict[CopyKind, Any] = {
    CopyKind.INT8: np.int64,
    CopyKind.INSTANT: np.int64,
    CopyKind.FLOAT8: np.float64,
}


def present(column: CopyColumn, rows: int) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a value, or None where all have one."""
    if column.validity is None:
        return None
    bits = np.unpackbits(column.validity, bitorder="little", count=column.first + rows)
    return bits[column.first :].view(np.bool_)


def numbers(column: CopyColumn) -> npt.NDArray[Any]:
    """Return the values of a column of numbers or instants; where one is missing, anything."""
    return column.values.view(_DTYPES[column.field.kind])


def edges(column: CopyColumn, rows: int) -> npt.NDArray[Any]:
    """Return the offsets of a column of spans, in elements."""
    if column.offsets is not None:
        return column.offsets[: rows + 1]
    return np.arange(rows + 1, dtype=np.int64) * column.width


def column_of_numbers(column: Column, values: npt.NDArray[Any]) -> CopyColumn:
    """Return numbers or instants, all present, as a column."""
    return CopyColumn(field_of(column), np.ascontiguousarray(values).view(np.uint8).reshape(-1))


def column_of_bytes(column: Column, values: npt.NDArray[np.uint8]) -> CopyColumn:
    """Return values of equal length, all present, as a column: uint8[n, width]."""
    return CopyColumn(field_of(column), values.reshape(-1), width=values.shape[1])


def column_of_texts(column: Column, texts: Sequence[bytes | None]) -> CopyColumn:
    """Return texts or bytes as a column."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text or b"") for text in texts], out=offsets[1:])
    data = np.frombuffer(b"".join(text or b"" for text in texts), np.uint8)
    missing = sum(text is None for text in texts)
    validity = None
    if missing:
        validity = np.packbits(np.array([text is not None for text in texts], np.bool_), bitorder="little")
    return CopyColumn(field_of(column), data, offsets=offsets, validity=validity, missing=missing)


def empty_lists(column: Column, rows: int) -> CopyColumn:
    """Return a column of lists of nothing."""
    items = np.zeros(1, np.int64) if KINDS[column.type] is CopyKind.TEXT_ARRAY else None
    return CopyColumn(field_of(column), np.empty(0, np.uint8), offsets=np.zeros(rows + 1, np.int64), items=items)


def nothing(column: Column, rows: int) -> CopyColumn:
    """Return a column in which every value is missing."""
    validity = np.zeros(-(-rows // 8), np.uint8)
    if KINDS[column.type] in (CopyKind.BOOL, *_DTYPES, CopyKind.UUID):
        return CopyColumn(field_of(column), np.zeros(16 * rows, np.uint8), validity=validity, missing=rows)
    empty = empty_lists(column, rows)
    return CopyColumn(
        empty.field, empty.values, offsets=empty.offsets, validity=validity, items=empty.items, missing=rows
    )


def texts_of(column: CopyColumn, rows: int) -> list[bytes | None]:
    """Return a column of texts or bytes as bytes."""
    raw = column.values.tobytes()
    out: list[bytes | None] = [raw[start:end] for start, end in pairwise(edges(column, rows).tolist())]
    there = present(column, rows)
    if there is not None:
        for row in np.flatnonzero(~there).tolist():
            out[row] = None
    return out


# --- rows of a driver -----------------------------------------------------------------------------


def _numbers_of(column: CopyColumn, rows: int) -> list[Any]:
    values: list[Any] = numbers(column)[:rows].tolist()
    return values


def _bools_of(column: CopyColumn, rows: int) -> list[Any]:
    bits = np.unpackbits(column.values, bitorder="little", count=column.first + rows)
    values: list[Any] = bits[column.first :].tolist()
    return values


def _strings_of(column: CopyColumn, rows: int) -> list[Any]:
    raw = column.values.tobytes()
    return [raw[start:end].decode() for start, end in pairwise(edges(column, rows).tolist())]


def _spans_of(unit: int) -> Callable[[CopyColumn, int], list[Any]]:
    def spans(column: CopyColumn, rows: int) -> list[Any]:
        raw = column.values.tobytes()
        return [raw[start:end] for start, end in pairwise((edges(column, rows) * np.int64(unit)).tolist())]

    return spans


def _uuids_of(column: CopyColumn, rows: int) -> list[Any]:
    raw = column.values.tobytes()
    return [raw[at : at + 16] for at in range(0, 16 * rows, 16)]


def _text_lists_of(column: CopyColumn, rows: int) -> list[Any]:
    assert column.items is not None
    raw, items = column.values.tobytes(), column.items.tolist()
    return [
        dump_json([raw[items[at] : items[at + 1]].decode() for at in range(start, end)])
        for start, end in pairwise(edges(column, rows).tolist())
    ]


_VALUES: dict[ColumnType, Callable[[CopyColumn, int], list[Any]]] = {
    ColumnType.UUID: _uuids_of,
    ColumnType.INSTANT: _numbers_of,
    ColumnType.TEXT: _strings_of,
    ColumnType.INT: _numbers_of,
    ColumnType.FLOAT: _numbers_of,
    ColumnType.BOOL: _bools_of,
    ColumnType.BYTES: _spans_of(1),
    ColumnType.JSON: _strings_of,
    ColumnType.TEXT_ARRAY: _text_lists_of,
    ColumnType.UUID_ARRAY: _spans_of(16),
    ColumnType.ENUM: _strings_of,
    ColumnType.VECTOR: _spans_of(4),
}


def values_of(declared: Column, column: CopyColumn, rows: int) -> list[Any]:
    """Return the values of a column as drivers take them, None where one is missing."""
    values = _VALUES[declared.type](column, rows)
    there = present(column, rows)
    if there is not None:
        for row in np.flatnonzero(~there).tolist():
            values[row] = None
    return values


def rows_of(relation: Relation, columns: Columns, rows: int) -> Iterator[Row]:
    """Yield rows as drivers take them, None for the ordinal, which the database gives."""
    by_column: list[list[Any]] = [[None] * rows] if relation.ordinal else []
    by_column += [values_of(declared, columns[declared.name], rows) for declared in relation.columns]
    return zip(*by_column, strict=True)


def canonical_json(column: CopyColumn, declared: Column, rows: int, first_row: int) -> CopyColumn:
    """Return a column of JSON with each value as this program writes it, after reading it once.

    Raises: InvalidRow for what is no JSON, or not of the form that the column has
    """
    assert declared.json_decode is not None
    assert declared.json_encode is not None
    known: dict[bytes | None, bytes | None] = {None: None}
    out: list[bytes | None] = []
    changed = False
    for row, text in enumerate(texts_of(column, rows)):
        if text not in known:
            assert text is not None
            try:
                value = declared.json_decode(json.loads(text))
                known[text] = dump_json(declared.json_encode(value)).encode()
            except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
                reason = "no JSON of the form that this column has"
                raise InvalidRow(row=first_row + row, field=declared.name, reason=reason) from None
        written = known[text]
        changed |= written != text
        out.append(written)
    return column_of_texts(declared, out) if changed else column
