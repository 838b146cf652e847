"""Writes that share a commit, what reads leave behind, and the end of a task, when something goes wrong half way."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from typing import Any

import pytest
from support.configs import USER, policy
from support.providers import ScriptedSummarizer

import caliber
from caliber.model import OutcomeStatus
from caliber.model.errors import ConstraintViolation, LockAcquisitionFailed, StorageError, Unavailable
from caliber.search.opening import SearchEngine


def test_an_interrupt_in_one_thread_is_no_interrupt_in_another(backend: Any, start: Any) -> None:
    memory = backend.open(storage__durability="group", storage__group_wait_us=50_000)
    agent = start(memory)
    memory.flush()  # or what writes behind may be the one who leads
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
    # Who led the transaction was interrupted; in company the other may try again, alone it succeeded.
    others = [end for end in ends.values() if not isinstance(end, KeyboardInterrupt)]
    assert len(others) == 1
    assert others[0] is None or (isinstance(others[0], StorageError) and others[0].retryable)
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
        with pytest.raises(Unavailable, match="leave behind"):
            memory._engine.behind.flush()
    memory.flush()
    assert memory.storage.context_windows.get(window.window_id)


def test_what_a_read_leaves_behind_is_counted_once_also_when_that_fails_half_way(backend: Any, start: Any) -> None:
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    note = start(memory).note("counted").note_id
    memory.flush()
    behind, fails = memory._engine.behind, [True]

    def breaks() -> list[tuple[str, Any]]:
        if fails:
            raise RuntimeError("planted")
        return [("note", note)]

    for owners in (breaks, lambda: [("note", note)]):
        behind.put((memory._engine.part(SearchEngine).usage, None, (owners, 1)))
    with pytest.raises(Unavailable, match="leave behind"):
        behind.flush()
    fails.clear()
    behind.flush()
    assert memory.storage.usages.get(note).access_count == 2


def test_flushing_does_not_wait_for_what_others_go_on_queueing(backend: Any, start: Any, monkeypatch: Any) -> None:
    """While each batch is written somebody queues more: the queue never runs dry, and what was there before is kept."""
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    agent = start(memory)
    memory.flush()
    window = memory.assemble_context(agent.trajectory_id)
    behind = memory._engine.behind
    batches: list[bool] = []

    class Store:
        def write(self, work: Any) -> Any:
            batches.append(True)
            if len(batches) < 100:  # somebody who never stops, except for this test to end
                behind.put((memory._engine.log, None, memory._engine.event("notify")))
            return memory._engine.store.write(work)

    monkeypatch.setattr(behind, "_store", Store())
    behind.flush()
    assert memory.storage.context_windows.get(window.window_id)
    assert len(batches) < 10
    memory.flush()
    memory.close()
    assert behind.waiting() == 0, "closing waits for everything"


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
    memory.storage.notes.update(notes[0].note_id, importance=5.0)  # its row is now the last one
    assert [hit.content for hit in memory.search("", kinds="note", limit=2).hits] == ["note 0", "note 1"]


def test_nothing_begins_to_live_as_long_as_an_ended_session(memory: caliber.Caliber) -> None:  # C-013, K-210
    session = memory.start_session(initiator=USER)
    trajectory = memory.start_trajectory("outlive", initiator=USER, session=session.session_id)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    memory.end_session(session.session_id)
    fact = {"artifact_type": "fact", "content": "temporary", "extraction_method": "explicit"}
    with pytest.raises(ConstraintViolation):
        memory.create_artifact(scope.scope_id, ttl="session", **fact)
    assert memory.create_artifact(scope.scope_id, **fact)


def test_an_artifact_changed_by_hand_keeps_a_true_hash(backend: Any, start: Any) -> None:  # C-041
    memory = backend.open(validation_mode="always")
    agent = start(memory)
    artifact = agent.keep("first")
    changed = memory.storage.artifacts.update(artifact.artifact_id, content="second, and longer")
    assert changed.content == b"second, and longer"
    assert changed.content_hash == hashlib.sha256(changed.content).digest()
    assert changed.token_count > artifact.token_count
    assert memory.get(artifact.artifact_id).text == "second, and longer"
    with pytest.raises(ConstraintViolation):
        memory.storage.artifacts.update(artifact.artifact_id, content_hash=bytes(32))
    assert memory.verify() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_retention_in_a_forked_child_is_refused_at_once(backend: Any, start: Any) -> None:  # design 4
    memory = backend.open()
    start(memory)
    with memory._engine.behind._condition:  # as if the writing thread were at it while the process forked
        child = os.fork()
        if child == 0:
            code = 1
            try:
                memory.maintain()
            except Unavailable as error:
                code = 0 if error.context["reason"] == "forked" else 2
            finally:
                os._exit(code)
    until = time.monotonic() + 10
    ended = (0, 0)
    while not ended[0] and time.monotonic() < until:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[0] == child
    assert os.waitstatus_to_exitcode(ended[1]) == 0


@pytest.mark.parametrize("durability", ["commit", "group"])
def test_calls_that_closing_overtakes_end_with_a_typed_error(
    backend: Any, monkeypatch: Any, durability: str
) -> None:  # design 10
    store = backend.store(storage__durability=durability)
    check, asked, closed = store._check_open, threading.Semaphore(0), threading.Event()

    def overtaken() -> None:
        check()
        asked.release()
        closed.wait(10)

    monkeypatch.setattr(store, "_check_open", overtaken)
    ends: list[BaseException | None] = []

    def read() -> None:
        with store.read() as session:
            session.run(store.plans["turn"].count, ())

    def write() -> None:
        store.write(lambda uow: uow.select("change.bounds"))

    def hurry() -> None:
        store.write(lambda uow: uow.select("change.bounds"), deadline_ms=5_000)

    def run(call: Any) -> None:
        try:
            call()
            ends.append(None)
        except BaseException as error:
            ends.append(error)

    calls = [read, read, write, hurry, store.facts]
    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for _ in calls:
        assert asked.acquire(timeout=10)
    monkeypatch.setattr(store, "_check_open", check)
    store.close()
    closed.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [type(end) for end in ends] == [Unavailable] * len(calls)


def test_a_reader_that_closing_overtakes_gives_its_connection_back_closed(backend: Any) -> None:
    store = backend.store()
    with store.read() as session:
        session.run(store.plans["turn"].count, ())
        store.close()
    assert session.closed


def test_an_opening_that_fails_leaves_no_thread(backend: Any, monkeypatch: Any) -> None:
    settings = backend.config(embedding__embed__note="behind", resident__feed_poll_ms=10)
    backend.open(settings).close()
    before = set(threading.enumerate())

    def broken(*_: Any, **__: Any) -> None:
        raise StorageError("planted")

    monkeypatch.setattr("caliber.engine.engine.LockService", broken)
    with pytest.raises(StorageError, match="planted"):
        backend.open(settings)
    assert set(threading.enumerate()) <= before
