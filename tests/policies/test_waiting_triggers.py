"""Triggers of a task's start or a turn after their process died: run once, as their principal, late or not at all.

Source: C-229, C-235, C-238; decision 0172.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.configs import USER, policy
from support.databases import DSN
from support.inspection import inspect
from support.providers import ScriptedSummarizer
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.cli import doctor
from caliber.jobs import claims, queue
from caliber.jobs.queue import JobQueue
from caliber.model import AgentRole, NoteType, Principal, PrincipalKind
from caliber.policies.policy_engine import PolicyEngine
from caliber.trajectory.service import Tasks

BOUND = timedelta(minutes=5)
EXTRACT = {"action": "extract_artifacts", "target": "turn_buffer"}
CONSOLIDATE = {"action": "consolidate_notes", "target": "trajectory"}
SAID = {"action": "notify", "channel": "said"}
BEGUN = {"action": "notify", "channel": "begun"}
QUIET = {
    "embedding_provider": None, "pcp.recovery_points.frequency": "manual", "jobs__poll_ms": 0,
    "retention__apply_every_ms": 0, "jobs__lease_ms": "5m",
}  # fmt: skip
ON_TURN = [policy("turn", EXTRACT, SAID)]

EVERYWHERE = pytest.mark.parametrize("backend", ["sqlite-memory", "postgres"], indirect=True)
ON_DISK = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
HERE = pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def summarizer() -> ScriptedSummarizer:
    return ScriptedSummarizer()


@pytest.fixture
def opened(backend: Any, clock: SetClock, summarizer: ScriptedSummarizer) -> Any:
    def make(*policies: dict[str, Any], **options: Any) -> caliber.Caliber:
        settings = {**QUIET, "policies": list(policies), **options}
        return backend.open(summarization_provider=summarizer, clock=clock, **settings)

    return make


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a switch that cuts a call off right after its commit; revived, everything goes on."""

    def between(on: bool = True) -> None:
        if on:
            monkeypatch.setattr(Tasks, "after_commit", lambda *_: None)
            monkeypatch.setattr(JobQueue, "attempt", lambda *_: None)
        else:
            monkeypatch.undo()

    return between


def left(memory: caliber.Caliber) -> list[Any]:
    store = inspect(memory).store
    plans = store.plans["job"]
    with store.read() as session:
        jobs = [plans.codec.decode(row) for row in session.run(plans.page, (bytes(16), 100))]
    return [job for job in jobs if job.kind.startswith("trigger:") and job.ended_at is None]


def log(memory: caliber.Caliber, kind: str = "policy_execute") -> list[Any]:
    memory.flush()
    return [event for event in memory.storage.events.all() if event.event_type == kind]


def outcomes(memory: caliber.Caliber) -> list[tuple[Any, ...]]:
    return [(run.payload["trigger"], run.payload["outcome"], run.payload.get("attempt")) for run in log(memory)]


