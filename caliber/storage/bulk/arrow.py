"""Bridge to pyarrow (extra ``arrow``): schemas of relations, record batches to buffers and back, row hashes.

Only this module and ``parquet`` import pyarrow. A column becomes a ``CopyColumn``, which points at Arrow's buffers. A
column of another type than the schema's is converted where that loses nothing, and refused otherwise.

Source: design sections 3 and 4; D-005.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels.copy.columns import WIDTHS, CopyColumn, CopyField, CopyKind
from caliber.model.errors import DTypeError, ExtraNotInstalled, InvalidRow, InvalidValue
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import Row, blaming

U8s = npt.NDArray[np.uint8]

KINDS: dict[ColumnType, CopyKind] = {
    ColumnType.UUID: CopyKind.UUID,
    ColumnType.INSTANT: CopyKind.INSTANT,
    ColumnType.TEXT: CopyKind.TEXT,
    ColumnType.INT: CopyKind.INT8,
    ColumnType.FLOAT: CopyKind.FLOAT8,
    ColumnType.BOOL: CopyKind.BOOL,
    ColumnType.BYTES: CopyKind.BYTES,
    ColumnType.JSON: CopyKind.JSONB,
    ColumnType.TEXT_ARRAY: CopyKind.TEXT_ARRAY,
    ColumnType.UUID_ARRAY: CopyKind.UUID_ARRAY,
    ColumnType.ENUM: CopyKind.TEXT,
    ColumnType.VECTOR: CopyKind.VECTOR,
}
"""The layout of a column: in Arrow's buffers, and in the binary COPY of PostgreSQL."""


def field_of(column: Column) -> CopyField:
    """Return a column as the kernels take it."""
    return CopyField(column.name, KINDS[column.type], nullable=column.nullable)


def load_pyarrow() -> Any:
    """Return the module. Raises: ExtraNotInstalled."""
    try:
        import pyarrow
    except ImportError as error:
        raise ExtraNotInstalled(feature="bulk loading and reading", extra="arrow") from error
    return pyarrow


def _type_of(kind: CopyKind) -> Any:
    pa = load_pyarrow()
    return {
        CopyKind.UUID: lambda: pa.binary(16),
        CopyKind.INSTANT: lambda: pa.timestamp("us", "UTC"),
        CopyKind.TEXT: pa.string,
        CopyKind.JSONB: pa.string,
        CopyKind.INT8: pa.int64,
        CopyKind.FLOAT8: pa.float64,
        CopyKind.BOOL: pa.bool_,
        CopyKind.BYTES: pa.binary,
        CopyKind.TEXT_ARRAY: lambda: pa.list_(pa.string()),
        CopyKind.UUID_ARRAY: lambda: pa.list_(pa.binary(16)),
        CopyKind.VECTOR: lambda: pa.list_(pa.float32()),
    }[kind]()


def schema_of(relation: Relation) -> Any:
    """Return the ``pyarrow.Schema`` of a relation: its columns, without the ordinal, which is the store's own."""
    pa = load_pyarrow()
    fields = [pa.field(column.name, _type_of(KINDS[column.type]), column.nullable) for column in relation.columns]
    return pa.schema(fields, metadata={"relation": relation.name})


def default_array(column: Column, rows: int) -> Any:
    """Return the column of rows that were written without it: its default, or nulls."""
    value: Any = [] if column.default == () else column.default
    return load_pyarrow().array([value] * rows, _type_of(KINDS[column.type]))


def default_column(column: Column, rows: int) -> CopyColumn:
    """Return the column of rows that were written without it, as buffers."""
    return _buffers(default_array(column, rows), field_of(column))


# --- from the caller's data ----------------------------------------------------------------------


class Source:
    """Record batches of at most ``batch_rows`` rows, and the names of their columns."""

    def __init__(self, names: Sequence[str], batches: Iterator[Any], rows: int | None) -> None:
        self.names = tuple(names)
        self.batches = batches
        self.rows = rows
        """The number of rows, where that is known before."""


