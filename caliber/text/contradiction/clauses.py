"""Builder of clauses: content words, polarity, numbers, days, times and modality of a list of tokens.

English only; of a text in another language only content words and numbers are read.
"""

from __future__ import annotations

import re
from typing import Final

from caliber.text.contradiction import opposites as words
from caliber.text.contradiction.quantities import (
    BOUNDS,
    DAYS,
    MONTHS,
    NUMBERS,
    PARTS,
    SCALES,
    Clock,
    Day,
    Quantity,
    date_of,
    interval,
    quarter_of,
    unit_of,
    year_of,
)
from caliber.text.contradiction.tokens import Clause, Term, Token
from caliber.text.contradiction.vocabulary import BY_KEY, EVENING, PLACES, SPECIAL, TABLE, key_of

_BE: Final = frozenset(
    ("is", "are", "was", "were", "be", "been", "being", "currently", "now", "still", "=", "stays", "remains", "not")
)
_AFTER_SWITCH: Final = frozenset(("", "now", "for", "at", "in", "by", "since", "during"))
_OWNERS: Final = frozenset(("my", "his", "her", "their", "our", "your"))
_PREPOSITIONS: Final = words.PLACED | {"per", "for", "during", "of", "every", "each"}
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
_SWITCHES: Final = frozenset(("up", "down", "on", "off"))
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


