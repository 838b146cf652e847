"""A write sees what other processes committed before it, whatever it writes (design, section 5)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.configs import ADMIN

import caliber
from caliber import EntityRef, EntityType
from caliber.model.errors import InvalidValue

ME = EntityRef(EntityType.AGENT, uuid.UUID(int=3))


def test_a_lock_brings_the_news_too(tmp_path: Path) -> None:
    # A lock changes nothing that is mirrored, hence leaves no change record; its holder must still see everything.
    config = caliber.profiles.reference(
        tmp_path / "a.db",
        principal=ADMIN,
        embedding_provider=None,
        **{"resident.feed_poll_ms": 0, "write_behind.trace_enabled": False},
    )
    caliber.create(config)
    with caliber.open(config) as first, caliber.open(config) as second:
        task = first.start_trajectory("shared", initiator=ME)
        second.agents.locks.acquire("import", holder="second", lease_ms=60_000)
        assert second.get(task.trajectory_id) == first.get(task.trajectory_id)


def test_an_id_that_is_none_is_no_filter(tmp_path: Path) -> None:
    config = caliber.profiles.reference(tmp_path / "a.db", principal=ADMIN, embedding_provider=None)
    caliber.create(config)
    with caliber.open(config) as memory, pytest.raises(InvalidValue, match="trajectory_id"):
        memory.search("", filter={"trajectory_id": "zz"})


def test_names_in_messages_are_what_providers_take(tmp_path: Path) -> None:
    config = caliber.profiles.reference(tmp_path / "a.db", principal=ADMIN, embedding_provider=None)
    caliber.create(config)
    with caliber.open(config) as memory:
        task = memory.start_trajectory("names", initiator=ME)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content="hello", name="Ada Lovelace <ada@example.org>")
        messages = memory.assemble_context(task.trajectory_id).to_messages()
        assert [message["name"] for message in messages if "name" in message] == ["Ada_Lovelace_ada_example_org_"]


def test_the_past_brings_back_no_archived_note(tmp_path: Path) -> None:
    # as_of is valid time, not the state of the store then: search and windows go by one rule.
    config = caliber.profiles.reference(tmp_path / "a.db", principal=ADMIN, embedding_provider=None)
    caliber.create(config)
    with caliber.open(config) as memory:
        before = datetime(2024, 3, 1, tzinfo=UTC)
        note = memory.add_note(
            entity="plan",
            entity_type="topic",
            note_type="fact",
            content="the plan of spring",
            confidence=1.0,
            valid_from=datetime(2024, 1, 1, tzinfo=UTC),
            valid_until=datetime(2024, 6, 1, tzinfo=UTC),
        )
        assert memory.search("", as_of=before).hits[0].id == note.note_id
        assert memory.search("").hits == ()
        memory.storage.notes.update(note.note_id, archived_at=datetime.now(UTC))
        assert memory.search("", as_of=before).hits == ()
