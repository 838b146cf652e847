"""Search through the database: answers close to those from memory, said to be degraded, and no trace of what is hidden.

Source: issue "Search in native memory", 1; design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from contract.entities import plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import AGENT
from support.deadlines import bounded
from support.drawn import needs
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage
from support.search.closeness import check_close
from support.threads import begin

import caliber
from caliber.model import (
    AgentRole,
    Edge,
    EdgeRelation,
    EntityRef,
    EntityType,
    FixedClock,
    Principal,
    PrincipalKind,
    ResultStatus,
)
from caliber.model.errors import InvalidValue, NotFound, Unavailable
from caliber.schema.relations import NOTE

WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
MARCH, MAY = (datetime(2023, month, 8, 12, tzinfo=UTC) for month in (3, 5))
READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
NOBODY = ["agent:nobody"]
QUERIES = (
    "lakes", "boat", "was Omar at the lake?", "lak* happine*", "happi*", "happ*", "backup_host", "BackupHost",
    '"lake was"', "in May 2023", "when was the boat in May?", "last week", "", "zebra", "to be or not", "Ines Weber 7",
    "b*", "^lakes", "zzzzqqq", "the", "please tell me", "lakes of Peru, volcanoes of Chile", '"to be"', "hello in May",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("full_text")


def words_only(backend: Any, mode: str, **options: Any) -> Any:
    """Open a handle that searches by words alone; exact stems, as vectors of words are not in a database."""
    overrides = {"search__weights": WORDS, "search__keyword__similar_words": "none", "embedding_provider": None}
    # Nothing is written between two searches: no count of uses, and no summary.
    overrides |= {"write_behind__flush_interval_ms": 600_000, "jobs__poll_ms": 0}
    return backend.open(backend.config(search__mode=mode, **{**overrides, **options}), clock=FixedClock())


def told(result: Any) -> Any:
    """Return all that a result says, apart from being degraded."""
    hits = [(hit.id, hit.kind, hit.content, hit.score, hit.breakdown, hit.found_by, hit.snippet) for hit in result.hits]
    return hits, result.analysis, result.position, result.below_floor


OPTIONS = (
    {},
    {"limit": 3},
    {"kinds": ["note"]},
    {"kinds": ["turn", "artifact"]},
    {"filter": {"entity": "Ines Weber"}},
    {"filter": {"name": "Ines", "role": ["user", "assistant"]}},
    {"kinds": ["note"], "filter": {"importance": [3, 4.0], "note_type": "fact"}},
    {"filter": {"trust": ["user", "web"]}},
    {"filter": {"entity": []}},
    {"as_of": MARCH},
)  # fmt: skip


def newest(memory: Any, query: str, **options: Any) -> Any:
    """Search memory once it has seen what others wrote."""
    return memory.search(query, consistency="latest", **options)


def fill(agent: Any) -> None:
    for at in range(30):
        day = MAY if at % 4 else MARCH
        agent.say(f"turn {at} of the lakes {'boat' if at % 3 else 'and so?'}", name="Ines" if at % 2 else "Omar")
        agent.note(
            f"the lake was {'happy' if at % 2 else 'happiness'} {at} BackupHost",
            entity="Ines Weber" if at % 5 == 0 else "thing",
            occurred_at=day,
            importance=1 + at % 10,
        )
        agent.keep(f"artifact {at} backup_host {'lake' * (at % 2)}")
    agent.note("a long text " * 200 + "that ends with zebra", valid_from=MARCH, valid_until=MAY)
    agent.note("to be or not to be")


@pytest.fixture
@needs("sharing")
def pair(backend: Any, start: Any) -> Any:
    """Two handles on one store: one searches the database, the other memory."""
    stored = start(words_only(backend, "backend"))
    fill(stored)
    return stored.memory, words_only(backend, "resident")


def test_hits_and_their_order_are_close_to_those_from_memory(pair: Any) -> None:
    check_close(*pair, itertools.product(QUERIES, OPTIONS))


@needs("sharing")
def test_the_floor_is_that_of_memory(backend: Any, start: Any) -> None:
    floor = {
        "search__floor__words": 0.35,
        "search__floor__similarity": {"hash-1:test@32": 0.3},
        "search__keyword__similar_words": "none",
        "vector__dimensions": 32,
        "embedding_provider": {"provider_type": "hash", "model": "test", "dimensions": 32, "options": {}},
    }
    stored, resident = (
        backend.open(
            backend.config(search__mode=mode, **floor), clock=FixedClock(), embedding_provider=CountingEmbeddings(32)
        )
        for mode in ("backend", "resident")
    )
    fill(start(stored))
    stored.flush()
    check_close(stored, resident, itertools.product(QUERIES, OPTIONS))
    evidence = [stored.search(query, **options).below_floor for query, options in itertools.product(QUERIES, OPTIONS)]
    below = [each for each in evidence if each is not None]
    assert below
    assert all(each.words < each.least_words for each in below)


def test_many_searches_read_one_boundary(pair: Any) -> None:
    stored, _ = pair
    many = stored.search_many(QUERIES[:4], limit=4)
    assert [told(result) for result in many] == [told(stored.search(query, limit=4)) for query in QUERIES[:4]]
    assert len({result.position for result in many}) == 1


def test_deadline_ends_a_search_between_statements(pair: Any, monkeypatch: Any) -> None:
    stored, _ = pair
    assert bounded(60_000, stored.search, "lakes").hits
    stored.search("lakes")
    before = time.monotonic()
    ticks = itertools.count()
    monkeypatch.setattr("caliber.model.deadline.time.monotonic", lambda: before + next(ticks))
    with pytest.raises(Unavailable, match="the database was searched") as caught, caliber.deadline(8_000):
        stored.search("lakes")
    assert caught.value.context["reason"] == "timeout"


def test_summaries_sessions_and_ids_are_filtered_alike(pair: Any, start: Any) -> None:
    stored, resident = pair
    agent = start(stored)
    agent.say("we met at the lakes")
    stored.storage.scopes.close(agent.scope_id, summary="the lakes, where we met")
    for options in (
        {"kinds": ["scope"]},
        {"filter": {"trajectory_id": agent.trajectory_id}},
        {"filter": {"trajectory_id": str(agent.trajectory_id)}, "kinds": ["turn"]},
        {"filter": {"scope_id": agent.scope_id}},
        {"filter": {"scope_id": uuid.uuid4()}},
    ):
        options |= {"limit": 100}
        result, expected = stored.search("lakes met", **options), newest(resident, "lakes met", **options)
        assert {hit.id for hit in result.hits} == {hit.id for hit in expected.hits}, options
    assert stored.search("lakes met", kinds=["scope"]).hits


@pytest.mark.parametrize(
    ("options", "says"),
    [({"limit": 0}, "limit"), ({"kinds": ["poem"]}, "note, artifact"), ({"filter": {"colour": "red"}}, "colour"),
     ({"kinds": ["note"], "filter": {"role": "user"}}, "role"), ({"filter": {"role": "king"}}, "role"),
     ({"filter": {"trajectory_id": "x"}}, "id")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(backend: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        words_only(backend, "backend").search("x", **options)


SYNTAX = [
    "NEAR(lake boat, 2)", 'lake" OR "boat', "lake AND NOT boat", "tokens:lake", "lake*", "*", '"', '""""', "^lake",
    "(lake", "lake)", "{a b}: lake", "lake + boat", "-lake", "a\x00b lake", "\x00", "'; DROP TABLE text_note; --",
    "text_note", "lake OR 1=1", "ﷺ ﷺ", "\u200blake", "東京 lake", "𝓵𝓪𝓴𝓮", "%", "_", "rank", "l'lake",
]  # fmt: skip


