"""Rules for contradiction between two statements: negation, opposites, numbers, dates, values, preferences.

Clauses are compared with clauses. Two are about the same thing when they share most content words, and nothing names
another subject, another time or another case. They contradict each other if they differ in one slot: the polarity, a
number, a day, or the value of an attribute that has one. Two slots are two things. In doubt, there is no contradiction.

Source: C-260, K-085.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from caliber.model.guard.validation import Verdict, VerdictKind
from caliber.text.contradiction import opposites as words
from caliber.text.contradiction.alignment import AlignedClauses, Statements, apart, conflict, disjoint
from caliber.text.contradiction.quantities import Quantity
from caliber.text.contradiction.reading import Reading, read_statement
from caliber.text.contradiction.tokens import Clause, Term
from caliber.text.contradiction.vocabulary import LIKE, SINGLE

_SHOWN: Final = 3
"""Words of a value that a reason quotes."""
_USER: Final = frozenset(("user",))
"""The subject that statements about nothing in common can have."""
_PERSON: Final = frozenset(("user", "want"))
"""Words of a preference that are not what it is about."""
_SAME_TOPIC: Final = 0.6
"""The part of the content words of the shorter clause that both have, where polarities differ."""
_PARAPHRASED: Final = 3
"""Content words that both have, at least, where each has another word for the rest."""
_ALIKE: Final = 0.5
"""The same where numbers, days or values differ."""


def contradicts(first: str, second: str, subject: str | None = None) -> Verdict | None:
    """Return how two statements contradict each other, or None. ``subject`` is what both are stored under."""
    return compare(read_statement(first), read_statement(second), keys_of(subject) if subject else None)


def keys_of(subject: str) -> tuple[str, ...]:
    """Return the keys of the words of a subject, in their order."""
    return tuple(read_statement(subject).whole.by_key)


def compare(first: Reading, second: Reading, subject: tuple[str, ...] | None = None) -> Verdict | None:
    """Return how two statements contradict each other, as they were read, or None. ``subject`` are its keys."""
    if first.folded == second.folded:
        return None
    if first.whole.by_key.keys() & second.whole.by_key.keys() <= _USER:
        return None
    return _Comparison(first, second, subject).verdict()


class _Comparison(Statements):
    def verdict(self) -> Verdict | None:
        if self.labels_apart:
            return None
        if self.choice_turned:
            return Verdict(VerdictKind.PREFERENCE, "one prefers what the other likes less")
        for one, other, are_pieces in self._pairs():
            if one.by_key.keys() & other.by_key.keys() <= _USER:
                continue  # nothing in common: nothing to compare
            found = _Clauses(self, one, other, are_pieces).verdict()
            if found is not None:
                return found
        return None

    def _pairs(self) -> Iterator[tuple[Clause, Clause, bool]]:
        ones, others = self.first.clauses, self.second.clauses
        for one in ones:
            for other in others:
                yield one, other, True
        if len(ones) > 1:
            for other in others:
                yield self.first.whole, other, False
        if len(others) > 1:
            for one in ones:
                yield one, self.second.whole, False
        if len(ones) > 1 and len(others) > 1:
            yield self.first.whole, self.second.whole, False


class _Clauses(AlignedClauses):
    """Clauses that are judged."""

    def verdict(self) -> Verdict | None:
        if self.rest > max(1, self.count):
            return None  # no rule below finds anything in clauses that differ by so much
        own = bool(self.shared - self.both.subject)
        if self.count < 2 and not (self.shared and (self.both.has_subject or self._is_all())):
            return None
        if self.count < 2 and self.rest:
            return self._value() if "placed" in self.one.flags & self.other.flags else None
        if "unsure" in self.flags or not (own or self.shared):
            return None
        if self._two_subjects():
            return None
        if "wish" in self.one.flags ^ self.other.flags:
            return None
        if self._two_colours():
            return Verdict(VerdictKind.VALUE, "two colours of one thing")
        if self._prefer_opposites():
            return Verdict(VerdictKind.PREFERENCE, "preferences for opposites")
        if self._polarity_differs():
            found = self._negation()
            return found if found is not None or self.one.negated != self.other.negated else self._value()
        numbers = conflict(self.one.quantities, self.other.quantities, self._are_limits())
        if numbers is not None:
            return self._number(*numbers)
        found = self._date()
        if found is not None or self.both.weekdays_apart or self.both.days_apart:
            return None if self.both.numbers_apart else found
        return self._value()

    def _negation(self) -> Verdict | None:
        if not self.are_pieces or self.overlap < _SAME_TOPIC or self.rest > (self.count >= 4) or "except" in self.flags:
            return None
        if self.both.weekdays_apart or self.both.days_apart or self._other_time() or self._names_differ():
            return None
        if (
            self._heads_apart()
            or self._is_partial()
            or self._is_narrower()
            or self._denies_more()
            or self._denies_otherwise()
        ):
            return None
        if self._two_settings() or self.both.numbers_apart or apart(self.one.clocks, self.other.clocks):
            return None
        if self.flipped - LIKE and self.one.negated == self.other.negated:
            key = min(self.flipped)
            terms = self.one.by_key.get(key), self.other.by_key.get(key)
            reason = " and ".join(term.folded for term in terms if term is not None) or key
            return Verdict(VerdictKind.ANTONYM, f"opposites: {reason}")
        if self.shared & LIKE:
            if "was" in self.one.flags ^ self.other.flags:
                return None  # tastes change
            return Verdict(VerdictKind.PREFERENCE, "one likes what the other does not")
        return Verdict(VerdictKind.NEGATION, "one denies what the other states")

    def _number(self, one: Quantity, other: Quantity) -> Verdict | None:
        if self.overlap < _ALIKE or self.rest > 1 or self.both.days_apart or self.both.weekdays_apart:
            return None
        if self.rest and self.count < _PARAPHRASED:
            return None
        if self._other_time() or self._names_differ() or self._two_settings() or self._is_default():
            return None
        if (not one.unit or one.unit == "version") and any(
            term.folded in words.MANY_VALUED for term in self.one.terms if term.key in self.shared
        ):
            return None
        return Verdict(VerdictKind.NUMBER, f"numbers: {_shown(one, self.one)} and {_shown(other, self.other)}")

    def _date(self) -> Verdict | None:
        one, other = self.one, self.other
        if self.overlap < _ALIKE or self.rest > (self.count > 2) or self._names_differ():
            return None
        if apart(one.days, other.days):
            if apart(self.both.first.whole.clocks, self.both.second.whole.clocks):
                return None  # two events, each at a time of its own
            return Verdict(VerdictKind.DATE, "dates that exclude each other")
        if apart(one.clocks, other.clocks):
            if self.both.days_apart or self.both.weekdays_apart:
                return None
            return Verdict(VerdictKind.DATE, "times that exclude each other")
        if disjoint(one.weekdays, other.weekdays) and ("recurring" not in self.flags or "strictly" in self.flags):
            once = "strictly" in self.flags or (
                self.rest == 0 and ("is" in self.flags or bool(one.clocks) or bool(other.clocks))
            )
            if once and not self.both.days_apart:
                return Verdict(VerdictKind.DATE, "days of the week")
        return None

    def _value(self) -> Verdict | None:
        ones, others = _values(self.only_one), _values(self.only_other)
        if not ones or not others or self.overlap < _ALIKE or self._other_time() or min(len(ones), len(others)) > 3:
            return None
        if any(term.folded in words.COUNTRIES for term in ones) != any(
            term.folded in words.COUNTRIES for term in others
        ):
            return None  # one place may contain the other
        one, other = self.one.flags, self.other.flags
        if max(self._runs(self.one, ones), self._runs(self.other, others)) > 1:
            return None  # they differ in more than one place
        prefers = "prefers" in one & other and self.shared - LIKE - self.both.subject - _PERSON
        if prefers and min(len(ones), len(others)) == 1:
            return Verdict(VerdictKind.PREFERENCE, f"preferences: {_named(ones)} and {_named(others)}")
        if self.one.negated or self._is_possible() or self._is_default():
            return None
        named = any(term.is_name for term in ones) and any(term.is_name for term in others)
        if self._is_other_sort():
            return None
        if any(self._is_attribute(key) for key in self.shared & SINGLE - LIKE - self.both.modifiers) and (
            self.are_pieces or named
        ):
            return Verdict(VerdictKind.VALUE, f"values of one attribute: {_named(ones)} and {_named(others)}")
        strictly = "strictly" in self.flags or ("exclusive" in one and "exclusive" in other)
        placed = "placed" in one and "placed" in other and _is_one_place(ones) and _is_one_place(others)
        if strictly and placed and self.rest == 1:
            return Verdict(VerdictKind.VALUE, f"only one can hold: {_named(ones)} and {_named(others)}")
        if named and ((strictly and self.rest <= 2) or (placed and self.rest == 1)):
            return Verdict(VerdictKind.VALUE, f"only one can hold: {_named(ones)} and {_named(others)}")
        return None


def _is_one_place(terms: Sequence[Term]) -> bool:
    """Return whether one word of a few stands after a preposition."""
    return len(terms) <= 2 and sum(term.is_placed for term in terms) == 1


def _values(terms: Sequence[Term]) -> list[Term]:
    """Return the words that can be a value: not the name of an attribute, if there is another word."""
    return [term for term in terms if term.key not in SINGLE] or list(terms)


def _named(terms: Sequence[Term]) -> str:
    return " ".join(term.folded for term in terms[:_SHOWN])


def _shown(quantity: Quantity, clause: Clause) -> str:
    """Return a number with its unit, or with the words of the clause that it counts."""
    value = quantity.low if quantity.low > float("-inf") else quantity.high
    words_of = " ".join(term.folded for key, term in clause.by_key.items() if key in quantity.nouns)
    return f"{value:g} {quantity.unit or words_of}".rstrip()
