"""Searches with what a caller has: a vector, a weight of meaning, an author, a tag, archived records; in both modes.

Source: M-031, M-099, B-092 to B-098; docs/search.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT
from support.providers import CountingEmbeddings

from caliber.model import AgentRole, FixedClock, Principal, PrincipalKind
from caliber.model.errors import DimensionMismatch, InputError, InvalidValue
from caliber.model.time import from_us
from caliber.schema.relations import NOTE

pytestmark = pytest.mark.usefixtures("full_text")

DIMENSIONS = 32
TEXTS = [f"{thing} {at} {place}" for at, thing in enumerate(("boats", "lakes", "rivers")) for place in "abcdefgh"]
PLANNER = Principal.agent("planner")
EXECUTOR = Principal(PrincipalKind.AGENT, "planner", AgentRole.EXECUTOR)
NAMESAKE = Principal.agent("planner@home")


class World:
    """A store of notes with vectors, and the cosines that NumPy makes of them."""

    def __init__(self, backend: Any, mode: str) -> None:
        self.provider = CountingEmbeddings(DIMENSIONS)
        settings = {
            "search__mode": mode,
            "search__min_similarity": 0.0,
            "search__keyword__similar_words": "none",
            "embedding__embed__default": "commit",
            "memories": [FACT],
            "write_behind__flush_interval_ms": 600_000,
        }
        self.config = backend.config(**settings)
        self.memory = backend.open(self.config, embedding_provider=self.provider, clock=FixedClock())
        self.notes = [self.add(text) for text in TEXTS]

    def add(self, text: str, writer: Any = None, **options: Any) -> Any:
        values = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5, **options}
        return (writer or self.memory).add_note(content=text, **values)

    def cosines(self, vector: Any) -> dict[Any, float]:
        stored = {row.owner_id: np.frombuffer(row.vector, "<f4") for row in self.memory.storage.embeddings.all()}
        return {key: float(row @ vector / np.linalg.norm(row) / np.linalg.norm(vector)) for key, row in stored.items()}


@pytest.fixture(params=["resident", "backend"])
def world(request: Any, backend: Any) -> World:
    return World(backend, request.param)


def ids(result: Any) -> list[Any]:
    return [hit.id for hit in result.hits]


def told(result: Any) -> Any:
    return [(hit.id, hit.score, hit.breakdown, hit.found_by) for hit in result.hits]


def test_a_vector_alone_ranks_by_meaning_and_beside_words_it_is_their_vector(world: World) -> None:
    # B-092, B-098
    memory, provider = world.memory, world.provider
    vector = provider.embed("e: lakes near b")
    provider.asked.clear()
    alone = memory.search(vector=vector, limit=5)
    cosines = world.cosines(vector)
    assert ids(alone) == sorted(cosines, key=lambda key: -cosines[key])[:5]
    assert {hit.found_by for hit in alone.hits} == {("vector",)}
    assert alone.analysis.weights == {"vector": 1, "keyword": 0, "graph": 0, "importance": 0}
    both = memory.search("rivers", vector=vector, limit=30, kinds=["note"])
    assert provider.asked == []  # no provider is asked for what the caller has
    assert {leg for hit in both.hits for leg in hit.found_by} == {"vector", "keyword"}
    assert told(memory.search("e: lakes near b", meaning=1, limit=5)) == told(alone)
    notes = memory.records("note")
    assert told(notes.search(vector=vector, limit=5)) == told(alone)
    assert told(notes.search("rivers", vector=list(vector), limit=30)) == told(both)
    assert told(memory.search_many(["rivers"], meaning=0.5)[0]) == told(memory.search("rivers", meaning=0.5))


def test_meaning_weighs_vectors_against_words_and_nothing_else(world: World) -> None:
    # B-092, B-094, B-098
    memory, provider = world.memory, world.provider
    memory.storage.notes.update(world.notes[5].note_id, importance=9.0)
    for meaning in (0, 0.25, 0.7):
        provider.asked.clear()
        found = memory.search(f"lakes a {meaning}", meaning=meaning, limit=50)
        assert found.analysis.weights == {"vector": meaning, "keyword": 1 - meaning, "graph": 0, "importance": 0}
        assert (provider.asked == []) is (meaning == 0)
        for hit in found.hits:
            parts = {name: value for name, value in hit.breakdown.items() if name in ("vector", "keyword")}
            assert parts.get("vector", 0) <= meaning + 1e-6
            assert parts.get("keyword", 0) <= 1 - meaning + 1e-6
    assert {leg for hit in memory.search("lakes a", meaning=0).hits for leg in hit.found_by} == {"keyword"}
    empty = memory.search("")
    assert told(memory.search(" ", meaning=0.7)) == told(empty)  # nothing to embed: recent and important records


@needs("reopen")
def test_without_a_provider_words_are_searched_and_vectors_of_the_caller(world: World, backend: Any) -> None:
    # B-098
    vector = world.provider.embed("e: lakes 1 c")
    expected = told(world.memory.search(vector=vector, limit=3, kinds=["note"]))
    mode = world.config.search.mode
    world.memory.close()
    silent = {"embedding_provider": None, "search__keyword__similar_words": "none"}
    with backend.open(
        backend.config(search__mode=mode, search__min_similarity=0.0, **silent), clock=FixedClock()
    ) as memory:
        words = memory.search("lakes", meaning=0.7)
        assert words.hits
        assert "no_embedding_provider" in words.reason
        assert {leg for hit in words.hits for leg in hit.found_by} == {"keyword"}
        assert told(memory.search(vector=vector, limit=3, kinds=["note"])) == expected
        if not memory.config.search.weights.vector:
            with pytest.raises(InvalidValue, match="meaning="):  # it would count nothing
                memory.search("lakes", vector=vector)


def test_what_an_author_wrote_is_found_in_any_role_and_by_no_namesake(world: World) -> None:
    # B-095
    memory = world.memory
    planner, executor, namesake = map(memory.acting_as, (PLANNER, EXECUTOR, NAMESAKE))
    own = [world.add("lakes of the plan", writer=planner), world.add("lakes of the work", writer=executor)]
    other = world.add("lakes of a namesake", writer=namesake)
    fact = planner.records("fact").insert(subject="lakes", kind="claim", content="lakes of a fact")
    memory.flush()
    wanted = {own[0].note_id, own[1].note_id, fact.record_id}
    for author in (PLANNER, EXECUTOR, "agent:planner"):
        assert set(ids(memory.search("lakes", author=author, limit=50))) == wanted, author
        assert set(ids(memory.search("", author=author, limit=50))) == wanted, author
    assert ids(memory.search("lakes", author=own[1].created_by)) == [own[1].note_id]
    assert ids(memory.search("lakes", author=NAMESAKE)) == [other.note_id]
    assert ids(memory.records("fact").search("lakes", author=PLANNER)) == [fact.record_id]
    assert memory.search("lakes", author="agent:nobody").hits == ()
    assert ids(memory.search("lakes", author=PLANNER, filter='kind = "claim"')) == [fact.record_id]
    assert ids(memory.search("lakes", author=PLANNER, filter={"entity": "e"}, kinds=["note"], limit=1)) != []
    for wrong in ({"kinds": ["turn"]}, {"filter": {"role": "user"}}):
        with pytest.raises(InvalidValue, match="author"):
            memory.search("lakes", author=PLANNER, **wrong)


def test_tags_are_filtered_by_in_a_mapping_as_in_words(world: World) -> None:
    memory = world.memory
    one = world.add("lakes tagged", tags=["blue", "deep"]).note_id
    two = world.add("lakes tagged too", tags=["green"]).note_id
    for asked, wanted in (("blue", {one}), (["blue", "green"], {one, two}), ("red", set()), ([], set())):
        assert set(ids(memory.search("lakes", filter={"tags": asked}))) == wanted, asked
    assert ids(memory.search("lakes", filter='tags contains "deep"')) == [one]
    assert ids(memory.search("lakes", filter={"tags": "blue", "entity": "e"})) == [one]
    # What commits later is found too, and what is gone is not: masks are kept from search to search.
    three = world.add("lakes tagged last", tags=["blue"]).note_id
    memory.storage.notes.delete(one)
    assert ids(memory.search("lakes", filter={"tags": "blue"})) == [three]
    with pytest.raises(InvalidValue, match="tags"):
        memory.search("lakes", filter={"tags": 7})


def test_archived_records_are_found_where_they_are_asked_for(world: World) -> None:
    # M-031, M-099
    memory, notes = world.memory, world.memory.storage.notes
    reader = memory.acting_as(PLANNER)
    now = from_us(inspect(memory).engine.clock.now_us())
    old, gone, hidden = (world.add(f"quokka number {at}") for at in range(3))
    kept = world.add("quokka in use")
    facts = memory.records("fact")
    fact = facts.insert(subject="quokka", kind="claim", content="quokka as a fact")
    assert set(ids(memory.search("quokka"))) >= {old.note_id, gone.note_id, fact.record_id}
    notes.update(old.note_id, archived_at=now)
    notes.update(gone.note_id, superseded_by=kept.note_id)
    notes.update(hidden.note_id, archived_at=now, visible_to=("agent:nobody",))
    facts.archive(fact.record_id)
    assert ids(memory.search("quokka", meaning=0)) == [kept.note_id]
    for options in ({"meaning": 0}, {"meaning": 1}, {}):
        every = memory.search("quokka", include_archived=True, limit=99, **options)
        assert {old.note_id, kept.note_id, fact.record_id} <= set(ids(every)), options
        assert gone.note_id not in ids(every)
    seen = set(ids(reader.search("quokka", include_archived=True, meaning=0)))
    assert seen == {old.note_id, kept.note_id, fact.record_id}
    assert ids(facts.search("quokka", include_archived=True)) == [fact.record_id]
    assert facts.search("quokka").hits == ()
    assert old.note_id in ids(memory.search("", include_archived=True, limit=99, kinds=["note"]))
    assert ids(memory.search("quokka", meaning=0)) == [kept.note_id]  # nothing is left of it in the next search
    tagged = replace(notes.get(old.note_id), tags=("blue",))
    notes.update(tagged.note_id, tags=tagged.tags)
    assert ids(memory.search("quokka", include_archived=True, filter={"tags": "blue"})) == [old.note_id]
    assert NOTE.archive == "archived_at"


def test_wrong_options_are_refused(world: World) -> None:
    memory, zeros = world.memory, [0.0] * DIMENSIONS
    for wrong in (
        {"meaning": 1.5}, {"meaning": -0.1}, {"meaning": float("nan")}, {"meaning": "much"}, {"meaning": True},
        {"vector": zeros}, {"vector": "lakes"}, {"vector": [float("nan")] * DIMENSIONS}, {"vector": [zeros]},
        {"author": ""}, {"author": 7}, {"include_archived": 1}, {"include_archived": "yes"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            memory.search("lakes", **wrong)
    with pytest.raises(DimensionMismatch):
        memory.search(vector=[1.0])
