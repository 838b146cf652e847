"""Deadlines hold for what waits behind a reader, and closing takes its time whatever the caller's is."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import apsw
import pytest
from support.configs import USER
from support.deadlines import bounded
from support.inspection import inspect, replaced
from support.threads import begin
from support.waits import exit_code

from caliber.backends.postgres.connecting.pool import Pool
from caliber.model import Principal
from caliber.model.deadline import within
from caliber.model.errors import Unavailable


def test_a_full_queue_holds_no_call_beyond_its_deadline(file_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.engine.write_behind.QUEUE_MAX", 4)
    memory = file_backend.open(storage__busy_timeout_ms=30_000, embedding_provider=None, write_behind__shutdown_ms=100)
    task = memory.start_trajectory("goal", initiator=USER)
    memory.append_turn(memory.current_scope(task.trajectory_id).scope_id, role="user", content="hello there")
    memory.flush()
    other = apsw.Connection(file_backend.path)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()

    def many() -> None:
        for _ in range(20):  # the thread takes some, and waits for the lock
            bounded(300, memory.assemble_context, task.trajectory_id)

    with pytest.raises(Unavailable, match="queue was full") as caught:
        many()
    took_s = time.monotonic() - began
    other.execute("ROLLBACK")
    other.close()
    assert caught.value.context["reason"] == "timeout"
    assert took_s < 20
    memory.flush()


def test_what_waits_for_the_queue_keeps_its_deadline(file_backend: Any) -> None:
    memory = file_backend.open(storage__busy_timeout_ms=20_000, embedding_provider=None)
    memory.agents.register("bot", type="worker")
    task = memory.start_trajectory("goal", initiator=USER)
    memory.flush()
    other = apsw.Connection(file_backend.path)
    other.execute("BEGIN IMMEDIATE")
    memory.assemble_context(task.trajectory_id)  # its window waits for the other writer
    bot, took_s = memory.acting_as(Principal.agent("bot")), {}
    for name, call in {
        "forget": lambda: bounded(200, memory.forget, user="ana"),
        "maintain": lambda: bounded(200, memory.admin.maintain),
        "lock": lambda: bounded(200, bot.agents.locks.acquire, "file", wait_ms=9_000),
    }.items():
        began = time.monotonic()
        with pytest.raises(Unavailable):
            call()
        took_s[name] = time.monotonic() - began
    other.execute("ROLLBACK")
    other.close()
    assert max(took_s.values()) < 6, took_s


def test_a_close_under_a_deadline_that_passed_closes(file_backend: Any) -> None:
    memory = file_backend.open(embedding_provider=None)
    memory.start_trajectory("goal", initiator=USER)
    with within(0):
        memory.close()
    assert inspect(memory).released


def test_a_child_of_a_process_that_closes_closes_nothing(file_backend: Any) -> None:
    """Forked while another thread is inside ``close``, or after one that was interrupted."""
    memory = file_backend.open(embedding_provider=None)
    engine = inspect(memory).engine
    held, go = threading.Event(), threading.Event()

    class Slow:
        """A worker of the tenant that is not done when it is closed."""

        def close(self) -> None:
            held.set()
            go.wait(60)

    engine.follow(Slow())
    thread = begin(memory.close)
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            memory.close()
            code = 0 if engine.state == "forked" and not inspect(memory).released else 2
        finally:
            os._exit(code)
    try:
        assert exit_code(child) == 0
    finally:
        go.set()
        thread.result(60)
    assert inspect(memory).released, "the parent went on"


class Connection:
    """Idle; its closing lets another thread take a connection meanwhile."""

    broken = silent = False
    deadline: float | None = None

    def __init__(self, beside: Any) -> None:
        self.beside, self.closed = beside, 0

    def close(self) -> None:
        self.closed += 1
        self.beside()


def test_a_pool_that_closes_drops_no_connection_unclosed() -> None:
    lent: list[Any] = []
    pool: Any = Pool(lambda _: None, size=2, timeout_ms=1_000)  # type: ignore[arg-type,return-value]

    def beside() -> None:
        if pool.idle:
            lent.append(pool.idle.pop())

    connections = [Connection(beside), Connection(beside)]
    pool.idle += connections
    pool.close()
    assert [connection.closed for connection in connections] == [1, 1]
    assert lent == []


@pytest.mark.parametrize("durability", ["commit", "group"])
def test_calls_that_closing_overtakes_end_with_a_typed_error(backend: Any, durability: str) -> None:  # design 10
    store = backend.store(storage__durability=durability)
    asked, closed = threading.Semaphore(0), threading.Event()

    def overtaken() -> None:
        check()
        asked.release()
        closed.wait(10)

    ends: list[BaseException | None] = []

    def read() -> None:
        with store.read() as session:
            session.run(store.plans["turn"].count, ())

    def write() -> None:
        store.write(lambda uow: uow.select("change.bounds"))

    def hurry() -> None:
        with within(5):
            store.write(lambda uow: uow.select("change.bounds"))

    def run(call: Any) -> None:
        try:
            call()
            ends.append(None)
        except BaseException as error:
            ends.append(error)

    calls = [read, read, write, hurry, store.facts]
    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    with replaced(store, "check_open", overtaken) as check:
        for thread in threads:
            thread.start()
        for _ in calls:
            assert asked.acquire(timeout=10)
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
