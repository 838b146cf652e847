"""Reader of days: "yesterday", "last Tuesday", "in March", "between 3 and 5 May", "2026-05-12".

Numbers are read in every language, words in English. A number is a day or year only where its form or the word before
it makes it one: "in 1987", not "room 1987". Source: issue "Search in native memory"; docs/search.md (Days).
"""

from __future__ import annotations

import functools
import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple

from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us

DAY_US: Final = 24 * 60 * 60 * 1_000_000
_words = str.split
MONTHS: Final[dict[str, int]] = {
    name: at % 12 + 1
    for at, name in enumerate(
        _words("january february march april may june july august september october november december")
        + _words("jan feb mar apr may jun jul aug sep oct nov dec")
    )
} | {"sept": 9}
DAYS: Final[dict[str, int]] = {
    name: at % 7
    for at, name in enumerate(
        _words("monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun")
    )
}
_ONES: Final = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS: Final = _words("twenty thirty forty fifty sixty seventy eighty ninety")
COUNTS: Final[dict[str, int]] = {
    **{word: at for at, word in enumerate(_ONES)},
    **{word: 20 + 10 * at for at, word in enumerate(_TENS)},
    **{f"{ten}-{one}": 21 + 10 * at + of for at, ten in enumerate(_TENS) for of, one in enumerate(_ONES[1:10])},
}
"""Words of the numbers below 100."""

_EPOCH: Final = date(1970, 1, 1)
_YEARS_BACK: Final = 9
"""Years in which the latest 29 February is."""
_UNITS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}
_AMBIGUOUS: Final = frozenset({"may", "march", "mar", "august"})
"""Months that in lower case are other words, unless a preposition stands before them."""
_MONTH_FIRST: Final = re.compile(
    r"US/|America/(?:New_York|Chicago|Denver|Los_Angeles|Phoenix|Anchorage|Detroit|Boise|Juneau|Indiana/|Kentucky/"
    r"|North_Dakota/)|Pacific/Honolulu"
)
"""Zones of the United States, where 12/05 is the fifth of December."""

_D, _Y = r"\d{1,2}(?:st|nd|rd|th)?", r"[12]\d{3}(?!\d)"
_M = rf"(?:{'|'.join(sorted(MONTHS, key=len, reverse=True))})\b"
_W = rf"(?:{'|'.join(list(DAYS)[:7])})\b"
_W_SHORT = rf"(?:{'|'.join(sorted(DAYS, key=len, reverse=True))})\b"
_TO = r"\s*(?:-|–|—|\bto\b|\buntil\b|\btill\b|\bthrough\b|\band\b)\s*(?:the\s+)?"
_N = rf"(?:\d{{1,4}}|an?|{'|'.join(sorted(COUNTS, key=len, reverse=True))})"
_NAMED = rf"(?:{_W_SHORT},?\s+(?:the\s+)?)?"
_FORMS: Final = {
    "iso": rf"{_NAMED}(?:{_Y}-\d\d?-\d\d?|{_Y}/\d\d?/\d\d?|{_Y}\.\d\d?\.\d\d?)",
    "numeric": r"\d\d?/\d\d?/(?:\d{4}|\d\d)|\d\d?-\d\d?-\d{4}|\d\d?\.\d\d?\.\d{4}",
    "days_month": rf"{_D}{_TO}{_D}\s+(?:of\s+)?{_M}(?:\.?,?\s+{_Y})?",
    "day_month": rf"{_NAMED}{_D}\s+(?:of\s+)?{_M}(?:\.?,?\s+{_Y})?",
    "month_days": rf"{_M}\.?\s+{_D}{_TO}{_D}(?!\d)(?:,?\s+{_Y})?",
    "month_day": rf"{_NAMED}{_M}\.?\s+{_D}(?!\d)(?:,?\s+{_Y})?",
    "month_year": rf"{_M}\.?,?\s+{_Y}",
    "ago": rf"(?:{_N}|a\s+few|few|several|a\s+couple\s+of)\s+(?:day|week|month|year)s?\s+ago",
    "past": rf"(?:the\s+)?(?:last|past|previous)\s+(?:{_N}|few|couple\s+of)\s+(?:days|weeks|months|years)",
    "near": r"the\s+day\s+before\s+yesterday|yesterday|last\s+night|today|tonight|this\s+(?:morning|afternoon|evening)"
    r"|the\s+day\s+after\s+tomorrow|tomorrow",
    "which": rf"(?:last|this\s+past|this|past|previous|next|coming)\s+(?:weekend|week|month|year|{_W_SHORT}|{_M})"
    r"|the\s+weekend",
    "half": r"\d\d?/\d\d?",
    "ordinal": r"\d{1,2}(?:st|nd|rd|th)(?=\s*(?:$|[?.,!;)]))",
    "month": rf"(?:(?:early|late|mid)[\s-]|(?:beginning|start|middle|end)\s+of\s+)?{_M}",
    "year": r"(?:19|20)\d\d",
    "weekday": _W,
}
_IN_NUMBERS: Final = ("iso", "numeric")
_RELATIVE: Final = ("ago", "past", "near", "which")
_NEEDS: Final = {
    "half": "on since from between before after until till by",
    "ordinal": "on since from between before after until till by",
    "month": "in during since from between before after until till by of over",
    "year": "in during since from between before after until till year summer winter spring autumn fall",
    "weekday": "on since from between before after until till by",
}
"""Words of which one must stand before a form, which is no date otherwise."""
_LEAD: Final = re.compile(
    r"(?:^|(?<=[\s(,;:]))(on|in|during|over|since|from|between|before|after|until|till|by|of|year"
    r"|summer|winter|spring|autumn|fall)(?:\s+of)?(?:\s+the|\s+about|\s+around)?\s+\Z",
    re.IGNORECASE,
)
_LEAD_CHARS: Final = 32
_JOIN: Final = re.compile(_TO, re.IGNORECASE)


