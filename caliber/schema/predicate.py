"""Predicates over a relation's columns as data, and the reference test whether one holds for a record.

A comparison with a column that is NULL does not hold, whatever its operator; only ``= null`` and ``!= null`` test for
NULL. The bounds of validity are open: ``valid_until`` without a value lies after every instant, ``valid_from`` before.

Source: C-161 to C-165, K-064, K-071.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.json_patterns import fitting


class Operator(StrEnum):
    """The comparison of a column. ``contains``: a member of a list, or a part of a text.

    Texts are less or greater by their characters' numbers, whatever the language. ``fits``: a JSON value and a pattern.
    """

    EQUAL = "="
    UNEQUAL = "!="
    LESS = "<"
    GREATER = ">"
    AT_MOST = "<="
    AT_LEAST = ">="
    MATCHES = "~"
    CONTAINS = "contains"
    STARTS = "starts"
    FITS = "fits"


class Variable(StrEnum):
    """A value that is only known when a condition is evaluated."""

    NOW = "now()"
    TRAJECTORY = "current_trajectory"
    SCOPE = "current_scope"
    AGENT = "current_agent"


Literal: TypeAlias = str | int | float | bool | uuid.UUID | datetime | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``column operator value``; the value has the column's type."""

    column: str
    operator: Operator
    value: Literal | Variable


@dataclass(frozen=True, slots=True)
class OneOf:
    """``column`` has one of some values, each of the column's type; None among them is having no value.

    Of no values no record has one.
    """

    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class All:
    """Every one of two or more conditions holds."""

    conditions: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """At least one of two or more conditions holds."""

    conditions: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | OneOf | All | Either

ORDER: Final = (Operator.LESS, Operator.GREATER, Operator.AT_MOST, Operator.AT_LEAST)
RANGES: Final = frozenset((*ORDER, Operator.STARTS))
"""Comparisons that hold for a run of values in order."""
_STRAY: Final = range(0xD800, 0xE000)
"""Surrogates, which are no characters of a text."""


def after_all_with(prefix: str) -> str | None:
    """Return the first text behind all that start with a prefix; None if no text is."""
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        following = _STRAY.stop if following in _STRAY else following
        if following <= sys.maxunicode:
            return prefix[: end - 1] + chr(following)
    return None


OPEN_BEFORE = frozenset({"valid_from"})
OPEN_AFTER = frozenset({"valid_until"})
OPEN_BOUNDS = OPEN_BEFORE | OPEN_AFTER


def one_of(column: str, values: Sequence[Literal]) -> Comparison | OneOf:
    """Return the condition that a column has one of some values."""
    if len(values) == 1:
        return Comparison(column, Operator.EQUAL, values[0])
    return OneOf(column, tuple(values))


def all_of(*parts: Predicate | None) -> Predicate | None:
    """Return the condition that all of some hold; None for none."""
    present = [part for part in parts if part is not None]
    return All(tuple(present)) if len(present) > 1 else (present[0] if present else None)


def variables_in(predicate: Predicate) -> frozenset[Variable]:
    """Return the variables that a predicate names."""
    match predicate:
        case Comparison(_, _, value):
            return frozenset((value,)) if isinstance(value, Variable) else frozenset()
        case OneOf():
            return frozenset()
        case All(conditions) | Either(conditions):
            return frozenset().union(*map(variables_in, conditions))


def columns_in(predicate: Predicate) -> frozenset[str]:
    """Return the columns that a predicate names."""
    match predicate:
        case Comparison(column) | OneOf(column):
            return frozenset((column,))
        case All(conditions) | Either(conditions):
            return frozenset().union(*map(columns_in, conditions))


def holds(
    predicate: Predicate,
    record: Mapping[str, Any],
    variables: Mapping[Variable, Any],
    matches: Callable[[str, str], bool],
) -> bool:
    """Return whether a condition holds for one record: the meaning that every evaluator is held to.

    ``record`` has plain values by column; ``matches(pattern, text)`` searches a text for a pattern.
    """
    match predicate:
        case All(conditions):
            return all(holds(item, record, variables, matches) for item in conditions)
        case Either(conditions):
            return any(holds(item, record, variables, matches) for item in conditions)
        case OneOf(column, values):
            return record[column] in values
        case Comparison(column, operator, None):
            return (record[column] is None) is (operator is Operator.EQUAL)
        case Comparison(column, operator, operand):
            value = variables[operand] if isinstance(operand, Variable) else operand
            return _compare(record[column], operator, value, column, matches)


def _compare(stored: Any, operator: Operator, value: Any, column: str, matches: Callable[[str, str], bool]) -> bool:
    if value is None:
        return False  # a variable without a value, such as the scope where none is open, compares with nothing
    if stored is None:
        return isinstance(value, datetime) and _open_bound(column, operator)
    match operator:
        case Operator.EQUAL:
            return bool(stored == value)
        case Operator.UNEQUAL:
            return bool(stored != value)
        case Operator.LESS:
            return bool(stored < value)
        case Operator.GREATER:
            return bool(stored > value)
        case Operator.AT_MOST:
            return bool(stored <= value)
        case Operator.AT_LEAST:
            return bool(stored >= value)
        case Operator.MATCHES:
            return matches(value, stored)
        case Operator.CONTAINS:
            return bool(value in stored)
        case Operator.STARTS:
            return bool(stored.startswith(value))
        case Operator.FITS:
            return fitting(value)(stored)


def _open_bound(column: str, operator: Operator) -> bool:
    if column in OPEN_AFTER:
        return operator in (Operator.GREATER, Operator.AT_LEAST, Operator.UNEQUAL)
    if column in OPEN_BEFORE:
        return operator in (Operator.LESS, Operator.AT_MOST, Operator.UNEQUAL)
    return False
