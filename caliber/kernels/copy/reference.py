"""Reference implementation in Python of the binary COPY kernels, and their data types.

Written from PostgreSQL's documentation, to be read: row by row, value by value. See ``caliber.kernels.copy.rows``.

Source: design section 6; csrc/include/caliber.h.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.model.lazy_dataclass import dataclass

U8s = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]

FIELD_MAX = 2**30 - 1
DIMENSIONS_MAX = 16_000
EPOCH_US = 946_684_800_000_000
OLDEST_US = -211_813_488_000_000_000
_TRAILER = 0xFFFF
_TEXT_OID, _UUID_OID = 25, 2950


class CopyKind(IntEnum):
    """The kind of a field in a COPY tuple, and its Arrow type."""

    BOOL = 0
    INT2 = 1
    INT4 = 2
    INT8 = 3
    FLOAT4 = 4
    FLOAT8 = 5
    UUID = 6
    INSTANT = 7
    BYTES = 8
    TEXT = 9
    JSONB = 10
    TEXT_ARRAY = 11
    UUID_ARRAY = 12
    VECTOR = 13
    HALFVEC = 14


WIDTHS = {
    CopyKind.INT2: 2,
    CopyKind.INT4: 4,
    CopyKind.INT8: 8,
    CopyKind.FLOAT4: 4,
    CopyKind.FLOAT8: 8,
    CopyKind.UUID: 16,
    CopyKind.INSTANT: 8,
}
"""Bytes of a value where they are fixed, in Arrow and in a field alike."""

_NUMBERS = {
    CopyKind.INT2: "h",
    CopyKind.INT4: "i",
    CopyKind.INT8: "q",
    CopyKind.FLOAT4: "I",  # bits: a NaN keeps its payload
    CopyKind.FLOAT8: "Q",
}
ARRAYS = (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY)
VECTORS = (CopyKind.VECTOR, CopyKind.HALFVEC)

REASONS = {
    1: "a value is required",
    2: "the text is not UTF-8",
    3: "the text contains NUL, which PostgreSQL cannot store",
    4: "outside what the type holds",
    5: "longer than a value can be (1 GiB)",
    6: "not the number of dimensions it must have",
    7: "contains NaN or infinity",
    8: "the offsets of the column decrease, are negative or pass its end",
    9: "an element of an array is missing",
    10: "another number of fields than there are columns",
    11: "the bytes are too few or too many for the type",
    12: "not a list of the type of the column",
    13: "a form of the value that is not known",
}
MISSING, UTF8, NUL, RANGE, SIZE, DIMENSIONS, NON_FINITE, SPAN, ITEM, FIELDS, LENGTH, ARRAY, VERSION = range(1, 14)


@dataclass(frozen=True, slots=True)
class CopyField:
    """A column: ``dimensions`` of its vectors, 0 for any."""

    name: str
    kind: CopyKind
    dimensions: int = 0
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class CopyColumn:
    """One column as Arrow's buffers, which are not copied.

    ``first`` is the bit of row 0 in ``validity``, and in ``values`` of a BOOL. Values are spans between ``offsets``,
    counted in elements (bytes, f32, uuids, items), or of ``width`` elements each. ``items`` are the spans of texts of a
    TEXT_ARRAY, ``item_first`` the bit of item 0.
    """

    field: CopyField
    values: U8s
    offsets: Offsets | None = None
    width: int = 0
    validity: U8s | None = None
    first: int = 0
    items: Offsets | None = None
    item_count: int = 0
    item_validity: U8s | None = None
    item_first: int = 0
    missing: int = 0
    keep: Any = dataclasses.field(default=None, repr=False, compare=False)
    """The owner of the buffers' memory."""


class Encoded(NamedTuple):
    """The result of an encoding: rows and bytes written, and the bytes that the next row needs (0: there is none)."""

    rows: int
    size: int
    needed: int


class Scanned(NamedTuple):
    """The totals of the whole tuples in some bytes: bytes of values and items, by column."""

    rows: int
    consumed: int
    ended: bool
    sizes: tuple[tuple[int, int], ...]


class CopyFaultError(Exception):
    """A value or byte that may not be: row, column and one of ``REASONS``."""

    def __init__(self, row: int, column: int, reason: int) -> None:
        super().__init__(row, column, reason)
        self.row, self.column, self.reason = row, column, reason


class _Bad(Exception):
    def __init__(self, reason: int) -> None:
        self.reason = reason


