"""Tracer that records a share of the operations of a store in its event log, with their durations.

The rows are written behind, and never waited for. Source: C §7.1, K-193; docs/observability.md.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Any

from caliber.engine.engine import Engine
from caliber.model.errors import CaliberError
from caliber.model.events import EventFamily, EventType
from caliber.model.process.tracing import Facts, Span, SpanKind, TracedStore

_TASK_FACTS = ("trajectory_id", "scope_id")
_RECORDED = (SpanKind.OPERATION, SpanKind.JOB)


class OperationLog:
    """Records public calls and jobs; parts of them, such as storage, are in their durations."""

    def __init__(self, engine: Engine, ratio: float) -> None:
        self._engine = engine
        self._ratio = ratio

    def start(self, store: TracedStore, kind: SpanKind, name: str, facts: Facts) -> Span:  # noqa: ARG002
        """Begin the span of an operation, if it is one of those to be recorded."""
        if kind not in _RECORDED or (self._ratio < 1 and random.random() >= self._ratio):  # noqa: S311  (no secret)
            return NOT_RECORDED
        return _Recorded(self._engine, kind, name, facts, self._ratio)

    def opened(self, store: TracedStore) -> None:
        """Nothing: the log is of the one store."""

    def closed(self, store: TracedStore) -> None:
        """Nothing."""


class _NotRecorded:
    def end(self, facts: Facts, error: BaseException | None) -> None:
        """Nothing."""


NOT_RECORDED = _NotRecorded()


class _Recorded:
    __slots__ = ("_begun_ns", "_engine", "_erased", "_facts", "_kind", "_name", "_ratio")

    def __init__(self, engine: Engine, kind: SpanKind, name: str, facts: Facts, ratio: float) -> None:
        self._engine, self._kind, self._name, self._facts, self._ratio = engine, kind, name, facts, ratio
        self._erased = engine.memory.erasures
        self._begun_ns = time.perf_counter_ns()

    def end(self, facts: Facts, error: BaseException | None) -> None:
        engine, took_us = self._engine, (time.perf_counter_ns() - self._begun_ns) // 1_000
        if engine.state != "open":
            return
        known: dict[str, Any] = {**self._facts, **facts}
        ids = {name: uuid.UUID(key) if (key := known.pop(name, None)) else None for name in _TASK_FACTS}
        payload = {"operation": self._name, "kind": self._kind.value, "duration_us": took_us, "share": self._ratio}
        if error is not None:
            payload["error"] = error.kind if isinstance(error, CaliberError) else type(error).__name__
        try:
            at_us = engine.clock.now_us()
        except CaliberError:
            engine.unrecorded_errors += 1
            return

        def build() -> Any:
            return engine.event(
                EventType.OPERATION,
                family=EventFamily.ACTIVITY,
                trajectory_id=ids["trajectory_id"],
                scope_id=ids["scope_id"],
                payload=payload | known,
                duration_ms=took_us // 1_000,
                at_us=at_us,
            )

        engine.record((self._erased, build))
