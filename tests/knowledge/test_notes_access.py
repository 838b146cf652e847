"""Notes, and who sees them: nobody learns of a note that is not for him, whichever way he asks.

Source: C-046 to C-048, M-118 to M-141, K-130 to K-132, K-190.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import caliber
from caliber.model import AgentRole, FixedClock, NoteType, Principal, PrincipalKind
from caliber.model.errors import Conflict, InputError, NotFound, PermissionDenied
from caliber.model.time import from_us

ORCHESTRATOR = Principal(PrincipalKind.AGENT, "boss", AgentRole.ORCHESTRATOR)
EXECUTOR = Principal(PrincipalKind.AGENT, "doer", AgentRole.EXECUTOR)
REVIEWER = Principal(PrincipalKind.AGENT, "critic", AgentRole.REVIEWER)
HUMAN = Principal(PrincipalKind.HUMAN, "ann")
PRINCIPALS = {"orchestrator": ORCHESTRATOR, "executor": EXECUTOR, "reviewer": REVIEWER, "human": HUMAN}


# --- notes ---------------------------------------------------------------------------------------


def test_note_comes_back_with_everything(backend: Any, start: Any) -> None:
    clock = FixedClock()
    agent = start(backend.open(clock=clock))
    when = datetime(2024, 5, 6, tzinfo=UTC)
    note = agent.memory.add_note(
        entity="Ann", entity_type="person", note_type="preference", content="likes tea \U0001f375", confidence=0.5,
        importance=7, valid_from=when, valid_until=when + timedelta(days=1), occurred_at=when, namespace="home",
        tags=["a", "b"], source_trajectory_ids=[agent.trajectory_id], idempotency_key="k",
    )  # fmt: skip
    assert agent.memory.get(note.note_id) == note
    assert note.note_type is NoteType.PREFERENCE
    assert note.content_hash == hashlib.sha256("likes tea \U0001f375".encode()).digest()
    assert (note.importance, note.base_importance, note.namespace, note.tags) == (7.0, 7.0, "home", ("a", "b"))
    assert note.created_at == note.updated_at == from_us(clock.now_us())
    assert note.created_by == "admin:owner@"
    assert note.active
    storage = agent.memory.storage.notes
    assert storage.find_by_entity("Ann", "person") == [note]
    assert storage.list_by_type("preference", limit=5) == [note]


def test_same_statement_is_kept_once(agent: Any) -> None:
    memory = agent.memory
    first = agent.note("the sky is blue")
    assert agent.note("the sky is blue") == first
    other = memory.start_trajectory("other", initiator=agent.trajectory.initiator)
    again = agent.note("the sky is blue", source_trajectory_ids=[other.trajectory_id])
    assert again.note_id == first.note_id
    assert again.source_trajectory_ids == (other.trajectory_id,)
    different = [
        agent.note("the sky is blue", entity="sky"),
        agent.note("the sky is blue", note_type="gotcha"),
        agent.note("the sky is blue", namespace="n"),
        agent.note("the sky is blue", valid_from=datetime(2024, 1, 1, tzinfo=UTC)),
        agent.note("the sky is blue", visible_to=["executor"]),
        agent.note("the sky is blue", idempotency_key="k"),
    ]
    assert len({note.note_id for note in [first, *different]}) == 7
    assert agent.note("the sky is blue", idempotency_key="k") == different[-1]
    with pytest.raises(Conflict):
        agent.note("the sky is green", idempotency_key="k")
    assert memory.storage.notes.count() == 7


def test_archived_note_makes_room_for_the_same_statement(agent: Any) -> None:
    # K-190: taken out of use, never deleted
    first = agent.note("once more")
    agent.memory.storage.notes.update(first.note_id, archived_at=from_us(1))
    second = agent.note("once more")
    assert second.note_id != first.note_id
    assert agent.memory.get(first.note_id).archived_at is not None
    assert {hit.id for hit in agent.memory.search("", kinds=["note"]).hits} == {second.note_id}


def test_changed_note_is_found_by_what_it_says_now(agent: Any) -> None:
    note = agent.note("about elephants")
    changed = agent.memory.storage.notes.update(note.note_id, content="about submarines")
    assert changed.version == 2
    assert changed.content_hash == hashlib.sha256(b"about submarines").digest()
    assert changed.fingerprint != note.fingerprint
    agent.memory.flush()
    assert agent.memory.search("thing: about submarines", kinds=["note"]).hits[0].score > 0.99
    assert agent.memory.admin.verify() == []


def test_notes_count_while_they_are_valid(backend: Any, start: Any) -> None:
    # K-064, C-047; as_of is valid time
    clock = FixedClock(1_700_000_000_000_000)
    agent = start(backend.open(clock=clock))
    now = from_us(clock.now_us())
    agent.note("always")
    agent.note("past", valid_until=now - timedelta(days=1))
    agent.note("future", valid_from=now + timedelta(days=1))
    agent.note("from now on", valid_from=now)
    agent.note("until now", valid_until=now)

    texts = ("always", "past", "future", "from now on", "until now")

    def seen(**options: Any) -> set[str]:
        window = agent.memory.assemble_context(agent.trajectory_id, query="", **options)
        hits = {hit.content for hit in agent.memory.search("", kinds=["note"], **options).hits}
        assert {text for text in texts if text in window.text} == hits
        return hits

    assert seen() == {"always", "from now on"}
    assert seen(as_of=now - timedelta(days=2)) == {"always", "past", "until now"}
    assert seen(as_of=now + timedelta(days=2)) == {"always", "future", "from now on"}


@pytest.mark.parametrize("wrong", [
    {"entity": ""},
    {"note_type": "rumour"},
    {"content": ""},
    {"content": "  "},
    {"confidence": -0.1},
    {"confidence": 1.1},
    {"confidence": float("inf")},
    {"importance": 0},
    {"importance": 11},
    {"valid_from": datetime(2024, 1, 2, tzinfo=UTC), "valid_until": datetime(2024, 1, 1, tzinfo=UTC)},
    {"valid_from": datetime(2024, 1, 2)},  # noqa: DTZ001
    {"tags": "tag"},
    {"visible_to": []},
    {"visible_to": "executor"},
    {"source_trajectory_ids": ["x"]},
    {"namespace": ""},
])  # fmt: skip
def test_wrong_note_is_refused_and_nothing_written(wrong: dict[str, Any], module_agent: Any) -> None:
    with pytest.raises(InputError):
        module_agent.note(**{"content": "c", **wrong})
    assert module_agent.memory.storage.notes.count() == 0


# --- who sees them -------------------------------------------------------------------------------


@pytest.fixture
def shared(backend: Any, start: Any) -> Any:
    """An agent whose store holds notes for everybody, for some roles, and for single principals."""
    agent = start(backend.open())
    boss = agent.memory.acting_as(ORCHESTRATOR)
    common = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 1}
    agent.notes = {
        "for all": agent.note("for all secret-0"),
        "for executors": agent.note("for executors secret-1", visible_to=["executor"]),
        "for the critic": agent.note("for the critic secret-2", visible_to=["agent:critic"]),
        "for ann": agent.note("for ann secret-3", visible_to=["human:ann", "reviewer"]),
        "of the boss": boss.add_note(content="of the boss secret-4", **common),
    }
    agent.may = {
        "orchestrator": {"for all", "of the boss"},
        "executor": {"for all", "for executors"},
        "reviewer": {"for all", "for the critic", "for ann"},
        "human": {"for all", "for ann"},
    }
    return agent


@pytest.mark.parametrize("who", PRINCIPALS)
def test_nobody_sees_what_is_not_for_him(who: str, shared: Any) -> None:
    # M-131, K-131: get, search, assembly and explain
    memory = shared.memory.acting_as(PRINCIPALS[who])
    allowed = shared.may[who]
    window = memory.assemble_context(shared.trajectory_id, query="")
    searched = memory.search("secret", kinds=["note"], limit=50)
    newest = memory.search("", kinds=["note"], limit=50)
    for name, note in shared.notes.items():
        visible = name in allowed
        assert (note.content in window.text) == visible
        assert visible or note.note_id not in {hit.id for hit in searched.hits}
        assert (note.note_id in {hit.id for hit in newest.hits}) == visible
        trace = {decision.target_id for decision in window.assembly_trace}
        assert (note.note_id in trace) == visible, "a decision about a hidden note would give it away"
        if visible:
            assert memory.get(note.note_id) == note
        else:
            with pytest.raises(NotFound) as caught:
                memory.get(note.note_id)
            assert note.content not in str(caught.value)
    explained = str(memory.explain(window.window_id))
    for name, note in shared.notes.items():
        if name not in allowed:
            assert str(note.note_id) not in explained
            assert note.content not in explained


def test_a_key_that_was_used_tells_nobody_but_its_author(shared: Any) -> None:
    # K-131: a refusal would tell of a note that its caller may not see
    boss, human = (shared.memory.acting_as(PRINCIPALS[who]) for who in ("orchestrator", "human"))
    common = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 1, "idempotency_key": "once"}
    known = boss.add_note(content="hidden", visible_to=["orchestrator"], **common)
    with pytest.raises(Conflict) as refused:
        boss.add_note(content="other", **common)
    assert refused.value.context["id"] == known.note_id
    for content in ("hidden", "other"):
        theirs = human.add_note(content=content, **{**common, "idempotency_key": f"once-{content}"})
        assert theirs.note_id != known.note_id
    theirs = human.add_note(content="other", **common)
    assert human.add_note(content="other", **common) == theirs, "a key is its author's own"
    with pytest.raises(Conflict) as refused:
        human.add_note(content="hidden", **common)
    assert refused.value.context["id"] == theirs.note_id


@pytest.mark.parametrize("who", PRINCIPALS)
def test_why_not_this_note_does_not_tell_of_hidden_ones(who: str, shared: Any) -> None:
    memory = shared.memory.acting_as(PRINCIPALS[who])
    window = memory.assemble_context(shared.trajectory_id, query="secret")
    import uuid

    unknown = _answer(memory, window, uuid.uuid4())
    for name, note in shared.notes.items():
        answer = _answer(memory, window, note.note_id)
        if name in shared.may[who]:
            assert answer != unknown
        else:
            assert _without_id(answer) == _without_id(unknown), "hidden and unknown are answered alike"


def _answer(memory: Any, window: Any, record_id: Any) -> Any:
    try:
        return memory.explain(window.window_id, exclusion=record_id)
    except NotFound as error:
        return ("not found", str(error).replace(str(record_id), "ID"))


def _without_id(answer: Any) -> str:
    import re

    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", str(answer))


def test_window_of_one_is_not_read_by_another(shared: Any) -> None:
    reviewer = shared.memory.acting_as(REVIEWER)
    executor = shared.memory.acting_as(EXECUTOR)
    window = reviewer.assemble_context(shared.trajectory_id)
    for call in (executor.replay, executor.explain):
        with pytest.raises(NotFound):
            call(window.window_id)
    shared.memory.flush()
    with pytest.raises(NotFound):
        executor.replay(window.window_id)
    assert reviewer.replay(window.window_id).text == window.text
    assert shared.memory.replay(window.window_id).text == window.text, "an admin reads all"


def test_filter_does_not_reach_hidden_notes(shared: Any) -> None:
    memory = shared.memory.acting_as(EXECUTOR)
    hits = memory.search("", kinds=["note"], filter={"entity": "e"}, limit=50).hits
    assert {hit.content for hit in hits} <= {shared.notes[name].content for name in shared.may["executor"]}
    with pytest.raises(InputError):
        memory.search("", kinds=["note"], filter={"visible_to": "agent:critic"})


def test_storage_is_for_admins(shared: Any) -> None:
    with pytest.raises(PermissionDenied):
        shared.memory.acting_as(EXECUTOR).storage  # noqa: B018
    admin = Principal(PrincipalKind.SYSTEM, "root", is_admin=True)
    assert shared.memory.acting_as(admin).storage.notes.count() == 5
    assert shared.memory.acting_as(EXECUTOR).principal == EXECUTOR


def test_author_is_recorded_and_default_visibility_is_by_role(shared: Any) -> None:
    # M-131
    note = shared.memory.get(shared.notes["of the boss"].note_id)
    assert note.created_by == "agent:boss@orchestrator"
    assert note.visible_to == ("agent:boss", "orchestrator", "optimizer")
    human = shared.memory.acting_as(HUMAN)
    open_note = human.add_note(entity="e", entity_type="t", note_type="fact", content="of ann", confidence=1)
    assert open_note.visible_to == ("human:ann",)


def test_consolidation_does_not_change_what_another_wrote(backend: Any, start: Any) -> None:
    """Merging writes into notes; it may not be a way around ownership."""
    from support.configs import policy
    from support.providers import ScriptedSummarizer

    extract = {"action": "extract_artifacts", "target": "turn_buffer"}
    memory = backend.open(summarization_provider=ScriptedSummarizer(), policies=[policy("scope_close", extract)])
    boss, doer = memory.acting_as(ORCHESTRATOR), memory.acting_as(EXECUTOR)
    hidden = boss.add_note(entity="project", entity_type="topic", note_type="fact", content="the plan", confidence=1)
    agent = start(doer)
    agent.say("KEEP what was done")
    doer.close_scope(agent.scope_id)
    (made,) = doer.consolidate_notes(agent.trajectory_id)
    assert made.note_id != hidden.note_id
    assert "the plan" not in made.content
    assert boss.get(hidden.note_id) == hidden


def test_default_principal_is_the_configurations(backend: Any) -> None:
    memory = backend.open(
        principal__kind="agent", principal__id="solo", principal__role="reviewer", principal__admin=False
    )
    assert memory.principal == Principal(PrincipalKind.AGENT, "solo", AgentRole.REVIEWER)
    with pytest.raises(PermissionDenied):
        memory.storage  # noqa: B018


# --- search --------------------------------------------------------------------------------------


def test_a_note_hidden_from_its_twin_is_not_handed_out(memory: caliber.Caliber) -> None:
    # M-125: equal words of two authors, hidden from each other, are two notes
    first = Principal(PrincipalKind.AGENT, "first", AgentRole.REVIEWER)
    second = Principal(PrincipalKind.AGENT, "second", AgentRole.OPTIMIZER)
    words = {"entity": "plan", "entity_type": "topic", "note_type": "fact", "content": "secret", "confidence": 1.0}
    mine = memory.acting_as(first).add_note(visible_to=["agent:first"], **words)
    theirs = memory.acting_as(second).add_note(visible_to=["agent:first"], **words)
    assert mine.note_id != theirs.note_id
    assert memory.acting_as(first).add_note(visible_to=["agent:first"], **words).note_id == mine.note_id
