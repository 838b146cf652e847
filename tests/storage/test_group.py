"""Writers that share a commit: order, failures, interrupts, grouping. Source: design section 4, issue: item 6."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from contract.entities import plain
from contract.world import count
from support.configs import USER
from support.databases import DSN
from support.evidence import seed
from support.inspection import inspect, replaced
from support.interrupted import every_line, in_files
from support.providers import CountingEmbeddings
from support.storage.crowds import Crowd, Gate
from support.waits import until

from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.embedding.embedding_target import StoreVectorCache
from caliber.model import FixedClock
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, StorageError, Unavailable
from caliber.schema.relations import NOTE, TRAJECTORY
from caliber.storage.write import group
from caliber.storage.write.unit_of_work import UnitOfWork

MAIN = threading.main_thread()


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Restore interrupts for the test: the shell may have started it with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def insert(uow: UnitOfWork) -> int | None:
    return uow.insert(TRAJECTORY, plain(TRAJECTORY))


def assert_free(store: Any) -> None:
    """The lead is nobody's, and the next write gets it."""
    until(lambda: inspect(store).leader is None and not inspect(store).waiting)  # workers of a handle write, too
    with within(20):
        store.write(insert)


# --- order ---------------------------------------------------------------------------------------------


def test_whoever_is_done_returns_while_the_next_commit_is_under_way(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "GROUP_MAX_BATCH", 4)
    store = backend.store(storage__durability="group")
    inside, go = threading.Event(), threading.Event()

    def slow(uow: UnitOfWork) -> str:
        inside.set()
        go.wait(30)
        return "slow"

    gate, crowd = Gate(store), Crowd(store)
    crowd.line_up([insert, insert, insert, insert, slow])
    gate.open()
    assert inside.wait(30)
    until(lambda: len(crowd.ends) == 4)
    assert all(isinstance(crowd.ends[at], int) for at in range(4))
    go.set()
    crowd.join()
    assert crowd.ends[4] == "slow"


def test_first_come_first_served(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "GROUP_MAX_BATCH", 2)
    store = backend.store(storage__durability="group")
    served: list[int] = []
    gate, crowd = Gate(store), Crowd(store)
    crowd.line_up([lambda uow, at=at: served.append(at) for at in range(7)])  # type: ignore[misc]
    before = store.facts()["commits"] if backend.adapter == "postgres" else inspect(store).writer.commits
    gate.open()
    crowd.join()
    assert served == list(range(7))
    assert inspect(store).writer.commits - before == 1 + 4, "two at a time"


def test_who_gave_up_is_not_written_and_holds_nobody_up(backend: Any) -> None:
    store = backend.store(storage__durability="group")
    gate, crowd = Gate(store), Crowd(store)
    crowd.line_up([insert])
    with pytest.raises(Unavailable), within(0.03):
        store.write(insert)
    crowd.line_up([insert], before=1)
    gate.open()
    crowd.join()
    assert count(store, TRAJECTORY) == 2
    assert_free(store)


def test_lead_that_comes_too_late_is_handed_on(backend: Any) -> None:
    """A deadline that passes in the very moment in which the lead is handed to the thread."""
    store = backend.store(storage__durability="group")
    writer = inspect(store).writer
    gate, crowd = Gate(store), Crowd(store)

    def after_all(request: Any) -> bool:
        crowd.line_up([insert], before=1)
        gate.open()
        until(lambda: inspect(store).leader is request)
        return bool(withdraw(request))

    with replaced(writer, "withdraw", after_all, once=True) as withdraw, pytest.raises(Unavailable), within(0.03):
        store.write(insert)
    crowd.join()
    assert isinstance(crowd.ends[0], int)
    assert count(store, TRAJECTORY) == 1
    assert_free(store)


# --- failures ------------------------------------------------------------------------------------------


def test_one_that_fails_leaves_the_others_their_shared_commit(backend: Any) -> None:
    store = backend.store(storage__durability="group")
    taken = plain(NOTE)
    store.write(lambda uow: uow.insert(NOTE, taken))

    def fail(uow: UnitOfWork) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        uow.insert(NOTE, taken)

    gate, crowd = Gate(store), Crowd(store)
    crowd.line_up([insert, insert, fail, insert, insert, insert])
    before = inspect(store).writer.commits
    gate.open()
    crowd.join()
    assert [type(crowd.ends[at]).__name__ for at in range(6)] == ["int", "int", "Conflict", "int", "int", "int"]
    assert inspect(store).writer.commits - before == 1 + 1
    assert count(store, TRAJECTORY) == 5


