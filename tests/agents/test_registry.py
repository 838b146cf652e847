"""The registry of agents: registering, heartbeats, states, on each database."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.databases import Backend
from support.inspection import inspect
from support.threads import at_once
from support.waits import until

import caliber
from caliber.access.acting import acting_agent, registered
from caliber.kernels import uuid7
from caliber.model import AgentLifecycle, AgentRole, AgentStatus, EntityRef, FixedClock, LockMode, LockToken, Principal
from caliber.model.agents import LockWaiter
from caliber.model.errors import (
    CircularReference,
    DTypeError,
    InvalidStateTransition,
    InvalidValue,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)
from caliber.model.references import LockWaiterId
from caliber.model.time import from_us
from caliber.schema.relations import LOCK_WAITER

pytestmark = pytest.mark.databases("all")

Opened = Callable[..., caliber.Caliber]


@pytest.fixture
def open_store(backend: Backend) -> Opened:
    def opened(**knobs: Any) -> caliber.Caliber:
        return backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, **knobs)

    return opened


def act(memory: caliber.Caliber, principal: Principal, agent: str | EntityRef | None = None) -> Any:
    engine: Any = inspect(memory).engine
    acting = acting_agent(engine, principal, agent)
    return engine.write(lambda uow: registered(uow, engine.config, acting))


def test_registering_inserts_then_updates(open_store: Opened) -> None:
    memory = open_store()
    made = memory.agents.register("planner", type="lead", capabilities=["plan"], description="plans")
    assert (made.name, made.agent_type, made.capabilities) == ("planner", "lead", ("plan",))
    assert (made.status, made.lifecycle) == (AgentStatus.IDLE, AgentLifecycle.ACTIVE)
    assert made.ref == EntityRef.agent("planner")
    again = memory.agents.register(" planner ", capabilities=[], role="reviewer", can_delegate_to=["worker"])
    assert (again.agent_id, again.agent_type, again.capabilities) == (made.agent_id, "lead", ())
    assert (again.role, again.can_delegate_to, again.description) == (AgentRole.REVIEWER, ("worker",), "plans")
    assert memory.agents.get("planner") == again == memory.agents.get(EntityRef.agent("planner"))
    assert memory.agents.list() == [again]
    assert memory.agents.list(type="worker") == memory.agents.list(status="failed") == []
    assert memory.agents.list(lifecycle="active", type="lead", status="idle") == [again]


def test_unknown_agents_and_bad_names_are_refused(open_store: Opened) -> None:
    memory = open_store()
    for call in (memory.agents.get, memory.agents.heartbeat, lambda name: memory.agents.set_status("active", name)):
        with pytest.raises(NotRegistered, match="register it with"):
            call("nowhere")
    for name in ("", "  ", "\u200b\u2060", "x" * 10_240, "pl\u202eanner", "a\0b"):
        with pytest.raises(InvalidValue):
            memory.agents.register(name)
    with pytest.raises(DTypeError):
        memory.agents.register(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="reference to user"):
        memory.agents.register(EntityRef.user("maria"))
    with pytest.raises(InvalidValue, match="orchestrator"):
        memory.agents.register("planner", role="king")
    with pytest.raises(NotRegistered):
        memory.agents.register(EntityRef.agent("by reference alone"))
    with pytest.raises(RequiredFieldMissing, match="as_agent"):
        memory.agents.heartbeat()
    assert memory.agents.list() == []


def test_a_boss_may_not_report_to_its_own_reports(open_store: Opened) -> None:
    memory = open_store()
    for name in "abc":
        memory.agents.register(name)
    with pytest.raises(NotRegistered):
        memory.agents.register("a", reports_to="nowhere")
    with pytest.raises(CircularReference):
        memory.agents.register("a", reports_to="a")
    memory.agents.register("a", reports_to="b")
    memory.agents.register("b", reports_to="c")
    with pytest.raises(CircularReference):
        memory.agents.register("c", reports_to="a")
    assert memory.agents.get("c").reports_to is None


def test_two_writers_close_no_cycle_together(open_store: Opened) -> None:
    memory = open_store()
    for name in "ab":
        memory.agents.register(name)
    refused = list[str]()

    def report(one: str, other: str) -> None:
        try:
            memory.agents.register(one, reports_to=other)
        except CircularReference:
            refused.append(one)

    at_once([partial(report, *pair) for pair in ("ab", "ba")])
    assert len(refused) == 1
    assert sorted(each.reports_to is None for each in memory.agents.list()) == [False, True]


def test_states_follow_the_machine(open_store: Opened) -> None:
    memory = open_store()
    memory.agents.register("planner")
    for wrong in ("blocked",):
        with pytest.raises(InvalidStateTransition):
            memory.agents.set_status(wrong, "planner")
    for status in ("active", "active", "blocked", "idle", "failed"):
        assert memory.agents.set_status(status, "planner").status == status
    with pytest.raises(InvalidStateTransition):
        memory.agents.set_status("active", "planner")
    assert memory.agents.heartbeat("planner").status is AgentStatus.IDLE
    with pytest.raises(InvalidValue):
        memory.agents.set_status("asleep", "planner")


def test_heartbeats_are_of_the_databases_clock(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock)
    made = memory.agents.register("planner")
    clock.advance(ms=5_000)
    assert memory.agents.heartbeat("planner").last_heartbeat == made.last_heartbeat + timedelta(seconds=5)


def test_an_agent_acts_as_itself_alone(open_store: Opened) -> None:
    memory = open_store()
    memory.agents.register("planner", type="planner")
    memory.agents.register("worker")
    planner = memory.acting_as(Principal.agent("planner"))
    assert planner.agents.register(type="planner", capabilities=["plan"]).capabilities == ("plan",)
    assert planner.agents.heartbeat().name == planner.agents.heartbeat("planner").name == "planner"
    for call in (
        planner.agents.heartbeat,
        planner.agents.register,
        lambda name: planner.agents.set_status("idle", name),
    ):
        with pytest.raises(PermissionDenied):
            call("worker")
    own = [{"role": "optimizer"}, {"can_delegate_to": ["worker"]}, {"reports_to": "worker"}, {"type": "lead"}]
    for rights in own:
        with pytest.raises(PermissionDenied, match="rights"):
            planner.agents.register(**rights)
    with pytest.raises(PermissionDenied, match="rights"):
        memory.acting_as(Principal.agent("new")).agents.register(type="lead")
    assert {each.name: each.agent_type for each in memory.agents.list()} == {"planner": "planner", "worker": "agent"}
    for name in (None, "planner", "maria"):
        with pytest.raises(PermissionDenied):
            memory.acting_as(Principal.user("maria")).agents.register(name)
    for call in (lambda agents: agents.list(), lambda agents: agents.get("planner")):
        with pytest.raises(PermissionDenied, match="registry"):
            call(memory.acting_as(Principal.user("maria")).agents)


def test_the_first_act_registers_an_agent_where_registration_is_open(open_store: Opened) -> None:
    memory = open_store(agents__registration="open")
    found = act(memory, Principal.agent("planner"))
    assert (found.name, found.agent_type, found.status) == ("planner", "agent", AgentStatus.IDLE)
    assert act(memory, Principal.application(), "planner").agent_id == found.agent_id
    assert len(memory.agents.list()) == 1
    with pytest.raises(NotRegistered):
        act(memory, Principal.application(), EntityRef.agent("unknown"))


def test_unknown_agents_lock_and_look_at_nothing_where_registration_is_required(open_store: Opened) -> None:
    memory = open_store(agents__registration="required")
    planner = memory.acting_as(Principal.agent("planner"))
    agents, locks = planner.agents, planner.agents.locks
    memory.agents.groups.create("team", "dynamic")
    made = memory.agents.locks.acquire("file", holder="agent:planner")
    token = LockToken(made.resource, made.token)

    def hold() -> None:
        with locks.hold("other"):
            pass

    calls: list[Callable[[], Any]] = [
        lambda: locks.acquire("other"), hold, lambda: locks.renew(token), lambda: locks.held("file"), locks.list,
        locks.waiting, agents.list, lambda: agents.get("planner"), lambda: agents.groups.members("team"),
        lambda: agents.groups.next_speaker("team"), agents.messages.list, lambda: agents.messages.ack([]),
        agents.delegations.pending, agents.delegations.list, lambda: agents.delegations.get(made.lock_id),
        agents.handoffs.pending, agents.handoffs.list, lambda: agents.handoffs.get(made.lock_id),
        planner.conflicts.list, lambda: planner.conflicts.get(made.lock_id),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotRegistered, match="register it"):
            call()
    assert memory.agents.locks.list() == [made]
    assert locks.release(token), "an agent that left gives back what it held"
    with pytest.raises(NotRegistered):
        act(memory, Principal.agent("planner"))
    agents.register()
    assert act(memory, Principal.agent("planner")).name == "planner"
    assert locks.acquire("other").holder == "agent:planner"
    assert [each.name for each in agents.list()] == ["planner"]
    with memory.acting_as(Principal.user("maria")).agents.locks.hold("of a user"):
        pass


def test_unknown_agents_use_no_workspace_and_no_task_where_registration_is_required(open_store: Opened) -> None:
    memory = open_store(agents__registration="required")
    planner = memory.acting_as(Principal.agent("planner"))
    value, task = memory.workspace.values.set("release", 1), memory.workspace.todos.add("review")
    run = memory.start_trajectory("ship", initiator=EntityRef.agent("planner"))
    scope = memory.current_scope(run.trajectory_id)
    assert scope is not None
    values, tasks, calendar = planner.workspace.values, planner.workspace.todos, planner.workspace.calendar
    calls: list[Callable[[], Any]] = [
        lambda: values.get("release"),
        lambda: values.set("release", 2),
        lambda: values.delete("release"),
        values.list,
        lambda: values.watch(timeout_ms=1),
        lambda: tasks.add("more"),
        lambda: tasks.get(task.todo_id),
        tasks.list,
        tasks.claim,
        lambda: tasks.complete(task.todo_id),
        lambda: calendar.add("launch", starts_at=task.created_at),
        planner.start_session,
        lambda: planner.start_trajectory("mine"),
        lambda: planner.start_trajectory("below", parent=run.trajectory_id),
        lambda: planner.open_scope(run.trajectory_id),
        lambda: planner.append_turn(scope.scope_id, role="assistant", content="hello"),
        lambda: planner.close_scope(scope.scope_id),
        lambda: planner.complete_trajectory(run.trajectory_id, status="success", summary="done"),
    ]
    for call in calls:
        with pytest.raises(NotRegistered, match="register it"):
            call()
    assert memory.workspace.values.get("release") == value
    assert memory.workspace.todos.list() == [task]
    assert planner.current_scope(run.trajectory_id) == scope
    planner.agents.register()
    assert values.set("release", 2).value == 2
    assert tasks.claim().todo_id == task.todo_id
    assert planner.append_turn(scope.scope_id, role="assistant", content="hello").text == "hello"
    assert memory.acting_as(Principal.user("maria")).start_trajectory("hers").status == "active"


def test_a_lock_is_a_sign_of_life_where_registration_is_required(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__registration="required", agents__heartbeat_timeout_ms=40_000)
    made = memory.agents.register("planner")
    locks = memory.acting_as(Principal.agent("planner")).agents.locks
    clock.advance(ms=11_000)
    locks.acquire("file")
    assert memory.agents.get("planner").last_heartbeat == made.last_heartbeat + timedelta(seconds=11)
    memory.agents.set_lifecycle("archived", "planner")
    with pytest.raises(PermissionDenied, match="archived"):
        locks.acquire("file")


def test_locks_ask_the_registry_only_where_registration_is_required(open_store: Opened) -> None:
    memory = open_store()
    locks = memory.acting_as(Principal.agent("planner")).agents.locks
    token = LockToken("file", locks.acquire("file").token)
    locks.renew(token)
    locks.release(token)
    assert memory.agents.list() == []


@pytest.mark.parametrize("lifecycle", ["hibernated", "archived"])
def test_an_agent_that_is_not_active_takes_no_lock(open_store: Opened, lifecycle: str) -> None:
    memory = open_store()
    memory.agents.register("planner")
    locks = memory.acting_as(Principal.agent("planner")).agents.locks
    lock = locks.acquire("file")
    token = LockToken("file", lock.token)
    memory.agents.set_lifecycle(lifecycle, "planner")

    def hold() -> None:
        with locks.hold("other"):
            pass

    calls: list[Callable[[], Any]] = [lambda: locks.acquire("other"), hold, lambda: locks.renew(token)]
    for call in calls:
        with pytest.raises(PermissionDenied, match=f"is {lifecycle}: make it active"):
            call()
    assert locks.list() == [lock], "as an agent that looks at messages"
    assert locks.release(token), "an agent that left gives back what it held"
    memory.agents.set_lifecycle("active", "planner")
    assert locks.acquire("other").holder == "agent:planner"


def test_acts_are_signs_of_life(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__heartbeat_timeout_ms=40_000)
    made = memory.agents.register("planner")
    clock.advance(ms=9_000)
    assert act(memory, Principal.agent("planner")).last_heartbeat == made.last_heartbeat, "not each act writes"
    clock.advance(ms=2_000)
    assert act(memory, Principal.agent("planner")).last_heartbeat == made.last_heartbeat + timedelta(seconds=11)
    memory.agents.set_status("failed", "planner")
    assert act(memory, Principal.agent("planner")).status is AgentStatus.IDLE


def test_an_agent_has_the_active_tasks_that_it_works_on(open_store: Opened) -> None:
    # C-381, C-397
    memory = open_store(principal__kind="human", principal__id="owner", principal__admin=True)
    planner = memory.acting_as(Principal.agent("planner"))
    for name in ("planner", "scout"):
        memory.agents.register(name)
    assert planner.agents.tasks() == memory.agents.tasks("scout") == []
    first = planner.start_trajectory("plan")
    second = memory.start_trajectory("plan more", initiator=EntityRef.agent("planner"))
    planner.start_trajectory("done at once")
    memory.start_trajectory("of a user", user="ana")
    memory.complete_trajectory(planner.agents.tasks()[0].trajectory_id, status="success", summary="done")

    def tasks(agent: str) -> list[Any]:
        return [each.trajectory_id for each in memory.agents.tasks(agent)]

    assert tasks("planner") == [second.trajectory_id, first.trajectory_id]
    assert memory.agents.tasks(EntityRef.agent("planner")) == memory.agents.tasks("planner")
    memory.append_turn(memory.current_scope(first.trajectory_id).scope_id, role="user", content="Go on.")
    assert tasks("planner") == [first.trajectory_id, second.trajectory_id], "the last one worked on is first"
    memory.suspend_trajectory(first.trajectory_id)
    assert tasks("planner") == [second.trajectory_id]
    memory.resume_trajectory(first.trajectory_id)
    memory.storage.trajectories.delete(second.trajectory_id)
    assert tasks("planner") == [first.trajectory_id]
    with pytest.raises(NotRegistered):
        memory.agents.tasks("nobody")
    with pytest.raises(PermissionDenied):
        memory.acting_as(Principal.user("ana")).agents.tasks("planner")


def test_tasks_of_an_agent_are_those_that_the_reader_may_see(open_store: Opened) -> None:
    memory = open_store()
    for name in ("planner", "scout"):
        memory.agents.register(name)
    planner, scout = (memory.acting_as(Principal.agent(name)) for name in ("planner", "scout"))
    shared = planner.start_trajectory("plan")
    private = planner.start_trajectory("plan for Ana", user="ana")
    assert [each.trajectory_id for each in planner.agents.tasks()] == [private.trajectory_id, shared.trajectory_id]
    assert [each.trajectory_id for each in scout.agents.tasks("planner")] == [shared.trajectory_id]
    assert memory.agents.tasks("planner") == planner.agents.tasks()


def test_only_active_agents_act(open_store: Opened) -> None:
    memory = open_store()
    memory.agents.register("planner")
    for stage in ("hibernated", "archived"):
        assert memory.agents.set_lifecycle(stage, "planner").lifecycle == stage
        with pytest.raises(PermissionDenied, match=stage):
            act(memory, Principal.agent("planner"))
    with pytest.raises(PermissionDenied):
        memory.acting_as(Principal.agent("planner")).agents.set_lifecycle("active", "planner")
    memory.agents.set_lifecycle("active", "planner")
    assert act(memory, Principal.agent("planner")).name == "planner"
    with pytest.raises(NotRegistered):
        memory.agents.set_lifecycle("active", "nowhere")


def test_silent_agents_fail_by_the_databases_clock(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__heartbeat_timeout_ms=10_000)
    for name in ("silent", "heard", "away"):
        memory.agents.register(name)
    memory.agents.set_lifecycle("hibernated", "away")
    clock.advance(ms=10_000)
    assert memory.agents.fail_silent() == []
    assert memory.agents.heartbeat_many(["heard", EntityRef.agent("nowhere")]) == 1
    locks = memory.agents.locks
    tokens = {
        holder: locks.acquire(f"file of {holder}", holder=f"agent:{holder}", lease_ms=3_600_000).token
        for holder in ("silent", "heard")
    }
    clock.advance(ms=1)
    assert [each.name for each in memory.agents.fail_silent()] == ["silent"]
    assert locks.held("file of silent") == []
    assert len(locks.held("file of heard")) == 1
    assert locks.acquire("file of silent", holder="agent:heard").token == tokens["silent"] + 1, "tokens keep rising"
    assert memory.agents.fail_silent() == []
    assert [each.name for each in memory.agents.list(status="failed")] == ["silent"]
    assert memory.agents.heartbeat_many(["silent"]) == 1
    assert memory.agents.get("silent").status is AgentStatus.IDLE
    with pytest.raises(PermissionDenied):
        memory.acting_as(Principal.agent("heard")).agents.fail_silent()
    clock.advance(ms=-5_000)
    assert memory.agents.fail_silent() == [], "a clock that goes back fails no agent"


def test_a_job_fails_silent_agents_and_frees_their_locks(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__heartbeat_timeout_ms=40_000)
    memory.jobs.run_due()
    for name in ("silent", "heard"):
        memory.agents.register(name)
    memory.agents.locks.acquire("file", holder="agent:silent", lease_ms=3_600_000)
    for _ in range(6):
        clock.advance(ms=9_000)
        memory.agents.heartbeat("heard")
        memory.jobs.run_due()
    assert memory.agents.get("silent").status is AgentStatus.FAILED
    assert memory.agents.get("heard").status is AgentStatus.IDLE
    assert memory.agents.locks.list() == []
    audit = memory.acting_as(Principal.admin()).storage.events.list_by_subject(memory.agents.get("silent").agent_id)
    assert [each.principal for each in audit if each.event_type == "agent_fail"] == ["system:agents"]


def test_one_job_watches_while_any_agent_is_active(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock, agents__heartbeat_timeout_ms=40_000)
    admin = memory.acting_as(Principal.admin())

    def waiting() -> list[Any]:
        return [job for job in admin.jobs.list() if job.kind == "agents.silent" and job.state == "waiting"]

    assert waiting() == []
    for name in "ab":
        memory.agents.register(name)
    for _ in range(3):
        assert len(waiting()) == 1
        clock.advance(ms=41_000)
        memory.jobs.run_due()
        assert {each.status for each in memory.agents.list()} == {AgentStatus.FAILED}
        memory.agents.heartbeat("a")
        memory.agents.heartbeat("b")
    memory.agents.set_lifecycle("archived", "a")
    memory.agents.set_lifecycle("hibernated", "b")
    clock.advance(ms=41_000)
    memory.jobs.run_due()
    assert waiting() == [], "nothing is left to look for"
    memory.agents.set_lifecycle("active", "b")
    assert len(waiting()) == 1


def test_heartbeats_of_many_renew_each_once(open_store: Opened) -> None:
    clock = FixedClock()
    memory = open_store(clock=clock)
    names = [f"worker {number}" for number in range(40)]
    for name in names:
        memory.agents.register(name)
    memory.agents.set_status("active", names[0])
    memory.agents.set_status("failed", names[1])
    before = memory.agents.get(names[1])
    clock.advance(ms=60_000)
    assert memory.agents.heartbeat_many([*names[:30], names[3], "nowhere"]) == 30
    assert memory.agents.heartbeat_many([]) == 0
    after = {each.name: each for each in memory.agents.list()}
    assert {name for name in names if after[name].last_heartbeat > before.last_heartbeat} == set(names[:30])
    assert after[names[0]].status is AgentStatus.ACTIVE
    assert (after[names[1]].status, after[names[1]].version) == (AgentStatus.IDLE, before.version + 1)


def test_requests_of_silent_agents_are_withdrawn_and_those_behind_wake(
    open_store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FixedClock()
    monkeypatch.setattr("caliber.agents.locks.PLACE_MS", 3_600_000)
    memory = open_store(clock=clock, agents__heartbeat_timeout_ms=10_000)
    for name in ("silent", "heard"):
        memory.agents.register(name)
    clock.advance(ms=10_001)
    memory.agents.heartbeat("heard")
    locks = memory.agents.locks

    def ask(resource: str, holder: str) -> Future[Any]:
        waiting = len(locks.waiting())
        future = pool.submit(locks.acquire, resource, holder=holder, wait_ms=60_000, lease_ms=3_600_000)
        until(lambda: len(locks.waiting()) > waiting)
        return future

    with ThreadPoolExecutor(3) as pool:
        locks.acquire("of silent", holder="agent:silent", lease_ms=3_600_000)
        locks.acquire("of heard", holder="agent:heard", lease_ms=3_600_000)
        granted = ask("of silent", "agent:heard")
        plant = inspect(memory).engine
        plant.write(lambda uow: uow.insert(LOCK_WAITER, request(uow, "of heard", "agent:silent")))
        behind = ask("of heard", "user:maria")
        assert [each.name for each in memory.agents.fail_silent()] == ["silent"]
        assert granted.result(20).holder == "agent:heard"
        assert [(each.resource, each.holder) for each in locks.waiting()] == [("of heard", "user:maria")]
        held = locks.held("of heard")[0]
        assert locks.release(LockToken(held.resource, held.token), holder="agent:heard")
        assert behind.result(20).holder == "user:maria"


def request(uow: Any, resource: str, holder: str) -> LockWaiter:
    """Return the place in a queue that an agent took which ended since."""
    now, ends = from_us(uow.now_us), from_us(uow.now_us + 3_600_000_000)
    return LockWaiter(LockWaiterId(uuid7()), resource, holder, LockMode.EXCLUSIVE, 1, now, now, ends)


def test_a_forgotten_agent_leaves_no_lock_and_no_label(open_store: Any) -> None:
    memory = open_store()
    memory.agents.register("snork")
    snork = memory.acting_as(Principal.agent("snork"))
    snork.agents.locks.acquire("file", lease_ms=3_600_000)
    snork.workspace.values.set("key", 1)
    memory.acting_as(Principal.admin()).forget(entity=EntityRef.agent("snork"))
    assert memory.agents.locks.acquire("file", holder="other").holder == "other"
    assert "snork" not in str(memory.workspace.values.get("key"))


def test_names_are_as_long_as_every_database_keeps_them(open_store: Opened) -> None:
    # Bytes decide: of PostgreSQL's indexes no key is longer than 2,704.
    memory = open_store()
    memory.agents.register("ann")
    ann = memory.acting_as(Principal.agent("ann"))
    draw = random.Random(1)
    calls: list[Callable[[str], Any]] = [
        lambda name: memory.agents.locks.acquire(name, holder="a"),
        lambda name: memory.agents.locks.acquire("file", holder=name, wait_ms=0),
        lambda name: memory.agents.register("typed", type=name),
        lambda name: memory.agents.groups.create(name, "round_robin"),
        lambda name: ann.agents.messages.send(1, to="ann", topic=name),
        lambda name: ann.agents.messages.send(1, to="ann", idempotency_key=name),
        lambda name: ann.agents.messages.send(1, to_type=name),
    ]
    for call in calls:
        call("".join(chr(draw.randrange(0x20000, 0x2A6DF)) for _ in range(512)))
        memory.acting_as(Principal.admin()).agents.locks.break_lock("file")
        with pytest.raises(InvalidValue, match="bytes"):
            call("".join(chr(draw.randrange(0x20000, 0x2A6DF)) for _ in range(513)))


def test_a_role_and_a_place_in_the_hierarchy_can_be_taken_away(open_store: Opened) -> None:
    memory = open_store()
    memory.agents.register("boss")
    memory.agents.register("ann", role="optimizer", reports_to="boss")
    kept = memory.agents.register("ann", description="plans")
    assert (kept.role, kept.reports_to) == (AgentRole.OPTIMIZER, EntityRef.agent("boss").id)
    ann = memory.acting_as(Principal.agent("ann"))
    for taken in ({"role": None}, {"reports_to": None}):
        with pytest.raises(PermissionDenied, match="rights"):
            ann.agents.register(**taken)
    free = memory.agents.register("ann", role=None, reports_to=None)
    assert (free.role, free.reports_to) == (None, None)
    assert memory.agents.register("boss", reports_to="ann").reports_to == free.agent_id


def test_merged_agents_have_their_tasks_together(open_store: Opened) -> None:
    memory = open_store()
    for name in ("ada", "ada2", "bob"):
        memory.agents.register(name)
    bob, second = (memory.acting_as(Principal.agent(name)) for name in ("bob", "ada2"))
    taken = bob.start_trajectory("ship it")
    given = bob.agents.handoffs.initiate(taken.trajectory_id, to="ada2", reason="shift ends", notes="half done")
    second.agents.handoffs.accept(given.handoff_id)
    own = second.start_trajectory("own")

    def tasks(name: str) -> list[Any]:
        return [each.trajectory_id for each in memory.agents.tasks(name)]

    before = tasks("ada2")
    assert set(before) == {taken.trajectory_id, own.trajectory_id}
    memory.identities.merge("ada2", "ada", kind="agent")
    assert tasks("ada") == tasks("ada2") == before
    passed = memory.agents.handoffs.initiate(
        taken.trajectory_id, to="bob", reason="back again", notes="done", agent="ada"
    )
    bob.agents.handoffs.accept(passed.handoff_id)
    assert tasks("ada") == [own.trajectory_id]


def test_a_merged_agent_accepts_what_either_was_offered(open_store: Opened) -> None:
    memory = open_store()
    for name in ("ada", "ada2", "bob", "eve"):
        memory.agents.register(name, can_delegate_to=["agent"])
    bob, ada = (memory.acting_as(Principal.agent(name)) for name in ("bob", "ada"))
    offered, task = (bob.start_trajectory("ship it").trajectory_id for _ in range(2))
    handed = bob.agents.handoffs.initiate(offered, to="ada2", reason="shift ends", notes="half done")
    asked = bob.agents.delegations.delegate("test it", parent=task, to="ada2")
    report = memory.identities.merge("ada2", "ada", kind="agent")
    assert (report.records, report.remaining) == ({"delegation": 1, "handoff": 1}, 0)
    ada.agents.handoffs.accept(handed.handoff_id)
    ada.agents.delegations.accept(asked.delegation_id)
    assert {each.trajectory_id for each in memory.agents.tasks("ada2")} >= {offered}
    # What must be of a registered agent stays as it is.
    report = memory.identities.merge("eve", "nobody yet", kind="agent")
    assert (report.records, report.remaining) == ({}, 0)


def test_tasks_hide_values_that_the_reader_may_not_read(open_store: Opened) -> None:
    memory = open_store()
    memory.agents.register("planner")
    memory.agents.register("clerk", memory_access={"read": {"trajectory": "all"}})
    planner, clerk = (memory.acting_as(Principal.agent(name)) for name in ("planner", "clerk"))
    task = planner.start_trajectory("plan")
    scope = planner.current_scope(task.trajectory_id)
    planner.append_turn(scope.scope_id, role="user", content="Plan the trip.")
    (whole,), (part,) = planner.agents.tasks(), clerk.agents.tasks("planner")
    assert (whole.turn_count, part.turn_count) == (1, 0)
    assert part == clerk.get(task.trajectory_id)