def test_user_text_is_never_query_syntax(pair: Any) -> None:
    # issue, 1: "user text is never query syntax"
    stored, resident = pair
    queries = [query.encode("utf-8", "replace").decode() for query in SYNTAX]
    for said in queries:
        stored.add_note(entity="x", entity_type="t", note_type="fact", content=f"says {said} so", confidence=0.5)
    check_close(stored, resident, [(query, {}) for query in queries])
    with pytest.raises(InvalidValue):
        stored.search("lake\ud800")
    assert stored.admin.verify() == []


def test_texts_of_a_megabyte_and_bytes_are_indexed_to_their_end(backend: Any, start: Any) -> None:
    # P-039: the whole text, never a preview
    agent = start(words_only(backend, "backend"))
    agent.say("filler words " * 80_000 + "quokka")
    agent.say(b"\x00\xff\xfe wombat \xc3" + bytes(range(256)))
    agent.keep("x" * 1_000_000)
    agent.say("")
    assert agent.memory.search("quokka").hits[0].content.endswith("quokka")
    assert len(agent.memory.search("wombat").hits[0].content) > 200
    assert len(agent.memory.search("x" * 256).hits) == 1
    result = agent.memory.search("quokka " + " ".join(f"w{at}" for at in range(20_000)))
    assert result.analysis.cut
    assert result.hits[0].content.endswith("quokka")