def source_of(data: Any, batch_rows: int) -> Source:
    """Return the rows of a Table, RecordBatch, RecordBatchReader or anything with ``__arrow_c_stream__``.

    Raises: ExtraNotInstalled, DTypeError, InvalidValue
    """
    pa = load_pyarrow()
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([_sound(data)])
    if isinstance(data, pa.Table):
        _sound(data)
        return Source(data.schema.names, iter(data.to_batches(max_chunksize=batch_rows)), data.num_rows)
    if not isinstance(data, pa.RecordBatchReader):
        if not hasattr(data, "__arrow_c_stream__"):
            raise DTypeError(field="data", expected="an Arrow table, record batch or stream", got=type(data).__name__)
        data = pa.RecordBatchReader.from_stream(data)
    return Source(data.schema.names, _pieces(data, data.schema.names, batch_rows), None)


def _sound(data: Any) -> Any:
    """Return a table or record batch whose columns have the declared length. Raises: InvalidValue."""
    try:
        data.validate()
    except load_pyarrow().ArrowException as error:
        raise InvalidValue(field="data", reason="is not a valid table: its columns differ from its schema") from error
    return data


def _pieces(reader: Iterable[Any], names: Sequence[str], batch_rows: int) -> Iterator[Any]:
    for batch in reader:
        if sorted(_sound(batch).schema.names) != sorted(names):  # a stream does not validate its batches
            raise InvalidValue(field="columns", reason="a record batch has other columns than the stream's schema")
        for start in range(0, batch.num_rows, batch_rows):
            yield batch.slice(start, batch_rows)


def column_from(batch: Any, column: Column, *, first_row: int) -> CopyColumn:
    """Return a column of a record batch as buffers, converted where its type is another.

    Raises: DTypeError for a type that cannot be converted, InvalidRow for a value that cannot
    """
    array = batch.column(batch.schema.get_field_index(column.name))
    if isinstance(array, load_pyarrow().ExtensionArray):
        array = array.storage
    _check_whole(array, column.name, first_row)  # before the conversion, which follows offsets without checking them
    field = field_of(column)
    return _buffers(_conformed(array, field, first_row), field)


def _check_whole(array: Any, name: str, first_row: int) -> None:
    """Raise InvalidRow for offsets and codes that leave their buffers, or text that is not UTF-8."""
    pa = load_pyarrow()
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        row = _first_bad(array, _validate)
        if pa.types.is_dictionary(array.type) and (codes := array.indices.to_pylist()):
            try:
                _validate(array.dictionary)
            except pa.ArrowException:
                bad = _first_bad(array.dictionary, _validate)
                row = codes.index(bad) if bad in codes else 0
        reason = "the text is not UTF-8" if "UTF8" in str(error) else "its offsets exceed its buffers"
        raise InvalidRow(row=first_row + row, field=name, reason=reason) from None


def _validate(array: Any) -> None:
    array.validate(full=True)


def _first_bad(array: Any, check: Callable[[Any], object]) -> int:
    """Return the first row of an array that fails a check which some row fails."""
    pa = load_pyarrow()
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            check(array.slice(start, middle - start))
        except pa.ArrowException:
            end = middle
        else:
            start = middle
    return start


def _conformed(array: Any, field: CopyField, first_row: int) -> Any:
    """Return an array of a type that ``_buffers`` reads."""
    pa = load_pyarrow()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    expected = _type_of(field.kind)
    if array.type == expected or _is_read(array.type, field.kind):
        return array
    if not _is_convertible(array.type, field.kind):
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), expected)
        hint = " (give it a time zone)" if pa.types.is_timestamp(array.type) else ""
        raise DTypeError(field=field.name, expected=str(expected), got=f"{array.type}{hint}")
    try:
        return array.cast(expected)
    except pa.ArrowException:
        row = _first_bad(array, lambda part: part.cast(expected))
        raise InvalidRow(row=first_row + row, field=field.name, reason=f"no value of type {expected}") from None


