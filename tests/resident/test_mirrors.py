"""Mirror and store stay equal whatever order commits, deletions and failures come in."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import ADMIN
from support.drawn import needs
from support.inspection import inspect, replaced
from support.threads import begin

import caliber
from caliber import EntityRef, EntityType
from caliber.knowledge.notes import NewNote, add_note
from caliber.model import FixedClock, Note, NoteType
from caliber.model.errors import InvalidValue, NotFound, StorageError
from caliber.storage.write.changes import UPSERT, pack_changes
from caliber.storage.write.unit_of_work import UnitOfWork


def test_a_key_may_come_back_before_anybody_read(backend: Any, start: Any) -> None:  # design 5
    memory = backend.open(embedding_provider=None)
    note = start(memory).note("gone and back")
    memory.get(note.note_id)
    memory.storage.notes.delete(note.note_id)
    memory.storage.notes.insert(note)
    assert memory.get(note.note_id).content == "gone and back"
    assert memory.admin.verify() == []


@needs("sharing")
def test_a_key_that_came_back_elsewhere_is_followed(backend: Any, start: Any) -> None:
    here, there = backend.open(), backend.open()
    note = start(there).note("gone and back")
    assert here.search("", consistency="latest").hits
    there.storage.notes.delete(note.note_id)
    there.storage.notes.insert(note)
    here.search("", consistency="latest")
    assert here.get(note.note_id).content == "gone and back"
    assert here.admin.verify() == []


def test_what_is_owned_goes_from_memory_with_its_owner(backend: Any, start: Any) -> None:
    memory = backend.open()
    agent = start(memory)
    turn, artifact = agent.say("a turn of a scope"), agent.keep("an artifact of a scope")
    memory.flush()
    memory.storage.scopes.delete(agent.scope_id)
    for gone in (turn.turn_id, artifact.artifact_id):
        with pytest.raises(NotFound):
            memory.get(gone)
    assert memory.admin.verify() == []
    assert memory.storage.embeddings.count() == 0


def test_what_only_mentions_a_record_stays_without_it(backend: Any, start: Any) -> None:
    memory = backend.open()
    parent = start(memory)
    child = memory.start_trajectory("child", initiator=parent.trajectory.initiator, parent=parent.trajectory_id)
    memory.storage.trajectories.delete(parent.trajectory_id)
    assert memory.get(child.trajectory_id).parent_trajectory_id is None
    assert memory.admin.verify() == []


@needs("sharing")
def test_a_row_deleted_elsewhere_right_after_our_commit_stays_deleted(backend: Any) -> None:
    here, there = backend.open(), backend.open()
    there.add_note(entity="e", entity_type="t", note_type="fact", content="makes a gap", confidence=0.5)
    made: list[Note] = []
    writer = inspect(here).writer

    def deleted_meanwhile(*follower: Any) -> None:
        there.storage.notes.delete(made[0].note_id)
        follow(*follower)

    def work(uow: UnitOfWork) -> None:
        made.append(add_note(uow, NewNote("e", "t", NoteType.FACT, "short-lived", 0.5, 1))[0])

    with replaced(writer, "catch_up", deleted_meanwhile) as follow:
        inspect(here).write(work)
    with pytest.raises(NotFound):
        here.get(made[0].note_id)
    assert here.admin.verify() == []


@needs("sharing")
def test_a_failure_while_following_is_made_good(backend: Any) -> None:
    here, there = backend.open(), backend.open()
    note = there.add_note(entity="e", entity_type="t", note_type="fact", content="seen late", confidence=0.5)

    def failing(*_: Any) -> None:
        raise StorageError("planted")

    with replaced(inspect(here).resident, "apply", failing), pytest.raises(StorageError):
        here.search("", consistency="latest")
    here.search("", consistency="latest")
    assert here.get(note.note_id).content == "seen late"
    assert here.admin.verify() == []


@needs("sharing")
def test_records_of_relations_unknown_here_are_passed_over(backend: Any, start: Any) -> None:  # design 3: side by side
    here, there = backend.open(), backend.open()
    newer = pack_changes([(250, UPSERT, 1, 1)])
    inspect(there).store.write(lambda uow: uow.select("change.insert", b"n" * 16, newer, uow.now_us))
    note = start(there).note("written by a newer version")
    here.search("", consistency="latest")
    assert here.get(note.note_id)
    assert here.admin.verify() == []


@needs("sharing")
def test_verifying_across_a_gap_reads_anew(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = backend.open()
    clock = FixedClock()
    monkeypatch.setattr("caliber.admin.maintenance.CHANGES_KEEP_ROWS", 0)
    there = backend.open(clock=clock, retention__changes_ms=1)
    agent = start(there)
    kept = [agent.note(f"fact {number}") for number in range(4)]
    clock.advance(ms=10)
    there.admin.maintain()
    agent.note("after the gap")
    assert here.admin.verify() == []
    assert all(here.get(note.note_id) for note in kept)


def test_verifying_lost_memory_needs_no_second_reader(backend: Any, start: Any) -> None:
    memory = backend.open(storage__readers=1)
    inspect(memory).resident.lost(StorageError("planted"))
    start(memory).note("while memory is lost")
    found: list[Any] = []
    thread = begin(lambda: found.append(memory.admin.verify()))
    thread.result(10)
    assert found == [[]]


def test_the_verifier_sees_a_row_that_stands_twice(backend: Any, start: Any) -> None:
    memory = backend.open()
    note = start(memory).note("one note")
    memory.get(note.note_id)
    mirror = inspect(memory).mirror("note")
    mirror.append(mirror.row(0))
    assert any("twice" in difference for difference in memory.admin.verify())


def test_an_owner_that_moves_while_a_search_begins_is_found_where_it_was(
    backend: Any, start: Any, monkeypatch: Any
) -> None:
    memory = backend.open()
    note = start(memory).note("alpha beta gamma")
    memory.flush()
    resident = inspect(memory).resident
    snapshot = resident.snapshot
    owners, vectors = snapshot["note"], next(found for (kind, _), found in snapshot.vectors.items() if kind == "note")
    index = inspect(resident).vectors("note")
    look = np.flatnonzero

    def moved_meanwhile(array: Any) -> Any:
        found = look(array)
        index.owner_moved(note.note_id.bytes, owners.length + 7)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(np, "flatnonzero", moved_meanwhile)
        rows = vectors.owner_rows(owners)
    assert rows.tolist() == [owners.find(note.note_id.bytes)]


# --- news ------------------------------------------------------------------------------------------


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
