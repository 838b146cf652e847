"""Alignment of two clauses: the words of both, and the signs that they are about two things, times or cases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from caliber.text.contradiction import qualifiers
from caliber.text.contradiction.quantities import Clock, Day, Quantity
from caliber.text.contradiction.reading import Reading
from caliber.text.contradiction.tokens import Clause, Term
from caliber.text.contradiction.vocabulary import LIKE, SINGLE_NAMES, TABLE, key_of

_PREFER: Final = frozenset((key_of("favourite"), "want"))
_DENIALS: Final = frozenset(TABLE[word][0] for word in ("forbidden", "rejected", "excluded", "disabled"))
_NO_TERM: Final = Term("", 0, False, "")
_INFLECTED: Final = ("s", "ed")
"""Ends of acts; adjectives have none."""
_HEAD: Final = 2
"""Content words that a clause begins with, of which one is the head of its subject: an adjective can stand before."""
_LIMITS: Final = frozenset(key_of(word) for word in ("must", "require", "limit", "allow", "need", "maximum", "minimum"))

_INFINITE: Final = float("inf")
_HARD: Final = frozenset(("limit", "limited", "cap", "capped", "maximum", "max", "at_most", "up_to", "no_more"))


class Statements:
    """Two statements that are compared, and what holds of both as wholes."""

    def __init__(self, first: Reading, second: Reading, subject: tuple[str, ...] | None) -> None:
        self.first = first
        self.second = second
        self.has_subject = subject is not None
        self.subject = frozenset(subject or ())
        self.modifiers = frozenset(subject[:-1] if subject else ())

    @property
    def choice_turned(self) -> bool:
        """True if one prefers what the other prefers something to."""
        if self.first.choice is None or self.second.choice is None:
            return False
        (more, less), (other_more, other_less) = self.first.choice, self.second.choice
        if not less and not other_less:
            return False
        ones, others = (more | less) - self.subject, (other_more | other_less) - self.subject
        if ones - others and others - ones:
            return False  # each of something of its own
        return all(
            bool((best - worse) & (other_worse - other_best)) or not other_worse
            for best, worse, other_best, other_worse in (
                (more, less, other_more, other_less),
                (other_more, other_less, more, less),
            )
        )

    @property
    def days_apart(self) -> bool:
        """True if the days that both name exclude each other."""
        return apart(self.first.whole.days, self.second.whole.days)

    @property
    def labels_apart(self) -> bool:
        """True if both name a thing of one kind by another number: "run 14" and "run 15"."""
        labels = self.second.labels
        return bool(labels) and any(labels.get(kind, number) != number for kind, number in self.first.labels.items())

    @property
    def numbers_apart(self) -> bool:
        """True if numbers of the same thing in both exclude each other."""
        return conflict(self.first.whole.quantities, self.second.whole.quantities, limits=False) is not None

    @property
    def weekdays_apart(self) -> bool:
        """True if both name days of the week, and none in common."""
        return disjoint(self.first.whole.weekdays, self.second.whole.weekdays)


class AlignedClauses:
    """Two clauses side by side: the words that both have, and those that one has."""

    def __init__(self, both: Statements, one: Clause, other: Clause, are_pieces: bool) -> None:
        self.both = both
        self.one = one
        self.other = other
        self.are_pieces = are_pieces
        left, right, subject = one.by_key, other.by_key, both.subject
        self.shared = left.keys() & right.keys()
        self.flipped = {key for key in self.shared if left[key].sign != right[key].sign}
        self.only_one = [term for key, term in left.items() if key not in right and key not in subject]
        self.only_other = [term for key, term in right.items() if key not in left and key not in subject]
        if not (one.negatable.keys().isdisjoint(right) and other.negatable.keys().isdisjoint(left)):
            self._match_affixes()
        self.flags = one.flags | other.flags
        if "preference" in one.flags & other.flags:
            self.only_one = [term for term in self.only_one if term.key not in _PREFER]
            self.only_other = [term for term in self.only_other if term.key not in _PREFER]
        in_subject = len(self.shared & subject)
        self.count = len(self.shared) - in_subject + max(both.has_subject, in_subject)
        """The content words that both have; a subject that both are stored under counts as one at least."""
        self.rest = min(len(self.only_one), len(self.only_other))

    def _match_affixes(self) -> None:
        """Match words that differ by an affix that negates: ``reversible`` and ``irreversible``."""
        for affixed, plain in ((self.one, self.other), (self.other, self.one)):
            for base, key in affixed.negatable.items():
                if base in plain.by_key and key not in plain.by_key:
                    self.shared.add(base)
                    self.flipped.add(base)
                    self.only_one = [term for term in self.only_one if term.key not in (key, base)]
                    self.only_other = [term for term in self.only_other if term.key not in (key, base)]

    @property
    def overlap(self) -> float:
        size = self.count + self.rest
        return self.count / size if size else 0.0

    def _two_subjects(self) -> bool:
        """Return whether the clauses are about two things: other heads, another kind, another full name."""
        left, right = self.one.by_key, self.other.by_key
        for flag in self.one.flags ^ self.other.flags:
            if flag.startswith("per ") or (flag.startswith("of ") and flag[3:] not in self.shared):
                return True
        for flag in self.flags:
            if flag.startswith("part:") and flag[5:] not in self.shared:
                return True
        if self.flipped and self._two_of_a_pair():
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

    def _two_of_a_pair(self) -> bool:
        """Return whether opposites tell two subjects apart: "the older daughter" and "the younger daughter"."""
        openings = [self._opening(clause) for clause in (self.one, self.other)]
        return openings[0] is not None and openings[0] == openings[1]

    def _opening(self, clause: Clause) -> tuple[str, str] | None:
        """Return the keys of an adjective that has its opposite in the other clause, and of the head behind it."""
        terms = [each for each in clause.terms if each.key not in self.both.subject][:3]
        if len(terms) < 3 or terms[0].key not in self.flipped or terms[0].folded.endswith(_INFLECTED):
            return None
        is_head = terms[1].key in self.shared - self.flipped and not terms[1].is_placed
        return (terms[0].key, terms[1].key) if is_head else None

    def _two_settings(self) -> bool:
        """Return whether each clause names another place, time or purpose: ``in the editor`` and ``on the phone``."""
        return any(term.is_placed for term in self.only_one) and any(term.is_placed for term in self.only_other)

    def _is_other_sort(self) -> bool:
        """Return whether one clause names the place of a thing, and the other its kind."""
        sides = (self.one, self.only_other, self.other), (self.other, self.only_one, self.one)
        return any(
            "located" in clause.flags and "located" not in opposite.flags and not any(term.is_placed for term in terms)
            for clause, terms, opposite in sides
        )

    def _is_attribute(self, key: str) -> bool:
        """Return whether a shared word names an attribute as it stands: a reviewer, not a review."""
        left, right = self.one.by_key.get(key), self.other.by_key.get(key)
        if left is None or right is None or (left.is_placed != right.is_placed and left.folded == right.folded):
            return False
        return any(
            SINGLE_NAMES.get(clause.by_key[key].folded) == key
            for clause in (self.one, self.other)
            if key in clause.by_key
        )

    def _denies_more(self) -> bool:
        """Return whether the clause that denies has words of its own: "not on weekends" denies a part only."""
        if self.one.negated == self.other.negated:
            return False
        own, opposite = (self.only_one, self.both.second) if self.one.negated else (self.only_other, self.both.first)
        return any(
            term.key not in LIKE and opposite.whole.by_key.get(term.key, _NO_TERM).sign != term.sign for term in own
        )

    def _is_partial(self) -> bool:
        """Return whether one clause is about some cases, and the other not about all: "not every", "some"."""
        one, other = self.one.flags, self.other.flags
        return any("partial" in a and "universal" not in b for a, b in ((one, other), (other, one)))

    def _denies_otherwise(self) -> bool:
        """Return whether a word that only one clause has denies as well: "never push" and "pushing is forbidden"."""
        return any(term.sign < 0 and term.key in _DENIALS for term in (*self.only_one, *self.only_other))

    def _is_narrower(self) -> bool:
        """Return whether the clauses share one word but for the opposites, and one has more: "the river bank"."""
        topic = self.count - len(self.flipped)
        return topic < 2 and not self.both.has_subject and max(len(self.only_one), len(self.only_other)) > 1

    def _is_possible(self) -> bool:
        """Return whether a clause is about what can be: several values can."""
        return "can" in self.flags

    def _are_limits(self) -> bool:
        """Return whether both clauses set a limit."""
        return bool(self.shared & _LIMITS) or "must" in self.one.flags & self.other.flags

    def _heads_apart(self) -> bool:
        """Return whether, without a stored subject, a clause begins with a thing that the other statement lacks."""
        if self.both.has_subject:
            return False
        return any(
            not any(term.key in statement.whole.by_key or term.key in self.shared for term in clause.terms[:_HEAD])
            for clause, statement in ((self.one, self.both.second), (self.other, self.both.first))
        )

    def _is_all(self) -> bool:
        """Return whether the clauses have the same words, and are all that the statements are made of."""
        clauses = len(self.both.first.clauses), len(self.both.second.clauses)
        return clauses == (1, 1) and not self.only_one and not self.only_other

    def _runs(self, clause: Clause, own: Sequence[Term]) -> int:
        """Return in how many places a clause has words of its own: "is" parts two, words of the subject none.

        A place, time or purpose beside another word counts as none.
        """
        runs, inside = [], False
        for at, term in enumerate(clause.terms):
            if at == clause.before_is:
                inside = False
            if term.key not in self.both.subject:
                if term in own and not inside:
                    runs.append(term.is_placed)
                inside = term in own
        return runs.count(False) or len(runs)

    def _is_default(self) -> bool:
        """Return whether one clause is about a default, and the other about one case, which may override it."""
        return "default" in self.one.flags ^ self.other.flags or (
            "default" in self.flags
            and any(term.folded.startswith("overrid") for term in (*self.one.terms, *self.other.terms))
        )

    def _two_colours(self) -> bool:
        """Return whether the clauses give one thing two colours."""
        if (
            "is" not in self.one.flags & self.other.flags
            or self.one.negated
            or self.other.negated
            or self._other_time()
        ):
            return False
        colours = [
            {term.folded for term in terms if not term.is_placed} & qualifiers.COLOURS
            for terms in (self.only_one, self.only_other)
        ]
        return len(colours[0]) == len(colours[1]) == 1 and self.rest == 1

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
        for a, b in ((one, other), (other, one)):
            if (
                ("ends" in a and "begins" in b)
                or ("were" in a and "is" in b and "is" not in a)
                or ("were done" in a and "is done" in b and "is" not in a)
            ):
                return True
        dated, undated = (self.one, self.other) if self.one.days else (self.other, self.one)
        return bool(dated.days) and not undated.days and "was" in dated.flags and "was" not in undated.flags

    def _polarity_differs(self) -> bool:
        return ((self.one.negated != self.other.negated) + len(self.flipped) + self._is_turned()) % 2 == 1

    def _is_turned(self) -> bool:
        """Return whether two comparisons name what they compare in opposite order: "A is older than B"."""
        if "than" not in self.one.flags & self.other.flags:
            return False
        left, right = list(self.one.by_key), list(self.other.by_key)
        ones = [key for key in left if key in right]
        others = [key for key in right if key in left]
        return len(ones) > 2 and ones[0] == others[-1] and ones[-1] == others[0]

    def _names_differ(self) -> bool:
        return any(term.is_name for term in self.only_one) and any(term.is_name for term in self.only_other)


def _full_names_differ(one: Sequence[Term], other: Sequence[Term], left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether both have the same first name and another last name."""
    following = {a.key: b for a, b in pairwise(one) if a.is_name and b.is_name and b.key not in right}
    return any(a.is_name and b.is_name and b.key not in left and a.key in following for a, b in pairwise(other))


def apart(ones: Sequence[Day] | Sequence[Clock], others: Sequence[Any]) -> bool:
    """Return whether both have values, and each excludes all of the other."""
    return bool(ones) and bool(others) and all(one.excludes(other) for one in ones for other in others)


def disjoint(ones: frozenset[int], others: frozenset[int]) -> bool:
    """Return whether both have members, and none in common."""
    return bool(ones) and bool(others) and not ones & others


def conflict(ones: Sequence[Quantity], others: Sequence[Quantity], limits: bool) -> tuple[Quantity, Quantity] | None:
    """Return two numbers of the same thing that exclude each other; None where any two agree."""
    found = None
    for one in ones:
        for other in others:
            if not one.is_comparable(other):
                continue
            if not one.excludes(other):
                if _differ_as_limits(one, other, limits):
                    return one, other
                return None
            found = found or (one, other)
    return found


def _differ_as_limits(one: Quantity, other: Quantity, limits: bool) -> bool:
    """Return whether both state a limit of the same kind, and not the same one."""
    upper = one.low == other.low == -_INFINITE and one.high != other.high
    lower = one.high == other.high == _INFINITE and one.low != other.low
    return (upper and one.bound in _HARD and other.bound in _HARD) or ((upper or lower) and limits)