def test_full_text_follows_every_change(backend: Any, start: Any) -> None:
    agent = start(words_only(backend, "backend"))
    memory, notes = agent.memory, agent.memory.storage.notes
    kept = [agent.note(f"walrus number {at}") for at in range(6)]
    notes.update(kept[0].note_id, content="an otter")
    notes.update(kept[1].note_id, entity="otter")
    notes.update(kept[2].note_id, archived_at=MAY)
    notes.delete(kept[3].note_id)
    assert {hit.id for hit in memory.search("walrus").hits} == {kept[at].note_id for at in (1, 4, 5)}
    assert {hit.id for hit in memory.search("otter").hits} == {kept[0].note_id, kept[1].note_id}
    turn = agent.say("a seal")
    memory.storage.turns.delete_by_scope(agent.scope_id)
    assert memory.search("seal").hits == ()
    memory.storage.turns.insert(turn)
    assert [hit.id for hit in memory.search("seal").hits] == [turn.turn_id]
    assert memory.admin.verify() == []


@needs("sharing")
def test_vectors_are_searched_exactly_and_an_outage_is_said(backend: Any, start: Any) -> None:
    provider = CountingEmbeddings()
    options = {"search__keyword__similar_words": "none", "search__diversity": 0.3, "llm_retry_config__max_retries": 0}
    agent = start(backend.open(search__mode="backend", embedding_provider=provider, clock=FixedClock(), **options))
    fill(agent)
    agent.memory.flush()
    resident = backend.open(embedding_provider=CountingEmbeddings(), clock=FixedClock(), **options)
    asked = ({}, {"filter": {"entity": "Ines Weber"}, "limit": 50}, {"kinds": ["artifact"]})
    queries = ("happy boats of lakes", "zebra", "something else")
    check_close(agent.memory, resident, itertools.product(queries, asked))
    assert any("vector" in hit.found_by for hit in agent.memory.search("something else").hits)
    provider.failure = outage
    result = agent.memory.search("a happy lake of BackupHost")
    assert result.reason.startswith("not_resident, query_not_embedded")
    assert result.hits


def link(memory: Any, one: Any, other: Any) -> None:
    ends = [EntityRef(EntityType.NOTE, note.note_id) for note in (one, other)]
    memory.storage.edges.insert(Edge(uuid.uuid4(), *ends, EdgeRelation.SUPPORTS, 1.0, 1.0, MAY))


def test_links_bring_hits(pair: Any, start: Any) -> None:
    stored, _ = pair
    agent = start(stored)
    found, boat, rope, far, hidden = (
        agent.note(text, visible_to=seen)
        for text, seen in (("ferret", None), ("a mast", None), ("rope", None), ("sail", None), ("secret", NOBODY))
    )
    for one, other in ((found, boat), (rope, boat), (rope, far), (found, hidden), (hidden, far)):
        link(stored, one, other)
    names = {hit.content for hit in stored.acting_as(READER).search("ferret").hits}
    assert {"ferret", "a mast", "rope"} <= names
    assert "secret" not in names


texts = st.lists(
    st.sampled_from(["happy", "happiness", "boat", "boats", "ines", "lake", "abandoning"]), min_size=1, max_size=5
)
notes = st.tuples(texts.map(" ".join), st.sampled_from(["Ines", "Ines Weber", "the lake"]), st.booleans())


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told_of=st.lists(notes, min_size=1, max_size=7))
def test_hidden_notes_leave_no_trace(tmp_path_factory: Any, told_of: list[Any]) -> None:
    """A store with hidden notes tells a reader what one without them does, ids apart."""
    from support.configs import config

    import caliber

    answers = []
    for hidden in (True, False):
        keyword = {"search__weights": WORDS, "search__keyword__similar_words": "none", "embedding_provider": None}
        with caliber.open(config(":memory:", search__mode="backend", **keyword), clock=FixedClock()) as memory:
            for at, (text, entity, secret) in enumerate(told_of):
                if hidden or not secret:
                    memory.add_note(
                        entity=entity, entity_type="t", note_type="fact", content=f"{text} n{at}", confidence=0.9,
                        visible_to=NOBODY if secret else None,
                    )  # fmt: skip
            reader = memory.acting_as(READER)
            results = [
                reader.search(query, limit=50) for query in ("happi*", "did Ines Weber go boating?", "lake", "", "a*")
            ]
            answers.append(
                [
                    ([(hit.content, hit.score, hit.breakdown) for hit in result.hits], result.analysis)
                    for result in results
                ]
            )
    assert answers[0] == answers[1]


