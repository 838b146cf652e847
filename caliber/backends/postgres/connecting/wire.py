"""Conversion of row values to PostgreSQL's binary format and back, by functions generated per statement.

Rows hold the same Python values for every database: ids and vectors as bytes, instants as microseconds since 1970, JSON
and lists of texts as canonical JSON, booleans as 0 and 1. The server reports the parameter and result types of a
statement when it is first prepared; after that both directions are generated code that inspects no types.

PostgreSQL's text and JSON cannot hold the zero character: it travels under an escape, so that every text comes back
unchanged. JSONB keeps numbers, not their spelling: a float beyond 1e16 is written with its point, or it would come back
as a whole number.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from caliber.model.errors import InternalError, InvalidValue, StorageError
from caliber.storage.compile.codec import Row, dump_json

Value = bytes | None

BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8, UNKNOWN = 16, 17, 20, 23, 25, 701, 705
TEXT_ARRAY, TIMESTAMPTZ, UUID, UUID_ARRAY, JSONB = 1009, 1184, 2950, 2951, 3802

_NAME_BYTES: Final = 63
"""The server cuts longer names of prepared statements short, and takes two that differ behind for the same."""


def prepared_name(prefix: bytes, name: str) -> bytes:
    """Return the name of a statement on the server: a long name ends in a digest."""
    raw = name.encode()
    if len(prefix) + len(raw) > _NAME_BYTES:
        raw = raw[:16] + hashlib.sha256(raw).hexdigest()[:20].encode()
    return prefix + raw


_SINCE_2000_US: Final = 946_684_800_000_000
_LATEST: Final = 2**63 - 1
"""PostgreSQL's ``infinity``; its opposite is the smallest integer."""
_LAST_US: Final = 9_223_371_331_200_000_000
"""294276-12-31, the last day of a TIMESTAMPTZ, and about the same distance into the past."""

_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_F64: Final = struct.Struct(">d")
_VECTOR_HEAD: Final = struct.Struct(">Hh")
_ARRAY_HEAD: Final = struct.Struct(">iiIii")

ESCAPE: Final = "\ufdd0"
"""A noncharacter, which no text needs: before ``0`` it stands for a zero character, before ``1`` for itself."""
_ESCAPE_BYTES: Final = ESCAPE.encode()
_BOOLS: Final = {0: b"\0", 1: b"\1"}
_LONG_FLOAT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(-?\d+(?:\.\d+)?)e\+(\d+)')


def _escape(text: str) -> str:
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def _unescape(text: str) -> str:
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data with ``change`` made to every text in it, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_walk(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _walk(item, change) for name, item in value.items()}
    return value


# --- from rows to the wire -----------------------------------------------------------------------


def _text(value: str) -> bytes:
    if "\0" in value or ESCAPE in value:
        value = _escape(value)
    return value.encode()


def _instant(value: int) -> bytes:
    # Values beyond PostgreSQL's range of dates are only bounds of comparisons.
    if value > _LAST_US:
        return _I64.pack(_LATEST)
    if value < -_LAST_US:
        return _I64.pack(-_LATEST - 1)
    return _I64.pack(value - _SINCE_2000_US)


def _bool(value: int) -> bytes:
    return _BOOLS[value]


def json_text(text: str) -> str:
    if "\\u0000" in text or ESCAPE in text:
        text = dump_json(_walk(json.loads(text), _escape))
    if "e+" in text:
        text = _LONG_FLOAT.sub(_spelt_out, text)
    return text


