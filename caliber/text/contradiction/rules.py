"""Rules for contradiction between two statements: negation, opposites, numbers, dates, values, preferences.

Clauses are compared with clauses. Two are about the same thing when they share most content words, and nothing names
another subject, another time or another kind; then one difference makes a contradiction: the polarity, a number, a day,
or the value of an attribute that has one. In doubt, statements do not contradict each other.

Source: C-260, K-085.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from caliber.model.guard.validation import Verdict, VerdictKind
from caliber.text.contradiction import opposites as words
from caliber.text.contradiction.quantities import Clock, Day, Quantity
from caliber.text.contradiction.reading import Reading, read_statement
from caliber.text.contradiction.tokens import Clause, Term
from caliber.text.contradiction.vocabulary import LIKE, SINGLE, key_of

_SAME_TOPIC: Final = 0.6
"""The part of the content words of the shorter clause that both have, where polarities differ."""
_ALIKE: Final = 0.5
"""The same where numbers, days or values differ."""
_PREFIXES: Final = ("un", "in", "im", "ir", "il", "non", "dis", "non-", "de", "a")
_INFINITE: Final = float("inf")
_HARD: Final = frozenset(("limit", "limited", "cap", "capped", "maximum", "max", "at_most", "up_to", "no_more"))
_PREFER: Final = frozenset((key_of("favourite"), "want"))
_LIMITS: Final = frozenset(key_of(word) for word in ("must", "require", "limit", "allow", "need", "maximum", "minimum"))


def contradicts(first: str, second: str, subject: str | None = None) -> Verdict | None:
    """Return how two statements contradict each other, or None. ``subject`` is what both are stored under."""
    return compare(read_statement(first), read_statement(second), keys_of(subject) if subject else None)


def keys_of(subject: str) -> frozenset[str]:
    """Return the keys of the words of a subject."""
    return frozenset(read_statement(subject).whole.by_key)


def compare(first: Reading, second: Reading, subject: frozenset[str] | None = None) -> Verdict | None:
    """Return how two statements contradict each other, as they were read, or None. ``subject`` are its keys."""
    if first.folded == second.folded:
        return None
    if subject is None and not (first.whole.by_key.keys() & second.whole.by_key.keys()):
        return None
    return _Comparison(first, second, subject).verdict()


class _Comparison:
    def __init__(self, first: Reading, second: Reading, subject: frozenset[str] | None) -> None:
        self.first = first
        self.second = second
        self.has_subject = subject is not None
        self.subject: frozenset[str] = subject or frozenset()
        self.days_apart = _apart(first.whole.days, second.whole.days)
        self.weekdays_apart = _disjoint(first.whole.weekdays, second.whole.weekdays)

    def verdict(self) -> Verdict | None:
        for one, other, are_pieces in self._pairs():
            if not one.by_key.keys() & other.by_key.keys():
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


class _Clauses:
    """Two clauses side by side: the words that both have, and those that one has."""

    def __init__(self, both: _Comparison, one: Clause, other: Clause, are_pieces: bool) -> None:
        self.both = both
        self.one = one
        self.other = other
        self.are_pieces = are_pieces
        left, right, subject = one.by_key, other.by_key, both.subject
        self.shared = {key for key in left if key in right}
        self.flipped = {key for key in self.shared if left[key].sign != right[key].sign}
        self.only_one = [term for key, term in left.items() if key not in right and key not in subject]
        self.only_other = [term for key, term in right.items() if key not in left and key not in subject]
        self._match_prefixes()
        self.flags = one.flags | other.flags
        if "preference" in one.flags & other.flags:
            self.only_one = [term for term in self.only_one if term.key not in _PREFER]
            self.only_other = [term for term in self.only_other if term.key not in _PREFER]

    def _match_prefixes(self) -> None:
        """Match words that differ by a prefix that negates: ``reversible`` and ``irreversible``."""
        for term in list(self.only_one):
            for candidate in self.only_other:
                short, long = sorted((term.key, candidate.key), key=len)
                stem, _, end = short.rpartition("-")
                if stem and long.startswith(stem + "-"):
                    short, long = end, long[len(stem) + 1 :]
                if len(short) > 3 and long.endswith(short) and long[: -len(short)] in _PREFIXES:
                    self.only_one.remove(term)
                    self.only_other.remove(candidate)
                    self.shared.add(short)
                    self.flipped.add(short)
                    break

    @property
    def count(self) -> int:
        """The content words that both have; a subject that both are stored under counts as one at least."""
        return len(self.shared - self.both.subject) + max(self.both.has_subject, len(self.shared & self.both.subject))

    @property
    def overlap(self) -> float:
        size = self.count + min(len(self.only_one), len(self.only_other))
        return self.count / size if size else 0.0

    @property
    def rest(self) -> int:
        return min(len(self.only_one), len(self.only_other))

    def verdict(self) -> Verdict | None:
        own = bool(self.shared - self.both.subject)
        same = not self.only_one and not self.only_other
        if self.count < 2 and not (self.shared and (self.both.has_subject or same)):
            return None
        if self.count < 2 and self.rest:
            return self._value() if "placed" in self.one.flags & self.other.flags and not self._two_kinds() else None
        if "unsure" in self.flags or not (own or self.shared):
            return None
        if self._two_subjects():
            return None
        if "wish" in self.one.flags ^ self.other.flags:
            return None
        if self._prefer_opposites():
            return Verdict(VerdictKind.PREFERENCE, "preferences for opposites")
        if self._polarity_differs():
            return None if self._two_kinds() else self._negation()
        if self._two_kinds():
            return self._value() if len(self.only_one) == len(self.only_other) == 1 else None
        apart = self.both.weekdays_apart
        numbers = _conflict(self.one.quantities, self.other.quantities, self.shared)
        if numbers is not None:
            return self._number(*numbers)
        found = self._date()
        if found is not None or apart or self.both.days_apart:
            return found
        return self._value()

    # --- vetoes ----------------------------------------------------------------------------------

    def _two_subjects(self) -> bool:
        """Return whether the clauses are about two things: other heads, another kind, another full name."""
        left, right = self.one.by_key, self.other.by_key
        owned = {flag.removeprefix("of ") for flag in self.one.flags ^ self.other.flags if flag.startswith("of ")}
        if owned - self.shared:
            return True
        per = [{flag for flag in clause.flags if flag.startswith("per ")} for clause in (self.one, self.other)]
        if all(per) and not per[0] & per[1]:
            return True
        if self.only_one and self.only_other:
            one, other = self.one.terms, self.other.terms
            heads = one[0], other[0]
            if not {term.key for term in heads} & self.both.subject:
                everywhere = self.both.first.whole.by_key, self.both.second.whole.by_key
                lone = heads[0] in self.only_one and heads[0].key not in everywhere[1]
                if lone and heads[1] in self.only_other and heads[1].key not in everywhere[0]:
                    return not (self.one.flags & self.other.flags & {"prefers"})
            if _full_names_differ(one, other, left, right):
                return True
        return False

    def _two_kinds(self) -> bool:
        """Return whether each clause names another thing of one kind: ``staging`` and ``production``."""
        ones, others = {term.folded for term in self.only_one}, {term.folded for term in self.only_other}
        return any(ones & row and others & row for row in words.CONTRASTS)

    def _two_settings(self) -> bool:
        """Return whether each clause names another place, time or purpose: ``in the editor`` and ``on the phone``."""
        return any(term.is_placed for term in self.only_one) and any(term.is_placed for term in self.only_other)

    def _is_exception(self) -> bool:
        """Return whether the clause that denies is about a part of what the other states: "not on weekends"."""
        sides = (self.one, self.other, self.only_one), (self.other, self.one, self.only_other)
        for clause, opposite, own in sides:
            if clause.negated and not opposite.negated:
                return bool(clause.weekdays and not opposite.weekdays) or any(term.is_placed for term in own)
        return False

    def _prefer_opposites(self) -> bool:
        """Return whether each clause prefers the opposite of what the other prefers."""
        both = self.one.flags & self.other.flags
        return (
            "preference" in both
            and bool(self.flipped - LIKE)
            and self.one.negated == self.other.negated
            and self.rest <= 1
            and not self._two_settings()
        )

    def _other_time(self) -> bool:
        """Return whether one clause is about another time than the other."""
        one, other = self.one.flags, self.other.flags
        if (one ^ other) & {"past", "future"}:
            return True
        if any("were" in a and "is" in b and "is" not in a for a, b in ((one, other), (other, one))):
            return True
        dated, undated = (self.one, self.other) if self.one.days else (self.other, self.one)
        return bool(dated.days) and not undated.days and "was" in dated.flags and "was" not in undated.flags

    def _polarity_differs(self) -> bool:
        return (self.one.negated != self.other.negated) != (len(self.flipped) % 2 == 1)

    def _names_differ(self) -> bool:
        return any(term.is_name for term in self.only_one) and any(term.is_name for term in self.only_other)

    # --- verdicts --------------------------------------------------------------------------------

    def _negation(self) -> Verdict | None:
        if not self.are_pieces or self.overlap < _SAME_TOPIC or self.rest > (self.count >= 4) or "except" in self.flags:
            return None
        if self.both.weekdays_apart or self.both.days_apart or self._other_time() or self._names_differ():
            return None
        if (
            self._is_exception()
            or self._two_settings()
            or _conflict(self.one.quantities, self.other.quantities, self.shared) is not None
        ):
            return None
        if _apart(self.one.clocks, self.other.clocks):
            return None
        if self.flipped - LIKE and self.one.negated == self.other.negated:
            key = min(self.flipped)
            terms = self.one.by_key.get(key), self.other.by_key.get(key)
            reason = " and ".join(term.folded for term in terms if term is not None) or key
            return Verdict(VerdictKind.ANTONYM, f"opposites: {reason}")
        if self.shared & LIKE:
            return Verdict(VerdictKind.PREFERENCE, "one likes what the other does not")
        return Verdict(VerdictKind.NEGATION, "one denies what the other states")

    def _number(self, one: Quantity, other: Quantity) -> Verdict | None:
        if self.overlap < _ALIKE or self.rest > 2 or self.both.days_apart or self.both.weekdays_apart:
            return None
        if self._other_time() or self._names_differ() or self._two_settings():
            return None
        if not one.unit and any(term.folded in words.MANY_VALUED for term in self.one.terms if term.key in self.shared):
            return None
        return Verdict(VerdictKind.NUMBER, f"numbers: {_shown(one)} and {_shown(other)}")

    def _date(self) -> Verdict | None:
        one, other = self.one, self.other
        if self.overlap < _ALIKE or self.rest > 1 or self._names_differ():
            return None
        if _apart(one.days, other.days):
            return Verdict(VerdictKind.DATE, "dates that exclude each other")
        if _apart(one.clocks, other.clocks):
            if self.both.days_apart or self.both.weekdays_apart:
                return None
            return Verdict(VerdictKind.DATE, "times that exclude each other")
        if _disjoint(one.weekdays, other.weekdays) and "recurring" not in self.flags:
            once = self.rest == 0 and ("is" in self.flags or bool(one.clocks) or bool(other.clocks))
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
        shown = f"{' '.join(term.folded for term in ones[:3])} and {' '.join(term.folded for term in others[:3])}"
        one, other = self.one.flags, self.other.flags
        topic = self.shared - LIKE - self.both.subject - {"want"}
        prefers = one & other & {"prefers"} or (
            topic and {"preference"} <= one & other and {"prefers", "exclusive"} & (one | other)
        )
        if prefers and min(len(ones), len(others)) == 1:
            return Verdict(VerdictKind.PREFERENCE, f"preferences: {shown}")
        if self.one.negated:
            return None
        if self.shared & SINGLE:
            return Verdict(VerdictKind.VALUE, f"values of one attribute: {shown}")
        named = any(term.is_name for term in ones) and any(term.is_name for term in others)
        strictly = "strictly" in self.flags or ("exclusive" in one and "exclusive" in other)
        placed = "placed" in one and "placed" in other and _is_one_place(ones) and _is_one_place(others)
        if named and ((strictly and self.rest <= 2) or placed):
            return Verdict(VerdictKind.VALUE, f"only one can hold: {shown}")
        return None


def _is_one_place(terms: Sequence[Term]) -> bool:
    """Return whether one word of a few stands after a preposition."""
    return len(terms) <= 2 and sum(term.is_placed for term in terms) == 1


def _values(terms: Sequence[Term]) -> list[Term]:
    """Return the words that can be a value: not the name of an attribute, if there is another word."""
    return [term for term in terms if term.key not in SINGLE] or list(terms)


def _full_names_differ(one: Sequence[Term], other: Sequence[Term], left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether both have the same first name and another last name."""
    following = {a.key: b for a, b in pairwise(one) if a.is_name and b.is_name and b.key not in right}
    return any(a.is_name and b.is_name and b.key not in left and a.key in following for a, b in pairwise(other))


