"""Recoveries again and again: of damaged checkpoints, of few that are kept, of tasks with tasks below them.

Source: issue 17, C-266, C-271, C-272, K-092; docs/pcp.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
from collections.abc import Iterator
from inspect import stack
from typing import Any

import pytest
from support.databases import Backend
from support.evidence import scale, seed
from support.inspection import inspect

import caliber
from caliber.kernels import uuid7
from caliber.model import TrajectoryStatus
from caliber.model.errors import NoCheckpointAvailable, StorageError
from caliber.schema.relations import CHECKPOINT, TRAJECTORY
from caliber.trajectory.lifecycle import open_scope

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "policies": [],
    "jobs__poll_ms": 0,
    "pcp__recovery_points__frequency": "manual",
    "memories": [
        {"name": "reading", "type": "episodic", "fields": [{"name": "text", "type": "text"}],
         "retention": {"kind": "persistent"}},
    ],
}  # fmt: skip


def opened(backend: Backend, keep: int = 20) -> caliber.Caliber:
    return backend.open(checkpoint_retention=keep, **KNOBS)


class Task:
    """A task, and short ways to work on it."""

    def __init__(self, memory: caliber.Caliber, parent: Any = None) -> None:
        self.memory = memory
        self.id = memory.start_trajectory("mend the pump", user="ana", parent=parent).trajectory_id

    @property
    def scope(self) -> Any:
        found = self.memory.current_scope(self.id)
        return (self.memory.open_scope(self.id) if found is None else found).scope_id

    def say(self, text: str) -> None:
        self.memory.append_turn(self.scope, role="user", content=text)

    def fact(self, text: str) -> Any:
        return self.memory.create_artifact(
            self.scope, artifact_type="fact", content=text, extraction_method="user_provided", confidence=0.9
        ).artifact_id

    def checkpoint(self) -> Any:
        return self.memory.pcp.checkpoint(self.id).checkpoint_id

    def recover(self, checkpoint: Any = None) -> Any:
        return self.memory.pcp.recover(self.id, checkpoint)

    @property
    def scopes(self) -> list[Any]:
        return self.memory.storage.scopes.list_by_trajectory(self.id)

    @property
    def texts(self) -> list[str]:
        return [
            turn.text
            for scope in self.scopes
            for turn in self.memory.storage.turns.list_by_scope(scope.scope_id)
            if turn.rolled_back_at is None
        ]

    @property
    def checkpoints(self) -> set[Any]:
        return {each.checkpoint_id for each in self.memory.storage.checkpoints.list_by_trajectory(self.id, limit=1_000)}


def spoil(task: Task, key: Any) -> None:
    """Damage the state of a checkpoint as it is stored; all are stored anew, in their order."""
    stored = task.memory.storage.checkpoints.list_by_trajectory(task.id, limit=1_000)[::-1]

    def work(uow: Any) -> None:
        for each in stored:
            uow.delete(CHECKPOINT, uow.get(CHECKPOINT, each.checkpoint_id.bytes))
        for each in stored:
            state = each.state[:-3] + b"???" if each.checkpoint_id == key else each.state
            uow.insert(CHECKPOINT, dataclasses.replace(each, state=state))

    inspect(task.memory).engine.write(work)


# --- few that are kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 3])
def test_the_checkpoint_that_a_task_returns_to_is_kept_however_often_it_does(backend: Backend, keep: int) -> None:
    task = Task(opened(backend, keep))
    asked = []
    for at in range(keep):
        task.say(f"good {at}")
        asked.append(task.checkpoint())
    for at in range(4 * keep):
        task.say(f"bad {at}")
        assert task.recover().checkpoint_id == asked[-1]
        assert task.texts == [f"good {number}" for number in range(keep)]
        assert set(asked) <= task.checkpoints, "those that recoveries make push none out"
    assert len(task.checkpoints) == 2 * keep
    for _ in range(keep):  # taken back, and taken back again: each time by the one that was made just before
        task.say("worse")
        done = task.recover(asked[0])
        task.recover(done.before_id)
        assert task.texts[-1] == "worse"
    assert len(task.checkpoints) <= 3 * keep
    assert task.memory.storage.checkpoints.delete_oldest(task.id, 0) > 0
    assert task.checkpoints == set()
    with pytest.raises(NoCheckpointAvailable):
        task.recover()


class Courses:
    """The courses of a task: each checkpoint has the one before it."""

    def __init__(self) -> None:
        self.before: dict[Any, Any] = {}
        self.made: set[Any] = set()
        self.head: Any = None

    def add(self, key: Any) -> None:
        self.before[key] = self.head
        self.head = key

    def first(self, start: Any, kept: set[Any], damaged: set[Any]) -> Any:
        """Return the checkpoint to recover from, or the class of the error."""
        while start is not None and start in damaged and start in kept:
            if start in self.made:
                return StorageError
            start = self.before[start]
        return start if start in kept else NoCheckpointAvailable


@pytest.mark.parametrize("number", range(scale(4, 60, daily=1)))
def test_no_damage_and_no_limit_revives_a_course_that_was_left(backend: Backend, number: int) -> None:
    rng = random.Random(seed() * 1_000 + number)
    task, courses = Task(opened(backend, rng.choice([1, 2, 3, 20]))), Courses()
    damaged: set[Any] = set()
    texts: dict[Any, list[str]] = {}
    for at in range(scale(40, 150)):
        kept = task.checkpoints
        step = rng.choice(["checkpoint", "checkpoint", "recover", "recover", "named", "damage"])
        task.say(f"turn {at}")
        if step == "checkpoint":
            key = task.checkpoint()
            courses.add(key)
            texts[key] = task.texts
        elif step == "damage" and kept:
            key = rng.choice(sorted(kept - damaged) or sorted(kept))
            spoil(task, key)
            damaged.add(key)
        elif step == "recover" or (step == "named" and kept):
            named = rng.choice(sorted(kept)) if step == "named" else None
            wanted = courses.first(courses.head if named is None else named, kept, damaged)
            before = task.texts
            if isinstance(wanted, type):
                with pytest.raises(wanted):
                    task.recover(named)
                assert (task.texts, task.checkpoints) == (before, kept), "nothing half done"
                continue
            done = task.recover(named)
            assert done.checkpoint_id == wanted
            assert task.texts == texts[wanted]
            courses.add(done.before_id)
            courses.made.add(done.before_id)
            texts[done.before_id] = before
            courses.head = wanted
    assert task.memory.admin.verify() == []


def test_a_damaged_checkpoint_of_a_recovery_is_refused_by_its_id(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    first = task.checkpoint()
    task.say("bad")
    task.checkpoint()
    done = task.recover(first)
    spoil(task, done.before_id)
    kept, scopes = task.checkpoints, task.scopes
    with pytest.raises(StorageError, match="damaged; recover from another one"):
        task.recover(done.before_id)
    assert (task.texts, task.checkpoints, task.scopes) == (["good"], kept, scopes)
    task.say("more")
    assert task.recover().checkpoint_id == first
    assert task.texts == ["good"]


# --- tasks below -------------------------------------------------------------------------------------


def test_a_subtask_without_records_keeps_its_own_course(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    below, idle, own = (Task(task.memory, task.id) for _ in range(3))
    held = below.scope
    task.memory.suspend_trajectory(idle.id)
    own_checkpoint = own.checkpoint()
    own.say("measure the pressure")
    task.checkpoint()
    own.recover(own_checkpoint)
    task.memory.resume_trajectory(idle.id)
    task.say("bad")
    done = task.recover()
    assert (done.subtasks_rolled_back, done.subtasks_restored) == (0, 0)
    task.memory.append_turn(held, role="user", content="the subtask goes on")
    assert (below.texts, own.texts) == (["the subtask goes on"], [])
    assert task.memory.get(idle.id).status is TrajectoryStatus.ACTIVE


def test_a_subtask_without_records_leaves_and_comes_back(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    checkpoint = task.checkpoint()
    below = Task(task.memory, task.id)
    done = task.recover()
    assert (done.subtasks_rolled_back, task.memory.get(below.id).status) == (1, TrajectoryStatus.SUSPENDED)
    assert [(scope.is_open, scope.rolled_back_at is not None) for scope in below.scopes] == [(False, True)]
    assert task.recover().reason is not None
    assert task.recover(done.before_id).subtasks_restored == 1
    below.say("measure the pressure")
    assert task.recover(checkpoint).subtasks_rolled_back == 1
    assert below.texts == []
    assert task.memory.admin.verify() == []


@pytest.mark.parametrize("said", [[], ["first"]])
def test_a_suspended_subtask_that_came_back_keeps_its_own_course(backend: Backend, said: list[str]) -> None:
    task = Task(opened(backend))
    task.say("good")
    checkpoint = task.checkpoint()
    below = Task(task.memory, task.id)
    for text in said:
        below.say(text)
    task.memory.suspend_trajectory(below.id)
    suspended = task.checkpoint()
    task.memory.resume_trajectory(below.id)
    below.say("second")  # so the scope went on, and its summary would tell of it
    left = task.recover(checkpoint)
    assert left.subtasks_rolled_back == 1
    assert task.recover(suspended).subtasks_restored == 1
    assert (below.texts, task.memory.get(below.id).status) == (said, TrajectoryStatus.SUSPENDED)
    assert task.recover(suspended).reason is not None
    task.recover(left.before_id)
    assert (below.texts, task.memory.get(below.id).status) == (said, TrajectoryStatus.SUSPENDED)
    task.memory.resume_trajectory(below.id)
    held = task.memory.current_scope(below.id)
    assert held.rolled_back_at is None
    below.say("third")
    assert below.texts == [*said, "third"]
    assert task.memory.admin.verify() == []


def test_a_chain_of_parents_that_comes_back_to_itself_is_followed_once(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    below = Task(task.memory, task.id)
    bottom = Task(task.memory, below.id)

    def bend(uow: Any) -> None:
        known = uow.get(TRAJECTORY, task.id.bytes)
        uow.update(TRAJECTORY, dataclasses.replace(known, parent_trajectory_id=below.id))

    inspect(task.memory).engine.write(bend)
    checkpoint = task.checkpoint()
    task.say("bad")
    bottom.say("the subtask goes on")
    done = task.recover()
    assert (done.checkpoint_id, done.turns_rolled_back, done.subtasks_rolled_back) == (checkpoint, 1, 0)
    assert task.texts == ["good"]
    task.recover(done.before_id)
    assert (task.texts, bottom.texts) == (["good", "bad"], ["the subtask goes on"])


@pytest.fixture
def few_frames() -> Iterator[int]:
    """Allow 250 more calls within each other, and return a number that is beyond that."""
    known = sys.getrecursionlimit()
    sys.setrecursionlimit(len(stack(0)) + 250)
    yield 300
    sys.setrecursionlimit(known)


@pytest.mark.prove
def test_a_tree_deeper_than_the_stack_recovers(backend: Backend, few_frames: int) -> None:
    task = Task(opened(backend))
    checkpoint = task.checkpoint()
    chain = [task, *(Task(task.memory) for _ in range(few_frames))]
    chain[-1].say("at the bottom")

    def hang(uow: Any) -> None:
        for above, below in itertools.pairwise(chain):
            known = uow.get(TRAJECTORY, below.id.bytes)
            uow.update(TRAJECTORY, dataclasses.replace(known, parent_trajectory_id=above.id))

    inspect(task.memory).engine.write(hang)
    done = task.recover(checkpoint)
    assert (done.subtasks_rolled_back, chain[-1].texts) == (few_frames, [])
    assert task.recover(done.before_id).subtasks_restored == few_frames
    assert chain[-1].texts == ["at the bottom"]


@pytest.mark.prove
def test_a_checkpoint_holds_a_thousand_nested_subtasks(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    keys = [task.id]

    def nest(uow: Any) -> None:
        known = uow.get(TRAJECTORY, task.id.bytes)
        for _ in range(1_000):
            key = uuid7()
            new = dataclasses.replace(known, trajectory_id=key, parent_trajectory_id=keys[-1], turn_count=0, version=1)
            uow.insert(TRAJECTORY, new)
            open_scope(uow, key)
            keys.append(key)

    inspect(task.memory).engine.write(nest)
    scope = task.memory.current_scope(keys[-1]).scope_id
    task.memory.append_turn(scope, role="user", content="at the bottom")
    checkpoint = task.checkpoint()
    task.say("bad")
    done = task.recover()
    assert (done.checkpoint_id, done.damaged, done.subtasks_rolled_back) == (checkpoint, (), 0)
    assert {task.memory.get(key).status for key in keys} == {TrajectoryStatus.ACTIVE}
    assert task.memory.search("at the bottom").hits
    assert task.texts == ["good"]
    assert len(task.memory.storage.checkpoints.get(checkpoint).state) < 100_000


# --- scopes ------------------------------------------------------------------------------------------


def test_recoveries_go_on_in_an_empty_scope_that_there_is(backend: Backend) -> None:
    task = Task(opened(backend))
    task.say("good")
    task.checkpoint()
    task.say("bad")
    scope = task.recover().new_scope_id
    for at in range(3):
        task.memory.records("reading").insert(text=f"{at} bar", trajectory_id=task.id)
        done = task.recover()
        assert (done.records_rolled_back, done.new_scope_id) == (1, scope)
    task.memory.open_scope(task.id)
    done = task.recover()
    assert [each.scope_id for each in task.scopes if each.is_open] == [task.scope]
    assert done.new_scope_id == task.scope
    assert task.recover().reason is not None
    back = task.recover(done.before_id)
    assert len([each for each in task.scopes if each.is_open]) == 1, back
    assert task.memory.admin.verify() == []


@pytest.mark.parametrize("since", ["delete", "undo"])
def test_a_scope_stays_in_use_where_a_record_was_out_of_use(backend: Backend, since: str) -> None:
    """A record that was there is none that came later, even if it was out of use at the checkpoint."""
    task = Task(opened(backend))
    task.say("good")
    fact, scope = task.fact("the valve is open"), task.scope
    if since == "delete":
        task.checkpoint()
        task.memory.artifacts.delete(fact)
        back = task.recover().before_id
    else:
        task.memory.artifacts.delete(fact)
        back = task.checkpoint()
        task.memory.artifacts.undo(fact)
    done = task.recover(back)
    assert done.artifacts_rolled_back == 1
    assert task.memory.get(scope).rolled_back_at is None
    assert task.recover(back).reason is not None
    assert task.memory.admin.verify() == []


def test_a_record_of_a_declared_memory_keeps_what_an_update_wrote(backend: Backend) -> None:
    task = Task(opened(backend))
    readings = task.memory.records("reading")
    kept = readings.insert(text="90 bar", trajectory_id=task.id)
    task.checkpoint()
    readings.update(kept.record_id, text="12 bar")
    task.say("bad")
    assert task.recover().records_restored == 0
    assert [each.text for each in readings.find(trajectory_id=task.id, limit=10)] == ["12 bar"]
    readings.archive(kept.record_id)
    assert task.recover().records_restored == 1
    assert [each.text for each in readings.find(trajectory_id=task.id, limit=10)] == ["12 bar"]