@functools.cache
def _pattern(words: bool) -> re.Pattern[str]:
    """Return the pattern of every form, compiled for the first text that may name days: that takes 15 ms."""
    any_form = "|".join(f"(?P<{name}>{_FORMS[name]})" for name in (_FORMS if words else _IN_NUMBERS))
    return re.compile(rf"(?<![\w/\\@#+-])(?<!\w[.:])(?:{any_form})(?![\w/\\@-])(?!\.\w)", re.IGNORECASE)


_MONTH_IN: Final = re.compile(_M, re.IGNORECASE)
_BEGUN: Final = "|".join(sorted({name[:3] for name in MONTHS | DAYS}))
_DAYLIKE: Final = {
    True: re.compile(rf"\d|day|week|month|year|night|this|ago|{_BEGUN}"),
    False: re.compile(r"\d"),
}
"""Parts without one of which a text in lower case names no day: one look spares the rest."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The days a text names in a zone, first and last included, and where in the text it does."""

    first: date
    last: date
    start: int
    end: int
    zone: tzinfo = UTC
    relative: bool = False
    """Whether they are told by their distance from today: "two weeks ago"."""

    @property
    def clock_us(self) -> tuple[int, int]:
        """The first and last instant of its days on clocks that show UTC."""
        return midnight_us(self.first, UTC), midnight_us(self.last, UTC) + DAY_US - 1

    @property
    def first_us(self) -> int:
        """The instant its first day begins."""
        return midnight_us(self.first, self.zone)

    @property
    def last_us(self) -> int:
        """The last instant of its last day."""
        if self.last == date.max:
            return midnight_us(self.last, self.zone) + DAY_US - 1
        return midnight_us(self.last + timedelta(1), self.zone) - 1


def midnight_us(day: date, zone: tzinfo) -> int:
    """Return the instant at which a day begins: the first of two midnights, or the end of a skipped one."""
    offset = datetime.combine(day, time(), zone).utcoffset() or timedelta()
    return (day - _EPOCH).days * DAY_US - offset // timedelta(microseconds=1)


class Moment(NamedTuple):
    """An instant, and the zone that makes its day."""

    at_us: int
    zone: tzinfo = UTC

    @property
    def day(self) -> date:
        """The day of the instant in its zone. Raises: OverflowError for an instant that no calendar has."""
        instant = from_us(self.at_us)
        try:
            return instant.astimezone(self.zone).date()
        except OverflowError:  # at either end of the calendar
            return instant.date()


class _Now(NamedTuple):
    """The day from which days are reckoned, the latest day that lacks a year, and whether 12/05 is in December.

    ``ahead``: what could be of two days is the next, not the latest.
    """

    today: date
    latest: date
    month_first: bool
    ahead: bool = False

    @classmethod
    def of(cls, today: date, zone: tzinfo, newest: date | None = None, *, ahead: bool = False) -> _Now:
        """Return the present of a person in a zone, whose newest record is of a day."""
        latest = today if newest is None else min(newest, today)
        return cls(today, latest, _MONTH_FIRST.match(str(zone)) is not None, ahead)