def _bit(bits: U8s, at: int) -> bool:
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
            assert column.items is not None
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
    if kind in VECTORS:
        return _encode_vector(column, row)
    if kind in ARRAYS:
        elements = list(_elements_of(column, row))
        out = struct.pack(">iii", bool(elements), 0, _TEXT_OID if kind is CopyKind.TEXT_ARRAY else _UUID_OID)
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
    """Return the tuples of rows [start, rows), as many whole ones as fit.

    Raises:  CopyFaultError
    """
    out = bytearray()
    for row in range(start, rows):
        tuple_ = bytearray(struct.pack(">H", len(columns)))
        for at, column in enumerate(columns):
            try:
                value = _encode_value(column, row)
            except _Bad as bad:
                raise CopyFaultError(row, at, bad.reason) from None
            tuple_ += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        if len(out) + len(tuple_) > capacity:
            return Encoded(row - start, len(out), len(tuple_)), bytes(out)
        out += tuple_
    return Encoded(rows - start, len(out), 0), bytes(out)


# --- decoding ----------------------------------------------------------------------------------


def _split_array(raw: bytes, *, text: bool) -> list[bytes]:
    if len(raw) < 12:
        raise _Bad(LENGTH)
    dimensions, flags, oid = struct.unpack_from(">III", raw)
    if dimensions > 1 or flags > 1 or oid != (_TEXT_OID if text else _UUID_OID):
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
        return _split_array(raw, text=kind is CopyKind.TEXT_ARRAY)
    if kind in VECTORS:
        return _decode_vector(raw, column)
    if kind is CopyKind.JSONB:
        if not raw:
            raise _Bad(LENGTH)
        if raw[0] != 1:
            raise _Bad(VERSION)
        raw = raw[1:]
    return raw if kind is CopyKind.BYTES else _check_text(raw)


def _raw_fields(data: bytes, at: int, columns: int, row: int) -> tuple[list[bytes | None], int] | None:
    """Return the fields of the tuple at ``at`` and where it ends, or None if it is not there to its end."""
    fields: list[bytes | None] = []
    at += 2
    for column in range(columns):
        if len(data) - at < 4:
            return None
        (length,) = struct.unpack_from(">I", data, at)
        if length == 0xFFFFFFFF:
            fields.append(None)
            at += 4
            continue
        if length > FIELD_MAX:
            raise CopyFaultError(row, column, LENGTH)
        if len(data) - at - 4 < length:
            return None
        fields.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return fields, at


def scan(data: bytes, columns: Sequence[CopyField], rows_max: int) -> tuple[Scanned, list[list[Any]]]:
    """Return the totals of the whole tuples in ``data``, and their values by row.

    Raises:  CopyFaultError
    """
    at = 0
    rows: list[list[Any]] = []
    sizes = [[0, 0] for _ in columns]
    ended = False
    while len(data) - at >= 2:
        (fields,) = struct.unpack_from(">H", data, at)
        if fields == _TRAILER:
            ended = True
            at += 2
            break
        if len(rows) == rows_max:
            break
        if fields != len(columns):
            raise CopyFaultError(len(rows), 0, FIELDS)
        found = _raw_fields(data, at, fields, len(rows))
        if found is None:
            break
        values: list[Any] = []
        for number, (column, raw) in enumerate(zip(columns, found[0], strict=True)):
            try:
                value = None if raw is None else _decode_value(raw, column)
            except _Bad as bad:
                raise CopyFaultError(len(rows), number, bad.reason) from None
            values.append(value)
            if isinstance(value, list):
                sizes[number][0] += sum(map(len, value))
                sizes[number][1] += len(value)
            elif value is not None and column.kind not in WIDTHS and column.kind is not CopyKind.BOOL:
                sizes[number][0] += len(value)
        rows.append(values)
        at = found[1]
    return Scanned(len(rows), at, ended, tuple((size, items) for size, items in sizes)), rows


def column_of(column: CopyField, values: Sequence[Any]) -> CopyColumn:
    """Return decoded values as Arrow's buffers."""
    present = np.array([value is not None for value in values], np.bool_)
    validity = np.packbits(present, bitorder="little")
    missing = int(len(values) - present.sum())
    kind = column.kind
    if kind is CopyKind.BOOL:
        bits = np.packbits(np.array([bool(value) for value in values], np.bool_), bitorder="little")
        return CopyColumn(column, bits, validity=validity, missing=missing)
    if kind in WIDTHS:
        raw = b"".join(bytes(WIDTHS[kind]) if value is None else value for value in values)
        return CopyColumn(column, np.frombuffer(raw, np.uint8), width=WIDTHS[kind], validity=validity, missing=missing)
    unit = 4 if kind in VECTORS else 1
    lengths = [0 if value is None else len(value) // unit for value in values]
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    if kind not in ARRAYS:
        raw = b"".join(value or b"" for value in values)
        return CopyColumn(column, np.frombuffer(raw, np.uint8), offsets=offsets, validity=validity, missing=missing)
    elements = [element for value in values for element in value or ()]
    items = np.cumsum([0, *map(len, elements)], dtype=np.int32) if kind is CopyKind.TEXT_ARRAY else None
    return CopyColumn(
        column,
        np.frombuffer(b"".join(elements), np.uint8),
        offsets=offsets,
        validity=validity,
        items=items,
        item_count=len(elements),
        missing=missing,
    )