def _spelt_out(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"{float(found[0]):f}"


def _array(oid: int, items: Sequence[bytes]) -> bytes:
    if not items:
        return _ARRAY_HEAD.pack(0, 0, oid, 0, 0)[:12]
    parts = [_ARRAY_HEAD.pack(1, 0, oid, len(items), 1)]
    for item in items:
        parts += (_I32.pack(len(item)), item)
    return b"".join(parts)


def _turned(raw: bytes) -> bytes:
    """Return 32-bit numbers with their bytes in the opposite order."""
    numbers = array("I", raw)
    numbers.byteswap()
    return numbers.tobytes()


def _vector(value: bytes) -> bytes:
    if len(value) % 4:
        raise StorageError("a vector is whole 32-bit numbers; this one has bytes left over", reason="vector")
    return _VECTOR_HEAD.pack(len(value) // 4, 0) + _turned(value)


# --- from the wire to rows -----------------------------------------------------------------------


def _from_text(raw: bytes) -> str:
    text = raw.decode()
    return _unescape(text) if ESCAPE in text else text


def _from_instant(raw: bytes) -> int:
    value: int = _I64.unpack(raw)[0] + _SINCE_2000_US
    return value


def from_jsonb(raw: bytes) -> str:
    if raw == b"\1[]" or raw == b"\1{}":
        return raw[1:].decode()
    value = json.loads(raw[1:])
    return dump_json(_walk(value, _unescape) if _ESCAPE_BYTES in raw else value)


def _items(raw: bytes) -> list[bytes]:
    if len(raw) <= 12:
        return []
    count = _ARRAY_HEAD.unpack_from(raw)[3]
    at, out = 20, []
    for _ in range(count):
        end = at + 4 + _I32.unpack_from(raw, at)[0]
        out.append(raw[at + 4 : end])
        at = end
    return out


_ENCODERS: Final[dict[int, Callable[[Any], bytes] | None]] = {
    BOOL: _bool,
    BYTEA: None,  # as it is
    UUID: None,
    INT8: _I64.pack,
    INT4: _I32.pack,
    FLOAT8: _F64.pack,
    TEXT: _text,
    UNKNOWN: _text,
    TIMESTAMPTZ: _instant,
    JSONB: lambda value: b"\1" + json_text(value).encode(),
    TEXT_ARRAY: lambda value: _array(TEXT, [_text(item) for item in json.loads(value)]),
    UUID_ARRAY: lambda value: _array(UUID, [value[at : at + 16] for at in range(0, len(value), 16)]),
}
_DECODERS: Final[dict[int, Callable[[bytes], Any] | None]] = {
    BOOL: lambda raw: raw[0],
    BYTEA: None,
    UUID: None,
    INT8: lambda raw: _I64.unpack(raw)[0],
    INT4: lambda raw: _I32.unpack(raw)[0],
    FLOAT8: lambda raw: _F64.unpack(raw)[0],
    TEXT: _from_text,
    UNKNOWN: _from_text,
    TIMESTAMPTZ: _from_instant,
    JSONB: from_jsonb,
    TEXT_ARRAY: lambda raw: dump_json([_from_text(item) for item in _items(raw)]),
    UUID_ARRAY: lambda raw: b"".join(_items(raw)),
}


class Binding:
    """The wire formats of one statement's parameters and result columns."""

    def __init__(self, name: str, parameters: Sequence[int], results: Sequence[int], vector_oid: int) -> None:
        encoders = {**_ENCODERS, vector_oid: _vector}
        decoders = {**_DECODERS, vector_oid: lambda raw: _turned(raw[4:])}
        for oid in (*parameters, *results):
            if oid not in encoders:
                raise InternalError(f"statement {name} uses PostgreSQL's type {oid}, which rows have no form for")
        self.width = len(parameters)
        self.encode = _generated_encoder(name, [encoders[oid] for oid in parameters])
        self.decode = _generated_decoder(name, [decoders[oid] for oid in results])


def _generated_encoder(name: str, encoders: Sequence[Any]) -> Callable[[Sequence[Any]], list[Value]]:
    scope: dict[str, Any] = {f"e{at}": encoder for at, encoder in enumerate(encoders)}
    scope |= {"InvalidValue": InvalidValue, "StorageError": StorageError, "struct_error": struct.error}
    parts = [
        f"p[{at}]" if encoder is None else f"None if p[{at}] is None else e{at}(p[{at}])"
        for at, encoder in enumerate(encoders)
    ]
    source = (
        "def encode(p):\n"
        f"    if len(p) != {len(encoders)}:\n"
        f"        raise InvalidValue(field={name!r}, reason='takes {len(encoders)} parameters')\n"
        "    try:\n"
        f"        return [{', '.join(parts)}]\n"
        "    except (struct_error, TypeError, AttributeError, LookupError, ValueError) as error:\n"
        f"        raise StorageError('a value does not fit its column', reason='type') from error\n"
    )
    exec(compile(source, f"<parameters of {name}>", "exec"), scope)  # noqa: S102
    encode: Callable[[Sequence[Any]], list[Value]] = scope["encode"]
    return encode


def _generated_decoder(name: str, decoders: Sequence[Any]) -> Callable[[Callable[[int, int], Value], int], list[Row]]:
    scope: dict[str, Any] = {f"d{at}": decoder for at, decoder in enumerate(decoders)}
    parts = []
    for at, decoder in enumerate(decoders):
        value = f"get(r, {at})"
        parts.append(value if decoder is None else f"None if (v := {value}) is None else d{at}(v)")
    source = f"def decode(get, n):\n    return [({''.join(f'({part}), ' for part in parts)}) for r in range(n)]\n"
    exec(compile(source, f"<rows of {name}>", "exec"), scope)  # noqa: S102
    decode: Callable[[Callable[[int, int], Value], int], list[Row]] = scope["decode"]
    return decode
