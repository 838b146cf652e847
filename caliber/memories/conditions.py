"""Conditions of ``find`` on a memory: field values and ordering, converted to a predicate.

Source: C-161 to C-165; docs/search.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from caliber.model import arguments
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.hints import did_you_mean
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, all_of, one_of
from caliber.schema.relation import Column, ColumnType
from caliber.storage.compile.listing import ORDERED


def equalities(memory: MemoryBinding, values: Mapping[str, Any]) -> Predicate | None:
    """Return the condition that fields have given values: of several one of them, of a list field a member.

    Raises: InvalidValue, DTypeError, naming the field.
    """
    return all_of(*(_equal(memory, name, value) for name, value in values.items()))


def _equal(memory: MemoryBinding, name: str, value: Any) -> Predicate:
    field = f"filter.{name}"
    column = column_of(memory, name, field)
    several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    is_list = column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY)
    options = tuple(_compared(column, item, field, is_list) for item in several)
    if not is_list or not options:
        return one_of(column.name, options)
    members = tuple(Comparison(column.name, Operator.CONTAINS, item) for item in options)
    return Either(members) if len(members) > 1 else members[0]


def _compared(column: Column, value: Any, field: str, is_list: bool) -> Any:
    if value is None:
        if not column.nullable or is_list:
            raise InvalidValue(field=field, reason="must have a value")
        return None
    check = _CHECKS.get(column.type)
    if check is None:
        raise InvalidValue(field=field, reason="cannot be compared")
    return check(column, value, field)


def _text(_: Column, value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise DTypeError(field=field, expected="str", got=type(value).__name__)
    return str(value)


def _number(column: Column, value: Any, field: str) -> int | float:
    types = int if column.type is ColumnType.INT else (int, float)
    if isinstance(value, bool) or not isinstance(value, types):
        what = "an int" if column.type is ColumnType.INT else "a number"
        raise DTypeError(field=field, expected=what, got=type(value).__name__)
    if column.type is ColumnType.INT:
        if not abs(value) < 2**63:
            raise InvalidValue(field=field, reason="must fit 64 bits")
        return int(value)
    with contextlib.suppress(OverflowError):
        if math.isfinite(number := float(value)):
            return number
    raise InvalidValue(field=field, reason="must be finite")


def _bool(_: Column, value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise DTypeError(field=field, expected="a bool", got=type(value).__name__)
    return value


def _instant(_: Column, value: Any, field: str) -> datetime | None:
    return arguments.as_instant(value, field)


def _member(column: Column, value: Any, field: str) -> str:
    assert column.enum is not None
    return arguments.as_enum(value, column.enum, field).value


_CHECKS: Final[Mapping[ColumnType, Callable[[Column, Any, str], Any]]] = {
    ColumnType.UUID: lambda _, value, field: arguments.as_uuid(value, field),
    ColumnType.UUID_ARRAY: lambda _, value, field: arguments.as_uuid(value, field),
    ColumnType.TEXT: _text,
    ColumnType.TEXT_ARRAY: _text,
    ColumnType.INT: _number,
    ColumnType.FLOAT: _number,
    ColumnType.BOOL: _bool,
    ColumnType.INSTANT: _instant,
    ColumnType.ENUM: _member,
}


def column_of(memory: MemoryBinding, name: str, field: str) -> Column:
    """Return the column of a field. Raises: InvalidValue, with a suggestion."""
    column = memory.column(name)
    if column is None:
        raise InvalidValue(field=field, reason=unknown(name, memory.fields))
    return column


def unknown(name: str, fields: Iterable[str]) -> str:
    """Return the message about an unknown field."""
    names = tuple(dict.fromkeys(fields))
    hint = did_you_mean(name, names, mark="")
    return f"there is no such field; {hint}" if hint else f"there is no such field: {', '.join(names)}"


def order_of(memory: MemoryBinding, order_by: str | None) -> Column | None:
    """Return the column that gives an order; None for that of ids. Raises: InvalidValue."""
    if order_by is None:
        return None
    column = column_of(memory, arguments.as_text(order_by, "order_by"), "order_by")
    if column.type in ORDERED:
        return column
    if column.name == memory.relation.key[0]:
        return None
    names = ", ".join(other.name for other in memory.relation.columns if other.type in ORDERED)
    raise InvalidValue(field="order_by", reason=f"{order_by} has no order; there are {names}")
