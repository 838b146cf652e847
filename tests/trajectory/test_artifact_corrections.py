"""Corrections of artifacts: updated, superseded, ended, deleted, and each of it undone.

Source: C-230, C-332, C-379, C-452, M-110, M-129 to M-141.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.databases import Agent
from support.providers import CountingEmbeddings
from support.threads import at_once, begin
from support.weeks import SetClock

import caliber
from caliber.kernels import uuid7
from caliber.model import EdgeRelation, EntityRef, EntityType, Principal, TrustLabel
from caliber.model.agents import LockToken
from caliber.model.errors import (
    CaliberError,
    Conflict,
    ConstraintViolation,
    InputError,
    LockExpired,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from caliber.model.events import EventFamily, EventType
from caliber.model.trajectory import TTLKind

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def agent(backend: Any, start: Any, clock: SetClock) -> Any:
    return start(backend.open(clock=clock))


def contents(memory: Any, query: str, **options: Any) -> list[str]:
    return [hit.content for hit in memory.search(query, kinds=["artifact"], **options).hits]


def audits(memory: Any, artifact_id: Any) -> list[Any]:
    return [each for each in memory.storage.events.list_by_subject(artifact_id) if each.family is EventFamily.AUDIT]


def same(one: Any, other: Any) -> bool:
    """Return whether two states of an artifact say the same, whenever they were written."""
    return bool(one == dataclasses.replace(other, version=one.version, updated_at=one.updated_at))


# --- update --------------------------------------------------------------------------------------


def test_update_changes_provenance_and_lifetime_alone(agent: Any) -> None:
    # C-379
    memory = agent.memory
    kept = agent.keep("the port is 8080", confidence=0.4, ttl="2h")
    changed = memory.artifacts.update(
        kept.artifact_id, confidence=None, extraction_method="inferred", ttl="3h", occurred_at=kept.created_at
    )
    assert (changed.confidence, changed.extraction_method, changed.ttl.duration_ms) == (None, "inferred", 10_800_000)
    assert changed.expires_at == kept.created_at + 3 * HOUR
    assert changed.version == kept.version + 1
    assert (changed.content, changed.content_hash) == (kept.content, kept.content_hash)
    assert memory.get(kept.artifact_id) == changed
    assert memory.artifacts.update(kept.artifact_id, ttl="persistent").expires_at is None
    (first, second) = audits(memory, kept.artifact_id)
    assert first.payload["action"] == second.payload["action"] == "update"
    assert first.payload["changes"]["confidence"] == [0.4, None]
    assert first.trajectory_id == agent.trajectory_id
    assert set(second.payload["changes"]) == {"ttl_kind", "ttl_ms", "expires_at"}
    memory.artifacts.update(kept.artifact_id, ttl="persistent")
    assert len(audits(memory, kept.artifact_id)) == 2, "nothing changed"
    memory.flush()
    assert EventType.ARTIFACT_UPDATE in {each.event_type for each in memory.trace(agent.trajectory_id)}


@pytest.mark.parametrize("wrong", [
    {}, {"confidence": 2}, {"extraction_method": None}, {"extraction_method": "guessed"}, {"source_turn": -1},
    {"ttl": None}, {"ttl": "soon"}, {"ttl": "session"}, {"trust": "nobody"}, {"trust": None},
    {"confidence": 0.1, "version": 0},
])  # fmt: skip
def test_wrong_update_changes_nothing(agent: Any, wrong: dict[str, Any]) -> None:
    kept = agent.keep("as it was", confidence=0.4)
    with pytest.raises(InputError):
        agent.memory.artifacts.update(kept.artifact_id, **wrong)
    assert agent.memory.get(kept.artifact_id) == kept
    assert audits(agent.memory, kept.artifact_id) == []


def test_lifetime_needs_something_that_ends_it(agent: Any) -> None:
    memory = agent.memory
    kept = agent.keep("kept")
    assert memory.artifacts.update(kept.artifact_id, ttl="scope").ttl.kind is TTLKind.SCOPE
    memory.artifacts.undo(kept.artifact_id)
    memory.close_scope(agent.scope_id)
    with pytest.raises(ConstraintViolation, match="is closed"):
        memory.artifacts.update(kept.artifact_id, ttl="scope")
    with pytest.raises(ConstraintViolation, match="is closed"):
        memory.artifacts.supersede(kept.artifact_id, content="other", ttl="scope")
    assert same(memory.get(kept.artifact_id), kept)


def test_label_is_never_above_that_of_the_source(agent: Any) -> None:
    memory = agent.memory
    turn = agent.say("from the web", role="tool", trust="web")
    said = agent.say("by the user", trust="user")
    kept = agent.keep("a fact", trust="user")
    assert memory.artifacts.update(kept.artifact_id, source_turn=turn.turn_number).trust is TrustLabel.WEB
    assert memory.artifacts.update(kept.artifact_id, source_turn=said.turn_number).trust is TrustLabel.WEB
    with pytest.raises(InputError, match="cannot have more trust"):
        memory.artifacts.update(kept.artifact_id, source_turn=turn.turn_number, trust="user")
    assert memory.artifacts.update(kept.artifact_id, trust="user").trust is TrustLabel.USER
    low = agent.keep("another fact", trust="web")
    newer = memory.artifacts.supersede(low.artifact_id, content="one more fact")
    assert newer.trust is TrustLabel.WEB, "no statement raises it"
    from_turn = agent.keep("of a turn", source_turn=turn.turn_number)
    newer = memory.artifacts.supersede(from_turn.artifact_id, content="of a turn, corrected")
    assert (newer.trust, newer.source_turn) == (TrustLabel.WEB, turn.turn_number)
    with pytest.raises(InputError, match="cannot have more trust"):
        memory.artifacts.supersede(newer.artifact_id, content="trusted", trust="system")
    checked = memory.artifacts.supersede(newer.artifact_id, content="checked", trust="system", source_turn=None)
    assert checked.trust is TrustLabel.SYSTEM


# --- supersede -----------------------------------------------------------------------------------


def test_superseding_artifact_replaces_the_old_one(agent: Any, clock: SetClock) -> None:
    memory = agent.memory
    old = agent.keep("the port is 8080", artifact_type="design_decision", confidence=0.7, schema_version="2", ttl="5h")
    window = memory.assemble_context(agent.trajectory_id, query="port")
    assert "8080" in window.text
    before = clock.at
    clock.at += HOUR
    new = memory.artifacts.supersede(old.artifact_id, content="the port is 9090")
    ended = memory.get(old.artifact_id)
    assert (ended.superseded_by, ended.expires_at) == (new.artifact_id, clock.at)
    assert (new.artifact_type, new.confidence, new.schema_version) == ("design_decision", 0.7, "2")
    assert (new.scope_id, new.expires_at) == (old.scope_id, clock.at + 5 * HOUR)
    assert new.content_hash != old.content_hash
    assert new.token_count == agent.keep("the port is 9090", artifact_type="fact").token_count
    (edge,) = memory.storage.edges.list_by_target(old.artifact_id)
    assert (edge.source.id, edge.relation) == (new.artifact_id, EdgeRelation.SUPERSEDES)
    (event,) = audits(memory, old.artifact_id)
    assert event.payload["changes"]["superseded_by"] == [None, str(new.artifact_id)]
    assert [each.artifact_id for each in memory.storage.artifacts.list_by_type(agent.trajectory_id, "design_decision")]
    for as_of in (None, before, before - HOUR, clock.at + HOUR):
        text = memory.assemble_context(agent.trajectory_id, query="port", as_of=as_of).text
        assert "9090" in text
        assert "8080" not in text
        assert "the port is 8080" not in contents(memory, "port", as_of=as_of)
    # Another task recalls the new one alone.
    other = memory.start_trajectory("open the port", initiator=agent.trajectory.initiator)
    assert "8080" not in memory.assemble_context(other.trajectory_id, query="which port?").text
    memory.flush()
    assert memory.replay(window.window_id).text == window.text
    assert "superseded" in memory.explain(
        memory.assemble_context(agent.trajectory_id, query="port").window_id, exclusion=old.artifact_id
    )["reason"]  # fmt: skip
    assert memory.admin.check() == []


def test_superseding_content_must_be_other_than_what_is_kept(agent: Any) -> None:
    memory = agent.memory
    old, other = agent.keep("one"), agent.keep("two")
    for content in ("one", "two"):
        with pytest.raises(Conflict, match=r"this content already|says the same"):
            memory.artifacts.supersede(old.artifact_id, content=content)
    assert (memory.get(old.artifact_id), memory.get(other.artifact_id)) == (old, other)
    memory.artifacts.delete(other.artifact_id)
    assert memory.artifacts.supersede(old.artifact_id, content="two").content == b"two"
    with pytest.raises(Conflict, match="was deleted"):
        memory.artifacts.supersede(other.artifact_id, content="three")
    with pytest.raises(Conflict, match="says the same"):
        memory.artifacts.undo(other.artifact_id)


def test_repeated_call_is_known_by_its_key(agent: Any) -> None:
    memory = agent.memory
    old = agent.keep("version 1")
    options = {"content": "version 2", "confidence": 0.5, "idempotency_key": "k", "version": old.version}
    new = memory.artifacts.supersede(old.artifact_id, **options)
    assert memory.artifacts.supersede(old.artifact_id, **options) == new
    for other in ({"content": "version 3"}, {"confidence": 0.1}, {"trust": "web"}):
        with pytest.raises(Conflict, match="idempotency key"):
            memory.artifacts.supersede(old.artifact_id, **{**options, **other})
    memory.artifacts.undo(old.artifact_id)
    with pytest.raises(Conflict, match="idempotency key"):
        memory.artifacts.supersede(old.artifact_id, **options)
    agent.keep("elsewhere", idempotency_key="of another")
    with pytest.raises(Conflict, match="idempotency key"):
        memory.artifacts.supersede(old.artifact_id, content="elsewhere", idempotency_key="of another")
    assert same(memory.get(old.artifact_id), old)


def test_artifacts_of_a_closed_scope_and_an_ended_task_are_corrected(agent: Any) -> None:
    memory = agent.memory
    kept = agent.keep("the answer is 41")
    memory.close_scope(agent.scope_id)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    new = memory.artifacts.supersede(kept.artifact_id, content="the answer is 42")
    assert new.scope_id == agent.scope_id
    assert contents(memory, "answer") == ["the answer is 42"]


def test_what_stops_a_correction(agent: Any) -> None:
    memory, turn = agent.memory, agent.say("hello")
    kept = agent.keep("as it was")
    memory.artifacts.update(kept.artifact_id, confidence=0.2)
    was = memory.get(kept.artifact_id)
    calls: list[Any] = [
        lambda key, **how: memory.artifacts.update(key, confidence=0.3, **how),
        lambda key, **how: memory.artifacts.supersede(key, content="other", **how),
        memory.artifacts.end,
        memory.artifacts.delete,
        memory.artifacts.undo,
    ]
    for call in calls:
        with pytest.raises(Conflict, match="its version is 2 by now"):
            call(kept.artifact_id, version=kept.version)
        with pytest.raises(LockExpired):
            call(kept.artifact_id, guard=LockToken("nobody holds it", 1))
        with pytest.raises(Unavailable), caliber.deadline(0):
            call(kept.artifact_id)
        for key in (agent.trajectory_id, turn.turn_id, uuid7()):
            with pytest.raises(NotFound):
                call(key)
    assert memory.get(kept.artifact_id) == was
    assert memory.storage.artifacts.count() == 1


# --- end and delete ------------------------------------------------------------------------------


def test_ended_artifact_expires_and_is_retired_and_comes_back(agent: Any, clock: SetClock) -> None:
    memory = agent.memory
    kept = agent.keep("a passing thing")
    later = memory.artifacts.end(kept.artifact_id, at=clock.at + HOUR)
    assert contents(memory, "passing") == ["a passing thing"]
    clock.at += HOUR
    assert contents(memory, "passing") == []
    assert memory.artifacts.end(kept.artifact_id) == later
    memory.admin.maintain()
    assert memory.get(kept.artifact_id).retired_at is not None
    with pytest.raises(Conflict, match="retired"):
        memory.artifacts.update(kept.artifact_id, confidence=0.1)
    assert same(memory.artifacts.undo(kept.artifact_id), kept)
    assert contents(memory, "passing") == ["a passing thing"]
    assert memory.admin.maintain().get("artifacts", 0) == 0


def test_artifact_that_was_rolled_back_is_not_corrected(agent: Any, clock: SetClock) -> None:
    memory = agent.memory
    kept = agent.keep("undone by a recovery")
    memory.storage.artifacts.update(kept.artifact_id, rolled_back_at=clock.at)
    with pytest.raises(Conflict, match="was rolled back"):
        memory.artifacts.supersede(kept.artifact_id, content="other")


# --- undo ----------------------------------------------------------------------------------------


def test_undo_does_not_overwrite_other_changes(agent: Any) -> None:
    memory = agent.memory
    kept = agent.keep("a", confidence=0.2)
    memory.artifacts.update(kept.artifact_id, confidence=0.4)
    memory.storage.artifacts.update(kept.artifact_id, confidence=0.6)
    with pytest.raises(Conflict, match="confidence was changed again"):
        memory.artifacts.undo(kept.artifact_id)
    # Replaced without a correction, as an importer does.
    other = agent.keep("b")
    memory.artifacts.update(other.artifact_id, confidence=0.4)
    memory.storage.artifacts.update(other.artifact_id, superseded_by=kept.artifact_id)
    with pytest.raises(Conflict, match=f"superseded by artifact {kept.artifact_id}"):
        memory.artifacts.undo(other.artifact_id)


def test_vectors_that_are_committed_follow_corrections(backend: Any, start: Any) -> None:
    agent = start(backend.open(embedding_provider=CountingEmbeddings(), embedding__embed__artifact="commit"))
    memory = agent.memory
    kept = agent.keep("tea")
    for correct in (
        lambda: memory.artifacts.supersede(kept.artifact_id, content="cocoa"),
        lambda: memory.artifacts.undo(kept.artifact_id),
    ):
        correct()
        memory.flush()
        assert memory.search("drink").pending == 0
        assert memory.admin.check() == []


def test_undo_reads_the_audit_of_one_artifact_alone(agent: Any) -> None:
    memory = agent.memory
    kept, other = agent.keep("often read"), agent.keep("another")
    for key in (kept.artifact_id, other.artifact_id):
        memory.artifacts.update(key, confidence=0.4)
        for _ in range(5):
            memory.get(key)
    memory.flush()
    assert len(memory.storage.events.list_by_subject(kept.artifact_id)) > 5
    assert memory.storage.events.list_audit_by_subject(kept.artifact_id) == audits(memory, kept.artifact_id)


# --- who may -------------------------------------------------------------------------------------


def test_writers_of_the_task_correct_its_artifacts(backend: Any) -> None:
    # C-422
    memory = backend.open()
    ana, ben, eve, program = (
        memory.acting_as(each)
        for each in (*(Principal.user(name) for name in ("ana", "ben", "eve")), Principal.application())
    )
    task = ana.start_trajectory("plan").trajectory_id
    scope = ana.current_scope(task)
    kept = ana.create_artifact(
        scope.scope_id, content="ship on Monday", artifact_type="fact", extraction_method="explicit"
    )

    def calls(who: caliber.Caliber) -> list[Any]:
        return [
            lambda: who.artifacts.update(kept.artifact_id, confidence=0.1),
            lambda: who.artifacts.supersede(kept.artifact_id, content="never"),
            lambda: who.artifacts.end(kept.artifact_id),
            lambda: who.artifacts.delete(kept.artifact_id),
            lambda: who.artifacts.undo(kept.artifact_id),
        ]

    for call in (*calls(ben), *calls(eve)):
        with pytest.raises(NotFound):
            call()
    ana.access.grant(to="ben", on=task)
    for call in calls(ben):
        with pytest.raises(PermissionDenied):
            call()
    assert ana.get(kept.artifact_id) == kept
    ana.access.grant(to="ben", on=task, right="write")
    assert ben.artifacts.update(kept.artifact_id, confidence=0.1).confidence == pytest.approx(0.1)
    new = program.artifacts.supersede(kept.artifact_id, content="ship on Tuesday")
    assert program.search("ship").hits == ()
    assert [hit.id for hit in ana.search("ship").hits if hit.kind == "artifact"] == [new.artifact_id]
    with pytest.raises(NotFound):
        eve.artifacts.undo(kept.artifact_id)
    assert ana.artifacts.undo(kept.artifact_id).superseded_by is None
    # The log of corrections is an administrator's.
    assert not any(each.family is EventFamily.AUDIT for each in ana.trace(task, limit=100))


# --- at the same time ----------------------------------------------------------------------------


def test_two_connections_that_correct_one_artifact(backend: Any, start: Any) -> None:
    first = backend.open()
    handles = [first, backend.open() if backend.has("sharing") else first]
    agent = start(first)
    kept = agent.keep("who wins")
    outcomes: list[Any] = []

    def supersede(memory: Any, name: str) -> None:
        try:
            outcomes.append(memory.artifacts.supersede(kept.artifact_id, content=f"{name} wins", version=kept.version))
        except CaliberError as error:
            outcomes.append(error)

    names = ("Ann", "Bob", "Cay", "Dan")
    at_once([partial(supersede, handles[at % 2], name) for at, name in enumerate(names)])
    assert sorted(isinstance(each, Conflict) for each in outcomes) == [False, True, True, True], outcomes
    (new,) = (each for each in outcomes if not isinstance(each, CaliberError))
    assert [hit.id for hit in first.search("wins", kinds=["artifact"], consistency="latest").hits] == [new.artifact_id]
    assert first.get(kept.artifact_id).superseded_by == new.artifact_id
    assert first.admin.check() == []


@pytest.mark.prove
def test_corrections_beside_turns_and_a_deletion_of_the_task(backend: Any, start: Any) -> None:
    """A deletion locks the task before its artifacts, and so do corrections: nobody is a deadlock's victim."""
    first = backend.open()
    second = backend.open() if backend.has("sharing") else first
    agents = [start(first) for _ in range(4)]
    kept = [each.keep("one") for each in agents]
    failed: list[BaseException] = []

    def correct() -> None:
        for at, each in enumerate(kept):
            for step in range(6):
                try:
                    second.artifacts.update(each.artifact_id, confidence=step / 10)
                    agents[at].say("beside it")
                    second.artifacts.undo(each.artifact_id)
                except NotFound:
                    break
                except BaseException as error:
                    failed.append(error)

    thread = begin(correct)
    for each in agents[::2]:
        first.admin.purge_trajectory(each.trajectory_id)
    thread.result()
    assert failed == []
    assert first.admin.check() == []


