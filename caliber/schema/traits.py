"""Meaning of the records of a relation, beyond the types of its columns: the traits that a ``Relation`` declares.

Each is plain data that names columns. What follows from one (a mask over resident columns, a condition of a database, a
predicate, what a policy does) is made from it elsewhere, so that no rule is written twice. Source: design, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class Text:
    """The texts of a record: the columns whose words are searched, and the one whose vectors are kept.

    ``head`` stands before both: what the record is about, or who says it; records are found by that name.
    ``tokens`` counts a text that may be missing: only a record that has one can be found.
    """

    searched: tuple[str, ...]
    embedded: str | None = None
    head: str | None = None
    tokens: str | None = None

    @property
    def embedded_columns(self) -> tuple[str, ...]:
        """The columns that vectors are made of; none where no vectors are kept."""
        return () if self.embedded is None else tuple(name for name in (self.head, self.embedded) if name is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is named."""
        named = (*self.searched, self.embedded, self.head, self.tokens)
        return tuple(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Dates:
    """The instant of what a record tells: the first of ``happened`` that has a value.

    ``entered`` is the instant since when it can be found.
    """

    happened: tuple[str, ...]
    entered: str


AS_SAID: Final = Dates(("occurred_at", "created_at"), "created_at")
"""As its writer says; of what nobody says, when it was written."""


@dataclass(frozen=True, slots=True)
class Valid:
    """The time in which a record holds: from ``since`` on, until before ``until``; no value is no bound.

    ``as_of``: it is valid time, so that a read may ask about another instant than now.
    """

    since: str | None = None
    until: str | None = None
    as_of: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of instants at which a record begins or ceases to hold."""
        return tuple(name for name in (self.since, self.until) if name is not None)


class Pruned(StrEnum):
    """The end that retention and policies make of a record whose time is over."""

    DELETED = "deleted"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Ends:
    """The ways in which a record is taken out of use.

    ``archive`` is the column that says since when it is not in use, ``supersede`` that of the id of what replaced it;
    ``pruned`` is what retention does: what it archives it takes once, what it deletes it takes in use or not.
    """

    pruned: Pruned
    archive: str | None = None
    supersede: str | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The references to a record that no foreign key declares: ``edges`` that end at it, counted ``uses`` of it."""

    edges: bool = True
    uses: bool = True


@dataclass(frozen=True, slots=True)
class Counted:
    """A ``column`` that numbers the records of an ``owner``, found by ``key``.

    The owner's ``counter`` has the next number, its ``total`` how many records there are.
    """

    column: str
    owner: str
    key: str
    counter: str
    total: str


@dataclass(frozen=True, slots=True)
class Block:
    """The records of ``relation`` that a record sums up: it goes when one of them goes, or says something else.

    They are of one owner, ``by``, and have a ``number`` from ``first`` to ``last``.
    """

    relation: str
    by: str
    number: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Trust:
    """The ``column`` of the label that says where a record's content came from.

    ``least_of`` is a relation whose records refer to these: no record is trusted more than one that refers to it.
    """

    column: str
    least_of: str | None = None


class Exported(StrEnum):
    """Whether ``caliber export`` writes the records unasked, or when it is asked for them; both can be loaded."""

    RECORDS = "records"
    ON_REQUEST = "on request"
