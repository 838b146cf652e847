"""Events that a principal may not read: hidden from subscribers, asyncio, the bus itself, the log of a trajectory.

Source: C-242 to C-244, M-118 to M-141; decision 0186.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspection import inspect
from support.memories import STEP

from caliber.aio import AsyncCaliber
from caliber.events import event_log
from caliber.events.bus import RemoteEvents
from caliber.model.access import AgentRole, Principal, PrincipalKind
from caliber.model.errors import Unavailable
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.references import EntityType

pytestmark = pytest.mark.databases("one")

WRITER = Principal(PrincipalKind.AGENT, "planner", AgentRole.ORCHESTRATOR)
READER = Principal(PrincipalKind.AGENT, "worker", AgentRole.EXECUTOR)
LIGHT = {"embedding_provider": None, "search__keyword__similar_words": "none", "policies": []}
NOTE = {"entity": "build", "entity_type": "project", "note_type": "fact", "confidence": 0.9}


def subjects(events: list[Event]) -> list[Any]:
    return [(event.event_type, event.subject_id) for event in events]


@pytest.mark.databases("all")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_of_a_note_hears_who_may_read_it(backend: Any, mode: str) -> None:
    memory = backend.open(**LIGHT, search__mode=mode)
    writer, reader = memory.acting_as(WRITER), memory.acting_as(READER)
    heard: dict[str, list[Event]] = {"admin": [], "writer": [], "reader": [], "kind": []}
    memory.events.subscribe(heard["admin"].append)
    writer.events.subscribe(heard["writer"].append)
    reader.events.subscribe(heard["reader"].append)
    reader.events.subscribe(heard["kind"].append, event_type="note_create")
    hidden = writer.add_note(content="for orchestrators", **NOTE).note_id
    shared = memory.add_note(content="for everybody", **NOTE).note_id
    writer.get(hidden)
    both = [("note_create", hidden), ("note_create", shared), ("note_retrieve", hidden)]
    assert subjects(heard["admin"]) == subjects(heard["writer"]) == both
    assert subjects(heard["reader"]) == subjects(heard["kind"]) == [("note_create", shared)]
    # Sight is that of now: what is shared, or no longer, is told accordingly.
    memory.storage.notes.update(shared, visible_to=("orchestrator",))
    memory.get(shared)
    memory.storage.notes.update(hidden, visible_to=None)
    memory.get(hidden)
    assert len(heard["reader"]) == 1  # what others read, and when, is theirs
    reader.get(hidden)
    assert subjects(heard["reader"])[1:] == [("note_retrieve", hidden)]
    # Of a note that is gone nobody knows any more who could read it.
    memory.storage.notes.delete(hidden)
    for event in [heard["admin"][0], heard["admin"][1]]:
        engine = inspect(memory).engine
        engine.publish(event, engine.memory.erasures)
    assert len(heard["admin"]) == 8
    assert (len(heard["writer"]), len(heard["reader"])) == (4, 2)


def test_of_a_window_hears_whom_it_was_made_for_and_of_erasures_an_admin(backend: Any, start: Any) -> None:
    memory = backend.open(**LIGHT)
    task = start(memory).trajectory_id
    heard: dict[Principal, list[str]] = {who: [] for who in (memory.principal, WRITER, READER)}
    for who, events in heard.items():
        memory.acting_as(who).events.subscribe(lambda event, events=events: events.append(event.event_type))
    memory.acting_as(WRITER).assemble_context(task)
    memory.acting_as(READER).assemble_context(task)
    memory.assemble_context(task)
    inspect(memory).write(
        lambda uow: event_log.audit(uow, inspect(memory).engine.event(EventType.FORGET, family=EventFamily.AUDIT))
    )
    assert heard == {
        memory.principal: ["context_assemble"] * 3 + ["forget"],
        WRITER: ["context_assemble"],
        READER: ["context_assemble"],
    }


def test_of_what_everybody_may_read_everybody_hears_also_when_it_is_gone(backend: Any, start: Any) -> None:
    memory = backend.open(**LIGHT, memories=[{name: value for name, value in STEP.items() if name != "parent"}])
    heard: list[str] = []
    memory.acting_as(READER).events.subscribe(lambda event: heard.append(event.event_type))
    agent = start(memory)
    agent.keep("kept")
    record = memory.records("step").insert(position=1)
    memory.records("step").delete(record.record_id)
    memory.close_scope(agent.scope_id)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    wanted = ["trajectory_start", "scope_open", "artifact_create", "memory_insert", "memory_delete", "scope_close"]
    assert [kind for kind in heard if kind in wanted] == wanted


def test_the_log_of_a_trajectory_is_read_as_it_was_heard(backend: Any, start: Any) -> None:
    memory = backend.open(**LIGHT)
    task = start(memory).trajectory_id
    hidden = memory.acting_as(WRITER).add_note(content="for orchestrators", **NOTE).note_id
    engine = inspect(memory).engine
    make = engine.event
    said = {"error": "Conflict", "message": f"note {hidden} was changed"}
    for number in range(12):  # what may not be heard of takes no place under a limit
        memory.acting_as(WRITER).assemble_context(task)
        about = {"trajectory_id": task, "subject": (EntityType.NOTE, hidden)}
        engine.publish(make(EventType.NOTE_UPDATE, at_us=number, **about), engine.memory.erasures)
    engine.publish(make(EventType.ERROR, trajectory_id=task, payload=said), engine.memory.erasures)
    done = make(EventType.FORGET, trajectory_id=task, family=EventFamily.AUDIT)
    inspect(memory).write(lambda uow: event_log.audit(uow, done))
    reader = memory.acting_as(READER)
    window = reader.assemble_context(task)
    everything = memory.trace(task, limit=100)
    assert {"note_update", "forget", "context_assemble", "error"} <= {event.event_type for event in everything}
    seen = reader.trace(task, limit=100)
    assert [event.event_type for event in reversed(seen)] == [
        event.event_type
        for event in reversed(everything)
        if event.event_type not in ("note_update", "forget", "context_assemble") or event.subject_id == window.window_id
    ]
    assert [event.payload for event in seen if event.event_type == "error"] == [{"error": "Conflict"}]
    assert reader.trace(task, limit=3) == seen[:3]
    assert reader.trace(task, limit=2, event_type="note_update") == []
    assert subjects(reader.trace(task, limit=5, event_type="context_assemble")) == [
        ("context_assemble", window.window_id)
    ]
    assert len(memory.trace(task, limit=5)) == 5


def test_a_subscriber_whose_filter_fails_gets_no_event(agent: Any) -> None:
    memory = agent.memory
    heard: list[Event] = []

    def broken(event: Event) -> Event | None:
        raise RuntimeError("planted in the filter")

    inspect(memory).engine.bus.subscribe(heard.append, event_filter=broken)
    agent.keep("kept")
    assert heard == []
    memory.flush()
    assert [event.payload["where"] for event in memory.storage.events.all() if event.event_type == "error"] == [
        "subscriber of artifact_create"
    ]


def test_asyncio_hears_as_its_principal(backend: Any) -> None:
    memory = backend.open(**LIGHT)

    async def run() -> tuple[list[Any], Any]:
        handle = AsyncCaliber(memory, None).acting_as(READER)  # type: ignore[arg-type]
        heard: list[Event] = []
        handle.events.subscribe(heard.append)
        memory.acting_as(WRITER).add_note(content="for orchestrators", **NOTE)
        shared = memory.add_note(content="for everybody", **NOTE)
        while not heard:
            await asyncio.sleep(0)
        return subjects(heard), shared.note_id

    seen, shared = asyncio.run(run())
    assert seen == [("note_create", shared)]


@pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)
def test_of_others_commits_that_memory_does_not_know_yet_only_an_admin_hears(backend: Any) -> None:
    # decision 0186: what cannot be found out is not told; it is to be looked up once memory knows
    memory = backend.open(**LIGHT)
    engine, away = inspect(memory).engine, [True]
    heard: dict[str, list[str]] = {"admin": [], "reader": []}
    for name, handle in (("admin", memory), ("reader", memory.acting_as(READER))):
        shown = inspect(handle).event_filter  # a file tells no other process, and the facet refuses ``remote`` there
        engine.bus.subscribe(
            lambda event, name=name: heard[name].append(event.event_type), remote=True, event_filter=shown
        )

    def follow() -> None:
        if away:
            raise Unavailable("planted", reason="connection lost")

    note = memory.add_note(content="for everybody, as far as memory knows", **NOTE).note_id
    event = engine.event(EventType.NOTE_UPDATE, subject=(EntityType.NOTE, note))
    listener = RemoteEvents(follow, engine.bus, engine.event, engine.record_error)
    for names in heard.values():
        names.clear()
    with pytest.raises(Unavailable):
        listener.on_change()
    listener.on_event(event)
    assert heard == {"admin": ["note_update"], "reader": []}
    away.clear()
    for _ in range(2):
        listener.on_change()
        listener.on_event(event)
    assert heard["reader"] == ["events_missed", "note_update", "note_update"]
    assert heard["admin"] == ["note_update", *heard["reader"]]
