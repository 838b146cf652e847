"""Builder of clauses: content words, polarity, numbers, days, times and modality of a list of tokens.

English only; of a text in another language only content words and numbers are read.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

from caliber.text.contradiction import opposites as words
from caliber.text.contradiction import qualifiers
from caliber.text.contradiction.measures import SILENT, MeasureReader, plain_number, year_in
from caliber.text.contradiction.quantities import NUMBERS, PARTS, SCALES, Clock, date_of, quarter_of, unit_of
from caliber.text.contradiction.tokens import LESS, Clause, Term
from caliber.text.contradiction.vocabulary import EVENING, PLACES, SPECIAL, TABLE, negatable
from caliber.text.dates import DAYS, MONTHS

_FOLDED: Final = attrgetter("folded")
_KEY: Final = attrgetter("key")
_AMPM: Final = {"am": 0, "pm": 720, "a.m": 0, "p.m": 720}
_ORDINAL: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)$")
_SUFFIXED: Final = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)$")
_QUARTER: Final = re.compile(r"q([1-4])$")


_OFTEN: Final = frozenset(("hour", "day", "night", "week", "month", "year"))
_LIKE: Final = TABLE["like"][0]


_FLAGGED: Final = {
    "unsure": words.UNSURE,
    "past": words.PAST,
    "future": words.FUTURE,
    "except": words.EXCEPT,
    "exclusive": words.EXCLUSIVE,
    "preference": words.PREFERENCE,
    "was": ("was", "were", "had", "did"),
    "strictly": ("only", "solely", "exclusively", "nothing_else", "nowhere_else", "sole"),
    "prefers": ("prefer", "prefers", "preferred", "favourite", "favorite", "rather", "best"),
    "is": ("is", "are", "has", "have"),
    "were": ("was", "were", "had"),
}
_UNTIL: Final = frozenset(("until", "till", "through"))
_IS: Final = frozenset(("is", "are"))
_WAS: Final = frozenset(("was", "were"))
_FLAGS: Final = {
    word: tuple(name for name, members in _FLAGGED.items() if word in members)
    for word in frozenset().union(*_FLAGGED.values())
}
"""The flags that each word adds to its clause."""


class ClauseBuilder(MeasureReader):
    """Makes a clause of its tokens."""

    def build(self) -> Clause | None:
        at = 0
        piece, end = self.piece, len(self.piece)
        while at < end:
            kind, raw, folded, _ = piece[at]
            if kind != "word":
                at = self.take(at)
            elif folded in SILENT and raw == folded:
                at += 1  # as ``plain`` would: every second word is one of these
            else:
                at = self.plain(at)
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
            len(dict.fromkeys(map(_KEY, self.terms[: self.before_is]))) if self.before_is else 0,
            negatable(zip(by_key, map(_FOLDED, by_key.values()), strict=True)),
        )

    def take(self, at: int) -> int:
        """Read a token that is no word, and return the place to go on from."""
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
            return self.number(at, float(plain_number(folded)) if folded.count(".") < 2 else None)
        if token.kind == "mixed":
            return self.mixed(at)
        if token.kind == "sign":
            if folded == "=":
                self.flags.add("is")
                self.before_is = self.before_is or len(self.terms)
            return at + 1
        if token.kind == "mark":
            self.flags.add(LESS if folded == LESS else "except")
        return at + 1

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
            if self.word(at + 1) in qualifiers.UNIVERSAL:
                self.flags.add("partial")
            if folded in qualifiers.UNIVERSAL:
                self.flags.add("universal")
            self.negations += 1
            return at + 1
        if folded in SCALES and self.word(at - 1) in qualifiers.EXISTENTIAL:
            return at + 1  # "several hundred": no number
        if folded in NUMBERS and (folded != "one" or self._counts(at + 1)):
            return self.number(at, NUMBERS[folded])
        if folded == "one" and self.word(at + 1) in ("in", "of", "out_of") and self.word(at + 2):
            return self.number(at, 1.0)
        if folded in PARTS and (taken := self.part(at)):
            return taken
        if (
            folded in MONTHS
            and (len(folded) != 3 or folded == "may" or self._is_dated(at))
            and (token.text[0].isupper() or folded not in ("may", "march", "mar", "sun"))
        ):
            return self.month(at)
        singular = folded[:-1] if folded.endswith("s") and folded not in DAYS else folded
        if singular in DAYS and token.text[0].isupper():
            self.weekdays.add(DAYS[singular])
            if singular != folded:
                self.flags.add("recurring")
            return at + 1
        if (match := _QUARTER.match(folded)) is not None:
            year = year_in(self.word(at + 1))
            self.days.append(quarter_of(year, int(match[1]), self._part_before(at)))
            return at + 1 + (year is not None)
        if folded in ("weekday", "weekdays", "workday", "workdays", "weekend", "weekends"):
            self.weekdays.update((5, 6) if folded.startswith("weekend") else range(5))
            self.flags.add("recurring")
            return at + 1
        if folded in ("a", "an") and (taken := self.single(at)):
            return taken
        if folded in qualifiers.SEASONS and (
            self.word(at - 1) in ("in", "this", "next", "of") or year_in(self.word(at + 1))
        ):
            return self.season(at)
        if folded in ("noon", "midday"):
            self.clocks.append(Clock(720, half=False))
            return at + 1
        if folded == "midnight":
            self.clocks.append(Clock(0, half=False))
            return at + 1
        if folded in PLACES:
            self.monthly(at, PLACES[folded])
        if folded == "least":
            self.negations += 1  # "likes it least"
            return at + 1
        if folded == "single" and self.word(at - 1) == "a" and self.word(at + 1) not in ("", *words.LIGHT):
            self.flags.update(("strictly", "exclusive"))
            return at + 1
        if folded in qualifiers.SENTIMENTS and "finds" in self.flags:
            self.terms.append(Term(_LIKE, qualifiers.SENTIMENTS[folded], False, folded))
            self.flags.discard("finds")
            return at + 1
        if folded in ("every", "each") and self.word(at + 1) in _OFTEN:
            self.flags.add("universal")
            return self.often(self.word(at + 1), at + 2)
        if folded in qualifiers.ADVERBS and (not self.word(at + 1) or self.word(at + 1) in words.PLACED):
            return self.often(qualifiers.ADVERBS[folded], at + 1)
        if folded == "of" and len(self.terms) == 1 and self.terms[0].folded == self.word(at - 1):
            self.flags.add(f"part:{self.terms[0].key}")
        self.flags.update(_FLAGS.get(folded, ()))
        if folded in _WAS and (self._is_participle(at + 1) or self.word(at + 1) == "born"):
            self.flags.discard("were")  # an act, not a state that has ended
            self.flags.add("were done")
        elif folded in _IS and self._is_participle(at + 1):
            self.flags.add("is done")
        if folded.endswith("ed") and len(folded) > 4:
            self.flags.add("was")
        self._limit(at, folded)
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

    def _is_dated(self, at: int) -> bool:
        """Return whether a number stands beside an abbreviated month: "Jan" can be a name."""
        return any(place and place[0].isdigit() for place in (self.word(at - 1), self.word(at + 1)))

    def _limit(self, at: int, folded: str) -> None:
        """Note which cases and which time a statement is limited to."""
        following = self.word(at + 1)
        if folded in ("is", "are") and following in ("in", "at", "on"):
            self.flags.add("located")
        elif (
            folded in qualifiers.EXISTENTIAL and not following.isdigit() and (folded != "most" or following[-1:] == "s")
        ):
            self.flags.add("partial")
        elif folded in qualifiers.UNIVERSAL and self.word(at - 1) not in words.NEGATIONS:
            self.flags.add("universal")
        elif (
            (folded in ("stopped", "quit") and (following.endswith("ing") or following in qualifiers.HELD))
            or folded == "ago"
            or (folded == "as" and self.word(at + 2) in qualifiers.AGES)
        ):
            self.flags.add("past")
        elif folded in qualifiers.SCOPES or folded == "through":
            if folded in _UNTIL and self._names_time(at + 1):
                self.end()
            elif folded != "through":
                self.flags.add(qualifiers.SCOPES[folded])
        elif folded == "is":
            self.before_is = self.before_is or len(self.terms)
        elif folded == "from" and (following == "version" or following in MONTHS or following[:1].isdigit()):
            self.flags.add("begins")
        elif folded in ("can", "may", "could"):
            self.flags.add("can")
        elif folded in ("must", "requires"):
            self.flags.add("must")
        elif folded in ("find", "finds", "found", "considers"):
            self.flags.add("finds")
        elif folded in ("than", "default"):
            self.flags.add(folded)
            if following in qualifiers.PRONOUNS:
                self.flags.add("unsure")  # "younger than she is": older than whom?

    def mixed(self, at: int) -> int:
        folded = self.piece[at].folded
        if (ordinal := _ORDINAL.match(folded)) is not None:
            month_at = at + 1 + (self.word(at + 1) == "of")
            if self.word(month_at) in MONTHS:
                return self.day_of(month_at, int(ordinal[1]))
            if self.word(at + 1) == "birthday":
                return self.birthday(at, int(ordinal[1]))
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