def test_error_that_is_no_exception_is_that_of_the_work(backend: Any) -> None:
    """SystemExit and the like reach the thread whose work raised them, and no other."""
    store = backend.store(storage__durability="group")

    def leave(uow: UnitOfWork) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        raise SystemExit(3)

    gate, crowd = Gate(store), Crowd(store)
    crowd.line_up([insert, leave, insert])
    gate.open()
    crowd.join()
    assert [type(crowd.ends[at]).__name__ for at in range(3)] == ["int", "SystemExit", "int"]
    assert count(store, TRAJECTORY) == 2
    assert_free(store)


# --- interrupts ----------------------------------------------------------------------------------------


@pytest.fixture
def leading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this thread lead others, as if what interrupts it had been thrown into one where no handlers run."""
    monkeypatch.setattr("caliber.storage.write.group.may_be_interrupted", lambda: False)


def test_main_thread_runs_nobody_elses_work(backend: Any) -> None:
    """A signal's handler may raise there at any moment, and what it raises cannot be told from an error of the work."""
    store = backend.store(storage__durability="group")
    ran_by: list[threading.Thread] = []

    def companion(uow: UnitOfWork) -> int | None:
        ran_by.append(threading.current_thread())
        return uow.insert(TRAJECTORY, plain(TRAJECTORY))

    crowd = Crowd(store)
    before = inspect(store).writer.commits
    end = crowd.led_by_me(insert, [companion] * 3)
    assert isinstance(end, int)
    assert all(isinstance(crowd.ends[at], int) for at in range(3)), crowd.ends
    assert len(ran_by) == 3
    assert MAIN not in ran_by
    assert inspect(store).writer.commits - before == 1 + 1, "it still shares their commit"
    assert_free(store)


@pytest.mark.parametrize("stands", ["first", "behind others"])
def test_interrupt_of_the_main_thread_at_any_line_is_its_own(backend: Any, stands: str) -> None:
    """At every line of standing in line, leading, handing on and leaving: companions write once, and all go on."""
    store = backend.store(storage__durability="group")
    store.write(insert)
    stored = count(store, TRAJECTORY)
    step = 1 if backend.adapter == "sqlite" else 3
    for lines in every_line(in_files("storage/write/group.py"), step=step):
        crowd, mine = Crowd(store), []

        def own(uow: UnitOfWork, crowd: Crowd = crowd) -> int | None:
            if threading.current_thread() is MAIN and stands == "first":
                crowd.line_up([insert] * 2)
            return insert(uow)

        gate = Gate(store) if stands != "first" else None
        over = threading.Event()

        def follow(crowd: Crowd = crowd, gate: Any = gate, over: Any = over) -> None:
            until(lambda: over.is_set() or inspect(store).waiting > 0)
            crowd.start([insert] * 2)
            gate.open()

        helper = threading.Thread(target=follow) if gate is not None else None
        if helper is not None:
            helper.start()
        with lines.counted():
            mine.append(store.write(own))
        over.set()
        if helper is not None:
            helper.join(30)
        crowd.join()
        assert all(isinstance(end, int) for end in crowd.ends.values()), crowd.ends
        now = count(store, TRAJECTORY)
        assert now - stored - len(crowd.ends) - len(mine) in ((0,) if mine else (0, 1))
        stored = now
        assert inspect(store).leader is None
        assert not inspect(store).waiting


def interrupted(backend: Any, patch: pytest.MonkeyPatch, store: Any, *, is_sent: bool = True) -> None:
    """Interrupt the main thread's COMMIT: as soon as it is answered, or before it is sent."""
    kind, name = (
        (PgConnection, "exchange") if backend.adapter == "postgres" else (type(inspect(store).connection), "command")
    )
    run = getattr(kind, name)

    def around(self: Any, *asked: Any) -> Any:
        if threading.current_thread() is not MAIN or "COMMIT" not in str(getattr(asked[-1], "arguments", asked[-1])):
            return run(self, *asked)
        results = run(self, *asked) if is_sent else None
        signal.raise_signal(signal.SIGINT)
        return results

    patch.setattr(kind, name, around)


