"""Encoder and decoder of PostgreSQL's binary COPY format, in C.

The buffers of a column are read in place. ``copy_tuples`` returns the bytes between header and trailer; ``CopyReader``
takes received bytes and returns columns.

Source: design sections 3, 4 and 6; O-5, D-005, C-195; csrc/include/caliber.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.copy.columns import ARRAYS, REASONS, WIDTHS, CopyColumn, CopyField, CopyKind
from caliber.model.errors import InvalidRow, InvalidValue

U8s = npt.NDArray[np.uint8]

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, flags (no OIDs), no extension."""
COPY_TRAILER = b"\xff\xff"

_HEADER_MAX = 1 << 20
_INT32_MAX = 2**31 - 1


def _check(lib: Any, status: int, fault: Any, fields: Sequence[CopyField], **arguments: str) -> None:
    if status == lib.CAL_E_COPY:
        name = fields[fault.column].name if fault.column < len(fields) else ""
        raise InvalidRow(row=fault.row, field=name, reason=REASONS[fault.reason])
    dispatch.check(status, **arguments)


# --- encoding ----------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """The result of an encoding: rows and bytes written, and the bytes that the next row needs (0: there is none)."""

    rows: int
    size: int
    needed: int


class CopyRows:
    """Columns of one record batch, checked once, as tuples of COPY."""

    __slots__ = ("_columns", "_fields", "_native", "_struct", "rows")

    def __init__(self, columns: Sequence[CopyColumn], rows: int) -> None:
        """Take ``rows`` rows of columns.

        Raises:  DTypeError, ShapeError, InvalidValue
        """
        self.rows = checks.whole(rows, field="rows")
        self._columns = tuple(columns)
        self._fields = tuple(column.field for column in columns)
        for column in columns:
            _check_column(column, rows)
        self._native = dispatch.native()
        self._struct = self._structs(self._native.ffi)

    def _structs(self, ffi: Any) -> Any:
        structs = ffi.new("cal_copy_column[]", len(self._columns))
        buffer, null = ffi.from_buffer, ffi.NULL
        for struct, column in zip(structs, self._columns, strict=True):
            struct.kind, struct.nullable = column.field.kind, column.field.nullable
            struct.dimensions, struct.width = column.field.dimensions, column.width
            struct.first, struct.size = column.first, column.values.shape[0]
            struct.item_count, struct.item_first = column.item_count, column.item_first
            struct.values = buffer("uint8_t[]", column.values)
            struct.validity = null if column.validity is None else buffer("uint8_t[]", column.validity)
            struct.item_validity = null if column.item_validity is None else buffer("uint8_t[]", column.item_validity)
            for name, offsets in (("offsets", column.offsets), ("items", column.items)):
                if offsets is not None:
                    bits = 32 if offsets.dtype == checks.I32 else 64
                    setattr(struct, f"{name}{bits}", buffer(f"int{bits}_t[]", offsets))
        return structs

    def encode(self, start: int, out: U8s) -> Encoded:
        """Write the tuples from row ``start`` on into ``out``, as many whole ones as fit.

        Raises:  InvalidRow
        """
        ffi, lib = self._native.ffi, self._native.lib
        numbers, fault = ffi.new("size_t[3]"), ffi.new("cal_copy_fault *")
        status = lib.cal_copy_encode(
            self._struct,
            len(self._columns),
            start,
            self.rows,
            ffi.from_buffer("uint8_t[]", out, require_writable=True),
            out.shape[0],
            numbers,
            numbers + 1,
            numbers + 2,
            fault,
        )
        _check(lib, status, fault, self._fields, argument="columns")
        return Encoded(*numbers)


