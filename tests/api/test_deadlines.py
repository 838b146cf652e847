"""One deadline mechanism: each public write takes ``deadline_ms``, and writes nothing once it has passed."""

from __future__ import annotations

import dataclasses
import inspect
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from support.api.public_facets import made_by
from support.configs import USER
from support.inspection import inspect as inside
from support.memories import FACT

import caliber
from caliber.admin.table import TableReader
from caliber.admin.tables import Tables
from caliber.api import caliber as handle
from caliber.memories.reading import RecordReader
from caliber.memories.records import Records
from caliber.model.agents import LockToken
from caliber.model.errors import Unavailable

WITHOUT = {
    "acting_as view records subscribe deliver": "they neither read nor write the store",
    "flush close": "they have ``write_behind.shutdown_ms``",
    "stats verify check status backup vacuum rebuild_search create_views drop_views": "they look after a whole store",
    "all bulk_read table_of": "they hand out an iterator, or a table",
    "search_similar": "memory answers, and nothing is waited for",
    "report progress reembed find drop": "a model is changed in many transactions, each of which stands",
    "request watch listen": "they wait as long as their own argument says, or until they are left",
    "schedules run_due": "jobs are changed in many transactions, each of which stands",
}
NOTE = {"entity": "e", "entity_type": "t", "note_type": "fact", "content": "c", "confidence": 0.5}
ARTIFACT = {"artifact_type": "fact", "content": "c", "extraction_method": "explicit"}
TURN = {"role": "user", "content": "hello"}


def classes() -> Iterator[type]:
    """Yield every class of the public face."""
    waiting: list[type] = [handle.Caliber, RecordReader, Records, TableReader]
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            yield kind
            # Those of tests that ran before in this process are not the public face.
            waiting += [each for each in kind.__subclasses__() if each.__module__.startswith("caliber.")]
            for name, value in vars(kind).items():
                if isinstance(value, property) and not name.startswith("_"):
                    made = made_by(value)
                    if isinstance(made, type) and made.__module__.startswith("caliber."):
                        waiting.append(made)
        waiting += [base for base in kind.__mro__ if base.__module__.startswith("caliber.") and base not in seen]


def test_every_call_that_reads_or_writes_takes_a_deadline() -> None:
    without = set()
    for kind in classes():
        if dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel):
            continue
        for name, function in vars(kind).items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if inspect.unwrap(function) is Tables.get:  # of a traced handle too
                continue
            given = inspect.signature(function).parameters.get("deadline_ms")
            if given is None:
                without.add(name)
            else:
                assert (given.kind, given.default) == (inspect.Parameter.KEYWORD_ONLY, None), name
    assert without <= set(" ".join(WITHOUT).split()), without - set(" ".join(WITHOUT).split())


