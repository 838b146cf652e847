"""Tasks: their states, one winner of racing claims, what they wait for, and whose they are."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.configs import HASH_PROVIDER
from support.databases import Backend
from support.evidence import examples
from support.providers import CountingEmbeddings
from support.weeks import SetClock

import caliber
from caliber.model import EntityRef, FixedClock, Principal, states
from caliber.model.agents.registry import AgentLifecycle
from caliber.model.deadline import earliest
from caliber.model.errors import (
    CircularReference,
    Conflict,
    ConstraintViolation,
    DTypeError,
    InvalidStateTransition,
    InvalidValue,
    NotFound,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)
from caliber.model.workspace import WorkKind, WorkspaceTask, WorkStatus
from caliber.workspace.dependencies import begun

HOUR = timedelta(hours=1)
KNOBS = {"embedding_provider": None, "policies": []}


@pytest.fixture
def tasks(memory: caliber.Caliber) -> Any:
    return memory.workspace.tasks


def as_agent(memory: caliber.Caliber, name: str) -> Any:
    return memory.acting_as(Principal.agent(name)).workspace.tasks


def test_a_task_is_added_pending_and_read_back(tasks: Any) -> None:
    # P-042, P-063
    task = tasks.add("write the report", description="of the week", priority="high")
    assert (task.status, task.kind, task.assigned_to) == (WorkStatus.PENDING, WorkKind.COORDINATION, None)
    assert tasks.get(task.task_id) == task
    assert tasks.list() == [task]


def test_the_most_urgent_task_comes_first(tasks: Any) -> None:
    for title, priority in (("a", "low"), ("b", "urgent"), ("c", "medium"), ("d", "urgent"), ("e", "high")):
        tasks.add(title, priority=priority)
    assert [each.title for each in tasks.list()] == ["b", "d", "e", "c", "a"]
    assert [each.title for each in tasks.list(limit=2)] == ["b", "d"]
    assert tasks.claim(agent="planner").title == "b"
    assert [each.title for each in tasks.list(ready=True)] == ["d", "e", "c", "a"]
    assert [each.title for each in tasks.list(agent="planner")] == ["b"]


def test_a_task_is_claimed_done_and_opened_again(tasks: Any, memory: caliber.Caliber) -> None:
    # P-043
    planner = as_agent(memory, "planner")
    task = planner.claim(tasks.add("t").task_id)
    assert task.status is WorkStatus.IN_PROGRESS
    assert planner.claim() is None
    done = planner.complete(task.task_id)
    assert (done.status, done.completed_at is not None) == (WorkStatus.COMPLETED, True)
    with pytest.raises(InvalidStateTransition):
        planner.cancel(task.task_id)
    again = planner.reopen(task.task_id)
    assert (again.status, again.completed_at, again.assigned_to) == (WorkStatus.PENDING, None, None)


def test_a_claimed_task_is_no_other_agents(tasks: Any, memory: caliber.Caliber) -> None:
    planner, reviewer = as_agent(memory, "planner"), as_agent(memory, "reviewer")
    task = planner.claim(tasks.add("t").task_id)
    with pytest.raises(Conflict):
        reviewer.claim(task.task_id)
    for call in (reviewer.complete, reviewer.cancel, reviewer.start):
        with pytest.raises(PermissionDenied):
            call(task.task_id)
    with pytest.raises(PermissionDenied):
        reviewer.claim(agent="planner")
    moved = tasks.assign(task.task_id, "reviewer")
    assert moved.status is WorkStatus.PENDING
    with pytest.raises(PermissionDenied):
        planner.start(task.task_id)
    assert reviewer.start(task.task_id).status is WorkStatus.IN_PROGRESS
    free = reviewer.assign(task.task_id, None)
    assert (free.status, free.assigned_to) == (WorkStatus.PENDING, None)
    with pytest.raises(ConstraintViolation, match="claim"):
        tasks.start(task.task_id)


def test_the_application_names_the_agent(memory: caliber.Caliber) -> None:
    tasks = memory.acting_as(Principal.application()).workspace.tasks
    tasks.add("t")
    with pytest.raises(RequiredFieldMissing):
        tasks.claim()
    assert tasks.claim(agent="planner") is not None


def test_an_unknown_agent_gets_no_task_where_agents_are_registered(backend: Backend) -> None:
    tasks = backend.open(agents__registration="required", **KNOBS).workspace.tasks
    task = tasks.add("t")
    with pytest.raises(NotRegistered):
        tasks.claim(task.task_id, agent="stranger")
    with pytest.raises(NotRegistered):
        tasks.assign(task.task_id, "stranger")
    assert tasks.get(task.task_id) == task


def test_a_task_that_is_assigned_is_no_act_of_its_agent(backend: Backend) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, **KNOBS)
    task = memory.workspace.tasks.add("t")
    for name in ("gone", "silent"):
        memory.agents.register(name)
    memory.agents.set_lifecycle("archived", "gone")
    with pytest.raises(PermissionDenied, match="archived"):
        memory.workspace.tasks.assign(task.task_id, "gone")
    memory.agents.set_status("failed", "silent")
    before = memory.agents.get("silent")
    clock.advance(ms=3_600_000)
    assert memory.workspace.tasks.assign(task.task_id, "silent").assigned_to == before.agent_id
    assert memory.agents.get("silent") == before


@pytest.mark.databases("all")
def test_a_claim_and_the_end_of_its_agent_come_one_after_the_other(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = backend.open(**KNOBS)
    for name in ("snork", "planner"):
        memory.agents.register(name)
    task = memory.workspace.tasks.add("t")
    archiving = threading.Thread(target=lambda: memory.agents.set_lifecycle("archived", "snork"))

    def late(given: WorkspaceTask) -> WorkspaceTask:
        archiving.start()
        archiving.join(0.2)  # it waits for the claim, which has looked at the agent already
        return begun(given)

    monkeypatch.setattr("caliber.workspace.tasks.begun", late)
    as_agent(memory, "snork").claim(task.task_id)
    archiving.join(30)
    assert memory.agents.get("snork").lifecycle is AgentLifecycle.ARCHIVED
    left = memory.workspace.tasks.get(task.task_id)
    assert (left.status, left.assigned_to) == (WorkStatus.PENDING, None)


# --- searching -------------------------------------------------------------------------------------


@pytest.mark.databases("all")
@pytest.mark.parametrize("leaving", ["forgotten", "archived"])
def test_an_agent_that_leaves_gives_its_tasks_back(backend: Backend, leaving: str) -> None:
    memory = backend.open(**KNOBS)
    tasks, snork, planner = memory.workspace.tasks, as_agent(memory, "snork"), as_agent(memory, "planner")
    memory.agents.register("snork")
    hidden = planner.add("begun", visible_to=["agent:planner"])
    begun = snork.start(planner.assign(hidden.task_id, "snork").task_id)
    waiting = tasks.assign(tasks.add("waiting").task_id, "snork")
    done = snork.complete(snork.claim(tasks.add("done").task_id).task_id)
    of_user = tasks.start(tasks.assign(tasks.add("of maria", user="maria").task_id, "snork", user="maria").task_id)
    events: list[Any] = []
    memory.events.subscribe(events.append, event_type="task")
    if leaving == "forgotten":
        memory.acting_as(Principal.admin()).forget(entity=EntityRef.agent("snork"))
    else:
        memory.agents.set_lifecycle("archived", "snork")
        memory.flush()
        assert {each.payload["id"] for each in events} == {str(each.task_id) for each in (begun, waiting, of_user)}
    for each in (begun, waiting):
        left = planner.get(each.task_id)
        assert (left.status, left.assigned_to) == (WorkStatus.PENDING, None)
    left = tasks.get(of_user.task_id, user="maria")
    assert (left.status, left.assigned_to) == (WorkStatus.PENDING, None)
    assert tasks.get(done.task_id).status is WorkStatus.COMPLETED
    assert {planner.claim().title, planner.claim().title} == {"begun", "waiting"}
    assert planner.claim() is None


def test_tasks_are_found_by_words_and_meaning_as_they_are_now(backend: Backend) -> None:
    # P-044, P-036
    memory = backend.open(backend.config(embedding_provider=HASH_PROVIDER, vector__dimensions=32, policies=[]))
    tasks = memory.workspace.tasks
    boiler = tasks.add("mend the boiler", description="the one in the cellar")
    tasks.add("buy oranges")
    memory.flush()
    for query in ("boiler", "cellar"):
        (hit,) = memory.search(query, kinds=["task"]).hits[:1]
        assert (hit.kind, hit.id) == ("task", boiler.task_id)
        assert "cellar" in hit.content
    assert "vector" in memory.search("mend the boiler", kinds=["task"]).hits[0].found_by
    assert boiler.task_id in [hit.id for hit in memory.search("boiler").hits]
    tasks.update(boiler.task_id, title="paint the fence")
    memory.flush()
    assert memory.search("fence", kinds=["task"]).hits[0].id == boiler.task_id
    assert all("keyword" not in hit.found_by for hit in memory.search("boiler", kinds=["task"]).hits)


@pytest.mark.databases("all")
def test_a_hidden_task_is_not_found(memory: caliber.Caliber) -> None:
    memory.workspace.tasks.add("oranges for ana", user="ana")
    memory.workspace.tasks.add("oranges for the lead", visible_to=["agent:lead"])
    memory.flush()

    def found(principal: Principal) -> list[str]:
        return [hit.content for hit in memory.acting_as(principal).search("oranges", kinds=["task"]).hits]

    assert found(Principal.user("ben")) == found(Principal.agent("scout")) == []
    assert [each.strip() for each in found(Principal.user("ana"))] == ["oranges for ana"]
    assert [each.strip() for each in found(Principal.agent("lead"))] == ["oranges for the lead"]


# --- races -----------------------------------------------------------------------------------------


@pytest.mark.databases("all")
def test_of_two_agents_that_claim_a_task_one_gets_it(tasks: Any, memory: caliber.Caliber) -> None:
    # P-064
    agents = [as_agent(memory, f"agent-{at}") for at in range(4)]
    for _ in range(5):
        task, got, together = tasks.add("t"), [], threading.Barrier(4)

        def claim(agent: Any, task: WorkspaceTask = task, got: Any = got, together: Any = together) -> None:
            together.wait()
            try:
                got.append(agent.claim(task.task_id).assigned_to)
            except Conflict:
                got.append(None)

        run([threading.Thread(target=claim, args=(agent,)) for agent in agents])
        winners = [each for each in got if each is not None]
        assert (len(got), winners) == (4, [tasks.get(task.task_id).assigned_to])


@pytest.mark.databases("all")
def test_agents_that_take_the_next_task_share_them_out(tasks: Any, memory: caliber.Caliber) -> None:
    made = {tasks.add(f"t{at}").task_id for at in range(12)}
    got: list[Any] = []

    def work(agent: Any) -> None:
        while (task := agent.claim()) is not None:
            got.append(task.task_id)

    run([threading.Thread(target=work, args=(as_agent(memory, f"agent-{at}"),)) for at in range(3)])
    assert sorted(got, key=str) == sorted(made, key=str)


@pytest.mark.databases("all")
def test_two_writers_close_no_circle_between_them(tasks: Any) -> None:
    for _ in range(5):
        one, other = tasks.add("one").task_id, tasks.add("other").task_id
        outcomes, together = [], threading.Barrier(2)

        def depend(first: Any, second: Any, outcomes: Any = outcomes, together: Any = together) -> None:
            together.wait()
            try:
                outcomes.append(tasks.depend(first, second))
            except CircularReference:
                outcomes.append(None)

        run([threading.Thread(target=depend, args=pair) for pair in ((one, other), (other, one))])
        assert sorted(outcomes, key=str) == [None, True]


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


# --- what tasks wait for ---------------------------------------------------------------------------


def test_a_task_is_ready_once_all_that_it_waits_for_is_done(tasks: Any) -> None:
    first, second = tasks.add("first"), tasks.add("second")
    last = tasks.add("last", depends_on=[first.task_id, second.task_id], priority="urgent")
    assert [each.title for each in tasks.list(ready=True)] == ["first", "second"]
    assert {each.title for each in tasks.dependencies(last.task_id)} == {"first", "second"}
    with pytest.raises(ConstraintViolation, match="waits for 2"):
        tasks.claim(last.task_id, agent="a")
    tasks.complete(first.task_id)
    tasks.cancel(second.task_id)
    with pytest.raises(ConstraintViolation, match="waits for 1"):
        tasks.complete(last.task_id)
    assert tasks.claim(agent="a") is None
    assert tasks.release(last.task_id, second.task_id)
    assert not tasks.release(last.task_id, second.task_id)
    assert tasks.claim(agent="a").task_id == last.task_id


def test_circles_are_refused(tasks: Any) -> None:
    one, two, three = (tasks.add(name).task_id for name in ("one", "two", "three"))
    assert tasks.depend(one, two)
    assert not tasks.depend(one, two)
    tasks.depend(two, three)
    for task, on in ((three, one), (one, one), (two, one)):
        with pytest.raises(CircularReference):
            tasks.depend(task, on)
    tasks.update(two, parent=one)
    tasks.update(three, parent=two)
    for task, parent in ((one, three), (one, one)):
        with pytest.raises(CircularReference):
            tasks.update(task, parent=parent)
    assert [each.title for each in tasks.list(parent=one)] == ["two"]
    assert tasks.update(three, parent=None).parent_task_id is None


def test_a_task_that_is_scheduled_is_not_ready_before(backend: Backend) -> None:
    clock = SetClock()
    tasks = backend.open(clock=clock, **KNOBS).workspace.tasks
    tasks.add("later", scheduled_at=clock.at + HOUR, due_at=clock.at + 2 * HOUR)
    assert tasks.list(ready=True) == []
    assert tasks.claim(agent="a") is None
    clock.at += HOUR
    assert tasks.claim(agent="a").title == "later"


# --- whose they are --------------------------------------------------------------------------------


def test_a_task_of_a_user_is_that_users(memory: caliber.Caliber) -> None:
    app = memory.acting_as(Principal.application()).workspace.tasks
    maria, jo = (memory.acting_as(Principal.user(name)).workspace.tasks for name in ("maria", "jo"))
    task = app.add("call the dentist", user="maria")
    shared = app.add("release")
    assert task.kind is WorkKind.USER
    assert {each.title for each in maria.list()} == {"call the dentist", "release"}
    assert [each.title for each in jo.list()] == ["release"]
    assert [each.title for each in app.list()] == ["release"]
    assert len(app.list(user="maria")) == 2
    planner = as_agent(memory, "planner")
    for call in (jo.get, jo.complete, planner.get, planner.claim, app.get):
        with pytest.raises(NotFound):
            call(task.task_id)
    for call in (jo.complete, jo.cancel):
        with pytest.raises(PermissionDenied):
            call(shared.task_id)
    with pytest.raises(PermissionDenied):
        jo.claim(shared.task_id)
    with pytest.raises(PermissionDenied):
        jo.list(user="maria")
    app.assign(task.task_id, "planner", user="maria")
    assert planner.start(task.task_id).title == "call the dentist"
    assert maria.complete(task.task_id).status is WorkStatus.COMPLETED


def test_an_agent_sees_a_task_while_it_is_assigned_to_it(memory: caliber.Caliber) -> None:
    ana = memory.acting_as(Principal.user("ana")).workspace.tasks
    ada, bob = as_agent(memory, "ada"), as_agent(memory, "bob")
    mine = ana.add("private")
    key = mine.task_id
    assert ana.assign(key, "ada").visible_to != mine.visible_to
    assert ada.start(key).status is WorkStatus.IN_PROGRESS
    ana.assign(key, "bob")
    ana.update(key, description="for bob alone")
    assert bob.get(key).description == "for bob alone"
    with pytest.raises(NotFound):
        ada.get(key)
    assert ana.assign(key, None).visible_to == mine.visible_to
    for agent in (ada, bob):
        assert agent.list() == []
        assert agent.claim() is None
        for call in (agent.get, agent.claim):
            with pytest.raises(NotFound):
                call(key)
    ana.assign(key, "ada")
    ada.complete(key)
    assert ana.reopen(key).visible_to == mine.visible_to
    with pytest.raises(NotFound):
        ada.get(key)
    listed = memory.workspace.tasks.add("listed", visible_to=["agent:ada"])
    assert ada.claim(listed.task_id).task_id == listed.task_id
    assert ada.assign(listed.task_id, None).visible_to == listed.visible_to
    assert ada.get(listed.task_id).assigned_to is None


def test_a_task_of_listed_readers_is_hidden_from_others(tasks: Any, memory: caliber.Caliber) -> None:
    task = tasks.add("secret", visible_to=["agent:planner"])
    assert as_agent(memory, "planner").get(task.task_id) == task
    assert as_agent(memory, "reviewer").list() == []
    with pytest.raises(NotFound):
        as_agent(memory, "reviewer").claim(task.task_id)


def test_forgetting_a_user_takes_their_tasks_and_words(memory: caliber.Caliber) -> None:
    workspace = memory.workspace
    task = workspace.tasks.add("call the dentist", user="maria")
    shared = workspace.tasks.add("ask maria about the plan")
    event = workspace.calendar.add("dentist", task.created_at, user="maria")
    workspace.values.set("of/maria", 1)
    workspace.values.set("plan", {"asked": ["maria", "jo"]})
    memory.forget(user="maria", texts=("maria",))
    with pytest.raises(NotFound):
        workspace.tasks.get(task.task_id)
    with pytest.raises(NotFound):
        workspace.calendar.get(event.event_id)
    assert "maria" not in workspace.tasks.get(shared.task_id).title
    assert workspace.values.get("of/maria") is None
    assert "maria" not in str(workspace.values.get("plan"))


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"title": ""}, InvalidValue),
        ({"title": "t" * 2_000}, InvalidValue),
        ({"title": None}, RequiredFieldMissing),
        ({"priority": "soon"}, InvalidValue),
        ({"kind": "user"}, InvalidValue),
        ({"kind": "coordination", "user": "maria"}, InvalidValue),
        ({"parent": "x"}, InvalidValue),
        ({"depends_on": "x"}, DTypeError),
        ({"due_at": 5}, DTypeError),
        ({"visible_to": []}, InvalidValue),
        ({"parent": "0190f3c2-7c00-7000-8000-000000000000"}, NotFound),
        ({"depends_on": ["0190f3c2-7c00-7000-8000-000000000000"]}, NotFound),
    ],
)
def test_bad_tasks_are_refused(tasks: Any, fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        tasks.add(**{"title": "t", **fields})
    assert tasks.list() == []


def test_a_change_keeps_to_the_version(tasks: Any) -> None:
    task = tasks.add("t")
    assert tasks.update(task.task_id, title="u", version=1).version == 2
    with pytest.raises(Conflict):
        tasks.complete(task.task_id, version=1)


# --- any sequence ----------------------------------------------------------------------------------


def test_any_sequence_of_calls_keeps_to_the_states(memory: caliber.Caliber) -> None:
    tasks = memory.workspace.tasks

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.key = tasks.add("t").task_id
            self.status, self.agent = WorkStatus.PENDING, False

        @rule(to=st.sampled_from(["claim", "start", "complete", "cancel", "reopen", "give", "free"]))
        def go(self, to: str) -> None:
            refused = (InvalidStateTransition, ConstraintViolation, Conflict)
            before = self.status
            try:
                match to:
                    case "claim":
                        tasks.claim(self.key, agent="a")
                    case "give":
                        tasks.assign(self.key, "b")
                    case "free":
                        tasks.assign(self.key, None)
                    case _:
                        getattr(tasks, to)(self.key)
            except refused:
                assert tasks.get(self.key).status is before
                return
            after = tasks.get(self.key)
            assert after.status is before or states.WORKSPACE_TASK.can_transition(before, after.status)
            self.status, self.agent = after.status, after.assigned_to is not None

        @invariant()
        def completed_at_goes_with_the_state(self) -> None:
            if hasattr(self, "key"):
                task = tasks.get(self.key)
                assert (task.completed_at is not None) == (task.status is WorkStatus.COMPLETED)
                assert task.status is not WorkStatus.IN_PROGRESS or task.assigned_to is not None

    run_state_machine_as_test(
        Machine,
        settings=settings(suppress_health_check=list(HealthCheck), max_examples=examples(15), stateful_step_count=10),
    )


class Bounded(CountingEmbeddings):
    """Embeddings that record whether they were asked under a deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.bounded: list[bool] = []

    def embed_batch(self, texts: Any) -> Any:
        self.bounded.append(earliest(None) is not None)
        return super().embed_batch(texts)


