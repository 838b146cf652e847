"""To-dos: their states, one winner of racing claims, what they wait for, and whose they are."""

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
from caliber.model.workspace import Todo, TodoKind, TodoStatus
from caliber.workspace.records import begun

HOUR = timedelta(hours=1)
KNOBS = {"embedding_provider": None, "policies": []}


@pytest.fixture
def todos(memory: caliber.Caliber) -> Any:
    return memory.workspace.todos


def as_agent(memory: caliber.Caliber, name: str) -> Any:
    return memory.acting_as(Principal.agent(name)).workspace.todos


def test_a_todo_is_added_pending_and_read_back(todos: Any) -> None:
    # P-042, P-063
    todo = todos.add("write the report", description="of the week", priority="high")
    assert (todo.status, todo.kind, todo.assigned_to) == (TodoStatus.PENDING, TodoKind.COORDINATION, None)
    assert todos.get(todo.todo_id) == todo
    assert todos.list() == [todo]


def test_the_most_urgent_todo_comes_first(todos: Any) -> None:
    for title, priority in (("a", "low"), ("b", "urgent"), ("c", "medium"), ("d", "urgent"), ("e", "high")):
        todos.add(title, priority=priority)
    assert [each.title for each in todos.list()] == ["b", "d", "e", "c", "a"]
    assert [each.title for each in todos.list(limit=2)] == ["b", "d"]
    assert todos.claim(agent="planner").title == "b"
    assert [each.title for each in todos.list(ready=True)] == ["d", "e", "c", "a"]
    assert [each.title for each in todos.list(agent="planner")] == ["b"]


def test_a_todo_is_claimed_done_and_opened_again(todos: Any, memory: caliber.Caliber) -> None:
    # P-043
    planner = as_agent(memory, "planner")
    todo = planner.claim(todos.add("t").todo_id)
    assert todo.status is TodoStatus.IN_PROGRESS
    assert planner.claim() is None
    done = planner.complete(todo.todo_id)
    assert (done.status, done.completed_at is not None) == (TodoStatus.COMPLETED, True)
    with pytest.raises(InvalidStateTransition):
        planner.cancel(todo.todo_id)
    again = planner.reopen(todo.todo_id)
    assert (again.status, again.completed_at, again.assigned_to) == (TodoStatus.PENDING, None, None)


def test_a_claimed_todo_is_no_other_agents(todos: Any, memory: caliber.Caliber) -> None:
    planner, reviewer = as_agent(memory, "planner"), as_agent(memory, "reviewer")
    todo = planner.claim(todos.add("t").todo_id)
    with pytest.raises(Conflict):
        reviewer.claim(todo.todo_id)
    for call in (reviewer.complete, reviewer.cancel, reviewer.start):
        with pytest.raises(PermissionDenied):
            call(todo.todo_id)
    with pytest.raises(PermissionDenied):
        reviewer.claim(agent="planner")
    moved = todos.assign(todo.todo_id, "reviewer")
    assert moved.status is TodoStatus.PENDING
    with pytest.raises(PermissionDenied):
        planner.start(todo.todo_id)
    assert reviewer.start(todo.todo_id).status is TodoStatus.IN_PROGRESS
    free = reviewer.assign(todo.todo_id, None)
    assert (free.status, free.assigned_to) == (TodoStatus.PENDING, None)
    with pytest.raises(ConstraintViolation, match="claim"):
        todos.start(todo.todo_id)


def test_the_application_names_the_agent(memory: caliber.Caliber) -> None:
    todos = memory.acting_as(Principal.application()).workspace.todos
    todos.add("t")
    with pytest.raises(RequiredFieldMissing):
        todos.claim()
    assert todos.claim(agent="planner") is not None


def test_an_unknown_agent_gets_no_todo_where_agents_are_registered(backend: Backend) -> None:
    todos = backend.open(agents__registration="required", **KNOBS).workspace.todos
    todo = todos.add("t")
    with pytest.raises(NotRegistered):
        todos.claim(todo.todo_id, agent="stranger")
    with pytest.raises(NotRegistered):
        todos.assign(todo.todo_id, "stranger")
    assert todos.get(todo.todo_id) == todo


