"""Transactions of several calls: all of their writes or none, for threads, tasks, races and interrupts.

Source: C-242; docs/api.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.configs import config
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT
from support.threads import at_once, begin
from support.waits import until

import caliber
from caliber.engine import transaction
from caliber.model.errors import Conflict, InvalidValue, NotFound, TransactionFailed, Unavailable
from caliber.model.joining import joined_in
from caliber.storage.bulk.protocol import OnExisting

COUNTER = {
    "name": "counter",
    "type": "working",
    "fields": [{"name": "name", "type": "text"}, {"name": "value", "type": "int"}],
    "key": ["name"],
}


SKY: dict[str, Any] = {"entity": "sky", "entity_type": "thing", "content": "the sky is blue", "confidence": 1.0}


@pytest.fixture
def kept(backend: Any) -> Any:
    return backend.open(backend.config(memories=[FACT, COUNTER]))


class Oops(Exception):
    pass


def held() -> bool:
    """Return whether a transaction is under way."""
    return any(thread.name == "caliber-transaction" for thread in threading.enumerate())


def test_what_calls_of_a_block_write_is_there_together(kept: Any) -> None:
    told: list[str] = []
    kept.events.subscribe(lambda event: told.append(event.event_type))
    facts = kept.records("fact")
    with kept.transaction():
        task = kept.start_trajectory("t", user="me")
        scope = kept.open_scope(task.trajectory_id)
        turn = kept.append_turn(scope.scope_id, role="user", content="hello")
        note = kept.add_note(**SKY)
        fact = facts.insert(subject="Ada", kind="claim", content="wrote")
        assert facts.update(fact.record_id, score=0.5).version == 2
        assert facts.find() == []
        assert "memory_insert" not in told
    assert kept.get(turn.turn_id).content == b"hello"
    assert kept.get(note.note_id).content == "the sky is blue"
    assert facts.get(fact.record_id).score == 0.5
    assert "memory_insert" in told
    assert not held()


def test_an_error_in_a_block_undoes_all_of_it(kept: Any) -> None:
    facts = kept.records("fact")

    def block() -> None:
        with kept.transaction():
            facts.insert(subject="Ada", kind="claim")
            kept.add_note(**SKY)
            raise Oops

    with pytest.raises(Oops):
        block()
    assert facts.find() == kept.records("note").find() == []
    assert not held()
    facts.insert(subject="Bo", kind="claim")
    assert facts.count() == 1


def test_a_call_that_failed_ends_the_transaction(kept: Any) -> None:
    facts = kept.records("fact")

    def block() -> None:
        with kept.transaction():
            facts.insert(subject="Ada", kind="claim")
            with pytest.raises(NotFound):
                facts.update(kept.start_trajectory("t", user="me").trajectory_id, score=1.0)
            with pytest.raises(TransactionFailed, match="leave its block"):
                facts.insert(subject="Bo", kind="claim")

    with pytest.raises(TransactionFailed, match=r"a call in it failed \(NotFound\)"):
        block()
    assert facts.find() == []
    with kept.transaction():
        with pytest.raises(InvalidValue):  # refused before anything was written
            facts.insert(subject="Ada", kind="claims")
        facts.insert(subject="Ada", kind="claim")
    assert facts.count() == 1


def test_blocks_join_and_stores_do_not(kept: Any, backend: Any) -> None:
    facts = kept.records("fact")

    def block() -> None:
        with kept.transaction():
            with kept.as_user("ana").transaction():
                facts.insert(subject="Ada", kind="claim")
            raise Oops

    with pytest.raises(Oops):
        block()
    assert facts.find() == []
    with caliber.open(caliber.profiles.chat_companion(":memory:", memories=[FACT])) as other:

        def block() -> None:
            with kept.transaction():
                other.records("fact").insert(subject="Ada", kind="claim")
                with other.transaction():
                    other.records("fact").insert(subject="Bo", kind="claim")
                    facts.insert(subject="Cy", kind="claim")
                raise Oops

        with pytest.raises(Oops):
            block()
        assert other.records("fact").count() == 2
    assert facts.find() == []


def test_what_would_wait_is_refused(kept: Any) -> None:
    said = [{"role": "user", "content": "My name is Bob."}]
    fact = kept.records("fact").relation
    for call in (
        kept.flush, kept.close, kept.admin.vacuum, kept.admin.maintain, kept.jobs.run_due,
        partial(kept.forget, user="ana"), partial(kept.remember, said, user="ana"),
        partial(inspect(kept).store.bulk_load, fact, (), OnExisting.ERROR, print),
        kept.agents.locks.hold("x", holder="a").__enter__,
    ):  # fmt: skip
        with pytest.raises(InvalidValue, match="do it outside its block"), kept.transaction():
            call()
    kept.agents.locks.acquire("door", holder="a")
    with pytest.raises(InvalidValue, match="do it outside its block"), kept.transaction():
        kept.agents.locks.acquire("door", holder="b", wait_ms=60_000)
    kept.records("fact").insert(subject="Ada", kind="claim")
    kept.close()
    with pytest.raises(Unavailable, match="closed"), kept.transaction():
        pass


def test_messages_of_a_block_teach_after_it(kept: Any) -> None:
    said = [{"role": "user", "content": "My name is Bob and I live in Paris."}]
    with kept.transaction():
        kept.remember(said, user="bob", wait=False)
        assert kept.records("turn_buffer").find() == []
    kept.jobs.run_due()
    until(lambda: "Paris" in "".join(note.content for note in kept.records("note", user="bob").find()), "nothing", 60)


def test_a_block_in_another_one_that_fails_undoes_both(kept: Any) -> None:
    facts = kept.records("fact")

    def inner() -> None:
        with kept.transaction():
            facts.insert(subject="Ada", kind="claim")
            raise Oops

    def block() -> None:
        with kept.transaction():
            facts.insert(subject="Bo", kind="claim")
            with pytest.raises(Oops):
                inner()

    with pytest.raises(TransactionFailed, match="a block in it ended with an error"):
        block()
    assert facts.find() == []


def test_a_call_of_a_block_that_has_ended_is_refused(kept: Any) -> None:
    facts = kept.records("fact")
    with kept.transaction():
        context = contextvars.copy_context()
        facts.insert(subject="Ada", kind="claim")
    with pytest.raises(TransactionFailed, match="its block has ended"):
        context.run(facts.insert, {"subject": "Bo", "kind": "claim"})
    assert facts.count() == 1


def test_a_child_process_cannot_end_a_block_of_its_parent(tmp_path: Path) -> None:
    with caliber.open(config(str(tmp_path / "store.db"), memories=[FACT]), create=True) as memory:
        with memory.transaction():
            memory.records("fact").insert(subject="Ada", kind="claim")
            child = os.fork()
            if not child:
                try:
                    joined_in(inspect(memory).store).commit()  # type: ignore[union-attr]
                except Unavailable:
                    os._exit(3)
                os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert memory.records("fact").count() == 1


def test_nothing_is_lost_of_what_many_count(kept: Any) -> None:
    counters = kept.records("counter")
    counters.put(name="a", value=0)
    counters.put(name="b", value=0)

    def move() -> None:
        for _ in range(5):
            while True:
                try:
                    with kept.transaction():
                        a = counters.put(name="a", value=0, on_existing="keep")
                        b = counters.put(name="b", value=0, on_existing="keep")
                        counters.update(a.record_id, value=a.value + 1, version=a.version)
                        counters.update(b.record_id, value=b.value - 1, version=b.version)
                    break
                except (Conflict, TransactionFailed):
                    continue

    at_once([move] * 4)
    assert [counters.at(name=name).value for name in "ab"] == [20, -20]


def test_others_wait_for_its_end(kept: Any) -> None:
    facts = kept.records("fact")
    with kept.transaction():
        facts.insert(subject="Ada", kind="claim")
        other = begin(facts.insert, {"subject": "Bo", "kind": "claim"})
        assert facts.find() == []
    other.result(60)
    assert sorted(fact.subject for fact in facts.find()) == ["Ada", "Bo"]


def test_a_block_that_makes_no_call_is_given_up(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "IDLE_S", 0.05)
    facts = kept.records("fact")

    def block() -> None:
        with kept.transaction():
            until(
                lambda: "caliber-transaction" not in {thread.name for thread in threading.enumerate()}, "it goes on", 60
            )
            facts.insert(subject="Ada", kind="claim")

    with pytest.raises(TransactionFailed, match=r"wrote nothing for 0.05 s"):
        block()
    assert facts.find() == []


def test_an_interrupt_undoes_the_block(kept: Any) -> None:
    facts = kept.records("fact")
    facts.insert(subject="Ada", kind="claim")

    def block() -> None:
        with kept.transaction():
            facts.insert(subject="Bo", kind="claim")
            os.kill(os.getpid(), signal.SIGINT)
            facts.insert(subject="Bo", kind="claim")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert facts.count() == 1
    facts.insert(subject="Cy", kind="claim")


def test_a_deadline_bounds_the_wait_for_the_writer(tmp_path: Path) -> None:
    settings = config(str(tmp_path / "store.db"), memories=[FACT])
    with caliber.open(settings, create=True) as memory:
        facts = memory.records("fact")
        with memory.transaction():
            facts.insert(subject="Ada", kind="claim")

            def late() -> None:
                with caliber.deadline(50), memory.transaction():
                    facts.insert(subject="Bo", kind="claim")

            with pytest.raises(Unavailable, match="deadline"):
                begin(late).result(60)
        assert [fact.subject for fact in facts.find()] == ["Ada"]


@needs("reopen")
def test_asynchronous_calls_share_one(backend: Any) -> None:
    async def main() -> None:
        async with await caliber.aio.open(backend.config(memories=[FACT])) as memory:
            facts = memory.records("fact")
            with pytest.raises(Oops):
                await _failing(memory)
            assert await facts.find() == []
            async with memory.transaction():
                await asyncio.gather(*(facts.insert(subject=name, kind="claim") for name in "abc"))
                async with memory.transaction():
                    await facts.insert(subject="d", kind="claim")
            assert sorted([fact.subject for fact in await facts.find()]) == ["a", "b", "c", "d"]
            task = asyncio.ensure_future(_cancelled(memory))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await facts.count() == 4

    backend.create(backend.config(memories=[FACT]))
    asyncio.run(main())


def test_a_block_goes_on_while_writers_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "IDLE_S", 5)

    async def move(memory: Any, name: str) -> None:
        async with memory.transaction():
            for _ in range(2):
                await memory.records("fact").insert(subject=name, kind="claim")
                await asyncio.sleep(0)

    async def main() -> int:
        settings = config(str(tmp_path / "store.db"), memories=[FACT])
        await caliber.aio.create(settings)
        async with await caliber.aio.open(settings) as memory:
            plain = [memory.records("fact").insert(subject="plain", kind="claim") for _ in range(40)]
            await asyncio.gather(*(move(memory, f"{at}") for at in range(8)), *plain)
            return await memory.records("fact").count()  # type: ignore[no-any-return]

    assert asyncio.run(main()) == 56


async def _failing(memory: Any) -> None:
    async with memory.transaction():
        await memory.records("fact").insert(subject="Ada", kind="claim")
        raise Oops


async def _cancelled(memory: Any) -> None:
    async with memory.transaction():
        await memory.records("fact").insert(subject="e", kind="claim")
        await asyncio.Event().wait()
