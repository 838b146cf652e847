"""Clocks and time conversion: aware UTC datetimes, integer microseconds since 1970, and durations as text."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from caliber.model.errors import DTypeError, InvalidValue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS_US = 1_000
"""Microseconds in a millisecond."""
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST_US = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_MARGIN_US = 1_101 * 366 * 86_400_000_000
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d|w)\Z")
_INT64_MAX = 2**63 - 1
_DIGITS_MAX = 19


class Clock(Protocol):
    """Source of the current time; injected, so that runs can be repeated."""

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000


class CheckedClock:
    """A clock of the caller's; its time must leave room for leases and ages of a thousand years."""

    def __init__(self, clock: Clock) -> None:
        self._now_us = clock.now_us

    def now_us(self) -> int:
        """Return the time of the clock. Raises: DTypeError, InvalidValue."""
        now_us = self._now_us()
        if isinstance(now_us, bool) or not isinstance(now_us, int):
            raise DTypeError(field="clock", expected="an int of now_us()", got=type(now_us).__name__)
        now_us = int.__int__(now_us)
        if not _FIRST_US + _MARGIN_US <= now_us <= _LAST_US - _MARGIN_US:
            raise InvalidValue(field="clock", reason="now_us() must give microseconds of the years 1105 to 8895")
        return now_us


class FixedClock:
    """A clock that advances only when told to; for tests and replays."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._now = start_us

    def now_us(self) -> int:
        return self._now

    def advance(self, *, ms: int = 0, us: int = 0) -> None:
        """Move forward by ``ms`` milliseconds and ``us`` microseconds."""
        self._now += ms * 1_000 + us


def to_us(value: datetime, field: str = "timestamp") -> int:
    """Return an aware datetime as microseconds since 1970.

    Raises: InvalidValue for a naive datetime, or one that UTC has no year for.
    Source: C-010.
    """
    try:
        at_us = (value - EPOCH) // _MICROSECOND
    except TypeError:  # it has none, or one without an offset
        reason = "the datetime has no time zone; pass an aware one, such as datetime.now(UTC)"
        raise InvalidValue(field=field, reason=reason) from None
    if value.tzinfo is not UTC and not _FIRST_US <= at_us <= _LAST_US:
        raise InvalidValue(field=field, reason="must be in the years 1 to 9999 in UTC")
    return at_us


def from_us(value: int) -> datetime:
    """Return microseconds since 1970 as an aware UTC datetime."""
    return EPOCH + timedelta(microseconds=value)


def parse_duration_ms(text: str, field: str = "duration") -> int:
    """Return a duration such as ``30s``, ``15m``, ``1h``, ``7d``, ``2w`` or ``250ms`` in milliseconds.

    Raises: InvalidValue when malformed or beyond 64 bits; never 0 for nonsense.
    Source: C-125, C-169, C-311.
    """
    match = _DURATION.match(text)
    if match is None:
        raise InvalidValue(field=field, reason="expected a number followed by ms, s, m, h, d or w, such as 30s")
    # More digits than 64 bits can have are not even converted: int() itself refuses very long ones.
    value = int(match[1]) * _UNIT_MS[match[2]] if len(match[1]) <= _DIGITS_MAX else _INT64_MAX + 1
    if value > _INT64_MAX:
        raise InvalidValue(field=field, reason="the duration does not fit 64 bits of milliseconds")
    return value


def format_duration(ms: int) -> str:
    """Return milliseconds as a duration text of the largest unit that fits exactly."""
    unit = next((unit for unit in reversed(_UNIT_MS) if ms and ms % _UNIT_MS[unit] == 0), "ms")
    return f"{ms // _UNIT_MS[unit]}{unit}"
