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
_DAYS_LONG: Final = {"DAILY": 1, "WEEKLY": 7}
_MONTHS_LONG: Final = {"MONTHLY": 1, "YEARLY": 12}
_SHORTEST_MONTH: Final = 28
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


def parse_rule(text: str) -> RepetitionRule:
    """Return a rule of FREQ, INTERVAL, COUNT, UNTIL and BYDAY. Raises: InvalidValue for any other text."""
    if len(text) > _TEXT_MAX:
        raise _not_a_rule(f"has more than {_TEXT_MAX} characters")
    parts: dict[str, str] = {}
    for part in text.removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if not equals or name not in _PARTS:
            raise _not_a_rule(f"is made of {', '.join(_PARTS)}, such as FREQ=WEEKLY;BYDAY=MO,WE")
        if name in parts:
            raise _not_a_rule(f"has {name} twice")
        parts[name] = value
    frequency = parts.get("FREQ", "")
    if frequency not in FREQUENCIES:
        raise _not_a_rule(f"needs FREQ, one of {', '.join(FREQUENCIES)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise _not_a_rule("has COUNT and UNTIL; give one of them")
    return RepetitionRule(
        frequency,
        _number(parts.get("INTERVAL", "1"), "INTERVAL"),
        None if "COUNT" not in parts else _number(parts["COUNT"], "COUNT"),
        None if "UNTIL" not in parts else _until(parts["UNTIL"]),
        () if "BYDAY" not in parts else tuple(_day(each, frequency) for each in parts["BYDAY"].split(",")),
    )


def _not_a_rule(reason: str) -> InvalidValue:
    return InvalidValue(field="rrule", reason=reason)


def _number(text: str, name: str) -> int:
    number = int(text) if _NUMBER.match(text) else 0
    if not 1 <= number <= _NUMBER_MAX:
        raise _not_a_rule(f"{name} must be a whole number of 1 to {_NUMBER_MAX}")
    return number


def _until(text: str) -> date | datetime:
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
        raise _not_a_rule("UNTIL must be a day (20271231) or a time (20271231T120000Z)") from None


def _day(text: str, frequency: str) -> tuple[int | None, int]:
    match = _DAY.match(text)
    if match is None:
        raise _not_a_rule(f"BYDAY must list days of {', '.join(DAYS)}")
    ordinal = None if match[1] is None else int(match[1])
    if ordinal is not None and not 1 <= abs(ordinal) <= _ORDINALS.get(frequency, 0):
        raise _not_a_rule("BYDAY takes numbers such as 2TU or -1FR only with FREQ=MONTHLY (to 5) or YEARLY (to 53)")
    return ordinal, DAYS.index(match[2])


class Repetition:
    """The instants at which an event that starts at ``start`` takes place, on the clocks of ``zone``.

    Without a rule it takes place once.
    """

    def __init__(self, rule: RepetitionRule | None, start: datetime, zone: tzinfo) -> None:
        self._rule = rule
        self._start = start.astimezone(UTC)
        self._zone = zone
        self._is_beyond = False
        try:
            local = start.astimezone(zone)
        except OverflowError:  # check_start refuses it
            self._is_beyond, local = True, self._start
        self._local = local.replace(tzinfo=None, fold=0)

    def check_start(self) -> None:
        """Raise InvalidValue unless the rule takes place at its start: other programs would read it otherwise."""
        if self._is_beyond:
            raise InvalidValue(
                field="starts_at", reason="lies outside of the years 1 to 9999 on the clocks of time_zone"
            )
        rule = self._rule
        if rule is None:
            return
        # Days of the week are compared first: a rule may skip the day of its start for ever.
        on_a_day = not rule.days or any(day == self._local.weekday() for _, day in rule.days)
        first = next(self._steps(0), None) if on_a_day else None
        if first != self._local:
            raise InvalidValue(field="starts_at", reason="is no occurrence of rrule; start at the first one")
        if self._ended(self._local, self._start):
            raise _not_a_rule("UNTIL lies before starts_at")

    def between(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants from ``since`` on, before ``until``, in UTC and in order."""
        rule = self._rule
        if rule is None:
            if since <= self._start < until:
                yield self._start
            return
        last: datetime | None = None
        for local in self._steps(self._periods_before(since)):
            at = self._instant(local)
            if at is None or at >= until or self._ended(local, at):
                return
            # A day that a zone skipped takes place with the next one: once.
            if at >= since and at != last:
                yield at
            last = at

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

    def _periods_before(self, since: datetime) -> int:
        """Return how many periods of the rule to pass over: those that end before ``since``.

        A rule that counts is stepped through from its start, unless each of its periods has one occurrence.
        """
        rule = self._rule
        assert rule is not None
        is_regular = not rule.days and (rule.frequency in _DAYS_LONG or self._local.day <= _SHORTEST_MONTH)
        if since <= self._start or (rule.count is not None and not is_regular):
            return 0
        # Two days and a period earlier: clocks differ by less than that.
        before = max(self._start, _shifted(since, -timedelta(days=2)))
        if rule.frequency in _DAYS_LONG:
            periods = (before - self._start) // timedelta(days=_DAYS_LONG[rule.frequency] * rule.interval)
        else:
            months = (before.year - self._start.year) * 12 + before.month - self._start.month
            periods = (months - 1) // (_MONTHS_LONG[rule.frequency] * rule.interval)
        return max(0, periods - 1)

    def _after(self, periods: int) -> tuple[datetime, int]:
        """Return a local time from which the rule goes on as from its start, after at most some periods; how many."""
        rule = self._rule
        assert rule is not None
        if not periods:
            return self._local, 0
        if rule.frequency in _DAYS_LONG:
            return self._local + periods * timedelta(days=_DAYS_LONG[rule.frequency] * rule.interval), periods
        unit = _MONTHS_LONG[rule.frequency] * rule.interval
        for passed in range(periods, 0, -1):
            months = self._local.year * 12 + self._local.month - 1 + passed * unit
            year, month = divmod(months, 12)
            try:
                if not rule.days:  # the day of its start, which not every month has
                    return self._local.replace(year=year, month=month + 1), passed
                month = 0 if rule.frequency == "YEARLY" else month
                return self._local.replace(year=year, month=month + 1, day=1), passed
            except ValueError:
                continue
        return self._local, 0

    def _steps(self, periods: int) -> Iterator[datetime]:
        """Yield the local times of the rule, without those of its first ``periods`` or somewhat fewer."""
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
        local, passed = self._after(periods)
        left = None if rule.count is None else max(0, rule.count - passed)
        if left == 0:
            return iter(())
        steps = iter(
            dateutil_rules.rrule(
                _NUMBERS[rule.frequency],
                dtstart=local.replace(microsecond=0),
                interval=rule.interval,
                count=left,
                byweekday=by_day or None,
                wkst=0,
            )
        )
        fraction = timedelta(microseconds=local.microsecond)
        return (each + fraction for each in steps)


def _shifted(instant: datetime, by: timedelta) -> datetime:
    """Return an earlier instant, within the years that there are."""
    try:
        return instant + by
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def zone_named(name: str) -> tzinfo:
    """Return the time zone of an IANA name. Raises: InvalidValue for one that this machine does not know."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        let_through(error)
        reason = "must be a time zone this machine knows, such as UTC or Europe/Berlin (pip install tzdata for more)"
        raise InvalidValue(field="time_zone", reason=reason) from None
