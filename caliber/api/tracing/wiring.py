"""Wiring of tracers: spans around the handles, storage, search, providers and jobs of an open tenant."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from caliber.api.tracing.handles import traced
from caliber.api.tracing.operation_log import OperationLog
from caliber.api.tracing.spans import Tracing
from caliber.config.providers import ServiceConfig
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.llm.prompts import CALLS
from caliber.model.errors import CaliberError
from caliber.model.process.tracing import Fact, Facts, Span, SpanKind, TracedStore
from caliber.model.progress import Tracer
from caliber.search.opening import SearchEngine
from caliber.search.searcher import Searcher

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
    _trace_storage(engine, tracing)
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


def _trace_storage(engine: Engine, tracing: Tracing) -> None:
    store = engine.store
    _replace(store, "read", tracing.around_block(store.read, SpanKind.STORAGE, "read", {}))
    _replace(store, "write", tracing.around(store.write, SpanKind.STORAGE, "write", {}))


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
