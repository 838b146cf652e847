"""Patterns of JSON values: which members a value has, as filters of mappings state it. Source: docs/memories.md."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

Test: TypeAlias = Callable[[Any], bool]


@functools.lru_cache(maxsize=256)
def fitting(pattern: str) -> Test:
    """Return the test of JSON values for a pattern, which is JSON text.

    A mapping names members, each with the pattern of its value: a member that is missing counts as null. A list has as
    many items, each by its pattern; any other value is equal. A mapping of ``OPERATORS`` compares instead.
    """
    return _test(json.loads(pattern))


@functools.lru_cache(maxsize=256)
def needle_of(pattern: str) -> bytes:
    """Return bytes that are part of the JSON of every value that fits a pattern: its longest text or whole number."""
    return max(_needles(json.loads(pattern)), key=len, default=b"")


def _needles(wanted: Any) -> Iterator[bytes]:
    if isinstance(wanted, dict):
        wanted = [wanted.get("$eq")] if any(map(_is_operator, wanted)) else list(wanted.values())
    if isinstance(wanted, list):
        for inner in wanted:
            yield from _needles(inner)
    elif isinstance(wanted, str) and json.dumps(wanted) == f'"{wanted}"':  # spelt in one way
        yield f'"{wanted}"'.encode()
    elif type(wanted) is int and 1 < abs(wanted) < 10**15:  # 1 is true as well; a larger float has an exponent
        yield str(wanted).encode()


def unknown_operators(pattern: Any) -> Iterator[str]:
    """Yield the names in a pattern that look like an operator, and are none or stand beside members."""
    if isinstance(pattern, dict):
        if any(map(_is_operator, pattern)):
            yield from (name for name in pattern if name not in OPERATORS)
        else:
            for inner in pattern.values():
                yield from unknown_operators(inner)
    elif isinstance(pattern, list):
        for inner in pattern:
            yield from unknown_operators(inner)


def _is_operator(name: str) -> bool:
    return name.startswith("$")


def _test(wanted: Any) -> Test:
    if isinstance(wanted, dict):
        if any(map(_is_operator, wanted)):
            return _all([_compared(OPERATORS[name], other) for name, other in wanted.items()])
        return _members([(name, _test(inner)) for name, inner in wanted.items()])
    if isinstance(wanted, list):
        tests = list(map(_test, wanted))
        return lambda value: (
            isinstance(value, list) and len(value) == len(tests) and all(map(operator.call, tests, value))
        )
    return lambda value: bool(value == wanted)


def _compared(compare: Callable[[Any, Any], bool], other: Any) -> Test:
    return lambda value: compare(value, other)


def _all(tests: Sequence[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda value: all(test(value) for test in tests)


def _members(tests: Sequence[tuple[str, Test]]) -> Test:
    if len(tests) == 1:
        ((only, test),) = tests
        return lambda value: isinstance(value, dict) and test(value.get(only))
    return lambda value: isinstance(value, dict) and all(test(value.get(name)) for name, test in tests)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def holds(value: Any, other: Any) -> bool:
        if isinstance(value, (int, float)) and isinstance(other, (int, float)):  # a union is slower
            return compare(value, other)
        try:
            return compare(float(value), float(other))
        except (TypeError, ValueError):  # texts are ordered too, but for those that are numbers
            return isinstance(value, str) and isinstance(other, str) and compare(value, other)

    return holds


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
}
"""The comparisons of a pattern, by name."""
