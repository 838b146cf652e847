"""Values that no argument is meant to have, and every public call with them in the place of each argument.

Calls are found by introspection, so a new facet is covered by itself; what a call needs to be sound comes from the
names and the annotations of its parameters. Source: issue 38, point 6.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import itertools
import math
import random
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import caliber
from caliber.config import CaliberConfig
from caliber.model.agents import LockToken
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import ToolCall


class Mute:
    """Says nothing of itself, and raises when asked."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Raising:
    """Raises for whatever is asked of it that a check of its type does not need."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError("not asked")

    __len__ = __bool__ = __eq__ = __hash__ = __contains__ = _refuse


class Fresh(NamedTuple):
    """A value that is made for each call, as it can be used once."""

    make: Callable[[], Any]


class Colour(StrEnum):
    """Is an enum of another kind."""

    NOTE = "note"


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
    None, True, 0, -1, 1, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, 1j,
    Decimal("NaN"), "", " ", "a", "\0", "\ud800", "a\ud800b", "x" * 1_000_000, "9" * 5_000,
    "00000000-0000-0000-0000-00000000000g", b"", b"\xff\x00", bytearray(b"a"), memoryview(b"a"), [], [None], [1, "a"],
    ["\ud800"], ["Zeb\ud800edee"], ["\0"], [[]], [10**400], [math.nan], [0.5] * 31, [10**400] * 32, ["a"] * 32, (),
    (1,), {}, {"a": 1}, {1: 2}, {"\ud800": "\ud800"}, {"a": "\0"}, {"a": [math.nan]}, {"role": "user", "content": 5},
    [{"role": "user", "content": "a", "name": "\ud800"}],
    [{"id": "1", "function": {"name": "\ud800", "arguments": "\0"}}],
    [{"id": 2**70, "function": {"name": 5}}], set(), {1, 2}, frozenset("a"), range(3), object(), Mute(), [Mute()],
    {"a": Mute()}, Raising(), [Raising()], {"a": Raising()}, {"entity": Raising()},
    Fresh(lambda: (each for each in (1, "a", None))), Fresh(lambda: iter(["a", "\ud800"])), Colour.NOTE, [Colour.NOTE],
    caliber, NotImplemented, ..., _NOW, _NOW.replace(tzinfo=Placeless()),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
    datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-12))),
    datetime.datetime.min.replace(tzinfo=datetime.UTC), _NOW.date(), _NOW.time(), datetime.timedelta(1),
    np.array([1, 2]), np.array(5), np.array(["a", "b"]), np.array([]), np.zeros((2, 2)),
    np.array([np.nan] * 32, np.float32), np.array([None]), np.float64(0.5), np.int64(3), np.bool_(True),
    np.str_("a\ud800"), np.datetime64("2026-01-01"), uuid.UUID(int=0), uuid.UUID(int=2**128 - 1),
    EntityRef(EntityType.USER, uuid.UUID(int=7)),
    EntityRef("user", "\ud800"),  # type: ignore[arg-type]
    EntityRef(Mute(), 2**70),  # type: ignore[arg-type]
    LockToken("a", 2**70), LockToken("\ud800", 1),
    LockToken(Mute(), "a"),  # type: ignore[arg-type]
    LockToken(None, None),  # type: ignore[arg-type]
    ToolCall("a", "\ud800", "{}"), [ToolCall("a", "b", "\ud800")],
    [ToolCall(Mute(), [], 5)],  # type: ignore[arg-type]
    caliber.Principal("user", "\ud800"),  # type: ignore[arg-type]
    caliber.Principal(Mute(), None),  # type: ignore[arg-type]
    ValueError("a"), _endless(50), _endless(5_000), "confidence > 10", "confidence >", "(" * 5_000, "content = 'a\0'",
    {"confidence": 10**400}, {"confidence": math.nan}, {"entity": "\ud800"}, {"entity": "\0"}, {"valid_until": _NOW},
    {"valid_until": _NOW.replace(tzinfo=Placeless())}, {"entity": [np.array([1, 2])]}, {"content": Mute()},
)  # fmt: skip


class Call(NamedTuple):
    """A public call: what it is named, the callable, and the arguments with which it is sound."""

    name: str
    function: Callable[..., Any]
    sound: dict[str, Any]
    parameters: tuple[inspect.Parameter, ...]

    def made(self) -> Any:
        """Make the call with its sound arguments."""
        arguments, keywords = _given(self)
        found = self.function(*arguments, **keywords)
        return list(found) if inspect.isgenerator(found) and not self.name.endswith(".listen") else found


def failed(error: Exception) -> str:
    """Return the name of an error that is none of ours, and the last place of ours that it came through."""
    ours = [each for each in traceback.extract_tb(error.__traceback__) if f"{caliber.__path__[0]}/" in each.filename]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{shown(error)}{where}"


def doors(thing: object, prefix: str, sound: Mapping[str, Any], skipped: Collection[str] = ()) -> Iterator[Call]:
    """Yield the public methods of an object, and of the facets below it, by the names that programs give them."""
    for name in sorted(dir(type(thing))):
        whole = f"{prefix}{name}"
        if name.startswith("_") or whole in skipped:
            continue
        if isinstance(inspect.getattr_static(type(thing), name), property):
            facet = getattr(thing, name)
            if type(facet).__module__.startswith("caliber.") and not _is_data(facet):
                yield from doors(facet, f"{whole}.", sound, skipped)
        elif callable(inspect.getattr_static(type(thing), name)):
            yield call_of(whole, getattr(thing, name), sound)


def _is_data(value: object) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, (str, tuple, CaliberConfig))


def call_of(name: str, function: Callable[..., Any], sound: Mapping[str, Any]) -> Call:
    """Return a callable with the sound values of those of its parameters that must be there.

    ``sound`` has values by the end of a parameter's whole name (``agents.get.agent``, ``get.agent``, ``agent``), and,
    for a parameter of a facet that nobody has described, by its annotation (``: Id``).
    """
    parameters = tuple(inspect.signature(function).parameters.values())
    values = {}
    for parameter in parameters:
        path = f"{name}.{parameter.name}".split(".")
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        keys = [".".join(path[at:]) for at in range(len(path))]
        if parameter.kind is parameter.VAR_POSITIONAL or not is_needed:
            is_needed, keys = False, keys[:-1]
        if is_needed:
            keys += [f": {kind}" for kind in (parameter.annotation, *str(parameter.annotation).split(" | "))]
        key = next((key for key in keys if key in sound), None)
        if key is not None:
            values[parameter.name] = sound[key]
        assert key is not None or not is_needed, f"no sound value for {name}({parameter})"
    return Call(name, function, values, parameters)


def broken(
    call: Call, place: inspect.Parameter, value: Any, extra: tuple[str, ...]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with a value in one place; ``extra`` are names for free keywords."""
    if isinstance(value, Fresh):
        value = value.make()
    changed = dict.fromkeys(extra, value) if place.kind is place.VAR_KEYWORD else {place.name: value}
    if place.kind is place.VAR_POSITIONAL:
        changed = {place.name: (value,)}
    return _given(call, **changed)


def _given(call: Call, /, **changed: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the sound arguments of a call, but for the changed ones."""
    keywords = {name: made.make() if isinstance(made, Fresh) else made for name, made in call.sound.items()}
    keywords |= changed
    positional: list[Any] = []
    for parameter in call.parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in keywords:
            positional.append(keywords.pop(parameter.name))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional += keywords.pop(parameter.name, ())
    return positional, keywords


def shown(value: Any) -> str:
    """Return the name of a value in the report of a failure."""
    try:
        return f"{type(value).__name__} {ascii(value)[:60]}"
    except Exception:
        return type(value).__name__


Case = tuple[Call, inspect.Parameter, Any]


def drawn(calls: list[Call], chance: random.Random, count: int) -> Iterator[Case]:
    """Yield so many places, each as often as any other, with a value for it."""
    places = [(call, place) for call in calls for place in call.parameters]
    chance.shuffle(places)
    for place in itertools.islice(itertools.cycle(places), count):
        yield (*place, chance.choice(VALUES))


def every(calls: list[Call]) -> Iterator[Case]:
    """Yield each place with each value."""
    for call in calls:
        for place in call.parameters:
            for value in VALUES:
                yield call, place, value
