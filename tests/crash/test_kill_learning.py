"""A process is killed at each step of remembering: the turns and the learning are each there as a whole, or not at all.

40 steps a database in ``make prove``, 400 in ``make soak``. Source: M §3.1, C-238; docs/learning.md.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.databases import Backend
from support.drawn import needs
from support.evidence import scale
from support.learning import processes as learning_processes
from support.learning.processes import KNOBS, MESSAGES, run_until

import caliber
from caliber.model.jobs import JobState
from caliber.model.time import FixedClock

pytestmark = pytest.mark.prove

STEPS = scale(40, 400)
LATER_US = 1_700_000_000_000_000 + 3_600_000_000
"""An hour after the killed process: its leases are over."""
OLD = {"lives in Berlin", "likes jazz"}
NEW = {"lives in Lisbon", "is allergic to nuts"}


def run(backend: Backend, user: str, at: int) -> int | None:
    """Have a process remember until a line; return how many lines there are, None if it died."""
    return run_until(learning_processes.remember, backend, at, user)


def holding(memory: caliber.Caliber, user: str) -> list[str]:
    """Return the contents of a user's notes that hold, as they are stored."""
    notes = memory.storage.notes.find_by_entity(user, "person")
    return [note.content for note in notes if note.active and note.valid_until is None]


@needs("reopen")
def test_a_kill_at_each_step_leaves_all_or_nothing(backend: Any) -> None:
    memory = backend.open(clock=FixedClock(LATER_US), **KNOBS)
    total = run(backend, "counted", sys.maxsize)
    assert total is not None
    assert total > STEPS
    seen = set()
    for step in range(STEPS):
        user = f"user{step}"
        at = 1 + step * total // STEPS
        assert run(backend, user, at) is None, f"line {at} of {total} was not reached"
        held = set(holding(memory, user))
        owner = memory.identities.resolve(user)
        (task,) = memory.storage.trajectories.list_by_initiator("user", owner.id, limit=10)
        turns = memory.storage.trajectories.get(task.trajectory_id).turn_count
        waiting = [job for job in memory.jobs.list(kind="learning") if job.trajectory_id == task.trajectory_id]
        open_jobs = [job for job in waiting if job.state in (JobState.WAITING, JobState.RUNNING)]
        state = (turns, len(open_jobs), held == OLD, held == NEW)
        assert state in ((1, 0, True, False), (2, 1, True, False), (2, 0, False, True)), (at, state, held)
        seen.add(state)
        learned = memory.remember(MESSAGES, user=user)
        assert learned.state is JobState.DONE
        assert sorted(each.action.value for each in learned.decisions) == ["add", "end", "update"]
        assert sorted(holding(memory, user)) == sorted(NEW)
        assert memory.storage.trajectories.get(task.trajectory_id).turn_count == 2
    assert {(1, 0, True, False), (2, 1, True, False)} <= seen
    assert memory.admin.check() == []