@pytest.fixture
def calls(backend: Any, start: Any) -> tuple[Any, dict[str, Callable[..., Any]]]:
    memory = backend.open(memories=[FACT], embedding_provider=None)
    agent = start(memory)
    task, scope = agent.trajectory_id, agent.scope_id
    note = memory.add_note(**NOTE)
    facts = memory.records("fact")
    fact = facts.insert(subject="s", kind="claim")
    lock = memory.agents.locks.acquire("door", holder="me", lease_ms=10**9)
    token = LockToken("door", lock.token)
    session = memory.start_session(initiator=USER).session_id
    trajectory = memory.storage.trajectories.get(task)
    rows = memory.storage.bulk_read("note").read_all()
    memory.flush()
    tables = memory.storage
    return memory, {
        "start_session": lambda **k: memory.start_session(initiator=USER, **k),
        "end_session": lambda **k: memory.end_session(session, **k),
        "start_trajectory": lambda **k: memory.start_trajectory("g", initiator=USER, **k),
        "suspend_trajectory": lambda **k: memory.suspend_trajectory(task, **k),
        "resume_trajectory": lambda **k: memory.resume_trajectory(task, **k),
        "open_scope": lambda **k: memory.open_scope(task, **k),
        "append_turn": lambda **k: memory.append_turn(scope, **TURN, **k),
        "append_turns": lambda **k: memory.append_turns(scope, [TURN], **k),
        "create_artifact": lambda **k: memory.create_artifact(scope, **ARTIFACT, **k),
        "add_note": lambda **k: memory.add_note(**{**NOTE, "content": "another"}, **k),
        "insert": lambda **k: facts.insert(subject="t", kind="claim", **k),
        "insert_many": lambda **k: facts.insert_many([{"subject": "u", "kind": "claim"}], **k),
        "update": lambda **k: facts.update(fact.record_id, subject="v", **k),
        "archive": lambda **k: facts.archive(fact.record_id, **k),
        "delete": lambda **k: facts.delete(fact.record_id, **k),
        "locks.acquire": lambda **k: memory.agents.locks.acquire("window", holder="me", **k),
        "locks.renew": lambda **k: memory.agents.locks.renew(token, holder="me", **k),
        "locks.release": lambda **k: memory.agents.locks.release(token, holder="me", **k),
        "locks.reap": lambda **k: memory.agents.locks.reap(**k),
        "storage.insert": lambda **k: tables.trajectories.insert(
            dataclasses.replace(trajectory, trajectory_id=uuid.uuid4()), **k
        ),
        "storage.update": lambda **k: tables.notes.update(note.note_id, content="changed", **k),
        "storage.delete": lambda **k: tables.notes.delete(note.note_id, **k),
        "storage.delete_by_scope": lambda **k: tables.turns.delete_by_scope(scope, **k),
        "storage.delete_expired": lambda **k: tables.context_windows.delete_expired(**k),
        "bulk_load": lambda **k: tables.bulk_load("note", rows, on_existing="skip", **k),
        "maintain": lambda **k: memory.admin.maintain(**k),
        "close_scope": lambda **k: memory.close_scope(scope, **k),
        "complete_trajectory": lambda **k: memory.complete_trajectory(task, status="success", summary="", **k),
        "forget": lambda **k: memory.forget(texts=["nobody-has-this-name"], **k),
        "purge_trajectory": lambda **k: memory.admin.purge_trajectory(task, **k),
    }


def test_a_write_whose_deadline_has_passed_writes_nothing(calls: tuple[Any, dict[str, Callable[..., Any]]]) -> None:
    memory, writes = calls
    before = memory.admin.stats()["records"]
    for name, write in writes.items():
        with pytest.raises(Unavailable) as caught:
            write(deadline_ms=0)
        assert (caught.value.reason, caught.value.retryable) == ("timeout", True), name
    assert memory.admin.stats()["records"] == before
    for name, write in writes.items():
        write(deadline_ms=60_000)
        assert memory.admin.verify() == [], name


@pytest.mark.parametrize("backend", ["sqlite", "sqlite-memory"], indirect=True)
def test_a_write_waits_for_others_no_longer_than_its_deadline(
    calls: tuple[Any, dict[str, Callable[..., Any]]],
) -> None:
    # In PostgreSQL writers of other rows wait for nobody: tests/postgres and the contract suite hold rows there.
    memory, writes = calls
    with inside(memory).writer.exclusive():
        for name in ("append_turn", "add_note", "insert", "locks.acquire", "storage.update", "maintain"):
            began = time.monotonic()
            with pytest.raises(Unavailable) as caught:
                writes[name](deadline_ms=20)
            assert caught.value.reason == "timeout", name
            assert time.monotonic() - began < 10, name
    writes["append_turn"]()


def test_reads_take_a_deadline_too(calls: tuple[Any, dict[str, Callable[..., Any]]]) -> None:
    memory, _ = calls
    notes = memory.records("note")
    note = notes.find(deadline_ms=60_000)[0]
    assert notes.count(deadline_ms=60_000) == 1
    assert memory.get(note.note_id, deadline_ms=60_000) == notes.get(note.note_id, deadline_ms=60_000) == note
    assert memory.storage.notes.get(note.note_id, deadline_ms=60_000) == note
    assert memory.storage.notes.count(deadline_ms=60_000) == 1
    for wrong in (-1, "soon", True, 2**70):
        for call in (notes.find, notes.count, memory.storage.notes.count):
            with pytest.raises(caliber.model.errors.InputError):
                call(deadline_ms=wrong)
