"""Traits that replaced two copies of one rule (docs/decisions/0203): each former difference is shown here."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.drawn import needs
from support.inspection import inspect

from caliber.model.errors import InvalidRow, InvalidValue
from caliber.model.references import TrajectoryId
from caliber.model.time import FixedClock

WHEN = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
SEEN: dict[str, Any] = {
    "name": "seen",
    "type": "episodic",
    "fields": [{"name": "what", "type": "text"}, {"name": "opened_at", "type": "timestamp"}],
    "retention": {"kind": "persistent"},
}


def test_an_artifact_that_is_out_of_use_is_not_retired_once_more(backend: Any, start: Any) -> None:
    clock = FixedClock()
    agent = start(backend.open(clock=clock))
    memory = agent.memory
    old, new, other = (agent.keep(text, ttl="1s") for text in ("old", "new", "other"))
    memory.storage.artifacts.update(old.artifact_id, superseded_by=new.artifact_id)
    clock.advance(ms=1_000)
    assert memory.admin.maintain()["artifacts"] == 2
    assert memory.get(old.artifact_id).retired_at is None
    assert memory.get(other.artifact_id).retired_at is not None
    assert memory.admin.verify() == []


def test_a_note_is_counted_to_a_task_whose_id_stands_across_two_others_too(backend: Any, start: Any) -> None:
    agent = start(backend.open())
    memory = agent.memory
    task = agent.trajectory_id
    one, two = uuid.UUID(bytes=bytes(8) + task.bytes[:8]), uuid.UUID(bytes=task.bytes[8:] + bytes(8))
    note = agent.note("drawn from three")
    tables = memory.storage.notes
    tables.update(note.note_id, source_trajectory_ids=tuple(map(TrajectoryId, (one, two))))
    assert tables.count_by_trajectory(task) == 0
    tables.update(note.note_id, source_trajectory_ids=tuple(map(TrajectoryId, (one, two, task))))
    assert tables.count_by_trajectory(task) == 1


@needs("bulk")
def test_a_load_makes_no_instant_that_a_declaration_asks_for(backend: Any) -> None:
    memory = backend.open(memories=[SEEN])
    memory.records("seen").insert(what="a heron", opened_at=WHEN)
    table = memory.storage.bulk_read("memory_seen").read_all()
    with pytest.raises(InvalidValue, match="memory_seen also needs opened_at"):
        memory.storage.bulk_load("seen", table.select(["what"]))
    memory.storage.bulk_load("seen", table.select(["what", "opened_at"]))
    assert memory.storage.seen.count() == 2


@needs("bulk")
def test_a_load_refuses_a_record_in_a_scope_of_another_task(backend: Any, start: Any) -> None:
    memory = backend.open(memories=[SEEN])
    agent, other = start(memory), start(memory)
    memory.records("seen").insert(what="a heron", opened_at=WHEN, scope=agent.scope_id)
    table = memory.storage.bulk_read("memory_seen").read_all()
    place = table.schema.get_field_index("trajectory_id")
    keep = ["trajectory_id", "scope_id", "what", "opened_at"]
    field = table.schema.field(place)
    moved = table.set_column(place, field, pa.array([other.trajectory_id.bytes], field.type)).select(keep)
    with pytest.raises(InvalidRow, match="refers to a scope of another trajectory"):
        memory.storage.bulk_load("seen", moved)
    assert memory.storage.seen.count() == 1


def test_texts_leave_memory_in_the_order_of_their_relations(backend: Any) -> None:
    order = inspect(backend.open(memories=[SEEN])).engine.memory.mirrors.evicted_in_order
    assert order.index("artifact") < order.index("turn") < order.index("memory_seen") < order.index("note")
