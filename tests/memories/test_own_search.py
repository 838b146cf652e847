"""Declared memories searched through the database: what memory answers, to the last bit, whatever was done to them.

Source: C-135, C-138, K-171; docs/decisions/0209.
"""

from __future__ import annotations

import itertools
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from support.context.limits import set_limits
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT, STEP
from support.providers import CountingEmbeddings
from support.search.closeness import check_close, compared

import caliber
from caliber.admin.checking import check_full_text
from caliber.api.opening import plan_migration
from caliber.backends import backend as backend_module
from caliber.model import (
    AgentRole,
    Edge,
    EdgeRelation,
    EntityRef,
    EntityType,
    FixedClock,
    Principal,
    PrincipalKind,
    SystemClock,
)
from caliber.model.errors import InvalidValue, SchemaMismatch
from caliber.model.references import EdgeId
from caliber.search.in_database.full_text import WordIndexer
from caliber.storage.compile.codec import codec_of
from caliber.storage.sql.full_text import text_table, texts_of
from caliber.storage.sql.search_statements import search_contracts

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
DRAFT = {
    "name": "draft",
    "type": "working",
    "fields": [{"name": "words", "type": "text"}],
    "retention": {"kind": "scope"},
    "indexes": [{"field": "words", "type": "gin"}],
}
ALL = [FACT, STEP, PLACE, DRAFT]
WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
MAY = datetime(2023, 5, 8, 12, tzinfo=UTC)
READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
QUERIES = (
    "boats on the lake", '"painted the boat"', "happ*", "backup_host", "did Ines paint?", "zebra", "", "last week",
    "in May 2023", "who was it in May?", "b*", "to be or not to be", "l'lake \x00 東京",
)  # fmt: skip


def opened(backend: Any, mode: str, clock: FixedClock | None = None, **options: Any) -> Any:
    quiet = {"search__keyword__similar_words": "none", "embedding__embed__default": "commit"}
    settings = backend.config(memories=ALL, search__mode=mode, **{**quiet, **options})
    return backend.open(settings, embedding_provider=CountingEmbeddings(32), clock=clock or FixedClock())


def fill(agent: Any) -> None:
    memory = agent.memory
    pairs = itertools.product(("Ines", "Omar"), ("saw", "happily painted"), ("boat", "lakes"), ("backup_host", "Oslo"))
    facts, places = [], []
    for at, (who, verb, thing, place) in enumerate(pairs):
        text = f"{who} {verb} the {thing} near {place}{'?' if at % 5 == 0 else '.'} {at}"
        facts.append({
            "subject": who, "kind": "claim" if at % 3 else "rumour", "content": text, "score": at / 8 or None,
            "count": at, "certain": bool(at % 2), "seen_at": MAY,
            "trust": "web" if at % 6 == 0 else "user",
        })  # fmt: skip
        places.append({
            "title": f"{place} {at}", "story": text if at % 2 else None, "rank": at % 4, "importance": at / 2,
            "sure": at % 3 == 0, "occurred_at": MAY if at % 4 == 0 else None,
        })  # fmt: skip
    memory.records("fact").insert_many(facts[:8], scope=agent.scope_id)
    memory.records("fact").insert_many(facts[8:])
    memory.records("place").insert_many([*places, {"title": "東京 l'lake \x00 end", "importance": 1e23}])
    for thing in ("boat", "lake"):
        agent.note(f"a note of the {thing}", entity="Ines")
    memory.flush()


def told(result: Any) -> Any:
    """Return all that a result says, apart from being degraded."""
    hits = [(hit.id, hit.kind, hit.content, hit.score, hit.breakdown, hit.found_by, hit.snippet) for hit in result.hits]
    return hits, result.analysis, result.position


def close(stored: Any, resident: Any, query: str, **options: Any) -> Any:
    result, share, _ = compared(stored, resident, query, **options)
    assert share >= 0.6, (query, options)
    return result


