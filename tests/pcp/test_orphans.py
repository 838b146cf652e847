"""Tasks that were abandoned. Source: C-117, C-476 to C-481, K-091."""

from __future__ import annotations

from typing import Any

import pytest
from support.inspection import inspect

from caliber.jobs.queue import JobQueue
from caliber.model.errors import ConstraintViolation
from caliber.model.time import FixedClock
from caliber.model.trajectory import OutcomeStatus, TrajectoryStatus
from caliber.pcp.orphans import SWEEP

KNOBS: dict[str, Any] = {
    "orphan_detection_threshold": "3h",
    "retention__sweep_every_ms": "1h",
    "jobs__poll_ms": 0,
    "policies": [],
}


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def memory(backend: Any, clock: FixedClock) -> Any:
    return backend.open(clock=clock, **KNOBS)


def ended(memory: Any) -> dict[str, int]:
    report = memory.admin.maintain()
    return {name: report[name] for name in ("trajectories_failed", "scopes_closed")}


def state(agent: Any) -> tuple[Any, Any]:
    task = agent.memory.get(agent.trajectory_id)
    scope = agent.memory.get(agent.scope_id)
    return task.status, scope.is_open


def test_silent_tasks_end_and_their_twins_are_not_touched(memory: Any, start: Any, clock: FixedClock) -> None:
    # C-476 to C-478, C-480, C-481: each kind of activity, and each reason to be silent, has a task
    dead, talking, making, opening, suspended, done, parent = (start(memory) for _ in range(7))
    for agent in (dead, talking, making, opening, suspended, done, parent):
        agent.say("hello")
    memory.suspend_trajectory(suspended.trajectory_id)
    memory.complete_trajectory(done.trajectory_id, status="success", summary="done")
    clock.advance(ms=2 * 3_600_000)
    talking.say("still here")
    making.keep("made")
    memory.open_scope(opening.trajectory_id)
    child = memory.start_trajectory("below", initiator=dead.trajectory.initiator, parent=parent.trajectory_id)
    clock.advance(ms=2 * 3_600_000)
    before = {agent: memory.get(agent.trajectory_id) for agent in (talking, making, opening, suspended)}
    before |= {agent: memory.get(agent.trajectory_id) for agent in (done, parent)}

    assert ended(memory) == {"trajectories_failed": 1, "scopes_closed": 1}
    task = memory.get(dead.trajectory_id)
    assert task.status is TrajectoryStatus.FAILED
    assert task.outcome.status is OutcomeStatus.SYSTEM_ABORT
    assert "orphan_detection_threshold" in task.outcome.summary
    scope = memory.get(dead.scope_id)
    assert (scope.is_open, scope.summary) == (False, None)
    for agent, was in before.items():
        assert memory.get(agent.trajectory_id) == was
    assert memory.get(child.trajectory_id).status is TrajectoryStatus.ACTIVE
    assert ended(memory) == {"trajectories_failed": 0, "scopes_closed": 0}
    with pytest.raises(ConstraintViolation):
        dead.say("too late")
    assert memory.admin.verify() == []
    memory.flush()
    (event,) = memory.trace(dead.trajectory_id, event_type="trajectory_complete")
    assert event.payload["status"] == "system_abort"


def test_a_subtask_ends_before_its_parent(memory: Any, start: Any, clock: FixedClock) -> None:
    parent = start(memory)
    memory.start_trajectory("below", initiator=parent.trajectory.initiator, parent=parent.trajectory_id)
    clock.advance(ms=4 * 3_600_000)
    assert ended(memory) == {"trajectories_failed": 2, "scopes_closed": 2}


def test_a_job_ends_a_batch_at_a_time(
    backend: Any, start: Any, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.pcp.orphans.MOST", 2)
    memory = backend.open(clock=clock, **KNOBS)
    memory.jobs.run_due()
    agents = [start(memory) for _ in range(5)]
    clock.advance(ms=4 * 3_600_000)
    for left in (3, 1, 0, 0):
        memory.jobs.run_due()
        assert sum(state(agent) == (TrajectoryStatus.ACTIVE, True) for agent in agents) == left
        clock.advance(ms=3_600_000)


def test_another_process_at_it_is_left_alone(memory: Any, start: Any, clock: FixedClock) -> None:
    # C-481
    start(memory)
    clock.advance(ms=4 * 3_600_000)
    with inspect(memory).engine.part(JobQueue).holding(SWEEP) as claim:
        assert claim is not None
        assert ended(memory) == {"trajectories_failed": 0, "scopes_closed": 0}
    assert ended(memory) == {"trajectories_failed": 1, "scopes_closed": 1}


def test_without_the_knob_nothing_ends(backend: Any, start: Any, clock: FixedClock) -> None:
    memory = backend.open(clock=clock, **KNOBS | {"orphan_detection_threshold": None})
    agent = start(memory)
    clock.advance(ms=1_000 * 3_600_000)
    assert ended(memory) == {"trajectories_failed": 0, "scopes_closed": 0}
    assert state(agent) == (TrajectoryStatus.ACTIVE, True)


def test_a_clock_that_jumps_back_ends_nothing(memory: Any, start: Any, clock: FixedClock) -> None:
    agent = start(memory)
    clock.advance(ms=-100 * 3_600_000)
    assert ended(memory) == {"trajectories_failed": 0, "scopes_closed": 0}
    agent.say("of the past")
    clock.advance(ms=2 * 3_600_000)
    assert state(agent) == (TrajectoryStatus.ACTIVE, True)
