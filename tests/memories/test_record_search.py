"""Declared memories in searches, alone and among the others, by words and meaning; and when they have vectors.

Source: C-135, C-138; docs/memories.md.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.configs import HASH_PROVIDER
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT, STEP
from support.providers import CountingEmbeddings

import caliber
from caliber.model import FixedClock
from caliber.model.errors import InvalidValue, NotFound, Unavailable
from caliber.schema.relations import EMBEDDING
from caliber.storage.compile.conditions import StoredFilter

PLACE = {
    "name": "place",
    "type": "semantic",
    "fields": [{"name": "title", "type": "text"}, {"name": "story", "type": "text", "optional": True},
               {"name": "rank", "type": "int", "optional": True}],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "title", "type": "gin"}, {"field": "story", "type": "gin"}],
}  # fmt: skip
CODE = {
    "name": "sort",
    "type": "semantic",
    "fields": [{"name": "order", "type": "text"}],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "order", "type": "gin"}],
}
ALL = [FACT, STEP, PLACE, CODE]


def opened(backend: Any, mode: str = "commit", **options: Any) -> Any:
    settings = backend.config(
        memories=ALL, embedding__embed__default=mode, search__keyword__similar_words="none", **options
    )
    return backend.open(settings, embedding_provider=CountingEmbeddings(32))


def said(result: Any) -> list[tuple[str, str]]:
    return [(hit.kind, hit.content) for hit in result.hits]


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_records_are_found_by_words_alone_and_among_others(backend: Any, start: Any, mode: str) -> None:
    memory = opened(backend, search__mode=mode)
    agent = start(memory)
    places = memory.records("place")
    harbour = places.insert(title="The old harbour", story="zebra crossings everywhere", rank=1)
    places.insert(title="A mill", story="where flour was ground", rank=2)
    memory.records("sort").insert(order="zebra first")
    agent.note("a zebra was seen")
    found = places.search("zebra")
    assert said(found)[0] == ("place", "The old harbour\nzebra crossings everywhere")
    assert found.hits[0].id == harbour.record_id
    assert "keyword" in found.hits[0].found_by
    assert places.search("harbour").hits[0].id == harbour.record_id
    assert {hit.kind for hit in memory.search("zebra").hits} == {"note", "place", "sort"}
    assert said(memory.search("zebra", kinds=["sort"])) == [("sort", "zebra first")]
    assert [hit.kind for hit in memory.search("zebra", kinds=["place"]).hits] == ["place"]
    assert memory.search("zebra", kinds=["turn"]).hits == ()
    assert [hit.id for hit in places.search("flour", "rank = 2").hits] != [harbour.record_id]
    assert [hit.id for hit in places.search("zebra flour", "rank = 1").hits] == [harbour.record_id]
    assert [hit.id for hit in places.search("", {"rank": 1}).hits] == [harbour.record_id]
    assert {hit.kind for hit in memory.search("", filter="rank >= 1").hits} == {"place"}
    assert places.search('"zebra crossings"').hits[0].id == harbour.record_id
    changed = places.update(harbour.record_id, story="a quiet quay")
    assert "keyword" not in {leg for hit in places.search("zebra").hits for leg in hit.found_by}
    assert said(places.search("quay"))[0] == ("place", "The old harbour\na quiet quay")
    places.archive(changed.record_id)
    assert harbour.record_id not in {hit.id for hit in places.search("quay").hits}
    assert memory.get(harbour.record_id).archived_at is not None
    places.delete(changed.record_id)
    with pytest.raises(NotFound):
        memory.get(harbour.record_id)
    for call, message in (
        (lambda: memory.records("step").search("x"), "no embedding and no text"),
        (
            lambda: memory.search("x", kinds=["step"]),
            "unknown kind; there are note, artifact, turn, scope, todo, fact, place",
        ),
    ):
        with pytest.raises(InvalidValue, match=message):
            call()


@pytest.mark.parametrize("mode", ["commit", "behind", "off"])
def test_records_have_vectors_when_the_configuration_says(backend: Any, mode: str) -> None:  # C-135
    memory = opened(backend, mode)
    facts = memory.records("fact")
    made = facts.insert_many(
        [{"subject": f"s{at}", "kind": "claim", "content": f"the lakes of the north {at}"} for at in range(3)]
    )
    facts.insert(subject="silent", kind="claim")  # nothing to embed
    embeddings = memory.storage.embeddings
    if mode == "commit":
        assert embeddings.count() == 3
    memory.flush()
    assert embeddings.count() == (0 if mode == "off" else 3)
    found = facts.search("the lakes of the north 1")
    assert found.hits[0].id == made[1].record_id
    assert ("vector" in found.hits[0].breakdown and found.hits[0].breakdown["vector"] > 0) is (mode != "off")
    assert found.pending == 0
    facts.update(made[0].record_id, score=0.5)  # says the same
    facts.update(made[1].record_id, content="mountains")
    if mode == "commit":
        assert embeddings.count() == 3
    memory.flush()
    assert embeddings.count() == (0 if mode == "off" else 3)
    facts.update(made[2].record_id, content=None)
    facts.delete(made[0].record_id)
    memory.flush()
    assert embeddings.count() == (0 if mode == "off" else 1)
    assert {row.owner_type for row in embeddings.all()} == (set() if mode == "off" else {"memory_fact"})
    (space,) = memory.storage.embedding_spaces.report()
    assert space.pending == 0
    assert memory.admin.verify() == []
    assert memory.admin.check() == []


@needs("reopen")
def test_what_lacks_a_vector_gets_one_after_reopening(backend: Any) -> None:
    with opened(backend, "off") as memory:
        made = memory.records("fact").insert(subject="Ada", kind="claim", content="the lakes")
        memory.flush()
        assert memory.storage.embeddings.count() == 0
    with opened(backend, "behind") as memory:
        memory.flush()
        assert [row.owner_id for row in memory.storage.embeddings.all()] == [made.record_id]


TEXTS = [
    f"{who} {verb} the {thing} near {place}{'?' if at % 5 == 0 else '.'} {at}"
    for at, (who, verb, thing, place) in enumerate(
        itertools.product(("Ines", "Omar"), ("saw", "happily painted"), ("boat", "lakes"), ("backup_host", "Lisbon"))
    )
]
QUERIES = (
    "boats on the lake", '"painted the boat"', "happ*", "backup_host", "did Ines paint?", "zebra", "", "last week",
)  # fmt: skip


def test_a_declared_memory_is_searched_as_artifacts_are(backend: Any, start: Any) -> None:
    """The same texts at the same time, without a head: the same hits, scores and reasons, bit for bit."""
    quiet = {"search__keyword__similar_words": "none", "embedding__embed__artifact": "commit"}
    settings = backend.config(memories=ALL, **quiet)
    memory = backend.open(settings, embedding_provider=CountingEmbeddings(32), clock=FixedClock())
    agent = start(memory)
    for at, text in enumerate(TEXTS):
        agent.keep(text)
        memory.records("fact").insert(subject=f"s{at}", kind="claim", content=text)
    memory.flush()

    def told(kind: str, query: str, **options: Any) -> Any:
        result = memory.search(query, kinds=[kind], limit=9, **options)
        hits = [(hit.content, hit.score, hit.breakdown, hit.found_by, hit.snippet) for hit in result.hits]
        return hits, result.status, result.analysis

    for query in QUERIES:
        assert told("fact", query) == told("artifact", query), query
        some = 'content contains "Ines"' if query else "token_count > 0"
        assert all("Ines" in hit[0] or not query for hit in told("fact", query, filter=some)[0])
    assert len(told("fact", "boats on the lake")[0]) == 9


@needs("sharing")
def test_others_find_what_was_written_here(backend: Any) -> None:
    one, other = opened(backend), opened(backend)
    made = one.records("place").insert(title="quay", story="a quiet quay")
    assert [hit.id for hit in other.search("quay", consistency="latest").hits] == [made.record_id]
    one.records("place").delete(made.record_id)
    assert other.search("quay", consistency="latest").hits == ()


@needs("full text")
def test_the_time_of_a_call_bounds_its_filter(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened(backend, search__mode="backend")
    memory.add_note(entity="x", entity_type="t", note_type="fact", content="lakes", confidence=0.5)
    with caliber.deadline(60_000):
        assert len(memory.search("lakes", filter="confidence > 0.1").hits) == 1
    real = StoredFilter.ordinals

    def late(self: StoredFilter, session: Any, variables: Any, *, check: Any = None, **options: Any) -> Any:
        def passed() -> None:
            raise Unavailable("the deadline passed", reason="timeout")

        assert check is not None
        return real(self, session, variables, check=passed, **options)

    monkeypatch.setattr(StoredFilter, "ordinals", late)
    with pytest.raises(Unavailable), caliber.deadline(60_000):
        memory.search("lakes", filter="confidence > 0.1")


@needs("reopen")
def test_another_model_embeds_declared_memories_too(backend: Any) -> None:  # K-101
    newer = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}

    def settings(provider: Any, **more: Any) -> Any:
        knobs = {"embedding_provider": provider, "vector__dimensions": provider["dimensions"]}
        knobs |= {"search__keyword__similar_words": "none", "embedding__reembed": "manual"}
        return backend.config(memories=ALL, **{**knobs, **more})

    with backend.open(settings(HASH_PROVIDER)) as memory:
        rows = [{"subject": f"s{at}", "kind": "claim", "content": f"what is known of {at}"} for at in range(5)]
        made = memory.records("fact").insert_many(rows)
        memory.flush()
    with backend.open(settings(newer)) as memory:
        came = memory.storage.embedding_spaces.reembed()
        assert (came.made, came.done, came.total, came.in_use) == (5, 5, 5, True)
        hit = memory.records("fact").search("what is known of 3").hits[0]
        assert hit.id == made[3].record_id
        assert hit.breakdown["vector"] > 0
        memory.flush()  # the worker has looked for what lacks a vector: it will not find what is lost now
        inspect(memory).write(lambda uow: uow.remove(EMBEDDING, "embedding.drop_owner", made[0].record_id.bytes))
        rebuilt = memory.admin.rebuild_search()
        assert (rebuilt.vectors, rebuilt.texts, rebuilt.differences) == (1, 5, ())
        assert memory.admin.check() == []
