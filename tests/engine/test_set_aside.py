"""What a read leaves behind and cannot be written is set aside and recorded; it stops nothing else."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.configs import USER
from support.crowds import until

from caliber.context.record.log import WindowLog
from caliber.engine.background import PeriodicTask
from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.events import EventType
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
    behind = memory._engine.behind
    engine = memory._engine
    usage, windows = engine.part(SearchEngine).usage, engine.part(WindowLog)
    behind.put((engine.log, None, engine.event(EventType.NOTIFY, payload={"text": LONE})))
    behind.put(*usage.of(LONE, [uuid.uuid4()], 0))

    def unmakeable() -> Any:
        raise UnicodeEncodeError("utf-8", LONE, 3, 4, "no text")

    behind.put((windows, uuid.uuid4(), unmakeable))
    behind.put((engine.log, None, unmakeable))
    after = memory.assemble_context(agent.trajectory_id, query="Lisbon").window_id
    memory.flush()
    memory.flush()  # the errors too, which the first flush queued
    assert behind.set_aside == memory.stats()["behind"]["set_aside"] == 4
    told = [error for error in errors(memory) if error["where"].startswith("write-behind")]
    assert len(told) == 4, "each once"
    assert behind.waiting() == 0
    assert memory.storage.check() == []
    for window_id in (before, after):
        assert memory.explain(window_id)
    memory.forget(texts=("Zebedee Quux",))
    memory.close()


def test_what_the_store_cannot_take_now_is_kept(memory: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = start(memory)
    agent.say("Zebedee Quux lives in Lisbon")
    memory.flush()
    write, store = memory._engine.store.write, memory._engine.store

    def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable("the disk is full", reason="full", retryable=False)

    monkeypatch.setattr(store, "write", refuse)
    window = memory.assemble_context(agent.trajectory_id)
    with pytest.raises(Unavailable, match="the disk is full"):
        memory.flush()
    monkeypatch.setattr(store, "write", write)
    memory.flush()
    assert memory._engine.behind.set_aside == 0
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
    behind = memory._engine.behind
    clock.gone = True
    engine = memory._engine
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
        lambda: memory.agents.acquire("vault", holder="agent:a"),
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
    assert memory._engine.behind.set_aside == 0
