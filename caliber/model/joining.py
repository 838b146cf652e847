"""The transaction that the calls of a block join, kept in a context variable, for all that must know of it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from caliber.model.errors import InvalidValue

if TYPE_CHECKING:
    from concurrent.futures import Executor


class JoinedTransaction(Protocol):
    """A transaction that is open in this context."""

    store: Any
    ended: bool
    outer: JoinedTransaction | None
    """The transaction of another store around this one."""

    after: list[Callable[[], None]]
    """Work to be done right after the commit."""

    executor: Executor | None
    """Where asynchronous calls of it run: writers that wait for its end may have all other threads."""

    def fail(self, reason: str) -> None:
        """Have nothing of it written."""
        ...

    def run(self, work: Callable[[Any], Any]) -> Any:
        """Do the work of a call in the transaction, and return its result."""
        ...


JOINED: Final[ContextVar[JoinedTransaction | None]] = ContextVar("caliber_transaction", default=None)


def joined_in(store: object) -> JoinedTransaction | None:
    """Return the transaction of a store that calls in this context belong to, or None; it may have ended."""
    joined = JOINED.get()
    while joined is not None and joined.store is not store:
        joined = joined.outer
    return joined


def refuse_inside(what: str, store: object = None) -> None:
    """Raise InvalidValue inside a transaction of a store, or of any, for what waits for others, who wait for its end.

    Calls of providers count as that: the writers of a store would wait for a network.
    """
    joined = JOINED.get()
    while joined is not None:
        if not joined.ended and store in (None, joined.store):
            raise InvalidValue(field="transaction", reason=f"{what}: do it outside its block")
        joined = joined.outer