def test_more_matches_than_are_looked_at_give_the_best(backend: Any, start: Any) -> None:
    """Of more matches than there are candidates the best by words; k hits come back whenever k match a filter."""
    agent = start(words_only(backend, "backend"))
    agent.memory.append_turns(
        agent.scope_id,
        [
            {"role": "user", "content": "lake " * (1 + at % 3) + f"w{at}", "name": "Bo" if at >= 1_290 else None}
            for at in range(1_300)
        ],
    )
    hits = agent.memory.search("lake", limit=999).hits
    assert len(hits) == 999
    found = agent.memory.search("lake", filter={"name": "Bo"}, limit=50).hits
    assert len(found) == 10
    rare = agent.memory.search("lake w7", limit=1).hits
    assert "w7" in rare[0].content
    assert np.isfinite([hit.score for hit in hits]).all()


def test_get_reads_any_record_and_hides_what_may_not_be_seen(backend: Any, start: Any) -> None:
    agent = start(words_only(backend, "backend"))
    memory = agent.memory
    made = [agent.say("a turn"), agent.note("a note"), agent.keep("an artifact")]
    for entity, name in zip(made, ("turn_id", "note_id", "artifact_id"), strict=True):
        assert memory.get(getattr(entity, name)) == entity
    assert memory.get(agent.trajectory_id).trajectory_id == agent.trajectory_id
    assert memory.get(agent.scope_id).turn_count == 1
    secret = agent.note("a secret", visible_to=NOBODY)
    for wanted in (secret.note_id, uuid.uuid4()):
        with pytest.raises(NotFound):
            memory.acting_as(READER).get(wanted)
    assert memory.admin.verify() == []
    assert memory.admin.stats()["records"]["note"] == 2


@needs("sharing")
def test_windows_hold_what_comes_into_question_and_say_so(backend: Any, start: Any) -> None:
    # design, section 5; docs/search.md
    exact = {"search__keyword__similar_words": "none"}
    above = start(
        backend.open(search__mode="backend", embedding_provider=CountingEmbeddings(), clock=FixedClock(), **exact)
    )
    above.keep("an artifact of the task above")
    task = above.memory.start_trajectory("below", initiator=AGENT, parent=above.trajectory_id)
    scope = above.memory.current_scope(task.trajectory_id)
    for at in range(12):
        above.memory.append_turn(scope.scope_id, role="user", content=f"turn {at} about boats")
        above.note(f"note {at} on {'boats' if at % 2 else 'lakes'}")
    boats = above.note("nobody sees this of boats", visible_to=NOBODY)
    above.memory.flush()
    resident = backend.open(embedding_provider=CountingEmbeddings(), clock=FixedClock(), **exact)
    for options in ({}, {"query": "boats on lakes"}, {"query": "boats", "max_tokens": 150}, {"as_of": MARCH}):
        window = above.memory.acting_as(READER).assemble_context(task.trajectory_id, **options)
        expected = resident.acting_as(READER).assemble_context(task.trajectory_id, consistency="latest", **options)
        assert window.text == expected.text, options
        assert "nobody sees" not in window.text
        assert window.to_messages() == expected.to_messages()
        assert window.cut_offs == expected.cut_offs
        assert (window.status, window.degraded[0]) == (ResultStatus.DEGRADED, "not_resident")
        assert expected.status != ResultStatus.DEGRADED
        again = above.memory.acting_as(READER).replay(window.window_id)
        assert (again.text, again.degraded) == (window.text, window.degraded)
        assert above.memory.acting_as(READER).explain(window.window_id)["degraded"][0] == "not_resident"
        for record in (boats.note_id, uuid.uuid4()):
            assert above.memory.explain(above.memory.assemble_context(task.trajectory_id).window_id, exclusion=record)
    with pytest.raises(NotFound):
        above.memory.assemble_context(uuid.uuid4())


def test_scopes_close_tasks_complete_and_knowledge_is_merged(backend: Any, start: Any) -> None:
    agent = start(words_only(backend, "backend", pcp__recovery_points__frequency="per_turn"))
    memory = agent.memory
    agent.say("We decided to use apsw. The backup host is vault.", name="Ines")
    agent.say("The backup host is vault, and we decided to keep it.", name="Omar")
    closed = memory.close_scope(agent.scope_id)
    assert closed.summary
    assert [hit.kind for hit in memory.search("backup", kinds=["scope"]).hits] == ["scope"]
    first = memory.consolidate_notes(agent.trajectory_id)
    again = memory.consolidate_notes(agent.trajectory_id)
    assert {note.note_id for note in first} == {note.note_id for note in again}
    outcome = memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    assert outcome.summary == "done"
    assert memory.storage.checkpoints.count()
    assert memory.admin.verify() == []


