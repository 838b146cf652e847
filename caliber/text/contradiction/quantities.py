"""Types of quantities, days and times of day, compared as intervals; tables of units and words of numbers.

Two quantities of one unit exclude each other if their intervals have no value in common: "at least 100" and "250" do
not, "half an hour" and "30 minutes" are the same.
"""

from __future__ import annotations

import re
from calendar import monthrange
from enum import StrEnum
from typing import Final, NamedTuple

from caliber.text.dates import COUNTS

_INFINITE: Final = float("inf")
_YEAR_DAYS: Final = 372
"""Days in a year of twelve months of 31, so that a month and day are one number in every year."""
_ROUGH: Final = 0.1
_CONVERTED: Final = 0.08
"""The part by which two values may differ that were rounded in units of which none is a multiple of the other."""

TOKEN: Final = re.compile(
    r"(?P<iso>\d{4}-\d{2}-\d{2}(?!\w))"
    r"|(?P<time>\d{1,2}:\d{2}(?::\d{2})?(?!\w))"
    r"|(?P<number>\d{1,3}(?:[,'\u00a0]\d{3})+(?:\.\d+)?(?!\w)|\d+(?:\.\d+)*(?![\w]))"
    r"|(?P<mixed>\d+(?:\.\d+)?[^\W\d_]\w*(?:-\w+)*)"
    r"|(?P<word>[^\W\d_]\w*(?:[-/'.@+_]\w+)*)"
    r"|(?P<sign>[%€$£°,;:.!?()=\"–—])"
)

NUMBERS: Final[dict[str, float]] = {
    **{word: float(count) for word, count in COUNTS.items()},
    "dozen": 12.0,
    "hundred": 100.0,
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "once": 1.0,
    "twice": 2.0,
    "thrice": 3.0,
}
SCALES: Final = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "k": 1e3, "m": 1e6, "dozen": 12.0}
PARTS: Final = {"half": 0.5, "quarter": 0.25, "third": 1 / 3, "thirds": 1 / 3, "quarters": 0.25}

_TIME: Final = {
    "ms": 1e-3, "millisecond": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0,
    "hr": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "fortnight": 1209600.0, "month": 2629800.0,
    "year": 31557600.0, "quarter": 7889400.0, "decade": 315576000.0,
}  # fmt: skip
_UNITS: Final[dict[str, tuple[str, float]]] = {
    **{name: ("time", size) for name, size in _TIME.items()},
    **{name: ("length", size) for name, size in {
        "mm": 1e-3, "cm": 1e-2, "m": 1.0, "metre": 1.0, "meter": 1.0, "km": 1e3, "kilometre": 1e3, "kilometer": 1e3,
        "mile": 1609.344, "foot": 0.3048, "feet": 0.3048, "ft": 0.3048, "inch": 0.0254, "inche": 0.0254, "yard": 0.9144,
    }.items()},
    **{name: ("mass", size) for name, size in {
        "mg": 1e-6, "g": 1e-3, "gram": 1e-3, "kg": 1.0, "kilo": 1.0, "kilogram": 1.0, "tonne": 1e3, "ton": 1e3,
        "lb": 0.4536, "lbs": 0.4536, "ounce": 0.02835, "oz": 0.02835,
    }.items()},
    **{name: ("volume", size) for name, size in {
        "ml": 1e-3, "cl": 1e-2, "litre": 1.0, "liter": 1.0, "l": 1.0, "gallon": 3.785,
    }.items()},
    **{name: ("bytes", size) for name, size in {
        "byte": 1.0, "kb": 1e3, "kib": 1024.0, "mb": 1e6, "mib": 1048576.0, "gb": 1e9, "gib": 1073741824.0, "tb": 1e12,
        "tib": 1099511627776.0, "kilobyte": 1e3, "megabyte": 1e6, "gigabyte": 1e9, "terabyte": 1e12,
    }.items()},
    **{name: ("area", size) for name, size in {"m²": 1.0, "sqm": 1.0, "m2": 1.0, "km²": 1e6, "ft²": 0.0929}.items()},
    **dict.fromkeys(("%", "percent", "percentage", "pct"), ("percent", 1.0)),
    **dict.fromkeys(("€", "eur", "euro"), ("euro", 1.0)),
    **dict.fromkeys(("$", "usd", "dollar"), ("dollar", 1.0)),
    **dict.fromkeys(("£", "gbp", "pound"), ("pound", 1.0)),
    **dict.fromkeys(("°", "degree", "celsius", "°c"), ("degree", 1.0)),
}  # fmt: skip

BOUNDS: Final = frozenset(
    ("at_least", "at_most", "more_than", "less_than", "up_to", "no_more", "over", "under", "within", "about", "around")
)
"""Bounds of a number that have no other meaning in a statement."""
_BOUNDS: Final = {
    "at_least": 1, "least": 1, "minimum": 1, "min": 1, "more_than": 1, "over": 1, "above": 1, "exceeds": 1,
    "at_most": -1, "most": -1, "maximum": -1, "max": -1, "less_than": -1, "under": -1, "below": -1, "up_to": -1,
    "within": -1, "limit": -1, "limited": -1, "cap": -1, "capped": -1, "no_more": -1, "about": 0, "around": 0,
    "approximately": 0, "roughly": 0, "nearly": 0, "almost": 0, "circa": 0, "some": 0,
}  # fmt: skip


