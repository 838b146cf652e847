"""Generated entities of every relation: from the declarations alone, so that a new relation is covered by itself."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import uuid
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from caliber.model.entities import TTL, ToolCall, TrajectoryOutcome
from caliber.model.enums import OutcomeStatus, TTLKind
from caliber.model.time import from_us
from caliber.schema.relation import Column, ColumnType, Relation

INT64_MAX = 2**63 - 1
FIRST_US = -62_135_596_800_000_000
LAST_US = 253_402_300_799_999_999
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

UUIDS = st.uuids() | st.sampled_from([uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)])
INSTANTS = (st.integers(FIRST_US, LAST_US) | st.sampled_from([FIRST_US, -1, 0, 1, LAST_US])).map(from_us)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", "\x00", "a\x00b", "é" * 300, "\U0001f9e0 memory", "'; DROP TABLE turn; --", "\u202eright to left", '"', "\\"]
)
BLOBS = st.binary() | st.sampled_from([b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"\x00" * 5_000])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TOOL_CALLS = st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple)
COUNTS = st.integers(0, INT64_MAX) | st.sampled_from([0, 1, INT64_MAX])
OUTCOMES = st.builds(
    TrajectoryOutcome,
    status=st.sampled_from(OutcomeStatus),
    summary=TEXTS,
    artifacts_produced=st.lists(UUIDS, max_size=3).map(tuple),
    notes_generated=st.lists(UUIDS, max_size=3).map(tuple),
    duration_ms=COUNTS,
    tokens_input=COUNTS,
    tokens_output=COUNTS,
)
TTLS = st.just(TTL(TTLKind.PERSISTENT)) | st.builds(TTL, st.just(TTLKind.DURATION), st.integers(1, INT64_MAX))
# What JSON columns hold is the entity's own business; these are all there are.
JSON_FIELDS = {
    "outcome": OUTCOMES,
    "tool_calls": TOOL_CALLS,
    "payload": st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
}
COMPOSITE_FIELDS = {"ttl": TTLS}


def _of_column(column: Column) -> st.SearchStrategy[Any]:
    low, high = column.check or (None, None)
    kind = column.type
    if kind is ColumnType.UUID:
        values: st.SearchStrategy[Any] = UUIDS
    elif kind is ColumnType.INSTANT:
        values = INSTANTS
    elif kind is ColumnType.TEXT:
        values = TEXTS
    elif kind is ColumnType.INT:
        first = -(2**63) if low is None else int(low)
        last = INT64_MAX if high is None else int(high)
        values = st.integers(first, last) | st.sampled_from([first, last])
    elif kind is ColumnType.FLOAT:
        values = st.floats(low, high, allow_nan=False, allow_infinity=False)
    elif kind is ColumnType.BOOL:
        values = st.booleans()
    elif kind is ColumnType.BYTES:
        values = BLOBS if column.length is None else st.binary(min_size=column.length, max_size=column.length)
    elif kind is ColumnType.TEXT_ARRAY:
        values = st.lists(TEXTS, max_size=4).map(tuple)
    elif kind is ColumnType.UUID_ARRAY:
        values = st.lists(UUIDS, max_size=4).map(tuple)
    elif kind is ColumnType.ENUM:
        assert column.enum is not None
        values = st.sampled_from(column.enum)
    elif kind is ColumnType.VECTOR:
        numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
        values = st.lists(numbers, min_size=1, max_size=40).map(lambda row: struct.pack(f"<{len(row)}f", *row))
    else:
        values = JSON_FIELDS[column.name]
    return st.none() | values if column.nullable else values


def entities_of(relation: Relation, /, **fixed: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for entities of a relation; ``fixed`` gives fields that must refer to what exists.

    References that may be NULL are NULL unless fixed.
    """
    fields: dict[str, st.SearchStrategy[Any]] = {}
    parts = {name for composite in relation.composites for _, name in composite.parts}
    references = {key.column for key in relation.foreign_keys}
    for column in relation.columns:
        if column.name in parts or column.name in fixed:
            continue
        if column.name in references:
            assert column.nullable, f"{relation.name}.{column.name} must be fixed"
            fields[column.name] = st.none()
        else:
            fields[column.name] = _of_column(column)
    for composite in relation.composites:
        if composite.field in fixed:
            continue
        if composite.field in COMPOSITE_FIELDS:
            fields[composite.field] = COMPOSITE_FIELDS[composite.field]
        else:
            values = {attribute: _of_column(relation.column(name)) for attribute, name in composite.parts}
            fields[composite.field] = st.builds(composite.cls, **values)
    return st.builds(relation.entity, **fields, **{name: st.just(value) for name, value in fixed.items()})


def plain(relation: Relation, /, **fixed: Any) -> Any:
    """Return one unremarkable entity of a relation, with everything that may be absent absent."""
    values: dict[str, Any] = {}
    parts = {name for composite in relation.composites for _, name in composite.parts}
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
        assert column.enum is not None
        return next(iter(column.enum))
    if kind is ColumnType.VECTOR:
        return b"\x00\x00\x80\x3f" * 4
    if kind is ColumnType.JSON and column.name == "payload":
        return {}
    return ()


def different(relation: Relation, entity: Any) -> Any:
    """Return the entity with every column changed that is neither key nor reference nor version."""
    fixed = {*relation.key, "version", *(key.column for key in relation.foreign_keys)}
    parts = {name for composite in relation.composites for _, name in composite.parts}
    changes: dict[str, Any] = {}
    for column in relation.columns:
        if column.name in fixed or column.name in parts:
            continue
        old = getattr(entity, column.name)
        changes[column.name] = _other_value(column, old)
    return dataclasses.replace(entity, **changes)


def _other_value(column: Column, old: Any) -> Any:
    kind = column.type
    if kind is ColumnType.ENUM:
        assert column.enum is not None
        return next(member for member in column.enum if member is not old)
    if kind is ColumnType.BOOL:
        return not old
    if kind is ColumnType.INSTANT:
        return from_us(1_234_567)
    if kind is ColumnType.UUID:
        return uuid.uuid4()
    if kind is ColumnType.TEXT:
        return f"{old or ''}!"
    if kind in (ColumnType.INT, ColumnType.FLOAT):
        high = (column.check or (None, None))[1]
        step = 1 if kind is ColumnType.INT else 0.5
        low = (column.check or (None, None))[0] or 0
        return low + step if old is None or old + step > (high or INT64_MAX) else old + step
    if kind is ColumnType.BYTES:
        return b"\x02" * (column.length or 9)
    if kind is ColumnType.TEXT_ARRAY:
        return ("changed",)
    if kind is ColumnType.UUID_ARRAY:
        return (uuid.uuid4(),)
    if kind is ColumnType.VECTOR:
        return b"\x00\x00\x00\x3f" * 4
    if column.name == "tool_calls":
        return (ToolCall("c", "f", "{}"),)
    if column.name == "payload":
        return {"changed": True}
    return TrajectoryOutcome(OutcomeStatus.PARTIAL, "so so", (), (), 1, 2, 3)
