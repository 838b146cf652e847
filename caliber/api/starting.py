"""Start of an engine with its subsystems, for one configuration: the part that every way of opening a store shares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from caliber.api.caliber import Caliber
from caliber.api.subsystems import add_parts
from caliber.config import CaliberConfig
from caliber.engine.engine import Engine
from caliber.erasure.finishing import open_erasures
from caliber.erasure.unfinished import LeftErasures, forget_words
from caliber.jobs import runner
from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model.process.interpreter import log, without_collections
from caliber.model.progress import Tracer
from caliber.model.time import Clock
from caliber.search.opening import SearchEngine
from caliber.storage.protocol import ConnectionPool

H = TypeVar("H", bound=Caliber)


class HandleTracing:
    """A part of traced tenants: it makes their handles tell the tracer of their operations."""

    def __init__(self, traced: Callable[[Any], Any]) -> None:
        self.traced = traced


def handle_of(made: H) -> H:
    """Return a new handle, traced where its tenant is."""
    tracing = made._engine.find_part(HandleTracing)
    return made if tracing is None else tracing.traced(made)


@without_collections
def start_engine(
    settings: CaliberConfig,
    *,
    clock: Clock,
    embedding_provider: EmbeddingProvider | None = None,
    previous_embedding_provider: EmbeddingProvider | None = None,
    summarization_provider: SummarizationProvider | None = None,
    connection_pool: ConnectionPool | None = None,
    tracer: Tracer | None = None,
) -> Engine:
    """Return a started engine; what is None comes from the configuration. Raises: as ``caliber.open``."""
    erasures = LeftErasures()
    engine = Engine(
        settings,
        clock=clock,
        embedding_provider=embedding_provider,
        previous_embedding_provider=previous_embedding_provider,
        summarization_provider=summarization_provider,
        connection_pool=connection_pool,
        reading=[erasures.read],
    )
    try:
        add_parts(engine)
        engine.start()
        search = engine.part(SearchEngine)
        if search.stored is None:
            engine.later("warming", search.warm, settings.resident.warm_after_ms)
        engine.memory.on_erased = lambda: forget_words(engine)
        open_erasures(engine, erasures)
        behind = settings.write_behind
        if tracer is not None or (behind.trace_enabled and behind.operation_share):
            from caliber.api.tracing.wiring import trace_engine  # a store without a tracer pays nothing for tracing

            engine.add(HandleTracing(trace_engine(engine, tracer)))
        engine.repeat("retention", lambda: _retain(engine), settings.retention.apply_every_ms)
        runner.start(engine)
    except BaseException:
        engine.abandon()
        raise
    if "logging" in sys.modules:
        log("api", "info", "a store in %s was opened, configuration %s", engine.store.adapter, settings.hash.hex()[:16])
    return engine


def _retain(engine: Engine) -> None:
    """Apply retention, without its report."""
    from caliber.admin.maintenance import maintain  # most processes end before it is due

    maintain(engine)
