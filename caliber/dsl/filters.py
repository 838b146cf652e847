"""Compiler of filter expressions to predicates over columns, with type checks of each comparison.

Source: C-161 to C-165, K-056, K-057, K-059, K-064, K-071.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeGuard

from caliber.config.faults import ConfigWarning
from caliber.dsl import ast
from caliber.dsl.parser import read_condition
from caliber.dsl.scan import FAULTS_MAX
from caliber.dsl.source import Source, SourceSpan
from caliber.kernels.patterns import matcher
from caliber.model.errors import ConfigError, ExtraNotInstalled, InvalidValue, MultipleErrors, ProgramFault
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import OPEN_BOUNDS, ORDER, All, Comparison, Either, Operator, Predicate, Variable
from caliber.schema.relation import Column, ColumnType

PATTERN_CHARS: Final = 256
_EQUALITY: Final = (Operator.EQUAL, Operator.UNEQUAL)
_TEXTUAL: Final = (*_EQUALITY, *ORDER, Operator.MATCHES, Operator.CONTAINS, Operator.STARTS)
_OPERATORS: Final[dict[ColumnType, tuple[Operator, ...]]] = {
    ColumnType.UUID: _EQUALITY,
    ColumnType.INSTANT: (*_EQUALITY, *ORDER),
    ColumnType.TEXT: _TEXTUAL,
    ColumnType.INT: (*_EQUALITY, *ORDER),
    ColumnType.FLOAT: (*_EQUALITY, *ORDER),
    ColumnType.BOOL: _EQUALITY,
    ColumnType.ENUM: _EQUALITY,
    ColumnType.TEXT_ARRAY: (Operator.CONTAINS,),
    ColumnType.UUID_ARRAY: (Operator.CONTAINS,),
}
_OF_UUID: Final = (Variable.TRAJECTORY, Variable.SCOPE, Variable.AGENT)
_WORDS: Final = {"true": True, "false": False, "null": None}
_OF_MEMBERS: Final = {
    Operator.EQUAL: "$eq",
    Operator.UNEQUAL: "$ne",
    Operator.GREATER: "$gt",
    Operator.AT_LEAST: "$gte",
    Operator.LESS: "$lt",
    Operator.AT_MOST: "$lte",
}
_INT64: Final = 2**63
_NUMBER_CHARS: Final = 64
_MEMBERS_DEEP: Final = 64

Wrong = Callable[..., None]


class _NoValue(Exception):
    """A comparison that has its fault already."""


def compile_filter(text: str, memory: MemoryBinding, *, name: str = "<filter>") -> Predicate:
    """Return the predicate of a filter's text for a memory.

    Raises: MultipleErrors with a ProgramFault for everything that is wrong in it.
    """
    source = Source(text, name)
    condition = read_condition(source)
    made = compile_condition(source, condition, memory)
    if made.predicate is None:
        raise MultipleErrors(errors=made.faults)
    return made.predicate


class Condition(NamedTuple):
    """A parsed condition, or its fault; with warnings in either case."""

    predicate: Predicate | None
    faults: list[ConfigError]
    warnings: list[ConfigWarning]


def compile_condition(source: Source, condition: ast.Value, memory: MemoryBinding) -> Condition:
    """Return the predicate of a condition, its faults and its warnings."""
    faults: list[ConfigError] = []
    warnings: list[ConfigWarning] = []

    def wrong(span: SourceSpan, reason: str, *, doubt: bool = False, **more: Any) -> None:
        if doubt:
            warnings.extend([source.warning(span, reason)] if len(warnings) < FAULTS_MAX else [])
        elif len(faults) < FAULTS_MAX:
            faults.append(source.fault(span, reason, **more))

    predicate = _condition(condition, memory, wrong)
    if predicate is not None and not faults:
        faults.extend(_never(predicate, condition, source))
    return Condition(None if faults else predicate, faults, warnings)


def _condition(value: ast.Value, memory: MemoryBinding, wrong: Wrong) -> Predicate | None:
    match value:
        case ast.Joined(operator=operator, conditions=conditions):
            parts = [_condition(item, memory, wrong) for item in conditions]
            predicates = tuple(part for part in parts if part is not None)
            return (All if operator == "and" else Either)(predicates) if len(predicates) == len(parts) else None
        case ast.Compared(left=left, operator=operator, right=right):
            try:
                return _comparison(left, Operator(operator), right, memory, wrong)
            except _NoValue:
                return None
        case _:
            wrong(value.span, "a filter consists of comparisons, such as confidence > 0.5")
            return None


def _comparison(
    left: ast.Value, operator: Operator, right: ast.Value, memory: MemoryBinding, wrong: Wrong
) -> Comparison:
    if not isinstance(left, ast.Word):
        wrong(left.span, "the left side of a comparison must be a field")
        raise _NoValue
    if "." in left.text:
        return _of_member(left, operator, right, memory, wrong)
    if left.text in memory.unknown:
        raise _NoValue
    if left.text in memory.vectors:
        wrong(left.span, f"{left.text} is a vector: it is searched, not compared")
        raise _NoValue
    column = memory.column(left.text)
    if column is None:
        wrong(left.span, f"there is no field {left.text}", got=left.text, expected=memory.fields)
        raise _NoValue
    allowed = _OPERATORS.get(column.type, ())
    if operator not in allowed:
        if not allowed:
            wrong(left.span, f"{left.text} cannot be compared")
        else:
            wrong(left.span, f"{left.text} ({column.type}) cannot be compared by {operator}", expected=allowed)
        raise _NoValue
    value = _value(right, column, operator, wrong)
    declared = memory.declared.get(left.text)
    if declared is not None and isinstance(value, str) and value not in declared:
        # K-059: the store has the value, so it may match records of other writers.
        names = ", ".join(declared)
        wrong(right.span, f"{left.text} is declared as one of {names}, not {value}", doubt=True)
    if column.check is not None and not _reachable(operator, value, *column.check):
        wrong(right.span, f"this never holds: {left.text} lies {_range(*column.check)}")
        raise _NoValue
    return Comparison(column.name, operator, value)


def _of_member(left: ast.Word, operator: Operator, right: ast.Value, memory: MemoryBinding, wrong: Wrong) -> Comparison:
    name, *path = left.text.split(".")
    if name in memory.unknown:
        raise _NoValue
    column = memory.column(name)
    if column is None:
        wrong(left.span, f"there is no field {name}", got=name, expected=memory.fields)
    elif not column.has_members:
        wrong(left.span, f"{name} ({column.type}) has no members")
    elif len(path) > _MEMBERS_DEEP:
        wrong(left.span, f"members are at most {_MEMBERS_DEEP} levels deep")
    elif operator not in _OF_MEMBERS:
        wrong(left.span, f"a member of {name} cannot be compared by {operator}", expected=tuple(_OF_MEMBERS))
    else:
        pattern: Any = {_OF_MEMBERS[operator]: _json(right, column, wrong)}
        for member in reversed(path):
            pattern = {member: pattern}
        return Comparison(column.name, Operator.FITS, json.dumps(pattern, ensure_ascii=False))
    raise _NoValue


def _json(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    if isinstance(value, ast.Text) or _is_kept(value):
        return value.value
    if isinstance(value, ast.Word) and value.text in _WORDS:
        return _WORDS[value.text]
    raise _expected(value, column, wrong, "a text in quotes, a number, true, false or null", tuple(_WORDS))


def _reachable(operator: Operator, value: Any, low: float | None, high: float | None) -> bool:
    """Return whether any value of a column's range compares so."""
    if isinstance(value, (Variable, bool)) or not isinstance(value, (int, float)):
        return True
    below_low = low is not None and value < low
    above_high = high is not None and value > high
    match operator:
        case Operator.EQUAL:
            return not below_low and not above_high
        case Operator.LESS:
            return not below_low and value != low
        case Operator.AT_MOST:
            return not below_low
        case Operator.GREATER:
            return not above_high and value != high
        case Operator.AT_LEAST:
            return not above_high
        case _:
            return True


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at {high} or below" if low is None else f"at {low} or above"
    return f"between {low} and {high}"


