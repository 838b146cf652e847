"""Deadline of the current call, kept in a context variable: code that is about to wait reads ``remaining_s``.

Programs set it with ``caliber.deadline``, the package with ``within``; background threads start without one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Final

from caliber.model.errors import Unavailable
from caliber.model.process.interrupts import managed

TIMEOUT: Final = "timeout"
"""The reason that errors of deadlines give."""
GRACE_S: Final = 1.0
"""The time beyond a deadline in which a call leaves its work in order, such as a job that it gives back. Units: s."""
_LONGEST_S: Final = 1e9  # the longest timeout of locks and events; no wait takes thirty years
_NO_BOUND: Final = nullcontext()
_until: ContextVar[float | None] = ContextVar("caliber_deadline", default=None)


def deadline(ms: int) -> AbstractContextManager[None]:
    """Give the calls inside a ``with`` block ``ms`` milliseconds, counted from its beginning, for all of them.

    A call that would wait longer raises a retryable ``Unavailable`` (``timeout``); a second more may pass for an answer
    that is on its way. It bounds waits for writers, locks, messages and values, requests to providers with their
    retries, and all that a PostgreSQL server is asked. With 0 a write writes nothing. A block inside another one never
    prolongs its time. Tasks and ``asyncio.to_thread`` started in the block inherit the deadline; threads do not.
    Raises: DTypeError; InvalidValue for a time below 0.
    """
    from caliber.model.arguments import as_whole  # it imports more of the model than code that only waits needs

    return within(as_whole(ms, "ms") / 1_000)


def within(seconds: float | None) -> AbstractContextManager[None]:
    """Limit calls inside the block to ``seconds``; an earlier limit stays, and None adds none."""
    return _NO_BOUND if seconds is None else _limited(lambda: earliest(time.monotonic() + min(seconds, _LONGEST_S)))


def at_least(seconds: float) -> AbstractContextManager[None]:
    """Give calls inside the block ``seconds`` from now, even if the call has less left: they finish started work."""
    before = _until.get()
    return _NO_BOUND if before is None else _limited(lambda: max(before, time.monotonic() + seconds))


@managed
def _limited(until: Callable[[], float | None] | None) -> Iterator[None]:
    token = _until.set(until and until())
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator was closed inside the block, in a context that has no limit
            _until.reset(token)


unbounded = functools.partial(_limited, None)
"""Remove the limit for calls inside the block: they complete work that must not be left half done."""


def earliest(other: float | None) -> float | None:
    """Return the earlier of ``other``, on the monotonic clock, and the call's deadline; None when there is neither."""
    until = _until.get()
    if until is None or other is None:
        return other if until is None else until
    return min(until, other)


def remaining_s() -> float | None:
    """Return the seconds left, not below 0; None when nothing bounds the call."""
    until = _until.get()
    return None if until is None else max(0.0, until - time.monotonic())


def check(what: str) -> None:
    """Raise Unavailable if the deadline passed while ``what``."""
    until = _until.get()
    if until is not None and time.monotonic() >= until:
        raise deadline_passed(what)


def is_over() -> bool:
    """Return whether the deadline of the call has passed."""
    until = _until.get()
    return until is not None and time.monotonic() >= until


def deadline_passed(what: str) -> Unavailable:
    """Return the error of a call whose time was up while ``what``."""
    return Unavailable(f"the deadline passed while {what}", reason=TIMEOUT)
