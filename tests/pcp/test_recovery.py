"""Recovery from checkpoints: what came after leaves every read, nothing is deleted, and a recovery can be taken back.

Checkpoints are ordered by their numbers in the store, whatever the clocks of the processes say.

Source: C-266 to C-272, C-350 to C-352, C-482 to C-486, K-088 to K-090, K-092; issue 17.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from datetime import timedelta
from typing import Any

import pytest
from support.configs import policy
from support.databases import Backend
from support.drawn import needs
from support.erasure.shared_tasks import shared_task
from support.inspection import inspect
from support.weeks import SetClock

import caliber
from caliber.kernels import uuid7
from caliber.model import OutcomeStatus, Principal, TrajectoryStatus
from caliber.model.errors import InvalidStateTransition, InvalidValue, NoCheckpointAvailable, NotFound
from caliber.model.events import EventType
from caliber.pcp.checkpoints import CODEC_JSON, CODEC_ZLIB, build_state, read_state
from caliber.pcp.recovery import Recovery
from caliber.schema.erase import CHECKPOINT_HEAD
from caliber.schema.relations import CHECKPOINT, EVENT
from caliber.storage.compile.conditions import PAGE_ROWS

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "policies": [],
    "jobs__poll_ms": 0,
    "pcp__recovery_points__frequency": "manual",
}
SUMMARIZING = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})


@pytest.fixture
def memory(backend: Backend, clock: SetClock) -> caliber.Caliber:
    return backend.open(clock=clock, checkpoint_retention=50, **KNOBS)


class Task:
    """A task, and short ways to work on it."""

    def __init__(self, memory: caliber.Caliber) -> None:
        self.memory = memory
        self.id = memory.start_trajectory("mend the pump", user="ana").trajectory_id

    @property
    def scope(self) -> Any:
        found = self.memory.current_scope(self.id)
        return self.memory.open_scope(self.id) if found is None else found

    def say(self, text: str, role: str = "user") -> Any:
        return self.memory.append_turn(self.scope.scope_id, role=role, content=text)

    def make(self, text: str) -> Any:
        return self.memory.create_artifact(
            self.scope.scope_id, artifact_type="fact", content=text, extraction_method="explicit"
        )

    def window(self, query: str = "") -> str:
        return self.memory.assemble_context(self.id, query=query).text

    def found(self, query: str) -> list[str]:
        return sorted(hit.content for hit in self.memory.search(query, limit=50).hits)


def test_what_came_after_a_checkpoint_leaves_windows_and_searches(memory: caliber.Caliber) -> None:
    task = Task(memory)
    task.say("the pump is rusty")
    task.make("the pump is a model A12")
    before = task.window(), task.found("pump")
    checkpoint = memory.pcp.checkpoint(task.id)
    wrong = task.say("I have thrown the pump away", role="assistant")
    artifact = task.make("the pump is a model B7")
    memory.close_scope(task.scope.scope_id)
    task.say("buy another pump")
    done = memory.pcp.recover(task.id)
    assert (done.success, done.checkpoint_id, done.turn_number) == (True, checkpoint.checkpoint_id, 1)
    assert (done.turns_rolled_back, done.artifacts_rolled_back, done.scopes_rolled_back) == (2, 1, 2)
    assert task.scope.scope_id == done.new_scope_id
    assert (task.window(), task.found("pump")) == before
    # Nothing was deleted: by its id each record is there, and says when it was rolled back.
    assert memory.get(wrong.turn_id).rolled_back_at == done.recovered_at
    assert memory.get(artifact.artifact_id).rolled_back_at == done.recovered_at
    # The conversation goes on, with numbers of its own.
    assert task.say("so keep the pump").turn_number == 3
    assert "thrown" not in task.window("pump")
    assert memory.admin.verify() == []


def test_a_recovery_again_changes_nothing_and_can_be_taken_back(memory: caliber.Caliber) -> None:
    task = Task(memory)
    task.say("one")
    memory.pcp.checkpoint(task.id)
    task.say("two")
    task.make("two is even")
    after = task.window(), task.found("two")
    preview = memory.pcp.recover(task.id, preview=True)
    assert (preview.success, preview.turns_rolled_back, preview.new_scope_id) == (False, 1, None)
    assert (task.window(), task.found("two")) == after, "a preview changes nothing"
    first = memory.pcp.recover(task.id)
    told = memory.pcp.recover(task.id, preview=True)
    assert (told.preview, told.reason) == (True, "the task is as it was at the checkpoint")
    again = memory.pcp.recover(task.id)
    assert (again.success, again.new_scope_id, again.before_id) == (True, first.new_scope_id, None)
    assert again.reason == "the task is as it was at the checkpoint"
    assert task.found("two") == []
    back = memory.pcp.recover(task.id, first.before_id)
    assert (back.turns_restored, back.artifacts_restored, back.turns_rolled_back) == (1, 1, 0)
    assert (task.window().replace("# Conversation\n", ""), task.found("two")) == (
        after[0].replace("# Conversation\n", ""),
        after[1],
    )
    assert memory.pcp.recover(task.id, first.before_id).reason is not None
    assert memory.admin.verify() == []


def test_a_turn_that_comes_in_between_is_in_the_checkpoint_before(
    memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(memory)
    task.say("one")
    memory.pcp.checkpoint(task.id)
    task.say("two")
    prepare, late = Recovery.prepare, ["three"]

    def prepared(self: Recovery, *asked: Any) -> Any:
        found = prepare(self, *asked)
        if late:
            task.say(late.pop())  # after the state was read, before the transaction
        return found

    monkeypatch.setattr(Recovery, "prepare", prepared)
    done = memory.pcp.recover(task.id)
    assert done.turns_rolled_back == 2
    memory.pcp.recover(task.id, done.before_id)
    assert "three" in task.window()


def test_a_summary_of_turns_that_were_rolled_back_is_none_any_more(backend: Backend) -> None:
    memory = backend.open(**KNOBS | {"policies": [SUMMARIZING]})
    task = Task(memory)
    first = task.scope
    task.say("We planted 12 roses in the garden. They are red.")
    memory.pcp.checkpoint(task.id)
    task.say("We planted 30 tulips in the garden. They are yellow.")
    memory.close_scope(first.scope_id)
    assert "tulips" in memory.get(first.scope_id).summary
    memory.pcp.recover(task.id)
    assert not any("tulips" in text for text in [task.window("garden"), *task.found("tulips")])
    assert "roses" in task.window()
    assert memory.admin.verify() == []


def test_a_summary_made_right_after_a_checkpoint_stays(backend: Backend) -> None:
    """Frequency ``per_scope`` makes the checkpoint as the scope closes: what it sums up was there."""
    memory = backend.open(**KNOBS | {"policies": [SUMMARIZING], "pcp__recovery_points__frequency": "per_scope"})
    task = Task(memory)
    first = task.scope
    task.say("We planted 12 roses in the garden. They are red.")
    memory.close_scope(first.scope_id)
    task.say("the garden burnt down")
    done = memory.pcp.recover(task.id)
    assert done.turns_rolled_back == 1
    closed = memory.get(first.scope_id)
    assert (closed.rolled_back_at, "roses" in closed.summary) == (None, True)
    assert "burnt" not in task.window("garden")


def test_facts_of_rolled_back_turns_are_taken_back_and_learnt_again(memory: caliber.Caliber) -> None:
    learned = memory.remember([{"role": "user", "content": "I live in Berlin."}], user="ana")
    task = learned.trajectory_id
    memory.pcp.checkpoint(task)
    memory.remember([{"role": "user", "content": "I moved to Lisbon."}], user="ana", task=task)

    def facts() -> list[str]:
        return sorted(note.content for note in memory.records("note").find(limit=10) if note.valid_until is None)

    assert facts() == ["lives in Lisbon"]
    done = memory.pcp.recover(task)
    assert (done.facts_undone, done.facts_kept) == (1, 0)
    assert facts() == ["lives in Berlin"]
    memory.pcp.recover(task, done.before_id)
    memory.jobs.run_due()
    assert facts() == ["lives in Lisbon"]
    assert memory.admin.verify() == []


def test_a_task_of_more_records_than_one_page_recovers_wholly(memory: caliber.Caliber, clock: SetClock) -> None:
    more = PAGE_ROWS + 20
    task = memory.remember([{"role": "user", "content": "Hello."}], user="ana").trajectory_id
    checkpoint = memory.pcp.checkpoint(task)
    memory.remember([{"role": "user", "content": "I live in Berlin."}], user="ana", task=task)
    scope = memory.current_scope(task)
    read = [{"role": "tool", "tool_call_id": str(at), "content": f"reading {at}"} for at in range(more)]
    memory.append_turns(scope.scope_id, read)
    learnt = [each for each in memory.storage.events.all() if each.event_type == EventType.LEARN][-1]
    clock.at += timedelta(seconds=1)

    def newer(uow: Any) -> None:
        """Leave more than a page of newer checkpoints and events, none of which is the one that counts."""
        for _ in range(more):
            uow.insert(
                CHECKPOINT,
                dataclasses.replace(checkpoint, checkpoint_id=uuid7(), recoverable=False, created_at=clock.at),
            )
            for kind, payload in (
                (EventType.LEARN, {**learnt.payload, "turns": [str(uuid7())]}),
                (EventType.LEARN_UNDO, {"undone": str(uuid7())}),
            ):
                event = dataclasses.replace(
                    learnt, event_id=uuid7(), event_type=kind, payload=payload, created_at=clock.at
                )
                uow.insert(EVENT, event)

    inspect(memory).engine.write(newer)
    done = memory.pcp.recover(task)
    assert (done.checkpoint_id, done.turns_rolled_back, done.facts_undone) == (checkpoint.checkpoint_id, more + 1, 1)
    assert not [note for note in memory.records("note").find(limit=10) if note.valid_until is None]
    assert "reading" not in memory.assemble_context(task, query="reading").text
    with pytest.raises(InvalidValue):
        memory.pcp.recover(task, next(each.checkpoint_id for each in stored(memory, task) if not each.recoverable))
    # Taken back, all of it is there again, and what was learnt from it is learnt anew.
    again = memory.pcp.recover(task, done.before_id)
    assert again.turns_restored == more + 1
    memory.jobs.run_due()
    assert [note.content for note in memory.records("note").find(limit=10) if note.valid_until is None] == [
        "lives in Berlin"
    ]


def stored(memory: caliber.Caliber, task: Any) -> list[Any]:
    return [each for each in memory.storage.checkpoints.all() if each.trajectory_id == task]


def test_a_fact_that_a_person_corrected_since_stays(memory: caliber.Caliber) -> None:
    task = memory.remember([{"role": "user", "content": "Hello."}], user="ana").trajectory_id
    memory.pcp.checkpoint(task)
    learned = memory.remember([{"role": "user", "content": "I live in Berlin."}], user="ana", task=task)
    note_id = learned.decisions[0].note_id
    assert note_id is not None
    memory.update_note(note_id, content="lives in Bern")
    done = memory.pcp.recover(task)
    assert (done.facts_undone, done.facts_kept) == (0, 1)
    assert memory.get(note_id).content == "lives in Bern"


def test_a_turn_that_waits_to_teach_teaches_nothing_once_rolled_back(memory: caliber.Caliber) -> None:
    task = memory.remember([{"role": "user", "content": "Hello."}], user="ana").trajectory_id
    memory.pcp.checkpoint(task)
    memory.remember([{"role": "user", "content": "I live in Berlin."}], user="ana", task=task, wait=False)
    memory.pcp.recover(task)
    memory.jobs.run_due()
    assert not memory.records("note").find(limit=10)


@pytest.mark.parametrize("harm", ["flipped", "codec", "short", "deep"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(memory: caliber.Caliber, harm: str) -> None:
    task = Task(memory)
    task.say("one")
    good = memory.pcp.checkpoint(task.id)
    task.say("two")
    bad = memory.pcp.checkpoint(task.id)
    task.say("three")
    spoil(memory, bad, harm)
    done = memory.pcp.recover(task.id)
    assert (done.checkpoint_id, done.damaged) == (good.checkpoint_id, (bad.checkpoint_id,))
    assert (done.turns_rolled_back, "two" in task.window()) == (2, False)
    spoil(memory, good, harm)
    with pytest.raises(NoCheckpointAvailable):
        memory.pcp.recover(task.id, bad.checkpoint_id)


def spoil(memory: caliber.Caliber, checkpoint: Any, harm: str) -> None:
    """Damage the state of a checkpoint as it is stored."""
    deep = zlib.compress(b"[" * 100_000 + b"]" * 100_000)
    state = {
        "flipped": checkpoint.state[:60] + bytes([checkpoint.state[60] ^ 1]) + checkpoint.state[61:],
        "codec": checkpoint.state,
        "short": checkpoint.state[:10],
        "deep": CHECKPOINT_HEAD + hashlib.sha256(deep).digest() + deep,
    }[harm]
    store_anew(
        memory, dataclasses.replace(checkpoint, state=state, codec="json" if harm == "codec" else checkpoint.codec)
    )


def store_anew(memory: caliber.Caliber, checkpoint: Any) -> None:
    """Store a checkpoint in place of the one with its id."""

    def work(uow: Any) -> None:
        uow.delete(CHECKPOINT, uow.get(CHECKPOINT, checkpoint.checkpoint_id.bytes))
        uow.insert(CHECKPOINT, checkpoint)

    inspect(memory).engine.write(work)


def test_bad_input(memory: caliber.Caliber, backend: Backend) -> None:
    task, other = Task(memory), Task(memory)
    with pytest.raises(NoCheckpointAvailable):
        memory.pcp.recover(task.id)
    foreign = memory.pcp.checkpoint(other.id)
    with pytest.raises(NotFound):
        memory.pcp.recover(task.id, foreign.checkpoint_id)
    ben = memory.acting_as(Principal.user("ben"))
    for call in (ben.pcp.checkpoint, ben.pcp.recover):
        with pytest.raises(NotFound):
            call(task.id)
    kept = memory.pcp.checkpoint(task.id)
    store_anew(memory, dataclasses.replace(kept, recoverable=False))
    with pytest.raises(InvalidValue, match="not recoverable"):
        memory.pcp.recover(task.id, kept.checkpoint_id)
    memory.complete_trajectory(task.id, status=OutcomeStatus.SUCCESS, summary="done")
    for call in (memory.pcp.checkpoint, memory.pcp.recover):
        with pytest.raises(InvalidStateTransition, match="completed"):
            call(task.id)


def test_a_suspended_task_is_suspended_again(memory: caliber.Caliber) -> None:
    task = Task(memory)
    task.say("one")
    memory.suspend_trajectory(task.id)
    memory.pcp.checkpoint(task.id)
    memory.resume_trajectory(task.id)
    task.say("two")
    memory.pcp.recover(task.id)
    assert memory.get(task.id).status is TrajectoryStatus.SUSPENDED
    memory.resume_trajectory(task.id)
    assert "two" not in task.window()


def test_why_not_names_the_recovery(backend: Backend) -> None:
    memory = backend.open(**KNOBS | {"policies": [SUMMARIZING]})
    task = Task(memory)
    task.say("the pump is rusty")
    memory.pcp.checkpoint(task.id)
    turn, artifact, scope = task.say("the pump is gone"), task.make("the pump is a model B7"), task.scope.scope_id
    memory.close_scope(scope)
    done = memory.pcp.recover(task.id)
    for query in ("", "pump"):
        window = memory.assemble_context(task.id, query=query)
        for key in (turn.turn_id, artifact.artifact_id, scope):
            told = memory.explain(window.window_id, exclusion=key)
            assert told["filter"] == "rolled_back", told
            assert done.recovered_at.isoformat() in told["reason"]


def test_a_recovery_is_told_in_the_trace(memory: caliber.Caliber) -> None:
    # C-486
    task = Task(memory)
    memory.pcp.checkpoint(task.id)
    task.say("one")
    done = memory.pcp.recover(task.id)
    memory.flush()
    (event,) = memory.trace(task.id, event_type=EventType.CHECKPOINT_RECOVER)
    assert event.payload["id"] == str(done.checkpoint_id)
    assert event.payload["turns_rolled_back"] == 1


# --- against a model -------------------------------------------------------------------------------


def kept(number: int) -> dict[str, Any]:
    return {**KNOBS, "checkpoint_retention": number}


@pytest.mark.parametrize("number", [1, 3])
def test_a_clock_that_goes_back_makes_no_checkpoint_older(backend: Backend, number: int) -> None:
    clock = SetClock()
    memory = backend.open(clock=clock, **kept(number))
    task = memory.start_trajectory("mend the pump", user="ana").trajectory_id
    scope = memory.current_scope(task)
    assert scope is not None
    for at in range(4):
        memory.append_turn(scope.scope_id, role="user", content=f"good {at}")
        memory.pcp.checkpoint(task)
    clock.at -= timedelta(hours=1)
    memory.append_turn(scope.scope_id, role="user", content="good 4")
    newest = memory.pcp.checkpoint(task)
    tables = memory.storage.checkpoints
    assert tables.list_by_trajectory(task)[0].checkpoint_id == newest.checkpoint_id
    assert tables.get_latest(task).checkpoint_id == newest.checkpoint_id
    assert len(tables.list_by_trajectory(task)) == number
    memory.append_turn(scope.scope_id, role="assistant", content="bad")
    done = memory.pcp.recover(task)
    assert (done.checkpoint_id, done.turns_rolled_back) == (newest.checkpoint_id, 1)
    # The one that was made just before is there, and takes the recovery back.
    assert memory.pcp.recover(task, done.before_id).turns_restored == 1


@needs("sharing")
def test_checkpoints_of_two_processes_are_in_the_order_in_which_they_were_made(backend: Any) -> None:
    clock = SetClock()
    first, second = backend.open(clock=clock, **kept(3)), backend.open(clock=clock, **kept(3))
    task = first.start_trajectory("mend the pump", user="ana").trajectory_id
    for memory in (first, second, first, second, second, first, first, second, first):
        made = memory.pcp.checkpoint(task)
        listed = memory.storage.checkpoints.list_by_trajectory(task)
        assert [each.checkpoint_id for each in listed].index(made.checkpoint_id) == 0
    assert len(listed) == 3


# --- large states ----------------------------------------------------------------------------------


UNPACKED = 64 << 20


@pytest.mark.parametrize(
    ("most", "codec"), [(1, CODEC_ZLIB), pytest.param(UNPACKED, CODEC_JSON, marks=pytest.mark.prove)]
)
def test_a_state_of_any_size_is_read_as_it_was_written(memory: caliber.Caliber, most: int, codec: str) -> None:
    host, _, task = shared_task(memory)
    host.append_turn(host.current_scope(task.trajectory_id).scope_id, role="user", content="We leave on Monday.")
    window: Any = host.assemble_context(task.trajectory_id)
    made = memory.acting_as(Principal.admin()).pcp.checkpoint(task.trajectory_id)
    state = dataclasses.replace(read_state(made), rolled_back_turns=tuple((at, at) for at in range(most // 6)))
    name, packed = build_state(state, window, compress=True)
    assert name == codec
    again = read_state(dataclasses.replace(made, codec=name, state=packed))
    assert again.rolled_back_turns == state.rolled_back_turns