def _value(value: ast.Value, column: Column, operator: Operator, wrong: Wrong) -> Any:
    if isinstance(value, ast.Word) and value.text == "null":
        if not column.nullable or operator not in _EQUALITY:
            why = "is never null" if not column.nullable else "is compared with null by = and != only"
            wrong(value.span, f"{column.name} {why}")
            raise _NoValue
        return None
    makers: dict[ColumnType, Callable[[ast.Value, Column, Wrong], Any]] = {
        ColumnType.UUID: _uuid,
        ColumnType.UUID_ARRAY: _uuid,
        ColumnType.INSTANT: _instant,
        ColumnType.INT: _number,
        ColumnType.FLOAT: _number,
        ColumnType.BOOL: _bool,
        ColumnType.ENUM: _member,
    }
    made = makers.get(column.type, _text)(value, column, wrong)
    if operator is Operator.MATCHES:
        _check_pattern(made, value.span, wrong)
    return made


def _check_pattern(pattern: str, span: SourceSpan, wrong: Wrong) -> None:
    if len(pattern) > PATTERN_CHARS:
        wrong(span, f"a pattern is at most {PATTERN_CHARS} characters long")
        raise _NoValue
    try:
        matcher(pattern)
    except InvalidValue as error:
        wrong(span, f"this is not a pattern: {error.context['reason']}")
        raise _NoValue from None
    except ExtraNotInstalled as error:
        wrong(span, str(error))
        raise _NoValue from None