@pytest.mark.usefixtures("leading")
def test_interrupt_as_the_commit_is_done_leaves_everybody_done(backend: Any) -> None:
    memory = backend.open(storage__durability="group")
    store = inspect(memory).store
    with pytest.MonkeyPatch.context() as patch:
        interrupted(backend, patch, store)
        crowd = Crowd(store)
        end = crowd.led_by_me(insert, [insert] * 3)
    assert isinstance(end, KeyboardInterrupt)
    assert all(isinstance(crowd.ends[at], int) for at in range(3)), crowd.ends
    assert count(store, TRAJECTORY) == 4
    assert_free(store)
    assert memory.admin.verify() == []


@pytest.mark.usefixtures("leading")
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
@pytest.mark.parametrize("outcome", ["asked for, and interrupted again", "unknown", "not sent"])
def test_interrupt_of_a_commit_is_the_threads_own(backend: Any, outcome: str) -> None:
    """Companions hear that nobody knows the outcome of a COMMIT, and write again where it was not sent."""
    store = backend.store(storage__durability="group")

    def asked(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        interrupted(backend, patch, store, is_sent=outcome != "not sent")
        if outcome == "unknown":
            patch.setattr("caliber.backends.postgres.writing.writer.was_committed", lambda *_: None)
        elif outcome != "not sent":
            stack.enter_context(replaced(inspect(store).writer, "cut_off", asked))
        crowd = Crowd(store)
        end = crowd.led_by_me(insert, [insert] * 3)
    assert isinstance(end, KeyboardInterrupt)
    if outcome == "not sent":
        assert all(isinstance(crowd.ends[at], int) for at in range(3)), crowd.ends
        assert count(store, TRAJECTORY) == 3
    else:
        assert {crowd.ends[at].context["reason"] for at in range(3)} == {"outcome unknown"}, crowd.ends
        assert count(store, TRAJECTORY) == 4, "written once: the COMMIT did stand"
    assert_free(store)


# One that comes in a destructor is swallowed by Python itself, with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_harm_nobody_else(backend: Any) -> None:
    """A thread that leads again and again is interrupted at random; companions lose nothing and nobody hangs."""
    memory = backend.open(storage__durability="group")
    store = inspect(memory).store
    store.write(insert)
    written: dict[int, int] = dict.fromkeys(range(4), 0)
    failed: list[BaseException] = []
    stop = threading.Event()
    armed = [False]  # an Event has a lock, and the handler would wait for it on the very thread that holds it
    rng = random.Random(seed())

    def companion(at: int) -> None:
        while not stop.is_set():
            try:
                with within(30):
                    store.write(insert)
                written[at] += 1
            except BaseException as error:
                failed.append(error)
                return

    def interrupt() -> None:
        while not stop.wait(rng.uniform(0.0005, 0.006)):
            if armed[0]:
                signal.pthread_kill(MAIN.ident or 0, signal.SIGUSR1)

    def hit(*_: Any) -> None:
        if armed[0]:
            armed[0] = False  # one at a time
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, hit)
    threads = [threading.Thread(target=companion, args=(at,)) for at in written]
    threads.append(threading.Thread(target=interrupt))
    own, hits = 0, 0
    try:
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while hits < 25 and time.monotonic() < until:
            try:
                armed[0] = True
                with within(30):
                    store.write(insert)
                armed[0] = False
                own += 1
            except KeyboardInterrupt:
                hits += 1
    finally:
        armed[0] = False
        stop.set()
        for thread in threads:
            thread.join(60)
        signal.signal(signal.SIGUSR1, previous)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    assert failed == []
    assert hits >= 25
    stored = count(store, TRAJECTORY)
    least = 1 + own + sum(written.values())
    assert least <= stored <= least + hits, "what was acknowledged is there once, and only what was interrupted may be"
    assert_free(store)
    assert memory.admin.verify() == []


# --- on PostgreSQL -------------------------------------------------------------------------------------


