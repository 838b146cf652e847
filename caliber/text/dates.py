"""Recognition of dates in a question: "in May 2023", "on 8 May", "last week".

Days are of UTC. A month or day without a year is the latest one that is not after the conversation's clock.

Source: issue "Search in native memory", query side.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta

from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import to_us
from caliber.text.lexicon import Lexicon

_YEARS_BACK = 9
"""Years in which the latest 29 February is."""

DAY_US = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """The days a question names, first and last included, and where in the text it does."""

    first: date
    last: date
    start: int
    end: int

    @property
    def first_us(self) -> int:
        """The instant its first day begins."""
        return to_us(datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC))

    @property
    def last_us(self) -> int:
        """The last instant of its last day."""
        return to_us(datetime(self.last.year, self.last.month, self.last.day, tzinfo=UTC)) + DAY_US - 1


class DateReader:
    """Finds the first date that a text in one language names."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._patterns = _patterns(lexicon) if lexicon.months else ()
        self._relative = _relative(lexicon) if lexicon.units else None

    def find(self, text: str, clock: date) -> Interval | None:
        """Return the first date named, the most exact form first, or None."""
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                found = self._absolute(match, clock)
                if found is not None:
                    return found
        relative = self._relative.search(text) if self._relative is not None else None
        try:
            return None if relative is None else self._from_clock(relative, clock)
        except (ValueError, OverflowError):  # before the year 1, relative to records with 1 January 1 for "unknown"
            return None

    def _absolute(self, match: re.Match[str], clock: date) -> Interval | None:
        groups = match.groupdict()
        name = groups.get("month")
        if name is not None and name.casefold() in self._lexicon.ambiguous_months and not name[0].isupper():
            return None
        number = groups.get("number")
        month = self._lexicon.months.get(name.casefold(), 0) if name else int(number) if number else None
        day = groups.get("day")
        year_text = groups.get("year")
        for year in (int(year_text),) if year_text else range(clock.year, max(clock.year - _YEARS_BACK, 0), -1):
            try:
                first, last = _days(year, month, None if day is None else int(day))
            except ValueError:  # 31 June, month 13, a month spelt with a dotless i; 29 February in most years
                continue
            if year_text or first <= clock:
                return Interval(first, last, *match.span())
        return None

    def _from_clock(self, match: re.Match[str], clock: date) -> Interval:
        lexicon = self._lexicon
        word = match.group(0).casefold()
        if word == lexicon.today:
            return Interval(clock, clock, *match.span())
        if word == lexicon.yesterday:
            before = clock - timedelta(1)
            return Interval(before, before, *match.span())
        unit = lexicon.units[match.group("unit").casefold()]
        back = match.group("which").casefold() == lexicon.last
        if unit == "week":
            first = clock - timedelta(clock.weekday() + 7 * back)
            return Interval(first, first + timedelta(6), *match.span())
        if unit == "month":
            month, year = (clock.month - back, clock.year) if clock.month > back else (12, clock.year - 1)
            return Interval(*_days(year, month, None), *match.span())
        return Interval(*_days(clock.year - back, None, None), *match.span())


def _days(year: int, month: int | None, day: int | None) -> tuple[date, date]:
    if month is None:
        return date(year, 1, 1), date(year, 12, 31)
    if day is not None:
        return date(year, month, day), date(year, month, day)
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _patterns(lexicon: Lexicon) -> tuple[re.Pattern[str], ...]:
    month = rf"(?P<month>{'|'.join(lexicon.months)})"
    day, year = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>[12]\d{3})"
    forms = (
        r"\b(?P<year>[12]\d{3})-(?P<number>\d{2})-(?P<day>\d{2})\b",
        rf"\b{month}\s+{day}(?:,?\s+{year})?\b",
        rf"\b{day}\s+(?:of\s+)?{month}(?:,?\s+{year})?\b",
        rf"\b{month},?\s+{year}\b",
        rf"\b(?:in|during|of|since|by|last|this)\s+{month}\b",
        r"\b(?P<year>(?:19|20)\d\d)\b",
    )
    return tuple(re.compile(form, re.IGNORECASE) for form in forms)


def _relative(lexicon: Lexicon) -> re.Pattern[str]:
    units = "|".join(lexicon.units)
    return re.compile(
        rf"\b(?:(?P<which>{lexicon.last}|{lexicon.this})\s+(?P<unit>{units})|{lexicon.yesterday}|{lexicon.today})\b",
        re.IGNORECASE,
    )
