"""The async facade: same names, same results, and an event loop that is never held up. Source: O-4, K-206."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.configs import ADMIN
from support.inspection import inspect
from support.threads import begin
from support.waits import until

import caliber
from caliber import EntityRef, EntityType, LockToken
from caliber.config import CaliberConfig
from caliber.model.access import Principal, PrincipalKind
from caliber.model.errors import InputError, LockAcquisitionFailed, NotFound, PermissionDenied, Unavailable
from caliber.model.time import SystemClock

ME = EntityRef(EntityType.AGENT, uuid.UUID(int=7))


@pytest.fixture
def config(tmp_path: Path) -> CaliberConfig:
    settings = caliber.profiles.reference(
        tmp_path / "a.db",
        principal=ADMIN,
        embedding_provider={"provider_type": "hash", "model": "hash", "dimensions": 32},
        **{"aio.workers": 4, "aio.queue": 8, "vector.dimensions": 32},
    )
    caliber.create(settings)
    return settings


def test_a_whole_task_runs_asynchronously(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            task = await memory.start_trajectory("Write the report", initiator=ME)
            scope = await memory.current_scope(task.trajectory_id)
            assert scope is not None
            await asyncio.gather(
                *(memory.append_turn(scope.scope_id, role="user", content=f"message {at}") for at in range(20))
            )
            window = await memory.assemble_context(task.trajectory_id, query="message")
            assert window.used_tokens <= window.max_tokens
            assert sorted([turn.turn_number async for turn in memory.storage.turns.all()]) == list(range(20))
            outcome = await memory.complete_trajectory(task.trajectory_id, status="success", summary="done")
            assert outcome.summary == "done"
            with pytest.raises(NotFound):
                await memory.get(uuid.uuid4())
        with pytest.raises(Unavailable):
            memory.sync.admin.stats()

    asyncio.run(run())


def test_the_event_loop_is_not_held_up_by_writers(config: CaliberConfig) -> None:
    """Forty writes that each wait for a disk: the loop goes on ticking meanwhile."""

    async def run() -> bool:
        async with await caliber.aio.open(config) as memory:
            task = await memory.start_trajectory("Load", initiator=ME)
            scope = await memory.current_scope(task.trajectory_id)
            assert scope is not None
            blocked, enough = threading.Event(), threading.Event()
            held = inspect(memory.sync).writer.exclusive()

            def hold() -> None:
                with held:
                    blocked.set()
                    enough.wait(30)

            holder = begin(hold)
            blocked.wait()
            writes = [
                asyncio.ensure_future(memory.append_turn(scope.scope_id, role="user", content=f"{at}"))
                for at in range(40)
            ]
            for _ in range(50):
                await asyncio.sleep(0.001)
            # A loop that waited for the writer would not have come here before whoever holds it gave up.
            free = not holder.done() and not any(write.done() for write in writes)
            enough.set()
            assert len({(await write).turn_id for write in writes}) == 40
            holder.result()
            return free

    assert asyncio.run(run())


def test_a_call_cancelled_before_its_turn_never_runs(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            task = await memory.start_trajectory("Cancel", initiator=ME)
            scope = await memory.current_scope(task.trajectory_id)
            assert scope is not None
            with inspect(memory.sync).writer.exclusive():
                writes = [
                    asyncio.ensure_future(memory.append_turn(scope.scope_id, role="user", content=f"{at}"))
                    for at in range(30)
                ]
                await asyncio.to_thread(until, lambda: inspect(memory.sync).waiting == 4)
                for write in writes[12:]:
                    write.cancel()
                await asyncio.wait(writes[12:])
            done = await asyncio.gather(*writes, return_exceptions=True)
            kept = [item for item in done if not isinstance(item, BaseException)]
            assert len(kept) == 12
            await memory.flush()
            # Four ran, eight waited for a thread, the rest waited in the loop: what was cancelled is not stored.
            assert await memory.storage.turns.count() == 12
            assert await memory.admin.verify() == []

    asyncio.run(run())


def test_locks_wait_in_the_loop_and_leave_the_threads_to_who_gives_them_back(config: CaliberConfig) -> None:
    """More agents wait than there are threads: were the threads theirs, nobody could release."""

    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            locks = memory.agents.locks
            first = await locks.acquire("file", holder="a", lease_ms=60_000)
            inside: list[str] = []

            async def work(holder: str) -> str:
                lock = await locks.acquire("file", holder=holder, lease_ms=60_000, wait_ms=60_000)
                inside.append(holder)
                assert len(inside) == 1, "two held an exclusive lock"
                await asyncio.sleep(0)
                inside.remove(holder)
                assert await locks.release(LockToken("file", lock.token), holder=holder)
                return holder

            waiting = [asyncio.ensure_future(work(f"h{at}")) for at in range(6)]
            with pytest.raises(LockAcquisitionFailed) as caught:
                await locks.acquire("file", holder="b", lease_ms=60_000)
            assert caught.value.holder == "a"
            renewed = await locks.renew(LockToken("file", first.token), holder="a", lease_ms=120_000)
            assert await locks.held("file") == [renewed]
            assert renewed.expires_at > first.expires_at
            assert await locks.release(LockToken("file", first.token), holder="a")
            assert sorted(await asyncio.gather(*waiting)) == [f"h{at}" for at in range(6)]
            assert await locks.held("file") == []
            assert await locks.reap() >= 0

    asyncio.run(run())


def test_locks_are_those_of_the_handles_principal(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            await memory.agents.locks.acquire("file", holder="agent:planner", lease_ms=60_000)
            other = memory.acting_as(Principal(PrincipalKind.AGENT, "other"))
            with pytest.raises(LockAcquisitionFailed) as caught:
                await other.agents.locks.acquire("file", holder="agent:other")
            assert caught.value.holder is None
            with pytest.raises(PermissionDenied):
                await other.agents.locks.acquire("file", holder="agent:planner")
            with pytest.raises(InputError):
                await other.agents.locks.acquire("file", holder="agent:other", wait_ms=-1)

    asyncio.run(run())


def test_closing_does_not_wait_for_a_full_pool(config: CaliberConfig) -> None:
    async def run() -> None:
        memory = await caliber.aio.open(config)
        await memory.close()
        await memory.close()
        with pytest.raises(Unavailable, match="closed"):
            memory.sync.get(uuid.uuid4())

    asyncio.run(run())


class SlowClock(SystemClock):
    """The machine's clock, whose first reading waits until it is released."""

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()

    def now_us(self) -> int:
        self.asked.set()
        self.released.wait(30)
        return super().now_us()


