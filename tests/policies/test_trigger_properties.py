"""Turns that set something off, processes that die at it, time that passes, scopes and tasks that end: each trigger has
one outcome, and the log and the store agree with a model of it. A program with every trigger and every action, and
every retention, runs for a week of its clock on every database.

Source: issue "The DSL and the policy engine", done when; C-136 to C-138, C-226 to C-229, C-235, C-238; decision 0172.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.configs import USER, config, policy
from support.databases import BACKENDS
from support.evidence import examples, record, scale
from support.inspection import inspect
from support.weeks import SetClock, Week, kept_of, log_of

import caliber
from caliber.config.policies import PolicyAction
from caliber.jobs.queue import JobQueue
from caliber.model.declared import Trigger
from caliber.model.errors import NotFound, Unavailable
from caliber.policies.policy_engine import PolicyEngine
from caliber.retention import compressing
from caliber.schema.memory_types import RetentionKind
from caliber.trajectory.service import Tasks

ATTEMPTS_MAX = 2
MINUTE = timedelta(minutes=1)
BOUND = 5 * MINUTE


@dataclass
class Waiting:
    """A trigger of the model that is not done."""

    scope: Any
    begun: datetime
    attempts: int = 0


def unavailable(*_: Any) -> Any:
    raise Unavailable("planted", reason="connection lost", retryable=True)


class Triggers(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = SetClock()
        self.memory = caliber.open(
            config(
                ":memory:",
                embedding_provider=None,
                policies=[policy("turn", {"action": "notify", "channel": "said"})],
                jobs__poll_ms=0,
                jobs__attempts_max=ATTEMPTS_MAX,
                jobs__lease_ms="5m",
                retention__apply_every_ms=0,
                **{"pcp.recovery_points.frequency": "manual"},
            ),
            clock=self.clock,
        )
        self.tasks: dict[Any, list[Any]] = {}
        self.waiting: list[Waiting] = []
        self.outcomes: Counter[str] = Counter()
        self.start()

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()

    @rule()
    def start(self) -> None:
        task = self.memory.start_trajectory("a task", initiator=USER).trajectory_id
        self.tasks[task] = [self.memory.current_scope(task).scope_id]

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def open_scope(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.tasks)))
        self.tasks[task].append(self.memory.open_scope(task).scope_id)

    @precondition(lambda self: any(self.tasks.values()))
    @rule(data=st.data(), how=st.sampled_from(["done", "killed", "unavailable"]))
    def say(self, data: st.DataObject, how: str) -> None:
        scope = data.draw(st.sampled_from(sorted(scope for scopes in self.tasks.values() for scope in scopes)))
        with pytest.MonkeyPatch.context() as patch:
            if how == "killed":
                patch.setattr(Tasks, "after_commit", lambda *_: None)
            elif how == "unavailable":
                patch.setattr(PolicyEngine, "apply", unavailable)
            self.memory.append_turn(scope, role="user", content="said")
        if how == "done":
            self.outcomes["done"] += 1
        else:
            self.waiting.append(Waiting(scope, self.clock.at))

    @rule(minutes=st.integers(1, 6))
    def let_time_pass(self, minutes: int) -> None:
        self.clock.at += minutes * MINUTE

    @rule(killed=st.booleans())
    def look(self, killed: bool) -> None:
        left = [each for each in self.waiting if self.clock.at - each.begun >= BOUND]
        done = 0
        for each in left:
            if each.attempts >= ATTEMPTS_MAX:
                self.waiting.remove(each)
                self.outcomes["failed"] += 1
            elif killed:
                each.attempts, each.begun = each.attempts + 1, self.clock.at
            else:
                self.waiting.remove(each)
                self.outcomes["done"] += 1
                done += 1
        with pytest.MonkeyPatch.context() as patch:
            if killed:
                patch.setattr(JobQueue, "attempt", lambda *_: None)
            assert self.memory.jobs.run_due() == done

    @precondition(lambda self: any(self.tasks.values()))
    @rule(data=st.data())
    def close_scope(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(task for task, scopes in self.tasks.items() if scopes)))
        scope = data.draw(st.sampled_from(self.tasks[task]))
        self.tasks[task].remove(scope)
        self.memory.close_scope(scope)
        self._dropped({scope})

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.tasks)))
        self.memory.complete_trajectory(task, status="success", summary="")
        self._dropped(set(self.tasks.pop(task)))

    def _dropped(self, scopes: set[Any]) -> None:
        gone = [each for each in self.waiting if each.scope in scopes]
        self.waiting = [each for each in self.waiting if each.scope not in scopes]
        self.outcomes["dropped"] += len(gone)

    @invariant()
    def store_and_log_are_as_the_model_says(self) -> None:
        if not hasattr(self, "memory"):
            return
        store = inspect(self.memory).store
        plans = store.plans["job"]
        with store.read() as session:
            jobs = [plans.codec.decode(row) for row in session.run(plans.page, (bytes(16), 1_000))]
        rows = [job for job in jobs if job.ended_at is None]
        found = Counter((row.scope_id, row.scheduled_at, row.attempts) for row in rows)
        assert found == Counter((each.scope, each.begun, each.attempts) for each in self.waiting)
        self.memory.flush()
        events = list(self.memory.storage.events.all())
        log = Counter(event.payload["outcome"] for event in events if event.event_type == "policy_execute")
        assert log == +self.outcomes
        assert sum(event.event_type == "caliber_said" for event in events) == self.outcomes["done"]


def test_each_trigger_has_one_outcome() -> None:
    run_state_machine_as_test(
        Triggers, settings=settings(max_examples=examples(8, 300), stateful_step_count=20, deadline=None)
    )


COUNTED = ("task_end", "scope_close", "turn")
PROGRAM = Path(__file__).parents[1] / "data" / "week.caliber"
QUIET: dict[str, Any] = {
    "embedding_provider": None, "jobs__poll_ms": 0, "policy_engine__on_error": "continue",
    "retention__apply_every_ms": 0, "pcp.recovery_points.frequency": "manual", "close__on_llm_failure":
    "close_without_summary", "llm_retry_config__max_retries": 0,
}  # fmt: skip


@pytest.fixture
def backends(postgres: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    made = {name: BACKENDS[name](tmp_path) for name in ("sqlite", "postgres")}
    yield made
    for backend in made.values():
        backend.close()


def test_a_week_leaves_the_same_log_on_every_database(backends: dict[str, Any]) -> None:
    # C-226 to C-229, C-136 to C-138: restarts, outages and failing providers included
    logs, kept, done = {}, {}, {}
    for name, backend in backends.items():
        # A recycled store has no memories of its own, and is made anew for some.
        first = {"name": "first", "type": "meta", "fields": [{"name": "content", "type": "text"}],
                 "retention": {"kind": "persistent"}}  # fmt: skip
        settings = caliber.load_config(PROGRAM, base=backend.config(memories=[first], **QUIET))

        def opened(config: Any, clock: Any, summarizer: Any, backend: Any = backend) -> caliber.Caliber:
            memory: caliber.Caliber = backend.open(config, clock=clock, summarization_provider=summarizer)
            return memory

        week = Week(opened, settings, tasks=scale(1, 6), look_hours=scale(6, 1))
        memory = week.run()
        logs[name], kept[name], done[name] = log_of(memory), kept_of(memory), week.done
        assert memory.admin.verify() == []
    for at, (one, other) in enumerate(zip(logs["sqlite"], logs["postgres"], strict=False)):
        assert one == other, f"line {at} of {len(logs['sqlite'])}"
    assert logs["sqlite"] == logs["postgres"]
    assert kept["sqlite"] == kept["postgres"]
    assert done["sqlite"] == done["postgres"]
    check_counts(settings, logs["sqlite"], done["sqlite"])
    kinds = Counter(kind for _, kind, _, _ in logs["sqlite"])
    record(
        "simulated-week",
        "A week of every trigger, action and retention on both databases: one log",
        {
            "tasks, scopes closed, turns": ", ".join(str(done["sqlite"][name]) for name in COUNTED),
            "events, the same on SQLite and PostgreSQL": len(logs["sqlite"]),
            "of these runs of actions": kinds["policy_execute"],
            "of these what retention took": kinds["retention_apply"],
        },
    )


def check_counts(settings: Any, log: list[tuple[Any, ...]], done: Counter[str]) -> None:
    """Every action ran as often as its trigger fired, and every retention that is not for good took something."""
    said = [(kind, json.loads(body)[0]) for _, kind, _, body in log]
    ran = Counter(
        (run["trigger"], run["policy"], run["rule"], run["step"])
        for kind, run in said
        if kind == "policy_execute" and run["outcome"] in ("done", "failed")
    )
    seen = set()
    for declared in settings.policies:
        for place, case in enumerate(declared.rules):
            times = done[case.on.value] if case.on is not Trigger.SCHEDULE else {"0 3": 7, "30 ": 14}[case.cron[:3]]
            for step, action in enumerate(case.actions):
                seen.add((case.on, action.action))
                assert ran[case.on.value, declared.name, place, step] == times, (declared.name, action.shown)
    everywhere = {PolicyAction.PRUNE, PolicyAction.NOTIFY}
    wanted = {(trigger, action) for trigger in Trigger for action in PolicyAction} - {
        (Trigger.SCHEDULE, action) for action in PolicyAction if action not in everywhere
    }
    assert {pair for pair in wanted if pair[1] is not PolicyAction.CONSOLIDATE_NOTES} <= seen
    failed = Counter(run["action"] for kind, run in said if kind == "policy_execute" and run["outcome"] == "failed")
    assert failed, "the provider failed for half of Tuesday"
    taken: Counter[str] = Counter()
    for kind, body in said:
        if kind == "retention_apply":
            taken[body["memory"]] += body["taken"]
    ending = {item.name for item in settings.memories if item.retention.kind is not RetentionKind.PERSISTENT}
    assert {name for name, count in taken.items() if count} == ending
    # An instant of a record's own is that of tests/memories/test_lives_and_lists.py.
    assert {item.retention.kind for item in settings.memories} == set(RetentionKind) - {RetentionKind.UNTIL}
    assert done["restarts"] == 1


def test_what_two_take_at_once_is_taken_once(backends: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # C-228: between looking and deleting somebody else may have deleted; only PostgreSQL lets two write side by side
    backend = backends["postgres"]
    turns = policy("scope_close", {"action": "prune", "target": "turn_buffer", "older_than_ms": 0})
    memory, other = (backend.open(policies=[turns], **QUIET) for _ in range(2))
    task = memory.start_trajectory("pruned by two", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    for text in ("one", "two"):
        memory.append_turn(scope.scope_id, role="user", content=text)
    first = memory.storage.turns.list_by_scope(scope.scope_id)[0]
    whole = compressing.prune

    def overtaken(uow: Any, relation: Any, records: Any) -> int:
        gone = threading.Thread(target=lambda: inspect(other).write(lambda own: whole(own, relation, own.select_path(
            relation, "list_by_scope", scope.scope_id.bytes)[:1])))  # fmt: skip
        gone.start()
        gone.join(30)
        return whole(uow, relation, records)

    monkeypatch.setattr(compressing, "prune", overtaken)
    memory.close_scope(scope.scope_id)
    memory.flush()
    runs = [event.payload for event in memory.storage.events.all() if event.event_type == "policy_execute"]
    assert [(run["outcome"], run["pruned"]) for run in runs] == [("done", 1)]
    assert first.turn_id not in [turn.turn_id for turn in memory.storage.turns.all()]
    assert memory.storage.turns.count() == 0
    assert memory.admin.verify() == []


def test_what_retention_took_is_still_found_by_forget(backends: dict[str, Any]) -> None:
    # C-136; docs/retention.md: its text is kept for replay, and erased with the rest
    fields = [{"name": "content", "type": "text"}]
    declared = [{"name": name, "type": kind, "fields": fields, "retention": {"kind": "scope"}}
                for name, kind in (("turn_buffer", "ephemeral"), ("scratch", "working"))]  # fmt: skip
    memory = backends["sqlite"].open(memories=declared, policies=[], **QUIET)
    task = memory.start_trajectory("forgotten later", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="said by Trillian")
    memory.records("scratch").insert(
        {"content": "noted of Trillian"}, trajectory=task.trajectory_id, scope=scope.scope_id
    )
    window = memory.assemble_context(task.trajectory_id)
    memory.close_scope(scope.scope_id)
    assert memory.storage.turns.count() == memory.records("scratch").count() == 0
    assert memory.replay(window.window_id).text == window.text
    assert memory.forget(texts=["Trillian"]).proven
    with pytest.raises(NotFound, match="forgotten"):
        memory.replay(window.window_id)