@needs("sharing")
def test_hits_are_close_to_those_from_memory_whatever_is_changed(backend: Any, start: Any) -> None:  # C-138
    agent = start(opened(backend, "backend"))
    fill(agent)
    stored, resident = agent.memory, opened(backend, "resident")
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
        {"filter": {"scope_id": agent.scope_id}},
        {"filter": {"subject": []}},
        {"kinds": ["fact"], "filter": 'score > 0.5 and kind = "claim" and content contains "boat"'},
        {"filter": 'trust != "web"'},
        {"filter": "rank >= 2"},
    )
    questions = [(query, asked[place % len(asked)]) for at, query in enumerate(QUERIES) for place in (at, 3 * at + 1)]
    check_close(stored, resident, [*questions, *(("boats on the lake", options) for options in asked)], least=0.9)
    # A value, whatever its size or spelling; none where one may be lacking; never what stands for none in memory.
    known: tuple[tuple[dict[str, Any], int], ...] = (
        ({"sure": True}, 6), ({"sure": [False, 0]}, 10), ({"sure": None}, 1), ({"sure": [None, True]}, 7),
        ({"sure": 2}, 0), ({"scope_id": None, "rank": None}, 1), ({"rank": -(2**63)}, 0),
        ({"rank": [10**400, 1e300, math.inf]}, 0),
        ({"importance": [1e23, math.inf]}, 1), ({"importance": [-math.inf, 10**400]}, 0), ({"archived_at": None}, 17),
    )  # fmt: skip
    for condition, count in known:
        result = close(stored, resident, "", kinds=["place"], filter=condition, limit=20)
        assert len(result.hits) == count, condition
    with pytest.raises(InvalidValue, match=r"filter\.rank.*number"):
        stored.search("", kinds=["place"], filter={"rank": True})
    with pytest.raises(InvalidValue, match=r"filter\.sure.*true or false"):
        resident.search("", kinds=["place"], filter={"sure": "yes"})
    for kind in ("fact", "place"):
        assert {hit.kind for hit in stored.records(kind).search("boat").hits} == {kind}
        found = stored.records(kind).search("boats near Oslo", "count > 3" if kind == "fact" else {"rank": 3}, limit=4)
        assert 0 < len(found.hits) <= 4
    assert "vector" in {leg for hit in stored.records("fact").search("something else").hits for leg in hit.found_by}
    one, two = stored.acting_as(READER), resident.acting_as(READER)
    assert close(one, two, "boats on the lake", kinds=["fact"]).hits
    many = stored.search_many(QUERIES[:3], kinds=["fact"])
    assert [told(each)[0] for each in many] == [told(stored.search(query, kinds=["fact"]))[0] for query in QUERIES[:3]]

    _changed(agent, resident)


def _changed(agent: Any, resident: Any) -> None:
    """Change records in every way, and compare what is found then."""
    memory, facts, places = agent.memory, agent.memory.records("fact"), agent.memory.records("place")
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
    drafts = memory.records("draft")
    drafts.insert(words="a walrus that goes with its scope", scope=agent.scope_id)
    assert len(drafts.search("walrus").hits) == 1
    memory.close_scope(agent.scope_id)
    assert drafts.search("walrus").hits == ()
    for query in ("walrus", "otter", "walrus bay", ""):
        close(memory, resident, query)
    assert check_full_text(inspect(memory).store, memory.config) == []
    assert memory.admin.check() == []


def without(memory: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**memory, "fields": [item for item in memory["fields"] if item["name"] not in names]}


def sound(memory: Any) -> bool:
    return check_full_text(inspect(memory).store, memory.config) == []


