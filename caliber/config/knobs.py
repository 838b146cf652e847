"""Base class ``Section`` of configuration sections, field helper ``knob()``, validated types, immutable mapping.

A knob carries its meaning, its unit, the requirement it comes from and, where one exists, the source's number;
validation, the commented file of ``caliber init`` and the tests all read that one declaration.

Source: C-122 to C-126, K-002, K-003.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from caliber.model.errors import InvalidValue
from caliber.model.time import parse_duration_ms

INT64_MAX: Final = 2**63 - 1
FOREVER: Final = "forever"
_OPTION_DEPTH: Final = 8

V_co = TypeVar("V_co", covariant=True)


class Section(BaseModel):
    """A part of the configuration: frozen, hashable, without unknown keys and without silent defaults.

    Modules of sections have no ``from __future__ import annotations``: pydantic would compile each of 400 annotations.
    A section's schema is built with that of the whole configuration, not also by itself (``defer_build``).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        revalidate_instances="always",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        defer_build=True,
    )


def knob(
    text: str,
    source: str,
    *,
    unit: str = "",
    source_value: Any = None,
    optional: bool = False,
    **limits: Any,
) -> Any:
    """Declare a knob.

    ``source`` is its requirement, or ``design`` or ``ours``; ``source_value`` is the value in the source documents, if
    any. Only an ``optional`` knob may be omitted; then it is None, or empty.
    """
    about = {"source": source, "unit": unit, "source_value": source_value}
    if optional:
        limits.setdefault("default", None)
    return Field(description=text, json_schema_extra=about, **limits)


# --- scalars -----------------------------------------------------------------------------------


def _duration(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse_duration_ms(value)
        except InvalidValue as error:
            reason = error.context["reason"]
        raise PydanticCustomError("duration", "{reason}", {"reason": reason})
    if isinstance(value, bool) or not isinstance(value, int):
        raise PydanticCustomError("duration", 'expected a duration such as "30s", or whole milliseconds')
    return value


def _duration_or_forever(value: Any) -> Any:
    return None if value is None or value == FOREVER else _duration(value)


def _list(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise PydanticCustomError("list", "must be a list")
    return tuple(value)


def _int64(value: int) -> int:
    if abs(value) > INT64_MAX:
        raise PydanticCustomError("int64", "does not fit 64 bits")
    return value


def _plus_zero(value: float) -> float:
    return value + 0.0  # -0.0 equals 0.0 and must not hash differently


def _clean_text(value: str) -> str:
    # A lone surrogate cannot be written as UTF-8, so it could neither be stored nor hashed.
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise PydanticCustomError("unicode", "contains characters that are not valid Unicode text")
    return value


# The bound of 64 bits is a function, not a Field: of two Fields with ``le`` pydantic keeps only one.
Int = Annotated[int, Field(strict=True), AfterValidator(_int64)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False), AfterValidator(_plus_zero)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True), AfterValidator(_clean_text)]
Name = Annotated[str, Field(strict=True, pattern=r"\S"), AfterValidator(_clean_text)]
Duration = Annotated[int, Field(strict=True), BeforeValidator(_duration), AfterValidator(_int64)]
Retention = Annotated[int | None, Field(strict=True, gt=0, le=INT64_MAX), BeforeValidator(_duration_or_forever)]
AsList = BeforeValidator(_list)


# --- mappings ----------------------------------------------------------------------------------


class FrozenMap(Mapping[str, V_co]):
    """A mapping that cannot change: hashable, picklable, equal to any mapping with the same items."""

    __slots__ = ("_items",)
    _items: dict[str, V_co]

    def __init__(self, items: Mapping[str, V_co] | None = None) -> None:
        object.__setattr__(self, "_items", dict(sorted((items or {}).items())))

    def __getitem__(self, key: str) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("this mapping cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("this mapping cannot be changed")

    def __reduce__(self) -> tuple[type[FrozenMap[Any]], tuple[dict[str, V_co]]]:
        return FrozenMap, (self._items,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (value_type,) = get_args(source) or (Any,)
        items = core_schema.dict_schema(handler.generate_schema(Text), handler.generate_schema(value_type))
        return core_schema.no_info_after_validator_function(
            cls, items, serialization=core_schema.plain_serializer_function_ser_schema(dict)
        )


def _option(value: Any, depth: int = 0) -> Any:
    """Return a provider's option as immutable data, refusing a value that a TOML file could not hold."""
    if depth > _OPTION_DEPTH:
        raise PydanticCustomError("option", "is nested too deeply")
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= INT64_MAX):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return _plus_zero(value)
    if isinstance(value, (list, tuple)):
        return tuple(_option(item, depth + 1) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return FrozenMap({_clean_text(key): _option(item, depth + 1) for key, item in value.items()})
    raise PydanticCustomError("option", "must be text, a finite number, true, false, a list or a table")


Option = Annotated[Any, BeforeValidator(_option)]
