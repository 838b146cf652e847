"""The COPY kernels against their twin: the same bytes, the same columns, the same faults. # D-005, C-195, O-5"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels.copy_columns import NUMBERS, copy_chunks, rows_of
from support.kernels.instruction_sets import MACHINES, running_on, searched
from support.kernels.twins import copy as twin

from caliber._native import lib
from caliber.kernels.copy.columns import REASONS, CopyColumn, CopyField, CopyKind
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyReader, CopyRows, Decoded, decode_tuples
from caliber.model.errors import DTypeError, InvalidRow, InvalidValue, ShapeError

Values = list[Any]
OLDEST = -211_813_488_000_000_000 + 946_684_800_000_000
texts = st.one_of(
    st.text(alphabet="ab é日🎉\U0010ffff", max_size=20), st.text(alphabet="a", min_size=5, max_size=40)
).map(str.encode)
odd_bytes = st.one_of(
    texts,
    texts.map(lambda text: text + b"\0"),
    st.binary(max_size=24),
    st.sampled_from(
        [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x8f\xbf\xbf", b"12345678\xff"]
    ),
)
floats = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 65504.0, -65504.0, 65519.0, 2**-24, 2**-25, 2**-14, 6.1e-5, 0.333]),
)
half_floats = st.one_of(
    floats.map(lambda x: float(np.clip(x, -65504, 65504))), st.floats(width=16, allow_nan=False, allow_infinity=False)
)
odd_floats = st.one_of(floats, st.sampled_from([65520.0, -1e30, float("nan"), float("inf"), float("-inf")]))


def of_kind(kind: CopyKind, *, odd: bool) -> st.SearchStrategy[Any]:
    """Return values of a kind: ones that can be sent, or with ``odd`` others among them."""
    if kind is CopyKind.BOOL:
        return st.booleans()
    if kind is CopyKind.UUID:
        return st.binary(min_size=16, max_size=16)
    if kind is CopyKind.INSTANT:
        return st.one_of(st.integers(OLDEST - odd, OLDEST + 5), st.integers(0, 2**63 - 1), st.integers(-10, 10))
    if kind in NUMBERS:
        dtype = np.dtype(NUMBERS[kind])
        return st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize).map(lambda raw: np.frombuffer(raw, dtype)[0])
    if kind is CopyKind.BYTES:
        return st.binary(max_size=20)
    if kind in (CopyKind.TEXT, CopyKind.JSONB):
        return odd_bytes if odd else texts
    if kind is CopyKind.TEXT_ARRAY:
        items = st.one_of(odd_bytes, st.none()) if odd else texts
        return st.lists(items, max_size=4)
    if kind is CopyKind.UUID_ARRAY:
        return st.lists(st.binary(min_size=16, max_size=16), max_size=3)
    numbers = odd_floats if odd else (half_floats if kind is CopyKind.HALFVEC else floats)
    return st.lists(numbers, min_size=0 if odd else 1, max_size=20)


def offsets_of(lengths: Sequence[int], before: int, *, wide: bool) -> np.ndarray:
    return np.cumsum([before, *lengths], dtype=np.int64 if wide else np.int32)


def bits_of(flags: Sequence[bool], before: int) -> np.ndarray:
    """Return bits of which the first ``before`` are another's."""
    return np.packbits(np.array([True] * before + list(flags), np.bool_), bitorder="little")


