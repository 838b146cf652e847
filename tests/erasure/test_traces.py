"""Every kind of trace of a person is gone after ``forget``; the same traces of another person are as they were."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.erasure.byte_search import searched, traces, values
from support.erasure.traces import KNOBS, UNSTORED, Model, Person, Planter
from support.inspection import inspect

import caliber
from caliber.model.errors import InvalidValue
from caliber.search.in_database.full_text import WordIndexer

WHOLE = {"memory", "store.db", "pg_stats", "file of pg_statistic"}
"""Places that hold the values of every table."""


def _kinds(backend: Any, memory: caliber.Caliber, folder: Path, person: Person) -> dict[str, set[str]]:
    """Return the kinds of traces that are found, with the places."""
    wanted = person.needles()
    out: dict[str, set[str]] = {}
    for place, needle in searched(backend, memory, folder, list(wanted)):
        out.setdefault(wanted[needle], set()).add(place)
    return out


def _values(backend: Any, memory: caliber.Caliber, person: Person) -> Counter[tuple[str, str]]:
    """Return the values of relations that hold a trace; PostgreSQL's rows are among them as texts."""
    relations = {relation.name for relation in inspect(memory).store.catalog.relations}
    wanted = list(person.needles())
    out: Counter[tuple[str, str]] = Counter()
    for table, value in values(backend, memory):
        raw = value if isinstance(value, bytes) else str(value).encode()
        if table in relations and traces(raw, wanted):
            out[table, repr(value)] += 1
    return out


def _answers(memory: caliber.Caliber) -> Iterator[str]:
    """Yield what an open store answers from memory and by its public calls."""
    yield from map(str, inspect(memory).engine.memory.held())
    for relation in inspect(memory).store.catalog.relations:
        reader = getattr(memory.storage, relation.plural, None)
        if reader is not None:
            with suppress(InvalidValue):  # a cache, which has no pages
                yield from map(repr, reader.all())
    yield repr(memory.admin.stats())
    yield repr(memory.jobs.list(limit=1_000))
    for text in ("turn note has likes met", "private", "name", "thing"):
        yield repr(dataclasses.asdict(memory.search(text, limit=100)))
    for name in ("fact", "step", "note"):
        yield repr(memory.records(name).find(limit=1_000))
    for task in memory.storage.trajectories.all():
        yield repr(memory.trace(task.trajectory_id, limit=1_000))
        yield memory.assemble_context(task.trajectory_id, query="who said what?").text
    for window in memory.storage.context_windows.all():
        yield repr(memory.explain(window.window_id))


@pytest.mark.soak
def test_forget_leaves_no_trace_of_forty_kinds(backend: Any, tmp_path: Path) -> None:
    # issue 16, Done when: "`forget(user)` leaves nothing of 40 kinds of trace: an independent byte search"
    memory = backend.open(summarization_provider=Model(), **KNOBS)
    full_text = inspect(memory).store.full_text
    if full_text is not None:
        full_text.rebuild(WordIndexer("english"))
    ada, ben = Person(), Person()
    Planter(memory, ben).plant()
    of_ben = _values(backend, memory, ben)  # Ada's tasks show public notes about Ben, and go
    assert len(of_ben) >= 40
    Planter(memory, ada).plant()
    planted = {*ada.words, *ada.raw}
    assert len(planted) >= 40
    assert planted - _kinds(backend, memory, tmp_path, ada).keys() == UNSTORED

    report = memory.forget(user=ada.name, texts=ada.texts)

    assert report.proven
    left = _kinds(backend, memory, tmp_path, ada)
    assert left.keys() <= ada.kept
    for places in left.values():
        # What another said stays a turn of theirs, and in the full text of turns.
        assert {place for place in places if "turn" not in place} <= WHOLE
    assert of_ben - _values(backend, memory, ben) == Counter()
    own = {needle: kind for needle, kind in ada.needles().items() if kind not in ada.kept}
    wanted = list(own)
    found = {(own[needle], answer[:60]) for answer in _answers(memory) for needle in traces(answer.encode(), wanted)}
    assert found == set()
    assert memory.admin.verify() == []
