"""Policies on a schedule: when they run, once, whoever runs them, whatever stops them. Source: C-148, C-228, C-238."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.configs import config, scheduled
from support.crash.processes import Child
from support.drawn import needs
from support.inspection import inspect
from support.weeks import MONDAY, SetClock

import caliber
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Conflict, InvalidValue
from caliber.policies import schedules
from caliber.policies.schedules import Schedules

CHILD = Path(__file__).parent / "scheduled_process.py"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
QUIET = {"embedding_provider": None, "jobs__poll_ms": 0}
DOUBTFUL = {"action": "prune", "target": "note", "below_confidence": 0.3}


def notify(channel: str) -> dict[str, Any]:
    return {"action": "notify", "channel": channel}


def at(clock: SetClock, memory: caliber.Caliber, when: datetime) -> int:
    clock.at = when
    return memory.jobs.run_due()


def log(memory: caliber.Caliber, kind: str = "policy_execute") -> list[dict[str, Any]]:
    """Return the logged runs, oldest first."""
    found = [event for event in memory.storage.events.all() if event.event_type == kind]
    found.sort(key=lambda event: (event.created_at, event.payload.get("step")))
    assert all(kind != "policy_execute" or event.duration_ms is not None for event in found)
    return [event.payload for event in found]


def days(memory: caliber.Caliber, kind: str = "policy_execute") -> list[str]:
    return [payload["due_at"][5:16] for payload in log(memory, kind)]


WEEK = [
    {"name": "nightly", "rules": [
        {"on": "schedule", "cron": "30 3 * * *", "actions": [DOUBTFUL, notify("night")]},
        {"on": "schedule", "cron": "0 */12 * * *", "actions": [notify("noon")]},
    ]},
    scheduled("0 6 * * FRI", {"action": "prune", "target": "artifact", "older_than_ms": "2d"},
              {"action": "prune", "target": "scope", "older_than_ms": "1h"},
              {"action": "prune", "target": "turn_buffer", "older_than_ms": "4d"}, name="weekly"),
]  # fmt: skip


def test_a_week_runs_as_declared_on_every_database(backend: Any, start: Any) -> None:
    # C-148, C-178, C-227, C-228; K-063: ages are inclusive. The log below is that of every database.
    clock = SetClock()
    memory = backend.open(policies=WEEK, clock=clock, **QUIET)
    agent = start(memory)
    agent.say("said in a scope that closes")
    memory.close_scope(agent.scope_id)
    other = start(memory)
    other.say("said in a scope that stays open")
    old = other.keep("an artifact of Monday")
    memory.jobs.run_due()
    for hour in range(1, 7 * 24 + 1):
        if hour % 24 == 1:
            agent.note(f"doubtful {hour}", confidence=0.1)
            agent.note(f"firm {hour}", confidence=0.3)
        if hour == 80:
            young = other.keep("an artifact of Thursday")
            other.say("said on Thursday")
        if hour % 4 == 0:
            at(clock, memory, MONDAY + hour * HOUR)
    expected: list[tuple[str, str, int | None]] = []
    for day in range(7):
        date = f"2024-01-{day + 1:02}"
        if day:
            expected.append((f"{date}T00:00:00+00:00", "notify noon", None))
        expected += [(f"{date}T03:30:00+00:00", "prune note", 1), (f"{date}T03:30:00+00:00", "notify night", None)]
        if day == 4:
            expected += [
                (f"{date}T06:00:00+00:00", "prune artifact", 1),
                (f"{date}T06:00:00+00:00", "prune scope", 1),
                (f"{date}T06:00:00+00:00", "prune turn_buffer", 1),
            ]
        expected.append((f"{date}T12:00:00+00:00", "notify noon", None))
    expected.append(("2024-01-08T00:00:00+00:00", "notify noon", None))
    runs = log(memory)
    assert [(run["due_at"], run["action"], run.get("pruned")) for run in runs] == expected
    assert {run["outcome"] for run in runs} == {"done"}
    assert {(run["policy"], run["rule"]) for run in runs} == {("nightly", 0), ("nightly", 1), ("weekly", 0)}
    assert days(memory, "caliber_night") == [f"01-{day:02}T03:30" for day in range(1, 8)]
    assert len(log(memory, "caliber_noon")) == 14
    notes = memory.storage.notes.all()
    assert sorted(note.content[:4] for note in notes if note.archived_at is None) == ["firm"] * 7
    assert memory.get(old.artifact_id).retired_at is not None
    assert memory.get(young.artifact_id).retired_at is None
    assert [turn.text for turn in memory.storage.turns.all()] == ["said on Thursday"]
    assert memory.admin.verify() == []


@needs("reopen")
def test_what_came_due_while_nothing_ran_runs_once(backend: Any) -> None:
    # C-238
    clock = SetClock()
    settings = {"policies": [scheduled("0 3 * * *", notify("night"))], **QUIET}
    memory = backend.open(clock=clock, **settings)
    assert memory.jobs.run_due() == 0, "a rule that is new is due from now on"
    assert [rule.next_at for rule in memory.jobs.schedules()] == [MONDAY + 3 * HOUR]
    memory.close()
    clock.at = MONDAY + 9 * DAY
    memory = backend.open(clock=clock, **settings)
    assert [memory.jobs.run_due(), memory.jobs.run_due()] == [1, 0]
    assert days(memory) == ["01-09T03:00"]
    (rule,) = memory.jobs.schedules()
    assert (rule.next_at, rule.covered_at) == (MONDAY + 9 * DAY + 3 * HOUR, MONDAY + 8 * DAY + 3 * HOUR)
    memory.close()
    # Another rule before it, and the same one declared later on, is the same; another hour makes another.
    moved = [scheduled("0 5 * * *", notify("night"), name="new"), *settings["policies"]]
    memory = backend.open(clock=clock, **{**settings, "policies": moved})
    assert memory.jobs.run_due() == 0
    assert at(clock, memory, MONDAY + 9 * DAY + 4 * HOUR) == 1
    assert log(memory)[-1]["policy"] == "tested"


@pytest.mark.parametrize(
    ("zone", "begin", "due"),
    [
        # C-148: 02:30 is left out on 31 March 2024 in Berlin, and comes twice on 27 October.
        ("Europe/Berlin", datetime(2024, 3, 30, tzinfo=UTC), ["03-30T01:30", "03-31T01:00", "04-01T00:30"]),
        ("Europe/Berlin", datetime(2024, 10, 26, tzinfo=UTC), ["10-26T00:30", "10-27T00:30", "10-28T01:30"]),
        ("UTC", datetime(2024, 3, 30, tzinfo=UTC), ["03-30T02:30", "03-31T02:30", "04-01T02:30"]),
    ],
)  # fmt: skip
def test_hours_are_told_in_the_time_zone_also_when_clocks_change(zone: str, begin: datetime, due: list[str]) -> None:
    clock = SetClock(begin)
    told = {"policies": [scheduled("30 2 * * *", notify("night"))], "time_zone": zone, **QUIET}
    with caliber.open(config(":memory:", **told), clock=clock) as memory:
        for half in range(3 * 24 * 2):
            at(clock, memory, begin + half * HOUR / 2)
        assert days(memory) == due
        assert memory.jobs.schedules()[0].next_at.minute == 30


def test_a_clock_that_is_put_back_runs_nothing_twice_and_stops_nothing(backend: Any) -> None:
    # C-238
    clock = SetClock()
    memory = backend.open(clock=clock, policies=[scheduled("0 3 * * *", notify("night"))], **QUIET)
    memory.jobs.run_due()
    assert at(clock, memory, MONDAY + 4 * HOUR) == 1
    assert at(clock, memory, MONDAY + 2 * HOUR) == 0
    assert at(clock, memory, MONDAY + 4 * HOUR) == 0, "03:00 came again"
    assert at(clock, memory, MONDAY + DAY + 4 * HOUR) == 1
    # A clock that was a year ahead must not leave the rule waiting for a year.
    assert at(clock, memory, MONDAY + 400 * DAY) == 1
    assert at(clock, memory, MONDAY + 2 * DAY) == 0
    assert memory.jobs.schedules()[0].next_at == MONDAY + 2 * DAY + 3 * HOUR
    assert at(clock, memory, MONDAY + 2 * DAY + 4 * HOUR) == 1


# --- one runner --------------------------------------------------------------------------------


def test_a_runner_whose_lease_lapsed_writes_nothing(backend: Any, start: Any) -> None:
    # C-364, C-366
    clock = SetClock()
    memory = backend.open(clock=clock, policies=[scheduled("0 3 * * *", notify("a"), DOUBTFUL)], **QUIET)
    start(memory).note("doubtful", confidence=0.1)
    memory.jobs.run_due()
    clock.at = MONDAY + 4 * HOUR
    engine = inspect(memory).engine
    slow, other = engine.part(JobQueue), JobQueue(engine)
    Schedules(engine).register(other)
    claims = slow.claim_due()
    assert other.run_due() == 0, "held"
    clock.at += HOUR
    assert other.run_due() == 2
    assert slow.run(claims) == 0
    assert [run["outcome"] for run in log(memory)] == ["done", "done"]
    assert len(log(memory, "caliber_a")) == 1


@pytest.fixture
def runner() -> Iterator[Child]:
    """Another process that looks when it is told to."""
    started = Child(CHILD)
    yield started
    started.end()


def us(when: datetime) -> int:
    return int(when.timestamp()) * 1_000_000


@needs("sharing")
def test_of_two_processes_one_runs_and_one_that_is_killed_is_followed(
    backend: Any, start: Any, request: pytest.FixtureRequest
) -> None:
    # C-238; issue, item 6: survives restarts, never half applied
    runner: Child = request.getfixturevalue("runner")
    clock = SetClock()
    knobs = {"policies": [scheduled("0 * * * *", notify("first"), DOUBTFUL, notify("last"))], **QUIET}
    memory = backend.open(clock=clock, **knobs)
    memory.jobs.run_due()
    for number in range(2):
        start(memory).note(f"doubtful {number}", confidence=0.1)
    assert runner.ask("use", [backend.path, {**backend.knobs, **knobs}, us(MONDAY)]) is None
    for hour in range(1, 7):
        runner.send(f"at {us(MONDAY + hour * HOUR)}")
        assert at(clock, memory, MONDAY + hour * HOUR) + runner.answer() == 3
    for text in ("also doubtful", "doubtful too"):
        start(memory).note(text, confidence=0.1)
    runner.send(f"die {us(MONDAY + 7 * HOUR)}")
    runner.dies()
    active = [note for note in memory.storage.notes.all() if note.archived_at is None]
    assert len(active) == 2, "an action is done or not"
    assert log(memory)[-1]["action"] == "notify first"
    assert at(clock, memory, MONDAY + 7 * HOUR) == 0, "the lease of the one that died has not lapsed"
    assert at(clock, memory, MONDAY + 7 * HOUR + HOUR / 12) == 2, "it goes on after what was done"
    runs = log(memory)
    assert [run["due_at"][11:13] for run in runs] == [f"{hour:02}" for hour in range(1, 8) for _ in range(3)]
    assert [run["step"] for run in runs] == [0, 1, 2] * 7
    assert [run["pruned"] for run in runs if run["step"] == 1] == [2, 0, 0, 0, 0, 0, 2]


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_error", "outcomes"), [
    ("continue", ["done", "failed", "done"]),
    ("abort", ["done", "failed"]),
])  # fmt: skip
def test_an_action_that_fails_is_recorded_and_what_follows_is_as_configured(
    backend: Any, monkeypatch: pytest.MonkeyPatch, on_error: str, outcomes: list[str]
) -> None:
    # C-229
    clock = SetClock()
    rule = scheduled("0 3 * * *", notify("a"), DOUBTFUL, notify("b"))
    memory = backend.open(clock=clock, policies=[rule], policy_engine__on_error=on_error, **QUIET)
    memory.jobs.run_due()

    def refuse(*_: Any) -> int:
        raise InvalidValue(field="planted", reason="no")

    monkeypatch.setattr(schedules, "prune_everywhere", refuse)
    at(clock, memory, MONDAY + 4 * HOUR)
    assert memory.jobs.run_due() == 0
    runs = log(memory)
    assert [run["outcome"] for run in runs] == outcomes
    assert (runs[1]["error"], runs[1].get("skipped")) == ("invalid_value", 1 if on_error == "abort" else None)
    assert [run["action"] for run in log(memory, "error")] == ["prune"], "a failing action is traced as an error"
    monkeypatch.undo()
    assert at(clock, memory, MONDAY + DAY + 4 * HOUR) == 3


def test_what_may_pass_is_tried_again_at_the_next_look_and_leaves_nothing_behind(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-229; issue, item 6: retried, never half applied
    clock = SetClock()
    rule = scheduled("0 3 * * *", notify("a"), DOUBTFUL)
    memory = backend.open(clock=clock, policies=[rule], jobs__attempts_max=3, **QUIET)
    note = start(memory).note("doubtful", confidence=0.1)
    memory.jobs.run_due()
    prune = schedules.prune_everywhere

    def half(*asked: Any) -> int:
        prune(*asked)
        raise Conflict(entity_type="note", id="planted", reason="planted", retryable=True)

    monkeypatch.setattr(schedules, "prune_everywhere", half)
    assert at(clock, memory, MONDAY + 4 * HOUR) == 1
    assert memory.jobs.schedules()[0].running_since == MONDAY + 3 * HOUR
    assert memory.jobs.run_due() == 0, "it waits before it is tried again"
    assert len(log(memory)) == 2
    assert at(clock, memory, clock.at + timedelta(seconds=1)) == 0
    assert memory.get(note.note_id).archived_at is None
    monkeypatch.undo()
    assert at(clock, memory, clock.at + timedelta(seconds=2)) == 1
    assert [(run["outcome"], run.get("attempt")) for run in log(memory)] == [
        ("done", None), ("to_retry", 1), ("to_retry", 2), ("done", None),
    ]  # fmt: skip
    monkeypatch.setattr(schedules, "prune_everywhere", half)
    at(clock, memory, MONDAY + DAY + 4 * HOUR)
    for _ in range(4):
        at(clock, memory, clock.at + timedelta(minutes=1))
    assert [run["outcome"] for run in log(memory)[4:]] == ["done", "to_retry", "to_retry", "failed"]


def test_an_open_store_looks_by_itself(backend: Any) -> None:
    # C-238
    clock = SetClock()
    rule = scheduled("0 3 * * *", notify("night"))
    told = threading.Event()
    memory = backend.open(clock=clock, policies=[rule], embedding_provider=None, jobs__poll_ms=5)
    memory.events.subscribe(lambda _: told.set(), event_type="caliber_night")
    memory.jobs.run_due()
    clock.at = MONDAY + 4 * HOUR
    assert told.wait(30)
    assert days(memory) == ["01-01T03:00"]