def raw(array: Any) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def column_of(field: CopyField, values: Values, *, first: int, wide: bool) -> CopyColumn:
    """Return Arrow's buffers of values, in the middle of larger ones where that can be."""
    kind = field.kind
    validity = bits_of([value is not None for value in values], first)
    if kind is CopyKind.BOOL:
        return CopyColumn(field, bits_of([bool(value) for value in values], first), validity=validity, first=first)
    if kind in NUMBERS:
        numbers = np.array([0 if value is None else value for value in values], NUMBERS[kind])
        return CopyColumn(field, raw(numbers), validity=validity, first=first)
    if kind is CopyKind.UUID:
        return CopyColumn(
            field,
            raw(np.frombuffer(b"".join(value or bytes(16) for value in values), np.uint8)),
            validity=validity,
            first=first,
        )
    lengths = [len(value or ()) for value in values]
    if kind in (CopyKind.VECTOR, CopyKind.HALFVEC):
        numbers = np.array([0.0] * first + [x for value in values for x in value or ()], np.float32)
        return CopyColumn(
            field, raw(numbers), offsets=offsets_of(lengths, first, wide=wide), validity=validity, first=first
        )
    if kind not in (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY):
        data = b"x" * first + b"".join(value or b"" for value in values)
        return CopyColumn(
            field,
            raw(np.frombuffer(data, np.uint8)),
            offsets=offsets_of(lengths, first, wide=wide),
            validity=validity,
            first=first,
        )
    items = [item for value in values for item in value or ()]
    lead = b"" if kind is CopyKind.UUID_ARRAY else b"yy"
    return CopyColumn(
        field,
        np.frombuffer(lead + b"".join(item or b"" for item in items), np.uint8),
        offsets=offsets_of(lengths, 0, wide=wide),
        validity=validity,
        first=first,
        items=offsets_of([len(item or b"") for item in items], 2, wide=wide) if lead else None,
        item_count=len(items),
        item_validity=bits_of([item is not None for item in items], 3),
        item_first=3,
    )


@st.composite
def batches(
    draw: st.DrawFn, *, odd: bool, kinds: Sequence[CopyKind] = tuple(CopyKind)
) -> tuple[list[CopyColumn], list[Values]]:
    rows = draw(st.integers(0, 9))
    columns, kept = [], []
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(list(kinds)))
        nullable = not odd or draw(st.integers(0, 4)) > 0
        vectors = kind in (CopyKind.VECTOR, CopyKind.HALFVEC)
        field = CopyField(f"c{number}", kind, draw(st.integers(0, 3)) if odd and vectors else 0, nullable)
        one = of_kind(kind, odd=odd)
        values = draw(st.lists(st.one_of(st.none(), one, one), min_size=rows, max_size=rows))
        columns.append(column_of(field, values, first=draw(st.integers(0, 9)), wide=draw(st.booleans())))
        kept.append(values)
    return columns, [list(row) for row in zip(*kept, strict=True)] if kept else [[] for _ in range(rows)]


def outcome(work: Callable[[], Any]) -> Any:
    """Return the values that come back, or the fault."""
    try:
        return work()
    except InvalidRow as error:
        return error.row, error.field, error.reason


def encoded(columns: list[CopyColumn], rows: int, start: int = 0, capacity: int = 1 << 16) -> Any:
    out = np.full(capacity, 0xA5, np.uint8)
    numbers = CopyRows(columns, rows).encode(start, out)
    assert (out[numbers.size :] == 0xA5).all() or numbers.needed  # what does not fit may be begun
    return numbers, out[: numbers.size].tobytes()


def of_columns(found: Decoded) -> Any:
    return (*found[:3], [bytes_of(column) for column in found.columns])


def bytes_of(column: CopyColumn) -> tuple[Any, ...]:
    arrays = (column.values, column.offsets, column.validity, column.items)
    return (
        *(None if array is None else (array.dtype, array.tobytes()) for array in arrays),
        column.item_count,
        column.missing,
    )


def test_kinds_and_reasons_are_those_of_c() -> None:
    for kind in CopyKind:
        assert getattr(lib, f"CAL_COPY_{kind.name}") == kind
    names = (
        "MISSING", "UTF8", "NUL", "RANGE", "SIZE", "DIMENSIONS", "NON_FINITE", "SPAN", "ITEM", "FIELDS", "LENGTH",
        "ARRAY", "VERSION",
    )  # fmt: skip
    assert [getattr(lib, f"CAL_COPY_{name}") for name in names] == list(REASONS)
    assert [getattr(twin, name) for name in names] == list(REASONS)
    assert lib.CAL_COPY_DIMENSIONS_MAX == twin.DIMENSIONS_MAX


@pytest.mark.parametrize("path", MACHINES)
@searched(
    examples=60,
    batch=batches(odd=True),
    capacity=st.one_of(st.just(1 << 12), st.integers(0, 200)),
    start=st.integers(0, 3),
)
def test_rows_are_encoded_alike(
    path: str, batch: tuple[list[CopyColumn], list[Values]], capacity: int, start: int
) -> None:
    columns, rows = batch
    start = min(start, len(rows))
    with running_on(path):
        native = outcome(lambda: encoded(columns, len(rows), start, capacity))
    assert outcome(lambda: twin.encode(columns, start, len(rows), capacity)) == native


