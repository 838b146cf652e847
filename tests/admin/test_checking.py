"""``check``: sound stores have no findings, and a planted fault of each kind is found, counted and explained. P-084."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.model.knowledge import Edge, EdgeRelation, Usage
from caliber.model.references import EdgeId, EntityRef, EntityType
from caliber.storage.maintain.integrity import EXAMPLES, Finding

AT_ONCE = {"embedding__embed": {"default": "commit"}}


@pytest.fixture
@needs("reopen")  # what is asked is the same in memory
def filled(backend: Any) -> caliber.Caliber:
    """A store in which one record of most kinds hangs on another."""
    from support.configs import USER

    memory: caliber.Caliber = backend.open(**AT_ONCE)
    trajectory = memory.start_trajectory("be sound", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    for place in range(EXAMPLES + 2):
        memory.append_turn(scope.scope_id, role="user", content=f"turn {place}")
    memory.create_artifact(scope.scope_id, artifact_type="fact", content="artifact", extraction_method="explicit")
    notes = [
        memory.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {place}", confidence=0.5)
        for place in range(2)
    ]
    memory.storage.notes.update(notes[0].note_id, content="another text")
    ends = [EntityRef(EntityType.NOTE, note.note_id) for note in notes]
    now = datetime.now(UTC)
    memory.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), ends[0], ends[1], EdgeRelation.SUPPORTS, 0.5, 0.5, now))
    memory.storage.usages.insert(Usage(EntityType.NOTE, notes[1].note_id, 1, now))
    memory.assemble_context(trajectory.trajectory_id, query="note")
    memory.flush()
    return memory


def found(memory: caliber.Caliber) -> dict[tuple[str, str], Finding]:
    """Return findings of the store by kind and relation; memory was loaded before the fault, and differs."""
    return {(item.kind.value, item.relation): item for item in memory.admin.check() if item.kind.value != "memory"}


def test_a_sound_store_has_no_findings(filled: caliber.Caliber) -> None:
    told: list[tuple[str, int, int]] = []
    assert filled.admin.check(progress=lambda *step: told.append(step)) == []
    assert {what for what, *_ in told} == {"checking rules", "checking hashes"}


FAULTS = {
    "a reference": ("DELETE FROM {trajectory}", {("reference", "scope"): 1, ("reference", "turn"): 7}),
    "a scope's number": ("UPDATE {scope} SET next_sequence = 3", {("counter", "scope"): 1}),
    "a trajectory's count": ("UPDATE {trajectory} SET turn_count = 1", {("counter", "trajectory"): 1}),
    "a scope's label": ("UPDATE {scope} SET trust = 'system'", {("label", "scope"): 1}),
    "a kept version": (
        "UPDATE {content_version} SET owner_version = 99",
        {("version", "content_version"): 1},
    ),
    "an owner of a kept version": (
        "UPDATE {content_version} SET owner_id = (SELECT target_id FROM {edge})",
        {("version", "content_version"): 1},
    ),
    "a note's text": ("UPDATE {note} SET content = 'damaged'", {("hash", "note"): 2}),
    "an artifact's bytes": ("UPDATE {artifact} SET content = {bytes}", {("hash", "artifact"): 1}),
    "a goal": ("UPDATE {trajectory} SET goal = 'another'", {("hash", "trajectory"): 1}),
    "a configuration": ("UPDATE {config_document} SET body = '{{}}'", {("hash", "config_document"): 1}),
    "an owner of vectors": ("DELETE FROM {artifact}", {("embedding", "embedding"): 1}),
    "a vector's size": (
        "UPDATE {embedding_space} SET dimensions = 31",
        {("embedding", "embedding"): 10},
    ),
    "a space": ("DELETE FROM {embedding_space}", {("embedding", "embedding"): 10}),
    "an end of an edge": (
        "DELETE FROM {note} WHERE note_id = (SELECT target_id FROM {edge})",
        {("orphan", "edge"): 1, ("orphan", "usage"): 2},  # uses by the administrator, and by the agent
    ),
    "an index": ('DROP INDEX {prefix}"ix_note_find_by_entity"', {("schema", ""): 1}),
    "a number of rows": ("{forget_numbers}", {("counter", "turn"): 1}),
}


TOGETHER = {
    "rows that are gone": ("a reference", "an end of an edge", "an owner of a kept version"),
    "an owner of vectors": ("an owner of vectors",),
    "a space": ("a space",),
}
TOGETHER["values"] = tuple(fault for fault in FAULTS if not any(fault in group for group in TOGETHER.values()))
"""Faults that are planted in one store: none is found by what is asked for another."""


@pytest.mark.parametrize("group", sorted(TOGETHER))
def test_planted_faults_are_found_and_counted(backend: Any, filled: caliber.Caliber, group: str) -> None:
    right = {}
    for fault in TOGETHER[group]:
        statement, expected = FAULTS[fault]
        assert not right.keys() & expected.keys()
        right.update(expected)
        backend.damage(filled, statement)
    seen = found(filled)
    for key, count in right.items():
        assert key in seen, seen
        assert seen[key].count == count, seen[key]
        assert seen[key].what
        assert seen[key].advice
        assert len(seen[key].examples) <= EXAMPLES
        assert seen[key].harmless == (key[0] == "orphan")
    if group == "rows that are gone":
        assert len(seen["reference", "turn"].examples) == EXAMPLES
        uuid.UUID(seen["reference", "turn"].examples[0])
    if group == "values":
        assert seen.keys() == right.keys()
        backend.tamper(filled, "CREATE INDEX ix_note_find_by_entity ON note (entity, entity_type, created_at, ordinal)")


def test_a_mirror_that_differs_is_found(backend: Any, filled: caliber.Caliber) -> None:
    backend.tamper(filled, "UPDATE note SET confidence = 0.75")
    findings = [item for item in filled.admin.check() if item.kind.value == "memory"]
    assert [item.relation for item in findings] == ["note"] * len(findings)
    assert {item.count for item in findings} == {2}
    assert findings[0].examples[0].startswith("ordinal ")


def test_a_missing_column_is_said_and_nothing_else_is_asked(backend: Any, filled: caliber.Caliber) -> None:
    backend.tamper(filled, "ALTER TABLE edge RENAME COLUMN auto_linked TO linked")
    try:
        assert [item.what for item in filled.admin.check() if item.kind.value == "schema"] == [
            "column auto_linked of edge is missing"
        ]
    finally:
        backend.tamper(filled, "ALTER TABLE edge RENAME COLUMN linked TO auto_linked")


@needs("full text", "reopen")
def test_full_text_that_differs_is_found(backend: Any, filled: caliber.Caliber) -> None:
    from caliber.admin.checking import rebuild_full_text

    rebuild_full_text(backend.config())
    assert filled.admin.check() == []
    backend.tamper(filled, "DELETE FROM text_note_entry")
    assert ("full_text", "") in found(filled)


def test_a_damaged_file_is_found(backend: Any, filled: caliber.Caliber) -> None:
    if backend.adapter == "postgres":
        mark = "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'uq_note_idempotency_key'::regclass"
        backend.tamper(filled, mark.format("false"))
        try:
            seen = found(filled)
        finally:
            backend.tamper(filled, mark.format("true"))
    else:
        # An index that lacks a row, as a lost write leaves it.
        store = inspect(filled).connection
        text = store.command("SELECT sql FROM sqlite_schema WHERE name = 'ix_note_find_by_entity'")[0][0]
        store.command("PRAGMA writable_schema = ON")
        partial = text + " WHERE entity = ''"
        store.command("DROP INDEX ix_note_find_by_entity")
        store.command(partial)
        store.command(f"UPDATE sqlite_schema SET sql = '{text}' WHERE name = 'ix_note_find_by_entity'")
        store.command("PRAGMA writable_schema = RESET")
        seen = found(filled)
    assert seen["database", ""].count >= 1
    assert "backup" in seen["database", ""].advice
