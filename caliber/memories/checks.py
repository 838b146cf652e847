"""Validation of records that a caller writes to a declared memory: one error lists every invalid field.

Errors name fields, never values. Source: C-130 to C-141; docs/memories.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from caliber.memories.conditions import unknown
from caliber.model import arguments
from caliber.model.errors import DTypeError, InputError, InvalidValue, RequiredFieldMissing
from caliber.model.time import from_us, to_us
from caliber.model.trust import TrustLabel
from caliber.schema.declared_memories import INDEXED_TEXT_BYTES, INT_LEAST, KEY
from caliber.schema.memories import MemoryBinding
from caliber.schema.memory_types import IndexType
from caliber.schema.relation import Column, ColumnType
from caliber.storage.compile.codec import dump_json

JSON_DEPTH: Final = 64
"""Deeper values are refused: reading them would exhaust the stack."""
JSON_BYTES: Final = 1 << 20

_INT64_MAX: Final = 2**63 - 1
_PLACED: Final = ("trajectory_id", "scope_id", "session_id", "parent_id", "occurred_at", "trust", "idempotency_key")
"""Columns that a record may set besides its fields; the rest of its columns is CALIBER's."""


def checked(
    memory: MemoryBinding, fields: Mapping[str, Any], *, whole: bool = True, within: str = ""
) -> dict[str, Any]:
    """Return values by column. ``whole``: required fields must be present; otherwise these are changes of a record.

    ``within`` stands before the names of fields in errors.

    Raises: RequiredFieldMissing, DTypeError or InvalidValue for the one thing that is wrong; InvalidValue for several
    """
    out: dict[str, Any] = {}
    faults: list[InputError] = []
    for name, value in fields.items():
        try:
            column, checked_value = _field(memory, name, value, f"{within}{name}", whole=whole)
        except InputError as error:
            faults.append(error)
        else:
            if out.get(column, checked_value) != checked_value:
                faults.append(InvalidValue(field=f"{within}{name}", reason="is given twice with different values"))
            out[column] = checked_value
    if whole:
        required = (column.name for column in memory.relation.columns if column.declared and not column.nullable)
        faults += [RequiredFieldMissing(field=f"{within}{name}") for name in required if name not in fields]
    if faults:
        raise faults[0] if len(faults) == 1 else several(faults)
    return out


def several(faults: list[InputError]) -> InvalidValue:
    """Return one error that lists all faults."""
    return InvalidValue(field=f"{len(faults)} faults", reason="; ".join(str(fault) for fault in faults))


def _field(memory: MemoryBinding, name: str, value: Any, field: str, *, whole: bool) -> tuple[str, Any]:
    """Return the column that a field is kept in, and the value as it is kept."""
    if name in memory.vectors:
        raise InvalidValue(field=field, reason=f"is made of {memory.embedded}; leave it out")
    column = memory.column(name)
    if column is None:
        usable = (*memory.declared_columns, *memory.names, *_PLACED)
        raise InvalidValue(field=field, reason=unknown(name, usable))
    if column.name == KEY:
        if not whole:
            raise InvalidValue(field=field, reason="is the id of the record, which does not change")
        return KEY, arguments.as_uuid(value, field)
    if column.declared:
        return column.name, _value(memory, column, value, field)
    if column.name not in _PLACED or (not whole and column.name not in ("occurred_at", "trust")):
        kept = (
            "the owner of a record cannot be changed" if column.name in _PLACED else "is set by CALIBER; leave it out"
        )
        raise InvalidValue(field=field, reason=kept)
    return column.name, _placed(column, value, field)


def _placed(column: Column, value: Any, field: str) -> Any:
    if value is None:
        return None
    if column.name == "trust":
        return arguments.as_enum(value, TrustLabel, field)
    if column.name == "idempotency_key":
        return arguments.as_name(value, field)
    return arguments.as_instant(value, field) if column.name == "occurred_at" else arguments.as_uuid(value, field)


def _value(memory: MemoryBinding, column: Column, value: Any, field: str) -> Any:
    if value is None:
        if not column.nullable:
            raise RequiredFieldMissing(field=field)
        return None
    if column.type is ColumnType.TEXT:
        return _text(memory, column, value, field)
    if column.enum is not None:
        return arguments.as_enum(value, column.enum, field)
    return _CHECKS[column.type](value, field)


def _text(memory: MemoryBinding, column: Column, value: Any, field: str) -> str:
    text = arguments.as_text(value, field, allow_empty=True)
    looked_up = any(
        index.field == column.name and index.type in (IndexType.BTREE, IndexType.HASH) for index in memory.type.indexes
    )
    if looked_up and len(text.encode()) > INDEXED_TEXT_BYTES:
        raise InvalidValue(field=field, reason=f"is looked up, and such texts have at most {INDEXED_TEXT_BYTES} bytes")
    return text


def _whole(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DTypeError(field=field, expected="an int", got=type(value).__name__)
    whole = int.__int__(value)
    if not INT_LEAST <= whole <= _INT64_MAX:
        raise InvalidValue(field=field, reason="must fit 64 bits")
    return whole


def _number(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DTypeError(field=field, expected="a number", got=type(value).__name__)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValue(field=field, reason="must be finite")
    return number + 0.0  # databases keep no negative zero


def _bool(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise DTypeError(field=field, expected="a bool", got=type(value).__name__)
    return value


def _instant(value: Any, field: str) -> datetime:
    if not isinstance(value, datetime):
        raise DTypeError(field=field, expected="a datetime", got=type(value).__name__)
    return from_us(to_us(value, field))


def _json(value: Any, field: str) -> Any:
    """Return a value of JSON as it will be read again: lists for tuples."""
    plain = _plain(value, field, JSON_DEPTH)
    if len(dump_json(plain)) > JSON_BYTES:
        raise InvalidValue(field=field, reason=f"has more than {JSON_BYTES} characters as JSON")
    return plain


def _plain(value: Any, field: str, depth: int) -> Any:
    if depth < 0:
        raise InvalidValue(field=field, reason=f"is nested deeper than {JSON_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return arguments.as_text(value, field, allow_empty=True)
    if isinstance(value, int):
        return _whole(value, field)
    if isinstance(value, float):
        return _number(value, field)
    if isinstance(value, list | tuple):
        return [_plain(item, field, depth - 1) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise DTypeError(field=field, expected="objects with str keys", got="other keys")
        return {_plain(key, field, depth): _plain(item, field, depth - 1) for key, item in value.items()}
    raise DTypeError(field=field, expected="a value of JSON", got=type(value).__name__)


_CHECKS: Final[Mapping[ColumnType, Callable[[Any, str], Any]]] = {
    ColumnType.UUID: arguments.as_uuid,
    ColumnType.INT: _whole,
    ColumnType.FLOAT: _number,
    ColumnType.BOOL: _bool,
    ColumnType.INSTANT: _instant,
    ColumnType.JSON: _json,
}