@pytest.mark.parametrize("path", MACHINES)
@searched(batch=batches(odd=False), chunk=st.integers(1, 300), piece=st.integers(1, 400), rows_max=st.integers(1, 12))
def test_what_is_encoded_is_decoded(
    path: str, batch: tuple[list[CopyColumn], list[Values]], chunk: int, piece: int, rows_max: int
) -> None:
    columns, rows = batch
    fields = [column.field for column in columns]
    with running_on(path):
        stream = b"".join(bytes(part) for part in copy_chunks(iter([CopyRows(columns, len(rows))]), chunk_bytes=chunk))
        assert stream.startswith(COPY_HEADER)
        assert stream.endswith(COPY_TRAILER)
        reader = CopyReader(fields)
        found: list[Values] = []
        for at in range(0, len(stream), piece):
            for part in reader.feed(stream[at : at + piece], rows_max=rows_max):
                assert part.rows <= rows_max
                found += rows_of(part.columns, part.rows)
        reader.close()
    assert [[plain(value) for value in row] for row in found] == [
        [plain(value, column.field.kind) for value, column in zip(row, columns, strict=True)] for row in rows
    ]


def plain(value: Any, kind: CopyKind | None = None) -> Any:
    """Return a value so that equal ones are equal: numbers by their bits, halves as what they round to."""
    if isinstance(value, np.generic | int) and not isinstance(value, bool):
        return (
            np.asarray(value).astype(NUMBERS.get(kind, np.int64) if isinstance(value, int) else value.dtype).tobytes()
        )
    if kind is CopyKind.HALFVEC and value is not None:
        return np.array(value, np.float32).astype(np.float16).astype(np.float32).tobytes()
    if kind is CopyKind.VECTOR and value is not None:
        return np.array(value, np.float32).tobytes()
    return value


@pytest.mark.parametrize("path", MACHINES)
@searched(batch=batches(odd=False), seed=st.integers(0, 2**32), rows_max=st.sampled_from([1, 2, 1000]))
def test_bytes_of_any_kind_are_decoded_alike(
    path: str, batch: tuple[list[CopyColumn], list[Values]], seed: int, rows_max: int
) -> None:
    columns, rows = batch
    fields = [column.field for column in columns]
    whole = bytearray(twin.encode(columns, 0, len(rows), 1 << 16)[1] + COPY_TRAILER)
    damage(whole, random.Random(seed))
    with running_on(path):
        native = outcome(lambda: of_columns(decode_tuples(bytes(whole), fields, rows_max=rows_max)))
    assert outcome(lambda: of_columns(twin.decode(bytes(whole), fields, rows_max))) == native


