"""Protocols of observers: the progress callback of long operations, and the tracer that is told of every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from caliber.model.process.tracing import Facts, Span, SpanKind, TracedStore

Progress = Callable[[str, int, int | None], None]
"""Callback of a long operation: stage, amount done, and total; None if the total is unknown."""


def unheard(stage: str, done: int, total: int | None) -> None:
    """Do nothing: the caller wants no progress."""


class Tracer(Protocol):
    """Receiver of spans; it may serve several stores. Its methods are called on the threads of the calls."""

    def start(self, store: TracedStore, kind: SpanKind, name: str, facts: Facts) -> Span:
        """Begin the span of an operation; spans that begin before it ends, on its thread, are inside it."""

    def opened(self, store: TracedStore) -> None:
        """Take note of a store that was opened."""

    def closed(self, store: TracedStore) -> None:
        """Take note that it was closed."""
