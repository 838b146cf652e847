"""Several queries at once: one answer of the provider, one snapshot, each result as if asked alone. Issue 4, item 8."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.drawn import needs
from support.providers import CountingEmbeddings, outage

import caliber
from caliber.llm.protocols import FloatMatrix
from caliber.model import FixedClock
from caliber.model.errors import InputError, Unavailable

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
