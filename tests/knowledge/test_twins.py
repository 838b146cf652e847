"""A record that was superseded, when what superseded it goes: another one may say by now what it said."""

from __future__ import annotations

from typing import Any

import pytest

from caliber.model import EntityRef, EntityType

NAME = "Zaphod Beeblebrox"


@pytest.mark.parametrize("way", ["its id", "its name", "delete"])
def test_a_note_whose_successor_goes_is_not_said_twice(agent: Any, way: str) -> None:
    memory = agent.memory
    notes = memory.storage.notes
    old = agent.note("Lisbon is far")
    made = {"entity": NAME, "entity_type": "person", "note_type": "fact", "confidence": 1}
    successor = memory.add_note(content="Lisbon is near", **made)
    notes.update(old.note_id, superseded_by=successor.note_id)
    again = agent.note("Lisbon is far")
    assert again.note_id != old.note_id
    if way == "delete":
        notes.delete(successor.note_id)
    elif way == "its id":
        assert memory.forget(entity=EntityRef(EntityType.NOTE, successor.note_id)).proven
    else:
        assert memory.forget(texts=[NAME]).proven
    left = notes.get(old.note_id)
    assert left is None or left.archived_at is not None
    assert notes.get(successor.note_id) is None
    assert notes.get(again.note_id) == again
    assert [hit.id for hit in memory.search("Lisbon").hits] == [again.note_id]


@pytest.mark.parametrize("way", ["its id", "delete"])
def test_an_artifact_whose_successor_goes_is_not_kept_twice(agent: Any, way: str) -> None:
    memory = agent.memory
    artifacts = memory.storage.artifacts
    old, successor = agent.keep("far"), agent.keep("near")
    artifacts.update(old.artifact_id, superseded_by=successor.artifact_id)
    again = agent.keep("far")
    assert again.artifact_id != old.artifact_id
    if way == "delete":
        artifacts.delete(successor.artifact_id)
    else:
        assert memory.forget(entity=EntityRef(EntityType.ARTIFACT, successor.artifact_id)).proven
    left = artifacts.get(old.artifact_id)
    assert left is None or left.retired_at is not None
    assert artifacts.get_by_hash(agent.trajectory_id, old.content_hash) == again


def test_a_note_whose_successor_goes_is_in_use_again_if_nobody_says_the_same(agent: Any) -> None:
    notes = agent.memory.storage.notes
    old, successor = agent.note("Lisbon is far"), agent.note("Lisbon is near")
    notes.update(old.note_id, superseded_by=successor.note_id)
    notes.delete(successor.note_id)
    left = notes.get(old.note_id)
    assert left.superseded_by is None
    assert left.archived_at is None
