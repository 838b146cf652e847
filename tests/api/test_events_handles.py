"""Events after commits, handles after close and fork, and what a read leaves behind.

Source: C-242 to C-244, C-294, C-355 to C-358, design sections 4 and 7.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.configs import USER, policy
from support.inspection import held_back, inspect
from support.threads import at_once
from support.waits import exit_code

import caliber
from caliber.model import EventType, FixedClock, LockToken
from caliber.model.errors import CaliberError, ConstraintViolation, InputError, NotFound, Unavailable

# --- events --------------------------------------------------------------------------------------


def test_every_step_is_an_event_in_the_log(agent: Any) -> None:
    memory = agent.memory
    note = agent.note("n")
    agent.say("said")
    artifact = agent.keep("kept")
    memory.get(artifact.artifact_id)
    memory.get(note.note_id)
    window = memory.assemble_context(agent.trajectory_id)
    memory.open_scope(agent.trajectory_id)
    memory.suspend_trajectory(agent.trajectory_id)
    memory.resume_trajectory(agent.trajectory_id)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    trace = memory.trace(agent.trajectory_id, limit=100)
    kinds = [event.event_type for event in reversed(trace)]
    expected = ["trajectory_start", "scope_open", "artifact_create", "context_assemble", "scope_open",
                "trajectory_suspend", "trajectory_resume"]  # fmt: skip
    assert [kind for kind in kinds if kind in expected] == expected
    assert kinds.count("scope_close") == 2
    assert kinds[-1] in ("trajectory_complete", "caliber_trajectory_complete")
    assembled = next(event for event in trace if event.event_type == "context_assemble")
    assert assembled.subject_id == window.window_id
    assert assembled.principal == "admin:owner"
    assert [event.event_type for event in memory.trace(agent.trajectory_id, limit=1)] == kinds[-1:]
    assert {event.event_type for event in memory.trace(agent.trajectory_id, event_type="scope_open")} == {"scope_open"}
    assert memory.trace(agent.trajectory_id, event_type=EventType.SCOPE_OPEN)
    with pytest.raises(CaliberError):
        memory.trace(agent.trajectory_id, event_type="no such type")
    with pytest.raises(CaliberError):
        memory.trace(agent.trajectory_id, limit=-1)
    everything = {event.event_type for event in memory.storage.events.all()}
    assert {"note_create", "note_retrieve", "artifact_retrieve"} <= everything


def test_a_session_and_what_was_drawn_from_a_task_stand_in_its_trace(backend: Any) -> None:  # C-295
    memory = backend.open(policies=[])
    session = memory.start_session(initiator=USER)
    task = memory.start_trajectory("talk", initiator=USER, session=session.session_id).trajectory_id
    scope = memory.current_scope(task).scope_id
    artifact = memory.create_artifact(scope, artifact_type="fact", content="kept", extraction_method="explicit")
    note = memory.add_note(
        entity="e", entity_type="t", content="drawn", confidence=1.0, source_trajectory_ids=[task]
    ).note_id
    for key in (artifact.artifact_id, note):
        memory.get(key)
    memory.update_note(note, content="drawn anew")
    memory.end_session(session.session_id)
    memory.add_note(entity="e", entity_type="t", content="of no task", confidence=1.0)
    trace = memory.trace(task)
    kinds = [event.event_type for event in trace]
    expected = {"session_start", "trajectory_start", "note_create", "note_retrieve", "note_update", "artifact_retrieve",
                "session_end"}  # fmt: skip
    assert expected <= set(kinds)
    assert all(kinds.count(kind) == 1 for kind in expected)
    assert kinds.index("session_start") > kinds.index("trajectory_start"), "newest first"
    assert [event.subject_id for event in memory.trace(task, event_type="session_start")] == [session.session_id]
    assert memory.trace(task, limit=2) == trace[:2]


@pytest.mark.databases("all")
def test_a_program_records_events_of_its_own(backend: Any) -> None:  # C-300, M-161
    memory = backend.open(policies=[])
    anna, ben = memory.as_user("anna"), memory.as_user("ben")
    task = anna.start_trajectory("travel").trajectory_id
    heard: list[str] = []
    anna.events.subscribe(lambda event: heard.append(event.event_type))
    booked = anna.events.record("travel.booked", {"price": 12.5, "message": "by train"}, trajectory=task, duration_ms=7)
    alone = anna.events.record("app.opened")
    assert heard == ["travel.booked", "app.opened"]
    assert anna.trace(task, limit=1) == anna.trace(task, event_type="travel.booked") == [booked]
    assert (booked.payload["message"], booked.duration_ms, booked.family) == ("by train", 7, "trace")
    assert anna.events.list(principal="human:anna", limit=2) == [alone, booked]
    assert memory.events.list(event_type="travel.booked", principal="human:anna") == [booked]
    assert anna.events.list(event_type="app.opened") == memory.events.list(event_type="app.opened") == [alone]
    for kind in ("travel.booked", "app.opened"):
        assert ben.events.list(event_type=kind) == [], "neither of a task nor of a program that it does not see"
    with pytest.raises(NotFound):
        ben.events.record("travel.booked", trajectory=task)
    with pytest.raises(NotFound):
        memory.events.record("travel.booked", trajectory=alone.event_id)
    with memory.transaction():
        within = memory.events.record("travel.paid", trajectory=task)
        memory.append_turn(memory.current_scope(task).scope_id, role="user", content="paid")
    with pytest.raises(NotFound), memory.transaction():
        memory.events.record("travel.lost", trajectory=task).duration_ms or memory.get(alone.event_id)
    assert memory.events.list(event_type="travel.paid") == [within]
    assert memory.events.list(event_type="travel.lost") == memory.trace(task, event_type="no.such") == []
    for wrong in (
        partial(memory.events.record, "scope_open"), partial(memory.events.record, "a.b", {"x": object()}),
        partial(memory.events.record, "a.b", ["x"]), partial(memory.events.record, "a.b", duration_ms=-1),
        partial(memory.events.record, "a.b", {"x": "x" * (1 << 20)}), memory.events.list,
        partial(memory.events.list, event_type="a.b", limit=0),
    ):  # fmt: skip
        with pytest.raises(InputError):
            wrong()
    memory.admin.purge_trajectory(task)
    assert memory.events.list(event_type="travel.booked") == []
    assert memory.events.list(event_type="app.opened") == [alone]


def test_subscriber_hears_only_what_was_committed(agent: Any) -> None:
    # C-243: events after the commit, never of what was rolled back
    memory = agent.memory
    heard: list[str] = []

    def listen(event: Any) -> None:
        heard.append(event.event_type)
        # By the time it is told, it is true.
        if event.event_type == "artifact_create":
            assert memory.storage.artifacts.get(event.subject_id) is not None
            assert memory.get(event.subject_id) is not None

    stop = memory.events.subscribe(listen)
    agent.keep("kept")
    assert heard == ["artifact_create", "artifact_retrieve"]
    del heard[:]
    agent.keep("kept")
    assert heard == [], "nothing new, nothing to tell"
    with pytest.raises(CaliberError):
        agent.keep("kept too", guard=LockToken("nobody's", 1))
    memory.close_scope(agent.scope_id)
    del heard[:]
    with pytest.raises(ConstraintViolation):
        agent.keep("too late")
    assert heard == []
    stop()
    memory.open_scope(agent.trajectory_id)
    assert heard == []


def test_failed_commit_publishes_nothing(backend: Any, start: Any) -> None:
    memory = backend.open()
    agent = start(memory)
    heard: list[Any] = []
    memory.events.subscribe(heard.append)
    store = inspect(memory).store
    from caliber.storage.write.unit_of_work import UnitOfWork

    def work(uow: UnitOfWork) -> None:
        uow.emit(inspect(memory).engine.event(EventType.NOTIFY, trajectory_id=agent.trajectory_id))
        raise ConstraintViolation(constraint="c", reason="r")

    with pytest.raises(ConstraintViolation):
        inspect(memory).write(work)
    assert heard == []
    assert store.facts()["commits"] > 0


def test_subscriber_that_raises_harms_nobody_and_is_recorded(agent: Any) -> None:
    memory = agent.memory
    heard: list[str] = []

    def broken(event: Any) -> None:
        raise RuntimeError("the subscriber's own fault")

    memory.events.subscribe(broken)
    memory.events.subscribe(lambda event: heard.append(event.event_type))
    agent.keep("kept")
    assert heard == ["artifact_create"]
    memory.flush()
    errors = [event for event in memory.storage.events.all() if event.event_type == "error"]
    assert len(errors) == 1
    assert "artifact_create" in errors[0].payload["where"]


def test_subscription_to_one_kind(agent: Any) -> None:
    heard: list[str] = []
    agent.memory.events.subscribe(lambda event: heard.append(event.event_type), event_type="scope_open")
    agent.keep("kept")
    agent.memory.open_scope(agent.trajectory_id)
    assert heard == ["scope_open"]


def test_events_can_be_switched_off(backend: Any, start: Any) -> None:
    memory = backend.open(write_behind__trace_enabled=False, write_behind__usage_enabled=False, policies=[])
    agent = start(memory)
    note = agent.note("n")
    memory.get(note.note_id)
    memory.flush()
    assert memory.storage.events.count() == 0
    assert memory.storage.usages.count() == 0


# --- what a read leaves behind -------------------------------------------------------------------


def test_use_is_counted(agent: Any) -> None:
    # O-10
    note, other = agent.note("n"), agent.note("other", entity="other")
    for _ in range(3):
        agent.memory.get(note.note_id)
    agent.memory.assemble_context(agent.trajectory_id, query="")
    agent.memory.flush()
    usages = agent.memory.storage.usages
    assert usages.get(note.note_id).access_count == 4
    assert usages.get(other.note_id).access_count == 1
    assert agent.memory.admin.verify() == []


def test_window_is_explained_at_once_and_kept_later(backend: Any, start: Any) -> None:
    # design section 4: ``explain`` sees it at once
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    agent = start(memory)
    agent.say("hello")
    window = memory.assemble_context(agent.trajectory_id)
    assert memory.explain(window.window_id)
    assert memory.replay(window.window_id).text == window.text
    assert memory.storage.context_windows.count() == 0
    memory.flush()
    assert memory.storage.context_windows.count() == 1
    assert memory.replay(window.window_id).text == window.text


def test_window_durability_commit_is_on_disk_before_the_call_returns(backend: Any, start: Any) -> None:
    memory = backend.open(write_behind__window_durability="commit", write_behind__flush_interval_ms=60_000)
    agent = start(memory)
    window = memory.assemble_context(agent.trajectory_id)
    assert memory.storage.context_windows.get(window.window_id) is not None


def test_windows_that_are_not_kept_are_not_found(backend: Any, start: Any) -> None:
    # C-354, C-100
    clock = FixedClock()
    memory = backend.open(clock=clock, context_window_persistence={"kind": "ttl", "ttl_ms": 1_000})
    agent = start(memory)
    window = memory.assemble_context(agent.trajectory_id)
    memory.flush()
    clock.advance(ms=1_000)
    for call in (memory.explain, memory.replay):
        with pytest.raises(NotFound, match="expired"):
            call(window.window_id)
    assert memory.admin.maintain()["windows"] == 1
    assert memory.storage.context_windows.count() == 0


def test_ephemeral_windows_leave_nothing(backend: Any, start: Any) -> None:
    memory = backend.open(context_window_persistence={"kind": "ephemeral"})
    agent = start(memory)
    window = memory.assemble_context(agent.trajectory_id)
    memory.flush()
    assert memory.storage.context_windows.count() == 0
    with pytest.raises(NotFound):
        memory.explain(window.window_id)


def test_retention_removes_what_is_over_and_nothing_else(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-355, C-361; design section 8
    clock = FixedClock()
    day = 86_400_000
    monkeypatch.setattr("caliber.admin.maintenance.CHANGES_KEEP_ROWS", 3)
    memory = backend.open(
        clock=clock, retention__windows_ms=2 * day, retention__events_ms=day, retention__changes_ms=day,
        context_window_persistence={"kind": "ttl", "ttl_ms": 2 * day},
    )  # fmt: skip
    agent = start(memory)
    note = agent.note("kept for ever")
    old = memory.assemble_context(agent.trajectory_id)
    memory.flush()
    memory.storage.notes.update(note.note_id, content="changed")
    memory.flush()  # its new vector too, which the worker makes
    clock.advance(ms=3 * day)
    young = memory.assemble_context(agent.trajectory_id)
    report = memory.admin.maintain()
    assert report["windows"] == 1
    assert report["contents"] == 1, "nobody can ask for the old text any more"
    assert report["events"] > 0
    assert memory.storage.changes.count() <= 3
    with pytest.raises(NotFound):
        memory.replay(old.window_id)
    assert memory.replay(young.window_id).text == young.text
    assert memory.get(note.note_id).content == "changed"
    assert memory.admin.verify() == []


def test_full_queue_slows_the_reader_and_loses_nothing(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.write_behind.QUEUE_MAX", 8)
    memory = backend.open(write_behind__flush_interval_ms=5)
    agent = start(memory)
    windows = [memory.assemble_context(agent.trajectory_id).window_id for _ in range(60)]
    memory.flush()
    assert memory.storage.context_windows.count() == 60
    assert all(memory.storage.context_windows.get(window) for window in windows)


def test_maintenance_does_not_lose_the_feed_position(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock()
    monkeypatch.setattr("caliber.admin.maintenance.CHANGES_KEEP_ROWS", 0)
    memory = backend.open(clock=clock, retention__changes_ms=1)
    agent = start(memory)
    agent.note("a")
    clock.advance(ms=5)
    memory.admin.maintain()
    assert memory.storage.changes.count() <= 1
    agent.note("b")
    assert memory.admin.stats()["resident"]["reloads"] == 0
    assert memory.admin.verify() == []


# --- handles -------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Any], Any]] = {
    "start_session": lambda a: a.memory.start_session(initiator=USER),
    "start_trajectory": lambda a: a.memory.start_trajectory("g", initiator=USER),
    "open_scope": lambda a: a.memory.open_scope(a.trajectory_id),
    "close_scope": lambda a: a.memory.close_scope(a.scope_id),
    "current_scope": lambda a: a.memory.current_scope(a.trajectory_id),
    "append_turn": lambda a: a.say("x"),
    "append_turns": lambda a: a.memory.append_turns(a.scope_id, [{"role": "user", "content": "x"}]),
    "create_artifact": lambda a: a.keep("x"),
    "add_note": lambda a: a.note("x"),
    "get": lambda a: a.memory.get(a.trajectory_id),
    "assemble_context": lambda a: a.memory.assemble_context(a.trajectory_id),
    "search": lambda a: a.memory.search("x"),
    "explain": lambda a: a.memory.explain(a.window_id),
    "replay": lambda a: a.memory.replay(a.window_id),
    "trace": lambda a: a.memory.trace(a.trajectory_id),
    "consolidate_notes": lambda a: a.memory.consolidate_notes(a.trajectory_id),
    "complete_trajectory": lambda a: a.memory.complete_trajectory(a.trajectory_id, status="success", summary=""),
    "suspend_trajectory": lambda a: a.memory.suspend_trajectory(a.trajectory_id),
    "stats": lambda a: a.memory.admin.stats(),
    "verify": lambda a: a.memory.admin.verify(),
    "maintain": lambda a: a.memory.admin.maintain(),
    "flush": lambda a: a.memory.flush(),
    "acting_as": lambda a: a.memory.acting_as(a.memory.principal),
    "as_user": lambda a: a.memory.as_user("maria"),
    "as_agent": lambda a: a.memory.as_agent("planner"),
    "agents.acquire": lambda a: a.memory.agents.locks.acquire("r", holder="h", lease_ms=1_000),
    "agents.held": lambda a: a.memory.agents.locks.held("r"),
    "storage.get": lambda a: a.memory.storage.notes.get(a.trajectory_id),
    "storage.count": lambda a: a.memory.storage.notes.count(),
    "storage.insert": lambda a: a.memory.storage.trajectories.insert(a.trajectory),
    "storage.list": lambda a: a.memory.storage.turns.list_by_scope(a.scope_id),
    "storage.all": lambda a: list(a.memory.storage.turns.all()),
}


@pytest.fixture
def working(agent: Any) -> Any:
    agent.say("hello")
    agent.window_id = agent.memory.assemble_context(agent.trajectory_id).window_id
    agent.memory.flush()
    return agent


def test_use_after_close_is_unavailable(working: Any) -> None:
    # issue, Bad input: use after close
    other = working.memory.acting_as(working.memory.principal)
    working.memory.close()
    working.memory.close()
    for name, call in CALLS.items():
        with pytest.raises(Unavailable) as caught:
            call(working)
        assert caught.value.context["reason"] == "closed", name
        assert not caught.value.retryable
        assert "open the store again" in str(caught.value)
    with pytest.raises(Unavailable):
        other.get(working.trajectory_id)
    assert "closed" in repr(working.memory)


def test_handle_closes_itself_at_the_end_of_with(backend: Any) -> None:
    with backend.open() as memory:
        trajectory = memory.start_trajectory("g", initiator=USER)
    with pytest.raises(Unavailable):
        memory.get(trajectory.trajectory_id)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_use_after_fork_is_unavailable_and_the_parent_unharmed(backend: Any, working: Any) -> None:
    # issue, Bad input: use after fork; design section 4: Unavailable(forked) until reopened
    before = working.memory.admin.stats()["records"]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  (another process)
        faults: list[str] = []
        try:
            for name, call in CALLS.items():
                try:
                    call(working)
                    faults.append(f"{name} worked")
                except Unavailable as error:
                    if error.context["reason"] != "forked" or "open the store again" not in str(error):
                        faults.append(f"{name}: {error}")
                except BaseException as error:
                    faults.append(f"{name}: {error!r}")
            working.memory.close()
            if backend.has("reopen"):
                with caliber.open(working.memory.config) as again:
                    again.append_turn(working.scope_id, role="user", content="from the child")
        except BaseException as error:
            faults.append(repr(error))
        os.write(writer, "\n".join(faults).encode()[:4_000])
        os._exit(0)
    os.close(writer)
    exit_code(child)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == ""
    working.say("from the parent")
    expected = 3 if backend.has("reopen") else 2
    texts = [turn.text for turn in working.memory.storage.turns.list_by_scope(working.scope_id)]
    assert len(texts) == expected
    assert texts[-1] == "from the parent"
    assert before["turn"] == 1
    assert working.memory.admin.verify() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_that_ends_normally_closes_nothing_of_its_parent(backend: Any, working: Any) -> None:
    """Interpreters tidy up at their end; a child must not checkpoint, delete or unlock its parent's files."""
    child = os.fork()
    if child == 0:  # pragma: no cover  (another process)
        import atexit
        import gc

        try:
            atexit._run_exitfuncs()
            gc.collect()
            code = 0
        except BaseException:
            code = 1
        os._exit(code)
    assert exit_code(child) == 0
    working.say("after the child")
    other_process = backend.open() if backend.has("sharing") else working.memory
    assert len(other_process.storage.turns.list_by_scope(working.scope_id)) == 2
    assert working.memory.admin.verify() == []