class ClauseBuilder:
    """Makes a clause of its tokens."""

    def __init__(self, piece: list[Token]) -> None:
        self.piece = piece
        self.terms: list[Term] = []
        self.negations = 0
        self.quantities: list[Quantity] = []
        self.days: list[Day] = []
        self.weekdays: set[int] = set()
        self.clocks: list[Clock] = []
        self.flags: set[str] = set()

    def word(self, at: int) -> str:
        """Return the folded token at a place, or an empty text."""
        return self.piece[at].folded if 0 <= at < len(self.piece) else ""

    def build(self) -> Clause | None:
        at = 0
        while at < len(self.piece):
            at = self.take(at)
        if not self.terms and not self.quantities and not self.days and not self.clocks and not self.weekdays:
            return None
        by_key: dict[str, Term] = {}
        for term in self.terms:
            by_key.setdefault(term.key, term)
        return Clause(
            tuple(by_key.values()),
            self.negations % 2 == 1,
            tuple(self.quantities),
            tuple(self.days),
            frozenset(self.weekdays),
            tuple(self.clocks),
            frozenset(self.flags),
            by_key,
        )

    def take(self, at: int) -> int:
        """Read the token at a place, and return the place to go on from."""
        token = self.piece[at]
        folded = token.folded
        if token.kind == "iso":
            year, month, day = folded.split("-")
            if 1 <= int(month) <= 12 and (found := date_of(int(year), int(month), int(day))) is not None:
                self.days.append(found)
            return at + 1
        if token.kind == "time":
            hour, minute = folded.split(":")[:2]
            return self.clock(at + 1, int(hour) * 60 + int(minute), half=False)
        if token.kind == "number":
            return self.number(at, float(_plain(folded)) if folded.count(".") < 2 else None)
        if token.kind == "mixed":
            return self.mixed(at)
        if token.kind == "sign":
            if folded == "=":
                self.flags.add("is")
            return at + 1
        if token.kind == "mark":
            self.flags.add("except")
            return at + 1
        return self.plain(at)

    def plain(self, at: int) -> int:
        token = self.piece[at]
        folded = token.folded
        if folded not in SPECIAL and not (len(folded) == 2 and folded[0] == "q"):
            if len(folded) > 4 and folded.endswith("ed"):
                self.flags.add("was")
            term = self.term(at)
            if term is not None:
                self.terms.append(term)
            return at + 1
        if folded in words.NEGATIONS:
            if folded == "not" and self.word(at + 1) == "only":
                return at + 2
            self.negations += 1
            return at + 1
        if folded in NUMBERS and (folded != "one" or self._counts(at + 1)):
            return self.number(at, NUMBERS[folded])
        if folded in PARTS and (taken := self.part(at)):
            return taken
        if folded in MONTHS and (token.text[0].isupper() or folded not in ("may", "march", "mar", "sun")):
            return self.month(at)
        singular = folded[:-1] if folded.endswith("s") and folded not in DAYS else folded
        if singular in DAYS and token.text[0].isupper():
            self.weekdays.add(DAYS[singular])
            if singular != folded:
                self.flags.add("recurring")
            return at + 1
        if (match := _QUARTER.match(folded)) is not None:
            year = _year(self.word(at + 1))
            self.days.append(quarter_of(year, int(match[1]), self._part_before(at)))
            return at + 1 + (year is not None)
        if folded in ("weekday", "weekdays", "workday", "workdays", "weekend", "weekends"):
            self.weekdays.update((5, 6) if folded.startswith("weekend") else range(5))
            self.flags.add("recurring")
            return at + 1
        if folded in ("a", "an") and (taken := self.single(at)):
            return taken
        if folded in ("noon", "midday"):
            self.clocks.append(Clock(720, half=False))
            return at + 1
        if folded == "midnight":
            self.clocks.append(Clock(0, half=False))
            return at + 1
        if folded in PLACES:
            self.monthly(at, PLACES[folded])
        self._flag(folded)
        if folded == "per" and unit_of(self.word(at + 1)) is None:
            self.flags.add(f"per {self.word(at + 1)}")
        if folded in ("want", "wants", "wanted", "like") and self.word(at + 1) == "to":
            self.flags.add("wish")
        if folded in EVENING and self.clocks and self.clocks[-1].half and self.clocks[-1].minutes < 720:
            self.clocks[-1] = Clock(self.clocks[-1].minutes + 720, half=False)
            return at + 1
        term = self.term(at)
        if term is not None:
            self.terms.append(term)
        return at + 1

    def _flag(self, folded: str) -> None:
        for name, members in (
            ("unsure", words.UNSURE),
            ("past", words.PAST),
            ("future", words.FUTURE),
            ("except", words.EXCEPT),
            ("exclusive", words.EXCLUSIVE),
            ("preference", words.PREFERENCE),
        ):
            if folded in members:
                self.flags.add(name)
        if folded in ("was", "were", "had", "did") or (folded.endswith("ed") and len(folded) > 4):
            self.flags.add("was")
        if folded in ("only", "solely", "exclusively", "nothing_else", "nowhere_else", "sole"):
            self.flags.add("strictly")
        if folded in ("prefer", "prefers", "preferred", "favourite", "favorite", "rather", "best"):
            self.flags.add("prefers")
        if folded in ("is", "are"):
            self.flags.add("is")
        if folded in ("was", "were"):
            self.flags.add("were")

    def term(self, at: int) -> Term | None:
        """Return the content word at a place; None for a light word."""
        token = self.piece[at]
        folded = token.folded
        if folded in _SWITCHES and not (self.word(at - 1) in _BE and self.word(at + 1) in _AFTER_SWITCH):
            return None
        if (
            folded in words.KIN
            and at > 0
            and (self.piece[at - 1].owns or (len(self.terms) < 2 and self.word(at - 1) in _OWNERS))
        ):
            self.flags.add(f"of {key_of(folded)}")
        if folded in BOUNDS:
            return None
        raw = token.text
        found = TABLE.get(folded)
        if found is None:
            is_capital = at > 0 and raw[0].isupper() and folded != "i"
            if not is_capital and (
                folded in words.LIGHT or (len(folded) == 1 and folded.isalpha() and not raw.isupper())
            ):
                return None
            key = key_of(folded)
            found = BY_KEY.get(key, (key, 1))
        if self.word(at - 1) in words.PLACED and (self.word(at - 2) in _BE or self._is_participle(at - 2)):
            self.flags.add("placed")
        is_name = (
            raw[1:] != raw[1:].lower()
            or not folded.isalpha()
            or (raw[0].isupper() and (at > 0 or self._is_capital(at + 1)))
        )
        return Term(found[0], found[1], is_name, folded, self._is_placed(at))

    def _is_placed(self, at: int) -> bool:
        before = [self.word(place) for place in range(max(0, at - 3), at)]
        if before and before[-1] in _PREPOSITIONS:
            return True
        return len(before) > 1 and before[-2] in _PREPOSITIONS and before[-1] in _ARTICLES

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

    def mixed(self, at: int) -> int:
        folded = self.piece[at].folded
        if (ordinal := _ORDINAL.match(folded)) is not None:
            month_at = at + 1 + (self.word(at + 1) == "of")
            if self.word(month_at) in MONTHS:
                return self.day_of(month_at, int(ordinal[1]))
            self.monthly(at, int(ordinal[1]))
            return at + 1
        if (match := _SUFFIXED.match(folded)) is not None:
            value, unit = float(match[1]), match[2]
            if unit in _AMPM:
                return self.clock(at + 1, int(value % 12 * 60) + _AMPM[unit], half=False)
            if unit in ("k", "m") and self._counts(at + 1):
                return self.counted(at, value * SCALES[unit], at + 1)
            if (dimension := unit_of(unit)) is not None:
                self.add(at, value * dimension[1], dimension[0], frozenset(), at + 1)
                return at + 1
        self.terms.append(Term(folded, 1, True, folded))
        return at + 1

    def monthly(self, at: int, day: int) -> None:
        """Read "the 15th of each month"."""
        if self.word(at + 1) == "of" and "month" in (self.word(at + 2), self.word(at + 3)):
            self.quantities.append(Quantity("day of month", frozenset(), day, day))

    def number(self, at: int, value: float | None) -> int:
        token = self.piece[at]
        following = self.word(at + 1)
        if value is None:  # a version
            self.terms.append(Term(token.folded, 1, True, token.folded))
            return at + 1
        if following in _AMPM and value <= 12:
            return self.clock(at + 2, int(value % 12 * 60) + _AMPM[following], half=False)
        if following in MONTHS and value <= 31:
            return self.day_of(at + 1, int(value))
        if following == "of" and self.word(at + 2) in MONTHS and value <= 31:
            return self.day_of(at + 2, int(value))
        year = _year(token.folded)
        if year is not None and unit_of(following) is None and (self.word(at - 1) in _YEAR_AFTER or not following):
            self.days.append(year_of(year))
            return at + 1
        if self.word(at - 1) == "at" and value <= 24 and not self._counts(at + 1):
            return self.clock(at + 1, int(value * 60), half=value <= 12)
        if following in SCALES:
            return self.counted(at, value * SCALES[following], at + 2)
        return self.counted(at, value, at + 1)

    def counted(self, at: int, value: float, after: int) -> int:
        """Read what a number counts: a unit, or nouns; return the place after a unit."""
        before = self.word(at - 1)
        if before in _CURRENCIES:
            self.add(at - 1, value, _CURRENCIES[before], frozenset(), after)
            return after
        following = self.word(after)
        if following in PARTS and self.word(after + 1) == "of":
            self.add(at, value * PARTS[following] * 100, "percent", frozenset(), after + 1)
            return after + 1
        dimension = unit_of(following) if following != "second" or value != 1 else ("time", 1.0)
        if dimension is not None:
            self.add(at, value * dimension[1], dimension[0], frozenset(), after + 1)
            return after + 1
        nouns: list[str] = []
        for place in range(after, min(after + 4, len(self.piece))):
            token = self.piece[place]
            if token.kind != "word" or token.folded in words.NEGATIONS:
                break
            term = self.term(place)
            if term is None:
                break
            nouns.append(term.key)
        if not nouns:
            label = self.terms[-1] if self.terms else None
            nouns = [term.key for term in self.terms[-2:]]
            if (
                label is not None
                and label.folded == self.word(at - 1)
                and len(self.terms) <= 2
                and following
                and following not in ("for", "in", "on", "at")
            ):
                # "Ticket 8812 is open": a name.
                self.terms.append(Term(f"{label.key} {value:g}", 1, True, f"{label.folded} {value:g}"))
                return after
        if self.piece[at].text in ("once", "twice", "thrice"):
            nouns.append(key_of("time"))
        self.add(at, value, "", frozenset(nouns), after)
        return after

    def add(self, at: int, value: float, unit: str, nouns: frozenset[str], after: int) -> None:
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
        low, high, bound = interval(value, bounds)
        self.quantities.append(Quantity(unit, nouns, low, high, bound, rate))

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
        self.add(at, dimension[1], dimension[0], frozenset(), unit_at + 1)
        return unit_at + 1

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
        year = _year(self.word(after))
        found = date_of(year, month, day, "" if day is not None else self._part_before(at))
        if found is not None:
            self.days.append(found)
        return after + (year is not None)

    def day_of(self, month_at: int, day: int) -> int:
        year = _year(self.word(month_at + 1))
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


def _plain(number: str) -> str:
    return number.replace(",", "").replace("'", "").replace("\u00a0", "")


def _year(word: str) -> int | None:
    return int(word) if len(word) == 4 and word.isdigit() and word[:2] in ("19", "20") else None
