"""Protocol of a statement session, which runs plans in one transaction; and a counter of statements by thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, Protocol

from caliber.model.errors import Unavailable
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan

GRACE_S: Final = 1.0
"""The time after the deadline of a call that work under way may still take to end: an answer on its way, a
COMMIT whose outcome is asked for, a lock that is about to be free. After that whoever is waited for counts as gone."""


class StatementSession(Protocol):
    """One connection inside one transaction."""

    def run(self, plan: Plan, parameters: Sequence[Any]) -> list[Row]:
        """Run a plan and return all its rows."""
        ...

    def run_all(self, asked: Sequence[tuple[Plan, Sequence[Any]]]) -> list[list[Row]]:
        """Run plans one after the other and return the rows of each; a server gets all of them in one go."""
        ...

    def run_many(self, plan: Plan, parameters: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a plan once for each of several parameters, and return the rows of all."""
        ...

    def insert(self, plan: Plan, row: Row) -> list[Row]:
        """Run a plan that inserts one row and return the row's ordinal, where it has one.

        A session may send it later, with the next statement: an error then appears there, or at the commit.
        """
        ...

    def changed(self, plan: Plan, parameters: Sequence[Any]) -> int:
        """Run a plan and return how many rows it changed."""
        ...


class Counter:
    """Statements run, by thread."""

    def __init__(self) -> None:
        self.by_thread = defaultdict[int, int](int)

    def add(self) -> None:
        self.by_thread[threading.get_ident()] += 1

    def here(self) -> int:
        return self.by_thread.get(threading.get_ident(), 0)


def store_closed() -> Unavailable:
    """Return the error of a call on a store that was closed."""
    return Unavailable("the store is closed; open it again", reason="closed", retryable=False)
