"""Many writers at once: shared commits, failures that stay with whoever failed, deadlines. Source: design section 4."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from contract.entities import plain
from contract.world import count, together
from support.configs import USER
from support.inspection import inspect
from support.storage.crowds import Gate
from support.waits import until

import caliber
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, Conflict, InputError, Unavailable
from caliber.model.trajectory import OutcomeStatus
from caliber.schema.relations import TRAJECTORY
from caliber.trajectory import lifecycle

DURABILITIES = ("commit", "group")


def test_group_shares_one_commit(backend: Any) -> None:
    store = backend.store(storage__durability="group")
    before = store.facts()["commits"]
    gate = Gate(store)
    barrier = threading.Barrier(9)

    def write() -> None:
        barrier.wait(30)
        store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    until(lambda: inspect(store).waiting == 8)
    gate.open()
    for thread in threads:
        thread.join(30)
    assert store.facts()["commits"] - before == 2, "the gate's commit and one for all eight"
    assert count(store, TRAJECTORY) == 8
    with store.read() as session:
        assert session.run(store.statements["change.bounds"], ()) == [(1, 1)], "one change record for one commit"


def test_commit_durability_commits_each_alone(backend: Any) -> None:
    store = backend.store(storage__durability="commit")
    before = store.facts()["commits"]
    together(6, lambda at: store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY))))
    assert store.facts()["commits"] - before == 6


@pytest.mark.parametrize("durability", DURABILITIES)
def test_deadline_that_is_none_is_refused_before_anything_is_written(durability: str, backend: Any) -> None:
    # issue, Bad input: a negative budget of time
    memory = backend.open(storage__durability=durability)
    memory.start_trajectory("goal", initiator=USER)
    for deadline in (-1, 2**70, "soon", 1.5, True, None):
        with pytest.raises(InputError), caliber.deadline(deadline):  # type: ignore[arg-type]
            memory.start_trajectory("goal", initiator=USER)
    with caliber.deadline(2**63 - 1):
        memory.start_trajectory("goal", initiator=USER)
    assert memory.storage.trajectories.count() == 2


def test_short_deadline_of_one_does_not_fail_its_group(file_backend: Any) -> None:
    """The leader of a group must not bring the others under its own deadline."""
    import apsw

    store = file_backend.store(storage__durability="group", storage__busy_timeout_ms=20_000)
    outcomes: dict[str, Any] = {}

    def write(name: str, seconds: float | None) -> None:
        try:
            with within(seconds):
                outcomes[name] = store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
        except CaliberError as error:
            outcomes[name] = error

    threads = []
    other = apsw.Connection(file_backend.path)
    with inspect(store).writer.exclusive():
        for number, (name, seconds) in enumerate({"hurried": 1.0, "patient": None}.items(), start=1):
            threads.append(threading.Thread(target=write, args=(name, seconds)))
            threads[-1].start()
            until(lambda number=number: inspect(store).waiting == number)
        other.execute("BEGIN IMMEDIATE")
    threads[0].join(2)
    other.execute("ROLLBACK")
    for thread in threads:
        thread.join(60)
    other.close()
    assert isinstance(outcomes["patient"], int), outcomes
    if isinstance(outcomes["hurried"], CaliberError):
        assert isinstance(outcomes["hurried"], Unavailable)
        assert outcomes["hurried"].retryable
    assert count(store, TRAJECTORY) == sum(isinstance(outcome, int) for outcome in outcomes.values())


@pytest.mark.parametrize("call", ["window", "search", "consolidate"])
def test_deadline_holds_while_our_own_writer_waits_for_another_process(file_backend: Any, call: str) -> None:
    """Writes behind reads wait for the lock of another process: a call with a deadline does not wait for them."""
    import apsw

    memory = file_backend.open(storage__busy_timeout_ms=30_000, embedding_provider=None)
    task = memory.start_trajectory("goal", initiator=USER)
    memory.append_turn(memory.current_scope(task.trajectory_id).scope_id, role="user", content="hello there")
    memory.flush()
    calls: dict[str, Callable[[], Any]] = {
        "window": lambda: memory.assemble_context(task.trajectory_id, consistency="latest"),
        "search": lambda: memory.search("hello", consistency="latest"),
        "consolidate": lambda: memory.consolidate_notes(task.trajectory_id),
    }
    other = apsw.Connection(file_backend.path)
    other.execute("BEGIN IMMEDIATE")
    memory.assemble_context(task.trajectory_id)
    until(lambda: inspect(memory).leader is not None)  # the window, which waits for the lock
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught, caliber.deadline(300):
        calls[call]()
    took_s = time.monotonic() - began
    other.execute("ROLLBACK")
    other.close()
    assert took_s < 15
    assert caught.value.context["reason"] == "timeout"
    assert caught.value.retryable
    memory.flush()


def test_idempotent_insert_under_concurrency_stores_one_row(backend: Any) -> None:
    # K-044: unique index and ON CONFLICT, never check-then-insert
    memory = backend.open(storage__durability="group")
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    same = {"artifact_type": "fact", "content": "the same", "extraction_method": "explicit"}
    artifacts = together(12, lambda at: memory.create_artifact(scope.scope_id, **same))
    assert len({artifact.artifact_id for artifact in artifacts}) == 1
    turns = together(
        12, lambda at: memory.append_turn(scope.scope_id, role="user", content="once", idempotency_key="k")
    )
    assert len({turn.turn_id for turn in turns}) == 1
    note = {"entity": "e", "entity_type": "t", "note_type": "fact", "content": "c", "confidence": 0.5}
    notes = together(12, lambda at: memory.add_note(**note))
    assert len({item.note_id for item in notes}) == 1
    other = together(12, lambda at: _other_content(memory, scope.scope_id, at))
    stored = [item for item in other if not isinstance(item, BaseException)]
    assert len(stored) == 1
    assert all(isinstance(item, Conflict) for item in other if isinstance(item, BaseException))
    assert memory.storage.turns.count() == 2


def _other_content(memory: Any, scope_id: Any, at: int) -> Any:
    return memory.append_turn(scope_id, role="user", content=f"content {at}", idempotency_key="shared")


def test_turns_of_many_threads_are_numbered_without_gaps(backend: Any) -> None:
    # C-028, C-473
    memory = backend.open(storage__durability="group")
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    together(8, lambda at: [memory.append_turn(scope.scope_id, role="user", content=f"{at}.{n}") for n in range(10)])
    turns = memory.storage.turns.list_by_scope(scope.scope_id)
    assert [turn.sequence for turn in turns] == list(range(80))
    assert sorted(turn.turn_number for turn in turns) == list(range(80))
    for at in range(8):
        own = [turn.text for turn in turns if turn.text.startswith(f"{at}.")]
        assert own == [f"{at}.{n}" for n in range(10)], "one thread's turns stay in its order"
    scopes = together(8, lambda at: memory.open_scope(trajectory.trajectory_id))
    assert sorted(item.sequence_number for item in scopes) == list(range(1, 9))
    assert memory.admin.verify() == []


# --- tasks that end at once ------------------------------------------------------------------------


def test_session_ends_with_the_last_of_trajectories_that_end_at_once(backend: Any) -> None:
    # C-013: neither saw the other as ended, and the session stayed open for ever
    memory = backend.open()
    session = memory.start_session(initiator=USER)
    tasks = []
    for at in range(3):
        task = memory.start_trajectory(f"task {at}", initiator=USER, session=session.session_id)
        memory.close_scope(memory.current_scope(task.trajectory_id).scope_id)
        tasks.append(task)
    done, go = threading.Event(), threading.Event()

    def finish(uow: Any, task: Any) -> None:
        lifecycle.finish_trajectory(uow, task.trajectory_id, status=OutcomeStatus.SUCCESS, summary="", notes=())

    def first(uow: Any) -> None:
        finish(uow, tasks[0])
        done.set()
        assert go.wait(30)

    threads = [threading.Thread(target=lambda: inspect(memory).write(first))]
    threads[0].start()
    assert done.wait(30)
    for task in tasks[1:]:
        threads.append(threading.Thread(target=lambda task=task: inspect(memory).write(lambda uow: finish(uow, task))))
        threads[-1].start()
    threads[-1].join(0.3)  # one that does not wait for the first is done by now
    go.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert memory.get(session.session_id).ended_at is not None
    assert memory.admin.verify() == []