def test_threads_share_a_handle(backend: Any, start: Any) -> None:
    memory = backend.open()
    agents = [start(memory) for _ in range(4)]

    def work(agent: Any) -> None:
        for at in range(25):
            agent.say(f"turn {at}")
            agent.note(f"note {agent.trajectory_id} {at}")
            window = memory.assemble_context(agent.trajectory_id)
            assert window.used_tokens <= window.max_tokens
            memory.search("note", limit=3)

    at_once([partial(work, agent) for agent in agents])
    assert memory.storage.turns.count() == 100
    assert memory.storage.notes.count() == 100
    assert memory.admin.verify() == []


def test_close_while_others_use_it_is_typed(backend: Any, start: Any) -> None:
    memory = backend.open()
    agent = start(memory)
    odd: list[BaseException] = []
    started = threading.Event()

    def work() -> None:
        try:
            while True:
                agent.say("x")
                memory.assemble_context(agent.trajectory_id)
                started.set()
        except Unavailable:
            pass
        except BaseException as error:
            odd.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    memory.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert odd == []


def test_stats_say_what_there_is(agent: Any) -> None:
    agent.say("x")
    agent.note("n")
    stats = agent.memory.admin.stats()
    assert stats["records"]["turn"] == 1
    assert stats["records"]["note"] == 1
    assert stats["resident"]["column_bytes"] > 0
    assert stats["config_hash"] == agent.memory.config.hash.hex()
    assert stats["kernels"]


def test_configuration_is_kept_by_hash(backend: Any) -> None:
    # C-126
    memory = backend.open(token_budget=1_234, policies=[policy("task_end", {"action": "notify", "channel": "c"})])
    document = memory.storage.config_documents.get(memory.config.hash)
    assert caliber.CaliberConfig.from_json(document.body) == memory.config
    assert memory.storage.config_documents.count() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_retention_in_a_forked_child_is_refused_at_once(backend: Any, start: Any) -> None:  # design 4
    memory = backend.open()
    start(memory)
    with held_back(inspect(memory).behind):  # as if the writing thread were at it while the process forked
        child = os.fork()
        if child == 0:
            code = 1
            try:
                memory.admin.maintain()
            except Unavailable as error:
                code = 0 if error.context["reason"] == "forked" else 2
            finally:
                os._exit(code)
    assert exit_code(child, seconds=10) == 0


def test_a_closed_handle_takes_no_subscribers(memory: caliber.Caliber) -> None:
    memory.close()
    with pytest.raises(Unavailable):
        memory.events.subscribe(print)
