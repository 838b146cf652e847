"""Conditions of ``find`` on a memory: field values and ordering, converted to a predicate.

Source: C-161 to C-165; docs/search.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from caliber.config.secret import readable
from caliber.model import arguments
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.hints import did_you_mean
from caliber.schema.json_patterns import OPERATORS, unknown_operators
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, all_of, one_of
from caliber.schema.relation import ORDINAL, Column, ColumnType
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.conditions import ORDERED
from caliber.storage.compile.json_values import finite, plain_json, whole


def equalities(memory: MemoryBinding, values: Mapping[str, Any]) -> Predicate | None:
    """Return the condition that fields have given values: of several one of them, of a list field a member.

    Raises: InvalidValue, DTypeError, naming the field.
    """
    return all_of(*(_equal(memory, name, value) for name, value in values.items()))


def _equal(memory: MemoryBinding, name: str, value: Any) -> Predicate:
    field = f"filter.{name}"
    column = column_of(memory, name, field)
    if column.has_members and value is not None:
        return Comparison(column.name, Operator.FITS, _pattern(value, field))
    several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    is_list = column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY)
    options = tuple(_compared(column, item, field, is_list) for item in several)
    if not is_list or not options:
        return one_of(column.name, options)
    members = tuple(Comparison(column.name, Operator.CONTAINS, item) for item in options)
    return Either(members) if len(members) > 1 else members[0]


def _pattern(value: Any, field: str) -> str:
    plain = plain_json(value, field)
    wrong = next(unknown_operators(plain), None)
    if wrong is not None:
        names = ", ".join(OPERATORS)
        raise InvalidValue(field=field, reason=f"{readable(wrong)} is no comparison; there are {names}, by themselves")
    return dump_json(plain)


def _compared(column: Column, value: Any, field: str, is_list: bool) -> Any:
    if value is None:
        if not column.nullable or is_list:
            raise InvalidValue(field=field, reason="must have a value")
        return None
    if column.enum is not None:
        return arguments.as_enum(value, column.enum, field).value
    check = _CHECKS.get(column.type)
    if check is None:
        raise InvalidValue(field=field, reason="cannot be compared")
    return check(value, field)


def _text(value: Any, field: str) -> str:
    return arguments.as_text(value, field, allow_empty=True)


def _bool(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise DTypeError(field=field, expected="a bool", got=type(value).__name__)
    return value


Check = Callable[[Any, str], Any]
PLAIN: Final[Mapping[ColumnType, Check]] = {
    ColumnType.UUID: arguments.as_uuid,
    ColumnType.INT: whole,
    ColumnType.FLOAT: finite,
    ColumnType.BOOL: _bool,
}
"""The checks of values that are written as they are compared."""
_CHECKS: Final[Mapping[ColumnType, Check]] = {
    **PLAIN,
    ColumnType.UUID_ARRAY: arguments.as_uuid,
    ColumnType.TEXT: _text,
    ColumnType.TEXT_ARRAY: _text,
    ColumnType.INSTANT: arguments.as_instant,
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


def sortable(memory: MemoryBinding, field: str) -> Column:
    """Return the column of a field whose different values can be listed. Raises: InvalidValue."""
    column = column_of(memory, arguments.as_text(field, "field"), "field")
    if column.type in (*ORDERED, ColumnType.ENUM, ColumnType.BOOL, ColumnType.UUID):
        return column
    raise InvalidValue(field="field", reason=f"{field} has no order")


def beginning(column: Column, prefix: str | None) -> Predicate | None:
    """Return the condition that a text begins so. Raises: InvalidValue, DTypeError."""
    if prefix is None:
        return None
    if column.type is not ColumnType.TEXT:
        raise InvalidValue(field="prefix", reason=f"{column.name} is no text")
    return Comparison(column.name, Operator.STARTS, arguments.as_text(prefix, "prefix", allow_empty=True))


def fields_of(memory: MemoryBinding, fields: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of some fields. Raises: InvalidValue, DTypeError."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise DTypeError(field="fields", expected="a sequence of names", got=type(fields).__name__)
    if not fields:
        raise InvalidValue(field="fields", reason="name at least one field")
    return tuple(column_of(memory, arguments.as_text(name, "fields"), "fields") for name in fields)


def order_of(memory: MemoryBinding, order_by: str | None) -> Column | None:
    """Return the column that gives an order; None for that of ids. Raises: InvalidValue."""
    if order_by is None:
        return None
    if arguments.as_text(order_by, "order_by") == "sequence" and memory.column("sequence") is None:
        return ORDINAL
    column = column_of(memory, order_by, "order_by")
    if column.type in ORDERED:
        return column
    if column.name == memory.relation.key[0]:
        return None
    names = ", ".join(other.name for other in memory.relation.columns if other.type in ORDERED)
    raise InvalidValue(field="order_by", reason=f"{order_by} has no order; there are {names}")
