"""Validation of JSON values that callers pass, before they are stored: types, depth, size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from caliber.model import arguments
from caliber.model.errors import DTypeError, InvalidValue
from caliber.schema.relation import INT_LEAST
from caliber.storage.compile.codec import dump_json

JSON_DEPTH: Final = 64
"""Deeper values are refused: reading them would exhaust the stack."""
_INT64_MAX: Final = 2**63 - 1


def plain_json(value: Any, field: str) -> Any:
    """Return a value of JSON as it will be read again: lists for tuples.

    Raises: DTypeError; InvalidValue for numbers and texts that no database keeps, and for deep nesting.
    """
    return _plain(value, field, JSON_DEPTH)


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: unlike in Python, True is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def as_json(value: Any, field: str, limit: int) -> Any:
    """Return a value of JSON as it will be read again, of at most ``limit`` characters.

    Raises: as ``plain_json``; InvalidValue for a longer value.
    """
    plain = plain_json(value, field)
    if len(dump_json(plain)) > limit:
        raise InvalidValue(field=field, reason=f"has more than {limit} characters as JSON")
    return plain


def whole(value: Any, field: str) -> int:
    """Return an int of 64 bits. Raises: DTypeError, InvalidValue."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DTypeError(field=field, expected="an int", got=type(value).__name__)
    number = int.__int__(value)
    if not INT_LEAST <= number <= _INT64_MAX:
        raise InvalidValue(field=field, reason="must fit 64 bits")
    return number


def finite(value: Any, field: str) -> float:
    """Return a finite number as a float. Raises: DTypeError, InvalidValue."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DTypeError(field=field, expected="a number", got=type(value).__name__)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValue(field=field, reason="must be finite")
    return number + 0.0  # databases keep no negative zero


def _plain(value: Any, field: str, depth: int) -> Any:
    if depth < 0:
        raise InvalidValue(field=field, reason=f"is nested deeper than {JSON_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return arguments.as_text(value, field, allow_empty=True)
    if isinstance(value, int):
        return whole(value, field)
    if isinstance(value, float):
        return finite(value, field)
    if isinstance(value, list | tuple):
        return [_plain(item, field, depth - 1) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise DTypeError(field=field, expected="objects with str keys", got="other keys")
        return {_plain(key, field, depth): _plain(item, field, depth - 1) for key, item in value.items()}
    raise DTypeError(field=field, expected="a value of JSON", got=type(value).__name__)
