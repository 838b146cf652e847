"""Rights of agents per kind of record, as the configuration declares them. Source: C-417, C-422."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.configs import policy
from support.databases import Backend
from support.memories import FACT

import caliber
from caliber.model import AgentRole, EntityRef, Principal, TrustLabel
from caliber.model.errors import ConfigError, DTypeError, InvalidValue, NotFound, PermissionDenied

pytestmark = pytest.mark.databases("all")
MODES = pytest.mark.parametrize("mode", ["resident", "backend"])
WORKER = Principal.agent("worker", AgentRole.EXECUTOR)
TASKS = {"trajectory": "all", "scope": "all"}
EVERY = {**TASKS, "turn": "all", "artifact": "all", "note": "all", "fact": "all"}


@pytest.fixture
def open_store(backend: Backend) -> Callable[..., caliber.Caliber]:
    def opened(rights: Any, **knobs: Any) -> caliber.Caliber:
        every = {"embedding_provider": None, "memories": [FACT], "policies": [], "jobs__poll_ms": 0, **knobs}
        return backend.open(access__rights=rights, **every)

    return opened


def rule(read: Any, write: Any = ()) -> dict[str, Any]:
    return {"read": dict(read), "write": dict(write)}


class World:
    """A task of another agent, one of the worker, and a record of each kind in both."""

    def __init__(self, memory: caliber.Caliber) -> None:
        self.memory = memory
        self.worker = memory.acting_as(WORKER)
        other = memory.acting_as(Principal.agent("other"))
        plain = memory.acting_as(Principal.agent("worker"))
        self.made: dict[str, dict[str, uuid.UUID]] = {}
        for whose, agent in (("other", other), ("worker", plain)):
            task = memory.start_trajectory(f"lantern goal {whose}", initiator=EntityRef.agent(whose))
            scope = memory.current_scope(task.trajectory_id)
            assert scope is not None
            text = f"lantern of {whose}"
            fact = memory.records("fact").insert
            about = {"entity": "lantern", "entity_type": "thing", "note_type": "fact", "confidence": 1.0}
            by = {"extraction_method": "explicit", "artifact_type": "fact"}
            self.made[whose] = {
                "trajectory": task.trajectory_id,
                "scope": scope.scope_id,
                "turn": memory.append_turn(scope.scope_id, role="user", content=f"turn {text}").turn_id,
                "artifact": memory.create_artifact(scope.scope_id, content=f"artifact {text}", **by).artifact_id,
                "note": self._note(agent, content=f"note {text}", visible_to=["executor", "agent:other"], **about),
                "fact": fact(
                    subject="x", kind="claim", content=f"record {text}", trajectory=task.trajectory_id
                ).record_id,
            }
        memory.flush()

    def _note(self, agent: caliber.Caliber, **values: Any) -> uuid.UUID:
        # Written without a rule: the author is what counts.
        handle = agent if agent.principal.id == "other" else self.memory
        note = handle.add_note(**values)
        if handle is self.memory:
            self.memory.storage.notes.update(note.note_id, created_by="agent:worker@executor")
        return note.note_id

    def found(self) -> set[str]:
        """Return the kinds and owners of what the worker finds by words."""
        hits = self.worker.search("lantern", limit=50).hits
        return {" ".join(hit.content.split()[:4:3]) if hit.kind != "scope" else hit.kind for hit in hits}


@MODES
def test_without_a_rule_an_agent_has_every_right(open_store: Callable[..., caliber.Caliber], mode: str) -> None:
    world = World(open_store({"agent:another": rule({}), "reviewer": rule({})}, search__mode=mode))
    both = {f"{kind} {whose}" for kind in ("turn", "artifact", "note", "record") for whose in ("other", "worker")}
    assert world.found() == both
    for kinds in world.made.values():
        for record_id in kinds.values():
            world.worker.get(record_id)


@MODES
@pytest.mark.parametrize("name", ["agent:worker", "executor"])
def test_a_kind_that_a_rule_does_not_name_is_hidden(
    open_store: Callable[..., caliber.Caliber], mode: str, name: str
) -> None:
    world = World(open_store({name: rule({**TASKS, "note": "all", "artifact": "all"})}, search__mode=mode))
    worker, made = world.worker, world.made["other"]
    assert world.found() == {f"{kind} {whose}" for kind in ("artifact", "note") for whose in ("other", "worker")}
    for kind in ("turn", "fact"):
        with pytest.raises(NotFound):
            worker.get(made[kind])
        assert not worker.search("lantern", kinds=[kind]).hits
    assert worker.records("fact").count() == 0
    assert worker.records("fact").find() == worker.records("turn_buffer").find() == []
    assert worker.records("turn_buffer").count() == 0
    for query in (None, "lantern"):
        window = worker.assemble_context(made["trajectory"], query=query)
        assert "artifact lantern of other" in window.text
        assert "turn lantern" not in window.text
        assert "record lantern" not in window.text
        assert worker.replay(window.window_id).text == window.text
        told, nothing = (
            str(worker.explain(window.window_id, exclusion=each)).replace(str(each), "")
            for each in (made["turn"], uuid.uuid4())
        )
        assert told == nothing
    subjects = [event.subject_type for event in worker.trace(made["trajectory"], limit=500)]
    assert "artifact" in subjects
    assert not {"turn", "mem_fact"} & {str(each) for each in subjects}
    counts = worker.admin.stats()["records"]
    assert counts.get("turn", 0) == 0
    assert counts["note"] == 2 if mode == "resident" else "note" not in counts


@MODES
def test_the_registry_narrows_what_an_agent_reads_and_writes(
    open_store: Callable[..., caliber.Caliber], mode: str
) -> None:
    world = World(open_store({}, search__mode=mode))
    worker, made, agents = world.worker, world.made["other"], world.memory.agents
    both = world.found()
    agents.register("worker", memory_access={"read": {**TASKS, "note": "own"}, "write": {"note": "own"}})
    assert world.found() == {"note worker"}, "at once, also for a handle of before"
    for kind in ("turn", "fact", "note", "artifact"):
        with pytest.raises(NotFound):
            worker.get(made[kind])
    assert worker.records("fact").count() == 0
    assert "lantern of other" not in worker.assemble_context(made["trajectory"], query="lantern").text
    assert not {"turn", "note"} & {str(each.subject_type) for each in worker.trace(made["trajectory"], limit=500)}
    with pytest.raises(PermissionDenied, match="write"):
        worker.append_turn(made["scope"], role="user", content="a turn of the worker")
    with pytest.raises(PermissionDenied):
        worker.agents.register(memory_access={})
    agents.heartbeat("worker")
    assert world.found() == {"note worker"}
    assert agents.register("worker", memory_access={}).memory_access is None
    assert world.found() == both
    worker.append_turn(made["scope"], role="user", content="a turn of the worker")


def test_the_registry_narrows_a_rule_and_widens_none(open_store: Callable[..., caliber.Caliber]) -> None:
    world = World(open_store({"agent:worker": rule({**TASKS, "note": "own", "turn": "all"})}))
    every = world.memory.agents.register("worker", memory_access={"read": EVERY, "write": EVERY}).memory_access
    assert dict(every.read) == EVERY
    assert world.found() == {"note worker", "turn worker", "turn other"}
    world.memory.agents.register("worker", memory_access={"read": {**TASKS, "note": "all"}})
    assert world.found() == {"note worker"}
    world.memory.agents.register("other", memory_access={"read": {}, "write": {}})
    assert world.found() == {"note worker"}, "the rights of another agent are its own"


@pytest.mark.parametrize(("access", "message"), [
    ({"read": {"nothing": "all"}}, "names a kind that there is not"),
    ({"read": {"note": "team"}}, "one of: all, own"),
    ({"reads": {}}, "the keys read and write"),
])  # fmt: skip
def test_rights_in_the_registry_are_checked(
    open_store: Callable[..., caliber.Caliber], access: Any, message: str
) -> None:
    memory = open_store({})
    with pytest.raises(InvalidValue, match=message):
        memory.agents.register("worker", memory_access=access)
    with pytest.raises(DTypeError):
        memory.agents.register("worker", memory_access={"read": ["note"]})  # type: ignore[dict-item]
    assert memory.agents.list() == []


@MODES
def test_a_right_on_own_records_is_on_nobody_elses(open_store: Callable[..., caliber.Caliber], mode: str) -> None:
    own = {**TASKS, "turn": "own", "artifact": "own", "note": "own", "fact": "own"}
    world = World(open_store({"agent:worker": rule(own)}, search__mode=mode))
    # A note has an author; of the others the agent of the task counts.
    assert world.found() == {"turn worker", "artifact worker", "note worker", "record worker"}
    for kind in ("turn", "artifact", "note"):
        world.worker.get(world.made["worker"][kind])
        with pytest.raises(NotFound):
            world.worker.get(world.made["other"][kind])
    mine = world.worker.assemble_context(world.made["worker"]["trajectory"]).text
    assert "turn lantern of worker" in mine
    theirs = world.worker.assemble_context(world.made["other"]["trajectory"]).text
    assert "of other" not in theirs
    assert mode == "backend" or world.worker.admin.stats()["records"]["turn"] == 1


def test_a_task_that_may_not_be_read_is_not_there(open_store: Callable[..., caliber.Caliber]) -> None:
    world = World(open_store({"executor": rule({"turn": "all"}, EVERY)}))
    made = world.made["other"]
    for call in (
        lambda: world.worker.assemble_context(made["trajectory"]),
        lambda: world.worker.trace(made["trajectory"]),
        lambda: world.worker.current_scope(made["trajectory"]),
        lambda: world.worker.append_turn(made["scope"], role="user", content="x"),
        lambda: world.worker.get(made["trajectory"]),
        lambda: world.worker.complete_trajectory(made["trajectory"], status="success", summary=""),
    ):
        with pytest.raises(NotFound):
            call()


@MODES
def test_what_a_rule_does_not_let_write_is_refused(open_store: Callable[..., caliber.Caliber], mode: str) -> None:
    world = World(open_store({"executor": rule(EVERY, {})}, search__mode=mode))
    worker, made = world.worker, world.made["worker"]
    before = world.memory.storage.events.count() if hasattr(world.memory.storage, "events") else None
    about = {"entity": "x", "entity_type": "t", "content": "x", "confidence": 1.0}
    by = {"extraction_method": "explicit", "artifact_type": "fact", "content": "x"}
    facts = worker.records("fact")
    calls: dict[str, Callable[[], Any]] = {
        "session": lambda: worker.start_session(),
        "task": lambda: worker.start_trajectory("x"),
        "child": lambda: worker.start_trajectory("x", parent=made["trajectory"]),
        "completed": lambda: worker.complete_trajectory(made["trajectory"], status="success", summary=""),
        "suspended": lambda: worker.suspend_trajectory(made["trajectory"]),
        "scope": lambda: worker.open_scope(made["trajectory"]),
        "closed": lambda: worker.close_scope(made["scope"]),
        "turn": lambda: worker.append_turn(made["scope"], role="user", content="x"),
        "turns": lambda: worker.append_turns(made["scope"], [{"role": "user", "content": "x"}]),
        "artifact": lambda: worker.create_artifact(made["scope"], **by),
        "note": lambda: worker.add_note(**about),
        "corrected": lambda: worker.update_note(made["note"], content="y"),
        "superseded": lambda: worker.supersede_note(made["note"], content="y"),
        "ended": lambda: worker.end_note(made["note"]),
        "deleted": lambda: worker.delete_note(made["note"]),
        "undone": lambda: worker.undo_note(made["note"]),
        "drawn": lambda: worker.consolidate_notes(made["trajectory"]),
        "learnt": lambda: worker.remember([{"role": "user", "content": "I live in Rome."}], user="ana"),
        "record": lambda: facts.insert(subject="x", kind="claim", content="x"),
        "in a task": lambda: facts.insert(subject="x", kind="claim", content="x", trajectory=made["trajectory"]),
        "changed": lambda: facts.update(made["fact"], content="y"),
        "archived": lambda: facts.archive(made["fact"]),
        "gone": lambda: facts.delete(made["fact"]),
    }
    counts = world.memory.admin.stats()["records"]
    for name, call in calls.items():
        with pytest.raises(PermissionDenied) as error:
            call()
        assert error.value.context["agent_id"] == "agent:worker", name
    assert world.memory.admin.stats()["records"] == counts
    assert before is None or world.memory.storage.events.count() == before


def test_a_right_to_write_own_records_adds_and_changes_those(open_store: Callable[..., caliber.Caliber]) -> None:
    own = {"turn": "own", "artifact": "own", "note": "own", "fact": "all"}
    world = World(open_store({"executor": rule(EVERY, own)}))
    worker = world.worker
    worker.append_turn(world.made["worker"]["scope"], role="user", content="x")
    with pytest.raises(PermissionDenied):
        worker.append_turn(world.made["other"]["scope"], role="user", content="x")
    worker.update_note(world.made["worker"]["note"], content="y")
    with pytest.raises(PermissionDenied):
        worker.update_note(world.made["other"]["note"], content="y")
    note = worker.add_note(entity="x", entity_type="t", content="x", confidence=1.0)
    worker.delete_note(note.note_id)
    worker.records("fact").insert(subject="x", kind="claim", content="x")
    with pytest.raises(PermissionDenied):
        worker.open_scope(world.made["worker"]["trajectory"])


def test_the_rule_of_an_agent_goes_before_that_of_its_role(open_store: Callable[..., caliber.Caliber]) -> None:
    world = World(open_store({"executor": rule(EVERY), "agent:worker": rule({"note": "all"})}))
    assert world.found() == {"note other", "note worker"}
    colleague = world.memory.acting_as(Principal.agent("colleague", AgentRole.EXECUTOR))
    assert {hit.kind for hit in colleague.search("lantern", limit=50).hits} == {"turn", "artifact", "note", "fact"}


def test_another_name_of_an_agent_has_its_rule(open_store: Callable[..., caliber.Caliber]) -> None:
    world = World(open_store({"agent:worker": rule({})}))
    world.memory.identities.add("second name", "worker", kind="agent")
    for name in ("second name", " worker ", "worker"):
        assert not world.memory.acting_as(Principal.agent(name)).search("lantern").hits
    assert world.memory.acting_as(Principal.agent("third")).search("lantern").hits


@MODES
def test_values_that_follow_from_hidden_turns_are_those_without_any(
    open_store: Callable[..., caliber.Caliber], mode: str
) -> None:
    own = {**EVERY, "turn": "own"}
    summarize = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})
    world = World(open_store({"agent:worker": rule(own, EVERY)}, search__mode=mode, policies=[summarize]))
    memory, worker = world.memory, world.worker
    seen = {}
    for whose in ("other", "worker"):
        scope = world.made[whose]["scope"]
        sold = "On 3 May a lantern was sold for 40 euros."
        memory.append_turn(scope, role="tool", tool_call_id="1", content=sold, trust="web")
        closed = memory.close_scope(scope)
        assert (closed.trust, closed.turn_count) == (TrustLabel.WEB, 2)
        assert closed.summary
        memory.open_scope(world.made[whose]["trajectory"])
        seen[whose] = worker.get(scope)
    memory.flush()
    assert seen["worker"] == memory.get(world.made["worker"]["scope"])
    other, made = seen["other"], world.made["other"]
    assert (other.trust, other.summary, other.summary_tokens) == (TrustLabel.SYSTEM, None, 0)
    assert (other.turn_count, other.tokens_input, other.end_turn, other.end_turn_id) == (0, 0, 0, None)
    assert not other.is_open
    # The same by every other way to the scope and its task.
    scopes = {each.scope_id: each for each in worker.records("scope").find()}
    assert scopes[made["scope"]] == worker.close_scope(made["scope"]) == other
    assert worker.current_scope(made["trajectory"]).start_turn == 0
    assert worker.get(made["trajectory"]).turn_count == 0
    assert worker.suspend_trajectory(made["trajectory"]).turn_count == 0
    assert worker.resume_trajectory(made["trajectory"]).turn_count == 0
    assert worker.open_scope(made["trajectory"]).start_turn == 0
    assert worker.get(world.made["worker"]["trajectory"]).turn_count == 2
    state = worker.pcp.task_state(made["trajectory"])
    assert state.trajectory.turn_count == 0
    assert other in state.scopes
    origin = worker.pcp.provenance(made["artifact"])
    assert (origin.scope, origin.trajectory.turn_count) == (other, 0)
    hits = {hit.id for hit in worker.search("lantern", kinds=["scope"], limit=50).hits}
    assert hits == {world.made["worker"]["scope"]}
    for asked in ({"filter": 'trust = "web"'}, {"summary_tokens": 0}, {"order_by": "turn_count"}):
        with pytest.raises(PermissionDenied):
            worker.records("scope").find(**asked)
    for asked in ('trust = "web"', {"summary_tokens": 0}):  # nor does a search tell what it may not read
        for search in (worker.records("scope").search, partial(worker.search, kinds=["scope"])):
            with pytest.raises(PermissionDenied):
                search("lantern", filter=asked)
    assert len(worker.records("scope").find(sequence=0)) == 2
    for forbidden in (worker.pcp.checkpoint, worker.pcp.recover):
        with pytest.raises(PermissionDenied):
            forbidden(made["trajectory"])
    for event in worker.trace(made["trajectory"], limit=500):
        assert event.payload.keys() <= {"id"}


@MODES
def test_rights_hold_for_calls_about_a_user(open_store: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_store({"agent:worker": rule({**TASKS, "note": "all"})}, search__mode=mode)
    ana = memory.acting_as(Principal.user("ana"))
    task = ana.start_trajectory("lantern")
    scope = ana.current_scope(task.trajectory_id)
    ana.append_turn(scope.scope_id, role="user", content="a lantern turn")
    ana.add_note(entity="x", entity_type="t", content="a lantern note", confidence=1.0)
    memory.flush()
    worker = memory.acting_as(WORKER)
    assert {hit.kind for hit in worker.search("lantern", user="ana").hits} == {"note"}
    assert {hit.kind for hit in ana.search("lantern", kinds=["turn", "note"]).hits} == {"turn", "note"}
    assert {hit.kind for hit in memory.search("lantern", kinds=["turn", "note"]).hits} == {"turn", "note"}


@pytest.mark.parametrize(("rights", "field"), [
    ({"worker": rule({})}, "access.rights"),
    ({"agent: ": rule({})}, "access.rights"),
    ({"human:ana": rule({})}, "access.rights"),
    ({"executor": rule({"notes": "all"})}, "access.rights.executor.read"),
    ({"executor": rule({}, {"person_fact": "all"})}, "access.rights.executor.write"),
    ({"executor": rule({"note": "team"})}, "access.rights.executor.read.note"),
    ({"executor": {"read": {}}}, "access.rights.executor.write"),
])  # fmt: skip
def test_a_rule_that_means_nothing_is_refused(
    open_store: Callable[..., caliber.Caliber], rights: Any, field: str
) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(rights)
    assert field in str(error.value)