def test_what_reads_all_records_of_a_kind_is_refused(backend: Any, start: Any) -> None:
    agent = start(backend.open(search__mode="backend"))
    agent.note("a note")
    agent.memory.flush()
    with pytest.raises(Unavailable, match="keeps none there") as caught:
        inspect(agent.memory).snapshot()["note"]
    assert caught.value.context["reason"] == "not_resident"
    assert not caught.value.retryable


def test_hidden_records_take_no_place_among_those_looked_at(backend: Any, start: Any) -> None:
    """More hidden matches than candidates, each better than the visible ones: a reader is told the same."""
    answers = []
    for hidden in (1_100, 0):
        agent = start(words_only(backend, "backend", **(_elsewhere(backend) if hidden else {})))
        seen = [
            plain(NOTE, note_id=uuid.UUID(int=at + 1), content=f"a lake {'far ' * at}", entity="e") for at in range(9)
        ]
        secret = [
            plain(NOTE, note_id=uuid.UUID(int=at + 100), content="lake lake", entity="e", visible_to=tuple(NOBODY))
            for at in range(hidden)
        ]
        rows = [replace(note, fingerprint=note.note_id.bytes * 2) for note in (*secret, *seen)]
        inspect(agent.memory).store.write(lambda uow, rows=rows: [uow.insert(NOTE, note) for note in rows])
        reader = agent.memory.acting_as(READER)
        results = [reader.search(query, limit=5) for query in ("lake", "lak*", "", "far lake")]
        answers.append([told(result)[:2] for result in results])
        assert all(result.hits for result in results)
        agent.memory.close()
    assert answers[0] == answers[1]


def _elsewhere(backend: Any) -> dict[str, Any]:
    """Return the overrides that make a configuration name another store of the same database."""
    if backend.adapter == "postgres":
        return {"storage__schema_name": f"other_{uuid.uuid4().hex}"}
    return {"storage__path": backend.path if backend.path == ":memory:" else f"{backend.path}-other"}


def test_readers_and_entities_of_any_name_are_matched(backend: Any, start: Any) -> None:
    agent = start(words_only(backend, "backend"))
    names = ("x\0y", 'q"u\\u0000', "\ufdd0z", "é", "a,b")
    # Entities may have any character, principals none that controls.
    readers = {who: who.replace("\0", " 0 ") for who in names}
    for who in names:
        agent.note("a lake", entity=who, visible_to=[f"agent:{readers[who]}", "agent:another"])
    for who in names:
        reader = agent.memory.acting_as(Principal(PrincipalKind.AGENT, readers[who], AgentRole.EXECUTOR))
        for filtered in ({}, {"entity": who}):
            assert len(reader.search("lake", filter=filtered).hits) == 1
            assert agent.memory.acting_as(READER).search("lake", filter=filtered).hits == ()


def test_each_result_is_true_for_the_position_it_names(backend: Any, start: Any) -> None:
    # One commit for each turn: none of a summary of turns between them.
    agent = start(words_only(backend, "backend", summaries__turns="off"))
    agent.say("lake 0")
    first = agent.memory.search("lake")
    base = first.position.sequence - len(first.hits)

    def write() -> None:
        for at in range(1, 101):
            agent.say(f"lake {at}")  # a commit each

    writer = begin(write)
    seen = []
    try:
        while not writer.done():
            seen.append(agent.memory.search("lake", limit=999))
    finally:
        writer.result()
    seen.append(agent.memory.search("lake", limit=999))  # one answer is from after all writes
    assert {result.position.sequence - len(result.hits) for result in seen} == {base}
    assert len(seen[-1].hits) == len(first.hits) + 100


def test_sweeping_and_rebuilding_work_without_records_in_memory(backend: Any, start: Any) -> None:
    agent = start(backend.open(search__mode="backend"))
    note = agent.note("a lake")
    agent.memory.flush()
    came = agent.memory.admin.rebuild_search()
    assert came.differences == ()
    assert agent.memory.admin.sweep() is not None
    assert [hit.id for hit in agent.memory.search("lake").hits] == [note.note_id]
