"""Reader of the words and the measures of a clause: content words, numbers with units, days and times."""

from __future__ import annotations

import re
from typing import Final

from caliber.text.contradiction import opposites as words
from caliber.text.contradiction import qualifiers
from caliber.text.contradiction.quantities import (
    BOUNDS,
    NUMBERS,
    PARTS,
    SCALES,
    Clock,
    Day,
    Quantity,
    date_of,
    interval,
    season_of,
    unit_of,
    year_of,
)
from caliber.text.contradiction.tokens import Term, Token
from caliber.text.contradiction.vocabulary import BY_KEY, SPECIAL, TABLE, key_of
from caliber.text.dates import DAYS, MONTHS

_BE: Final = frozenset(
    ("is", "are", "was", "were", "be", "been", "being", "currently", "now", "still", "=", "stays", "remains", "not")
)
_AFTER_SWITCH: Final = frozenset(("", "now", "for", "at", "in", "by", "since", "during"))
_OWNERS: Final = frozenset(("my", "his", "her", "their", "our", "your"))
_PREPOSITIONS: Final = words.PLACED | {"inhabits", "after", "before", "per", "for", "during", "of", "every", "each"}
_ARTICLES: Final = frozenset(("the", "a", "an", "his", "her", "my", "their", "our"))
_DURATION: Final = frozenset(
    (
        "takes",
        "take",
        "lasts",
        "last",
        "for",
        "within",
        "in",
        "is",
        "needs",
        "get",
        "gets",
        "after",
        "=",
        "runs",
        "full",
        "whole",
    )
)
_PASSIVE: Final = frozenset(("been", "was", "were", "got", "gets", "is", "are"))
_SWITCHES: Final = frozenset(("up", "down", "on", "off"))
_UNUSUAL: Final = _SWITCHES | words.KIN | BOUNDS | {"moved"}
"""Words that are read by what stands beside them."""
SILENT: Final = frozenset(
    word
    for word in words.LIGHT - TABLE.keys() - _UNUSUAL - SPECIAL
    if not word.endswith("ed") and not (len(word) == 2 and word[0] == "q")
)
"""Words that mean nothing to a clause, whatever stands beside them."""
_CURRENCIES: Final = {"€": "euro", "$": "dollar", "£": "pound"}
_AMPM: Final = {"am": 0, "pm": 720, "a.m": 0, "p.m": 720}
_DATE_PARTS: Final = frozenset(("first", "last", "early", "mid", "late", "beginning", "start", "end", "middle", "week"))
_YEAR_AFTER: Final = frozenset(
    (
        "in",
        "since",
        "of",
        "until",
        "from",
        "by",
        "during",
        "before",
        "after",
        "year",
        "early",
        "late",
        "mid",
        "for",
        "as",
    )
)
_RATE: Final = frozenset(("per", "a", "an", "each", "every", "/"))
_ORDINAL: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)$")
_SUFFIXED: Final = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)$")
_QUARTER: Final = re.compile(r"q([1-4])$")
_RATES: Final = {
    "hourly": "hour",
    "daily": "day",
    "weekly": "week",
    "monthly": "month",
    "yearly": "year",
    "annual": "year",
}


_MOMENTS: Final = frozenset(("after", "since", "until", "from", "to", "before", "in", "of", "with", "through"))
_AGE: Final = key_of("age")
_OLDEST: Final = 130
"""Years that no person's age reaches."""
_END: Final = TABLE["end"]
_STATES: Final = frozenset(words.word_list("valid available open runs lasts continues warranty"))


