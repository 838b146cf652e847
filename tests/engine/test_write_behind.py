"""Writes that reads leave behind: each once and in time; one that cannot be written is set aside and stops no other."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from support.configs import USER
from support.inspection import inspect, replaced
from support.threads import no_new_threads
from support.waits import until

from caliber.context.record.log import WindowLog
from caliber.engine.background import PeriodicTask
from caliber.engine.write_behind import QUEUE_MAX, WriteBehind
from caliber.model.errors import Conflict, InvalidValue, Unavailable
from caliber.model.events import EventType
from caliber.model.knowledge import NOBODY
from caliber.search.opening import SearchEngine

LONE = "caf\ud83d"
"""Half an emoji: a string that is no text."""


@pytest.fixture
def memory(backend: Any) -> Any:
    return backend.open(write_behind__shutdown_ms=2_000)


def errors(memory: Any) -> list[dict[str, Any]]:
    return [event.payload for event in memory.storage.events.all() if event.event_type == EventType.ERROR]


def test_an_entry_that_cannot_be_written_stops_nothing(memory: Any, start: Any) -> None:
    agent = start(memory)
    agent.say("Zebedee Quux lives in Lisbon")
    before = memory.assemble_context(agent.trajectory_id).window_id
    behind = inspect(memory).behind
    engine = inspect(memory).engine
    usage, windows = engine.part(SearchEngine).usage, engine.part(WindowLog)
    behind.put((engine.log, None, engine.event(EventType.NOTIFY, payload={"text": LONE})))
    behind.put(*usage.of(LONE, [uuid.uuid4()], NOBODY.bytes, 0, 0))

    def unmakeable() -> Any:
        raise UnicodeEncodeError("utf-8", LONE, 3, 4, "no text")

    behind.put((windows, uuid.uuid4(), unmakeable))
    behind.put((engine.log, None, unmakeable))
    after = memory.assemble_context(agent.trajectory_id, query="Lisbon").window_id
    memory.flush()
    memory.flush()  # the errors too, which the first flush queued
    assert behind.set_aside == memory.admin.stats()["behind"]["set_aside"] == 4
    told = [error for error in errors(memory) if error["where"].startswith("write-behind")]
    assert len(told) == 4, "each once"
    assert behind.waiting() == 0
    assert memory.admin.check() == []
    for window_id in (before, after):
        assert memory.explain(window_id)
    memory.forget(texts=("Zebedee Quux",))
    memory.close()


def test_what_the_store_cannot_take_now_is_kept(memory: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = start(memory)
    agent.say("Zebedee Quux lives in Lisbon")
    memory.flush()
    write, store = inspect(memory).store.write, inspect(memory).store

    def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable("the disk is full", reason="full", retryable=False)

    monkeypatch.setattr(store, "write", refuse)
    window = memory.assemble_context(agent.trajectory_id)
    with pytest.raises(Unavailable, match="the disk is full"):
        memory.flush()
    monkeypatch.setattr(store, "write", write)
    memory.flush()
    assert inspect(memory).behind.set_aside == 0
    assert memory.storage.context_windows.get(window.window_id) is not None


class Failing:
    """A clock that cannot be read for a while."""

    def __init__(self) -> None:
        self.gone = False

    def now_us(self) -> int:
        return 2**63 if self.gone else 1_700_000_000_000_000


def test_a_clock_that_fails_for_a_while_ends_no_thread(backend: Any, start: Any) -> None:
    clock = Failing()
    memory = backend.open(write_behind__shutdown_ms=2_000, clock=clock)
    agent = start(memory)
    agent.say("Zebedee Quux lives in Lisbon")
    memory.assemble_context(agent.trajectory_id)
    memory.flush()
    behind = inspect(memory).behind
    clock.gone = True
    engine = inspect(memory).engine
    runs: list[int] = []

    def task() -> None:
        runs.append(1)
        engine.clock.now_us()

    periodic = PeriodicTask("test", task, every_ms=5, failed=engine.record_error)
    periodic.start()
    made = []

    def notice() -> Any:
        made.append(1)
        return engine.event(EventType.NOTIFY, payload={"kept": True})

    behind.put((engine.log, None, notice))
    until(lambda: len(made) > 1 and len(runs) > 1)  # tried again, both
    clock.gone = False
    before = len(runs)
    until(lambda: len(runs) > before + 1)
    periodic.stop()
    memory.assemble_context(agent.trajectory_id)
    memory.flush()
    assert behind.set_aside == 0
    assert [event.payload for event in memory.storage.events.all() if event.payload.get("kept")] == [{"kept": True}]
    assert engine.unrecorded_errors
    clock.gone = True
    for call in (
        lambda: agent.say("hello"),
        lambda: agent.note("hello"),
        lambda: memory.assemble_context(agent.trajectory_id),
        lambda: memory.agents.locks.acquire("vault", holder="agent:a"),
        lambda: memory.start_trajectory("goal", initiator=USER),
    ):
        with pytest.raises(InvalidValue, match="now_us"):
            call()
    clock.gone = False
    memory.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda m, a: m.assemble_context(a.trajectory_id, query=LONE),
        lambda m, a: m.search(LONE),
        lambda m, a: m.append_turn(a.scope_id, role="user", content=LONE),
        lambda m, a: m.append_turn(a.scope_id, role="user", content="x", name=LONE),
        lambda m, a: m.start_trajectory(LONE, initiator=USER),
        lambda m, a: m.add_note(entity=LONE, entity_type="t", note_type="fact", content="c", confidence=1.0),
        lambda m, a: m.add_note(entity="e", entity_type="t", note_type="fact", content=LONE, confidence=1.0),
        lambda m, a: m.complete_trajectory(a.trajectory_id, status="success", summary=LONE),
    ],
)
def test_what_is_no_text_is_refused_at_every_door(memory: Any, start: Any, call: Any) -> None:
    agent = start(memory)
    with pytest.raises(InvalidValue):
        call(memory, agent)
    memory.flush()
    assert inspect(memory).behind.set_aside == 0


def test_a_failure_is_recorded_without_waiting_for_room(
    file_backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are recorded on threads that may hold the writer, which alone can make room in a full queue."""
    monkeypatch.setattr("caliber.engine.write_behind.QUEUE_MAX", 4)
    memory = file_backend.open(embedding_provider=None)
    engine, agent = inspect(memory).engine, start(memory)
    memory.flush()
    with inspect(engine).writer.exclusive():
        for _ in range(20):
            engine.record_error("somewhere", Conflict(entity_type="x", id="y", reason="z"))
    assert engine.unrecorded_errors >= 1
    memory.flush()
    assert len(errors(memory)) + engine.unrecorded_errors == 20
    assert memory.admin.stats()["behind"]["unrecorded_errors"] == engine.unrecorded_errors
    assert memory.get(agent.trajectory_id)


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

        patch.setattr(inspect(memory).store, "write", broken)
        with pytest.raises(Unavailable, match="write-behind failed"):
            inspect(memory).behind.flush()
    memory.flush()
    assert memory.storage.context_windows.get(window.window_id)


