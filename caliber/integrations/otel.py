"""OpenTelemetry: spans and metrics of the operations of stores, by the conventions for databases and generative AI.

The conventions are those of version 1.41: stable for databases, in development for generative AI. Attributes hold ids,
counts and states: never a query, the content of a record, or the message of an error, which the conventions make a
matter of opting in. Source: docs/observability.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from caliber.model.errors import ExtraNotInstalled
from caliber.model.process.tracing import Fact, Facts, Span, SpanKind, TracedStore

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import SpanKind as OtelKind
    from opentelemetry.trace import Status, StatusCode, TracerProvider
except ImportError as error:
    raise ExtraNotInstalled(feature="caliber.integrations.otel", extra="otel") from error

SCOPE: Final = "caliber"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"

_SYSTEMS: Final = {"postgres": "postgresql", "cockroachdb": "cockroachdb", "sqlite": "sqlite"}
"""Values of ``db.system.name`` for adapters."""
_MEMORY_OPERATIONS: Final = {
    "search": "search_memory",
    "search_many": "search_memory",
    "assemble_context": "search_memory",
    "get": "search_memory",
    "append_turn": "create_memory",
    "append_turns": "create_memory",
    "create_artifact": "create_memory",
    "add_note": "create_memory",
    "remember": "upsert_memory",
    "consolidate_notes": "upsert_memory",
    "update_note": "update_memory",
    "supersede_note": "update_memory",
    "end_note": "update_memory",
    "undo_note": "update_memory",
    "delete_note": "delete_memory",
    "forget": "delete_memory",
}
"""Values of ``gen_ai.operation.name`` for public calls that read or write records of memory."""
_NAMES: Final = {
    "trajectory_id": "gen_ai.conversation.id",
    "record_id": "gen_ai.memory.record.id",
    "record_count": "gen_ai.memory.record.count",
    "model": "gen_ai.request.model",
    "provider": "gen_ai.provider.name",
    "dimensions": "gen_ai.embeddings.dimension.count",
}
"""Names that conventions have for facts; the others are called ``caliber.<fact>``."""
_FIGURES: Final = {
    "resident_bytes": (f"{SCOPE}.resident.size", "By", "Memory that the resident records of a store take."),
    "write_behind_queue": (f"{SCOPE}.write_behind.queue.size", "{entry}", "Writes of reads that wait for the disk."),
    "embedding_queue": (f"{SCOPE}.embedding.queue.size", "{record}", "Records that wait for a vector."),
    "job_queue": (f"{SCOPE}.job.queue.size", "{job}", "Jobs that are pending."),
}
_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class OpenTelemetry:
    """A tracer for ``caliber.open``: what it is told becomes spans and metrics of OpenTelemetry.

    None takes the providers that the program has set for all its libraries. One tracer may serve several stores.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, None, tracer_provider, SCHEMA_URL)
        meter = metrics.get_meter(SCOPE, "", meter_provider, SCHEMA_URL)
        self._operations = _histogram(meter, f"{SCOPE}.operation.duration", "Duration of public calls and jobs.")
        self._database = _histogram(meter, "db.client.operation.duration", "Duration of database client operations.")
        self._model = _histogram(meter, "gen_ai.client.operation.duration", "Duration of calls of models.")
        self._stores: list[TracedStore] = []
        self._lock = threading.Lock()
        for figure, (name, unit, description) in _FIGURES.items():
            meter.create_observable_gauge(name, [self._observer(figure)], unit, description)

    def start(self, store: TracedStore, kind: SpanKind, name: str, facts: Facts) -> Span:
        """Begin a span inside the current one of the calling thread."""
        title, otel_kind, labels = _described(store, kind, name, facts)
        attributes = {**labels, **_attributes(facts)}
        span = self._tracer.start_span(title, kind=otel_kind, attributes=attributes)
        histogram = {SpanKind.OPERATION: self._operations, SpanKind.JOB: self._operations}.get(kind)
        if kind is SpanKind.STORAGE:
            histogram = self._database
        elif kind in (SpanKind.EMBEDDINGS, SpanKind.MODEL):
            histogram = self._model
        return _OtelSpan(span, histogram, labels)

    def opened(self, store: TracedStore) -> None:
        """Observe the figures of a store."""
        with self._lock:
            self._stores.append(store)

    def closed(self, store: TracedStore) -> None:
        """Observe it no longer."""
        with self._lock:
            self._stores = [each for each in self._stores if each is not store]

    def _observer(self, figure: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                stores = tuple(self._stores)
            for store in stores:
                value = store.figures().get(figure)
                if value is not None:
                    yield Observation(value, _store_labels(store))

        return observe


class _OtelSpan:
    """A span that is the current one of its thread until its end."""

    __slots__ = ("_begun", "_histogram", "_labels", "_span", "_token")

    def __init__(self, span: trace.Span, histogram: metrics.Histogram | None, labels: Mapping[str, Fact]) -> None:
        self._span, self._histogram, self._labels = span, histogram, labels
        self._token = context.attach(trace.set_span_in_context(span))
        self._begun = time.perf_counter()

    def end(self, facts: Facts, error: BaseException | None) -> None:
        took = time.perf_counter() - self._begun
        labels = self._labels
        self._span.set_attributes(_attributes(facts))
        if error is not None:
            labels = {**labels, "error.type": error_type(error)}
            self._span.set_attribute("error.type", labels["error.type"])
            self._span.set_status(Status(StatusCode.ERROR))
        context.detach(self._token)
        self._span.end()
        if self._histogram is not None:
            self._histogram.record(took, labels)


def error_type(error: BaseException) -> str:
    """Return the value of ``error.type`` for an error: the name of its class."""
    return type(error).__name__


def _histogram(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_SECONDS)


def _store_labels(store: TracedStore) -> dict[str, Fact]:
    return {"db.system.name": _SYSTEMS.get(store.adapter, store.adapter), "db.namespace": store.name}


def _described(store: TracedStore, kind: SpanKind, name: str, facts: Facts) -> tuple[str, OtelKind, dict[str, Fact]]:
    """Return the name of a span, its kind, and its attributes of few values, which metrics have too."""
    if kind is SpanKind.STORAGE:
        return f"{name} {store.name}", OtelKind.CLIENT, {**_store_labels(store), "db.operation.name": name}
    if kind in (SpanKind.EMBEDDINGS, SpanKind.MODEL):
        operation = "embeddings" if kind is SpanKind.EMBEDDINGS else "chat"
        model = facts["model"]
        labels: dict[str, Fact] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": facts["provider"],
            "gen_ai.request.model": model,
        }
        return f"{operation} {model}", OtelKind.CLIENT, labels
    labels = {f"{SCOPE}.operation.name": name}
    memory = _MEMORY_OPERATIONS.get(name) if kind is SpanKind.OPERATION else None
    if memory is not None:
        labels |= {"gen_ai.operation.name": memory, "gen_ai.provider.name": SCOPE, "gen_ai.memory.store.id": store.name}
    prefix = {SpanKind.JOB: "job ", SpanKind.SEARCH: "search "}.get(kind, "")
    return f"{SCOPE} {prefix}{name}", OtelKind.INTERNAL, labels


def _attributes(facts: Facts) -> dict[str, Fact]:
    return {_NAMES.get(name, f"caliber.{name}"): value for name, value in facts.items()}
