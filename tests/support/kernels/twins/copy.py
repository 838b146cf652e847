"""The binary COPY kernels in Python, written from PostgreSQL's documentation: row by row, value by value."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels.copy.columns import ARRAYS, REASONS, WIDTHS, CopyColumn, CopyField, CopyKind
from caliber.kernels.copy.rows import Decoded, Encoded
from caliber.model.errors import InvalidRow

MISSING, UTF8, NUL, RANGE, SIZE, DIMENSIONS, NON_FINITE, SPAN, ITEM, FIELDS, LENGTH, ARRAY, VERSION = REASONS
FIELD_MAX = 2**30 - 1
DIMENSIONS_MAX = 16_000
EPOCH_US = 946_684_800_000_000
OLDEST_US = -211_813_488_000_000_000
_TRAILER = b"\xff\xff"
_OIDS = {CopyKind.TEXT_ARRAY: 25, CopyKind.UUID_ARRAY: 2950}
_NUMBERS = {
    CopyKind.INT2: "h",
    CopyKind.INT4: "i",
    CopyKind.INT8: "q",
    CopyKind.FLOAT4: "I",  # bits: a NaN keeps its payload
    CopyKind.FLOAT8: "Q",
}
_VECTORS = (CopyKind.VECTOR, CopyKind.HALFVEC)


class _Bad(Exception):
    def __init__(self, reason: int) -> None:
        self.reason = reason

    def named(self, row: int, field: CopyField) -> InvalidRow:
        return InvalidRow(row=row, field=field.name, reason=REASONS[self.reason])


def _bit(bits: npt.NDArray[np.uint8], at: int) -> bool:
    return bool(bits[at // 8] >> (at % 8) & 1)


def _check_text(raw: bytes) -> bytes:
    # The first fault decides, as it does in C.
    nul = raw.find(0)
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        if nul < 0 or error.start < nul:
            raise _Bad(UTF8) from None
    if nul >= 0:
        raise _Bad(NUL)
    return raw


def _turned(raw: bytes, kind: CopyKind, into: str) -> bytes:
    """Return a number in network order (``>``), or in that of the machine (``=``)."""
    letter = _NUMBERS[kind]
    return struct.pack(into + letter, *struct.unpack((">" if into == "=" else "=") + letter, raw))


# --- encoding ----------------------------------------------------------------------------------


def _span(column: CopyColumn, row: int, elements: int) -> tuple[int, int]:
    if column.offsets is not None:
        start, end = int(column.offsets[row]), int(column.offsets[row + 1])
    else:
        start, end = row * column.width, (row + 1) * column.width
    if start < 0 or end < start or end > elements:
        raise _Bad(SPAN)
    return start, end


def _elements_of(column: CopyColumn, row: int) -> Iterator[bytes]:
    text = column.field.kind is CopyKind.TEXT_ARRAY
    if not text and column.item_count * 16 > column.values.shape[0]:
        raise _Bad(SPAN)
    start, end = _span(column, row, column.item_count)
    for at in range(start, end):
        if column.item_validity is not None and not _bit(column.item_validity, column.item_first + at):
            raise _Bad(ITEM)
        if text:
            first, last = int(column.items[at]), int(column.items[at + 1])
            if first < 0 or last < first or last > column.values.shape[0]:
                raise _Bad(SPAN)
            yield _check_text(column.values[first:last].tobytes())
        else:
            yield column.values[16 * at : 16 * at + 16].tobytes()


def _encode_vector(column: CopyColumn, row: int) -> bytes:
    floats = column.values[: column.values.shape[0] // 4 * 4].view(np.float32)
    start, end = _span(column, row, floats.shape[0])
    count, dimensions = end - start, column.field.dimensions
    if not 1 <= count <= DIMENSIONS_MAX or (dimensions and count != dimensions):
        raise _Bad(DIMENSIONS)
    vector = floats[start:end]
    if not np.isfinite(vector).all():
        raise _Bad(NON_FINITE)
    head = struct.pack(">HH", count, 0)
    if column.field.kind is CopyKind.VECTOR:
        return head + vector.astype(">f4").tobytes()
    with np.errstate(over="ignore"):
        halves = vector.astype(np.float16)
    if not np.isfinite(halves).all():
        raise _Bad(RANGE)
    return head + halves.astype(">f2").tobytes()


def _encode_value(column: CopyColumn, row: int) -> bytes | None:
    kind, size = column.field.kind, column.values.shape[0]
    if column.validity is not None and not _bit(column.validity, column.first + row):
        if not column.field.nullable:
            raise _Bad(MISSING)
        return None
    if kind is CopyKind.BOOL:
        if (column.first + row) // 8 >= size:
            raise _Bad(SPAN)
        return bytes([_bit(column.values, column.first + row)])
    if kind in WIDTHS:
        width = WIDTHS[kind]
        if (row + 1) * width > size:
            raise _Bad(SPAN)
        raw = column.values[row * width : (row + 1) * width].tobytes()
        if kind is CopyKind.INSTANT:
            since_2000 = struct.unpack("=q", raw)[0] - EPOCH_US
            if since_2000 < OLDEST_US:
                raise _Bad(RANGE)
            return struct.pack(">q", since_2000)
        return raw if kind is CopyKind.UUID else _turned(raw, kind, ">")
    if kind in _VECTORS:
        return _encode_vector(column, row)
    if kind in ARRAYS:
        elements = list(_elements_of(column, row))
        out = struct.pack(">iii", bool(elements), 0, _OIDS[kind])
        if elements:
            out += struct.pack(">ii", len(elements), 1)
        out += b"".join(struct.pack(">i", len(element)) + element for element in elements)
    else:
        start, end = _span(column, row, size)
        out = column.values[start:end].tobytes()
        if kind is not CopyKind.BYTES and len(out) <= FIELD_MAX:
            _check_text(out)
        if kind is CopyKind.JSONB:
            out = b"\x01" + out
    if len(out) > FIELD_MAX:
        raise _Bad(SIZE)
    return out


def encode(columns: Sequence[CopyColumn], start: int, rows: int, capacity: int) -> tuple[Encoded, bytes]:
    """Return the tuples of rows [start, rows), as many whole ones as fit. Raises: InvalidRow."""
    out = b""
    for row in range(start, rows):
        made = struct.pack(">H", len(columns))
        for column in columns:
            try:
                value = _encode_value(column, row)
            except _Bad as bad:
                raise bad.named(row, column.field) from None
            made += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        if len(out) + len(made) > capacity:
            return Encoded(row - start, len(out), len(made)), out
        out += made
    return Encoded(rows - start, len(out), 0), out


# --- decoding ----------------------------------------------------------------------------------


def _split_array(raw: bytes, kind: CopyKind) -> list[bytes]:
    text = kind is CopyKind.TEXT_ARRAY
    if len(raw) < 12:
        raise _Bad(LENGTH)
    dimensions, flags, oid = struct.unpack_from(">III", raw)
    if dimensions > 1 or flags > 1 or oid != _OIDS[kind]:
        raise _Bad(ARRAY)
    if dimensions == 0:
        if len(raw) != 12:
            raise _Bad(LENGTH)
        return []
    if len(raw) < 20:
        raise _Bad(LENGTH)
    count, lower = struct.unpack_from(">ii", raw, 12)
    if count < 1 or lower != 1:
        raise _Bad(ARRAY)
    out: list[bytes] = []
    at = 20
    for _ in range(count):
        if len(raw) - at < 4:
            raise _Bad(LENGTH)
        (length,) = struct.unpack_from(">I", raw, at)
        at += 4
        if length == 0xFFFFFFFF:
            raise _Bad(ITEM)
        if length > len(raw) - at or (not text and length != 16):
            raise _Bad(LENGTH)
        element = raw[at : at + length]
        out.append(_check_text(element) if text else element)
        at += length
    if at != len(raw):
        raise _Bad(LENGTH)
    return out


def _decode_vector(raw: bytes, column: CopyField) -> bytes:
    width = 4 if column.kind is CopyKind.VECTOR else 2
    if len(raw) < 4:
        raise _Bad(LENGTH)
    count, unused = struct.unpack_from(">HH", raw)
    if unused:
        raise _Bad(VERSION)
    if not 1 <= count <= DIMENSIONS_MAX or (column.dimensions and count != column.dimensions):
        raise _Bad(DIMENSIONS)
    if len(raw) != 4 + count * width:
        raise _Bad(LENGTH)
    vector = np.frombuffer(raw, f">f{width}", offset=4)
    if not np.isfinite(vector).all():
        raise _Bad(NON_FINITE)
    return vector.astype(np.float32).tobytes()


def _decode_value(raw: bytes, column: CopyField) -> Any:
    """Return the value of a field: bytes as Arrow has them, a list of them for an array, a bool."""
    kind = column.kind
    if kind is CopyKind.BOOL or kind in WIDTHS:
        if len(raw) != WIDTHS.get(kind, 1):
            raise _Bad(LENGTH)
        if kind is CopyKind.BOOL:
            return raw != b"\x00"
        if kind is CopyKind.INSTANT:
            (since_2000,) = struct.unpack(">q", raw)
            if not OLDEST_US <= since_2000 <= 2**63 - 1 - EPOCH_US:
                raise _Bad(RANGE)
            return struct.pack("=q", since_2000 + EPOCH_US)
        return raw if kind is CopyKind.UUID else _turned(raw, kind, "=")
    if kind in ARRAYS:
        return _split_array(raw, kind)
    if kind in _VECTORS:
        return _decode_vector(raw, column)
    if kind is CopyKind.JSONB:
        if not raw:
            raise _Bad(LENGTH)
        if raw[0] != 1:
            raise _Bad(VERSION)
        raw = raw[1:]
    return raw if kind is CopyKind.BYTES else _check_text(raw)


def decode(data: bytes, fields: Sequence[CopyField], rows_max: int) -> Decoded:
    """Return the whole tuples at the beginning of ``data`` as columns. Raises: InvalidRow."""
    rows: list[list[Any]] = []
    at, ended = 0, False
    while len(data) - at >= 2 and not ended:
        if data[at : at + 2] == _TRAILER:
            at, ended = at + 2, True
        elif len(rows) == rows_max:
            break
        elif struct.unpack_from(">H", data, at) != (len(fields),):
            raise InvalidRow(row=len(rows), field=fields[0].name if fields else "", reason=REASONS[FIELDS])
        else:
            found = _raw_fields(data, at + 2, fields, len(rows))
            if found is None:  # not there to its end
                break
            raw, at = found
            rows.append([_named_value(*pair, len(rows)) for pair in zip(raw, fields, strict=True)])
    by_column = zip(*rows, strict=True) if rows else ([] for _ in fields)
    columns = [_column_of(field, list(values)) for field, values in zip(fields, by_column, strict=True)]
    return Decoded(len(rows), at, ended, columns)


def _raw_fields(data: bytes, at: int, fields: Sequence[CopyField], row: int) -> tuple[list[bytes | None], int] | None:
    """Return the fields of a tuple and where it ends, or None if it is not there to its end."""
    out: list[bytes | None] = []
    for field in fields:
        if len(data) - at < 4:
            return None
        (length,) = struct.unpack_from(">I", data, at)
        at += 4
        if length == 0xFFFFFFFF:
            out.append(None)
            continue
        if length > FIELD_MAX:
            raise _Bad(LENGTH).named(row, field)
        if len(data) - at < length:
            return None
        out.append(data[at : at + length])
        at += length
    return out, at


def _named_value(raw: bytes | None, field: CopyField, row: int) -> Any:
    try:
        return None if raw is None else _decode_value(raw, field)
    except _Bad as bad:
        raise bad.named(row, field) from None


def _column_of(field: CopyField, values: Sequence[Any]) -> CopyColumn:
    """Return decoded values as Arrow's buffers."""
    kind = field.kind
    present = np.array([value is not None for value in values], np.bool_)
    some: dict[str, Any] = {"validity": _bits(present), "missing": int(len(values) - present.sum())}
    if kind is CopyKind.BOOL:
        return CopyColumn(field, _bits(np.array([bool(value) for value in values], np.bool_)), **some)
    if kind in WIDTHS:
        width = WIDTHS[kind]
        return CopyColumn(field, _bytes(value or bytes(width) for value in values), width=width, **some)
    unit = 4 if kind in _VECTORS else 1
    some["offsets"] = np.cumsum([0, *(len(value or ()) // unit for value in values)], dtype=np.int32)
    if kind not in ARRAYS:
        return CopyColumn(field, _bytes(value or b"" for value in values), **some)
    elements = [element for value in values for element in value or ()]
    items = np.cumsum([0, *map(len, elements)], dtype=np.int32) if kind is CopyKind.TEXT_ARRAY else None
    return CopyColumn(field, _bytes(elements), items=items, item_count=len(elements), **some)


def _bits(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(flags, bitorder="little")


def _bytes(values: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(values), np.uint8)
