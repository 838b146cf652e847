"""Pipelined units of work: generators that yield several statements at once, to save network round trips.

A unit of work may be a generator. It yields the statements of a step and is sent their rows, so that a database over a
network answers a step in one round trip, and the steps of writers that share a transaction in one for all of them.
Every other operation of a unit of work is a plain call. Source: design, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, TypeVar, cast

from caliber.storage.compile.codec import Row
from caliber.storage.write.unit_of_work import Query, UnitOfWork

T = TypeVar("T")


Pipelined = Generator[tuple[Query, ...], list[list[Row]], T]


def pipelined(work: Callable[[UnitOfWork], Pipelined[T]]) -> Callable[[UnitOfWork], T]:
    """Type a generator as a plain unit of work; the writer drives it to its result."""
    return cast("Callable[[UnitOfWork], T]", work)


def started(outcome: Any) -> Pipelined[Any] | None:
    """Return the steps that work turned out to consist of, or None when ``outcome`` is its result."""
    return outcome if isinstance(outcome, GeneratorType) else None


def finish(uow: UnitOfWork, outcome: Any) -> Any:
    """Go through the steps of one piece of work, if it has any; return its result."""
    steps = started(outcome)
    if steps is None:
        return outcome
    try:
        asked = next(steps)
        while True:
            asked = steps.send(uow.run_batch(asked))
    except StopIteration as end:
        return end.value
