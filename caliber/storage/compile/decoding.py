"""Decoders of one stored value (UUID, instant, enum, JSON): source expressions for row codecs, and functions."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from caliber.model.ids import uuid_from_bytes
from caliber.model.time import EPOCH
from caliber.schema.relation import Column, ColumnType


def _split_uuids(raw: bytes) -> tuple[uuid.UUID, ...]:
    return tuple(uuid_from_bytes(raw[at : at + 16]) for at in range(0, len(raw), 16))


def decode_expression(column: Column, value: str, scope: dict[str, Any]) -> str:
    """Return the expression that decodes ``value``; names it needs beside DECODING are added to ``scope``."""
    kind = column.type
    if kind is ColumnType.UUID:
        return f"_uuid({value})"
    if kind is ColumnType.INSTANT:
        return f"_epoch + _delta(0, 0, {value})"
    if kind is ColumnType.BOOL:
        return f"bool({value})"
    if kind is ColumnType.ENUM:
        assert column.enum is not None
        scope[f"_members_{column.name}"] = {member.value: member for member in column.enum}
        return f"_members_{column.name}.get({value}, {value})" if column.open else f"_members_{column.name}[{value}]"
    if kind is ColumnType.TEXT_ARRAY:
        return f"(() if {value} == '[]' else tuple(_load({value})))"
    if kind is ColumnType.UUID_ARRAY:
        return f"(() if {value} == b'' else _split({value}))"
    if kind is ColumnType.JSON:
        scope[f"_dec_{column.name}"] = column.json_decode
        return f"_dec_{column.name}(_load({value}))"
    return value


DECODING: dict[str, Any] = {
    "_epoch": EPOCH,
    "_delta": timedelta,
    "_uuid": uuid_from_bytes,
    "_load": json.loads,
    "_split": _split_uuids,
}
"""The names of the expressions."""


@functools.cache
def raw_decoder_of(column: Column) -> Callable[[Any], Any] | None:
    """Return the function that decodes a stored value, or None where it is the entity's; damage raises anything."""
    scope = dict(DECODING)
    expression = decode_expression(column, "value", scope)
    if expression == "value":
        return None
    decode: Callable[[Any], Any] = eval(f"lambda value: {expression}", scope)  # noqa: S307
    return decode