class DateReader:
    """Finds the first days that a text names; ``words``: also in English words."""

    def __init__(self, *, words: bool = True) -> None:
        self._words, self._daylike = words, _DAYLIKE[words]

    def may_name(self, text: str) -> bool:
        """Return whether a text may name days: it has something of the form of one, whatever the day of today."""
        # Most texts have nothing like it, which one look tells.
        return self._daylike.search(text.casefold()) is not None and _pattern(self._words).search(text) is not None

    def find(self, text: str, today: date, zone: tzinfo = UTC, newest: date | None = None) -> Interval | None:
        """Return the first days named, as a person in ``zone`` means them, or None.

        "Last week" is relative to ``today``; what names no year is the latest that is not after ``newest``, or today.
        """
        return next(self.every(text, _Now.of(today, zone, newest), zone), None)

    def every(self, text: str, now: _Now, zone: tzinfo) -> Iterator[Interval]:
        """Yield all days named, in the order of the text; of a span its last day once more."""
        for match in _pattern(self._words).finditer(text):
            try:
                found = self._days(text, match, now)
            except (ValueError, OverflowError):  # 31 June, month 13, before the year 1
                continue
            if found is not None:
                yield Interval(*found, zone, match.lastgroup in _RELATIVE)

    def _days(self, text: str, match: re.Match[str], now: _Now) -> tuple[date, date, int, int] | None:
        before = _LEAD.search(text[max(0, match.start() - _LEAD_CHARS) : match.start()])
        lead = "" if before is None else before[1].casefold()
        form = match.lastgroup or ""
        if not _counts(form, match[0], lead):
            return None
        start, end = match.start() - (0 if before is None else len(before[0])), match.end()
        joined = _JOIN.match(text, end)
        other = None if joined is None else _pattern(self._words).match(text, joined.end())
        if joined is not None and other is not None and ("and" not in joined[0].casefold() or lead == "between"):
            known = _resolve(other, now) if re.search(_Y, other[0]) else None
            first = _resolve(match, now if known is None else now._replace(latest=known[1]))
            if first is not None:
                last = known or _resolve(other, now, first[0])
                if last is not None:
                    return min(first[0], last[0]), max(first[1], last[1]), start, other.end()
        found = _resolve(match, now)
        if found is None:
            return None
        if lead in ("since", "after"):
            since = found[0] if lead == "since" else found[1] + timedelta(1)
            return since, max(since, now.today), start, end
        if lead in ("before", "until", "till"):
            return date.min, found[0] - timedelta(1) if lead == "before" else found[1], start, end
        return *found, match.start(), end


def days_said(text: str, moment: Moment, *, ahead: bool = False) -> Interval | None:
    """Return the first days that a message names, as its author meant them at a moment; None if it names none.

    "Tomorrow" is the day after the moment's day in its zone. A weekday, or a day without its year, is the latest one;
    with ``ahead``, for plans ("my exam is on 12 June"), the next (a day of the calendar may be today). ``start`` and
    ``end`` of the result are its place in the text. English, and dates in numbers.
    """
    return next(iter(all_days_said(text, moment, ahead=ahead)), None)


def all_days_said(text: str, moment: Moment, *, ahead: bool = False) -> list[Interval]:
    """Return all days that a message names, as ``days_said`` does the first."""
    try:
        now = _Now.of(moment.day, moment.zone, ahead=ahead)
    except OverflowError:
        return []
    return list(DateReader().every(text, now, moment.zone))


def _resolve(match: re.Match[str], now: _Now, least: date | None = None) -> tuple[date, date] | None:
    """Return the days of one form; without a year the first from ``least`` on, or the latest up to the newest."""
    today, latest = now.today, now.latest
    if now.ahead and least is None:
        least = today
    form, text = match.lastgroup or "", match[0].casefold()
    if form == "near":
        return _near(text, today)
    if form in ("ago", "past"):
        return _counted(form, text, today)
    if form == "which":
        return _which(text, now)
    if form == "weekday":
        return _weekday(DAYS[text], today if least is None else least + timedelta(7), strict=least is None)
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if form == "year":
        return date(numbers[0], 1, 1), date(numbers[0], 12, 31)
    if form == "iso":
        return (date(*numbers),) * 2
    if form in ("numeric", "half"):
        month_first = numbers[1] > 12 or (now.month_first and numbers[0] <= 12 and "." not in text)
        month, day = numbers[:2] if month_first else (numbers[1], numbers[0])
        year = None if form == "half" else numbers[2] + 2000 * (numbers[2] < 100)
        return _dated(year, month, (day, day), latest, least)
    if form == "ordinal":
        return _of_month(numbers[0], latest, least)
    name = _MONTH_IN.search(text)
    month = 0 if name is None else MONTHS.get(name[0], 0)  # 0, which is no month: spelt with a dotless i
    year = numbers.pop() if numbers and numbers[-1] > 999 else None
    return _dated(year, month, (numbers[0], numbers[-1]) if numbers else None, latest, least)


