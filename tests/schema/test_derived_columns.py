"""Derived columns follow from others by every way into a store: a table's insert and update, and a load."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from contract.entities import plain
from support.inspection import inspect

from caliber.model.errors import ConstraintViolation, InvalidRow, InvalidValue
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import completed

pytestmark = pytest.mark.usefixtures("bulk")


@pytest.fixture
def agent(backend: Any, start: Any) -> Any:
    return start(backend.open(backend.config(embedding_provider=None)))


def test_a_change_by_hand_is_followed_in_every_relation(agent: Any) -> None:
    # Only notes and artifacts, and records of declared memories, were followed before.
    tables, count = agent.memory.storage, inspect(agent.memory).engine.count_text
    task = tables.trajectories.update(agent.trajectory_id, goal="another goal")
    assert task.goal_hash == hashlib.sha256(b"another goal").digest()
    scope = tables.scopes.update(agent.scope_id, summary="what was said")
    assert scope.summary_tokens == count("what was said")
    assert tables.scopes.update(agent.scope_id, summary=None).summary_tokens == 0
    turn = agent.say("a word")
    assert tables.turns.update(turn.turn_id, content="quite a few words").token_count == count("quite a few words")
    assert tables.turns.update(turn.turn_id, content=b"one", token_count=99).token_count == 99, "as its writer counts"
    assert tables.turns.update(turn.turn_id, content=bytearray(b"two")).content == b"two"
    assert tables.turns.update(turn.turn_id, content=b"one", token_count=99).token_count == 99
    assert tables.turns.update(turn.turn_id, name="Ines").token_count == 99, "the name is not counted"
    assert agent.memory.admin.verify() == []
    assert agent.memory.admin.check() == []


def test_a_change_by_hand_is_dated_and_no_change_is_none(agent: Any) -> None:
    # Only notes were dated, and only notes that stayed as they were not written.
    tables = agent.memory.storage
    artifact = agent.keep("kept")
    changed = tables.artifacts.update(artifact.artifact_id, confidence=0.25)
    assert changed.updated_at > artifact.updated_at
    assert tables.artifacts.update(artifact.artifact_id, confidence=0.25) == changed
    stated = changed.updated_at + timedelta(days=1)
    assert tables.artifacts.update(artifact.artifact_id, confidence=0.5, updated_at=stated).updated_at == stated
    note = agent.note("said")
    assert tables.notes.update(note.note_id, tags=["a"], updated_at=stated).updated_at == stated
    assert tables.notes.get(note.note_id).version == note.version + 1


def test_what_is_stated_of_a_note_is_not_passed_over(agent: Any) -> None:
    # Hashes of artifacts were refused before, those of notes and of what is inserted were passed over or stored.
    tables, note = agent.memory.storage, agent.note("said")
    for column in ("content_hash", "fingerprint"):
        with pytest.raises(ConstraintViolation, match=column):
            tables.notes.update(note.note_id, **{column: bytes(32)})
    assert tables.notes.update(note.note_id, token_count=77).token_count == 77
    good = completed(NOTE, plain(NOTE, entity="e", content="inserted"), None)
    with pytest.raises(ConstraintViolation, match="fingerprint"):
        tables.notes.insert(plain(NOTE, entity="e", content="inserted"))
    ended = completed(NOTE, plain(NOTE, valid_from=good.created_at, valid_until=good.created_at.min.replace(
        year=1_999, tzinfo=good.created_at.tzinfo)), None)  # fmt: skip
    with pytest.raises(InvalidValue, match="must not be before valid_from"):
        tables.notes.insert(ended)
    assert tables.notes.insert(good) == tables.notes.get(good.note_id)


def test_a_load_derives_what_it_is_not_given(agent: Any) -> None:
    # Token counts of summaries and hashes of goals had to be given before.
    memory = agent.memory
    tables, count = memory.storage, inspect(memory).engine.count_text
    user = {"initiator_type": ["user"] * 2, "initiator_id": [bytes(16)] * 2, "status": ["active"] * 2}
    numbers = {name: [0, 0] for name in ("turn_count", "tokens_input", "tokens_output")}
    goals = pa.table({**user, **numbers, "goal": ["one", "two"]})
    tables.bulk_load("trajectory", goals)
    loaded = {task.goal: task for task in tables.trajectories.all()}
    assert loaded["two"].goal_hash == hashlib.sha256(b"two").digest()
    task = loaded["two"].trajectory_id.bytes
    places = {name: [0, 0] for name in ("start_turn", "next_sequence")} | {"sequence_number": [0, 1]}
    scopes = pa.table({"trajectory_id": [task] * 2, **places, **numbers, "summary": pa.array(["a few words", None])})
    tables.bulk_load("scope", scopes)
    kept = tables.scopes.list_by_trajectory(loaded["two"].trajectory_id)
    assert [scope.summary_tokens for scope in kept] == [count("a few words"), 0]
    summaries = pa.table(
        {"trajectory_id": [task], "scope_id": [kept[0].scope_id.bytes], "first_turn": [0], "last_turn": [1],
         "content": ["said in short"], "model_id": ["m"]}
    )  # fmt: skip
    tables.bulk_load("turn_summary", summaries)
    assert [each.token_count for each in tables.turn_summaries.all()] == [count("said in short")]
    assert agent.memory.admin.check() == []


def test_a_load_gives_the_hash_of_a_goal_that_is_not_kept(agent: Any) -> None:
    user = {"initiator_type": ["user"] * 2, "initiator_id": [bytes(16)] * 2, "status": ["active"] * 2}
    numbers = {name: [0, 0] for name in ("turn_count", "tokens_input", "tokens_output")}
    load, right = agent.memory.storage.bulk_load, hashlib.sha256(b"one").digest()
    goals = {"goal": pa.array(["one", None])}
    with pytest.raises(InvalidValue, match="also needs goal_hash"):
        load("trajectory", pa.table({**user, **numbers}))
    with pytest.raises(InvalidRow, match="must be given where goal is missing") as caught:
        load("trajectory", pa.table({**user, **numbers, **goals}))
    assert (caught.value.row, caught.value.context["field"]) == (1, "goal_hash")
    with pytest.raises(InvalidRow, match="not the SHA-256 of goal") as caught:
        load("trajectory", pa.table({**user, **numbers, **goals, "goal_hash": [bytes(32), bytes(32)]}))
    assert caught.value.row == 0
    assert load("trajectory", pa.table({**user, **numbers, **goals, "goal_hash": [right, bytes(32)]})).loaded == 2