def test_a_todo_that_is_assigned_is_no_act_of_its_agent(backend: Backend) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock, **KNOBS)
    todo = memory.workspace.todos.add("t")
    for name in ("gone", "silent"):
        memory.agents.register(name)
    memory.agents.set_lifecycle("archived", "gone")
    with pytest.raises(PermissionDenied, match="archived"):
        memory.workspace.todos.assign(todo.todo_id, "gone")
    memory.agents.set_status("failed", "silent")
    before = memory.agents.get("silent")
    clock.advance(ms=3_600_000)
    assert memory.workspace.todos.assign(todo.todo_id, "silent").assigned_to == before.agent_id
    assert memory.agents.get("silent") == before


@pytest.mark.databases("all")
def test_a_claim_and_the_end_of_its_agent_come_one_after_the_other(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = backend.open(**KNOBS)
    for name in ("snork", "planner"):
        memory.agents.register(name)
    todo = memory.workspace.todos.add("t")
    archiving = threading.Thread(target=lambda: memory.agents.set_lifecycle("archived", "snork"))

    def late(given: Todo) -> Todo:
        archiving.start()
        archiving.join(0.2)  # it waits for the claim, which has looked at the agent already
        return begun(given)

    monkeypatch.setattr("caliber.workspace.todos.begun", late)
    as_agent(memory, "snork").claim(todo.todo_id)
    archiving.join(30)
    assert memory.agents.get("snork").lifecycle is AgentLifecycle.ARCHIVED
    left = memory.workspace.todos.get(todo.todo_id)
    assert (left.status, left.assigned_to) == (TodoStatus.PENDING, None)


# --- searching -------------------------------------------------------------------------------------


@pytest.mark.databases("all")
@pytest.mark.parametrize("leaving", ["forgotten", "archived"])
def test_an_agent_that_leaves_gives_its_todos_back(backend: Backend, leaving: str) -> None:
    memory = backend.open(**KNOBS)
    todos, snork, planner = memory.workspace.todos, as_agent(memory, "snork"), as_agent(memory, "planner")
    memory.agents.register("snork")
    hidden = planner.add("begun", visible_to=["agent:planner"])
    begun = snork.start(planner.assign(hidden.todo_id, "snork").todo_id)
    waiting = todos.assign(todos.add("waiting").todo_id, "snork")
    done = snork.complete(snork.claim(todos.add("done").todo_id).todo_id)
    of_user = todos.start(todos.assign(todos.add("of maria", user="maria").todo_id, "snork", user="maria").todo_id)
    events: list[Any] = []
    memory.events.subscribe(events.append, event_type="todo")
    if leaving == "forgotten":
        memory.acting_as(Principal.admin()).forget(entity=EntityRef.agent("snork"))
    else:
        memory.agents.set_lifecycle("archived", "snork")
        memory.flush()
        assert {each.payload["id"] for each in events} == {str(each.todo_id) for each in (begun, waiting, of_user)}
    for each in (begun, waiting):
        left = planner.get(each.todo_id)
        assert (left.status, left.assigned_to) == (TodoStatus.PENDING, None)
    left = todos.get(of_user.todo_id, user="maria")
    assert (left.status, left.assigned_to) == (TodoStatus.PENDING, None)
    assert todos.get(done.todo_id).status is TodoStatus.COMPLETED
    assert {planner.claim().title, planner.claim().title} == {"begun", "waiting"}
    assert planner.claim() is None


def test_todos_are_found_by_words_and_meaning_as_they_are_now(backend: Backend) -> None:
    # P-044, P-036
    memory = backend.open(backend.config(embedding_provider=HASH_PROVIDER, vector__dimensions=32, policies=[]))
    todos = memory.workspace.todos
    boiler = todos.add("mend the boiler", description="the one in the cellar")
    todos.add("buy oranges")
    memory.flush()
    for query in ("boiler", "cellar"):
        (hit,) = memory.search(query, kinds=["todo"]).hits[:1]
        assert (hit.kind, hit.id) == ("todo", boiler.todo_id)
        assert "cellar" in hit.content
    assert "vector" in memory.search("mend the boiler", kinds=["todo"]).hits[0].found_by
    assert boiler.todo_id in [hit.id for hit in memory.search("boiler").hits]
    todos.update(boiler.todo_id, title="paint the fence")
    memory.flush()
    assert memory.search("fence", kinds=["todo"]).hits[0].id == boiler.todo_id
    assert all("keyword" not in hit.found_by for hit in memory.search("boiler", kinds=["todo"]).hits)


@pytest.mark.databases("all")
def test_a_hidden_todo_is_not_found(memory: caliber.Caliber) -> None:
    memory.workspace.todos.add("oranges for ana", user="ana")
    memory.workspace.todos.add("oranges for the lead", visible_to=["agent:lead"])
    memory.flush()

    def found(principal: Principal) -> list[str]:
        return [hit.content for hit in memory.acting_as(principal).search("oranges", kinds=["todo"]).hits]

    assert found(Principal.user("ben")) == found(Principal.agent("scout")) == []
    assert [each.strip() for each in found(Principal.user("ana"))] == ["oranges for ana"]
    assert [each.strip() for each in found(Principal.agent("lead"))] == ["oranges for the lead"]


# --- races -----------------------------------------------------------------------------------------


@pytest.mark.databases("all")
def test_of_two_agents_that_claim_a_todo_one_gets_it(todos: Any, memory: caliber.Caliber) -> None:
    # P-064
    agents = [as_agent(memory, f"agent-{at}") for at in range(4)]
    for _ in range(5):
        todo, got, together = todos.add("t"), [], threading.Barrier(4)

        def claim(agent: Any, todo: Todo = todo, got: Any = got, together: Any = together) -> None:
            together.wait()
            try:
                got.append(agent.claim(todo.todo_id).assigned_to)
            except Conflict:
                got.append(None)

        run([threading.Thread(target=claim, args=(agent,)) for agent in agents])
        winners = [each for each in got if each is not None]
        assert (len(got), winners) == (4, [todos.get(todo.todo_id).assigned_to])


@pytest.mark.databases("all")
def test_agents_that_take_the_next_todo_share_them_out(todos: Any, memory: caliber.Caliber) -> None:
    made = {todos.add(f"t{at}").todo_id for at in range(12)}
    got: list[Any] = []

    def work(agent: Any) -> None:
        while (todo := agent.claim()) is not None:
            got.append(todo.todo_id)

    run([threading.Thread(target=work, args=(as_agent(memory, f"agent-{at}"),)) for at in range(3)])
    assert sorted(got, key=str) == sorted(made, key=str)


@pytest.mark.databases("all")
def test_two_writers_close_no_circle_between_them(todos: Any) -> None:
    for _ in range(5):
        one, other = todos.add("one").todo_id, todos.add("other").todo_id
        outcomes, together = [], threading.Barrier(2)

        def depend(first: Any, second: Any, outcomes: Any = outcomes, together: Any = together) -> None:
            together.wait()
            try:
                outcomes.append(todos.depend(first, second))
            except CircularReference:
                outcomes.append(None)

        run([threading.Thread(target=depend, args=pair) for pair in ((one, other), (other, one))])
        assert sorted(outcomes, key=str) == [None, True]


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


# --- what to-dos wait for ---------------------------------------------------------------------------


def test_a_todo_is_ready_once_all_that_it_waits_for_is_done(todos: Any) -> None:
    first, second = todos.add("first"), todos.add("second")
    last = todos.add("last", depends_on=[first.todo_id, second.todo_id], priority="urgent")
    assert [each.title for each in todos.list(ready=True)] == ["first", "second"]
    assert {each.title for each in todos.dependencies(last.todo_id)} == {"first", "second"}
    with pytest.raises(ConstraintViolation, match="waits for 2"):
        todos.claim(last.todo_id, agent="a")
    todos.complete(first.todo_id)
    todos.cancel(second.todo_id)
    with pytest.raises(ConstraintViolation, match="waits for 1"):
        todos.complete(last.todo_id)
    assert todos.claim(agent="a") is None
    assert todos.release(last.todo_id, second.todo_id)
    assert not todos.release(last.todo_id, second.todo_id)
    assert todos.claim(agent="a").todo_id == last.todo_id


def test_circles_are_refused(todos: Any) -> None:
    one, two, three = (todos.add(name).todo_id for name in ("one", "two", "three"))
    assert todos.depend(one, two)
    assert not todos.depend(one, two)
    todos.depend(two, three)
    for todo, on in ((three, one), (one, one), (two, one)):
        with pytest.raises(CircularReference):
            todos.depend(todo, on)
    todos.update(two, parent=one)
    todos.update(three, parent=two)
    for todo, parent in ((one, three), (one, one)):
        with pytest.raises(CircularReference):
            todos.update(todo, parent=parent)
    assert [each.title for each in todos.list(parent=one)] == ["two"]
    assert todos.update(three, parent=None).parent_todo_id is None


def test_a_todo_that_is_scheduled_is_not_ready_before(backend: Backend) -> None:
    clock = SetClock()
    todos = backend.open(clock=clock, **KNOBS).workspace.todos
    todos.add("later", scheduled_at=clock.at + HOUR, due_at=clock.at + 2 * HOUR)
    assert todos.list(ready=True) == []
    assert todos.claim(agent="a") is None
    clock.at += HOUR
    assert todos.claim(agent="a").title == "later"


# --- whose they are --------------------------------------------------------------------------------


def test_a_todo_of_a_user_is_that_users(memory: caliber.Caliber) -> None:
    app = memory.acting_as(Principal.application()).workspace.todos
    maria, jo = (memory.acting_as(Principal.user(name)).workspace.todos for name in ("maria", "jo"))
    todo = app.add("call the dentist", user="maria")
    shared = app.add("release")
    assert todo.kind is TodoKind.USER
    assert {each.title for each in maria.list()} == {"call the dentist", "release"}
    assert [each.title for each in jo.list()] == ["release"]
    assert [each.title for each in app.list()] == ["release"]
    assert len(app.list(user="maria")) == 2
    planner = as_agent(memory, "planner")
    for call in (jo.get, jo.complete, planner.get, planner.claim, app.get):
        with pytest.raises(NotFound):
            call(todo.todo_id)
    for call in (jo.complete, jo.cancel):
        with pytest.raises(PermissionDenied):
            call(shared.todo_id)
    with pytest.raises(PermissionDenied):
        jo.claim(shared.todo_id)
    with pytest.raises(PermissionDenied):
        jo.list(user="maria")
    app.assign(todo.todo_id, "planner", user="maria")
    assert planner.start(todo.todo_id).title == "call the dentist"
    assert maria.complete(todo.todo_id).status is TodoStatus.COMPLETED


def test_an_agent_sees_a_todo_while_it_is_assigned_to_it(memory: caliber.Caliber) -> None:
    ana = memory.acting_as(Principal.user("ana")).workspace.todos
    ada, bob = as_agent(memory, "ada"), as_agent(memory, "bob")
    mine = ana.add("private")
    key = mine.todo_id
    assert ana.assign(key, "ada").visible_to != mine.visible_to
    assert ada.start(key).status is TodoStatus.IN_PROGRESS
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
    listed = memory.workspace.todos.add("listed", visible_to=["agent:ada"])
    assert ada.claim(listed.todo_id).todo_id == listed.todo_id
    assert ada.assign(listed.todo_id, None).visible_to == listed.visible_to
    assert ada.get(listed.todo_id).assigned_to is None


def test_a_todo_of_listed_readers_is_hidden_from_others(todos: Any, memory: caliber.Caliber) -> None:
    todo = todos.add("secret", visible_to=["agent:planner"])
    assert as_agent(memory, "planner").get(todo.todo_id) == todo
    assert as_agent(memory, "reviewer").list() == []
    with pytest.raises(NotFound):
        as_agent(memory, "reviewer").claim(todo.todo_id)


def test_forgetting_a_user_takes_their_todos_and_words(memory: caliber.Caliber) -> None:
    workspace = memory.workspace
    todo = workspace.todos.add("call the dentist", user="maria")
    shared = workspace.todos.add("ask maria about the plan")
    event = workspace.calendar.add("dentist", todo.created_at, user="maria")
    workspace.values.set("of/maria", 1)
    workspace.values.set("plan", {"asked": ["maria", "jo"]})
    memory.forget(user="maria", texts=("maria",))
    with pytest.raises(NotFound):
        workspace.todos.get(todo.todo_id)
    with pytest.raises(NotFound):
        workspace.calendar.get(event.event_id)
    assert "maria" not in workspace.todos.get(shared.todo_id).title
    assert workspace.values.get("of/maria") is None
    assert "maria" not in str(workspace.values.get("plan"))


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "error"), [
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
])  # fmt: skip
def test_bad_todos_are_refused(todos: Any, fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        todos.add(**{"title": "t", **fields})
    assert todos.list() == []


def test_a_change_keeps_to_the_version(todos: Any) -> None:
    todo = todos.add("t")
    assert todos.update(todo.todo_id, title="u", version=1).version == 2
    with pytest.raises(Conflict):
        todos.complete(todo.todo_id, version=1)


# --- any sequence ----------------------------------------------------------------------------------


def test_any_sequence_of_calls_keeps_to_the_states(memory: caliber.Caliber) -> None:
    todos = memory.workspace.todos

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.key = todos.add("t").todo_id
            self.status, self.agent = TodoStatus.PENDING, False

        @rule(to=st.sampled_from(["claim", "start", "complete", "cancel", "reopen", "give", "free"]))
        def go(self, to: str) -> None:
            refused = (InvalidStateTransition, ConstraintViolation, Conflict)
            before = self.status
            try:
                match to:
                    case "claim":
                        todos.claim(self.key, agent="a")
                    case "give":
                        todos.assign(self.key, "b")
                    case "free":
                        todos.assign(self.key, None)
                    case _:
                        getattr(todos, to)(self.key)
            except refused:
                assert todos.get(self.key).status is before
                return
            after = todos.get(self.key)
            assert after.status is before or states.TODO.can_transition(before, after.status)
            self.status, self.agent = after.status, after.assigned_to is not None

        @invariant()
        def completed_at_goes_with_the_state(self) -> None:
            if hasattr(self, "key"):
                todo = todos.get(self.key)
                assert (todo.completed_at is not None) == (todo.status is TodoStatus.COMPLETED)
                assert todo.status is not TodoStatus.IN_PROGRESS or todo.assigned_to is not None

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
    memory = backend.open(embedding_provider=provider, embedding__embed__todo="commit")
    with caliber.deadline(60_000):
        todo = memory.workspace.todos.add("first")
        memory.workspace.todos.update(todo.todo_id, title="second")
    assert provider.bounded == [True, True]


@pytest.mark.parametrize("knobs", [{}, {"search__boosts__recency": 0.3}, {"search__mode": "backend"}])
def test_todos_are_found_by_their_day_and_those_of_others_change_nothing(backend: Backend, knobs: Any) -> None:
    clock = SetClock()
    memory = backend.open(clock=clock, **KNOBS, **knobs)
    ana, ben = (memory.acting_as(Principal.user(name)) for name in ("ana", "ben"))
    ben.start_trajectory("paint the boat")

    def found(who: caliber.Caliber, words: str) -> list[tuple[str, str, float]]:
        return [(hit.kind, hit.content, hit.score) for hit in who.search(words).hits]

    questions = ("the boat", "the boat today", "what is due today?")
    before = [found(ben, words) for words in questions]
    late = ana.workspace.todos.add("sell the boat", due_at=clock.at + HOUR)
    ana.workspace.todos.add("wash the boat")
    memory.flush()
    assert [found(ben, words) for words in questions] == before
    assert {content for _, content, _ in found(ana, "the boat")} >= {late.title, "wash the boat"}
