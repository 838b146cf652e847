"""A recovery brings back all that follows a task: ends, deletes, notes, declared memories, subtasks, conflicts.

Source: issue 17, C-271, C-272, C-286, K-088; docs/pcp.md.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from support.agents.conflicts import grounding
from support.databases import Backend
from support.evidence import scale, seed
from support.weeks import SetClock

import caliber
from caliber.model import TrajectoryStatus
from caliber.model.errors import CaliberError
from caliber.schema.relations import ARTIFACT, NOTE
from caliber.schema.validity import is_active

KNOBS: dict[str, Any] = {
    "policies": [],
    "jobs__poll_ms": 0,
    "pcp__recovery_points__frequency": "manual",
    "checkpoint_retention": 200,
    "memories": [
        {"name": "reading", "type": "episodic", "fields": [{"name": "text", "type": "text"}],
         "retention": {"kind": "persistent"}},
    ],
}  # fmt: skip


@pytest.fixture
def memory(backend: Backend, clock: SetClock) -> caliber.Caliber:
    return backend.open(clock=clock, pcp__grounding=grounding("newest"), **KNOBS)


class Task:
    """A task, and short ways to work on it."""

    def __init__(self, memory: caliber.Caliber, clock: SetClock, parent: Any = None) -> None:
        self.memory, self.clock = memory, clock
        self.id = memory.start_trajectory("mend the pump", user="ana", parent=parent).trajectory_id

    @property
    def scope(self) -> Any:
        found = self.memory.current_scope(self.id)
        return (self.memory.open_scope(self.id) if found is None else found).scope_id

    def say(self, text: str) -> Any:
        return self.memory.append_turn(self.scope, role="user", content=text)

    def fact(self, text: str) -> Any:
        self.clock.at += timedelta(seconds=1)
        return self.memory.create_artifact(
            self.scope, artifact_type="fact", content=text, extraction_method="user_provided", confidence=0.9
        ).artifact_id

    def note(self, text: str, entity: str = "api") -> Any:
        self.clock.at += timedelta(seconds=1)
        return self.memory.add_note(
            entity=entity,
            entity_type="service",
            note_type="fact",
            content=text,
            confidence=0.9,
            source_trajectory_ids=[self.id],
        ).note_id

    def end(self, key: Any) -> Any:
        """Return when a record ceases to hold."""
        record = self.memory.get(key)
        return record.expires_at if hasattr(record, "expires_at") else record.valid_until

    def check(self) -> Any:
        self.memory.flush()  # facts are compared by their vectors, which are made behind
        return self.memory.pcp.validate(self.id, record=True)

    def rows(self) -> dict[str, Any]:
        """Return the rows in use that belong to the task, were drawn from it, or are of a task below it."""
        stored = self.memory.storage
        children = [each for each in stored.trajectories.all() if each.parent_trajectory_id == self.id]
        artifacts = [
            each for each in stored.artifacts.all() if each.trajectory_id == self.id and is_active(ARTIFACT, each)
        ]
        notes = [each for each in stored.notes.all() if self.id in each.source_trajectory_ids and is_active(NOTE, each)]
        kept = {each.artifact_id for each in artifacts} | {each.note_id for each in notes}
        readings = self.memory.records("reading").find(trajectory_id=self.id, limit=100)
        return {
            "status": self.memory.get(self.id).status,
            "turns": [
                turn.text
                for scope in stored.scopes.list_by_trajectory(self.id)
                for turn in stored.turns.list_by_scope(scope.scope_id)
                if turn.rolled_back_at is None
            ],
            "artifacts": {(str(each.artifact_id), each.text, each.confidence, each.expires_at) for each in artifacts},
            "notes": {(str(each.note_id), each.content, each.valid_until) for each in notes},
            "readings": sorted(each.text for each in readings),
            "below": {
                str(child.trajectory_id): (
                    child.status,
                    *(
                        turn.text
                        for scope in stored.scopes.list_by_trajectory(child.trajectory_id)
                        for turn in stored.turns.list_by_scope(scope.scope_id)
                        if turn.rolled_back_at is None
                    ),
                )
                for child in children
                if child.status is TrajectoryStatus.ACTIVE
            },
            "ended": sorted(str(each) for each in kept if (end := self.end(each)) is not None and end <= self.clock.at),
        }


def pairs(memory: caliber.Caliber) -> list[tuple[Any, Any]]:
    return [(each.item_a.id, each.item_b.id) for each in memory.conflicts.list()]


@pytest.fixture
def task(memory: caliber.Caliber, clock: SetClock) -> Task:
    return Task(memory, clock)


def there_and_back(task: Task, before: dict[str, Any]) -> None:
    """Recover, compare with the state at the checkpoint, take it back, compare, and recover once more."""
    bad = task.rows()
    assert bad != before
    done = task.memory.pcp.recover(task.id)
    assert task.rows() == before
    assert task.memory.pcp.recover(task.id).reason is not None, "a second time changes nothing"
    task.memory.pcp.recover(task.id, done.before_id)
    assert task.rows() == bad
    task.memory.pcp.recover(task.id, done.checkpoint_id)
    assert task.rows() == before
    assert task.memory.admin.verify() == []


@pytest.mark.parametrize("kind", ["artifact", "note"])
def test_the_end_of_a_fact_that_lost_a_conflict_since_is_undone(task: Task, kind: str) -> None:
    state = task.fact if kind == "artifact" else task.note
    state("The staging Redis instance listens on port 6379.")
    before = task.rows()
    task.memory.pcp.checkpoint(task.id)
    task.say("bad tool")
    state("The staging Redis instance listens on port 6380.")
    task.check()
    state("The staging Redis instance listens on port 6381.")
    task.check()  # a chain: the second lost to the third
    there_and_back(task, before)
    assert pairs(task.memory) == []


@pytest.mark.parametrize("kind", ["artifact", "note"])
def test_a_conflict_that_was_open_is_open_again(task: Task, kind: str) -> None:
    state = task.fact if kind == "artifact" else task.note
    state("The staging Redis instance listens on port 6379.")
    newer = state("The staging Redis instance listens on port 6380.")
    task.memory.pcp.checkpoint(task.id)
    before, bad = task.rows(), task.check()
    assert [each.kept.id for each in bad.conflicts] == [newer]
    there_and_back(task, before)
    assert len(pairs(task.memory)) == 1


def test_an_open_conflict_with_a_side_that_left_is_closed(backend: Backend, clock: SetClock) -> None:
    memory = backend.open(clock=clock, pcp__grounding=grounding("manual"), **KNOBS)
    task = Task(memory, clock)
    task.fact("The staging Redis instance listens on port 6379.")
    task.memory.pcp.checkpoint(task.id)
    task.fact("The staging Redis instance listens on port 6380.")
    task.check()
    (pair,) = pairs(memory)
    done = memory.pcp.recover(task.id)
    assert pairs(memory) == []
    memory.pcp.recover(task.id, done.before_id)
    assert pairs(memory) == [pair]


def test_corrections_and_deletes_since_are_undone(task: Task) -> None:
    memory = task.memory
    one, two, three = (task.fact(f"valve {at} is open") for at in range(3))
    before = task.rows()
    memory.pcp.checkpoint(task.id)
    memory.artifacts.delete(one)
    memory.artifacts.update(two, confidence=0.1)
    memory.artifacts.end(two)
    memory.artifacts.supersede(three, content="valve 3 is shut")
    there_and_back(task, before)


def test_notes_drawn_since_leave(task: Task) -> None:
    memory = task.memory
    task.note("The port is 8080.")
    before = task.rows()
    memory.pcp.checkpoint(task.id)
    task.fact("The port of the billing service is 9999.")
    memory.consolidate_notes(task.id)
    wrong = task.note("The colour is red.")
    assert {str(wrong)} < {each[0] for each in task.rows()["notes"]}
    shared = memory.add_note(
        entity="api", entity_type="service", note_type="fact", content="The owner is Ben.", confidence=0.9
    )
    there_and_back(task, before)
    assert memory.get(shared.note_id).archived_at is None
    assert "red" not in memory.assemble_context(task.id, query="colour of the api").text


def test_records_of_declared_memories_leave(task: Task) -> None:
    readings = task.memory.records("reading")
    kept = readings.insert(text="90 bar", scope=task.scope)
    before = task.rows()
    task.memory.pcp.checkpoint(task.id)
    readings.insert(text="12 bar", scope=task.scope)
    readings.archive(kept.record_id)
    there_and_back(task, before)


def test_subtasks_started_since_leave(task: Task, clock: SetClock) -> None:
    memory = task.memory
    old = Task(memory, clock, task.id)
    old.say("measure the pressure")
    before = task.rows()
    memory.pcp.checkpoint(task.id)
    task.say("bad plan")
    new = Task(memory, clock, task.id)
    new.say("throw the pump away")
    new.fact("The pump is thrown away.")
    Task(memory, clock, new.id).say("buy a pump")
    there_and_back(task, before)
    assert memory.get(new.id).status is TrajectoryStatus.SUSPENDED
    assert memory.get(old.id).status is TrajectoryStatus.ACTIVE
    assert not [hit for hit in memory.search("pump", limit=50).hits if "thrown" in hit.content or "buy" in hit.content]


STEPS = ["say", "fact", "fact", "note", "note", "check", "update", "end", "delete", "supersede", "reading", "dropped"]
STEPS += ["subtask", "close", "checkpoint", "recover", "recover"]


@pytest.mark.parametrize("number", range(scale(3, 40)))
def test_random_recoveries_bring_back_every_row(
    memory: caliber.Caliber, clock: SetClock, task: Task, number: int
) -> None:
    """The rows in use are those of the checkpoint, row by row."""
    rng = random.Random(seed() * 1_000 + number)
    seen: dict[Any, dict[str, Any]] = {}
    readings = memory.records("reading")
    for at in range(scale(30, 120)):
        clock.at += timedelta(seconds=1)
        rows = task.rows()
        artifacts = [key for key, *_ in sorted(rows["artifacts"])]
        step = rng.choice(STEPS)
        try:
            if step == "say":
                task.say(f"turn {at}")
            elif step == "fact":
                task.fact(f"The staging Redis instance listens on port 638{rng.randrange(9)}.")
            elif step == "note":
                task.note(f"The port is {rng.randrange(1, 9)}000.")
            elif step == "check":
                task.check()
            elif step in ("update", "end", "delete", "supersede") and artifacts:
                key = rng.choice(artifacts)
                fields = {"update": {"confidence": rng.random()}, "supersede": {"content": f"The valve is {at}."}}
                getattr(memory.artifacts, step)(key, **fields.get(step, {}))
            elif step == "reading":
                readings.insert(text=f"{at} bar", scope=task.scope)
            elif step == "dropped" and rows["readings"]:
                readings.archive(rng.choice(readings.find(trajectory_id=task.id, limit=100)).record_id)
            elif step == "subtask":
                Task(memory, clock, task.id).say(f"below {at}")
            elif step == "close":
                memory.close_scope(task.scope)
        except CaliberError:
            continue  # a correction of a record that ended, say
        if step == "checkpoint":
            seen[memory.pcp.checkpoint(task.id).checkpoint_id] = task.rows()
        elif step == "recover" and seen:
            wanted, before = rng.choice([*seen]), task.rows()
            done = memory.pcp.recover(task.id, wanted)
            assert task.rows() == seen[wanted], (at, wanted)
            if done.before_id is not None:
                seen[done.before_id] = before
        rows = task.rows()
        for one, other in pairs(memory):
            assert {str(one), str(other)}.isdisjoint(rows["ended"]), step
        found = {hit.content for hit in memory.search(f"turn {at}", kinds=["turn"], limit=200).hits}
        assert found <= {*rows["turns"], *(text for _, *texts in rows["below"].values() for text in texts)}, step
    assert memory.admin.verify() == []
