"""The floor of search: a query that nothing in memory answers finds nothing, and one that is answered loses nothing.

Source: issue "Windows that hold the answer", Build 3; docs/search.md, The floor.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.embedding.service import Embeddings
from caliber.model import Edge, EdgeRelation, EntityRef, EntityType, ResultStatus
from caliber.search.opening import SearchEngine
from caliber.search.request import Pool, Request
from caliber.search.service import DEFAULT_LIMIT

pytestmark = pytest.mark.databases("one")

MAY, JULY = (datetime(2023, month, 8, 12, tzinfo=UTC) for month in (5, 7))
WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
SPACE = "hash-1:test@32"
HASHED = {
    "embedding_provider": {"provider_type": "hash", "model": "test", "dimensions": 32, "options": {}},
    "vector__dimensions": 32,
    "search__keyword__similar_words": "none",
}
SMALL_TALK = (
    "good morning, lovely weather today",
    "it rained the whole afternoon",
    "shall we order pizza tonight?",
    "the train was late again",
    "my neighbour paints her fence",
    "the printer ran out of paper",
)
NOTHING = (
    "zzzzqqq", "the", "please tell me", "hello", "what about it?", "can you please tell me", "qq*", "xyzzy plugh",
)  # fmt: skip


def by_words(backend: Any, start: Any) -> Any:
    """Return an agent whose store is searched by exact words alone."""
    settings = {"embedding_provider": None, "search__weights": WORDS, "search__keyword__similar_words": "none"}
    return talk(start(backend.open(backend.config(**settings))))


def by_vectors(backend: Any, start: Any) -> Any:
    """Return an agent whose store is searched by words and vectors, in a space whose least similarity is known."""
    settings = {**HASHED, "search__floor__similarity": {SPACE: 0.6}}
    return talk(start(backend.open(backend.config(**settings), embedding_provider=CountingEmbeddings(32))))


@pytest.fixture
def words(backend: Any, start: Any) -> Any:
    return by_words(backend, start)


@pytest.fixture
def vectors(backend: Any, start: Any) -> Any:
    return by_vectors(backend, start)


@pytest.fixture(params=[by_words, by_vectors])
def either(request: Any, backend: Any, start: Any) -> Any:
    return request.param(backend, start)


@pytest.fixture(params=[by_words, by_vectors], scope="module")
def read_only(request: Any, module_backend: Any, start: Any) -> Any:
    """An agent of all tests of this module that only search."""
    return request.param(module_backend, start)


def talk(agent: Any) -> Any:
    """Say a fact, and then a lot of small talk."""
    agent.say("my dog is called Pixel")
    for text in SMALL_TALK * 5:
        agent.say(text)
    agent.memory.flush()
    return agent


def contents(memory: Any, query: str, **options: Any) -> list[str]:
    return [hit.content for hit in memory.search(query, **options).hits]


@pytest.mark.parametrize("query", NOTHING)
def test_nothing_to_find_finds_nothing(read_only: Any, query: str) -> None:
    result = read_only.memory.search(query)
    assert (result.hits, result.status, result.reason) == ((), ResultStatus.EMPTY, None)


def test_a_fact_is_found_under_small_talk_and_alone(either: Any) -> None:
    memory = either.memory
    hits = contents(memory, "what is my dog called?")
    assert hits[0] == "my dog is called Pixel"
    # Neighbours borrow from it; later turns share nothing with the question.
    assert len(hits) <= 3
    assert contents(memory, "please tell me about my dog", limit=1) == ["my dog is called Pixel"]


def test_what_was_missing_is_told(vectors: Any) -> None:
    memory = vectors.memory
    below = memory.search("volcanoes of Peru, glaciers of Chile and the weather").below_floor
    assert below.least_similarity == pytest.approx(0.6)
    assert below.least_words == memory.config.search.floor.words
    assert 0 < below.words < below.least_words
    assert below.similarity is None or below.similarity < 0.6
    assert memory.search("what is my dog called?").below_floor is None
    assert memory.search("").below_floor is None


def test_one_note_is_enough_of_a_store(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Words of a small store must count as rare: half of this one's texts hold any of them.
    settings = {"embedding_provider": None, "search__weights": WORDS, "search__keyword__similar_words": "none"}
    monkeypatch.setattr("caliber.search.ranking.floor.WORDS_ALONE", 0.35)
    agent = start(backend.open(backend.config(**settings)))
    agent.note("the greyhound is called Biscuit")
    assert contents(agent.memory, "what is the name of the greyhound?") == ["the greyhound is called Biscuit"]
    assert contents(agent.memory, "which volcano erupted in Iceland?") == []


def test_a_long_message_need_not_be_covered(words: Any) -> None:
    message = (
        "So yesterday we finally repaired that old bicycle, cleaned the cellar, sorted books and photographs, and my"
        " cousin phoned from Lisbon about her exam. By the way, do you remember what my dog is called?"
    )
    assert "my dog is called Pixel" in contents(words.memory, message, limit=3)


def test_stop_words_are_found_in_quotes_or_in_a_row(words: Any) -> None:
    words.note("to be or not to be")
    memory = words.memory
    assert contents(memory, "to be") == []
    assert contents(memory, '"to be"') == ["to be or not to be"]
    assert contents(memory, "to be or not") == ["to be or not to be"]
    assert contents(memory, "be to not or") == []


def test_days_are_evidence(words: Any) -> None:
    words.note("we met the mayor", occurred_at=MAY)
    words.note("we met the plumber", occurred_at=JULY)
    memory = words.memory
    assert contents(memory, "in May 2023", kinds=["note"]) == ["we met the mayor"]
    assert contents(memory, "met whom in May 2023?", kinds=["note"])[0] == "we met the mayor"
    assert contents(memory, "zzzzqqq in March 2021") == []


def test_a_filter_that_leaves_only_weak_records_finds_nothing(words: Any) -> None:
    words.note("the dog of the neighbours barks", entity="street")
    words.note("the fence was painted", entity="house")
    memory = words.memory
    assert contents(memory, "barking dog", filter={"entity": "street"}) == ["the dog of the neighbours barks"]
    assert contents(memory, "barking dog", filter={"entity": "house"}) == []
    assert contents(memory, "", filter={"entity": "house"}) == ["the fence was painted"]
    assert contents(memory, "barking dog", filter='entity = "house"') == []


def test_many_queries_are_judged_each_by_itself(vectors: Any) -> None:
    queries = ["what is my dog called?", "zzzzqqq", "", "the"]
    many = vectors.memory.search_many(queries, limit=2)
    assert [bool(result.hits) for result in many] == [True, False, True, False]
    assert [result.status for result in many][1::2] == [ResultStatus.EMPTY] * 2


def test_links_lead_on_from_what_was_found(words: Any) -> None:
    greyhound, shelter, other = (
        words.note(text) for text in ("the greyhound came in spring", "opened at nine", "closed at ten")
    )
    ends = [EntityRef(EntityType.NOTE, note.note_id) for note in (greyhound, shelter)]
    words.memory.storage.edges.insert(Edge(words.trajectory_id, *ends, EdgeRelation.SUPPORTS, 1.0, 1.0, MAY))
    hits = words.memory.search("the greyhound", kinds=["note"]).hits
    assert [hit.id for hit in hits] == [greyhound.note_id, shelter.note_id]
    assert other.note_id not in {hit.id for hit in hits}


def test_a_space_without_a_measured_similarity_finds_what_is_near(backend: Any, start: Any) -> None:
    agent = start(backend.open(backend.config(**HASHED), embedding_provider=CountingEmbeddings(32)))
    talk(agent)
    assert agent.memory.search("zzzzqqq weather").hits
    # Words that ask for nothing do not find by vector either.
    assert agent.memory.search("please tell me").hits == ()


def test_without_its_vector_a_question_needs_one_known_word(backend: Any, start: Any) -> None:
    provider = CountingEmbeddings(32)
    settings = {**HASHED, "search__floor__similarity": {SPACE: 0.6}}
    agent = start(backend.open(backend.config(**settings), embedding_provider=provider))
    talk(agent)
    question = "volcanoes of Peru, glaciers of Chile and the weather"
    assert agent.memory.search(question).hits == ()
    provider.failure = outage
    result = agent.memory.search(question + "!")
    assert result.status == ResultStatus.DEGRADED
    assert "good morning, lovely weather today" in [hit.content for hit in result.hits]
    assert agent.memory.search("zzzzqqq, plugh").hits == ()


def test_the_floor_can_be_switched_off(backend: Any, start: Any) -> None:
    off = {"search__floor__words": 0.0, "search__floor__similarity": {SPACE: 0.6}}
    agent = start(backend.open(backend.config(**HASHED, **off), embedding_provider=CountingEmbeddings(32)))
    talk(agent)
    result = agent.memory.search("the weather of zzzzqqq")
    assert len(result.hits) == DEFAULT_LIMIT
    assert result.below_floor is None


def test_relevance_says_what_is_found(vectors: Any) -> None:
    memory = vectors.memory
    vectors.note("Pixel eats fish")
    vectors.note("the boiler is checked in autumn")
    memory.flush()
    engine = inspect(memory).engine
    snapshot, now = engine.memory.snapshot, engine.clock.now_us()

    def relevance(query: str, *, together: bool = False) -> dict[str, Any]:
        pools = [Pool(kind, None, 50, None) for kind in ("note", "turn")]
        request = Request(
            snapshot=snapshot,
            text=query,
            vector=engine.part(Embeddings).embedder.query(query),
            without_vector=None,
            space_id=engine.part(Embeddings).embedder.space.space_id,
            kinds=(),
            limit=1,
            readers=Readers(engine.part(TaskOwners), memory.principal),
            as_of_us=now,
            now_us=now,
        )
        found, degraded = engine.part(SearchEngine).searcher.relevance(request, pools, together=together)
        assert degraded is None
        return dict(zip(("note", "turn"), found, strict=True))

    asked = relevance("what does Pixel eat?", together=True)
    hits = memory.search("what does Pixel eat?", kinds=["note", "turn"], limit=100).hits
    got = {
        snapshot[kind].entity_id(row): score
        for kind, of_kind in asked.items()
        for row, score in zip(of_kind.rows.tolist(), of_kind.scores.tolist(), strict=True)
        if score > 0
    }
    assert got == {hit.id: hit.score for hit in hits}
    assert {round(of_kind.strength, 6) for of_kind in asked.values()} == {round(asked["note"].strength, 6)}
    assert asked["note"].strength >= 0.5

    nothing = relevance("zzzzqqq and the volcanoes of Peru")
    for of_kind in nothing.values():
        assert not of_kind.scores.any()
        assert all(not part.any() for part in of_kind.parts.values())
        assert of_kind.strength < 0.5
    alone = relevance("what is my dog called?")
    assert alone["turn"].scores.max() > 0
    assert not alone["note"].scores.any(), "a pool that is searched by itself has a floor of its own"
    rows = np.arange(snapshot["turn"].length)
    assert (alone["turn"].scores > 0).sum() < len(rows)
