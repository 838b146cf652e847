"""Types of tracing: kinds of spans, facts of operations, the protocol of a span, the description of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from caliber.model.lazy_dataclass import dataclass

Fact = str | int | float | bool
Facts = Mapping[str, Fact]
"""Ids, counts and names of operations, by name: never the content of a record, a query or a name of a person."""


class SpanKind(StrEnum):
    """Parts of the engine that a span is about."""

    OPERATION = "operation"
    """A public call."""
    JOB = "job"
    SEARCH = "search"
    STORAGE = "storage"
    EMBEDDINGS = "embeddings"
    MODEL = "model"
    """A call of a language model, or of what stands for one."""


class Span(Protocol):
    """One operation under way."""

    def end(self, facts: Facts, error: BaseException | None) -> None:
        """End it, on the thread that began it; ``error`` is the one that it raised. It must not raise itself."""
        ...


@dataclass(frozen=True, slots=True)
class TracedStore:
    """A store that was opened: its database, a name of it without secrets, and its present figures.

    ``figures`` may be called on any thread until the store is closed, and then returns nothing.
    """

    adapter: str
    name: str
    figures: Callable[[], Mapping[str, int]]