def _is_read(type_: Any, kind: CopyKind) -> bool:
    types = load_pyarrow().types
    if kind in (CopyKind.TEXT, CopyKind.JSONB):
        return bool(types.is_large_string(type_))
    if kind is CopyKind.BYTES:
        binary = types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
        return bool(binary or types.is_string(type_) or types.is_large_string(type_))
    if kind is CopyKind.VECTOR:
        lists = types.is_large_list(type_) or types.is_fixed_size_list(type_) or types.is_list(type_)
        return bool(lists and types.is_float32(type_.value_type))
    if kind in (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY):  # the name of the items is part of a type
        return bool(
            (types.is_list(type_) or types.is_large_list(type_))
            and (type_.value_type == _type_of(kind).value_type or types.is_large_string(type_.value_type))
        )
    return False


def _is_convertible(type_: Any, kind: CopyKind) -> bool:
    """Return whether a conversion preserves the meaning."""
    types = load_pyarrow().types
    if kind is CopyKind.INT8:
        return bool(types.is_integer(type_))
    if kind is CopyKind.FLOAT8:
        return bool(types.is_floating(type_) or types.is_integer(type_))
    if kind is CopyKind.INSTANT:
        return bool(types.is_timestamp(type_) and type_.tz is not None)
    if kind in (CopyKind.TEXT, CopyKind.JSONB):
        return bool(types.is_string(type_) or types.is_string_view(type_))
    if kind is CopyKind.BYTES:
        return bool(types.is_binary_view(type_) or types.is_string_view(type_))
    if kind is CopyKind.UUID:
        return bool(types.is_binary(type_) or types.is_large_binary(type_))
    if kind in (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY, CopyKind.VECTOR):
        lists = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
        item = CopyKind.FLOAT8 if kind is CopyKind.VECTOR else kind
        texts = types.is_string(type_.value_type) or types.is_string_view(type_.value_type) if lists else False
        binaries = types.is_binary(type_.value_type) if lists else False
        if kind is CopyKind.VECTOR:
            return bool(lists and _is_convertible(type_.value_type, item))
        return bool(lists and (texts if kind is CopyKind.TEXT_ARRAY else binaries))
    return False


# --- buffers ------------------------------------------------------------------------------------


def _u8(buffer: Any) -> U8s:
    return np.empty(0, np.uint8) if buffer is None or buffer.size == 0 else np.frombuffer(buffer, np.uint8)


