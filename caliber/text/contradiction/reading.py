"""Reading of a statement: its clauses, and all of it as one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from caliber.text.contradiction.clauses import ClauseBuilder
from caliber.text.contradiction.tokens import LESS, Clause, Term, pieces_of, tokens_of
from caliber.text.contradiction.vocabulary import LIKE, negatable

_FOLDED: Final = attrgetter("folded")
_MAX_CHARS: Final = 2_000
_MAX_CLAUSES: Final = 12


class Reading(NamedTuple):
    """A statement as it is compared: its clauses, and all of it as one."""

    folded: str
    clauses: tuple[Clause, ...]
    whole: Clause
    choice: tuple[frozenset[str], frozenset[str]] | None
    """The keys of a thing that is preferred, and of the thing that it is preferred to, which can be missing."""
    labels: dict[str, str]
    """The number of each kind of thing that one is called by: "run 14"."""


def read_statement(text: str) -> Reading:
    """Return a statement as it is compared."""
    tokens = tokens_of(text[:_MAX_CHARS])
    pieces = pieces_of(tokens)
    # Lists, not generators: these lines run for every statement of a window.
    clauses = tuple([clause for piece in pieces[:_MAX_CLAUSES] if (clause := ClauseBuilder(piece).build()) is not None])
    folded = " ".join([token.folded for token in tokens if token.kind != "sign"])
    whole = _united(clauses)
    labels = {}
    for key in whole.by_key:
        if " " in key and key[0].isalpha():
            kind, _, number = key.rpartition(" ")
            labels[kind] = number
    return Reading(folded, clauses, whole, _choice(clauses), labels)


def _choice(clauses: Sequence[Clause]) -> tuple[frozenset[str], frozenset[str]] | None:
    for at, clause in enumerate(clauses):
        following = clauses[at + 1] if at + 1 < len(clauses) else None
        less = frozenset(following.by_key) if following is not None and LESS in following.flags else None
        if less or ("prefers" in clause.flags and not clause.negated and "unsure" not in clause.flags):
            return frozenset(clause.by_key) - LIKE, less or frozenset()
    return None


def _united(clauses: Sequence[Clause]) -> Clause:
    if len(clauses) == 1:
        return clauses[0]
    by_key: dict[str, Term] = {}
    for clause in clauses:
        for term in clause.terms:
            by_key.setdefault(term.key, term)
    return Clause(
        tuple(by_key.values()),
        bool(clauses) and clauses[0].negated,
        tuple(each for clause in clauses for each in clause.quantities),
        tuple(each for clause in clauses for each in clause.days),
        frozenset[int]().union(*(clause.weekdays for clause in clauses)),
        tuple(each for clause in clauses for each in clause.clocks),
        frozenset(flag for clause in clauses for flag in clause.flags if not flag.startswith("part:")),
        by_key,
        0,
        negatable(zip(by_key, map(_FOLDED, by_key.values()), strict=True)),
    )
