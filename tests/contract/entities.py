"""Sample entities for tests, plain or with edge values, generated from the declaration of every relation."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import struct
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from caliber.model.agents.delegation import DelegationResult
from caliber.model.agents.registry import MemoryAccess
from caliber.model.errors import InternalError
from caliber.model.references import ArtifactId, NoteId
from caliber.model.time import from_us
from caliber.model.trajectory import TTL, OutcomeStatus, ToolCall, TrajectoryOutcome, TTLKind
from caliber.schema.relation import Column, ColumnType, Relation

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

_numbers = itertools.count(1_000_000_007)


def part_columns(relation: Relation) -> set[str]:
    """Return the columns that are parts of a field of the entity."""
    return {name for composite in relation.composites for _, name in composite.parts}


def json_edges(column: Column) -> tuple[Any, ...]:
    """Return values of a JSON column, a plain one first: their form depends on the entity."""
    if column.declared:
        return _JSON["payload"]
    if column.name not in _JSON:
        raise InternalError(f"say in tests/contract/entities.py what the JSON column {column.name} may hold")
    return _JSON[column.name]


def value_of(relation: Relation, entity: Any, column: str) -> Any:
    """Return an entity's value in a column, also in one that is part of a field."""
    for composite in relation.composites:
        for attribute, name in composite.parts:
            if name == column:
                return getattr(getattr(entity, composite.field), attribute)
    return getattr(entity, column)


def changed(relation: Relation, entity: Any, /, **columns: Any) -> Any:
    """Return the entity with other values in some columns, parts of fields included."""
    values = dict(columns)
    for composite in relation.composites:
        parts = {attribute: values.pop(name) for attribute, name in composite.parts if name in values}
        if parts:
            values[composite.field] = dataclasses.replace(getattr(entity, composite.field), **parts)
    return dataclasses.replace(entity, **values)


def plain(relation: Relation, /, **fixed: Any) -> Any:
    """Return one unremarkable entity of a relation, with everything that may be absent absent."""
    values: dict[str, Any] = {}
    parts = part_columns(relation)
    for column in relation.columns:
        if column.name not in parts:
            values[column.name] = None if column.nullable else _plain_value(column)
    for composite in relation.composites:
        if composite.field == "ttl":
            values["ttl"] = TTL(TTLKind.PERSISTENT)
        else:
            inner = {attribute: _plain_value(relation.column(name)) for attribute, name in composite.parts}
            values[composite.field] = composite.cls(**inner)
    values.update(fixed)
    if "content" in values and "content_hash" in values and "content_hash" not in fixed:
        values["content_hash"] = hash_of(values["content"])
    return relation.entity(**values)


def told_apart_by_references(relation: Relation) -> set[str]:
    """Return the columns of rules of uniqueness that have references alone: each row refers to rows of its own."""
    references = {key.column for key in relation.foreign_keys}
    return {name for unique in relation.uniques if references.issuperset(unique.columns) for name in unique.columns}


def unlike_any(relation: Relation) -> dict[str, Any]:
    """Return values for the columns of keys and rules of uniqueness that no entity made here has had."""
    names = {*relation.key, *(name for unique in relation.uniques for name in unique.columns)}
    names -= {key.column for key in relation.foreign_keys}
    values: dict[str, Any] = {}
    for name in sorted(names):
        column = relation.column(name)
        if column.nullable and name not in relation.key:
            continue
        number = next(_numbers)
        if column.type is ColumnType.UUID:
            values[name] = uuid.UUID(int=number << 64 | number)
        elif column.type is ColumnType.INT and (column.check or (None, None))[1] is None:
            values[name] = number
        elif column.type is ColumnType.TEXT:
            values[name] = f"{name} {number}"
        elif column.type is ColumnType.BYTES:
            values[name] = number.to_bytes(column.length or 8, "big")
    return values


