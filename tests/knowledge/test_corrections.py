"""Corrections of notes: updated, superseded, ended, deleted, and each of it undone.

Source: M-110, M-129 to M-141, K-131, K-132; docs/api.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.inspection import inspect
from support.providers import CountingEmbeddings
from support.threads import at_once

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
    TrustLabel,
)
from caliber.model.errors import Conflict, InputError, NotFound, PermissionDenied
from caliber.model.events import EventFamily
from caliber.model.references import EdgeId, NoteId
from caliber.model.time import from_us
from caliber.schema.relations import NOTE
from caliber.storage.write.ending import prune

BOSS = Principal(PrincipalKind.AGENT, "boss", AgentRole.ORCHESTRATOR)
CRITIC = Principal(PrincipalKind.AGENT, "critic", AgentRole.REVIEWER)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def agent(backend: Any, start: Any, clock: FixedClock) -> Any:
    return start(backend.open(clock=clock))


def contents(memory: Any, query: str, **options: Any) -> list[str]:
    return [hit.content for hit in memory.search(query, kinds=["note"], **options).hits]


def now(clock: FixedClock) -> datetime:
    return from_us(clock.now_us())


def audits(memory: Any, note_id: Any) -> list[Any]:
    return [each for each in memory.storage.events.list_by_subject(note_id) if each.family is EventFamily.AUDIT]


def same(one: Any, other: Any) -> bool:
    """Return whether two states of a note say the same, whenever they were written."""
    return bool(one == dataclasses.replace(other, version=one.version, updated_at=one.updated_at))


# --- update --------------------------------------------------------------------------------------


def test_updated_note_is_found_by_what_it_says_now(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("Bob lives in Berlin", entity="Bob", entity_type="person", tags=["home"], importance=4)
    changed = memory.update_note(note.note_id, content="Bob lives in Bergen", tags=["moved"], importance=None)
    assert (changed.content, changed.tags, changed.importance) == ("Bob lives in Bergen", ("moved",), None)
    assert (changed.note_id, changed.entity, changed.version) == (note.note_id, "Bob", note.version + 1)
    assert memory.get(note.note_id) == changed
    memory.flush()
    assert contents(memory, "Where does Bob live? Bergen") == ["Bob lives in Bergen"]
    assert "Bob lives in Berlin" not in contents(memory, "Berlin")
    assert memory.admin.check() == []


def test_update_is_audited_with_what_it_changed(agent: Any) -> None:
    # M-133, M-135
    note = agent.note("two legs", confidence=0.5)
    agent.memory.update_note(note.note_id, content="four legs", confidence=0.9)
    (event,) = audits(agent.memory, note.note_id)
    assert event.payload["action"] == "update"
    assert event.payload["changes"] == {
        "content": ["two legs", "four legs"], "confidence": [0.5, 0.9]
    }  # fmt: skip
    assert event.principal == agent.memory.principal.label
    again = agent.memory.update_note(note.note_id, content="four legs")
    assert again == agent.memory.get(note.note_id)
    assert len(audits(agent.memory, note.note_id)) == 1


def test_other_words_are_trusted_no_more_than_new_ones(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("said by a user", trust="user")
    assert memory.update_note(note.note_id, confidence=0.1).trust is TrustLabel.USER
    assert memory.update_note(note.note_id, content="said by a tool").trust is memory.config.trust.notes
    assert memory.update_note(note.note_id, content="said again", trust="user").trust is TrustLabel.USER


@pytest.mark.parametrize("wrong", [
    {},
    {"content": ""},
    {"content": None},
    {"confidence": 2},
    {"confidence": None},
    {"importance": 0},
    {"note_type": "rumour"},
    {"visible_to": []},
    {"tags": "home"},
    {"trust": "nobody"},
    {"valid_from": datetime(2030, 1, 1, tzinfo=UTC), "valid_until": datetime(2029, 1, 1, tzinfo=UTC)},
    {"content": "x", "version": 0},
])  # fmt: skip
def test_wrong_update_changes_nothing(agent: Any, wrong: dict[str, Any]) -> None:
    note = agent.note("as it was")
    with pytest.raises(InputError):
        agent.memory.update_note(note.note_id, **wrong)
    assert agent.memory.get(note.note_id) == note
    assert audits(agent.memory, note.note_id) == []


def test_what_stops_a_correction(agent: Any) -> None:
    memory, turn = agent.memory, agent.say("hello")
    note = agent.note("first")
    memory.update_note(note.note_id, content="second")
    calls: list[Any] = [
        lambda key, **how: memory.update_note(key, content="third", **how),
        lambda key, **how: memory.supersede_note(key, content="third", **how),
        memory.end_note,
        memory.delete_note,
        memory.undo_note,
    ]
    for call in calls:
        with pytest.raises(Conflict, match="its version is 2 by now"):
            call(note.note_id, version=note.version)
        for key in (NoteId(agent.trajectory_id), turn.turn_id):
            with pytest.raises(NotFound):
                call(key)
    assert memory.get(note.note_id).content == "second"
    assert memory.storage.notes.count() == 1


def test_updated_note_may_not_say_what_another_says(agent: Any) -> None:
    one, other = agent.note("one"), agent.note("other")
    with pytest.raises(Conflict, match="says the same"):
        agent.memory.update_note(other.note_id, content="one")
    assert agent.memory.get(other.note_id) == other
    agent.memory.delete_note(one.note_id)
    assert agent.memory.update_note(other.note_id, content="one").content == "one"


def test_a_deleted_note_is_deleted_until_that_is_undone(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("one")
    deleted = memory.delete_note(note.note_id)
    assert memory.delete_note(note.note_id) == deleted
    for call in (
        lambda: memory.end_note(note.note_id),
        lambda: memory.end_note(note.note_id, at=note.created_at + DAY),
        lambda: memory.update_note(note.note_id, content="two"),
        lambda: memory.supersede_note(note.note_id, content="two"),
    ):
        with pytest.raises(Conflict, match="undo that first"):
            call()
    assert list(memory.storage.notes.all()) == [deleted]
    memory.undo_note(note.note_id)
    assert memory.end_note(note.note_id).valid_until is not None


@pytest.mark.databases("all")
def test_a_note_is_restored_however_it_was_archived(agent: Any, clock: FixedClock) -> None:  # M-100, M-133, M-134
    memory = agent.memory
    note, other = agent.note("lisbon"), agent.note("porto")
    memory.delete_note(note.note_id)
    inspect(memory).write(lambda uow: prune(uow, NOTE, [uow.get(NOTE, other.note_id.bytes)]))
    assert contents(memory, "lisbon porto") == []
    for each, action, by in ((note, "delete", "admin:owner"), (other, "archive", "system:retention")):
        clock.advance(us=1)
        restored = memory.restore_note(each.note_id)
        assert memory.restore_note(each.note_id) == restored == memory.get(each.note_id)
        assert same(restored, each)
        assert restored.content in contents(memory, each.content)
        log = [(event.payload["action"], event.principal) for event in audits(memory, each.note_id)]
        assert log == [(action, by), ("restore", "admin:owner")]
        archived, back = (event.payload["changes"]["archived_at"] for event in audits(memory, each.note_id))
        assert (archived[0], back) == (None, [archived[1], None])
        assert memory.undo_note(each.note_id).archived_at is not None, "the restoring is taken back"
    memory.flush()
    with memory.transaction():
        added = agent.note("braga")
        memory.delete_note(added.note_id)
        memory.restore_note(added.note_id)
    assert contents(memory, "braga") == ["braga"]
    assert memory.storage.usages.get(other.note_id).access_count == 3, "restored twice, and read"
    with pytest.raises(Conflict, match="version is"):
        memory.restore_note(note.note_id, version=1)
    with pytest.raises(NotFound):
        memory.restore_note(agent.scope_id)
    again = agent.note("porto")
    with pytest.raises(Conflict, match="says the same"):
        memory.restore_note(other.note_id)
    memory.storage.notes.update(other.note_id, superseded_by=again.note_id)
    with pytest.raises(Conflict, match="merged into"):
        memory.restore_note(other.note_id)
    assert memory.admin.verify() == []


def test_a_statement_that_comes_again_is_logged_as_merged(agent: Any) -> None:
    note = agent.note("one")
    assert agent.note("one", source_trajectory_ids=[agent.trajectory_id]).note_id == note.note_id
    (merged,) = audits(agent.memory, note.note_id)
    assert (merged.payload["action"], merged.principal) == ("merge", "admin:owner")
    assert merged.payload["changes"] == {"source_trajectory_ids": [[], [str(agent.trajectory_id)]]}
    with pytest.raises(Conflict, match="no correction"):
        agent.memory.undo_note(note.note_id)


# --- who may -------------------------------------------------------------------------------------


def test_only_the_author_or_an_admin_corrects(agent: Any) -> None:
    # M-130, M-138
    boss, critic = agent.memory.acting_as(BOSS), agent.memory.acting_as(CRITIC)
    note = boss.add_note(
        entity="plan", entity_type="thing", note_type="fact", content="ship on Monday", confidence=1.0,
        visible_to=["orchestrator", "reviewer"],
    )  # fmt: skip
    for call in (
        lambda: critic.update_note(note.note_id, content="never"),
        lambda: critic.supersede_note(note.note_id, content="never"),
        lambda: critic.end_note(note.note_id),
        lambda: critic.delete_note(note.note_id),
        lambda: critic.undo_note(note.note_id),
        lambda: critic.restore_note(note.note_id),
    ):
        with pytest.raises(PermissionDenied):
            call()
    assert critic.get(note.note_id) == note
    assert boss.update_note(note.note_id, content="ship on Tuesday").content == "ship on Tuesday"
    assert agent.memory.delete_note(note.note_id).archived_at is not None


def test_author_does_not_withdraw_what_an_admin_wrote(agent: Any) -> None:
    # M-130
    memory, boss = agent.memory, agent.memory.acting_as(BOSS)
    values = {"entity": "plan", "entity_type": "thing", "note_type": "fact", "content": "one", "confidence": 1.0}
    note = boss.add_note(**values)
    new = memory.supersede_note(note.note_id, content="two")
    with pytest.raises(PermissionDenied):
        boss.undo_note(note.note_id)
    assert memory.get(new.note_id) == new
    assert same(memory.undo_note(note.note_id), note)


def test_provider_sees_no_note_that_may_not_be_corrected(backend: Any, start: Any) -> None:
    provider = CountingEmbeddings()
    memory = start(backend.open(embedding_provider=provider, embedding__embed__note="commit")).memory
    boss, critic = memory.acting_as(BOSS), memory.acting_as(CRITIC)
    values = {"entity": "secret plan", "entity_type": "thing", "note_type": "fact", "confidence": 1.0}
    note = boss.add_note(content="one", visible_to=["agent:boss"], **values)
    asked = len(provider.asked)
    for call in (
        lambda: critic.update_note(note.note_id, content="two"),
        lambda: critic.supersede_note(note.note_id, content="two"),
        lambda: critic.delete_note(note.note_id),
    ):
        with pytest.raises(NotFound):
            call()
    assert len(provider.asked) == asked
    assert boss.get(note.note_id) == note


# --- supersede and end ---------------------------------------------------------------------------


def test_superseding_note_holds_from_then_on(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old = agent.note("Ann lives in Berlin", entity="Ann", entity_type="person", tags=["home"], importance=5)
    before = now(clock)
    clock.advance(ms=86_400_000)
    new = memory.supersede_note(old.note_id, content="Ann lives in Lisbon")
    assert (new.content, new.entity, new.tags, new.importance) == ("Ann lives in Lisbon", "Ann", ("home",), 5.0)
    assert new.valid_from == memory.get(old.note_id).valid_until == now(clock)
    clock.advance(us=1)
    memory.flush()
    assert contents(memory, "Where does Ann live?") == ["Ann lives in Lisbon"]
    assert contents(memory, "Where does Ann live?", as_of=before) == ["Ann lives in Berlin"]
    (edge,) = memory.storage.edges.list_by_target(old.note_id)
    assert (edge.source.id, edge.relation) == (new.note_id, EdgeRelation.SUPERSEDES)


def test_windows_never_show_both(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old = agent.note("the port is 8080")
    start = now(clock)
    clock.advance(us=1_000)
    at = now(clock)
    memory.supersede_note(old.note_id, content="the port is 9090")
    clock.advance(us=1_000)
    for when in (start, at - timedelta(microseconds=1), at, at + timedelta(microseconds=1), now(clock), None):
        text = memory.assemble_context(agent.trajectory_id, query="which port?", as_of=when).text
        early = when is not None and when < at
        assert ("8080" in text, "9090" in text) == (early, not early), when


def test_superseding_in_the_future_and_in_the_past(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old = agent.note("the office is in Rome", valid_from=now(clock) - 10 * DAY, valid_until=now(clock) + 10 * DAY)
    new = memory.supersede_note(old.note_id, content="the office is in Oslo", at=now(clock) + DAY)
    assert new.valid_until == old.valid_until
    assert contents(memory, "office") == ["the office is in Rome"]
    assert contents(memory, "office", as_of=now(clock) + 2 * DAY) == ["the office is in Oslo"]
    with pytest.raises(InputError, match="before valid_from"):
        memory.supersede_note(new.note_id, content="nowhere", at=now(clock))


def test_superseded_note_is_superseded_once(agent: Any) -> None:
    memory = agent.memory
    old = agent.note("version 1")
    new = memory.supersede_note(old.note_id, content="version 2", idempotency_key="k")
    assert memory.supersede_note(old.note_id, content="version 2", idempotency_key="k", at=new.valid_from) == new
    with pytest.raises(Conflict, match=f"note {new.note_id} superseded it"):
        memory.supersede_note(old.note_id, content="version 3")
    third = memory.supersede_note(new.note_id, content="version 3")
    assert memory.storage.notes.count() == 3
    assert contents(memory, "version") == [third.content]


def test_repeated_call_is_known_by_its_key(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old = agent.note("version 1")
    options = {"content": "version 2", "idempotency_key": "k", "version": old.version}
    new = memory.supersede_note(old.note_id, **options)
    clock.advance(us=1)
    assert memory.supersede_note(old.note_id, **options) == new
    for other in ({"content": "version 3"}, {"confidence": 0.1}, {"at": now(clock)}):
        with pytest.raises(Conflict, match="idempotency key"):
            memory.supersede_note(old.note_id, **{**options, **other})
    memory.undo_note(old.note_id)
    with pytest.raises(Conflict, match="idempotency key"):
        memory.supersede_note(old.note_id, **options)
    assert memory.get(old.note_id).valid_until is None
    agent.note("elsewhere", idempotency_key="of another")
    with pytest.raises(Conflict, match="idempotency key"):
        memory.supersede_note(old.note_id, content="elsewhere", idempotency_key="of another")


def test_no_correction_lets_both_hold(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old = agent.note("the port is 8080")
    new = memory.supersede_note(old.note_id, content="the port is 9090", at=now(clock) + DAY)
    for call in (
        lambda: memory.end_note(old.note_id, at=now(clock) + 2 * DAY),
        lambda: memory.update_note(old.note_id, valid_until=None),
        lambda: memory.update_note(new.note_id, valid_from=now(clock)),
    ):
        with pytest.raises(Conflict, match="both would hold"):
            call()
    memory.update_note(new.note_id, valid_from=now(clock) + 3 * DAY)
    memory.end_note(old.note_id, at=now(clock) + 2 * DAY)
    with pytest.raises(Conflict, match="both would hold"):
        memory.undo_note(new.note_id)
    for days in range(5):
        text = memory.assemble_context(agent.trajectory_id, query="port?", as_of=now(clock) + days * DAY).text
        assert ("8080" in text, "9090" in text) == (days < 2, days >= 3), days


def test_merged_notes_are_not_superseded_nor_withdrawn(agent: Any) -> None:
    memory = agent.memory
    whole, part, old = agent.note("whole"), agent.note("part"), agent.note("old")
    memory.storage.notes.update(part.note_id, superseded_by=whole.note_id)
    with pytest.raises(Conflict, match=f"merged into note {whole.note_id}"):
        memory.supersede_note(part.note_id, content="other")
    new = memory.supersede_note(old.note_id, content="new")
    memory.storage.notes.update(new.note_id, superseded_by=whole.note_id)
    ended = memory.get(old.note_id)
    with pytest.raises(Conflict, match="was merged since"):
        memory.undo_note(old.note_id)
    assert memory.get(old.note_id) == ended


def test_corrections_of_a_merged_note_name_the_one_in_force(agent: Any) -> None:
    memory = agent.memory
    part, half, whole = (agent.note(name) for name in ("part", "half", "whole"))
    memory.update_note(part.note_id, confidence=0.4)
    memory.storage.notes.update(part.note_id, superseded_by=half.note_id)
    memory.storage.notes.update(half.note_id, superseded_by=whole.note_id)
    before = memory.get(part.note_id)
    for correct in (
        lambda: memory.update_note(part.note_id, content="other"),
        lambda: memory.end_note(part.note_id),
        lambda: memory.delete_note(part.note_id),
        lambda: memory.undo_note(part.note_id),
    ):
        with pytest.raises(Conflict, match=f"merged into note {whole.note_id}"):
            correct()
    assert memory.get(part.note_id) == before


def test_links_of_others_stay_as_they_are(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    old, turn = agent.note("old"), agent.say("something else")
    ends = EntityRef(EntityType.TURN, turn.turn_id), EntityRef(EntityType.NOTE, old.note_id)
    edge = Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.SUPERSEDES, 1.0, 1.0, now(clock))
    memory.storage.edges.insert(edge)
    new = memory.supersede_note(old.note_id, content="new")
    memory.undo_note(old.note_id)
    assert memory.storage.edges.get(edge.edge_id).removed_at is None
    new = memory.supersede_note(old.note_id, content="new")
    memory.storage.notes.delete(new.note_id)
    assert memory.supersede_note(old.note_id, content="newer", at=new.valid_from).content == "newer"


def test_ended_note_holds_no_longer(agent: Any, clock: FixedClock) -> None:
    memory = agent.memory
    note = agent.note("Ann is on leave", valid_from=now(clock) - DAY)
    with pytest.raises(InputError, match="before valid_from"):
        memory.end_note(note.note_id, at=now(clock) - 2 * DAY)
    ended = memory.end_note(note.note_id)
    assert ended.valid_until == now(clock)
    assert contents(memory, "leave") == []
    assert contents(memory, "leave", as_of=now(clock) - timedelta(hours=1)) == ["Ann is on leave"]
    clock.advance(us=1_000)
    assert memory.end_note(note.note_id) == ended
    later = memory.end_note(note.note_id, at=now(clock) + DAY)
    assert contents(memory, "leave") == ["Ann is on leave"]
    assert later.version == ended.version + 1


# --- undo ----------------------------------------------------------------------------------------


def test_vectors_that_are_committed_follow_corrections(backend: Any, start: Any) -> None:
    agent = start(backend.open(embedding_provider=CountingEmbeddings(), embedding__embed__note="commit"))
    memory = agent.memory
    note = agent.note("tea")
    for correct in (
        lambda: memory.update_note(note.note_id, content="coffee"),
        lambda: memory.supersede_note(note.note_id, content="cocoa"),
        lambda: memory.undo_note(note.note_id),
        lambda: memory.undo_note(note.note_id),
    ):
        correct()
        memory.flush()
        assert memory.search("drink").pending == 0
        assert memory.admin.check() == []
    assert memory.get(note.note_id).content == "tea"


def test_corrections_are_undone_in_the_order_they_were_made(backend: Any, start: Any) -> None:
    """On PostgreSQL, the numbers of the log are handed to connections in blocks: they tell no order."""
    first = backend.open()
    handles = [first, backend.open() if backend.has("sharing") else first]
    note = start(first).note("0")
    for turn in range(1, 7):
        handles[turn % 2].update_note(note.note_id, content=str(turn))
    assert [handles[turn % 2].undo_note(note.note_id).content for turn in range(6)] == list("543210")


def test_threads_that_correct_and_undo(backend: Any, start: Any) -> None:
    first = backend.open()
    handles = [first, backend.open() if backend.has("sharing") else first]
    note = start(first).note("0")

    def correct(memory: Any, name: str) -> None:
        for step in range(5):
            memory.update_note(note.note_id, content=f"{name} {step}")
            with contextlib.suppress(Conflict):
                memory.supersede_note(note.note_id, content=f"{name} holds from then on {step}")
            with contextlib.suppress(Conflict):
                memory.undo_note(note.note_id)

    at_once([partial(correct, handles[at % 2], str(at)) for at in range(4)])
    actions = [event.payload["action"] for event in audits(first, note.note_id)]
    for _ in range(len(actions) - 2 * actions.count("undo")):
        first.undo_note(note.note_id)
    with pytest.raises(Conflict, match="no correction"):
        first.undo_note(note.note_id)
    assert same(first.get(note.note_id), note)
    assert first.records("note").count() == 1
    assert first.admin.check() == []


def test_undo_after_the_new_note_was_forgotten(agent: Any) -> None:
    memory = agent.memory
    old = agent.note("the code is 1111")
    new = memory.supersede_note(old.note_id, content="the code is 2222")
    memory.forget(entity=EntityRef(EntityType.NOTE, new.note_id))
    assert same(memory.undo_note(old.note_id), old)


@pytest.mark.prove
def test_undo_after_the_log_was_redacted(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("one", tags=['Zoë "the Owl" O\\Neil', "plain"])
    memory.update_note(note.note_id, tags=["other"])
    memory.forget(texts=['Zoë "the Owl" O\\Neil'])
    assert audits(memory, note.note_id)[0].payload["changes"]["tags"][0] == ["[forgotten]", "plain"]
    assert memory.undo_note(note.note_id).tags == ("[forgotten]", "plain")
    memory.update_note(note.note_id, content="two")
    memory.forget(texts=["content"])  # the name of a column
    with pytest.raises(Conflict, match="was forgotten"):
        memory.undo_note(note.note_id)
    assert memory.get(note.note_id).content == "two"


def test_forgotten_words_do_not_come_back(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("Zebulon likes tea")
    memory.update_note(note.note_id, content="somebody likes tea")
    memory.forget(texts=["Zebulon"])
    assert not any("Zebulon" in str(event.payload) for event in audits(memory, note.note_id))
    with contextlib.suppress(Conflict):
        memory.undo_note(note.note_id)
    assert "Zebulon" not in memory.get(note.note_id).content


_TEXTS = st.sampled_from(["red", "green", "blue"])
_STEPS = st.one_of(
    st.tuples(st.just("update"), st.fixed_dictionaries({"content": _TEXTS})),
    st.tuples(st.just("update"), st.fixed_dictionaries({"importance": st.sampled_from([None, 1.0, 9.5])})),
    st.tuples(st.just("update"), st.fixed_dictionaries({"tags": st.lists(_TEXTS, max_size=2), "content": _TEXTS})),
    st.tuples(st.just("end"), st.fixed_dictionaries({"at": st.datetimes(timezones=st.just(UTC))})),
    st.tuples(st.just("delete"), st.just({})),
    st.tuples(st.just("supersede"), st.fixed_dictionaries({"content": _TEXTS})),
    st.tuples(st.just("undo"), st.just({})),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEPS, max_size=8))
def test_undo_is_a_stack(module_agent: Any, steps: list[tuple[str, dict[str, Any]]]) -> None:
    memory: caliber.Caliber = module_agent.memory
    note = module_agent.note("red", namespace=str(caliber.kernels.uuid7()))
    stack = [note]
    for name, arguments in steps:
        current = memory.get(note.note_id)
        try:
            result = getattr(memory, f"{name}_note")(note.note_id, **arguments)
        except (Conflict, InputError):
            assert memory.get(note.note_id) == current
            assert name != "undo" or len(stack) == 1
            continue
        after = memory.get(note.note_id)
        if name == "undo":
            stack.pop()
            assert same(after, stack[-1])
        elif name == "supersede" or after != current:
            stack.append(after)
            assert name == "supersede" or result == after
    while len(stack) > 1:
        memory.undo_note(note.note_id)
        stack.pop()
        assert same(memory.get(note.note_id), stack[-1])
    assert memory.records("note").count(namespace=note.namespace, valid=False) >= 1
    assert memory.records("note").count(namespace=note.namespace) == 1