def _edges(array: Any, *, wide: bool) -> npt.NDArray[Any]:
    """Return the offsets of an array's rows: one more than there are rows."""
    dtype = np.dtype(np.int64 if wide else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def _is_wide(type_: Any) -> bool:
    types = load_pyarrow().types
    return bool(types.is_large_string(type_) or types.is_large_binary(type_) or types.is_large_list(type_))


def _fixed(array: Any, width: int) -> U8s:
    return _u8(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _buffers(array: Any, field: CopyField) -> CopyColumn:
    types = load_pyarrow().types
    kind, type_ = field.kind, array.type
    given: dict[str, Any] = {
        "validity": _u8(array.buffers()[0]) if array.null_count else None,
        "first": array.offset,
        "missing": array.null_count,
        "keep": array,
    }
    if kind is CopyKind.BOOL:
        return CopyColumn(field, _u8(array.buffers()[1]), **given)
    if kind in WIDTHS:
        return CopyColumn(field, _fixed(array, WIDTHS[kind]), width=WIDTHS[kind], **given)
    if types.is_fixed_size_binary(type_):
        return CopyColumn(field, _fixed(array, type_.byte_width), width=type_.byte_width, **given)
    if types.is_fixed_size_list(type_):
        given["width"] = type_.list_size
        child = array.values.slice(array.offset * type_.list_size, len(array) * type_.list_size)
    else:
        given["offsets"] = _edges(array, wide=_is_wide(type_))
        if kind in (CopyKind.TEXT, CopyKind.JSONB, CopyKind.BYTES):
            return CopyColumn(field, _u8(array.buffers()[2]), **given)
        child = array.values
    given.update(
        item_count=len(child),
        item_first=child.offset,
        item_validity=_u8(child.buffers()[0]) if child.null_count else None,
    )
    if kind is CopyKind.VECTOR:
        return CopyColumn(field, _fixed(child, 4), **given)
    if kind is CopyKind.UUID_ARRAY:
        return CopyColumn(field, _fixed(child, 16), **given)
    given["items"] = _edges(child, wide=_is_wide(child.type))
    return CopyColumn(field, _u8(child.buffers()[2]), **given)


def batch_from_columns(relation: Relation, columns: Sequence[CopyColumn], rows: int) -> Any:
    """Return columns that were decoded as a ``pyarrow.RecordBatch``; their buffers are taken over, not copied."""
    return load_pyarrow().record_batch([_array(column, rows) for column in columns], schema=schema_of(relation))


def _narrow(offsets: npt.NDArray[Any] | None) -> npt.NDArray[np.int32]:
    """Return offsets in the type of the schema; a batch that was decoded at once is below 2 GiB."""
    assert offsets is not None
    return np.ascontiguousarray(offsets, np.int32)


def _array(column: CopyColumn, rows: int) -> Any:
    pa = load_pyarrow()
    kind, buffer = column.field.kind, pa.py_buffer
    type_ = _type_of(kind)
    validity = buffer(column.validity) if column.missing and column.validity is not None else None
    if kind is CopyKind.BOOL or kind in WIDTHS:
        return pa.Array.from_buffers(type_, rows, [validity, buffer(column.values)], null_count=column.missing)
    offsets = buffer(_narrow(column.offsets))
    if kind in (CopyKind.TEXT, CopyKind.JSONB, CopyKind.BYTES):
        buffers = [validity, offsets, buffer(column.values)]
        return pa.Array.from_buffers(type_, rows, buffers, null_count=column.missing)
    if kind is CopyKind.TEXT_ARRAY:
        items = [None, buffer(_narrow(column.items)), buffer(column.values)]
        child = pa.Array.from_buffers(type_.value_type, column.item_count, items)
    else:
        width = 4 if kind is CopyKind.VECTOR else 16
        count = column.values.shape[0] // width
        child = pa.Array.from_buffers(type_.value_type, count, [None, buffer(column.values)])
    return pa.Array.from_buffers(type_, rows, [validity, offsets], null_count=column.missing, children=[child])


def batch_from_rows(relation: Relation, rows: Sequence[Row]) -> Any:
    """Return rows as a driver gives them, ordinal first where there is one, as a ``pyarrow.RecordBatch``.

    Raises: StorageError for a damaged row, naming it
    """
    pa = load_pyarrow()
    schema = schema_of(relation)
    start = 1 if relation.ordinal else 0
    width = start + len(relation.columns)
    by_column = list(zip(*rows, strict=True)) if rows else [()] * width
    with blaming(relation, rows):
        arrays = [
            pa.array(_arrow_values(column.type, values), schema.field(column.name).type)
            for column, values in zip(relation.columns, by_column[start:], strict=True)
        ]
        return pa.record_batch(arrays, schema=schema)


def _arrow_values(kind: ColumnType, values: Sequence[Any]) -> Sequence[Any]:
    if kind is ColumnType.BOOL:
        return [None if value is None else bool(value) for value in values]
    if kind is ColumnType.TEXT_ARRAY:
        return [None if value is None else json.loads(value) for value in values]
    if kind is ColumnType.UUID_ARRAY:
        return [None if value is None else [value[at : at + 16] for at in range(0, len(value), 16)] for value in values]
    if kind is ColumnType.VECTOR:
        return [None if value is None else np.frombuffer(value, "<f4") for value in values]
    return values
