"""Validation of five-field cron expressions and time zones, and computation of the last and next due time.

Fields that name an hour follow Debian's cron where clocks change: a time in the skipped hour is due right after it, a
time in the repeated hour is due once. Source: C-147, C-148.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic_core import PydanticCustomError

from caliber.model.process.interrupts import let_through
from caliber.model.time import from_us, to_us

_CRON_CHARS: Final = 128


def check_cron(text: str) -> str:
    """Return a cron expression of five fields unchanged.

    Raises: PydanticCustomError when it is not one.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise PydanticCustomError("cron", "schedules need the package cronsim: pip install cronsim") from None
    if len(text) > _CRON_CHARS or len(text.split()) != 5:
        raise PydanticCustomError("cron", 'must be five cron fields, such as "0 3 * * *"')
    try:
        next(CronSim(text, datetime(2024, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration, ValueError, OverflowError):
        pass
    else:
        return text
    raise PydanticCustomError("cron", 'must be a cron expression that can come due, such as "0 3 * * *"')


def check_time_zone(name: str) -> str:
    """Return the IANA name of a time zone unchanged. Raises: PydanticCustomError when this machine lacks it."""
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        let_through(error)
        reason = "must be a time zone this machine knows, such as UTC or Europe/Berlin (pip install tzdata for more)"
        raise PydanticCustomError("time_zone", reason) from None
    return name


def zone_of(name: str | None) -> tzinfo:
    """Return the time zone of a name, UTC without one; UTC needs no data on the machine."""
    return UTC if name in (None, "UTC") else ZoneInfo(name)


def next_due(cron: str, zone: tzinfo, after_us: int) -> int:
    """Return the first time after ``after_us`` at which an expression is due. Units: µs."""
    # Within an hour that comes twice the first answers may lie before.
    return next(at for at in _times(cron, zone, after_us) if at > after_us)


def last_due(cron: str, zone: tzinfo, until_us: int, *, after_us: int) -> int | None:
    """Return the last time an expression was due in (``after_us``, ``until_us``]; None when it was not. Units: µs."""
    first = next_due(cron, zone, after_us)
    if first > until_us:
        return None
    back = next((at for at in _times(cron, zone, until_us + 1, reverse=True) if at <= until_us), first)
    return max(first, back)


def _times(cron: str, zone: tzinfo, from_: int, *, reverse: bool = False) -> Iterator[int]:
    from cronsim import CronSim

    for at in CronSim(cron, from_us(from_).astimezone(zone), reverse=reverse):
        yield to_us(at)