def _check_column(column: CopyColumn, rows: int) -> None:
    name, kind = column.field.name, column.field.kind
    checks.view(column.values, checks.U8, 1, field=name)
    if column.validity is not None:
        checks.at_least(column.validity, checks.U8, -(-(column.first + rows) // 8), field=f"{name}: validity")
    if column.offsets is not None:
        edges = checks.offsets(column.offsets, field=f"{name}: offsets")
        if edges.shape[0] < rows + 1:
            raise InvalidValue(field=f"{name}: offsets", reason=f"there must be {rows + 1}")
    if kind is CopyKind.TEXT_ARRAY:
        items = checks.offsets(column.items, field=f"{name}: items")
        if items.shape[0] < column.item_count + 1:
            raise InvalidValue(field=f"{name}: items", reason=f"there must be {column.item_count + 1}")
    if column.item_validity is not None:
        bits = column.item_first + column.item_count
        checks.at_least(column.item_validity, checks.U8, -(-bits // 8), field=f"{name}: validity of items")


def copy_tuples(batch: CopyRows, *, chunk_bytes: int) -> Iterator[memoryview]:
    """Yield the tuples of a batch in pieces of about ``chunk_bytes``; each is overwritten by the next.

    Raises:  InvalidRow
    """
    out = np.empty(chunk_bytes, np.uint8)
    at = 0
    while at < batch.rows:
        encoded = batch.encode(at, out)
        at += encoded.rows
        if encoded.size:
            yield out.data[: encoded.size]
        elif encoded.needed:
            out = np.empty(encoded.needed, np.uint8)  # a row that is larger than a piece


# --- decoding ----------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """Rows as columns, how many bytes they were, and whether the trailer followed."""

    rows: int
    consumed: int
    ended: bool
    columns: list[CopyColumn]


def decode_tuples(data: bytes | bytearray | memoryview, fields: Sequence[CopyField], *, rows_max: int) -> Decoded:
    """Return the whole tuples at the beginning of ``data``, at most ``rows_max``.

    Raises:  InvalidRow for bytes that are no tuples of such columns
    """
    rows_max = checks.whole(rows_max, field="rows_max", low=1)
    if len(data) > _INT32_MAX:
        raise InvalidValue(field="data", reason="longer than 2 GiB; decode it in parts")
    native = dispatch.native()
    ffi, lib = native.ffi, native.lib
    raw = np.frombuffer(data, np.uint8)
    buffers = ffi.new("cal_copy_buffer[]", len(fields))
    for buffer, field in zip(buffers, fields, strict=True):
        buffer.kind, buffer.dimensions = field.kind, field.dimensions
    numbers, ended = ffi.new("size_t[2]"), ffi.new("int32_t *")
    sizes, fault = ffi.new("uint64_t[]", 2 * len(fields)), ffi.new("cal_copy_fault *")
    bytes_ = ffi.from_buffer("uint8_t[]", raw)
    status = lib.cal_copy_scan(
        bytes_, raw.shape[0], buffers, len(fields), rows_max, numbers, numbers + 1, ended, sizes, fault
    )
    _check(lib, status, fault, fields)
    rows, consumed = numbers
    columns = [_room(field, rows, sizes[2 * at], sizes[2 * at + 1]) for at, field in enumerate(fields)]
    for buffer, column in zip(buffers, columns, strict=True):
        buffer.size, buffer.item_count = column.values.shape[0], column.item_count
        buffer.values = ffi.from_buffer("uint8_t[]", column.values)
        buffer.validity = ffi.from_buffer("uint8_t[]", column.validity)
        for name in ("offsets", "items"):
            array = getattr(column, name)
            if array is not None:
                setattr(buffer, name, ffi.from_buffer("int32_t[]", array))
    status = lib.cal_copy_decode(bytes_, consumed, buffers, len(fields), rows, fault)
    _check(lib, status, fault, fields)
    whole = [_with_missing(column, buffer.missing) for column, buffer in zip(columns, buffers, strict=True)]
    return Decoded(rows, consumed, bool(ended[0]), whole)


def _room(field: CopyField, rows: int, size: int, items: int) -> CopyColumn:
    """Return buffers of the sizes that a scan found."""
    validity = np.zeros(-(-rows // 8), np.uint8)
    if field.kind is CopyKind.BOOL:
        return CopyColumn(field, np.zeros(-(-rows // 8), np.uint8), validity=validity)
    width = WIDTHS.get(field.kind, 0)
    if width:
        return CopyColumn(field, np.empty(rows * width, np.uint8), width=width, validity=validity)
    return CopyColumn(
        field,
        np.empty(size, np.uint8),
        offsets=np.zeros(rows + 1, np.int32),
        validity=validity,
        items=np.zeros(items + 1, np.int32) if field.kind is CopyKind.TEXT_ARRAY else None,
        item_count=items if field.kind in ARRAYS else 0,
    )


def _with_missing(column: CopyColumn, missing: int) -> CopyColumn:
    return CopyColumn(
        column.field,
        column.values,
        offsets=column.offsets,
        width=column.width,
        validity=column.validity,
        items=column.items,
        item_count=column.item_count,
        missing=missing,
    )


class CopyReader:
    """Takes the output of COPY ... TO STDOUT (FORMAT binary), piece by piece, and returns columns.

    It buffers no more than the bytes after the last complete tuple.
    """

    __slots__ = ("_fields", "_head", "_left", "_rows", "ended")

    def __init__(self, fields: Sequence[CopyField]) -> None:
        self._fields = tuple(fields)
        self._left = b""
        self._head = True
        self._rows = 0
        self.ended = False

    def feed(self, data: bytes | bytearray | memoryview, *, rows_max: int) -> list[Decoded]:
        """Take more bytes and return the complete rows, in parts of at most ``rows_max``.

        Raises:  InvalidRow, with the row counted from the first on; InvalidValue for bytes that are no COPY stream
        """
        joined = b"".join((self._left, data)) if self._left else bytes(data)
        if self._head:
            size = _header_size(joined)
            if size is None:
                self._left = joined
                return []
            joined = joined[size:]
            self._head = False
        out: list[Decoded] = []
        view = memoryview(joined)
        while not self.ended:
            try:
                decoded = decode_tuples(view, self._fields, rows_max=rows_max)
            except InvalidRow as error:
                raise InvalidRow(row=self._rows + error.row, field=error.field, reason=error.reason) from error
            self.ended = decoded.ended
            self._rows += decoded.rows
            view = view[decoded.consumed :]
            if decoded.rows:
                out.append(decoded)
            if decoded.rows < rows_max:
                break
        if self.ended and len(view):
            raise InvalidValue(field="copy", reason="bytes follow the end of the data")
        self._left = bytes(view)
        return out

    def close(self) -> None:
        """Raise InvalidValue unless the data came to its end."""
        if not self.ended:
            raise InvalidValue(field="copy", reason="the data ended in the middle; read it again")


def _header_size(data: bytes) -> int | None:
    """Return how many bytes the header has, or None if it is not there to its end."""
    signature = COPY_HEADER[:11]
    if not data.startswith(signature[: len(data)]):
        raise InvalidValue(field="copy", reason="not the binary format of COPY")
    if len(data) < 19:
        return None
    flags, extension = int.from_bytes(data[11:15]), int.from_bytes(data[15:19])
    if flags & 0xFFFF0000 or extension > _HEADER_MAX:  # critical flags, OIDs among them
        raise InvalidValue(field="copy", reason="a form of the binary format that is not known")
    return 19 + extension if len(data) >= 19 + extension else None
