"""Deadline of the current call, kept in a context variable; programs set it with ``caliber.deadline``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

from caliber.model.errors import Unavailable
from caliber.model.process.interrupts import managed

TIMEOUT: Final = "timeout"
"""The reason that errors of deadlines give."""
GRACE_S: Final = 1.0
"""The time beyond a deadline in which a call leaves its work in order. Units: s."""
_LONGEST_S: Final = 1e9  # the longest timeout of locks and events; no wait takes thirty years
_NO_BOUND: Final = nullcontext()
# A time, the limit around it, and whether its block has ended: generators may end theirs in any order.
_limit: ContextVar[list[Any]] = ContextVar("caliber_deadline", default=[None, None, False])  # noqa: B039


def deadline(ms: int) -> AbstractContextManager[None]:
    """Give the calls inside a ``with`` block ``ms`` milliseconds, counted from its beginning, for all of them.

    A call that would wait longer raises a retryable ``Unavailable`` (``timeout``); a second more may pass for an answer
    that is on its way. It bounds waits for writers, locks, messages and values, requests to providers with their
    retries, and all that a PostgreSQL server is asked. With 0 a write writes nothing. A block inside another one never
    prolongs it. Tasks and ``asyncio.to_thread`` inherit it; threads do not. Raises: DTypeError; InvalidValue below 0.
    """
    from caliber.model.arguments import as_whole  # it imports more of the model than code that only waits needs

    return within(as_whole(ms, "ms") / 1_000)


def within(seconds: float | None) -> AbstractContextManager[None]:
    """Limit calls inside the block to ``seconds``; an earlier limit stays, and None adds none."""
    return _NO_BOUND if seconds is None else _limited(lambda: earliest(time.monotonic() + min(seconds, _LONGEST_S)))


def at_least(seconds: float) -> AbstractContextManager[None]:
    """Give calls inside the block ``seconds`` from now, even if the call has less left: they finish started work."""
    before: float | None = _limit.get()[0]
    return _NO_BOUND if before is None else _limited(lambda: max(before, time.monotonic() + seconds))


@managed
def _limited(until: Callable[[], float | None] | None) -> Iterator[None]:
    limit = [until and until(), _limit.get(), False]
    _limit.set(limit)
    try:
        yield
    finally:
        limit[2], left = True, _limit.get()
        while left[2]:
            left = left[1]
        _limit.set(left)


unbounded = functools.partial(_limited, None)
"""Remove the limit for calls inside the block: they complete work that must not be left half done."""


def earliest(other: float | None) -> float | None:
    """Return the earlier of ``other``, on the monotonic clock, and the call's deadline; None when there is neither."""
    until: float | None = _limit.get()[0]
    if until is None or other is None:
        return other if until is None else until
    return min(until, other)


def remaining_s() -> float | None:
    """Return the seconds left, not below 0; None when nothing bounds the call."""
    until: float | None = _limit.get()[0]
    return None if until is None else max(0.0, until - time.monotonic())


def check(what: str) -> None:
    """Raise Unavailable if the deadline passed while ``what``."""
    until: float | None = _limit.get()[0]
    if until is not None and time.monotonic() >= until:
        raise deadline_passed(what)


def is_over() -> bool:
    """Return whether the deadline of the call has passed."""
    until: float | None = _limit.get()[0]
    return until is not None and time.monotonic() >= until


def deadline_passed(what: str) -> Unavailable:
    """Return the error of a call whose time was up while ``what``."""
    return Unavailable(f"the deadline passed while {what}", reason=TIMEOUT)
