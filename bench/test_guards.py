"""Costs of guards: validation, checkpoints and recovery, tracing, masks. Goals: issues "PCP" and "People".

Ratios are of the CPU time of this process, all its threads together: both sides in turn, the medians of all rounds.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.contest import ASIDE, CPU, OURS, Contender
from harness.notes import ME, QUERY, TOPICS, sentence
from harness.scale import usual
from support.inspection import inspect
from support.local_server import LocalServer

import caliber
from caliber.api.caliber import Caliber
from caliber.config import CaliberConfig
from caliber.model import Principal
from caliber.model.context import SourceType
from caliber.model.windows import ContextWindow, SourceRef
from caliber.pcp.readings import Readings

DSN = "CALIBER_BENCH_GUARDS_DSN"
SOURCES, RECORDS, NOTES, ROUNDS = 200, usual(2_000, full=10_000), 2_000, usual(30, full=60)
QUICK_SOURCES, QUICK_RECORDS, QUICK_NOTES, QUICK_ROUNDS = 20, 60, 40, 2
SCOPES, BAD_TURNS, RUNS = 10, 20, usual(5, full=9)

Figures = Callable[..., None]


@contextmanager
def opened(config: CaliberConfig, **options: Any) -> Iterator[Caliber]:
    caliber.create(config)
    with caliber.open(config, principal=Principal.admin(), **options) as memory:
        yield memory


def remember(memory: Caliber, count: int, subjects: int, **options: Any) -> list[uuid.UUID]:
    """Add notes about so many subjects, half of them numbers that differ."""
    said = {"entity_type": "topic", "note_type": "fact", "confidence": 0.9, **options}
    return [
        memory.add_note(
            entity=f"step {number % subjects}",
            content=f"{sentence(number)} Step {number % subjects} takes {number % 7 + 2} minutes.",
            **said,
        ).note_id
        for number in range(count)
    ]


def state(memory: Caliber, count: int) -> list[uuid.UUID]:
    """Add statements, two about each subject, half of which contradict each other."""
    said = {"entity_type": "thing", "note_type": "fact", "confidence": 0.9}
    forms = (
        "{} lives in {}.",
        "The deadline of {} is in {} weeks.",
        "{} prefers {} for breakfast.",
        "Backups of {} are kept at the {} site.",
        "Nobody reviews {} before the {} release.",
    )
    keys = []
    for number in range(count):
        subject = f"{_word(number // 2)} {_word(number // 2 + 5_000)}"
        value = number % 9 + 2 if number // 2 % 5 == 1 else _word(number + 10_000 if number % 4 else number // 2)
        content = forms[number // 2 % 5].format(subject, value)
        keys.append(memory.add_note(entity=subject, content=content, **said).note_id)
    return keys


def _word(number: int) -> str:
    """Return a name that no other number has."""
    syllables = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"]
    return "".join(syllables[int(digit)] for digit in f"{number * 7_919 % 99_991:05}").title()


def window_of(memory: Caliber, task: uuid.UUID, keys: list[uuid.UUID]) -> ContextWindow:
    """Return a window whose sources are notes."""
    window = memory.assemble_context(task, query=memory.get(keys[0]).content)
    sources = tuple(SourceRef(SourceType.NOTE, key, 1, 1.0, 20) for key in keys)
    return dataclasses.replace(window, sections=(dataclasses.replace(window.sections[0], sources=sources),))


def ratio(ours: Callable[[], object], other: Callable[[], object], settle: Callable[[], object], rounds: int) -> float:
    """Return the time of one call by that of another, the median of rounds in turn."""
    calls = [other, ours]
    found = []
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        took = {}
        for call in calls if number % 2 else reversed(calls):
            call()
            begun = time.process_time()
            for _ in range(4):
                call()
            took[call] = time.process_time() - begun
            settle()
        found.append(took[ours] / took[other])
    return statistics.median(found)


def test_validation(contest: Callable[..., None], quick: bool, tmp_path: Path) -> None:
    """All sources of a window are checked, pairs of each subject and near vectors compared."""
    sources = QUICK_SOURCES if quick else SOURCES
    with opened(caliber.profiles.reference(tmp_path / "store.db")) as memory:
        task = memory.start_trajectory("Keep the service running", initiator=ME).trajectory_id
        keys = state(memory, sources)
        memory.flush()
        window = window_of(memory, task, keys)
        readings = inspect(memory).part(Readings)

        def again() -> Any:
            return memory.pcp.validate(window)

        def first() -> Any:
            readings.kept.clear()
            return again()

        result = again()
        assert result.checked == sources
        assert result.issues == first().issues
        assert result.issues
        contest(
            f"validation of a window of {sources} sources",
            [
                Contender(OURS, "statements read before", again, at_most_s=5e-3),
                Contender(ASIDE, "statements read for the first time", first, note="each statement is read"),
            ],
            clock=CPU,
        )


@pytest.mark.parametrize("adapter", ["SQLite", "PostgreSQL"])
def test_recovery(adapter: str, figure: Figures, quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of the records are turns, the others artifacts; twenty turns are rolled back."""
    if adapter == "SQLite":
        _recover(caliber.profiles.reference(tmp_path / "store.db"), adapter, figure, quick)
        return
    with LocalServer.start() as server:
        monkeypatch.setenv(DSN, server.dsn)
        named = {"storage.adapter": "postgres", "storage.schema_name": "guards"}
        _recover(caliber.profiles.reference(f"env:{DSN}", **named), adapter, figure, quick)


