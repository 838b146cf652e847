"""Several queries at once: one answer of the provider, one snapshot, each result as if asked alone. Issue 4, item 8.

Words are indexed in the background after opening, so that the first search need not do it. Issue 4.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage
from support.threads import begin
from support.waits import until

import caliber
from caliber.llm.protocols import FloatMatrix
from caliber.model import FixedClock
from caliber.model.errors import InputError, StorageError, Unavailable
from caliber.model.events import EventType
from caliber.resident.keywords import Keywords
from caliber.search.searcher import Searcher

pytestmark = pytest.mark.databases("one")

QUERIES = ["lakes and boats", "", "rivers", "a vault of backups"]


class Batches(CountingEmbeddings):
    """Embeddings that remember how many texts came together, and let something happen meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.meanwhile: list[Any] = []

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        self.sizes.append(len(texts))
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().embed_batch(texts)


def told(result: Any) -> Any:
    return [(hit.id, hit.score, hit.breakdown) for hit in result.hits], result.status, result.analysis


@pytest.fixture
def provider() -> Batches:
    return Batches()


@pytest.fixture
def agent(backend: Any, start: Any, provider: Batches) -> Any:
    agent = start(backend.open(embedding_provider=provider, clock=FixedClock()))
    for at in range(12):
        agent.note(f"note {at} about {'lakes' if at % 2 else 'rivers'}", entity="Ines" if at % 3 else "Bo")
        agent.say(f"turn {at} of boats")
    agent.memory.flush()
    return agent


def test_queries_are_embedded_together_and_read_at_one_position(agent: Any, provider: Batches) -> None:
    memory = agent.memory
    provider.sizes.clear()
    at_once = memory.search_many(QUERIES, limit=7)
    assert provider.sizes == [3]  # nothing is asked for an empty one
    assert len({result.position for result in at_once}) == 1
    assert [told(result) for result in at_once] == [told(memory.search(query, limit=7)) for query in QUERIES]
    assert provider.sizes == [3]  # remembered
    narrow = {"kinds": ["note"], "filter": {"entity": "Ines"}}
    assert [told(result) for result in memory.search_many(iter(QUERIES), **narrow)] == [
        told(memory.search(query, **narrow)) for query in QUERIES
    ]
    assert memory.search_many([]) == []


def test_what_is_committed_meanwhile_is_in_all_results_or_in_none(agent: Any, provider: Batches) -> None:
    provider.meanwhile.append(lambda: agent.note("one more note of rivers and lakes"))
    results = agent.memory.search_many(["rivers", "lakes"], kinds=["note"], limit=50)
    assert len({result.position for result in results}) == 1
    seen = [any("one more" in hit.content for hit in result.hits) for result in results]
    assert seen in ([True, True], [False, False])


def test_outage_costs_every_query_one_leg(agent: Any, provider: Batches) -> None:
    # M-040
    provider.failure = outage
    results = agent.memory.search_many(["lakes near here", "rivers far off", " "])
    assert [result.status for result in results[:2]] == ["degraded", "degraded"]
    assert all(result.hits for result in results)
    assert results[2].status == "ok"


def test_bad_input_is_refused_before_anything_is_embedded(agent: Any, provider: Batches) -> None:
    provider.sizes.clear()
    for wrong in ({"limit": 0}, {"kinds": ["dream"]}, {"limit": 1_000}):
        with pytest.raises(InputError):
            agent.memory.search_many(["lakes of old"], **wrong)
    with pytest.raises(InputError):
        agent.memory.search_many(["lakes of old", 7])
    assert provider.sizes == []
    with pytest.raises(Unavailable), caliber.deadline(0):
        agent.memory.search_many(["lakes of old"] * 2)


@needs("reopen")
def test_search_many_of_aio(backend: Any, provider: Batches) -> None:
    config = backend.config()

    async def ask() -> list[Any]:
        async with await caliber.aio.open(config, embedding_provider=provider) as memory:
            for at in range(6):
                await memory.add_note(
                    entity="x", entity_type="t", note_type="fact", content=f"lakes {at}", confidence=0.9
                )
            await memory.flush()
            provider.sizes.clear()
            found: list[Any] = await memory.search_many(["which lakes", "no rivers"], limit=3)
            assert provider.sizes == [2]
            assert [told(result) for result in found] == [
                told(await memory.search(query, limit=3)) for query in ("which lakes", "no rivers")
            ]
            return found

    caliber.create(config, exist_ok=True)
    found = asyncio.run(ask())
    assert len({result.position for result in found}) == 1
    assert [len(result.hits) for result in found] == [3, 3]


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
