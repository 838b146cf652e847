"""Small promises that a reviewer found broken: each has its own test."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import caliber
from caliber import EntityRef, EntityType, Principal
from caliber.config import CaliberConfig
from caliber.model.access import PrincipalKind
from caliber.model.agents import AgentRole
from caliber.model.errors import Conflict

ME = EntityRef(EntityType.AGENT, uuid.UUID(int=5))


@pytest.fixture
def config(tmp_path: Path) -> CaliberConfig:
    settings = caliber.profiles.reference(tmp_path / "a.db", embedding_provider=None)
    caliber.create(settings)
    return settings


def test_a_key_that_came_with_known_content_is_kept(config: CaliberConfig) -> None:
    # C-230, K-044
    with caliber.open(config) as memory:
        task = memory.start_trajectory("keys", initiator=ME)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        same = {"artifact_type": "fact", "extraction_method": "explicit"}
        first = memory.create_artifact(scope.scope_id, content="one", **same)
        again = memory.create_artifact(scope.scope_id, content="one", idempotency_key="k", **same)
        assert again.artifact_id == first.artifact_id
        with pytest.raises(Conflict):
            memory.create_artifact(scope.scope_id, content="two", idempotency_key="k", **same)


def test_a_note_hidden_from_its_twin_is_not_handed_out(config: CaliberConfig) -> None:
    # M-125: equal words of two authors, hidden from each other, are two notes
    first = Principal(PrincipalKind.AGENT, "first", AgentRole.REVIEWER)
    second = Principal(PrincipalKind.AGENT, "second", AgentRole.OPTIMIZER)
    words = {"entity": "plan", "entity_type": "topic", "note_type": "fact", "content": "secret", "confidence": 1.0}
    with caliber.open(config) as memory:
        mine = memory.acting_as(first).add_note(visible_to=["agent:first"], **words)
        theirs = memory.acting_as(second).add_note(visible_to=["agent:first"], **words)
        assert mine.note_id != theirs.note_id
        assert memory.acting_as(first).add_note(visible_to=["agent:first"], **words).note_id == mine.note_id


def test_ending_a_session_twice_is_one_event(config: CaliberConfig) -> None:
    heard = []
    with caliber.open(config) as memory:
        memory.on_event(lambda event: heard.append(event.event_type), event_type="session_end")
        session = memory.start_session(initiator=ME)
        ended = memory.end_session(session.session_id)
        assert memory.end_session(session.session_id) == ended
    assert heard == ["session_end"]


def test_turn_policies_work_on_the_scope_of_the_turn(tmp_path: Path) -> None:
    # C-228: with two scopes open, pruning at a turn touches the scope it was appended to
    settings = caliber.profiles.reference(
        tmp_path / "b.db",
        embedding_provider=None,
        policies=[
            {
                "name": "short",
                "rules": [
                    {"on": "turn", "actions": [{"action": "prune", "target": "turn_buffer", "older_than_ms": 0}]},
                ],
            }
        ],
    )
    caliber.create(settings)
    with caliber.open(settings) as memory:
        task = memory.start_trajectory("two scopes", initiator=ME)
        old = memory.current_scope(task.trajectory_id)
        new = memory.open_scope(task.trajectory_id)
        assert old is not None
        memory.append_turn(old.scope_id, role="user", content="to the older scope")
        assert memory.storage.turns.list_by_scope(old.scope_id) == []
        assert memory.storage.turns.list_by_scope(new.scope_id) == []


def test_a_failure_is_recorded_without_waiting_for_room(tmp_path: Path) -> None:
    # Failures are recorded on threads that may hold the writer, which alone can make room in a full queue.
    settings = caliber.profiles.reference(tmp_path / "c.db", embedding_provider=None, **{"write_behind.queue_max": 4})
    caliber.create(settings)
    with caliber.open(settings) as memory:
        engine = memory._engine
        task = memory.start_trajectory("full", initiator=ME)
        memory.flush()
        with engine.store._writer.exclusive():  # type: ignore[attr-defined]
            for _ in range(20):
                engine.record_error("somewhere", Conflict(entity_type="x", id="y", reason="z"))
        assert engine.unrecorded_errors >= 1
        memory.flush()
        kept = [event for event in memory.storage.events.all() if event.event_type == "error"]
        assert len(kept) + engine.unrecorded_errors == 20
        assert memory.stats()["behind"]["unrecorded_errors"] == engine.unrecorded_errors
        assert memory.get(task.trajectory_id)