def test_the_deadline_of_a_call_is_that_of_its_vectors_too(backend: Backend) -> None:
    provider = Bounded()
    memory = backend.open(embedding_provider=provider, embedding__embed__task="commit")
    with caliber.deadline(60_000):
        task = memory.workspace.tasks.add("first")
        memory.workspace.tasks.update(task.task_id, title="second")
    assert provider.bounded == [True, True]


@pytest.mark.parametrize("knobs", [{}, {"search__boosts__recency": 0.3}, {"search__mode": "backend"}])
def test_tasks_are_found_by_their_day_and_those_of_others_change_nothing(backend: Backend, knobs: Any) -> None:
    clock = SetClock()
    memory = backend.open(clock=clock, **KNOBS, **knobs)
    ana, ben = (memory.acting_as(Principal.user(name)) for name in ("ana", "ben"))
    ben.start_trajectory("paint the boat")

    def found(who: caliber.Caliber, words: str) -> list[tuple[str, str, float]]:
        return [(hit.kind, hit.content, hit.score) for hit in who.search(words).hits]

    questions = ("the boat", "the boat today", "what is due today?")
    before = [found(ben, words) for words in questions]
    late = ana.workspace.tasks.add("sell the boat", due_at=clock.at + HOUR)
    ana.workspace.tasks.add("wash the boat")
    memory.flush()
    assert [found(ben, words) for words in questions] == before
    assert {content for _, content, _ in found(ana, "the boat")} >= {late.title, "wash the boat"}