class Unit(StrEnum):
    """Units that are no words of a statement."""

    DATE = "date"
    WEEKDAY = "weekday"
    CLOCK = "clock"


class Quantity(NamedTuple):
    """A number of something: ``unit`` of a dimension, or the nouns it counts. Its value is from ``low`` to ``high``."""

    unit: str
    nouns: frozenset[str]
    low: float
    high: float
    bound: str = ""
    rate: str = ""
    size: float = 1.0
    """The size of the unit as it is written, of that of its dimension."""
    counts: bool = False
    """Whether ``nouns`` are what it counts, and not the words before it."""

    def is_comparable(self, other: Quantity) -> bool:
        """Return whether both count the same thing."""
        if self.unit != other.unit or self.rate != other.rate:
            return False
        if self.unit:
            return True
        if self.counts and other.counts:
            return self.nouns <= other.nouns or other.nouns <= self.nouns
        return bool(self.nouns & other.nouns)

    def excludes(self, other: Quantity) -> bool:
        """Return whether no value is in both."""
        ratio = max(self.size, other.size) / min(self.size, other.size)
        part = 1e-6 if abs(ratio - round(ratio)) < 1e-9 else _CONVERTED
        slack = part * max((abs(each) for each in (self.low, other.low) if each > -_INFINITE), default=0)
        return self.low > other.high + slack or other.low > self.high + slack


class Day(NamedTuple):
    """Days that a statement names, of a year or of any, as numbers from ``low`` to ``high``."""

    year: int | None
    low: int
    high: int

    def excludes(self, other: Day) -> bool:
        """Return whether no day is in both; unknown where only one names a day, or a month."""
        if self.year is None or other.year is None:
            if self.is_year or other.is_year:
                return False
            return self.low > other.high or other.low > self.high
        one, two = self.year * _YEAR_DAYS, other.year * _YEAR_DAYS
        return one + self.low > two + other.high or two + other.low > one + self.high

    @property
    def is_year(self) -> bool:
        """True for a whole year."""
        return self.high - self.low >= _YEAR_DAYS - 1


class Clock(NamedTuple):
    """A time of day in minutes; ``half`` if morning and evening are not told apart."""

    minutes: float
    half: bool

    def excludes(self, other: Clock) -> bool:
        """Return whether they are two times."""
        gap = abs(self.minutes - other.minutes)
        return gap % 720 != 0 if self.half or other.half else gap != 0


def date_of(year: int | None, month: int, day: int | None = None, part: str = "") -> Day | None:
    """Return a month, a day of it, or a part of it; None for a day that there is not."""
    if part and day is None:
        first, last = {
            "first": (1, 1), "last": (0, 0), "early": (1, 10), "mid": (11, 20), "late": (21, 31), "beginning": (1, 7),
            "start": (1, 7), "end": (24, 31), "week": (1, 7), "middle": (11, 20),
        }[part]  # fmt: skip
        if part == "last":
            first = last = monthrange(year or 2001, month)[1]
        return Day(year, month * 31 + first, month * 31 + last)
    if day is None:
        return Day(year, month * 31 + 1, month * 31 + 31)
    return Day(year, month * 31 + day, month * 31 + day) if 1 <= day <= 31 else None


def year_of(year: int) -> Day:
    """Return a whole year."""
    return Day(year, 31, 31 + _YEAR_DAYS)


def quarter_of(year: int | None, quarter: int, part: str = "") -> Day:
    """Return a quarter of a year, or its first or last week."""
    first = (quarter - 1) * 3 + 1
    if part in ("week", "first", "beginning", "start", "early"):
        return Day(year, first * 31 + 1, first * 31 + (31 if part == "early" else 7))
    if part in ("last", "end", "late"):
        return Day(year, (first + 2) * 31 + 1, (first + 2) * 31 + 31)
    return Day(year, first * 31 + 1, (first + 2) * 31 + 31)


def season_of(year: int | None, season: str) -> list[Day]:
    """Return the months of a season of the north, with the month in which the next one begins."""
    if season == "winter":
        return [Day(year, 12 * 31 + 1, 12 * 31 + 31), Day(year, 32, 3 * 31 + 31)]
    first = {"spring": 3, "summer": 6, "autumn": 9}[season]
    return [Day(year, first * 31 + 1, (first + 3) * 31 + 31)]


def unit_of(word: str) -> tuple[str, float] | None:
    """Return the dimension of a unit, and its size."""
    found = _UNITS.get(word)
    return found if found is not None or not word.endswith("s") else _UNITS.get(word[:-1])


def interval(value: float, bounds: list[str]) -> tuple[float, float, str]:
    """Return the values that a number stands for, with the words before it, and the word that bounds it."""
    for word in reversed(bounds):
        way = _BOUNDS.get(word)
        if way is None:
            continue
        if way > 0:
            return value, _INFINITE, word
        if way < 0:
            return -_INFINITE, value, word
        return value * (1 - _ROUGH), value * (1 + _ROUGH), word
    return value, value, ""
