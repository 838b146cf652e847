"""Values that no argument is meant to have, and every public call with them in the place of each argument."""

from __future__ import annotations

import datetime
import inspect
import math
import random
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np

import caliber
from caliber.model.agents import LockToken
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import ToolCall


class Mute:
    """Says nothing of itself, and raises when asked."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Placeless(datetime.tzinfo):
    """A time zone that knows no offset."""

    def utcoffset(self, _: datetime.datetime | None) -> None:
        return None

    def tzname(self, _: datetime.datetime | None) -> str:
        return "nowhere"

    dst = utcoffset


def _endless(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


_NOW: Final = datetime.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  (that it has none is the point)
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**70,
    -(2**70),
    10**400,
    0.5,
    -0.0,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    1j,
    Decimal("NaN"),
    "",
    " ",
    "a",
    "\0",
    "\ud800",
    "a\ud800b",
    "x" * 100_000,
    "9" * 5_000,
    "00000000-0000-0000-0000-00000000000g",
    b"",
    b"\xff\x00",
    bytearray(b"a"),
    memoryview(b"a"),
    [],
    [None],
    [1, "a"],
    ["\ud800"],
    ["\0"],
    [[]],
    [10**400],
    [math.nan],
    [0.5] * 31,
    [10**400] * 32,
    ["a"] * 32,
    (),
    (1,),
    {},
    {"a": 1},
    {1: 2},
    {"\ud800": "\ud800"},
    {"a": "\0"},
    {"a": [math.nan]},
    {"role": "user", "content": 5},
    [{"role": "user", "content": "a", "name": "\ud800"}],
    [{"id": "1", "function": {"name": "\ud800", "arguments": "\0"}}],
    [{"id": 2**70, "function": {"name": 5}}],
    set(),
    {1, 2},
    frozenset("a"),
    range(3),
    object(),
    Mute(),
    [Mute()],
    {"a": Mute()},
    NotImplemented,
    ...,
    _NOW,
    _NOW.replace(tzinfo=Placeless()),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
    datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-12))),
    datetime.datetime.min.replace(tzinfo=datetime.UTC),
    _NOW.date(),
    _NOW.time(),
    datetime.timedelta(1),
    np.array([1, 2]),
    np.array(5),
    np.array(["a", "b"]),
    np.array([]),
    np.zeros((2, 2)),
    np.array([np.nan] * 32, np.float32),
    np.array([None]),
    np.float64(0.5),
    np.int64(3),
    np.bool_(True),
    np.str_("a\ud800"),
    np.datetime64("2026-01-01"),
    uuid.UUID(int=0),
    uuid.UUID(int=2**128 - 1),
    EntityRef(EntityType.USER, uuid.UUID(int=7)),
    EntityRef("user", "\ud800"),  # type: ignore[arg-type]
    EntityRef(Mute(), 2**70),  # type: ignore[arg-type]
    LockToken("a", 2**70),
    LockToken("\ud800", 1),
    LockToken(Mute(), "a"),  # type: ignore[arg-type]
    LockToken(None, None),  # type: ignore[arg-type]
    ToolCall("a", "\ud800", "{}"),
    [ToolCall("a", "b", "\ud800")],
    [ToolCall(Mute(), [], 5)],  # type: ignore[arg-type]
    caliber.Principal("user", "\ud800"),  # type: ignore[arg-type]
    caliber.Principal(Mute(), None),  # type: ignore[arg-type]
    ValueError("a"),
    _endless(50),
    _endless(5_000),
    "confidence > 10",
    "confidence >",
    "(" * 5_000,
    "content = 'a\0'",
    {"confidence": 10**400},
    {"confidence": math.nan},
    {"entity": "\ud800"},
    {"entity": "\0"},
    {"valid_until": _NOW},
    {"valid_until": _NOW.replace(tzinfo=Placeless())},
    {"entity": [np.array([1, 2])]},
    {"content": Mute()},
)


class Call(NamedTuple):
    """A public call: what it is named, the callable, and the arguments with which it is sound."""

    name: str
    function: Callable[..., Any]
    sound: dict[str, Any]
    parameters: tuple[inspect.Parameter, ...]


def public(facet: object, prefix: str, sound: dict[str, Any], skipped: frozenset[str]) -> Iterator[Call]:
    """Yield the public methods of an object; ``sound`` has values by ``method.parameter``, or by ``parameter``."""
    for name in sorted(dir(type(facet))):
        whole = f"{prefix}{name}"
        if name.startswith("_") or whole in skipped:
            continue
        if not callable(inspect.getattr_static(type(facet), name)):
            continue
        yield call_of(whole, getattr(facet, name), sound)


def call_of(name: str, function: Callable[..., Any], sound: dict[str, Any]) -> Call:
    """Return a callable with the sound values of those of its parameters that must be there."""
    parameters = tuple(inspect.signature(function).parameters.values())
    given = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL and f"{name}.{parameter.name}" in sound:
            given["*"] = sound[f"{name}.{parameter.name}"]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        for key in (f"{name}.{parameter.name}", parameter.name):
            if key in sound and (parameter.default is parameter.empty or "." in key):
                given[parameter.name] = sound[key]
                break
        else:
            assert parameter.default is not parameter.empty, f"no sound value for {name}({parameter.name})"
    return Call(name, function, given, parameters)


def broken(
    call: Call, place: inspect.Parameter, value: Any, extra: tuple[str, ...]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with a value in one place; ``extra`` are names for free keywords."""
    given = {name: made() if callable(made) else made for name, made in call.sound.items()}
    keywords = dict(given)
    positional: list[Any] = [keywords.pop("*")] if "*" in keywords else []
    if place.kind is place.VAR_POSITIONAL:
        positional = [value]
    elif place.kind is place.VAR_KEYWORD:
        keywords.update(dict.fromkeys(extra, value))
    else:
        keywords[place.name] = value
    for parameter in call.parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in keywords:
            positional.append(keywords.pop(parameter.name))
    return positional, keywords


def said(value: Any) -> str:
    """Return the name of a value in the report of a failure."""
    try:
        return f"{type(value).__name__} {ascii(value)[:60]}"
    except Exception:
        return type(value).__name__


def drawn(calls: list[Call], chance: random.Random, count: int) -> Iterator[tuple[Call, inspect.Parameter, Any]]:
    """Yield calls, each with a place and a value for it."""
    places = [(call, place) for call in calls for place in call.parameters]
    for _ in range(count):
        yield (*chance.choice(places), chance.choice(VALUES))


def every(calls: list[Call]) -> Iterator[tuple[Call, inspect.Parameter, Any]]:
    """Yield each place with each value."""
    for call in calls:
        for place in call.parameters:
            for value in VALUES:
                yield call, place, value
