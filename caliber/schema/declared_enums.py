"""Enum classes made at run time for the enum fields of declared memories; they can be pickled."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any


class _DeclaredValue(StrEnum):
    """A value of a declared enum."""

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        made = type(self)
        return _value_again, (made.__name__, tuple(item.value for item in made), self.value)


def camel(*names: str) -> str:
    """Return names as the name of a class."""
    return "".join(part.capitalize() for name in names for part in name.split("_")) or "Memory"


def _member_names(values: Iterable[str]) -> list[str]:
    """Return the names of an enum's members: equal to their values, as far as Python allows."""
    names: list[str] = []
    for value in values:
        name = re.sub(r"\W", "_", value.upper()).strip("_")
        if not name.isidentifier():
            name = f"VALUE_{name}".rstrip("_")
        others = (f"{name}_{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(other for other in others if other not in names))
    return names


@functools.lru_cache(maxsize=1_024)
def _enum_of(name: str, values: tuple[str, ...]) -> type[StrEnum]:
    members = list(zip(_member_names(values), values, strict=True))
    make: Any = _DeclaredValue
    made: type[StrEnum] = make(name, members, module=__name__)
    return made


def values_of(memory: str, name: str, values: tuple[str, ...]) -> type[StrEnum]:
    """Return the enum of a field of a memory; the same one for the same values."""
    return _enum_of(camel(memory, name), values)


def _value_again(name: str, values: tuple[str, ...], value: str) -> StrEnum:
    return _enum_of(name, values)(value)
