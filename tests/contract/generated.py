"""Hypothesis strategies that generate random entities of every relation."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from hypothesis import strategies as st

from caliber.model.agents.delegation import DelegationResult
from caliber.model.agents.registry import MemoryAccess
from caliber.model.errors import InternalError
from caliber.model.time import from_us
from caliber.model.trajectory import TTL, OutcomeStatus, ToolCall, TrajectoryOutcome, TTLKind
from caliber.schema.relation import Column, ColumnType, Relation
from contract.entities import FIRST_US, INT64_MAX, INT64_MIN, LAST_US, json_edges, part_columns

UUIDS = st.uuids() | st.sampled_from([uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)])
INSTANTS = (st.integers(FIRST_US, LAST_US) | st.sampled_from([FIRST_US, -1, 0, 1, LAST_US])).map(from_us)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", "\x00", "a\x00b", "é" * 300, "\U0001f9e0 memory", "x'); COMMIT; --", "\u202eright to left", '"', "\\"]
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
RESULTS = st.builds(
    DelegationResult,
    status=st.sampled_from(OutcomeStatus),
    summary=TEXTS,
    produced_artifacts=st.lists(UUIDS, max_size=3).map(tuple),
    produced_notes=st.lists(UUIDS, max_size=3).map(tuple),
    error=st.none() | TEXTS,
)
MEMORY_ACCESS = st.builds(MemoryAccess, *[st.dictionaries(TEXTS, TEXTS, max_size=3)] * 2)
TTLS = st.just(TTL(TTLKind.PERSISTENT)) | st.builds(TTL, st.just(TTLKind.DURATION), st.integers(1, INT64_MAX))
# The form of JSON columns depends on the entity; of others the edges are drawn.
JSON_FIELDS = {
    "outcome": OUTCOMES,
    "tool_calls": TOOL_CALLS,
    "memory_access": MEMORY_ACCESS,
    "result": RESULTS,
    "value": JSON_VALUES,
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
        first = INT64_MIN if low is None else int(low)
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
        is_json = column.name in JSON_FIELDS
        values = JSON_FIELDS[column.name] if is_json else st.sampled_from(json_edges(column))
    return st.none() | values if column.nullable else values


def entities_of(relation: Relation, /, **fixed: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for entities of a relation; ``fixed`` sets fields that must refer to existing rows.

    References that may be NULL are NULL unless fixed.
    """
    fields: dict[str, st.SearchStrategy[Any]] = {}
    parts = part_columns(relation)
    references = {key.column for key in relation.foreign_keys}
    for column in relation.columns:
        if column.name in parts or column.name in fixed:
            continue
        if column.name in references:
            if not column.nullable:
                raise InternalError(f"{relation.name}.{column.name} must be fixed")
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
