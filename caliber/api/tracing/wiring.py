"""Wiring of tracers: spans around the handles, storage, search, providers and jobs of an open tenant."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar

from caliber.api.tracing.spans import Tracing, ids_of
from caliber.config.knobs import Section
from caliber.config.providers import ServiceConfig
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.llm.prompts import CALLS
from caliber.model.errors import CaliberError
from caliber.model.events import EventFamily, EventType
from caliber.model.process.tracing import Fact, Facts, Span, SpanKind, TracedStore
from caliber.model.progress import Tracer
from caliber.search.opening import SearchEngine
from caliber.search.searcher import Searcher

T = TypeVar("T")

_NO_OPERATIONS: Final = frozenset(("acting_as", "as_user", "as_agent", "records", "view", "table_of", "subscribe"))
"""Public methods that only return a part of the API, or a function."""
_VALUES: Final = (Section, Enum, tuple, BaseException)


def traced(handle: T, tracing: Tracing) -> T:
    """Return an object of the API with spans around its operations."""
    kind: Any = type(handle)
    made: T = object.__new__(_traced_class(kind))
    vars(made).update(vars(handle))
    vars(made).update(_untraced=handle, _tracing=tracing)
    return made


def is_part(value: object) -> bool:
    """Return whether an object is a part of the API rather than a value that it returns."""
    kind = type(value)
    if not kind.__module__.startswith("caliber.") or isinstance(value, _VALUES) or dataclasses.is_dataclass(kind):
        return False
    return hasattr(value, "__dict__") and not hasattr(value, "_untraced") and not hasattr(kind, "__next__")


@functools.cache
def _traced_class(kind: type[Any]) -> type[Any]:
    """Return the subclass of a class whose operations have spans."""
    members: dict[str, Any] = {}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            members[name] = _property(name, member.__doc__)
        elif isinstance(member, FunctionType) and not inspect.isgeneratorfunction(inspect.unwrap(member)):
            members[name] = _method(name, member)
    if hasattr(kind, "__getattr__"):
        members["__getattr__"] = _named
    # Nobody else's subclass: caliber/api/aio_proxy.py leaves out names that begin with an underscore.
    return type(f"_Traced{kind.__name__}", (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **members})


def _part(value: Any, tracing: Tracing) -> Any:
    return traced(value, tracing) if is_part(value) else value


def _property(name: str, doc: str | None) -> property:
    def read(self: Any) -> Any:
        return _part(getattr(self._untraced, name), self._tracing)

    return property(read, doc=doc)


def _named(self: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    value = getattr(self._untraced, name)
    if not isinstance(value, FunctionType):
        return _part(value, self._tracing)
    tracing = self._tracing

    @functools.wraps(value)
    def call(*args: Any, **options: Any) -> Any:
        return tracing.run(SpanKind.OPERATION, name, {}, value, args, options)

    return call


def _method(name: str, function: FunctionType) -> Callable[..., Any]:
    if name in _NO_OPERATIONS:

        @functools.wraps(function)
        def plain(self: Any, *args: Any, **options: Any) -> Any:
            return _part(function(self._untraced, *args, **options), self._tracing)

        return plain

    ids = ids_of(inspect.unwrap(function))

    @functools.wraps(function)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        facts = ids(args, options)
        return self._tracing.run(SpanKind.OPERATION, name, facts, function, (self._untraced, *args), options)

    return call


_SEARCHES: Final = ("search", "relevance", "found")
_EMBEDS: Final = ("embed", "embed_batch", "embed_some")


def trace_engine(engine: Engine, tracer: Tracer | None) -> Callable[[Any], Any]:
    """Tell a tracer, and the event log if it records operations, of everything that an engine does from now on.

    Return the function that makes the traced form of a handle.
    """
    settings, storage = engine.config.write_behind, engine.config.storage
    tracers: list[Tracer] = [] if tracer is None else [tracer]
    if settings.operation_share and settings.trace_enabled:
        tracers.append(OperationLog(engine, settings.operation_share))
    name = getattr(storage, "schema_name", None) or Path(storage.shown).name
    store = TracedStore(engine.store.adapter, name, lambda: figures(engine))
    tracing = Tracing(tracers[0] if len(tracers) == 1 else _All(tracers), store)
    _replace(engine.store, "read", tracing.around_block(engine.store.read, SpanKind.STORAGE, "read", {}))
    _replace(engine.store, "write", tracing.around(engine.store.write, SpanKind.STORAGE, "write", {}))
    _trace_search(engine.part(SearchEngine), tracing)
    _trace_providers(engine, tracing)
    _trace_jobs(engine.part(JobQueue), tracing)
    engine.follow(_Closing(tracing))
    tracing.tracer.opened(store)
    return functools.partial(traced, tracing=tracing)


class _All:
    """Several tracers as one."""

    def __init__(self, tracers: Sequence[Tracer]) -> None:
        self._tracers = tracers

    def start(self, store: TracedStore, kind: SpanKind, name: str, facts: Facts) -> Span:
        return _Spans([tracer.start(store, kind, name, facts) for tracer in self._tracers])

    def opened(self, store: TracedStore) -> None:
        for tracer in self._tracers:
            tracer.opened(store)

    def closed(self, store: TracedStore) -> None:
        for tracer in self._tracers:
            tracer.closed(store)


class _Spans:
    """The spans of one operation, the first begun ended last."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def end(self, facts: Facts, error: BaseException | None) -> None:
        for span in reversed(self._spans):
            span.end(facts, error)