def _which(text: str, now: _Now) -> tuple[date, date] | None:
    *which, unit = text.split()
    today, latest = now.today, now.latest
    back = {"the": 0, "this": 0, "next": -1, "coming": -1}.get(" ".join(which), 1)
    monday = today - timedelta(today.weekday())
    if unit == "week":
        return monday - timedelta(7 * back), monday - timedelta(7 * back - 6)
    if unit == "weekend":
        back = int(today.weekday() < 6) if which == ["the"] else back
        return monday - timedelta(7 * back - 5), monday - timedelta(7 * back - 6)
    if unit == "month":
        years, month = divmod(today.year * 12 + today.month - 1 - back, 12)
        return _dated(years, month + 1, None, latest)
    if unit == "year":
        return date(today.year - back, 1, 1), date(today.year - back, 12, 31)
    if unit in DAYS:
        if back == 1:
            return _weekday(DAYS[unit], today, strict=True)
        day = monday + timedelta(DAYS[unit])
        return (day + timedelta(7 * (back < 0 and day <= today)),) * 2
    if back < 0:
        return _dated(None, MONTHS[unit], None, latest, today + timedelta(1))
    return _dated(None, MONTHS.get(unit, 0), None, latest)


def _counts(form: str, text: str, lead: str) -> bool:
    """Return whether a form is a date after the word before it."""
    needed = _NEEDS.get(form)
    if needed is not None and lead not in needed.split():
        return False
    name = _MONTH_IN.search(text)
    if name is None or name[0].casefold() not in _AMBIGUOUS or name[0][0].isupper() or form in ("month_year", "iso"):
        return True
    return lead in ("in", "during", "since") if form == "month" else lead != "" and form != "which"


def _near(text: str, today: date) -> tuple[date, date]:
    words = text.split()
    after = {"tomorrow": 1 + ("after" in words), "yesterday": -1 - ("before" in words), "night": -1}.get(words[-1], 0)
    return (today + timedelta(after),) * 2


def _counted(form: str, text: str, today: date) -> tuple[date, date]:
    """Return the days of "three weeks ago" and of "the last ten days"."""
    words = text.split()
    unit = next(name for name in _UNITS if any(word.startswith(name) for word in words))
    if "few" in words or "several" in words:
        least, most = (2, 5)
    else:
        least = most = next(
            (int(word) if word.isdigit() else COUNTS[word] for word in words if word.isdigit() or word in COUNTS),
            2 if "couple" in words else 1,
        )
    if form == "past":
        return today - timedelta(most * _UNITS[unit]), today
    if least < most or unit in ("day", "week"):
        slack = timedelta(3 * (unit == "week" and least == most))
        return today - timedelta(most * _UNITS[unit]) - slack, today - timedelta(least * _UNITS[unit]) + slack
    if unit == "year":
        return date(today.year - most, 1, 1), date(today.year - most, 12, 31)
    year, month = divmod(today.year * 12 + today.month - 1 - most, 12)
    return date(year, month + 1, 1), date(year, month + 1, monthrange(year, month + 1)[1])


def _weekday(day: int, today: date, *, strict: bool) -> tuple[date, date]:
    """Return the latest weekday up to a day; ``strict``: before it."""
    back = (today.weekday() - day) % 7
    return (today - timedelta(back or 7 * strict),) * 2


def _of_month(day: int, latest: date, least: date | None) -> tuple[date, date] | None:
    """Return the day of a month that is named by its number alone."""
    at = latest if least is None else least
    for step in range(3):
        year, month = divmod(at.year * 12 + at.month - 1 + (-step if least is None else step), 12)
        if day <= monthrange(year, month + 1)[1]:
            found = date(year, month + 1, day)
            if found <= latest if least is None else found >= least:
                return found, found
    return None


def _dated(
    year: int | None, month: int, days: tuple[int, int] | None, latest: date, least: date | None = None
) -> tuple[date, date] | None:
    """Return a month, or days of it. Raises: ValueError where no year has them."""
    years: tuple[int, ...] | range
    if year is not None:
        years = (year,)
    elif least is not None:
        years = range(least.year, least.year + _YEARS_BACK)
    else:
        years = range(latest.year, max(latest.year - _YEARS_BACK, 0), -1)
    for at in years:
        length = monthrange(at, month)[1]
        if days is not None and not 1 <= min(days) <= max(days) <= length:
            continue
        first, last = (date(at, month, day) for day in ((1, length) if days is None else (min(days), max(days))))
        if year is not None or (first <= latest if least is None else last >= least):
            return first, last
    return None
