"""Binary COPY as PostgreSQL writes and reads it: committed bytes, the SQL that made them, and the real server.

# D-005, C-195, K-106
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from support.kernels.copy_columns import copy_chunks, rows_of
from support.kernels.twins import copy as twin
from support.local_server import LocalServer

from caliber.kernels.copy.columns import CopyColumn, CopyField, CopyKind
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyReader, CopyRows
from caliber.model.errors import InvalidRow

FOLDER = Path(__file__).with_name("copy")
BYTES = (FOLDER / "rows.copy").read_bytes()
STATEMENTS = [part.strip() for part in (FOLDER / "rows.sql").read_text(encoding="utf-8").split(";\n") if part.strip()]
KINDS = {
    "n": CopyKind.INT4, "flag": CopyKind.BOOL, "tiny": CopyKind.INT2, "small": CopyKind.INT4, "big": CopyKind.INT8,
    "single": CopyKind.FLOAT4, "real": CopyKind.FLOAT8, "id": CopyKind.UUID, "at": CopyKind.INSTANT,
    "raw": CopyKind.BYTES, "said": CopyKind.TEXT, "body": CopyKind.JSONB, "plain": CopyKind.TEXT,
    "tags": CopyKind.TEXT_ARRAY, "ids": CopyKind.UUID_ARRAY, "meaning": CopyKind.VECTOR, "short": CopyKind.HALFVEC,
}  # fmt: skip
FIELDS = [CopyField(name, kind) for name, kind in KINDS.items()]


def u(text: str) -> bytes:
    return uuid.UUID(text).bytes


def f32(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def us(*date: int) -> int:
    delta = datetime(*date, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)  # type: ignore[misc, arg-type]
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


# What rows.sql says, as CALIBER keeps it; JSONB in the server's own spelling.
MAX_US = us(9999, 12, 31, 23, 59, 59, 999_999)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
ONE = "00112233-4455-6677-8899-aabbccddeeff"
EXPECTED: list[list[Any]] = [
    [1, True, 1, 2, 3, 1.5, -2.25, u(ONE), us(2000, 1, 1), b"\0\xff\x10", b"plain",
     '{"a": [1, 2.50, null, true], "b": "é"}'.encode(), b'{"a":  1}', [b"one", b"two"], [u(ONE)], f32(1, 2, 3),
     f32(1, 2, 3)],
    [2, False, -(2**15), -(2**31), -(2**63), -0.0, math.nan, bytes(16), 1, b"", b"", b"{}", b"[]", [], [], f32(-0.0),
     f32(-0.0)],
    [3, True, 2**15 - 1, 2**31 - 1, 2**63 - 1, math.inf, -math.inf, b"\xff" * 16, -210_863_520_000_000_000,
     b"\xff" * 9, "naïve — 日本 🎉 𝄞".encode(), '"𝄞é"'.encode(), b"null",
     [b"", b"a b", b'"', b"\\", "日本".encode(), b"NULLED"], [bytes(15) + b"\1", bytes(15) + b"\2"],
     f32(3.4028235e38, 1.4e-45, 0.1), f32(65504, 2**-24, np.float16(0.1))],
    [4, *[None] * 16],
    [5, False, 0, 0, 0, np.float32(1e-45), 5e-324, u(ID), MAX_US, b"\\", b"a\tb\nc", b"[[], {}, [[]]]", b'"x"',
     ["é".encode()], None, f32(0.5, -0.25), f32(-65504, np.float16(0.0000610352))],
    [6, None, 7, None, 8, None, 9.0, None, us(1, 1, 1), None, b"every other", None, b"1", None, [u(ID)], None, f32(1)],
]  # fmt: skip


def decoded(data: bytes, piece: int, rows_max: int) -> list[tuple[int, list[CopyColumn]]]:
    reader = CopyReader(FIELDS)
    parts = [
        (part.rows, part.columns)
        for at in range(0, len(data), piece)
        for part in reader.feed(data[at : at + piece], rows_max=rows_max)
    ]
    reader.close()
    return parts


def encoded(parts: list[tuple[int, list[CopyColumn]]]) -> bytes:
    return b"".join(map(bytes, copy_chunks(CopyRows(columns, rows) for rows, columns in parts)))


def comparable(value: Any) -> Any:
    """Tell -0.0 from 0.0, and take NaN for equal to itself."""
    return struct.pack(">d", value) if isinstance(value, float | np.floating) else value


@pytest.mark.parametrize(("piece", "rows_max"), [(1 << 20, 100), (7, 4), (1 << 20, 1)])
def test_the_servers_bytes_hold_what_the_sql_says(piece: int, rows_max: int) -> None:
    parts = decoded(BYTES, piece, rows_max)
    found = [row for rows, columns in parts for row in rows_of(columns, rows)]
    assert [list(map(comparable, row)) for row in found] == [list(map(comparable, row)) for row in EXPECTED]
    assert encoded(parts) == BYTES


def test_the_twin_reads_and_writes_the_servers_bytes() -> None:
    rows, _, ended, columns = twin.decode(BYTES[len(COPY_HEADER) :], FIELDS, 100)
    assert [list(map(comparable, row)) for row in rows_of(columns, rows)] == [
        list(map(comparable, row)) for row in EXPECTED
    ]
    assert ended
    assert COPY_HEADER + twin.encode(columns, 0, rows, 1 << 20)[1] + COPY_TRAILER == BYTES


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[Any]]:
    with LocalServer.start(fsync=False) as server, psycopg.connect(server.dsn, autocommit=True) as opened:
        opened.execute("CREATE EXTENSION vector")
        for statement in STATEMENTS[:-1]:
            opened.execute(statement)
        yield opened


def test_the_sql_makes_the_committed_bytes(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor, cursor.copy(STATEMENTS[-1]) as copy:
        assert b"".join(map(bytes, copy)) == BYTES


def test_the_server_takes_what_we_write(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        parts = decoded(BYTES, 1 << 20, 4)
        cursor.execute("CREATE TEMP TABLE again (LIKE golden)")
        with cursor.copy("COPY again FROM STDIN (FORMAT binary)") as copy:
            copy.write(encoded(parts))
        both = "SELECT array_agg(t::text ORDER BY n) FROM {} t"
        (ours,), (theirs,) = (
            cursor.execute(both.format("again")).fetchone(),
            cursor.execute(both.format("golden")).fetchone(),
        )  # type: ignore[misc]
        cursor.execute("DROP TABLE again")
    assert ours == theirs


# A value of a kind, the type of its column, and what the server says of it that we say first.
REFUSED: dict[str, tuple[CopyColumn, str, str]] = {
    "an instant before 4714 BC": (
        CopyColumn(CopyField("at", CopyKind.INSTANT), np.array([-(2**62)], np.int64).view(np.uint8)),
        "TIMESTAMPTZ",
        "timestamp out of range",
    ),
    "a text with NUL": (CopyColumn(CopyField("said", CopyKind.TEXT), np.frombuffer(b"a\0b", np.uint8), width=3), "TEXT",
                        "invalid byte sequence"),
    "a text that is not UTF-8": (
        CopyColumn(CopyField("said", CopyKind.TEXT), np.frombuffer(b"\xed\xa0\x80", np.uint8), width=3),
        "TEXT",
        "invalid byte sequence",
    ),
    "a vector with NaN": (
        CopyColumn(CopyField("meaning", CopyKind.VECTOR), np.array([np.nan], np.float32).view(np.uint8), width=1),
        "vector",
        "NaN not allowed in vector",
    ),
    "a vector of nothing": (CopyColumn(CopyField("meaning", CopyKind.VECTOR), np.empty(0, np.uint8)), "vector",
                            "vector must have at least 1 dimension"),
    "a vector of too much": (
        CopyColumn(CopyField("meaning", CopyKind.VECTOR), np.zeros(4 * 16_001, np.uint8), width=16_001),
        "vector",
        "vector cannot have more than 16000 dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_here_the_server_would_refuse(case: str, connection: psycopg.Connection[Any]) -> None:
    column, type_, said = REFUSED[case]
    with pytest.raises(InvalidRow):
        encoded([(1, [column])])
    raw = {
        CopyKind.INSTANT: lambda: struct.pack(">q", -(2**62)),
        CopyKind.TEXT: lambda: column.values.tobytes(),
        CopyKind.VECTOR: lambda: (
            struct.pack(">HH", column.width, 0) + column.values.view(np.float32).astype(">f4").tobytes()
        ),
    }[column.field.kind]()
    data = BYTES[:19] + struct.pack(">hi", 1, len(raw)) + raw + b"\xff\xff"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE one (value {type_})")
        try:
            with pytest.raises(psycopg.Error, match=said), cursor.copy("COPY one FROM STDIN (FORMAT binary)") as copy:
                copy.write(data)
        finally:
            cursor.execute("DROP TABLE one")