@EVERYWHERE
def test_what_a_process_left_is_done_once_it_is_old_enough_as_who_set_it_off(
    opened: Any, clock: SetClock, dies: Any, start: Any
) -> None:
    # C-229, C-238; M-140: notes are written, and seen, as theirs
    memory = opened(policy("turn", EXTRACT, CONSOLIDATE, SAID), policy("task_start", BEGUN, name="starting"))
    planner = Principal(PrincipalKind.AGENT, "planner", AgentRole.REVIEWER)
    dies()
    agent = start(memory.acting_as(planner))
    turns = agent.memory.append_turns(agent.scope_id, [{"role": "user", "content": text} for text in ("KEEP it", "b")])
    assert [each.kind for each in left(memory)] == ["trigger:task_start", "trigger:turn"], (
        "one for a call, however many turns"
    )
    assert log(memory) == []
    assert memory.admin.stats()["behind"]["jobs_waiting"] == 2
    dies(False)
    clock.at += BOUND - timedelta(milliseconds=1)
    assert memory.jobs.run_due() == 0
    clock.at += timedelta(milliseconds=1)
    assert memory.jobs.run_due() == 4
    assert memory.jobs.run_due() == 0
    assert left(memory) == []
    assert outcomes(memory) == [("task_start", "done", 2), *[("turn", "done", 2)] * 3]
    assert {run.principal for run in log(memory)} == {"agent:planner"}
    assert [item.text for item in memory.storage.artifacts.all()] == ["KEEP it"]
    note = agent.note("also", note_type=NoteType.FACT)
    assert {item.visible_to for item in memory.storage.notes.all()} == {note.visible_to}
    assert {item.created_by for item in memory.storage.notes.all()} == {note.created_by}
    assert [len(log(memory, f"caliber_{name}")) for name in ("begun", "said")] == [1, 1]
    assert memory.get(turns[0].turn_id).text == "KEEP it"
    assert memory.admin.verify() == []


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_waiting_costs_no_round_trip(opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/decisions/0090: the row travels with the turn, and its removal brings what was asked for anyway
    trips: list[list[bytes]] = []
    exchange, here = PgConnection.exchange, threading.get_ident()

    def counted(self: Any, *commands: Any) -> Any:
        if threading.get_ident() == here:
            sent = (*self._queue, *commands)
            trips.append([command.arguments[0] for command in sent if command.kind == "send_query_prepared"])
        return exchange(self, *commands)

    agent = start(opened(*ON_TURN, storage__durability="commit"))
    for _ in range(4):
        agent.say("said")  # until what is prepared once is prepared
    with monkeypatch.context() as patch:
        patch.setattr(PgConnection, "exchange", counted)
        agent.say("said")

    def named(trip: list[bytes]) -> set[str]:
        return {name.decode().partition("_")[2].partition("_")[2].partition("_")[2] for name in trip}

    (storing,) = [trip for trip in map(named, trips) if "job.insert" in trip]
    assert "turn.insert" in storing
    (taking,) = [trip for trip in map(named, trips) if "job.end_of_task" in trip]
    assert "session.write" in taking, "with what begins the transaction of the actions"
    assert sum("erasure.count" in trip for trip in map(named, trips)) == 1, "once before, outside"


# --- who does it ---------------------------------------------------------------------------------


@EVERYWHERE
def test_what_is_in_hand_here_is_not_taken_up_and_a_slow_twin_elsewhere_loses(
    opened: Any, start: Any, clock: SetClock, summarizer: ScriptedSummarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-229: whoever wakes up after somebody else took over writes nothing
    memory = opened(*ON_TURN)
    agent = start(memory)
    counts = []

    def slow(_: str) -> None:
        summarizer.before = lambda _: None
        clock.at += 2 * BOUND
        counts.append(memory.jobs.run_due())
        with monkeypatch.context() as patch:  # as another process, which cannot know
            patch.setattr(queue, "extend_all", lambda _: 0)
            clock.at += BOUND
            counts.append(memory.jobs.run_due())

    summarizer.before = slow
    agent.say("KEEP this")
    assert counts == [0, 2]
    assert outcomes(memory) == [("turn", "done", 2)] * 2
    assert len(log(memory, "caliber_said")) == memory.storage.artifacts.count() == 1
    assert log(memory, "error") == []
    assert left(memory) == []


@HERE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_nothing_in_hand(opened: Any, start: Any, summarizer: ScriptedSummarizer) -> None:
    # it could never take up what its parent leaves behind
    memory = opened(*ON_TURN)
    agent = start(memory)
    held = []

    def forks(_: str) -> None:
        held.append(bool(claims.in_progress()))
        child = os.fork()
        if child == 0:  # pragma: no cover  (another process)
            os._exit(bool(claims.in_progress()))
        held.append(bool(os.waitpid(child, 0)[1]))

    summarizer.before = forks
    agent.say("KEEP this")
    assert held == [True, False]


@HERE
def test_a_twin_that_fails_late_has_no_say(
    opened: Any, start: Any, clock: SetClock, summarizer: ScriptedSummarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(*ON_TURN, policy_engine__on_error="abort")
    agent = start(memory)

    def fails(_: str) -> None:
        summarizer.before = lambda _: None
        clock.at += BOUND
        monkeypatch.setattr(queue, "extend_all", lambda _: 0)
        assert memory.jobs.run_due() == 2
        summarizer.failing = {"extract_artifacts"}

    summarizer.before = fails
    agent.say("KEEP this")
    assert outcomes(memory) == [("turn", "done", 2)] * 2
    assert log(memory, "error") == []


@ON_DISK
def test_a_policy_of_others_is_left_to_them_and_goes_with_the_log(
    opened: Any, start: Any, clock: SetClock, dies: Any
) -> None:
    # other programs may use one store with other policies
    memory, other = opened(*ON_TURN), opened(retention__events_ms="7d")
    dies()
    start(memory).say("KEEP this")
    dies(False)
    clock.at += timedelta(days=6)
    assert other.jobs.run_due() == 0
    assert other.admin.maintain()["abandoned_jobs"] == 0
    assert len(left(other)) == 1
    clock.at += timedelta(days=2)
    assert other.admin.maintain()["abandoned_jobs"] == 1
    assert left(other) == []
    assert memory.jobs.run_due() == 0


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["abort", "continue"])
@HERE
def test_what_failed_for_good_is_not_done_again(
    opened: Any, start: Any, clock: SetClock, summarizer: ScriptedSummarizer, on_error: str
) -> None:
    # C-229: the log has said what became of it
    memory = opened(*ON_TURN, policy_engine__on_error=on_error)
    agent = start(memory)
    summarizer.failing = {"extract_artifacts"}
    agent.say("KEEP this")
    said = outcomes(memory)
    assert said[0] == ("turn", "failed", None)
    assert left(memory) == []
    summarizer.failing = set()
    clock.at += BOUND
    assert memory.jobs.run_due() == 0
    assert outcomes(memory) == said


@HERE
def test_what_stops_everybody_is_given_up_and_said(opened: Any, start: Any, clock: SetClock, dies: Any) -> None:
    # a trigger that kills whoever does it must not go on killing
    memory = opened(*ON_TURN, jobs__attempts_max=2)
    agent = start(memory)
    dies()
    agent.say("KEEP this")
    for attempts in (1, 2):
        clock.at += BOUND
        memory.jobs.run_due()
        assert memory.jobs.run_due() == 0, "the one who took it up has the same time"
        assert [each.attempts for each in left(memory)] == [attempts]
    clock.at += BOUND
    memory.jobs.run_due()
    assert left(memory) == []
    assert outcomes(memory) == [("turn", "failed", 3)]
    assert [event.payload["error"] for event in log(memory, "error")] == ["given_up"]


@HERE
def test_what_breaks_with_the_unexpected_keeps_nothing_else_from_being_done(
    opened: Any, start: Any, clock: SetClock, dies: Any, summarizer: ScriptedSummarizer
) -> None:
    # C-238: neither what else was left, nor what is due by schedule
    every_hour = {"on": "schedule", "cron": "0 * * * *", "actions": [SAID]}
    memory = opened(policy("turn", EXTRACT), {"name": "hourly", "rules": [every_hour]})
    memory.jobs.run_due()
    agent, other = start(memory), start(memory)
    dies()
    agent.say("a")
    other.say("KEEP this")
    dies(False)

    def breaks(_: str) -> None:
        summarizer.before = lambda _: None
        raise ValueError("planted")

    summarizer.before = breaks
    clock.at += timedelta(hours=1)
    assert memory.jobs.run_due() == 2
    assert memory.storage.artifacts.count() == len(log(memory, "caliber_said")) == 1
    assert [each.trajectory_id for each in left(memory)] == [agent.trajectory_id]
    assert [event.payload["error"] for event in log(memory, "error")] == ["ValueError"]


# --- what has ended meanwhile --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "ending", "known"),
    [
        ("sqlite-memory", "scope", True), ("sqlite-memory", "task", True),
        ("sqlite-memory", "scope", False), ("sqlite-memory", "task", False),
        ("postgres", "scope", True), ("postgres", "task", True),
    ],
    indirect=["backend"],
)  # fmt: skip
def test_what_has_ended_takes_what_waits_for_it_along(
    opened: Any, start: Any, clock: SetClock, dies: Any, ending: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nothing is written into a scope that is closed, nor for the next window of a task that is over
    memory = opened(*ON_TURN)
    agent = start(memory)
    other = start(memory)
    dies()
    for each in (agent, other):
        each.say("KEEP this")
    if not known:  # it ends where no policy is about turns
        monkeypatch.setattr("caliber.trajectory.triggers.cancel", lambda *_: None)
    if ending == "scope":
        memory.close_scope(agent.scope_id)
    else:
        memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert len(left(memory)) == (1 if known else 2)
    dies(False)
    clock.at += BOUND
    assert memory.jobs.run_due() == 2, "that of the other task"
    assert left(memory) == []
    dropped = [run.payload for run in log(memory) if run.payload["outcome"] == "dropped"]
    assert [run["trigger"] for run in dropped] == ["turn"]
    assert {run.trajectory_id for run in log(memory) if run.payload["outcome"] == "done"} == {other.trajectory_id}
    assert memory.storage.artifacts.count() == 1
    assert memory.admin.verify() == []


@pytest.mark.parametrize("in_its_table", [False, True])
@HERE
def test_a_scope_that_closes_in_the_middle_has_the_last_word(
    opened: Any, start: Any, summarizer: ScriptedSummarizer, in_its_table: bool
) -> None:
    # what belongs to a scope goes with it: nothing comes after that
    memory = opened(*ON_TURN)
    agent = start(memory)

    def close(_: str) -> None:
        summarizer.before = lambda _: None
        (memory.storage.scopes.close if in_its_table else memory.close_scope)(agent.scope_id)

    summarizer.before = close
    agent.say("KEEP this")
    assert memory.storage.artifacts.count() == 0
    assert [run.payload["reason"] for run in log(memory)] == ["the scope was closed"]


@HERE
def test_what_the_start_left_is_done_also_where_no_scope_is_open_by_then(
    opened: Any, start: Any, clock: SetClock, dies: Any
) -> None:
    # the task goes on: what is made of it is kept in its last scope, as at its end
    summarize = {"action": "summarize", "target": "scope"}
    closing = policy("scope_close", {"action": "summarize", "target": "turn_buffer"}, name="closing")
    memory = opened(policy("task_start", summarize), closing)
    dies()
    agent = start(memory)
    dies(False)
    agent.say("said")
    memory.close_scope(agent.scope_id)
    clock.at += BOUND
    assert memory.jobs.run_due() == 1
    assert left(memory) == []
    assert [item.scope_id for item in memory.storage.artifacts.all()] == [agent.scope_id]


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_who_deletes_a_task_and_who_does_what_waits_for_it_do_not_wait_for_each_other(
    backend: Any, opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # whoever is at it holds the task first, as who deletes it: in a circle the database would have to choose
    memory = opened(*ON_TURN, storage__durability="commit")
    agent, apply = start(memory), PolicyEngine.apply_step
    taken, go = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        taken.set()
        assert go.wait(30)
        return apply(*arguments)

    monkeypatch.setattr(PolicyEngine, "apply_step", slow)
    said = threading.Thread(target=agent.say, args=("KEEP this",))
    said.start()
    assert taken.wait(30)
    gone = threading.Thread(target=memory.storage.trajectories.delete, args=(agent.trajectory_id,))
    gone.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(os.environ[DSN], autocommit=True) as watcher:
        until(lambda: watcher.execute(waits, [f"%{backend.schema}%"]).fetchone()[0] > 0)  # type: ignore[index]
    go.set()
    for thread in (said, gone):
        thread.join(30)
    assert outcomes(memory) == [("turn", "done", None)] * 2
    assert (memory.admin.stats()["store"]["retried"], left(memory)) == (0, [])
    assert memory.storage.trajectories.get(agent.trajectory_id) is None


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_two_that_lost_a_race_do_what_waits_for_one_task_one_after_the_other(
    backend: Any, opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # whoever tries again locks what it reads: of two that share a lock on the task, neither would get it alone
    memory = opened(*ON_TURN, storage__durability="commit")
    agent, apply, step = start(memory), PolicyEngine.apply, PolicyEngine.apply_step
    taken, go = threading.Semaphore(0), threading.Event()

    def again(self: Any, uow: Any, *arguments: Any) -> Any:
        uow.lock_reads()
        return apply(self, uow, *arguments)

    def slow(*arguments: Any) -> Any:
        taken.release()
        assert go.wait(30)
        return step(*arguments)

    monkeypatch.setattr(PolicyEngine, "apply", again)
    monkeypatch.setattr(PolicyEngine, "apply_step", slow)
    both = [threading.Thread(target=agent.say, args=(f"KEEP {at}",)) for at in range(2)]
    both[0].start()
    assert taken.acquire(timeout=30)
    both[1].start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(os.environ[DSN], autocommit=True) as watcher:
        waiting = [f"%{backend.schema}%"]
        until(lambda: taken.acquire(blocking=False) or watcher.execute(waits, waiting).fetchone()[0] > 0)  # type: ignore[index]
    go.set()
    for thread in both:
        thread.join(30)
    assert (memory.admin.stats()["store"]["retried"], left(memory)) == (0, [])
    assert outcomes(memory) == [("turn", "done", None)] * 4


@HERE
def test_what_is_erased_does_not_wait(opened: Any, start: Any, clock: SetClock, dies: Any) -> None:
    # docs/forgetting.md: neither the task, nor who set it off
    memory = opened(*ON_TURN)
    dies()
    gone, agent = start(memory), start(memory.acting_as(Principal(PrincipalKind.AGENT, "melchior")))
    gone.say("KEEP that")
    agent.say("KEEP this")
    memory.admin.purge_trajectory(gone.trajectory_id)
    assert [each.trajectory_id for each in left(memory)] == [agent.trajectory_id]
    memory.forget(texts=["melchior"])
    assert [each.principal_id for each in left(memory)] == ["[forgotten]"]
    dies(False)
    clock.at += BOUND
    assert memory.jobs.run_due() == 2
    assert {run.principal for run in log(memory)} == {"agent:[forgotten]"}


@ON_DISK
def test_a_backup_keeps_what_waits(
    opened: Any, start: Any, clock: SetClock, dies: Any, backend: Any, tmp_path: Any
) -> None:
    memory = opened(*ON_TURN)
    dies()
    agent = start(memory)
    agent.say("KEEP this")
    memory.admin.backup(tmp_path / "kept.zip")
    dies(False)
    clock.at += BOUND
    assert memory.jobs.run_due() == 2
    settings = memory.config
    memory.close()
    caliber.restore(settings, tmp_path / "kept.zip", replace=True)
    memory = backend.open(settings, summarization_provider=ScriptedSummarizer(), clock=clock)
    assert (len(left(memory)), memory.storage.artifacts.count()) == (1, 0)
    assert memory.jobs.run_due() == 2
    assert (len(left(memory)), memory.storage.artifacts.count()) == (0, 1)


@ON_DISK
def test_an_open_store_takes_up_what_was_left_by_itself(opened: Any, start: Any, clock: SetClock, dies: Any) -> None:
    # C-238
    memory = opened(*ON_TURN)
    dies()
    start(memory).say("KEEP this")
    memory.close()
    assert "1 job waits" in [found.text for found in doctor.opened(memory.config, memory.principal, False)]
    dies(False)
    clock.at += BOUND
    told = threading.Event()
    memory = opened(*ON_TURN, jobs__poll_ms=5)
    memory.events.subscribe(lambda _: told.set(), event_type="caliber_said")
    assert log(memory, "caliber_said") or told.wait(30)
    assert left(memory) == []


@EVERYWHERE
def test_a_checkpoint_after_a_turn_survives_its_process(
    opened: Any, start: Any, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-253: it is a job of the turn's transaction
    memory = opened(**{"pcp.recovery_points.frequency": "per_turn"})
    agent, ended = start(memory), start(memory)
    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "after_append", lambda *_: None)
        agent.say("said")
        ended.say("said")
    memory.complete_trajectory(ended.trajectory_id, status="success", summary="")
    assert memory.storage.checkpoints.count() == 0
    assert {job.kind for job in memory.jobs.list(state="running")} == {"checkpoint"}
    clock.at += BOUND
    assert memory.jobs.run_due() == 2
    assert [each.trajectory_id for each in memory.storage.checkpoints.all()] == [agent.trajectory_id]
    agent.say("said again")
    assert memory.storage.checkpoints.count() == 2
    assert {job.state for job in memory.jobs.list()} == {"done"}


@HERE
def test_nothing_waits_where_no_policy_is_about_it(opened: Any, start: Any) -> None:
    memory = opened(policy("scope_close", SAID))
    agent = start(memory)
    agent.say("said")
    memory.start_trajectory("another", initiator=USER)
    assert left(memory) == []