@needs("reopen")
def test_migrations_take_the_index_along(backend: Any) -> None:  # C-130

    def settings(*memories: Any) -> Any:
        return backend.config(
            memories=memories, search__mode="backend", search__weights=WORDS, embedding_provider=None,
            search__keyword__similar_words="none",
        )  # fmt: skip

    title_only = {**PLACE, "indexes": PLACE["indexes"][:1]}
    with backend.open(settings()) as memory:
        memory.add_note(entity="x", entity_type="t", note_type="fact", content="a walrus", confidence=0.5)
    lines = [line for step in plan_migration(settings(title_only)).steps for line in step.statements]
    assert any("text_state" in line for line in lines), "what full text needs is told too"
    caliber.migrate(settings(title_only))
    with backend.open(settings(title_only)) as memory:
        assert sound(memory)
        memory.records("place").insert(title="a bay", story="full of walrus")
        assert [hit.kind for hit in memory.search("walrus").hits] == ["note"]
    told: list[tuple[int, int]] = []
    module = backend_module(settings(PLACE).storage.adapter)
    module.migrate(settings(PLACE), clock_us=SystemClock().now_us)  # and killed before what is there is indexed
    with pytest.raises(SchemaMismatch, match="not complete"):
        backend.open(settings(PLACE))
    caliber.migrate(settings(PLACE), progress=lambda _, *done: told.append(done))
    assert told[-1] == (2, 2), "a text becomes searchable: what is there is indexed by it"
    with backend.open(settings(PLACE)) as memory:
        assert sound(memory)
        assert [hit.kind for hit in memory.records("place").search("walrus").hits] == ["place"]
    less = {**without(PLACE, "story"), "indexes": PLACE["indexes"][:1]}
    caliber.migrate(settings(less), drop=["place.story"])
    with backend.open(settings(less)) as memory:
        assert sound(memory)
        assert memory.records("place").search("walrus").hits == ()
        assert len(memory.records("place").search("bay").hits) == 1
    caliber.migrate(settings(), drop=["place"])
    with backend.open(settings()) as memory:
        assert sound(memory)
        assert len(memory.search("walrus").hits) == 1
    caliber.migrate(settings(PLACE))  # a namesake, with a number of its own
    with backend.open(settings(PLACE)) as memory:
        made = memory.records("place").insert(title="another walrus bay")
        assert [hit.id for hit in memory.records("place").search("walrus bay").hits] == [made.record_id]
        assert sound(memory)
        assert inspect(memory).store.full_text.state().memories == {65: ("title", "story")}
        assert inspect(memory).store.full_text.drop()
        assert inspect(memory).store.full_text.state() is None


@needs("sharing")
def test_who_has_the_store_open_keeps_the_index_as_it_is_now(backend: Any) -> None:
    plain = {**PLACE, "indexes": []}
    title_only = {**PLACE, "indexes": PLACE["indexes"][:1]}
    more = {**PLACE, "fields": [*PLACE["fields"], {"name": "more", "type": "text", "optional": True}]}
    more["indexes"] = [*PLACE["indexes"], {"field": "more", "type": "gin"}]
    knobs = {"search__mode": "backend", "search__weights": WORDS, "embedding_provider": None}
    oldest = backend.open(memories=[plain], **knobs)
    caliber.migrate(backend.config(memories=[title_only], **knobs))
    old = backend.open(memories=[title_only], **knobs)
    old.records("place").insert(title="a bay", story="walrus")
    caliber.migrate(backend.config(memories=[PLACE], **knobs))
    new = backend.open(memories=[PLACE], **knobs)
    assert len(new.search("walrus").hits) == 1
    with pytest.raises(SchemaMismatch, match="open it again"):
        old.records("place").search("bay")
    assert old.search("bay", kinds=["note"]).hits == ()
    old.records("place").insert(title="another bay", story="seals")
    oldest.records("place").insert(title="one more bay", story="seals")  # it knows of no words that are searched
    assert len(new.search("seals").hits) == 2
    assert sound(new)
    assert old.admin.verify() == oldest.admin.verify() == []
    caliber.migrate(backend.config(memories=[more], **knobs))
    newer = backend.open(memories=[more], **knobs)
    assert len(newer.search("seals").hits) == 2
    new.records("place").insert(title="the last bay")  # it knows nothing of another field, and says so
    with pytest.raises(SchemaMismatch, match=r"not complete.*rebuild-search"):
        newer.search("bay")
    with pytest.raises(SchemaMismatch, match="open it again"):
        new.admin.rebuild_search()
    newer.admin.rebuild_search()
    assert len(newer.search("bay").hits) == 4
    caliber.migrate(backend.config(memories=[plain | {"fields": more["fields"]}], **knobs))
    place = newer.records("place").insert(title="an unsearched bay")
    place_kind = newer.records("place").relation.name
    assert inspect(newer).store.full_text.state().memories == {}
    assert inspect(newer).store.full_text.state().complete
    caliber.migrate(backend.config(), drop=["place"])
    with pytest.raises(SchemaMismatch, match="open it again"):
        newer.records("place").search("seals")
    assert newer.search("seals", kinds=["note"]).hits == ()
    note = newer.add_note(entity="e", entity_type="t", note_type="fact", content="walrus", confidence=1.0)
    other = newer.add_note(entity="e", entity_type="t", note_type="fact", content="tusks", confidence=1.0)
    for end in (EntityRef(EntityType.NOTE, other.note_id), EntityRef(place_kind, place.record_id)):
        source = EntityRef(EntityType.NOTE, note.note_id)
        newer.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), source, end, EdgeRelation.LINK, 1.0, 1.0, MAY))
    assert [hit.content for hit in newer.search("walrus", kinds=["note"]).hits] == ["walrus", "tusks"]


