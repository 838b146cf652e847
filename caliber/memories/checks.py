"""Validation of records that a caller writes to a declared memory: one error lists every invalid field.

Errors name fields, never values. Source: C-130 to C-141; docs/memories.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from caliber.memories.conditions import PLAIN, Check, unknown
from caliber.model import arguments
from caliber.model.errors import ConstraintViolation, DTypeError, InputError, InvalidValue, RequiredFieldMissing
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Scope, Session
from caliber.model.trust import TrustLabel
from caliber.schema.declared_memories import INDEXED_TEXT_BYTES, KEY
from caliber.schema.memories import MemoryBinding
from caliber.schema.memory_types import IndexType, MemoryType, RetentionKind
from caliber.schema.relation import Column, ColumnType
from caliber.storage.compile.json_values import as_json

JSON_BYTES: Final = 1 << 20
BYTES_MOST: Final = 256 << 20

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


def check_retained(memory: MemoryType, scope: Scope | None, session: Session | None) -> None:
    """Raise unless the record that limits its lifetime exists."""
    kind = memory.retention.kind
    if kind is RetentionKind.SCOPE:
        if scope is None:
            raise RequiredFieldMissing(
                f"scope is required: records of {memory.name} live as long as their scope", field="scope"
            )
        if not scope.is_open:
            raise ConstraintViolation(
                constraint="scope_open", reason=f"scope {scope.scope_id} is closed; open another one"
            )
    elif kind is RetentionKind.SESSION:
        if session is None:
            raise RequiredFieldMissing(
                f"session is required: records of {memory.name} live as long as their session; name it, or a"
                " trajectory of it",
                field="session",
            )
        if session.ended_at is not None:
            raise ConstraintViolation(
                constraint="session_open", reason=f"session {session.session_id} has ended; start another one"
            )


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


def _instant(value: Any, field: str) -> datetime:
    if not isinstance(value, datetime):
        raise DTypeError(field=field, expected="a datetime", got=type(value).__name__)
    return from_us(to_us(value, field))


def _json(value: Any, field: str) -> Any:
    return as_json(value, field, JSON_BYTES)


def _texts(value: Any, field: str) -> tuple[str, ...]:
    items = arguments.as_items(value, field, "a sequence of str")
    texts = [arguments.as_text(item, f"{field}[{at}]", allow_empty=True) for at, item in enumerate(items)]
    return tuple(as_json(texts, field, JSON_BYTES))


def _bytes(value: Any, field: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise DTypeError(field=field, expected="bytes", got=type(value).__name__)
    raw = bytes(value)
    if len(raw) > BYTES_MOST:
        raise InvalidValue(field=field, reason=f"has more than {BYTES_MOST >> 20} MiB")
    return raw


def _uuids(value: Any, field: str) -> tuple[uuid.UUID, ...]:
    found = arguments.as_uuids(value, field)
    if 16 * len(found) > JSON_BYTES:
        raise InvalidValue(field=field, reason=f"has more than {JSON_BYTES // 16} ids")
    return found


_CHECKS: Final[Mapping[ColumnType, Check]] = {
    **PLAIN,
    ColumnType.INSTANT: _instant,
    ColumnType.JSON: _json,
    ColumnType.TEXT_ARRAY: _texts,
    ColumnType.UUID_ARRAY: _uuids,
    ColumnType.BYTES: _bytes,
}
