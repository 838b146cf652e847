"""Words are indexed in the background after opening, so that the first search need not do it. Issue 4."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.threads import begin
from support.waits import until

from caliber.model.errors import StorageError
from caliber.model.events import EventType
from caliber.resident.keywords import Keywords
from caliber.search.searcher import Searcher

pytestmark = pytest.mark.databases("one")

NAME = "caliber-warming"


def warming() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
@needs("reopen")
def filled(backend: Any, start: Any) -> Any:
    agent = start(backend.open())
    for at in range(30):
        agent.note(f"note {at} about lakes")
        agent.say(f"turn {at} of boats")
    agent.memory.flush()
    assert not warming()  # 0: by the first search
    agent.memory.close()
    return backend


def indexed(memory: Any) -> list[int]:
    snapshot = inspect(memory).resident.snapshot
    indexes = [snapshot[kind].generation.keywords for kind in ("note", "turn")]
    return [0 if index is None else len(index) for index in indexes]


def found(memory: Any) -> int:
    return sum("keyword" in hit.found_by for hit in memory.search("lakes", limit=50).hits)


def test_words_are_indexed_soon_after_opening(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.resident.keywords.BATCH_ROWS", 7)
    memory = filled.open(resident__warm_after_ms=1)
    until(lambda: indexed(memory) == [30, 30] and not warming())
    assert found(memory) == 30
    memory.add_note(entity="x", entity_type="t", note_type="fact", content="more lakes", confidence=0.9)
    assert found(memory) == 31


def test_closing_does_not_wait_for_it_to_begin(filled: Any) -> None:
    memory = filled.open(resident__warm_after_ms=600_000)
    assert not warming(), "what waits has no thread"
    begin = time.monotonic()
    memory.close()
    assert time.monotonic() - begin < 2
    assert indexed(memory) == [0, 0]


def test_closing_ends_it_between_two_batches(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.resident.keywords.BATCH_ROWS", 1)
    begun, closing, advance = threading.Event(), threading.Event(), Keywords.advance

    def held(self: Keywords, snapshot: Any) -> bool:
        begun.set()
        assert closing.wait(20)
        return advance(self, snapshot)

    monkeypatch.setattr(Keywords, "advance", held)
    memory = filled.open(resident__warm_after_ms=1)
    assert begun.wait(20)
    closer = begin(memory.close)
    until(lambda: inspect(memory).engine.state == "closed")
    closing.set()
    closer.result(20)
    assert not warming()
    assert 0 < sum(indexed(memory)) < 60


def test_what_fails_in_the_background_is_recorded_and_the_search_still_answers(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("unreadable", reason="test")

    monkeypatch.setattr(Searcher, "warm", fails)
    memory = filled.open(resident__warm_after_ms=1)

    def errors() -> list[Any]:
        memory.flush()
        return [event.payload for event in memory.storage.events.all() if event.event_type == EventType.ERROR]

    until(errors)
    assert [error["where"] for error in errors()] == ["warming"]
    assert found(memory) == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork() here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads and fork, which is what this is about
def test_a_child_is_not_held_up_by_it(filled: Any) -> None:
    memory = filled.open(resident__warm_after_ms=1)
    child = os.fork()
    if not child:
        try:
            memory.close()
            os._exit(0 if found(filled.open()) == 30 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found(memory) == 30
