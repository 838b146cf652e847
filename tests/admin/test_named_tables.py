"""Requirements of C §11 on single relations, through ``Caliber.storage``."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.configs import ADMIN

import caliber
from caliber import EntityRef, EntityType
from caliber.api.caliber import Caliber
from caliber.model.embedding import CachedEmbedding
from caliber.model.errors import (
    InputError,
    InvalidStateTransition,
)
from caliber.model.time import FixedClock, from_us

ME = EntityRef(EntityType.AGENT, uuid.UUID(int=6))
HASHED = {"provider_type": "hash", "model": "hash", "dimensions": 32}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Caliber]:
    config = caliber.profiles.reference(
        tmp_path / "a.db",
        principal=ADMIN,
        embedding_provider=HASHED,
        policies=[],
        **{"pcp.recovery_points.frequency": "per_turn"},
    )
    caliber.create(config)
    with caliber.open(config, clock=FixedClock()) as opened:
        yield opened


def test_scopes_turns_and_checkpoints(memory: Caliber) -> None:
    tables = memory.storage
    task = memory.start_trajectory("tables", initiator=ME)
    first = memory.current_scope(task.trajectory_id)
    assert first is not None
    second = memory.open_scope(task.trajectory_id)
    for number in range(3):
        memory.append_turn(second.scope_id, role="user", content=f"turn {number}")
    assert tables.scopes.get_current(task.trajectory_id).scope_id == second.scope_id  # C-327
    assert tables.scopes.count_by_trajectory(task.trajectory_id) == 2  # C-328
    assert tables.turns.count_by_scope(second.scope_id) == 3  # C-347
    assert tables.turns.count_by_scope(first.scope_id) == 0
    newest = tables.checkpoints.get_latest(task.trajectory_id)  # C-351
    assert newest == tables.checkpoints.list_by_trajectory(task.trajectory_id)[0]  # C-350: newest first
    assert newest.turn_number == 3
    assert tables.checkpoints.delete_oldest(task.trajectory_id, 1) == 2  # C-352
    assert tables.checkpoints.list_by_trajectory(task.trajectory_id) == [newest]
    assert tables.turns.delete_by_scope(second.scope_id) == 3  # C-346
    assert tables.turns.list_by_scope(second.scope_id) == []
    closed = tables.scopes.close(second.scope_id, summary="what was said")  # C-325
    assert (closed.summary, closed.is_open) == ("what was said", False)
    with pytest.raises(InvalidStateTransition):
        tables.scopes.close(second.scope_id)
    assert tables.scopes.get_current(task.trajectory_id).scope_id == first.scope_id
    assert memory.admin.verify() == []


def test_artifacts_and_notes(memory: Caliber) -> None:
    tables = memory.storage
    task = memory.start_trajectory("tables", initiator=ME)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    made = [
        memory.create_artifact(scope.scope_id, artifact_type="fact", content=text, extraction_method="explicit")
        for text in ("the sky is blue", "grass is green", "snow is white")
    ]
    digest = hashlib.sha256(b"grass is green").digest()
    assert tables.artifacts.get_by_hash(task.trajectory_id, digest) == made[1]  # C-331
    assert tables.artifacts.count_by_trajectory(task.trajectory_id) == 3  # C-337
    tables.artifacts.update(made[2].artifact_id, superseded_by=made[1].artifact_id)
    assert [item.artifact_id for item in tables.artifacts.list_by_trajectory(task.trajectory_id)] == [
        made[0].artifact_id,
        made[1].artifact_id,
    ]  # C-334
    assert len(tables.artifacts.list_by_trajectory(task.trajectory_id, include_superseded=True)) == 3
    memory.add_note(
        entity="snow",
        entity_type="thing",
        note_type="fact",
        content="is white",
        confidence=1.0,
        source_trajectory_ids=[task.trajectory_id],
    )
    assert tables.notes.count_by_trajectory(task.trajectory_id) == 1  # C-343


def test_windows_events_and_cache(tmp_path: Path) -> None:
    config = caliber.profiles.reference(
        tmp_path / "a.db",
        principal=ADMIN,
        embedding_provider=None,
        context_window_persistence={"kind": "ttl", "ttl_ms": 1000},
    )
    caliber.create(config)
    clock = FixedClock()
    with caliber.open(config, clock=clock) as memory:
        tables = memory.storage
        task = memory.start_trajectory("tables", initiator=ME)
        window = memory.assemble_context(task.trajectory_id)
        windows = tables.context_windows
        assert windows.delete_expired() == 0
        clock.advance(ms=999)
        later = memory.assemble_context(task.trajectory_id)
        memory.flush()
        assert [each.window_id for each in windows.list_oldest(limit=1)] == [window.window_id]
        clock.advance(ms=1)  # C-354: absent from then on
        assert windows.get(window.window_id) is None
        assert windows.get(later.window_id).window_id == later.window_id
        for found in (windows.all(), windows.list_oldest(limit=1), windows.list_by_trajectory(task.trajectory_id)):
            assert [each.window_id for each in found] == [later.window_id]
        clock.advance(ms=2_000)
        assert tables.context_windows.delete_expired() == 2  # C-355
        assert memory.trace(task.trajectory_id)
        assert tables.events.delete_by_trajectory(task.trajectory_id) >= 3  # C-358
        assert memory.trace(task.trajectory_id) == []
        cached = CachedEmbedding(bytes(32), "m", 1, bytes(4), from_us(clock.now_us()))
        tables.embedding_cache.insert(cached)
        tables.embedding_cache.insert(dataclasses.replace(cached, vector=b"\x00\x00\x80\x3f"))  # C-360: an upsert
        assert tables.embedding_cache.get(bytes(32), "m", 1).vector == b"\x00\x00\x80\x3f"
        assert tables.embedding_cache.delete_older_than(1_000) == 0
        clock.advance(ms=2_000)
        assert tables.embedding_cache.delete_older_than(1_000) == 1  # C-361


def test_values_of_the_wrong_type_are_typed_errors(memory: Caliber) -> None:
    tables = memory.storage
    task = memory.start_trajectory("types", initiator=ME)
    with pytest.raises(InputError):
        tables.turns.get(5)
    with pytest.raises(InputError):
        tables.trajectories.list_by_status("zz")
    with pytest.raises(InputError):
        tables.trajectories.update(task.trajectory_id, created_at="yesterday")
    with pytest.raises(InputError):
        tables.trajectories.insert(dataclasses.replace(task, trajectory_id="not an id"))
    assert tables.trajectories.get(task.trajectory_id) == memory.get(task.trajectory_id)