def test_what_a_read_leaves_behind_is_counted_once_also_when_that_fails_half_way(backend: Any, start: Any) -> None:
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    note = start(memory).note("counted").note_id
    memory.flush()
    behind, fails = inspect(memory).behind, [True]

    def breaks() -> list[tuple[str, Any]]:
        if fails:
            raise RuntimeError("planted")
        return [("note", note)]

    for owners in (breaks, lambda: [("note", note)]):
        behind.put((inspect(memory).part(SearchEngine).usage, None, (owners, NOBODY.bytes, 0, 1)))
    with pytest.raises(Unavailable, match="write-behind failed"):
        behind.flush()
    fails.clear()
    behind.flush()
    assert memory.storage.usages.get(note).access_count == 2


def test_flushing_does_not_wait_for_what_others_go_on_queueing(backend: Any, start: Any) -> None:
    """While each batch is written somebody queues more: the queue never runs dry, and what was there before is kept."""
    memory = backend.open(write_behind__flush_interval_ms=60_000)
    agent = start(memory)
    memory.flush()
    window = memory.assemble_context(agent.trajectory_id)
    behind = inspect(memory).behind
    batches: list[bool] = []

    class Store:
        def write(self, work: Any) -> Any:
            batches.append(True)
            if len(batches) < 100:  # somebody who never stops, except for this test to end
                behind.put((inspect(memory).engine.log, None, inspect(memory).engine.event("notify")))
            return inspect(memory).store.write(work)

    with replaced(behind, "store", Store()):
        behind.flush()
        assert memory.storage.context_windows.get(window.window_id)
        assert len(batches) < 10
        memory.flush()
        memory.close()
    assert behind.waiting() == 0, "closing waits for everything"


def test_uses_of_one_record_fill_no_queue_while_nothing_can_be_written(backend: Any, start: Any) -> None:
    """Readers of one record go on, however long the store cannot be written."""
    memory = backend.open(write_behind__trace_enabled=False)
    note, behind = start(memory).note("read often").note_id, inspect(memory).behind
    memory.flush()
    stuck, writing = threading.Event(), threading.Event()

    class Store:
        def write(self, work: Any) -> Any:
            writing.set()
            assert stuck.wait(60)
            return inspect(memory).store.write(work)

    with replaced(behind, "store", Store()):
        memory.get(note)
        assert writing.wait(60)
        for _ in range(QUEUE_MAX + 500):
            memory.get(note)
        assert behind.waiting() < QUEUE_MAX // 2
        stuck.set()
        memory.flush()
    assert memory.storage.usages.get(note).access_count == QUEUE_MAX + 501


def test_entries_wait_while_no_thread_can_be_started(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.engine.write_behind.QUEUE_MAX", 4)
    engine = inspect(memory).engine
    behind = WriteBehind(engine.store, flush_interval_ms=10, failed=lambda *_: None)

    def put(number: int) -> None:
        behind.put((engine.log, None, engine.event(EventType.NOTIFY, payload={"number": number})))

    with no_new_threads():
        for number in range(4):
            put(number)
        for call in (lambda: put(4), behind.flush, lambda: behind.flush(50)):
            with pytest.raises(Unavailable, match="refuses another thread"):
                call()
        assert behind.waiting() == 4
    put(5)
    behind.close(2_000)
    numbers = [event.payload["number"] for event in memory.storage.events.all() if "number" in event.payload]
    assert numbers == [0, 1, 2, 3, 5]
