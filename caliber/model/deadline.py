"""Deadline of the current call, kept in a context variable that every wait on its behalf reads.

Providers and databases are called through protocols without deadlines. ``within`` sets the bound of a call, and code
that is about to wait reads ``remaining_s``. Public calls open it with ``bounded(deadline_ms)``; nothing else takes a
``deadline_ms``. Background threads start without one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
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


def bounded(deadline_ms: int | None) -> AbstractContextManager[None]:
    """Bound all of a public call: waits, requests to providers, writes. Raises: DTypeError, InvalidValue."""
    if deadline_ms is None:
        return _NO_BOUND
    from caliber.model.arguments import as_whole  # the checks import more of the model than code that only waits needs

    return within(as_whole(deadline_ms, "deadline_ms") / 1_000)


def within(seconds: float | None) -> AbstractContextManager[None]:
    """Limit calls inside the block to ``seconds`` from now; an earlier limit stays, and None adds none."""
    if seconds is None:
        return _NO_BOUND
    before, until = _until.get(), time.monotonic() + min(seconds, _LONGEST_S)
    return _limited(until if before is None else min(before, until))


def at_least(seconds: float) -> AbstractContextManager[None]:
    """Give calls inside the block ``seconds`` from now, even if the call has less left: they finish started work."""
    before = _until.get()
    return _NO_BOUND if before is None else _limited(max(before, time.monotonic() + seconds))


@managed
def _limited(until: float | None) -> Iterator[None]:
    token = _until.set(until)
    try:
        yield
    finally:
        _until.reset(token)


unbounded = functools.partial(_limited, None)
"""Remove the limit for calls inside the block: they complete work that must not be left half done."""


def earliest(deadline: float | None) -> float | None:
    """Return the earlier of ``deadline``, on the monotonic clock, and that of the call; None when there is neither."""
    until = _until.get()
    if until is None or deadline is None:
        return deadline if until is None else until
    return min(until, deadline)


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
