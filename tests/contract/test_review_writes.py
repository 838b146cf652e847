"""Writes that share a commit, what reads leave behind, and the end of a task, when something goes wrong half way."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.configs import USER, policy
from support.providers import ScriptedSummarizer

import caliber
from caliber.model import OutcomeStatus
from caliber.model.errors import ConstraintViolation, LockAcquisitionFailed, StorageError, Unavailable


def test_an_interrupt_in_one_thread_is_no_interrupt_in_another(backend: Any, start: Any) -> None:
    memory = backend.open(storage__durability="group", storage__group_wait_us=200_000)
    agent = start(memory)
    ends: dict[str, BaseException | None] = {}

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    def run(name: str, call: Any) -> None:
        try:
            call()
            ends[name] = None
        except BaseException as error:
            ends[name] = error

    first = threading.Thread(target=run, args=("first", lambda: memory._engine.write(interrupted)))
    second = threading.Thread(target=run, args=("second", lambda: agent.note("a companion")))
    first.start()
    second.start()
    first.join()
    second.join()
    assert isinstance(ends["first"], KeyboardInterrupt)
    failed = ends["second"]  # alone in its transaction it succeeds, in company it may try again
    assert failed is None or (isinstance(failed, StorageError) and failed.retryable)
    agent.note("the writer still works")


def test_a_window_of_a_deleted_trajectory_does_not_block_the_others(backend: Any, start: Any) -> None:
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    gone, kept = start(memory), start(memory)
    memory.flush()
    lost = memory.assemble_context(gone.trajectory_id)
    window = memory.assemble_context(kept.trajectory_id)
    memory.storage.trajectories.delete(gone.trajectory_id)
    memory.flush()
    assert memory.storage.context_windows.get(window.window_id)
    assert memory.storage.context_windows.get(lost.window_id) is None


def test_a_fault_while_writing_behind_is_told_and_made_good(backend: Any, start: Any, monkeypatch: Any) -> None:
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    agent = start(memory)
    memory.flush()
    window = memory.assemble_context(agent.trajectory_id)
    with monkeypatch.context() as patch:

        def broken(_: Any, **__: Any) -> None:
            raise RuntimeError("planted")

        patch.setattr(memory._engine.behind._store, "write", broken)
        with pytest.raises(Unavailable, match="left behind|leave behind"):
            memory._engine.behind.flush()
    memory.flush()
    assert memory.storage.context_windows.get(window.window_id)


def test_a_lock_that_cannot_be_widened_is_kept(memory: caliber.Caliber) -> None:  # C-364
    mine = memory.agents.acquire("file", holder="a", lease_ms=60_000, mode="shared")
    memory.agents.acquire("file", holder="b", lease_ms=60_000, mode="shared")
    with pytest.raises(LockAcquisitionFailed):
        memory.agents.acquire("file", holder="a", lease_ms=60_000, mode="exclusive")
    assert {lock.holder for lock in memory.agents.held("file")} == {"a", "b"}
    assert mine.token in {lock.token for lock in memory.agents.held("file")}


def _completing(backend: Any, meanwhile: Any, **overrides: Any) -> tuple[Any, Any]:
    """Return a handle and a trajectory whose completing does ``meanwhile`` once, while notes are generated."""
    summarizer = ScriptedSummarizer()
    consolidate = policy("task_end", {"action": "consolidate_notes", "target": "trajectory"})
    memory = backend.open(summarization_provider=summarizer, policies=[consolidate], **overrides)
    trajectory = memory.start_trajectory("be overtaken", initiator=USER)
    todo = [meanwhile]

    def before(operation: str) -> None:
        if operation == "generate_notes" and todo:
            todo.pop()(memory, trajectory)

    summarizer.before = before
    return memory, trajectory


def test_a_scope_opened_while_completing_is_closed_too(backend: Any) -> None:  # K-093
    memory, trajectory = _completing(backend, lambda memory, it: memory.open_scope(it.trajectory_id))
    outcome = memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
    assert outcome.status is OutcomeStatus.SUCCESS
    scopes = memory.storage.scopes.list_by_trajectory(trajectory.trajectory_id)
    assert len(scopes) == 2
    assert not any(scope.is_open for scope in scopes)


@pytest.mark.parametrize("rule", ["reject", "cascade_fail", "detach"])
def test_a_child_started_while_completing_is_settled_too(backend: Any, rule: str) -> None:  # C-237
    children: list[Any] = []

    def begin(memory: Any, trajectory: Any) -> None:
        children.append(memory.start_trajectory("child", initiator=USER, parent=trajectory.trajectory_id))

    memory, trajectory = _completing(backend, begin, trajectory__children_on_complete=rule)
    if rule == "reject":
        with pytest.raises(ConstraintViolation):
            memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
        assert memory.get(trajectory.trajectory_id).status == "active"
        return
    memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
    child = memory.get(children[0].trajectory_id)
    assert (child.status, child.parent_trajectory_id is None) == (
        ("failed", False) if rule == "cascade_fail" else ("active", True)
    )


def test_newest_breaks_ties_by_id_also_where_it_cuts(backend: Any, start: Any) -> None:  # design 5: never by row
    class Stopped:
        def now_us(self) -> int:
            return 1_700_000_000_000_000

    memory = backend.open(clock=Stopped())
    agent = start(memory)
    notes = [agent.note(f"note {number}") for number in range(4)]
    memory.get(notes[0].note_id)
    memory.storage.notes.update(notes[0].note_id, importance=2.0)  # its row is now the last one
    assert [hit.content for hit in memory.search("", kinds="note", limit=2).hits] == ["note 0", "note 1"]
