"""Repetition rules of iCalendar (RRULE): parsed strictly, and expanded on the clocks of a time zone.

A repeated event keeps its time of day while clocks change: a time in the skipped hour takes place an hour later, a time
in the repeated hour at its first pass (RFC 5545, 3.3.10). python-dateutil steps through the days; the instants are
computed here. Source: P-045, P-046.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from caliber.model.errors import ExtraNotInstalled, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through

FREQUENCIES: Final = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
DAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_NUMBERS: Final = {"YEARLY": 0, "MONTHLY": 1, "WEEKLY": 2, "DAILY": 3}
"""Frequencies as python-dateutil numbers them."""
_PARTS: Final = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY")
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")
_DAY: Final = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)\Z")
_UNTIL: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{2})([0-9]{2})([0-9]{2})(Z?))?\Z")
_ORDINALS: Final = {"MONTHLY": 5, "YEARLY": 53}
_TEXT_MAX: Final = 512
_NUMBER_MAX: Final = 10_000
"""The largest INTERVAL and COUNT: a rule that counts is stepped through from its start."""


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """A parsed rule. ``until`` is inclusive: a day, a local time, or an instant."""

    frequency: str
    interval: int = 1
    count: int | None = None
    until: date | datetime | None = None
    days: tuple[tuple[int | None, int], ...] = ()
    """Pairs of an ordinal within the month or year, if any, and a weekday, Monday is 0."""


def parse_rule(text: str, field: str = "rrule") -> RepetitionRule:
    """Return a rule of FREQ, INTERVAL, COUNT, UNTIL and BYDAY. Raises: InvalidValue for any other text."""
    if len(text) > _TEXT_MAX:
        raise InvalidValue(field=field, reason=f"has more than {_TEXT_MAX} characters")
    parts: dict[str, str] = {}
    for part in text.removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if not equals or name not in _PARTS:
            raise _wrong(field, f"is made of {', '.join(_PARTS)}, such as FREQ=WEEKLY;BYDAY=MO,WE")
        if name in parts:
            raise _wrong(field, f"has {name} twice")
        parts[name] = value
    frequency = parts.get("FREQ", "")
    if frequency not in FREQUENCIES:
        raise _wrong(field, f"needs FREQ, one of {', '.join(FREQUENCIES)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise _wrong(field, "has COUNT and UNTIL; give one of them")
    return RepetitionRule(
        frequency,
        _number(parts.get("INTERVAL", "1"), "INTERVAL", field),
        None if "COUNT" not in parts else _number(parts["COUNT"], "COUNT", field),
        None if "UNTIL" not in parts else _until(parts["UNTIL"], field),
        () if "BYDAY" not in parts else tuple(_day(each, frequency, field) for each in parts["BYDAY"].split(",")),
    )


def _wrong(field: str, reason: str) -> InvalidValue:
    return InvalidValue(field=field, reason=reason)


def _number(text: str, name: str, field: str) -> int:
    number = int(text) if _NUMBER.match(text) else 0
    if not 1 <= number <= _NUMBER_MAX:
        raise _wrong(field, f"{name} must be a whole number of 1 to {_NUMBER_MAX}")
    return number


def _until(text: str, field: str) -> date | datetime:
    match = _UNTIL.match(text)
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second, zulu = match.groups()
        if hour is None:
            return date(int(year), int(month), int(day))
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))  # noqa: DTZ001 (local)
        return at.replace(tzinfo=UTC) if zulu else at
    except ValueError:
        raise _wrong(field, "UNTIL must be a day (20271231) or a time (20271231T120000Z)") from None


def _day(text: str, frequency: str, field: str) -> tuple[int | None, int]:
    match = _DAY.match(text)
    if match is None:
        raise _wrong(field, f"BYDAY must list days of {', '.join(DAYS)}")
    ordinal = None if match[1] is None else int(match[1])
    if ordinal is not None and not 1 <= abs(ordinal) <= _ORDINALS.get(frequency, 0):
        raise _wrong(field, "BYDAY takes numbers such as 2TU or -1FR only with FREQ=MONTHLY (to 5) or YEARLY (to 53)")
    return ordinal, DAYS.index(match[2])


class Repetition:
    """The instants at which an event that starts at ``start`` takes place, on the clocks of ``zone``.

    Without a rule it takes place once.
    """

    def __init__(self, rule: RepetitionRule | None, start: datetime, zone: tzinfo) -> None:
        self._rule = rule
        self._start = start.astimezone(UTC)
        self._zone = zone
        self._local = start.astimezone(zone).replace(tzinfo=None, fold=0)

    def check_start(self, field: str = "starts_at") -> None:
        """Raise InvalidValue unless the rule takes place at its start: other programs would read it otherwise."""
        rule = self._rule
        if rule is None:
            return
        # Days of the week are compared first: a rule may skip the day of its start for ever.
        on_a_day = not rule.days or any(day == self._local.weekday() for _, day in rule.days)
        first = next(iter(self._steps(self._local)), None) if on_a_day else None
        if first != self._local:
            raise InvalidValue(field=field, reason="is no occurrence of rrule; start at the first one")
        if self._ended(self._local, self._start):
            raise InvalidValue(field="rrule", reason="UNTIL lies before starts_at")

    def between(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants from ``since`` on, before ``until``, in UTC and in order."""
        rule = self._rule
        if rule is None:
            if since <= self._start < until:
                yield self._start
            return
        for local in self._steps(self._near(since)):
            at = self._instant(local)
            if at is None or at >= until or self._ended(local, at):
                return
            if at >= since:
                yield at

    def after(self, instant: datetime) -> datetime | None:
        """Return the first instant that is not before ``instant``; None after the last one."""
        return next(self.between(instant, datetime.max.replace(tzinfo=UTC)), None)

    def _instant(self, local: datetime) -> datetime | None:
        """Return the instant of a local time; None beyond the years that there are."""
        if local == self._local:
            return self._start  # it may be the second pass of a repeated hour
        try:
            return local.replace(tzinfo=self._zone).astimezone(UTC)
        except OverflowError:
            return None

    def _ended(self, local: datetime, at: datetime) -> bool:
        until = None if self._rule is None else self._rule.until
        if until is None:
            return False
        if not isinstance(until, datetime):
            return local.date() > until
        return local > until if until.tzinfo is None else at > until

    def _near(self, since: datetime) -> datetime:
        """Return a local time from which the rule can be stepped through to ``since``, not long before it.

        A rule that counts begins at its start; months are few enough to begin there too.
        """
        rule = self._rule
        unit = {"DAILY": 1, "WEEKLY": 7}.get("" if rule is None else rule.frequency)
        if rule is None or rule.count is not None or unit is None or since <= self._start:
            return self._local
        period = timedelta(days=unit * rule.interval)
        # Two days and a period earlier: clocks differ by less than that.
        passed = (since - self._start - timedelta(days=2)) // period - 1
        return self._local + max(0, passed) * period

    def _steps(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times of the rule from one of them on."""
        rule = self._rule
        assert rule is not None
        try:
            from dateutil import rrule as dateutil_rules
        except ImportError:
            raise ExtraNotInstalled(feature="repeated events of the calendar", extra="calendar") from None
        weekdays = [dateutil_rules.weekdays[day] for _, day in rule.days]
        by_day: Any = [
            weekday if ordinal is None else weekday(ordinal)
            for weekday, (ordinal, _) in zip(weekdays, rule.days, strict=True)
        ]
        steps = iter(
            dateutil_rules.rrule(
                _NUMBERS[rule.frequency],
                dtstart=local.replace(microsecond=0),
                interval=rule.interval,
                count=rule.count,
                byweekday=by_day or None,
                wkst=0,
            )
        )
        fraction = timedelta(microseconds=local.microsecond)
        return (each + fraction for each in steps)


def zone_named(name: str, field: str = "time_zone") -> tzinfo:
    """Return the time zone of an IANA name. Raises: InvalidValue for one that this machine does not know."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        let_through(error)
        reason = "must be a time zone this machine knows, such as UTC or Europe/Berlin (pip install tzdata for more)"
        raise InvalidValue(field=field, reason=reason) from None
