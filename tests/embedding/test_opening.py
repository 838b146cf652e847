"""Vectors when a store is opened: those that are missing are made, and nothing is looked for where none is."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import USER
from support.databases import Backend
from support.drawn import needs
from support.waits import until

import caliber
from caliber.embedding.backfill import MissingVectorScan

KNOBS: dict[str, Any] = {"jobs__poll_ms": 0}
KINDS = ("note", "turn", "artifact", "scope")


def add_note(memory: caliber.Caliber, content: str) -> Any:
    return memory.add_note(entity="harbour", entity_type="place", note_type="fact", content=content, confidence=0.9)


def fill(memory: caliber.Caliber) -> dict[str, Any]:
    """Write a record of each kind, among others without a text; return their ids once all have vectors."""
    task = memory.start_trajectory("look at the harbour", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    turn = memory.append_turn(scope.scope_id, role="user", content="the harbour is deep")
    memory.append_turn(scope.scope_id, role="user", content="")
    artifact = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="harbour, 12 m", extraction_method="explicit"
    )
    memory.close_scope(scope.scope_id)
    memory.open_scope(task)  # it has no summary yet
    note = add_note(memory, "it has three piers")
    memory.jobs.run_due()
    memory.flush()
    return {"note": note.note_id, "turn": turn.turn_id, "artifact": artifact.artifact_id, "scope": scope.scope_id}


def owners(memory: caliber.Caliber) -> set[tuple[str, bytes]]:
    return {(each.owner_type.value, each.owner_id.bytes) for each in memory.storage.embeddings.all()}


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The looks at stored records that are under way or over."""
    looks: list[int] = []
    look = MissingVectorScan.look

    def watched(self: MissingVectorScan, target: Any) -> int:
        due = bool(self._to_walk or self._walks)
        if due:
            looks.append(1)
        return look(self, target)

    monkeypatch.setattr(MissingVectorScan, "look", watched)
    return looks


@needs("reopen")
def test_nothing_is_looked_for_where_nothing_lacks_a_vector(backend: Backend, scans: list[int]) -> None:
    memory = backend.open(**KNOBS)
    fill(memory)
    memory.close()
    scans.clear()
    memory = backend.open(**KNOBS)
    note = add_note(memory, "a fourth pier is planned")
    until(lambda: ("note", note.note_id.bytes) in owners(memory))
    assert scans == []


@needs("reopen")
@pytest.mark.parametrize("mode", ["resident", "backend"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_without_a_vector_gets_one(backend: Backend, kind: str, mode: str) -> None:
    memory = backend.open(**KNOBS, search__mode=mode)
    ids = fill(memory)
    wanted = owners(memory)
    assert {(name, key.bytes) for name, key in ids.items()} <= wanted
    backend.tamper(memory, f"DELETE FROM embedding WHERE owner_type = '{kind}'")
    assert owners(memory) < wanted
    memory.close()
    memory = backend.open(**KNOBS, search__mode=mode)
    until(lambda: owners(memory) == wanted)