# --- forgetting ----------------------------------------------------------------------------------


def test_undo_after_the_new_artifact_was_forgotten(agent: Any) -> None:
    memory = agent.memory
    old = agent.keep("the code is 1111")
    new = memory.artifacts.supersede(old.artifact_id, content="the code is 2222")
    memory.forget(entity=EntityRef(EntityType.ARTIFACT, new.artifact_id))
    assert contents(memory, "code") == [], "what was superseded does not come back by itself"
    assert str(new.artifact_id) not in str([event.payload for event in audits(memory, old.artifact_id)])
    assert same(memory.artifacts.undo(old.artifact_id), old)
    assert contents(memory, "code") == ["the code is 1111"]


def test_forgotten_words_do_not_come_back(agent: Any) -> None:
    memory = agent.memory
    kept = agent.keep("Zebulon likes tea", schema_version="by Zebulon")
    new = memory.artifacts.supersede(kept.artifact_id, content="somebody likes tea")
    memory.forget(texts=["Zebulon"])
    undone = memory.artifacts.undo(kept.artifact_id)
    assert b"Zebulon" not in undone.content
    assert memory.get(new.artifact_id).retired_at is not None
    assert contents(memory, "Zebulon likes tea") == [undone.text]


def test_forgotten_user_leaves_no_value_in_the_log(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(Principal.user("ana"))
    scope = ana.current_scope(ana.start_trajectory("plan").trajectory_id)
    kept = ana.create_artifact(scope.scope_id, content="one", artifact_type="fact", extraction_method="explicit")
    ana.artifacts.update(kept.artifact_id, confidence=0.123)
    ana.artifacts.supersede(kept.artifact_id, content="two")
    before = [each for each in memory.storage.events.all() if each.family is EventFamily.AUDIT]
    assert any("changes" in each.payload for each in before)
    assert memory.forget(user="ana").proven
    after = [each for each in memory.storage.events.all() if each.family is EventFamily.AUDIT]
    assert len(after) >= len(before)
    for event in after:
        assert "changes" not in event.payload
        assert event.subject_id not in {kept.artifact_id}
    assert memory.storage.artifacts.count() == 0


# --- random sequences against a model ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class State:
    confidence: float | None = None
    ended: bool = False
    deleted: bool = False
    superseded_by: int | None = None

    @property
    def in_use(self) -> bool:
        return not self.deleted and self.superseded_by is None


class Model:
    """Artifacts by number: each a stack of states, of which the last one is the present."""

    def __init__(self) -> None:
        self.stacks: list[list[State]] = [[State()]]

    def present(self, at: int) -> State:
        return self.stacks[at][-1]

    def visible(self) -> set[int]:
        return {at for at in range(len(self.stacks)) if self.present(at).in_use and not self.present(at).ended}

    def apply(self, name: str, at: int, value: Any) -> bool:
        """Apply a correction to the artifact ``at``; return False if it is refused."""
        stack, state = self.stacks[at], self.present(at)
        if name == "undo":
            new = state.superseded_by
            if len(stack) == 1 or (new is not None and len(self.stacks[new]) > 1):
                return False
            stack.pop()
            if new is not None:
                self.stacks[new] = [dataclasses.replace(self.stacks[new][0], deleted=True)]
            return True
        if state.superseded_by is not None:
            return False
        if name == "delete":
            changed = dataclasses.replace(state, deleted=True)
        elif name == "end" and state.ended:
            return True
        elif state.deleted:
            return False
        elif name == "end":
            changed = dataclasses.replace(state, ended=True)
        elif name == "update":
            changed = dataclasses.replace(state, confidence=value)
        else:
            self.stacks.append([State(confidence=state.confidence)])
            changed = dataclasses.replace(state, superseded_by=len(self.stacks) - 1, ended=True)
        if changed != state:
            stack.append(changed)
        return True


_STEPS = st.tuples(
    st.sampled_from(["update", "update", "end", "delete", "supersede", "supersede", "undo", "undo", "undo"]),
    st.integers(0, 5),
    st.sampled_from([None, 0.25, 0.5]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEPS, max_size=14))
def test_random_corrections_are_those_of_a_model(module_agent: Any, steps: list[tuple[str, int, Any]]) -> None:
    memory: caliber.Caliber = module_agent.memory
    agent, model, tag = Agent(memory), Model(), f"tag{uuid7().hex}"
    keys = [agent.keep(f"{tag} 0").artifact_id]
    for name, number, value in steps:
        at = number % len(keys)
        arguments = {"update": {"confidence": value}, "supersede": {"content": f"{tag} {len(keys)}"}}.get(name, {})
        was, known = memory.get(keys[at]), len(audits(memory, keys[at]))
        try:
            result = getattr(memory.artifacts, name)(keys[at], version=was.version, **arguments)
        except Conflict:
            assert not model.apply(name, at, value), (name, at)
            assert memory.get(keys[at]) == was
            assert len(audits(memory, keys[at])) == known
        else:
            assert model.apply(name, at, value), (name, at)
            assert name == "supersede" or memory.get(keys[at]) == result
            if name == "supersede":
                keys.append(result.artifact_id)
            log = [event.payload["action"] for event in audits(memory, keys[at])[known:]]
            assert log == [name] or (log == [] and name != "undo")
        for place, key in enumerate(keys):
            stored, state = memory.get(key), model.present(place)
            successor = None if state.superseded_by is None else keys[state.superseded_by]
            assert (stored.confidence, stored.superseded_by) == (state.confidence, successor)
            assert (stored.expires_at is not None, stored.retired_at is not None) == (state.ended, state.deleted)
            links = memory.storage.edges.list_by_target(key)
            assert [each.source.id for each in links if each.removed_at is None] == ([successor] if successor else [])
        hits = memory.search(tag, kinds=["artifact"], limit=50).hits
        assert {keys.index(hit.id) for hit in hits if hit.id in keys} == model.visible()