def test_steps_of_a_batch_travel_together(pg: Any) -> None:
    """Eight appended turns in one transaction cost the round trips of one."""
    memory = pg.open(
        storage__durability="group", embedding__embed__turn="off", write_behind__trace_enabled=False
    )  # so that nobody else stands in line
    store = inspect(memory).store
    scopes = []
    for _ in range(8):
        scopes.append(memory.current_scope(memory.start_trajectory("goal", initiator=USER).trajectory_id))
        for text in ("first", "second", "third"):
            memory.append_turn(scopes[-1].scope_id, role="user", content=text)
    trips: list[int] = []
    exchange = PgConnection.exchange

    def counted(self: Any, *commands: Any) -> Any:
        trips.append(len(commands))
        return exchange(self, *commands)

    memory.flush()
    gate = Gate(store)
    ends: list[Any] = []

    def append(scope: Any) -> None:
        ends.append(memory.append_turn(scope.scope_id, role="user", content="together"))

    threads = [threading.Thread(target=append, args=(scope,)) for scope in scopes]
    for thread in threads:
        thread.start()
    until(lambda: inspect(store).waiting == 8)
    before = inspect(store).writer.commits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PgConnection, "exchange", counted)
        gate.open()
        for thread in threads:
            thread.join(30)
    assert inspect(store).writer.commits - before == 1 + 1
    reserving = sum(1 for size in trips if size == 1)
    assert len(trips) - reserving <= 4, "the gate's, the step, and the commit"
    assert sorted(turn.turn_number for turn in ends) == [3] * 8
    assert memory.admin.verify() == []


def locks_nothing_before(pg: Any, memory: Any, trajectory_id: Any, write: Callable[[], Any]) -> None:
    """Assert that ``write`` waits for a locked trajectory without holding any row of what belongs to it."""
    schema = inspect(memory).schema
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(write())
        except CaliberError as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    with psycopg.connect(os.environ[DSN]) as deleter:
        deleter.execute(f"SELECT 1 FROM {schema}.trajectory WHERE trajectory_id = %s FOR UPDATE", [trajectory_id])
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND %s = ANY(pg_blocking_pids(pid))"
        pid = deleter.info.backend_pid
        with psycopg.connect(os.environ[DSN], autocommit=True) as watcher:
            until(lambda: watcher.execute(waits, [pid]).fetchone()[0] > 0)  # type: ignore[index]
        for table in ("scope", "artifact", "turn"):
            deleter.execute(
                f"SELECT 1 FROM {schema}.{table} WHERE trajectory_id = %s FOR UPDATE NOWAIT", [trajectory_id]
            )
    thread.join(30)
    assert ends
    assert not isinstance(ends[0], BaseException), ends


@pytest.mark.parametrize("durability", ["commit", "group"])
def test_trajectory_is_locked_before_what_belongs_to_it(pg: Any, durability: str) -> None:
    """As deleting one does: so nobody waits in a circle for somebody who deletes it."""
    clock = FixedClock()
    memory = pg.open(storage__durability=durability, clock=clock)
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    same = {"artifact_type": "fact", "content": "kept as long as the scope", "extraction_method": "explicit"}
    memory.append_turn(scope.scope_id, role="user", content="first")
    memory.create_artifact(scope.scope_id, **same, ttl=1)
    clock.advance(ms=5)
    for write in (
        lambda: memory.append_turn(scope.scope_id, role="user", content="second"),
        lambda: memory.create_artifact(scope.scope_id, **same),
        lambda: memory.create_artifact(scope.scope_id, **{**same, "content": "other"}, ttl="scope"),
        lambda: memory.storage.scopes.close(scope.scope_id),
        lambda: memory.open_scope(task.trajectory_id),
    ):
        memory.flush()  # the worker that embeds locks what it embeds, and nothing else
        locks_nothing_before(pg, memory, task.trajectory_id, write)
    assert memory.admin.verify() == []


def test_worker_that_embeds_waits_for_nobodys_companions(pg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps a record locked until its commit: who waits for that record must not wait for a whole batch."""
    inside, go = threading.Event(), threading.Event()

    def held(self: StoreVectorCache, items: object, mark: int) -> None:
        inside.set()
        go.wait(30)

    monkeypatch.setattr(StoreVectorCache, "put_many", held)  # the last thing before vectors are written
    memory = pg.open(storage__durability="group", embedding_provider=CountingEmbeddings())
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="embedded while another writes")
    assert inside.wait(30)
    gate = Gate(inspect(memory).store)
    go.set()
    until(lambda: memory.admin.stats()["behind"]["embeddings_waiting"] == 0)
    gate.open()
    assert memory.admin.verify() == []


def test_an_interrupt_in_one_thread_is_no_interrupt_in_another(backend: Any, start: Any) -> None:
    memory = backend.open(storage__durability="group")
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

    first = threading.Thread(target=run, args=("first", lambda: inspect(memory).write(interrupted)))
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
