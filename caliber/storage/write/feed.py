"""Protocol of the change feed, by which resident memory follows the commits of other processes.

Each backend has its own way (design, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from caliber.model.lazy_dataclass import dataclass
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change records that were not known yet, oldest first, and the position once they are applied."""

    sequence: int
    records: tuple[bytes, ...]


class Feed(Protocol):
    """The change records of one store, as its one follower reads them."""

    ordered: bool
    """Whether records are committed in the order of their numbers, so that all up to one stay what they are."""

    def bound(self, session: StatementSession) -> int:
        """Return the position of ``session``; changes after it are new."""
        ...

    def since(self, session: StatementSession, sequence: int) -> ChangeBatch | None:
        """Return the changes that ``session`` sees since the last boundary, or None when the feed lost them."""
        ...

    def covers(self, sequence: int) -> bool:
        """Return whether a commit of this process was already covered by the followed position."""
        ...


class SequenceFeed:
    """A feed whose records are numbered in the order of commits, without gaps."""

    ordered = True

    def __init__(self, statements: dict[str, Plan]) -> None:
        self._statements = statements
        self._followed = 0

    def bound(self, session: StatementSession) -> int:
        self._followed = session.run(self._statements["change.bounds"], ())[0][1]
        return self._followed

    def since(self, session: StatementSession, sequence: int) -> ChangeBatch | None:
        records: Sequence[tuple[int, bytes, bytes]] = session.run(self._statements["change.since"], (sequence,))
        if not records:
            return ChangeBatch(sequence, ())
        if records[0][0] != sequence + 1:
            return None
        self._followed = records[-1][0]
        return ChangeBatch(self._followed, tuple(entries for _, _, entries in records))

    def covers(self, sequence: int) -> bool:
        return sequence <= self._followed
