"""Events of the workspace: to-dos and reminders reach those who may see their record, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.databases import Backend
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.model import Principal

MARCH = datetime(2027, 3, 1, tzinfo=UTC)
KNOBS = {"embedding_provider": None, "jobs__poll_ms": 0, "policies": []}


@pytest.mark.databases("all")
def test_events_reach_those_who_may_see_the_todo_or_the_reminder(backend: Backend) -> None:
    clock = SetClock(MARCH)
    memory = backend.open(clock=clock, **KNOBS)
    handles: dict[str, caliber.Caliber] = {
        "admin": memory.acting_as(Principal.admin()),
        "ana": memory.acting_as(Principal.user("ana")),
        "eve": memory.acting_as(Principal.user("eve")),
        "ada": memory.acting_as(Principal.agent("ada")),
    }
    seen: dict[str, list[Any]] = {name: [] for name in handles}
    for name, handle in handles.items():
        handle.events.subscribe(seen[name].append)

    def heard(kind: str) -> dict[str, list[str]]:
        until(lambda: any(each.event_type == kind for each in seen["admin"]))
        memory.flush()
        return {
            name: [each.payload["id"] for each in events if each.event_type == kind] for name, events in seen.items()
        }

    ana = handles["ana"].workspace
    todo = ana.todos.add("private")
    key = str(todo.todo_id)
    until(lambda: len(heard("todo")["ana"]) == 1)
    assert heard("todo") == {"admin": [key], "ana": [key], "eve": [], "ada": []}
    ana.todos.assign(todo.todo_id, "ada")
    until(lambda: len(heard("todo")["ada"]) == 1)
    ana.todos.assign(todo.todo_id, None)
    until(lambda: len(heard("todo")["ana"]) == 3)
    assert heard("todo") == {"admin": [key] * 3, "ana": [key] * 3, "eve": [], "ada": [key]}
    event = ana.calendar.add("doctor", MARCH + timedelta(hours=1), reminder_minutes=5)
    clock.at = MARCH + timedelta(minutes=56)
    memory.jobs.run_due()
    key = str(event.event_id)
    until(lambda: len(heard("reminder")["ana"]) == 1)
    assert heard("reminder") == {"admin": [key], "ana": [key], "eve": [], "ada": []}