@needs("reopen")
def test_rules_choose_by_relevance_where_records_are_not_in_memory(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-160, C-165: as resident mode chooses, also among what is not the newest
    mode = {"kind": "top_k", "count": 2}
    rules = [
        {"memory": "place", "mode": mode, "priority": 50, "filter": "rank < 3"},
        {"memory": "fact", "name": "sure", "mode": {"kind": "relevant", "min_relevance": 0.2}, "priority": 40},
    ]
    options: dict[str, Any] = {"injection_rules": rules}
    set_limits(monkeypatch, recency_fallback_limit=2)
    clock = FixedClock()
    with opened(backend, "backend", clock, **options) as memory:
        task = start(memory).trajectory_id
        memory.records("place").insert(title="a walrus on the quay", rank=1)
        memory.records("place").insert(title="a walrus in the bay", rank=3)
        memory.records("fact").insert(subject="walrus", kind="claim", content="a walrus has tusks")
        for many in (28, 1, 1):
            clock.advance(ms=1_000)
            place = [{"title": f"nothing of note {many} {at}", "rank": at % 3} for at in range(many)]
            fact = {"subject": "s", "kind": "claim", "content": f"the weather was fair on day {many}"}
            memory.records("place").insert_many(place)
            memory.records("fact").insert_many([fact] * many)
        memory.flush()
        windows = [memory.assemble_context(task, query=query) for query in ("walrus", "fair weather", None)]
        assert "a walrus on the quay" in windows[0].text
        assert "in the bay" not in windows[0].text
        assert "tusks" in windows[0].text
        assert "walrus" not in windows[2].text
        assert windows[0].degraded == ("not_resident",)
        assert memory.replay(windows[0].window_id).text == windows[0].text
    with opened(backend, "resident", clock, **options) as memory:
        for window, query in zip(windows, ("walrus", "fair weather", None), strict=True):
            assert memory.assemble_context(task, query=query).text == window.text, query


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # where loading has a way of its own into the index
@needs("bulk", "reopen")
def test_words_and_vectors_come_back_from_a_backup_and_with_a_load(backend: Any, another: Any, tmp_path: Any) -> None:
    memory = opened(backend, "backend", vector__index_type="hnsw")
    memory.records("place").insert(title="walrus bay")
    memory.records("fact").insert(subject="walrus", kind="claim", content="tusks")
    memory.admin.backup(tmp_path / "all.zip")
    loaded = memory.storage.bulk_read("memory_place").read_all().select(["title"])
    memory.storage.bulk_load("place", loaded)
    assert len(memory.records("place").search("walrus").hits) == 2
    assert sound(memory)
    target = another("sqlite")
    knobs = {"memories": ALL, "search__mode": "backend", "search__keyword__similar_words": "none"}
    settings = target.config(vector__index_type="hnsw", **knobs)
    caliber.restore(settings, tmp_path / "all.zip")
    target.created.add(target.store_of(settings))
    with target.open(settings, embedding_provider=CountingEmbeddings(32)) as restored:
        assert [hit.content for hit in restored.records("place").search("walrus").hits] == ["walrus bay"]
        found = restored.records("fact").search("tusks").hits[0]
        assert set(found.found_by) >= {"keyword", "vector"}
        assert sound(restored)


def test_every_statement_of_a_memory_keeps_its_contract(backend: Any) -> None:
    store = backend.store(memories=ALL)
    store.full_text.rebuild(WordIndexer("english"))
    wanted = search_contracts(texts_of(store.catalog))
    assert set(store.full_text.statements) == set(wanted)
    own = [name for name in wanted if name.endswith(("memory_fact", "memory_place", "memory_draft"))]
    assert len(own) == 15
    lists: dict[str, Any] = {"seen": "{}", "keys": "[]", "terms": '{"terms": ["lake"], "beginnings": ["bo"]}'}
    with store.read() as session:
        for name in own:
            plan, contract = store.full_text.statements[name], wanted[name]
            rows_of = contract.rows_of and codec_of(store.catalog.by_name[contract.rows_of])
            results = rows_of.names if rows_of else contract.results
            assert (plan.name, plan.binds, plan.results) == (name, contract.parameters, results)
            arguments = [None if bind.startswith("filter_") else lists.get(bind, 1) for bind in plan.binds]
            assert all(len(row) == len(plan.results) for row in session.run(plan, arguments))


@needs("reopen")
def test_check_finds_planted_faults(backend: Any) -> None:
    memory = opened(backend, "backend", search__weights=WORDS)
    memory.records("place").insert(title="walrus bay")
    table = text_table(inspect(memory).store.catalog.memories["place"].relation)
    for planted in (
        f"DELETE FROM {backend.qualified(table + '_entry')}",
        f"UPDATE {backend.qualified('text_state')} SET memories = '{{}}'",
        f"UPDATE {backend.qualified('text_state')} SET memories = '[64'",
    ):
        assert sound(memory)
        backend.tamper(memory, planted)
        assert not sound(memory)
        if "memories" in planted:
            with pytest.raises(SchemaMismatch, match="rebuild-search"):
                memory.records("place").search("walrus")
        memory.admin.rebuild_search()
    assert sound(memory)
    assert memory.records("place").search("walrus").hits


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_edges_lead_to_declared_records(backend: Any, start: Any, mode: str) -> None:
    """M-035: whatever kind of record an edge ends at; hidden ends weigh nothing, and erased ones are gone."""
    agent = start(opened(backend, mode, search__weights=WORDS))
    memory = agent.memory
    facts = memory.records("fact")
    kind = facts.relation.name
    fact = facts.insert(subject="Ines", kind="claim", content="Ines owns a kayak")
    note, secret = agent.note("zebra crossing"), agent.note("zebra stripes", visible_to=["agent:nobody"])
    for source in (note, secret):
        ends = EntityRef(EntityType.NOTE, source.note_id), EntityRef(kind, fact.record_id)
        memory.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.LINK, 1.0, 1.0, MAY))
    memory.flush()
    reader = memory.acting_as(READER)
    hits = reader.search("crossing").hits
    assert [(hit.kind, hit.found_by) for hit in hits] == [("note", ("keyword",)), ("fact", ("graph",))]
    assert reader.search("stripes").hits == ()
    assert [edge.target.entity_type for edge in memory.storage.edges.list_by_target(fact.record_id)] == [kind] * 2
    ends = EntityRef("fact", fact.record_id), EntityRef(EntityType.NOTE, note.note_id)
    astray = Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.LINK, 1.0, 1.0, MAY)
    with pytest.raises(InvalidValue, match="no kind of record"):
        memory.storage.edges.insert(astray)
    memory.forget(entity=EntityRef(kind, fact.record_id))
    assert memory.storage.edges.count() == 0
    assert [hit.kind for hit in reader.search("crossing").hits] == ["note"]