def _conflict(
    ones: Sequence[Quantity], others: Sequence[Quantity], shared: set[str]
) -> tuple[Quantity, Quantity] | None:
    """Return two numbers of the same thing that exclude each other; None where any two agree."""
    found = None
    for one in ones:
        for other in others:
            if not one.is_comparable(other):
                continue
            if not one.excludes(other):
                if _differ_as_limits(one, other, shared):
                    return one, other
                return None
            found = found or (one, other)
    return found


def _differ_as_limits(one: Quantity, other: Quantity, shared: set[str]) -> bool:
    """Return whether both state a limit of the same kind, and not the same one."""
    upper = one.low == other.low == -_INFINITE and one.high != other.high
    lower = one.high == other.high == _INFINITE and one.low != other.low
    return (upper and one.bound in _HARD and other.bound in _HARD) or ((upper or lower) and bool(shared & _LIMITS))


def _apart(ones: Sequence[Day] | Sequence[Clock], others: Sequence[Any]) -> bool:
    """Return whether both have values, and each excludes all of the other."""
    return bool(ones) and bool(others) and all(one.excludes(other) for one in ones for other in others)


def _disjoint(ones: frozenset[int], others: frozenset[int]) -> bool:
    return bool(ones) and bool(others) and not ones & others


def _shown(quantity: Quantity) -> str:
    value = quantity.low if quantity.low > float("-inf") else quantity.high
    return f"{value:g} {quantity.unit or ' '.join(sorted(quantity.nouns))}".rstrip()
