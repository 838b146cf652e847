"""Declared memories searched through the database: what memory answers, to the last bit, whatever was done to them.

Source: C-135, C-138, K-171; docs/decisions/0183.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from support.memories import FACT, STEP
from support.providers import CountingEmbeddings

import caliber
from caliber.model import AgentRole, FixedClock, Principal, PrincipalKind, ResultStatus
from caliber.model.errors import SchemaMismatch
from caliber.runtime.full_text import check_full_text
from caliber.runtime.opening import plan_migration

pytestmark = pytest.mark.usefixtures("full_text")

PLACE = {
    "name": "place",
    "type": "semantic",
    "fields": [
        {"name": "title", "type": "text"},
        {"name": "story", "type": "text", "optional": True},
        {"name": "rank", "type": "int", "optional": True},
        {"name": "importance", "type": "float", "optional": True},
        {"name": "sure", "type": "bool", "optional": True},
    ],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "title", "type": "gin"}, {"field": "story", "type": "gin"}],
}
ALL = [FACT, STEP, PLACE]
WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
MAY = datetime(2023, 5, 8, 12, tzinfo=UTC)
READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
QUERIES = (
    "boats on the lake", '"painted the boat"', "happ*", "backup_host", "did Ines paint?", "zebra", "", "last week",
    "in May 2023", "who was it in May?", "b*", "to be or not to be", "l'lake \x00 東京",
)  # fmt: skip


def opened(backend: Any, mode: str, **options: Any) -> Any:
    quiet = {"search__keyword__similar_words": "none", "embedding__embed_memories": "commit"}
    settings = backend.config(memories=ALL, search__mode=mode, **{**quiet, **options})
    return backend.open(settings, embedding_provider=CountingEmbeddings(32), clock=FixedClock())


def fill(agent: Any) -> None:
    memory = agent.memory
    pairs = itertools.product(("Ines", "Omar"), ("saw", "happily painted"), ("boat", "lakes"), ("backup_host", "Oslo"))
    for at, (who, verb, thing, place) in enumerate(pairs):
        text = f"{who} {verb} the {thing} near {place}{'?' if at % 5 == 0 else '.'} {at}"
        memory.memory("fact").insert(
            subject=who, kind="claim" if at % 3 else "rumour", content=text, score=at / 8 or None, count=at,
            certain=bool(at % 2), seen_at=MAY, scope=agent.scope_id if at % 4 == 0 else None,
            trust="web" if at % 6 == 0 else None,
        )  # fmt: skip
        memory.memory("place").insert(
            title=f"{place} {at}", story=text if at % 2 else None, rank=at % 4, importance=at / 2, sure=at % 3 == 0,
            occurred_at=MAY if at % 4 == 0 else None,
        )  # fmt: skip
        agent.note(f"a note of {thing} {at}", entity=who)
    memory.memory("place").insert(title="東京 l'lake \x00 end")
    memory.flush()


@pytest.fixture
def pair(backend: Any, start: Any) -> Any:
    """Two handles on one store: one searches the database, the other memory."""
    backend.needs("sharing")
    stored = start(opened(backend, "backend"))
    fill(stored)
    return stored, opened(backend, "resident")


def told(result: Any) -> Any:
    """Return all that a result says, apart from being degraded."""
    hits = [(hit.id, hit.kind, hit.content, hit.score, hit.breakdown, hit.found_by, hit.snippet) for hit in result.hits]
    return hits, result.understood, result.position


def same(stored: Any, resident: Any, query: str, **options: Any) -> Any:
    expected = resident.search(query, consistency="latest", **options)
    result = stored.search(query, **options)
    assert told(result) == told(expected), (query, options)
    assert (result.status, result.reason) == (ResultStatus.DEGRADED, "not_resident")
    return result


def test_same_hits_scores_and_reasons_as_from_memory(pair: Any) -> None:  # C-138
    stored, resident = pair[0].memory, pair[1]
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"limit": 3},
        {"kinds": ["fact"]},
        {"kinds": ["place", "note"]},
        {"kinds": ["fact"], "filter": {"subject": "Ines"}},
        {"kinds": ["fact"], "filter": {"kind": ["claim"], "count": [1, 2, 3, 4.0, 7]}},
        {"kinds": ["place"], "filter": {"sure": 1, "rank": [0, 1]}},
        {"filter": {"trust": ["web"]}},
        {"filter": {"seen_at": MAY}, "limit": 4},
        {"filter": {"scope_id": pair[0].scope_id}},
        {"filter": {"subject": []}},
        {"kinds": ["fact"], "filter": 'score > 0.5 and kind = "claim" and content contains "boat"'},
        {"filter": 'trust != "web"'},
        {"filter": "rank >= 2"},
    )
    for query, options in itertools.product(QUERIES, asked):
        same(stored, resident, query, **options)
    for kind in ("fact", "place"):
        assert {hit.kind for hit in stored.memory(kind).search("boat").hits} == {kind}
        found = stored.memory(kind).search("boats near Oslo", "count > 3" if kind == "fact" else {"rank": 3}, limit=4)
        assert 0 < len(found.hits) <= 4
    assert "vector" in {leg for hit in stored.memory("fact").search("something else").hits for leg in hit.found_by}
    one, two = stored.acting_as(READER), resident.acting_as(READER)
    assert same(one, two, "boats on the lake", kinds=["fact"]).hits
    many = stored.search_many(QUERIES[:3], kinds=["fact"])
    assert [told(each)[0] for each in many] == [told(stored.search(query, kinds=["fact"]))[0] for query in QUERIES[:3]]


def test_the_index_follows_every_change(pair: Any) -> None:
    agent, resident = pair
    memory, facts, places = agent.memory, agent.memory.memory("fact"), agent.memory.memory("place")
    made = facts.insert_many(
        [{"subject": f"s{at}", "kind": "claim", "content": f"walrus number {at}"} for at in range(5)]
    )
    facts.update(made[0].record_id, content="an otter")
    facts.update(made[1].record_id, score=0.5)
    facts.archive(made[2].record_id)
    facts.delete(made[3].record_id)
    said = places.insert(title="walrus bay", story="otters")
    places.update(said.record_id, title="a bay")
    ids = {hit.id for hit in memory.search("walrus", kinds=["fact", "place"]).hits if "keyword" in hit.found_by}
    assert ids == {made[1].record_id, made[4].record_id}
    assert {hit.id for hit in places.search("otter").hits} == {said.record_id}
    for query in ("walrus", "otter", "walrus bay", ""):
        same(memory, resident, query)
    assert check_full_text(memory._engine.store, memory.config) == []
    assert memory.storage.check() == []


def without(memory: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**memory, "fields": [item for item in memory["fields"] if item["name"] not in names]}


def sound(memory: Any) -> bool:
    return check_full_text(memory._engine.store, memory.config) == []


def test_migrations_take_the_index_along(backend: Any) -> None:  # C-130
    backend.needs("reopen")

    def settings(*memories: Any) -> Any:
        return backend.config(
            memories=memories, search__mode="backend", search__weights=WORDS, embedding_provider=None,
            search__keyword__similar_words="none",
        )  # fmt: skip

    title_only = {**PLACE, "indexes": PLACE["indexes"][:1]}
    with backend.open(settings()) as memory:
        memory.add_note(entity="x", entity_type="t", note_type="fact", content="a walrus", confidence=0.5)
    lines = [line for step in plan_migration(settings(title_only)).steps for line in step.statements]
    assert any("text_m64" in line for line in lines), "what full text needs is told too"
    caliber.migrate(settings(title_only))
    with backend.open(settings(title_only)) as memory:
        assert sound(memory)
        memory.memory("place").insert(title="a bay", story="full of walrus")
        assert [hit.kind for hit in memory.search("walrus").hits] == ["note"]
    caliber.migrate(settings(PLACE))  # a text becomes searchable: what is there is indexed by it
    with backend.open(settings(PLACE)) as memory:
        assert sound(memory)
        assert [hit.kind for hit in memory.memory("place").search("walrus").hits] == ["place"]
    less = {**without(PLACE, "story"), "indexes": PLACE["indexes"][:1]}
    caliber.migrate(settings(less), drop=["place.story"])
    with backend.open(settings(less)) as memory:
        assert sound(memory)
        assert memory.memory("place").search("walrus").hits == ()
        assert len(memory.memory("place").search("bay").hits) == 1
    caliber.migrate(settings(), drop=["place"])
    with backend.open(settings()) as memory:
        assert sound(memory)
        assert len(memory.search("walrus").hits) == 1
    caliber.migrate(settings(PLACE))  # a namesake, with a number of its own
    with backend.open(settings(PLACE)) as memory:
        made = memory.memory("place").insert(title="another walrus bay")
        assert [hit.id for hit in memory.memory("place").search("walrus bay").hits] == [made.record_id]
        assert sound(memory)
        assert memory._engine.store.full_text.state().memories == {65: ("title", "story")}
        assert memory._engine.store.full_text.drop()
        assert memory._engine.store.full_text.state() is None


def test_who_has_the_store_open_cannot_spoil_what_is_searched(backend: Any) -> None:
    backend.needs("sharing")
    title_only = {**PLACE, "indexes": PLACE["indexes"][:1]}
    old, asking = (backend.open(memories=[title_only], search__mode=mode) for mode in ("backend", "backend"))
    old.memory("place").insert(title="a bay", story="walrus")
    caliber.migrate(backend.config(memories=[PLACE], search__mode="backend"))
    new = backend.open(memories=[PLACE], search__mode="backend")
    assert len(new.memory("place").search("walrus").hits) == 1
    with pytest.raises(SchemaMismatch, match="open it again"):
        asking.memory("place").search("bay")
    assert asking.search("bay", kinds=["note"]).hits == ()
    old.memory("place").insert(title="another bay", story="seals")  # by the words of its title alone
    with pytest.raises(SchemaMismatch, match=r"not complete.*rebuild-search"):
        new.search("seals")
    new.storage.rebuild_search()
    assert {hit.content for hit in new.search("seals", kinds=["place"]).hits if "keyword" in hit.found_by} == {
        "another bay\nseals"
    }
    caliber.migrate(backend.config(), drop=["place"])
    with pytest.raises(SchemaMismatch, match="open it again"):
        new.memory("place").search("seals")
    assert new.search("seals", kinds=["note"]).hits == ()
