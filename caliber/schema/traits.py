"""What a record of a relation means, beyond the types of its columns: the traits that a ``Relation`` declares.

Each is plain data that names columns. What follows from one (a mask over resident columns, a condition of a database, a
predicate, what a policy does) is made from it elsewhere, so that no rule is written twice. Source: design, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Valid:
    """When a record holds: from ``since`` on, until before ``until``; a column without a value is no bound.

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
    """What retention and policies make of a record whose time is over."""

    DELETED = "deleted"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Ends:
    """How a record is taken out of use.

    ``archive`` is the column that says since when it is not in use, ``supersede`` that of the id of what replaced it;
    ``pruned`` is what retention does: what it archives it takes once, what it deletes it takes in use or not.
    """

    pruned: Pruned
    archive: str | None = None
    supersede: str | None = None