def hash_of(content: str | bytes) -> bytes:
    """Return the hash that a record's content is stored with."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).digest()


def _plain_value(column: Column) -> Any:
    kind = column.type
    if kind is ColumnType.UUID:
        return uuid.uuid4()
    if kind is ColumnType.INSTANT:
        return NOW
    if kind is ColumnType.TEXT:
        return f"some {column.name}"
    if kind in (ColumnType.INT, ColumnType.FLOAT):
        low = (column.check or (None, None))[0] or 0
        return int(low) if kind is ColumnType.INT else float(low)
    if kind is ColumnType.BOOL:
        return False
    if kind is ColumnType.BYTES:
        return b"\x01" * (column.length or 4)
    if kind is ColumnType.ENUM:
        return next(iter(_members(column)))
    if kind is ColumnType.VECTOR:
        return b"\x00\x00\x80\x3f" * 4
    if kind is ColumnType.JSON:
        return json_edges(column)[0]
    return ()


def different(relation: Relation, entity: Any) -> Any:
    """Return the entity with every column changed that is neither key nor reference nor version."""
    fixed = {*relation.key, "version", *(key.column for key in relation.foreign_keys)}
    parts = part_columns(relation)
    changes: dict[str, Any] = {}
    for column in relation.columns:
        if column.name in fixed or column.name in parts:
            continue
        old = getattr(entity, column.name)
        changes[column.name] = _other_value(column, old)
    return dataclasses.replace(entity, **changes)


def _members(column: Column) -> list[Any]:
    if column.enum is None:
        raise InternalError(f"{column.name} has no members")
    return list(column.enum)


def _other_value(column: Column, old: Any) -> Any:
    kind = column.type
    if kind is ColumnType.ENUM:
        return next(member for member in _members(column) if member is not old)
    if kind is ColumnType.BOOL:
        return not old
    if kind is ColumnType.INSTANT:
        return from_us(1_234_567)
    if kind is ColumnType.UUID:
        return uuid.uuid4()
    if kind is ColumnType.TEXT:
        return f"{old or ''} {next(_numbers)}!"
    if kind in (ColumnType.INT, ColumnType.FLOAT):
        high = (column.check or (None, None))[1]
        step = 1 if kind is ColumnType.INT else 0.5
        low = (column.check or (None, None))[0] or 0
        return low + step if old is None or old + step > (high or INT64_MAX) else old + step
    if kind is ColumnType.BYTES:
        return next(_numbers).to_bytes(column.length or 9, "big")
    if kind is ColumnType.TEXT_ARRAY:
        return ("changed",)
    if kind is ColumnType.UUID_ARRAY:
        return (uuid.uuid4(),)
    if kind is ColumnType.VECTOR:
        return b"\x00\x00\x00\x3f" * 4
    return next(value for value in json_edges(column) if value != old)


# --- values at the edges of a column's range -------------------------------------------------------

TEXTS: Final = (
    "", " ", " spaces around ", "line\nline\r\n\ttab", "\x00", "a\x00b\x00", "\x01\x1f\x7f\x80", "\\x00 \\u0000 \\",
    "x'); COMMIT; --", '"quoted" $1 ?1 %s {}', "null", "é" * 300, "e\u0301 is not \u00e9",
    "\U0001f9e0 \u202eright to left", "\ufeff\ufffe\uffff\ufffd\U0010ffff", "Straße ß SS ı İ",
)  # fmt: skip
"""No two of them are equal under any collation or normal form."""

_JSON: Final[dict[str, tuple[Any, ...]]] = {
    "tool_calls": ((), (ToolCall("", "", ""),),
                   (ToolCall("a\x00", "f\U0001f9e0", '{"a": 1.0}'), ToolCall("2", "g", "not JSON"))),
    "thinking": ((), ({"type": "thinking", "thinking": "a\x00b", "signature": "\U0001f9e0"}, {"type": "é"})),
    "payload": ({}, {"b": 1, "a": None, "": {"": []}}, {"\x00": "a\x00b", "\\u0000": "\\x00", "é": "\U0010ffff"},
                {"numbers": [0, -1, 2**53, -(2**53), 0.1, -1.5, 1e300, 5e-324, 1.0], "logic": [True, False, None]}),
    "counts": ({}, {"note": 0, "turn": 1}, {"": INT64_MAX, "a\x00b": -1, "é": 2**53 + 1}),
    "outcome": (
        TrajectoryOutcome(OutcomeStatus.SUCCESS, "", (), (), 0, 0, 0),
        TrajectoryOutcome(
            OutcomeStatus.FAILURE, "\x00é", (ArtifactId(uuid.UUID(int=0)),), (NoteId(uuid.UUID(int=1)),) * 2, INT64_MAX,
            INT64_MAX, 1,
        ),
    ),
    "memory_access": (MemoryAccess({}, {}),
                      MemoryAccess({"note": "all", "turn": "own"}, {"": "\x00", "a\x00b": "\U0001f9e0"})),
    "result": (
        DelegationResult(OutcomeStatus.SUCCESS),
        DelegationResult(
            OutcomeStatus.FAILURE, "\x00é", (ArtifactId(uuid.UUID(int=0)),), (NoteId(uuid.UUID(int=1)),) * 2, "a\x00b",
        ),
    ),
    "value": ({"a": 1}, None, False, 0.1, 2**53, "a\x00b \\u0000 \U0010ffff", [], {}, [None, {"\x00": [[]], "": -1.5}]),
}  # fmt: skip
_FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "ttl": (TTL(TTLKind.PERSISTENT), TTL(TTLKind.DURATION, 1), TTL(TTLKind.DURATION, INT64_MAX))
}
_EAST: Final = timezone(timedelta(hours=5, minutes=45))
_WEST: Final = timezone(timedelta(hours=-11, minutes=-30))
_INSTANTS: Final = (
    NOW,
    NOW.astimezone(_EAST),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=_WEST),
    from_us(FIRST_US),
    from_us(LAST_US),
    from_us(-1),
    from_us(0),
    from_us(1),
    from_us(999),
    datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=_EAST),
)
_VECTORS: Final = tuple(
    struct.pack(f"<{len(row)}f", *row)
    for row in ((0.0,), (-0.0, 1.5e-45, 3.4028234663852886e38, -3.4028234663852886e38), (0.1, -2.5) * 20)
)


def edges(relation: Relation, /, **fixed: Any) -> Iterator[Any]:
    """Yield entities that hold, among them, every edge of every column; ``fixed`` fields stay as they are.

    Each is unique by itself only: an edge may occur in a key twice.
    """
    parts = part_columns(relation)
    choices: dict[str, tuple[Any, ...]] = {}
    for column in relation.columns:
        if column.name not in parts:
            choices[column.name] = _edges_of(column)
    for composite in relation.composites:
        if composite.field in _FIELDS:
            choices[composite.field] = _FIELDS[composite.field]
        else:
            inner = [(attribute, _edges_of(relation.column(name))) for attribute, name in composite.parts]
            longest = max(len(values) for _, values in inner)
            choices[composite.field] = tuple(
                composite.cls(**{attribute: values[at % len(values)] for attribute, values in inner})
                for at in range(longest)
            )
    choices.update({name: (value,) for name, value in fixed.items()})
    references = {key.column for key in relation.foreign_keys} - fixed.keys()
    choices.update(dict.fromkeys(references, (None,)))
    for at in range(max(len(values) for values in choices.values())):
        yield relation.entity(**{name: values[at % len(values)] for name, values in choices.items()})


def _edges_of(column: Column) -> tuple[Any, ...]:
    values = _KINDS[column.type](column)
    return (None, *values) if column.nullable else tuple(values)


def _int_edges(column: Column) -> tuple[int, ...]:
    low, high = column.check or (None, None)
    first = INT64_MIN if low is None else int(low)
    last = INT64_MAX if high is None else int(high)
    return tuple(value for value in (first, last, 0, -1, 2**31, 2**53 + 1) if first <= value <= last)


def _float_edges(column: Column) -> tuple[float, ...]:
    low, high = column.check or (None, None)
    first = -1.7976931348623157e308 if low is None else float(low)
    last = 1.7976931348623157e308 if high is None else float(high)
    return tuple(value for value in (first, last, 0.1, 1 / 3, 5e-324, 9.999999999999998) if first <= value <= last)


def _bytes_edges(column: Column) -> tuple[bytes, ...]:
    if column.length is not None:
        return (b"\x00" * column.length, b"\xff" * column.length, bytes(range(256))[: column.length])
    return (b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"\x00" * 5_000, "é\x00".encode())


_KINDS: Final[Mapping[ColumnType, Any]] = {
    ColumnType.UUID: lambda _: (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID(int=1)),
    ColumnType.INSTANT: lambda _: _INSTANTS,
    ColumnType.TEXT: lambda _: TEXTS,
    ColumnType.INT: _int_edges,
    ColumnType.FLOAT: _float_edges,
    ColumnType.BOOL: lambda _: (False, True),
    ColumnType.BYTES: _bytes_edges,
    ColumnType.JSON: json_edges,
    ColumnType.TEXT_ARRAY: lambda _: ((), TEXTS, ("",), ("same", "same")),
    ColumnType.UUID_ARRAY: lambda _: ((), (uuid.UUID(int=0),), (uuid.UUID(int=2**128 - 1),) * 3),
    ColumnType.ENUM: _members,
    ColumnType.VECTOR: lambda _: _VECTORS,
}