def _recover(config: CaliberConfig, adapter: str, figure: Figures, quick: bool) -> None:
    records = QUICK_RECORDS if quick else RECORDS
    made, recovered = [], []
    with opened(config) as memory:
        task = memory.start_trajectory("Keep the service running", initiator=ME).trajectory_id
        for number in range(SCOPES):
            scope = memory.open_scope(task) if number else memory.current_scope(task)
            assert scope is not None
            _say(memory, scope.scope_id, records * 9 // 10 // SCOPES, number)
            for at in range(records // 10 // SCOPES):
                content = f"artifact {at} of scope {number}"
                memory.create_artifact(
                    scope_id=scope.scope_id, artifact_type="fact", content=content, extraction_method="explicit"
                )
            if number < SCOPES - 1:
                memory.close_scope(scope.scope_id)
        memory.flush()
        for number in range(2 if quick else RUNS):
            begun = time.perf_counter()
            checkpoint = memory.pcp.checkpoint(task)
            made.append(time.perf_counter() - begun)
            scope = memory.current_scope(task)
            assert scope is not None
            _say(memory, scope.scope_id, BAD_TURNS, number)
            memory.flush()
            begun = time.perf_counter()
            result = memory.pcp.recover(task)
            recovered.append(time.perf_counter() - begun)
            assert (result.checkpoint_id, result.turns_rolled_back) == (checkpoint.checkpoint_id, BAD_TURNS)
    of = f"of a task of {records:,} records, {adapter}"
    figure(f"checkpoint {of}", statistics.median(made) * 1e3, "ms", at_most=50)
    figure(f"recovery {of}", statistics.median(recovered) * 1e3, "ms", at_most=200)


def _say(memory: Caliber, scope: Any, count: int, number: int) -> None:
    roles = ("user", "assistant")
    memory.append_turns(
        scope, [{"role": roles[at % 2], "content": sentence(number * count + at)} for at in range(count)]
    )


@pytest.mark.parametrize("by", ["OpenTelemetry", "events of operations"])
def test_tracing(by: str, figure: Figures, quick: bool, tmp_path: Path) -> None:
    """Windows of two stores with the same records, of which one is traced."""
    options: dict[str, Any] = {}
    changed: dict[str, Any] = {"write_behind.operation_share": 1.0}
    if by == "OpenTelemetry":
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        from caliber.integrations.otel import OpenTelemetry

        spans, traces = in_memory.InMemorySpanExporter(), sdk.TracerProvider()
        traces.add_span_processor(export.SimpleSpanProcessor(spans))
        options, changed = {"tracer": OpenTelemetry(tracer_provider=traces)}, {}
    plain = caliber.profiles.reference(tmp_path / "plain.db")
    with opened(plain) as one, opened(caliber.profiles.reference(tmp_path / "traced.db", **changed), **options) as two:
        calls, texts = [], []
        for memory in (two, one):
            remember(memory, QUICK_NOTES if quick else NOTES, 40)
            task = memory.start_trajectory("Keep the service running", initiator=ME).trajectory_id
            scope = memory.current_scope(task)
            assert scope is not None
            _say(memory, scope.scope_id, 60, 0)
            memory.flush()
            calls.append(lambda memory=memory, task=task: memory.assemble_context(task, query=QUERY))
            texts.append(calls[-1]().text)
        assert texts[0] == texts[1]

        def settle() -> None:
            one.flush()
            two.flush()
            if options:
                spans.clear()

        found = ratio(calls[0], calls[1], settle, QUICK_ROUNDS if quick else ROUNDS)
    figure(f"a window traced by {by}, to one that is not", found, "x", at_most=1.1)


def test_masks(figure: Figures, quick: bool, tmp_path: Path) -> None:
    """Searches of a user whom half of the notes name as a reader, and of an administrator, with equal answers."""
    with opened(caliber.profiles.reference(tmp_path / "store.db")) as memory:
        count = QUICK_NOTES if quick else NOTES
        remember(memory, count // 2, 40)
        remember(memory, count // 2, 40, visible_to=["human:ana"])
        memory.flush()
        ana = memory.as_user("ana")
        queries = [f"what was decided about the {topic}" for topic in TOPICS]
        for query in queries:
            answers = [[(hit.id, hit.score) for hit in each.search(query).hits] for each in (memory, ana)]
            assert answers[0] == answers[1]
        asked = {memory: iter(queries * 10_000), ana: iter(queries * 10_000)}
        masked, plain = (lambda each=each: each.search(next(asked[each])) for each in (ana, memory))
        found = ratio(masked, plain, memory.flush, QUICK_ROUNDS if quick else ROUNDS * 2)
    figure("a search with a mask, to one of an administrator", found, "x", at_most=1.1)