class MeasureReader:
    """Reads the tokens of a clause, one thing at a time."""

    def __init__(self, piece: list[Token]) -> None:
        self.piece = piece
        self.terms: list[Term] = []
        self.negations = 0
        self.quantities: list[Quantity] = []
        self.days: list[Day] = []
        self.weekdays: set[int] = set()
        self.clocks: list[Clock] = []
        self.flags: set[str] = set()
        self.before_is = 0

    def word(self, at: int) -> str:
        """Return the folded token at a place, or an empty text."""
        return self.piece[at].folded if 0 <= at < len(self.piece) else ""

    def term(self, at: int) -> Term | None:
        """Return the content word at a place; None for a light word."""
        _, raw, folded, _ = self.piece[at]
        found = TABLE.get(folded)
        if folded in _UNUSUAL:
            if folded in BOUNDS or (
                folded in _SWITCHES and not (self.word(at - 1) in _BE and self.word(at + 1) in _AFTER_SWITCH)
            ):
                return None
            if folded in words.KIN:
                self._kin(at, folded)
            elif folded == "moved" and self.word(at - 1) in _PASSIVE:
                found = ("mov", 1)  # an appointment, not a person who lives elsewhere
        if found is None:
            is_capital = at > 0 and raw[0].isupper() and folded != "i"
            if not is_capital and (
                folded in words.LIGHT or (len(folded) == 1 and folded.isalpha() and not raw.isupper())
            ):
                return None
            key = key_of(folded)
            found = BY_KEY.get(key, (key, 1))
        before = self.piece[at - 1].folded if at else ""
        if before in words.PLACED and (self.word(at - 2) in _BE or self._is_participle(at - 2)):
            self.flags.add("placed")
        is_placed = before in _PREPOSITIONS or (before in _ARTICLES and self.word(at - 2) in _PREPOSITIONS)
        is_name = not folded.isalpha() or (
            not raw.islower()
            and (raw[1:] != raw[1:].lower() or (raw[0].isupper() and (at > 0 or self._is_capital(at + 1))))
        )
        return Term(found[0], found[1], is_name, folded, is_placed)

    def _kin(self, at: int, folded: str) -> None:
        """Note whose relative a word names: "Sara's sister", "her brother"."""
        if at > 0 and (
            self.piece[at - 1].owns
            or (at > 1 and self.piece[at - 2].owns)
            or (len(self.terms) < 2 and self.word(at - 1) in _OWNERS)
        ):
            self.flags.add(f"of {TABLE.get(folded, (key_of(folded), 1))[0]}")

    def _is_participle(self, at: int) -> bool:
        word = self.word(at)
        return (
            len(word) > 3 and word.endswith(("ed", "en", "ten", "ld", "ilt", "ade", "ent", "pt", "un"))
        ) or word in ("led", "set", "put")

    def _is_capital(self, at: int) -> bool:
        return at < len(self.piece) and self.piece[at].kind == "word" and self.piece[at].text[0].isupper()

    def _counts(self, at: int) -> bool:
        """Return whether the word at a place can be counted."""
        following = self.word(at)
        return (bool(following) and following not in words.LIGHT | words.NEGATIONS | {"of"}) or unit_of(
            following
        ) is not None

    def monthly(self, at: int, day: int) -> None:
        """Read "the 15th of each month"."""
        months = self.word(at + 1) == "of" and "month" in (self.word(at + 2), self.word(at + 3))
        ends = not self.word(at + 1) and any(token.folded == "monthly" for token in self.piece)
        if months or ends:
            self.quantities.append(Quantity("day of month", frozenset(), day, day))

    def number(self, at: int, value: float | None) -> int:
        token = self.piece[at]
        following = self.word(at + 1)
        if value is None:  # a version
            return self.version(at)
        if following in ("in", "out_of") and (whole := self._plain_number(at + 2)) is not None and value < whole:
            self.add(at, value / whole * 100, "percent", frozenset(), at + 3)
            return at + 3
        if following in _AMPM and value <= 12:
            return self.clock(at + 2, int(value % 12 * 60) + _AMPM[following], half=False)
        if following in MONTHS and value <= 31:
            return self.day_of(at + 1, int(value))
        if following == "of" and self.word(at + 2) in MONTHS and value <= 31:
            return self.day_of(at + 2, int(value))
        year = year_in(token.folded)
        if year is not None and unit_of(following) is None and (self.word(at - 1) in _YEAR_AFTER or not following):
            self.days.append(year_of(year))
            return at + 1
        if (self.word(at - 1) == "at" and value <= 24 and not self._counts(at + 1)) or following == "o'clock":
            return self.clock(at + 1, int(value * 60), half=value <= 12)
        if self._and_a_half(at + 1):
            return self.counted(at, value + 0.5, at + 4)
        if at + 1 < len(self.piece) and token.kind == self.piece[at + 1].kind == "number":
            self.terms.append(Term(f"{token.folded} {following}", 1, True, f"{token.folded} {following}"))
            return at + 2
        if following in SCALES:
            return self.counted(at, value * SCALES[following], at + 2)
        return self.counted(at, value, at + 1)

    def version(self, at: int) -> int:
        """Read a number with two points or more: the version of what stands before it, or a name."""
        folded, label = self.piece[at].folded, self.terms[-1] if self.terms else None
        before = (self.word(at - 1), self.word(at - 2))
        if label is None or folded.count(".") > 2 or any(word in _MOMENTS for word in before):
            self.terms.append(Term(folded, 1, True, folded))
            return at + 1
        parts = [float(part) for part in folded.split(".")]
        value = parts[0] * 1e8 + parts[1] * 1e4 + parts[2]
        self.quantities.append(Quantity("version", frozenset((label.key,)), value, value))
        return at + 1

    def season(self, at: int) -> int:
        """Read a season as its months."""
        year = year_in(self.word(at + 1))
        self.days.extend(season_of(year, self.word(at)))
        return at + 1 + (year is not None)

    def birthday(self, at: int, years: int) -> int:
        """Read "his 40th birthday" as an age."""
        self.add(at, years * _size_of("year"), "time", frozenset(), at + 2)
        self.terms.append(Term(_AGE, 1, False, "age"))
        return at + 2

    def _ends_at(self, at: int) -> bool:
        """Return whether only light words follow from a place on."""
        return all(token.folded in words.LIGHT for token in self.piece[at:])

    def _names_time(self, at: int) -> bool:
        """Return whether a day or a time of day stands at a place."""
        token = self.piece[at] if at < len(self.piece) else None
        return token is not None and (
            token.kind in ("iso", "time", "number") or token.folded in MONTHS.keys() | DAYS.keys()
        )

    def end(self) -> None:
        """Note that a time to come ends the state that the clause is about: "valid until 1 May"."""
        for place, term in enumerate(self.terms):
            if term.folded in _STATES:
                key, sign = (term.key, -term.sign) if term.folded == "open" else _END
                self.terms[place] = term._replace(key=key, sign=sign)
                return
        self.flags.add("ends")

    def _plain_number(self, at: int) -> float | None:
        word = self.word(at)
        return float(word) if word.isdigit() else NUMBERS.get(word)

    def _unit_behind(self, at: int) -> int:
        """Return the place of a unit of time that ends the nouns at a place ("paid vacation days"), or 0."""
        for place in range(at + 1, min(at + 3, len(self.piece))):
            if self.piece[place - 1].kind != "word" or self.word(place - 1) in words.LIGHT | words.NEGATIONS:
                return 0
            if self.word(place) in ("days", "weeks", "months", "years", "hours", "minutes", "seconds"):
                return 0 if self.word(place + 1).isalpha() and self.word(place + 1) not in words.LIGHT else place
        return 0

    def counted(self, at: int, value: float, after: int) -> int:
        """Read what a number counts: a unit, or nouns; return the place after a unit."""
        before = self.word(at - 1)
        if before in _CURRENCIES:
            self.add(at - 1, value, _CURRENCIES[before], frozenset(), after)
            return after
        following = self.word(after)
        if before in qualifiers.NUMBERED and after == at + 1 and unit_of(following) is None:
            self.terms.append(
                Term(f"{TABLE.get(before, (key_of(before), 1))[0]} {value:g}", 1, True, f"{before} {value:g}")
            )
            return after
        if following in PARTS and self.word(after + 1) == "of":
            self.add(at, value * PARTS[following] * 100, "percent", frozenset(), after + 1)
            return after + 1
        dimension = unit_of(following) if following != "second" or value != 1 else ("time", 1.0)
        if dimension is not None:
            if self._and_a_half(after + 1):
                self.add(at, (value + 0.5) * dimension[1], dimension[0], frozenset(), after + 4, dimension[1])
                return after + 4
            if dimension[0] == "degree" and "f" in (self.word(after + 1)[:1], following[:1]):
                value = (value - 32) * 5 / 9
                self.add(at, value, "degree", frozenset(), after + 2, 5 / 9)
                return after + 2
            more = after + 1 + (self.word(after + 1) == "and")
            smaller, number = unit_of(self.word(more + 1)), self._plain_number(more)
            if smaller and number is not None and smaller[0] == dimension[0] and smaller[1] < dimension[1]:
                total = value * dimension[1] + number * smaller[1]  # "3 hours 20 minutes"
                self.add(at, total, dimension[0], frozenset(), more + 2, smaller[1])
                return more + 2
            self.add(at, value * dimension[1], dimension[0], frozenset(), after + 1, dimension[1])
            if dimension[0] == "time" and self.word(after + 1) == "old":
                self.terms.append(Term(_AGE, 1, False, "age"))
                return after + 2
            return after + 1
        if (before in ("age", "aged") or self.word(at - 2) == "age") and value < _OLDEST:
            self.add(at, value * _size_of("year"), "time", frozenset(), after)
            return after
        if (
            before == "is"
            and value < _OLDEST
            and self._ends_at(after)
            and self.terms
            and all(term.is_name for term in self.terms)
        ):
            self.terms.append(Term(_AGE, 1, False, "age"))  # "Ada Roe is 41"
            self.add(at, value * _size_of("year"), "time", frozenset(), after)
            return after
        if unit_at := self._unit_behind(after):
            self.add(at, value * _size_of(self.word(unit_at)), "time", frozenset(), unit_at + 1)
            return after
        nouns: list[str] = []
        for place in range(after, min(after + 4, len(self.piece))):
            token = self.piece[place]
            if token.kind != "word" or token.folded in words.NEGATIONS:
                break
            term = self.term(place)
            if term is None:
                break
            nouns.append(term.key)
        label = self.terms[-1] if self.terms else None
        if (
            label is not None
            and self.piece[at].kind == "number"
            and label.folded == before
            and len(self.terms) <= 2
            and following
            and following not in ("for", "in", "on", "at")
            and not (nouns and _is_plural(following))
        ):
            # "Ticket 8812 is open": a name.
            self.terms.append(Term(f"{label.key} {value:g}", 1, True, f"{label.folded} {value:g}"))
            return after
        counts = bool(nouns)
        if not nouns:
            nouns = [term.key for term in self.terms[-2:]]
        if following == "of":
            self.flags.add("partial")
        if self.piece[at].text in ("once", "twice", "thrice"):
            nouns.append(key_of("time"))
        self.add(at, value, "", frozenset(nouns), after, counts=counts)
        return after

    def add(
        self,
        at: int,
        value: float,
        unit: str,
        nouns: frozenset[str],
        after: int,
        size: float = 1.0,
        *,
        counts: bool = False,
    ) -> None:
        """Add a quantity, with the bounds before it and the rate after it."""
        bounds = [self.word(place) for place in range(max(0, at - 3), at)]
        rate = ""
        for place in range(after, min(after + 2, len(self.piece))):
            if self.word(place) in _RATE:
                per = unit_of(self.word(place + 1))
                if per is not None and per[0] == "time":
                    value, rate = value / per[1], "time"
                break
        else:
            for place, token in enumerate(self.piece):
                if token.folded in _RATES and unit != "time" and place != at:
                    per = unit_of(_RATES[token.folded])
                    if per is not None and unit in ("euro", "dollar", "pound"):
                        value, rate = value / per[1], "time"
        beside = (self.word(at - 1), self.word(after), self.word(after + 1))
        if beside[0] in qualifiers.ADDED or beside[1] in qualifiers.ADDED:
            rate = "more"
        elif (
            not unit and nouns and any(self.word(place) in ("each", "apiece") for place in range(after, after + 4))
        ) or (not unit and self.word(0) in ("each", "every")):
            rate = "each"
        if rate == "each" and self.quantities and not self.quantities[-1].unit and not self.quantities[-1].rate:
            value, rate = value * self.quantities[-1].high, ""  # "two shelves with ten books each"
        low, high, bound = interval(value, bounds)
        self.quantities.append(Quantity(unit, nouns, low, high, bound, rate, size, counts))

    def part(self, at: int) -> int:
        """Read "half an hour", "half past six", "a quarter of"; return the place after it, 0 for something else."""
        share, following = PARTS[self.word(at)], self.word(at + 1)
        if following in ("past", "to") and (hour := self._hour(at + 2)) is not None:
            minutes = hour * 60 + (share if following == "past" else -share) * 60
            return self.clock(at + 3, int(minutes), half=True)
        unit_at = at + 2 if following in ("a", "an") else at + 1
        dimension = unit_of(self.word(unit_at))
        if dimension is not None and self.word(at) == "half":
            self.add(at, share * dimension[1], dimension[0], frozenset(), unit_at + 1)
            return unit_at + 1
        if following in ("of", "off", "the", "price", "all"):
            self.add(at, share * 100, "percent", frozenset(), at + 1)
            return at + 1 + (following in ("off", "of"))
        return 0

    def single(self, at: int) -> int:
        """Read "an hour", "a full day"; return the place after it, 0 for something else."""
        unit_at = at + 1 + (self.word(at + 1) in ("full", "whole", "single"))
        dimension = unit_of(self.word(unit_at))
        if dimension is None or (unit_at == at + 1 and self.word(at - 1) not in _DURATION) or dimension[0] == "pound":
            return 0
        half = self._and_a_half(unit_at + 1)
        after = unit_at + 1 + 3 * half
        self.add(at, dimension[1] * (1.5 if half else 1), dimension[0], frozenset(), after, dimension[1])
        return after

    def _and_a_half(self, at: int) -> bool:
        return self.word(at) == "and" and self.word(at + 2) == "half"

    def often(self, unit: str, after: int) -> int:
        """Read "every night" or "weekly": how often something happens."""
        rate = 1 / _size_of("day" if unit == "night" else unit)
        self.quantities.append(Quantity("", frozenset((key_of("time"),)), rate, rate, "", "time"))
        return after

    def _hour(self, at: int) -> float | None:
        word = self.word(at)
        if word in NUMBERS and NUMBERS[word] <= 12:
            return NUMBERS[word]
        return float(word) if word.isdigit() and int(word) <= 24 else None

    def clock(self, after: int, minutes: int, *, half: bool) -> int:
        following = self.word(after)
        if following in _AMPM:
            minutes, half, after = minutes % 720 + _AMPM[following], False, after + 1
        elif following == "utc" or following == "o'clock":
            after += 1
        self.clocks.append(Clock(minutes, half))
        return after

    def month(self, at: int) -> int:
        """Read a month with what follows it: a day, a year."""
        month, after = MONTHS[self.word(at)], at + 1
        following = self.piece[after] if after < len(self.piece) else None
        day = None
        if following is not None:
            ordinal = _ORDINAL.match(following.folded)
            if following.kind == "number" and following.folded.isdigit() and int(following.folded) <= 31:
                day, after = int(following.folded), after + 1
            elif ordinal is not None:
                day, after = int(ordinal[1]), after + 1
        year = year_in(self.word(after))
        found = date_of(year, month, day, "" if day is not None else self._part_before(at))
        if found is not None:
            self.days.append(found)
        return after + (year is not None)

    def day_of(self, month_at: int, day: int) -> int:
        year = year_in(self.word(month_at + 1))
        found = date_of(year, MONTHS[self.word(month_at)], day)
        if found is not None:
            self.days.append(found)
        return month_at + 1 + (year is not None)

    def _part_before(self, at: int) -> str:
        """Return which part of a month or quarter the words before it name."""
        found = [self.word(place) for place in range(max(0, at - 4), at) if self.word(place) in _DATE_PARTS]
        for term in list(self.terms)[-3:]:
            if term.folded in found:
                self.terms.remove(term)
        if not found:
            return ""
        return "week" if "week" in found and found[0] == "first" else found[0]


def _is_plural(word: str) -> bool:
    return word.endswith("s") or word in qualifiers.PLURALS


def plain_number(number: str) -> str:
    return number.replace(",", "").replace("'", "").replace("\u00a0", "")


def year_in(word: str) -> int | None:
    return int(word) if len(word) == 4 and word.isdigit() and word[:2] in ("19", "20") else None


def _size_of(unit: str) -> float:
    found = unit_of(unit)
    return 1.0 if found is None else found[1]
