"""OpenTelemetry: spans and metrics of a real store, collected by the SDK's own exporters."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.configs import USER
from support.inspection import inspect
from support.providers import CountingEmbeddings

import caliber
from caliber.integrations.otel import OpenTelemetry
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.model.errors import DTypeError, NotFound

SECRETS = ("violet", "harbourmaster", "Rosalind", "zanzibar")
"""Words of records, queries, names and goals, which no attribute may hold."""


class Collected:
    """A tracer and what its providers collected."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.provider = provider
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.tracer = OpenTelemetry(tracer_provider=provider, meter_provider=self.meters)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        found = [metric for part in data.resource_metrics for scope in part.scope_metrics for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.meters.shutdown()


@pytest.fixture
def memory(backend: Any, collected: Collected) -> caliber.Caliber:
    return backend.open(
        principal=caliber.Principal.admin(),
        tracer=collected.tracer,
        embedding_provider=CountingEmbeddings(),
        jobs__poll_ms=0,
    )


def conversation(memory: caliber.Caliber) -> tuple[Any, Any]:
    task = memory.start_trajectory("find violet paint in zanzibar", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content="the harbourmaster Rosalind sells violet paint")
    return task, turn


def test_public_calls_have_spans_with_ids_and_counts(memory: caliber.Caliber, collected: Collected) -> None:
    # issue 17, Build 10
    task, turn = conversation(memory)
    span = collected.named("caliber append_turn")
    assert span.kind is SpanKind.INTERNAL
    assert span.attributes["gen_ai.operation.name"] == "create_memory"
    assert span.attributes["gen_ai.provider.name"] == "caliber"
    assert span.attributes["caliber.scope_id"] == str(turn.scope_id)
    assert span.attributes["gen_ai.memory.record.id"] == str(turn.turn_id)
    window = memory.assemble_context(task.trajectory_id, query="who sells violet paint?")
    span = collected.named("caliber assemble_context")
    assert span.attributes["gen_ai.operation.name"] == "search_memory"
    assert span.attributes["gen_ai.conversation.id"] == str(task.trajectory_id)
    assert span.attributes["caliber.window_id"] == str(window.window_id)
    assert span.attributes["caliber.used_tokens"] == window.used_tokens


def test_spans_nest(memory: caliber.Caliber, collected: Collected) -> None:
    # issue 17, Build 10: assemble, in it search and embeddings; append, in it storage
    task, _ = conversation(memory)
    memory.add_note(entity="paint", entity_type="topic", note_type="fact", content="violet paint is rare", confidence=1)
    memory.flush()
    collected.exporter.clear()
    with collected.provider.get_tracer("program").start_as_current_span("turn of an agent"):
        memory.assemble_context(task.trajectory_id, query="who sells violet paint?")
    outer, window = collected.named("turn of an agent"), collected.named("caliber assemble_context")
    assert window.parent.span_id == outer.context.span_id
    inside = [span for span in collected.spans() if span.parent and span.parent.span_id == window.context.span_id]
    kinds = {span.name.split()[0] for span in inside}
    assert "embeddings" in kinds
    assert any(span.name.startswith("caliber search ") for span in inside)
    (embeddings,) = [span for span in inside if span.name.startswith("embeddings")]
    assert embeddings.attributes["gen_ai.operation.name"] == "embeddings"
    assert embeddings.attributes["gen_ai.request.model"] == memory.admin.stats()["providers"]["embedding"]


def test_calls_of_tables_have_spans(memory: caliber.Caliber, collected: Collected) -> None:
    task, _ = conversation(memory)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    collected.exporter.clear()
    turns = memory.storage.turns.list_by_scope(scope.scope_id)
    memory.storage.turns.get(turns[0].turn_id)
    assert collected.named("caliber list_by_scope").attributes is not None
    assert collected.named("caliber get").attributes is not None


def test_storage_follows_the_conventions_for_databases(
    backend: Any, memory: caliber.Caliber, collected: Collected
) -> None:
    conversation(memory)
    append = collected.named("caliber append_turn")
    (write,) = [span for span in collected.spans() if span.parent and span.parent.span_id == append.context.span_id]
    assert write.kind is SpanKind.CLIENT
    assert write.attributes is not None
    system = "postgresql" if backend.adapter == "postgres" else "sqlite"
    assert write.attributes["db.system.name"] == system
    assert write.attributes["db.operation.name"] == "write"
    assert write.attributes["db.namespace"]


def test_a_call_that_fails_ends_its_span_with_the_type_of_the_error(
    memory: caliber.Caliber, collected: Collected
) -> None:
    with pytest.raises(NotFound):
        memory.get(uuid.uuid4())
    span = collected.named("caliber get")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "NotFound"
    assert not span.events, "the message of an exception may name a record"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_no_span_and_no_metric_holds_content(memory: caliber.Caliber, collected: Collected) -> None:
    # C §7 and issue 17: privacy
    task, turn = conversation(memory)
    note = memory.add_note(
        entity="Rosalind", entity_type="person", note_type="fact", content="sells violet paint", confidence=0.9
    )
    memory.update_note(note.note_id, content="sells violet paint in zanzibar")
    memory.search("violet")
    memory.remember([{"role": "user", "content": "I am Rosalind of zanzibar"}], user="Rosalind")
    memory.assemble_context(task.trajectory_id, query="the harbourmaster")
    memory.get(turn.turn_id)
    with pytest.raises(caliber.CaliberError):
        memory.get("violet")
    with pytest.raises(caliber.CaliberError):
        memory.records("Rosalind")
    memory.jobs.run_due()
    memory.agents.locks.acquire("violet", holder="Rosalind")
    memory.forget(texts=["Rosalind"], even_if_shared=True)
    told = "\n".join(span.to_json() for span in collected.spans())
    told += collected.reader.get_metrics_data().to_json()
    assert len(collected.spans()) > 15
    for word in SECRETS:
        assert word.lower() not in told.lower(), word


def test_jobs_and_facets_have_spans(memory: caliber.Caliber, collected: Collected) -> None:
    task, _ = conversation(memory)
    engine = inspect(memory).engine
    jobs = engine.part(JobQueue)
    jobs.register(Handler("wave", lambda claim: 1), Handler("greet", lambda claim: 0))
    jobs.register(Handler("greet", lambda claim: 1), replace=True)
    engine.write(lambda uow: jobs.enqueue(uow, "greet", trajectory_id=task.trajectory_id))
    assert memory.jobs.run_due() >= 1
    run = collected.named("caliber run_due")
    span = collected.named("caliber job greet")
    assert span.context.trace_id == run.context.trace_id
    assert span.attributes["gen_ai.conversation.id"] == str(task.trajectory_id)
    acting = memory.acting_as(caliber.Principal.admin())
    assert isinstance(acting, caliber.Caliber)
    collected.exporter.clear()
    acting.agents.locks.held("harbour")
    assert collected.named("caliber held")


def test_metrics_count_operations_and_show_figures(memory: caliber.Caliber, collected: Collected) -> None:
    task, _ = conversation(memory)
    for _ in range(3):
        memory.assemble_context(task.trajectory_id)
    found = collected.metrics()
    durations = {point.attributes["caliber.operation.name"]: point for point in found["caliber.operation.duration"]}
    assert durations["assemble_context"].count == 3
    assert durations["assemble_context"].sum > 0
    assert {point.attributes["db.operation.name"] for point in found["db.client.operation.duration"]} >= {"write"}
    (resident,) = found["caliber.resident.size"]
    assert resident.value > 0
    for figure in ("caliber.write_behind.queue.size", "caliber.embedding.queue.size", "caliber.job.queue.size"):
        assert found[figure][0].value >= 0, figure
    memory.close()
    assert not collected.metrics().get("caliber.resident.size")


def test_one_call_of_a_caller_is_one_operation(memory: caliber.Caliber, collected: Collected) -> None:
    """``search`` is ``search_many`` of one query: it is not counted twice."""
    memory.search("harbour")
    assert [span.name for span in collected.spans() if span.parent is None] == ["caliber search"]


def test_an_object_that_is_no_tracer_is_refused(backend: Any) -> None:
    with pytest.raises(DTypeError, match="tracer"):
        backend.open(tracer=object())


_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import caliber
from caliber.config import profiles
with caliber.open(profiles.reference(":memory:"), create=True) as memory:
    task = memory.start_trajectory("plan", user="anna")
    assert memory.assemble_context(task.trajectory_id, query="harbour").status
assert not [name for name in sys.modules if "tracing" in name or "integrations" in name or "opentelemetry" in name]
try:
    import caliber.integrations.otel
except caliber.CaliberError as error:
    print(error)
"""


def test_without_opentelemetry_nothing_of_tracing_is_loaded() -> None:
    # issue 17, Done when: with OTel not installed, nothing
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'caliber-memory[otel]'" in done.stdout