def figures(engine: Engine) -> Mapping[str, int]:
    """Return figures of an engine that change all the time; nothing once it is closed."""
    if engine.state != "open":
        return {}
    embedder = engine.part(Embeddings).embedder
    found = {
        "resident_bytes": engine.memory.mirrors.column_bytes + engine.memory.mirrors.text_bytes,
        "write_behind_queue": engine.behind.waiting(),
        "embedding_queue": 0 if embedder is None else embedder.waiting(),
    }
    try:
        found["job_queue"] = sum(engine.part(JobQueue).waiting().values())
    except CaliberError:  # the store was closed meanwhile, or does not answer: the other figures are known
        return found
    return found


def _replace(part: object, name: str, method: Callable[..., Any]) -> None:
    """Give an object of this tenant a method of its own in the place of its class's."""
    setattr(part, name, method)


def _trace_search(search: SearchEngine, tracing: Tracing) -> None:
    """Trace the searcher, and those that take its place when a forgotten subject's words are dropped."""

    def with_spans(searcher: Searcher) -> Searcher:
        for name in _SEARCHES:
            _replace(searcher, name, tracing.around(getattr(searcher, name), SpanKind.SEARCH, name, {}))
        return searcher

    with_spans(search.searcher)
    fresh = search.fresh
    _replace(search, "fresh", lambda: with_spans(fresh()))


def _trace_providers(engine: Engine, tracing: Tracing) -> None:
    config, embedder, model = engine.config, engine.part(Embeddings).embedder, engine.summarization
    for target in () if embedder is None else embedder.targets:
        facts: dict[str, Fact] = {"model": target.provider.model_id, "dimensions": target.provider.dimensions}
        facts["provider"] = _provider_type(config.embedding_provider)
        _trace_methods(target.provider, _EMBEDS, tracing, SpanKind.EMBEDDINGS, facts)
    if model is not None:
        facts = {"model": model.model_id, "provider": _provider_type(config.summarization_provider)}
        _trace_methods(model, CALLS, tracing, SpanKind.MODEL, facts)


def _provider_type(settings: ServiceConfig | None) -> str:
    return "custom" if settings is None else settings.provider_type


def _trace_methods(part: object, names: Sequence[str], tracing: Tracing, kind: SpanKind, facts: Facts) -> None:
    for name in names:
        method = getattr(part, name, None)
        if method is not None:
            _replace(part, name, tracing.around(method, kind, name, facts))


def _trace_jobs(jobs: JobQueue, tracing: Tracing) -> None:
    """Trace the handlers of jobs, those that are registered later included."""
    register = jobs.register

    def register_traced(*handlers: Handler, replace: bool = False) -> None:
        register(*(_traced_handler(each, tracing) for each in handlers), replace=replace)

    register_traced(*jobs.handlers, replace=True)
    _replace(jobs, "register", register_traced)


def _traced_handler(handler: Handler, tracing: Tracing) -> Handler:
    run = handler.run

    def run_traced(claim: Claim) -> int:
        facts: dict[str, Fact] = {"job_id": str(claim.job.job_id), "attempt": claim.job.attempts}
        if claim.job.trajectory_id is not None:
            facts["trajectory_id"] = str(claim.job.trajectory_id)
        return tracing.run(SpanKind.JOB, handler.kind, facts, run, (claim,), {})

    return dataclasses.replace(handler, run=run_traced)


class _Closing:
    """A follower of the tenant that tells the tracer when it is closed."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def committed(self, changes: Sequence[Any]) -> None:
        """Nothing."""

    def changed_elsewhere(self) -> None:
        """Nothing."""

    def loaded(self) -> None:
        """Nothing."""

    def drain(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Tell the tracer."""
        self._tracing.tracer.closed(self._tracing.store)


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
