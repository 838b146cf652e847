"""One deadline for all of a public call."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from caliber.model import arguments
from caliber.model.deadline import deadline_passed

P = ParamSpec("P")
T = TypeVar("T")

KEPT_SHARE = 4
KEPT_MOST_MS = 100
"""The part of a deadline that embedding leaves, a quarter or this: memory is searched in the rest."""


def bounded(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method whose ``deadline_ms`` bounds all of the call: what is asked of providers, and what is written."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        deadline_ms: Any = kwargs.get("deadline_ms")
        if deadline_ms is None:
            return method(*args, **kwargs)
        owner: Any = args[0]
        with owner._engine.within(deadline_ms):
            return method(*args, **kwargs)

    return call


class Deadline:
    """The instant by which a call must have ended; checked between its steps."""

    __slots__ = ("_until",)

    def __init__(self, deadline_ms: int | None) -> None:
        self._until = None
        if deadline_ms is not None:
            self._until = time.monotonic() + arguments.as_whole(deadline_ms, "deadline_ms") / 1000

    def check(self, what: str) -> None:
        """Raise Unavailable when the time is up."""
        if self._until is not None and time.monotonic() > self._until:
            raise deadline_passed(what)

    @property
    def left_ms(self) -> int | None:
        """The time that is left, not below 0; None without a deadline."""
        return None if self._until is None else max(0, int((self._until - time.monotonic()) * 1000))


def for_embedding(deadline_ms: int | None) -> int | None:
    """Return the part of a deadline that embedding may use up, so that the other legs still answer (M-040)."""
    if deadline_ms is None:
        return None
    whole = arguments.as_whole(deadline_ms, "deadline_ms")
    return whole - min(whole // KEPT_SHARE, KEPT_MOST_MS)
