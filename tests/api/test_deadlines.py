"""``caliber.deadline`` bounds each public call: a write writes nothing once the deadline has passed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.api.public_facets import made_by
from support.configs import USER
from support.deadlines import bounded
from support.inspection import inspect as inside
from support.inspection import replaced
from support.memories import FACT
from support.waits import until

import caliber
from caliber.admin.table import TableReader
from caliber.api import caliber as handle
from caliber.memories.reading import RecordReader
from caliber.memories.records import Records
from caliber.model.agents import LockToken
from caliber.model.deadline import remaining_s
from caliber.model.errors import DTypeError, InvalidValue, Unavailable

NOTE = {"entity": "e", "entity_type": "t", "note_type": "fact", "content": "c", "confidence": 0.5}
ARTIFACT = {"artifact_type": "fact", "content": "c", "extraction_method": "explicit"}
TURN = {"role": "user", "content": "hello"}


def test_no_signature_has_a_deadline() -> None:
    # issue "The diet": ``caliber.deadline`` is the one way to bound a call
    kinds, seen = [handle.Caliber, RecordReader, Records, TableReader], set[type]()
    while kinds:
        kind = kinds.pop()
        if kind in seen or not kind.__module__.startswith("caliber."):
            continue
        seen.add(kind)
        kinds += [*kind.__subclasses__(), *kind.__mro__]
        for name, value in vars(kind).items():
            if isinstance(value, property) and not name.startswith("_"):
                made = made_by(value)
                kinds += [made] if isinstance(made, type) else []
            elif inspect.isfunction(value):
                assert "deadline_ms" not in inspect.signature(value).parameters, f"{kind.__name__}.{name}"
    assert len(seen) > 40


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
        "start_session": lambda: memory.start_session(initiator=USER),
        "end_session": lambda: memory.end_session(session),
        "start_trajectory": lambda: memory.start_trajectory("g", initiator=USER),
        "suspend_trajectory": lambda: memory.suspend_trajectory(task),
        "resume_trajectory": lambda: memory.resume_trajectory(task),
        "open_scope": lambda: memory.open_scope(task),
        "append_turn": lambda: memory.append_turn(scope, **TURN),
        "append_turns": lambda: memory.append_turns(scope, [TURN]),
        "create_artifact": lambda: memory.create_artifact(scope, **ARTIFACT),
        "add_note": lambda: memory.add_note(**{**NOTE, "content": "another"}),
        "insert": lambda: facts.insert(subject="t", kind="claim"),
        "insert_many": lambda: facts.insert_many([{"subject": "u", "kind": "claim"}]),
        "update": lambda: facts.update(fact.record_id, subject="v"),
        "archive": lambda: facts.archive(fact.record_id),
        "delete": lambda: facts.delete(fact.record_id),
        "locks.acquire": lambda: memory.agents.locks.acquire("window", holder="me"),
        "locks.renew": lambda: memory.agents.locks.renew(token, holder="me"),
        "locks.release": lambda: memory.agents.locks.release(token, holder="me"),
        "locks.reap": lambda: memory.agents.locks.reap(),
        "storage.insert": lambda: tables.trajectories.insert(
            dataclasses.replace(trajectory, trajectory_id=uuid.uuid4())
        ),
        "storage.update": lambda: tables.notes.update(note.note_id, content="changed"),
        "storage.delete": lambda: tables.notes.delete(note.note_id),
        "storage.delete_by_scope": lambda: tables.turns.delete_by_scope(scope),
        "storage.delete_expired": lambda: tables.context_windows.delete_expired(),
        "bulk_load": lambda: tables.bulk_load("note", rows, on_existing="skip"),
        "maintain": lambda: memory.admin.maintain(),
        "close_scope": lambda: memory.close_scope(scope),
        "complete_trajectory": lambda: memory.complete_trajectory(task, status="success", summary=""),
        "forget": lambda: memory.forget(texts=["nobody-has-this-name"]),
        "purge_trajectory": lambda: memory.admin.purge_trajectory(task),
    }


def test_a_write_whose_deadline_has_passed_writes_nothing(calls: tuple[Any, dict[str, Callable[..., Any]]]) -> None:
    memory, writes = calls
    before = memory.admin.stats()["records"]
    for name, write in writes.items():
        with pytest.raises(Unavailable) as caught, caliber.deadline(0):
            write()
        assert (caught.value.reason, caught.value.retryable) == ("timeout", True), name
    assert memory.admin.stats()["records"] == before
    for name, write in writes.items():
        bounded(60_000, write)
        assert memory.admin.verify() == [], name


@pytest.mark.parametrize("backend", ["sqlite", "sqlite-memory"], indirect=True)
def test_a_write_waits_for_others_no_longer_than_its_deadline(calls: tuple[Any, dict[str, Callable[..., Any]]]) -> None:
    # In PostgreSQL writers of other rows wait for nobody: tests/postgres and the contract suite hold rows there.
    memory, writes = calls
    with inside(memory).writer.exclusive():
        for name in ("append_turn", "add_note", "insert", "locks.acquire", "storage.update", "maintain"):
            began = time.monotonic()
            with pytest.raises(Unavailable) as caught, caliber.deadline(20):
                writes[name]()
            assert caught.value.reason == "timeout", name
            assert time.monotonic() - began < 10, name
    writes["append_turn"]()


def test_reads_take_a_deadline_too(calls: tuple[Any, dict[str, Callable[..., Any]]]) -> None:
    memory, _ = calls
    notes = memory.records("note")
    with caliber.deadline(60_000):
        note = notes.find()[0]
        assert notes.count() == 1
        assert memory.get(note.note_id) == notes.get(note.note_id) == note
        assert memory.storage.notes.get(note.note_id) == note
        assert memory.storage.notes.count() == 1


# --- bad input ---------------------------------------------------------------------------------------


def test_a_deadline_is_a_whole_number_from_0() -> None:
    for wrong in ("soon", True, 1.5, None, 2.0**80):
        with pytest.raises(DTypeError, match="ms"):
            caliber.deadline(wrong)  # type: ignore[arg-type]
    for wrong in (-1, 2**70):
        with pytest.raises(InvalidValue, match="ms"):
            caliber.deadline(wrong)
    assert remaining_s() is None
    with caliber.deadline(2**63 - 1):
        assert (remaining_s() or 0) <= threading.TIMEOUT_MAX


def test_a_nested_deadline_shortens_and_never_prolongs() -> None:
    early = caliber.deadline(60_000)  # begins with its block, under the deadline of that moment
    with caliber.deadline(1_000):
        for inner in (caliber.deadline(3_600_000), early):
            with inner:
                assert 0 < (remaining_s() or 0) <= 1
        with contextlib.suppress(ZeroDivisionError), caliber.deadline(0):
            assert remaining_s() == 0
            raise ZeroDivisionError
        assert 0 < (remaining_s() or 0) <= 1
    assert remaining_s() is None


def test_a_deadline_that_passes_during_the_commit_leaves_a_known_outcome(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    writer: Any = inside(memory).writer
    last = "commit" if backend.name == "postgres" else "others_wrote"  # the last step of a transaction

    def late(*arguments: Any) -> Any:
        until(lambda: remaining_s() == 0)
        return step(*arguments)

    with replaced(writer, last, late, once=True) as step, caliber.deadline(1_000):
        written = memory.start_trajectory("goal", initiator=USER)
        assert remaining_s() == 0
    assert memory.storage.trajectories.get(written.trajectory_id) == written


def test_threads_have_no_deadline_and_tasks_inherit_it() -> None:
    found: dict[str, float | None] = {}

    def look(name: str) -> None:
        found[name] = remaining_s()

    async def main() -> None:
        with caliber.deadline(60_000):
            thread = threading.Thread(target=look, args=("thread",))
            thread.start()
            beside = asyncio.create_task(asyncio.to_thread(look, "task"))
            await asyncio.gather(asyncio.to_thread(look, "to_thread"), own())
            look("after")
        thread.join()
        await beside
        await asyncio.to_thread(look, "outside")

    async def own() -> None:
        with caliber.deadline(1_000):
            await asyncio.sleep(0)
            look("shorter")

    asyncio.run(main())
    assert (found["thread"], found["outside"]) == (None, None)
    assert all(50 < (found[name] or 0) <= 60 for name in ("task", "to_thread", "after"))
    assert 0 < (found["shorter"] or 0) <= 1


def test_a_block_of_a_generator_that_is_closed_elsewhere_ends() -> None:
    def one() -> Iterator[None]:
        with caliber.deadline(60_000):
            yield

    begun = one()
    contextvars.copy_context().run(next, begun)
    begun.close()
    assert remaining_s() is None


def test_what_waits_for_others_ends_with_the_deadline(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    for name in ("ann", "bob"):
        memory.agents.register(name, type=name)
    ann = memory.acting_as(caliber.Principal.agent("ann"))
    waits: dict[str, Callable[[], Any]] = {
        "request": lambda: ann.agents.messages.request("?", to="bob", timeout_ms=600_000),
        "listen": lambda: list(ann.agents.messages.listen()),
        "watch": lambda: list(ann.workspace.values.watch("none/")),
    }
    for name, wait in waits.items():
        with pytest.raises(Unavailable) as caught, caliber.deadline(300):
            wait()
        assert caught.value.reason == "timeout", name
    assert list(ann.agents.messages.listen(idle_ms=1)) == []


def test_asynchronous_calls_end_with_the_deadline(file_backend: Any) -> None:
    file_backend.open(embedding_provider=None).close()

    async def main() -> None:
        async with await caliber.aio.open(file_backend.config(embedding_provider=None)) as memory:
            ann = memory.acting_as(caliber.Principal.agent("ann"))
            await memory.agents.register("ann", type="worker")
            await memory.agents.register("bob", type="worker")
            await memory.agents.locks.acquire("door", holder="me", lease_ms=10**9)

            async def listened() -> None:
                async for _ in ann.agents.messages.listen():
                    pass

            async def watched() -> None:
                async for _ in ann.workspace.values.watch("none/"):
                    pass

            waits: dict[str, Callable[[], Any]] = {
                "a write": lambda: memory.start_trajectory("goal", initiator=USER),
                "lock": lambda: memory.agents.locks.acquire("door", holder="you", wait_ms=600_000),
                "request": lambda: ann.agents.messages.request("?", to="bob", timeout_ms=600_000),
                "listen": listened,
                "watch": watched,
            }
            for name, wait in waits.items():
                with pytest.raises(Unavailable) as caught, caliber.deadline(0 if name == "a write" else 300):
                    await wait()
                assert caught.value.reason == "timeout", name
            assert await memory.agents.locks.waiting() == []
            with caliber.deadline(60_000):
                await memory.start_trajectory("goal", initiator=USER)

    asyncio.run(main())
