"""Turns that set something off, processes that die at it, time that passes, scopes and tasks that end: each trigger has
one outcome, and the log and the store agree with a model of it. Source: C-229, C-235, C-238; decision 0172.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from support.evidence import examples
from support.inspection import inspect
from support.weeks import SetClock

import caliber
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Unavailable
from caliber.policies.policy_engine import PolicyEngine
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
