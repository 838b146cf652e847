"""Column helpers of a bulk load: Arrow buffers as NumPy arrays, buffers from values, and rows for a driver."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels.copy.columns import CopyColumn, CopyField, CopyKind
from caliber.model.errors import InvalidRow
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.bulk.arrow import KINDS, field_of
from caliber.storage.compile.codec import Row, dump_json

Columns = dict[str, CopyColumn]

_DTYPES: dict[CopyKind, Any] = {
    CopyKind.INT8: np.int64,
    CopyKind.INSTANT: np.int64,
    CopyKind.FLOAT8: np.float64,
}


def present(column: CopyColumn, rows: int) -> npt.NDArray[np.bool_] | None:
    """Return the mask of rows that have a value, or None where all have one."""
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


def ordinal_column(name: str, values: Sequence[int]) -> CopyColumn:
    """Return whole numbers that belong to no column of a relation."""
    numbers_ = np.fromiter(values, np.int64, len(values))
    return CopyColumn(CopyField(name, CopyKind.INT8, nullable=False), numbers_.view(np.uint8))


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


def is_one_of(column: CopyColumn, rows: int, values: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Return the mask of texts equal to one of a few values; undefined for missing values."""
    offsets = edges(column, rows)
    starts, lengths = offsets[:-1], np.diff(offsets)
    out = np.zeros(rows, np.bool_)
    for value in values:
        of_length = np.flatnonzero(lengths == len(value))
        places = starts[of_length, None] + np.arange(len(value))
        out[of_length] |= (column.values[places] == np.frombuffer(value, np.uint8)).all(axis=1)
    return out


def folded_ids(column: CopyColumn, rows: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes of each id of a column, by which a row that refers to one is found again."""
    words = column.values[: 16 * rows].view("<u8").reshape(rows, 2)
    out = np.asarray(np.bitwise_xor(words[:, 0], words[:, 1]), np.uint64)
    there = present(column, rows)
    if there is not None:
        out[~there] = 2**64 - 1  # not the zeros that stand there, which are an id
    return out


def rewritten(column: CopyColumn, declared: Column, rows: int, change: Callable[[bytes], bytes]) -> CopyColumn:
    """Return a column of texts, or of lists of texts, with ``change`` made to each text."""
    if column.items is None:
        cache: dict[bytes | None, bytes | None] = {None: None}
        out = []
        for text in texts_of(column, rows):
            if text not in cache and text is not None:
                cache[text] = change(text)
            out.append(cache[text])
        return column_of_texts(declared, out)
    raw = column.values.tobytes()
    items = [change(raw[start:end]) for start, end in pairwise(column.items[: column.item_count + 1].tolist())]
    ends = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(item) for item in items], out=ends[1:])
    return dataclasses.replace(column, values=np.frombuffer(b"".join(items), np.uint8), items=ends, item_validity=None)


# --- rows of a driver -----------------------------------------------------------------------------


def numbers_of(column: CopyColumn, rows: int) -> list[Any]:
    """Return a column of numbers or instants as a list; where one is missing, anything."""
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


def uuids_of(column: CopyColumn, rows: int) -> list[Any]:
    """Return a column of ids as bytes; where one is missing, anything."""
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
    ColumnType.UUID: uuids_of,
    ColumnType.INSTANT: numbers_of,
    ColumnType.TEXT: _strings_of,
    ColumnType.INT: numbers_of,
    ColumnType.FLOAT: numbers_of,
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
    """Return a JSON column with each value rewritten in canonical form.

    Raises: InvalidRow for a value that is no JSON, or not of the column's form
    """
    assert declared.json_decode is not None
    assert declared.json_encode is not None
    cache: dict[bytes | None, bytes | None] = {None: None}
    out: list[bytes | None] = []
    changed = False
    for row, text in enumerate(texts_of(column, rows)):
        if text not in cache:
            assert text is not None
            try:
                value = declared.json_decode(json.loads(text))
                cache[text] = dump_json(declared.json_encode(value)).encode()
            except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
                reason = "is not JSON of the form that this column has"
                raise InvalidRow(row=first_row + row, field=declared.name, reason=reason) from None
        written = cache[text]
        changed |= written != text
        out.append(written)
    return column_of_texts(declared, out) if changed else column
