"""Processes that are killed while they hold a lock or wait for one: the others go on. Source: C-365, K-037."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.crash.processes import Child
from support.databases import note
from support.drawn import needs
from support.waits import until

import caliber
from caliber.model import LockToken
from caliber.model.errors import LockExpired

pytestmark = pytest.mark.prove

PROCESS = Path(__file__).parent / "locking_process.py"
KNOBS = {"embedding_provider": None}
LEASE_MS, WAIT_MS = 2_000, 60_000


@pytest.fixture
def memory(backend: Any, monkeypatch: pytest.MonkeyPatch) -> caliber.Caliber:
    monkeypatch.setattr("caliber.agents.locks.PLACE_MS", 1_000)
    memory: caliber.Caliber = backend.open(**KNOBS)
    return memory


@pytest.fixture
def child(memory: caliber.Caliber, tmp_path: Path) -> Iterator[Child]:
    file = tmp_path / "config.json"
    file.write_text(memory.config.canonical_json(), encoding="utf-8")
    child = Child(PROCESS, file)
    try:
        assert child.answer() == "open"
        yield child
    finally:
        with contextlib.suppress(ValueError):  # the test has killed it
            child.kill()


@needs("sharing")
def test_the_lease_of_a_killed_holder_runs_out(memory: caliber.Caliber, child: Child) -> None:
    locks = memory.agents.locks
    token = child.ask("acquire", "file", "dead", "0", str(LEASE_MS))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: locks.acquire("file", holder="next", wait_ms=WAIT_MS))
        until(locks.waiting)
        child.kill()
        lock = waiting.result(60)
    assert lock.token == token + 1
    with pytest.raises(LockExpired):
        note(memory, "of the dead", guard=LockToken("file", token))
    note(memory, "of the next", guard=LockToken("file", lock.token))
    assert [each.content for each in memory.storage.notes.all()] == ["of the next"]


@needs("sharing")
def test_a_killed_waiter_loses_its_place(memory: caliber.Caliber, child: Child) -> None:
    locks = memory.agents.locks
    held = locks.acquire("file", holder="first", lease_ms=WAIT_MS)
    child.send("acquire", "file", "dead", str(WAIT_MS), str(WAIT_MS))
    until(locks.waiting)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: locks.acquire("file", holder="next", wait_ms=WAIT_MS))
        until(lambda: len(locks.waiting()) == 2)
        child.kill()
        locks.release(LockToken("file", held.token), holder="first")
        assert waiting.result(60).holder == "next"
    assert locks.waiting() == []
    memory.agents.locks.reap()
    assert memory.storage.lock_waiters.count() == 0