def damage(data: bytearray, dice: random.Random) -> None:
    """Change some bytes, or lose some, or none."""
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = dice.randbytes(dice.randrange(5))
            case 2 if at < len(data):
                data[at] = dice.choice([0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            case _:
                del data[at : at + dice.randrange(5)]


@pytest.mark.parametrize("path", MACHINES)
def test_every_half_is_read_and_written(path: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    between = (halves.astype(np.float64)[:-1] + halves.astype(np.float64)[1:]) / 2  # ties, across ±0 too
    wanted = np.concatenate([halves.astype(np.float32), between.astype(np.float32), np.float32([1e-30, -65519.99])])
    field = CopyField("h", CopyKind.HALFVEC)
    for at in range(0, wanted.shape[0], 16_000):
        part = wanted[at : at + 16_000]
        with running_on(path):
            data = encoded([CopyColumn(field, raw(part), width=part.shape[0])], 1)[1]
            back = decode_tuples(data, [field], rows_max=1).columns[0].values.view(np.float32)
        assert data[10:] == part.astype(np.float16).astype(">f2").tobytes()
        assert back.tobytes() == part.astype(np.float16).astype(np.float32).tobytes()


BAD: dict[str, tuple[CopyKind, Values, str]] = {
    "no value": (CopyKind.INT8, [1, None], "a value is required"),
    "not utf-8": (CopyKind.TEXT, [b"a", b"12345678\xff"], "not UTF-8"),
    "a surrogate": (CopyKind.TEXT, [b"a", b"\xed\xa0\x80"], "not UTF-8"),
    "nul": (CopyKind.JSONB, [b"{}", b'"\0"'], "NUL"),
    "nul after eight": (CopyKind.TEXT, [b"", b"123456789\0"], "NUL"),
    "before 4714 BC": (CopyKind.INSTANT, [OLDEST, OLDEST - 1], "outside what the type holds"),
    "no dimensions": (CopyKind.VECTOR, [[1.0], []], "dimensions"),
    "too large for a half": (CopyKind.HALFVEC, [[65519.0], [65520.0]], "outside what the type holds"),
    "not a number": (CopyKind.VECTOR, [[1.0], [0.0, float("nan")]], "NaN or infinity"),
    "infinite": (CopyKind.HALFVEC, [[1.0], [float("-inf")]], "NaN or infinity"),
    "no item": (CopyKind.TEXT_ARRAY, [[b"a"], [b"b", None]], "an element of an array is missing"),
    "item not utf-8": (CopyKind.TEXT_ARRAY, [[b"a"], [b"b", b"\x80"]], "not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named(case: str) -> None:
    kind, values, reason = BAD[case]
    good = column_of(CopyField("good", CopyKind.BOOL), [True, False], first=0, wide=False)
    bad = column_of(CopyField("bad", kind, nullable=False), values, first=0, wide=False)
    with pytest.raises(InvalidRow, match=reason) as caught:
        # The row is counted from the first batch on.
        list(copy_chunks(iter([CopyRows([good, bad], 1), CopyRows([good, bad], 2)])))
    assert (caught.value.row, caught.value.field) == (2, "bad")
    assert outcome(lambda: twin.encode([good, bad], 0, 2, 1 << 12)) == (1, "bad", caught.value.reason)


def test_a_span_that_leaves_its_column_is_named() -> None:
    field = CopyField("t", CopyKind.TEXT)
    data = np.frombuffer(b"abc", np.uint8)
    for edges in ([0, 4], [2, 1], [-1, 2]):
        with pytest.raises(InvalidRow, match="offsets"):
            encoded([CopyColumn(field, data, offsets=np.array(edges, np.int32))], 1)


def test_a_dimension_that_is_not_the_columns_is_refused() -> None:
    field = CopyField("v", CopyKind.VECTOR, 2)
    column = column_of(field, [[1.0, 2.0], [1.0]], first=0, wide=True)
    with pytest.raises(InvalidRow, match="dimensions") as caught:
        encoded([column], 2)
    assert caught.value.row == 1


# Bytes that no server sends for the kind, and what is said of them.
MALFORMED: dict[str, tuple[CopyKind, bytes, str]] = {
    "a longer bool": (CopyKind.BOOL, b"\1\0", "too few or too many"),
    "a shorter number": (CopyKind.INT8, bytes(7), "too few or too many"),
    "infinity": (CopyKind.INSTANT, b"\x7f" + b"\xff" * 7, "outside what the type holds"),
    "no version": (CopyKind.JSONB, b"", "too few or too many"),
    "another version": (CopyKind.JSONB, b"\2{}", "form of the value"),
    "latin-1": (CopyKind.TEXT, b"\xe9t\xe9", "not UTF-8"),
    "two dimensions": (CopyKind.TEXT_ARRAY, struct.pack(">iiiiiii", 2, 0, 25, 1, 1, 1, 1), "not a list of the type"),
    "a list of integers": (CopyKind.TEXT_ARRAY, struct.pack(">iii", 0, 0, 23), "not a list of the type"),
    "a list from 0": (CopyKind.UUID_ARRAY, struct.pack(">iiiiii", 1, 0, 2950, 1, 0, 16) + bytes(16), "not a list"),
    "a missing element": (CopyKind.TEXT_ARRAY, struct.pack(">iiiiii", 1, 1, 25, 1, 1, -1), "element of an array"),
    "a count beyond the field": (CopyKind.TEXT_ARRAY, struct.pack(">iiiii", 1, 0, 25, 2**31 - 1, 1), "too few"),
    "an element beyond the field": (CopyKind.TEXT_ARRAY, struct.pack(">iiiiii", 1, 0, 25, 1, 1, 9), "too few"),
    "a short uuid": (CopyKind.UUID_ARRAY, struct.pack(">iiiiii", 1, 0, 2950, 1, 1, 15) + bytes(15), "too few"),
    "dimensions beyond the field": (CopyKind.VECTOR, struct.pack(">HHf", 2, 0, 1.0), "too few or too many"),
    "an unknown vector": (CopyKind.VECTOR, struct.pack(">HHf", 1, 1, 1.0), "form of the value"),
    "a vector with NaN": (CopyKind.HALFVEC, struct.pack(">HHH", 1, 0, 0x7E00), "NaN or infinity"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_bytes_that_no_server_sends_are_refused(case: str) -> None:
    kind, value, reason = MALFORMED[case]
    good = struct.pack(">hi", 1, -1)
    bad = struct.pack(">hi", 1, len(value)) + value
    with pytest.raises(InvalidRow, match=reason) as caught:
        CopyReader([CopyField("c", kind)]).feed(COPY_HEADER + good + bad, rows_max=10)
    assert (caught.value.row, caught.value.field) == (1, "c")
    assert outcome(lambda: twin.decode(good + bad, [CopyField("c", kind)], 10)) == (1, "c", caught.value.reason)


def test_streams_that_are_none_are_refused() -> None:
    fields = [CopyField("n", CopyKind.INT4)]
    row = struct.pack(">hii", 1, 4, 7)
    for header in (b"PGDUMP\n\xff\r\n\0", COPY_HEADER[:11] + b"\0\1\0\0" + bytes(4), COPY_HEADER[:15] + b"\xff" * 4):
        with pytest.raises(InvalidValue, match="copy"):
            CopyReader(fields).feed(header + bytes(20), rows_max=10)
    reader = CopyReader(fields)
    reader.feed(COPY_HEADER[:15] + b"\0\0\0\3" + b"abc" + row + row[:5], rows_max=10)  # an extension is passed over
    with pytest.raises(InvalidValue, match="in the middle"):
        reader.close()
    with pytest.raises(InvalidRow, match="another number of fields"):
        CopyReader(fields).feed(COPY_HEADER + struct.pack(">h", 2), rows_max=10)
    with pytest.raises(InvalidValue, match="bytes follow"):
        CopyReader(fields).feed(COPY_HEADER + row + COPY_TRAILER + b"\0", rows_max=10)
    with pytest.raises(InvalidRow, match="too few"):
        decode_tuples(struct.pack(">hI", 1, 2**31), fields, rows_max=1)


def test_arrays_that_do_not_fit_the_rows_are_refused_before_c_sees_them() -> None:
    text, number = CopyField("t", CopyKind.TEXT), CopyField("n", CopyKind.INT8)
    data = np.zeros(8, np.uint8)
    with pytest.raises(InvalidValue, match="offsets"):
        CopyRows([CopyColumn(text, data, offsets=np.zeros(2, np.int32))], 2)
    with pytest.raises(ShapeError, match="validity"):
        CopyRows([CopyColumn(number, data, validity=np.zeros(1, np.uint8), first=1)], 8)
    with pytest.raises(DTypeError):
        CopyRows([CopyColumn(number, data.view(np.int64))], 1)
    with pytest.raises(DTypeError):
        CopyRows([CopyColumn(CopyField("a", CopyKind.TEXT_ARRAY), data, offsets=np.zeros(2, np.int32))], 1)
    with pytest.raises(InvalidRow, match="offsets"):
        encoded([CopyColumn(number, data)], 2)


@given(text=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_utf8_is_what_python_says(text: bytes) -> None:
    def valid() -> bool:
        try:
            return "\0" not in text.decode()
        except UnicodeDecodeError:
            return False

    column = CopyColumn(CopyField("t", CopyKind.TEXT), np.frombuffer(text, np.uint8), width=len(text))
    assert isinstance(outcome(lambda: encoded([column], 1))[0], int) != valid()