def _expected(value: ast.Value, column: Column, wrong: Wrong, what: str, names: tuple[str, ...] = ()) -> _NoValue:
    got = value.text if isinstance(value, ast.Word) else value.value if isinstance(value, ast.Text) else ""
    wrong(value.span, f"{column.name} is compared with {what}", got=got, expected=names)
    return _NoValue()


def _variable(value: ast.Value, allowed: tuple[Variable, ...]) -> Variable | None:
    name = ""
    if isinstance(value, ast.Word):
        name = value.text
    elif isinstance(value, ast.Call) and not value.arguments:
        name = f"{value.name.text}()"
    return next((item for item in allowed if item == name), None)


def _uuid(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    variable = _variable(value, _OF_UUID)
    if variable is not None:
        return variable
    if isinstance(value, ast.Text):
        try:
            return uuid.UUID(value.value)
        except ValueError:
            pass
    raise _expected(value, column, wrong, "an id in quotes or a variable", tuple(item.value for item in _OF_UUID))


def _instant(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    variable = _variable(value, (Variable.NOW,))
    if variable is not None:
        return variable
    if isinstance(value, ast.Text):
        try:
            moment = datetime.fromisoformat(value.value)
        except ValueError:
            pass
        else:
            if moment.tzinfo is not None:
                return moment.astimezone(UTC)
    raise _expected(value, column, wrong, 'now() or an instant such as "2026-03-01T12:00:00Z"')


def _is_kept(value: ast.Value) -> TypeGuard[ast.Number]:
    """Return whether a value is a number that the store can have."""
    return isinstance(value, ast.Number) and len(value.text) < _NUMBER_CHARS and abs(value.value) < _INT64


def _number(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    if _is_kept(value) and (column.type is ColumnType.FLOAT or value.is_whole):
        return float(value.value) if column.type is ColumnType.FLOAT else value.value
    raise _expected(value, column, wrong, "a number" if column.type is ColumnType.FLOAT else "a whole number")


def _bool(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    if isinstance(value, ast.Word) and isinstance(_WORDS.get(value.text), bool):
        return _WORDS[value.text]
    raise _expected(value, column, wrong, "true or false", ("true", "false"))


def _member(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    assert column.enum is not None
    names = tuple(item.value for item in column.enum)
    if isinstance(value, ast.Text) and value.value in names:
        return value.value
    raise _expected(value, column, wrong, "one of its values, in quotes", names)


def _text(value: ast.Value, column: Column, wrong: Wrong) -> Any:
    if isinstance(value, ast.Text):
        return value.value
    raise _expected(value, column, wrong, "a text in quotes")


# --- filters that never match --------------------------------------------------------------------


def _never(predicate: Predicate, condition: ast.Value, source: Source) -> Iterator[ProgramFault]:
    """Yield a fault for conditions that contradict each other: equal to two values, above and below at once."""
    if isinstance(predicate, All):
        reason = _contradiction(predicate)
        if reason:
            yield source.fault(condition.span, f"this never holds: {reason}")
            return
    if isinstance(predicate, (All, Either)) and isinstance(condition, ast.Joined):
        for inner, part in zip(predicate.conditions, condition.conditions, strict=True):
            yield from _never(inner, part, source)


def _contradiction(predicate: All) -> str:
    equal: dict[str, Any] = {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unequal: dict[str, list[Any]] = {}
    null: dict[str, Operator] = {}
    compared: set[str] = set()
    for item in predicate.conditions:
        if not isinstance(item, Comparison):
            continue
        name, value = item.column, item.value
        if value is None:
            if null.setdefault(name, item.operator) is not item.operator:
                return f"{name} is null or is not"
        elif name not in OPEN_BOUNDS:
            compared.add(name)
        if value is None or isinstance(value, Variable):
            continue
        if item.operator is Operator.EQUAL:
            if equal.setdefault(name, value) != value:
                return f"{name} has one value"
        elif item.operator is Operator.UNEQUAL:
            unequal.setdefault(name, []).append(value)
        elif item.operator in (Operator.GREATER, Operator.AT_LEAST):
            low[name] = max(low.get(name, value), value)
        elif item.operator in (Operator.LESS, Operator.AT_MOST):
            high[name] = min(high.get(name, value), value)
    for name in sorted(compared):
        if null.get(name) is Operator.EQUAL:
            return f"where {name} is null, nothing else about it holds"
    for name, values in unequal.items():
        if name in equal and equal[name] in values:
            return f"{name} is {equal[name]!r} or is not"
    for name in low.keys() & high.keys():
        if low[name] > high[name]:
            return f"{name} is not above {low[name]} and below {high[name]}"
    for name, value in equal.items():
        if (name in low and value < low[name]) or (name in high and value > high[name]):
            return f"{name} = {value!r} lies outside the other bounds"
    return ""