def test_an_opening_that_is_cancelled_leaves_no_store_open(config: CaliberConfig) -> None:
    async def run() -> None:
        clock = SlowClock()
        opening = asyncio.ensure_future(caliber.aio.open(config, clock=clock))
        await asyncio.to_thread(clock.asked.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        clock.released.set()

    asyncio.run(run())  # ends when the threads of the loop have ended
    caliber.purge(config)  # refuses a store that is open


def test_an_open_handle_has_an_asynchronous_face_for_every_loop(config: CaliberConfig) -> None:
    with caliber.open(config, create=True) as memory:

        async def talk(user: str) -> str:
            face = caliber.aio.of(memory.as_user(user))
            assert face.sync.config == memory.config
            task = await face.start_trajectory("Plan")
            scope = await face.open_scope(task.trajectory_id)
            said = (face.append_turn(scope.scope_id, role="user", content=f"{at} of {user}") for at in range(30))
            await asyncio.gather(*said)
            return (await face.assemble_context(task.trajectory_id)).text

        texts = [asyncio.run(talk(user)) for user in ("maria", "ben")]  # a loop each, one after the other
        with ThreadPoolExecutor(2) as threads:  # and two at once
            texts += threads.map(lambda user: asyncio.run(talk(user)), ("ana", "eve"))
        assert [f"29 of {user}" in text for user, text in zip(("maria", "ben", "ana", "eve"), texts, strict=True)]
        named = [thread for thread in threading.enumerate() if thread.name.startswith("caliber-aio")]
        assert len(named) <= memory.config.aio.workers
