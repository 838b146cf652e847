"""Locks: leases with fencing tokens, and writes that a lost lease no longer gets through. Source: C-364 to C-368."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.configs import config
from support.drawn import needs

import caliber
from caliber.model import FixedClock, LockMode, LockToken, Principal
from caliber.model.errors import InputError, LockAcquisitionFailed, LockExpired, PermissionDenied
from caliber.model.time import from_us


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def agent(backend: Any, start: Any, clock: FixedClock) -> Any:
    return start(backend.open(clock=clock))


def token_of(lock: Any) -> LockToken:
    return LockToken(lock.resource, lock.token)


def test_exclusive_lock_excludes(agent: Any, clock: FixedClock) -> None:
    locks = agent.memory.agents.locks
    first = locks.acquire("file", holder="a", lease_ms=1_000)
    assert first.expires_at == from_us(clock.now_us() + 1_000_000)
    assert first.mode is LockMode.EXCLUSIVE
    for mode in ("exclusive", "shared"):
        with pytest.raises(LockAcquisitionFailed) as caught:
            locks.acquire("file", holder="b", lease_ms=1_000, mode=mode)
        assert caught.value.retryable
        assert caught.value.holder == "a", "an admin may know"
        assert caught.value.context == {"resource": "file", "holder": "a"}
    locks.acquire("other file", holder="b", lease_ms=1_000)
    assert [lock.holder for lock in locks.held("file")] == ["a"]
    with pytest.raises(PermissionDenied):
        locks.release(token_of(first), holder="b")
    assert locks.release(token_of(first), holder="a") is True
    assert locks.release(token_of(first), holder="a") is False
    assert locks.acquire("file", holder="b", lease_ms=1_000).token > first.token


def test_shared_locks_share(agent: Any) -> None:
    locks = agent.memory.agents.locks
    locks.acquire("file", holder="a", lease_ms=1_000, mode="shared")
    locks.acquire("file", holder="b", lease_ms=1_000, mode="shared")
    assert len(locks.held("file")) == 2
    with pytest.raises(LockAcquisitionFailed):
        locks.acquire("file", holder="c", lease_ms=1_000)


def test_lease_ends_and_another_takes_over(agent: Any, clock: FixedClock) -> None:
    locks = agent.memory.agents.locks
    first = locks.acquire("file", holder="a", lease_ms=1_000)
    clock.advance(ms=999)
    agent.say("still mine", guard=token_of(first))
    clock.advance(ms=1)
    with pytest.raises(LockExpired):
        agent.say("too late", guard=token_of(first))
    second = locks.acquire("file", holder="b", lease_ms=1_000)
    assert second.token > first.token
    with pytest.raises(LockExpired):
        locks.renew(token_of(first), holder="a", lease_ms=1_000)
    assert locks.renew(token_of(second), holder="b", lease_ms=5_000).expires_at == from_us(clock.now_us() + 5_000_000)
    clock.advance(ms=4_000)
    agent.say("renewed", guard=token_of(second))
    assert [turn.text for turn in agent.memory.storage.turns.all()] == ["still mine", "renewed"]


def test_same_holder_renews_under_a_new_token(agent: Any) -> None:
    locks = agent.memory.agents.locks
    first = locks.acquire("file", holder="a", lease_ms=1_000)
    second = locks.acquire("file", holder="a", lease_ms=1_000)
    assert second.token > first.token
    assert len(locks.held("file")) == 1
    with pytest.raises(LockExpired):
        agent.say("with the old token", guard=token_of(first))
    agent.say("with the new one", guard=token_of(second))


def test_tokens_rise_also_after_old_rows_are_gone(agent: Any, clock: FixedClock) -> None:
    # K-037: a token that came twice would let a lost writer through
    locks = agent.memory.agents.locks
    seen = []
    for _ in range(4):
        seen.append(locks.acquire("file", holder="a", lease_ms=10).token)
        clock.advance(ms=20)
        locks.reap()
        agent.memory.admin.maintain()
    assert seen == sorted(set(seen))
    assert agent.memory.storage.locks.count() == 1


GUARDED: dict[str, Callable[[Any, LockToken], Any]] = {
    "append_turn": lambda agent, guard: agent.say("x", guard=guard),
    "append_turns": lambda agent, guard: agent.memory.append_turns(
        agent.scope_id, [{"role": "user", "content": "x"}], guard=guard
    ),
    "create_artifact": lambda agent, guard: agent.keep("x", guard=guard),
    "add_note": lambda agent, guard: agent.note("x", guard=guard),
    "close_scope": lambda agent, guard: agent.memory.close_scope(agent.scope_id, guard=guard),
    "complete_trajectory": lambda agent, guard: agent.memory.complete_trajectory(
        agent.trajectory_id, status="success", summary="", guard=guard
    ),
}


@pytest.mark.parametrize("name", GUARDED)
def test_lost_lock_stops_the_write(name: str, agent: Any, clock: FixedClock) -> None:
    # design section 4: writes take ``guard``
    lock = agent.memory.agents.locks.acquire("r", holder="a", lease_ms=1_000)
    clock.advance(ms=1_000)
    before = agent.memory.admin.stats()["position"]
    for guard in (token_of(lock), LockToken("r", lock.token + 1), LockToken("unknown", 1)):
        with pytest.raises(LockExpired):
            GUARDED[name](agent, guard)
    assert agent.memory.admin.stats()["position"] == before, "nothing was written"
    again = agent.memory.agents.locks.acquire("r", holder="a", lease_ms=60_000)
    GUARDED[name](agent, token_of(again))
    assert agent.memory.admin.stats()["position"] != before


def own_note(agent: Any) -> Any:
    return agent.note(f"first of {agent.memory.principal.label}").note_id


ALSO_GUARDED: dict[str, Callable[[Any, LockToken], Any]] = {
    **GUARDED,
    "update_note": lambda agent, guard: agent.memory.update_note(own_note(agent), content="second", guard=guard),
    "delete_note": lambda agent, guard: agent.memory.delete_note(own_note(agent), guard=guard),
    "set_value": lambda agent, guard: agent.memory.workspace.values.set("key", 1, guard=guard),
    "delete_value": lambda agent, guard: (
        agent.memory.workspace.values.set("key", 1),
        agent.memory.workspace.values.delete("key", guard=guard),
    ),
}


@pytest.mark.parametrize("name", ALSO_GUARDED)
def test_a_lock_guards_the_writes_of_its_holder_alone(name: str, agent: Any) -> None:
    lock = agent.memory.agents.locks.acquire("r", holder="agent:holder", lease_ms=60_000)
    stranger, holder = copy.copy(agent), copy.copy(agent)
    stranger.memory = agent.memory.acting_as(Principal.agent("stranger"))
    holder.memory = agent.memory.acting_as(Principal.agent("holder"))
    with pytest.raises(PermissionDenied, match="lock of another holder"):
        ALSO_GUARDED[name](stranger, token_of(lock))
    ALSO_GUARDED[name](holder, token_of(lock))


def test_one_of_many_gets_the_lock(backend: Any, start: Any) -> None:
    agent = start(backend.open())
    won: list[str] = []
    inside = []

    def work(holder: str) -> None:
        lock = agent.memory.agents.locks.acquire("r", holder=holder, lease_ms=60_000, wait_ms=30_000)
        inside.append(holder)
        assert len(inside) == 1, "two held an exclusive lock"
        won.append(holder)
        inside.remove(holder)
        agent.memory.agents.locks.release(token_of(lock), holder=holder)

    threads = [threading.Thread(target=work, args=(f"h{at}",)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [f"h{at}" for at in range(6)]


@needs("sharing")
def test_two_handles_exclude_each_other(backend: Any) -> None:
    first, second = backend.open(), backend.open()
    lock = first.agents.locks.acquire("r", holder="a", lease_ms=60_000)
    with pytest.raises(LockAcquisitionFailed):
        second.agents.locks.acquire("r", holder="b", lease_ms=60_000)
    assert [item.token for item in second.agents.locks.held("r")] == [lock.token]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_ms": 0},
        {"lease_ms": -1},
        {"lease_ms": 2**62},
        {"lease_ms": "long"},
        {"mode": "half"},
        {"wait_ms": -1},
        {"holder": ""},
        {"holder": None},
        {"resource": ""},
        {"resource": 5},
    ],
)
def test_wrong_lock_is_refused(wrong: dict[str, Any], agent: Any) -> None:
    arguments = {"resource": "r", "holder": "a", "lease_ms": 1_000, **wrong}
    with pytest.raises(InputError):
        agent.memory.agents.locks.acquire(arguments.pop("resource"), **arguments)
    assert agent.memory.storage.locks.count() == 0


def test_a_lock_that_cannot_be_widened_is_kept(memory: caliber.Caliber) -> None:  # C-364
    mine = memory.agents.locks.acquire("file", holder="a", lease_ms=60_000, mode="shared")
    memory.agents.locks.acquire("file", holder="b", lease_ms=60_000, mode="shared")
    with pytest.raises(LockAcquisitionFailed):
        memory.agents.locks.acquire("file", holder="a", lease_ms=60_000, mode="exclusive")
    assert {lock.holder for lock in memory.agents.locks.held("file")} == {"a", "b"}
    assert mine.token in {lock.token for lock in memory.agents.locks.held("file")}


def test_a_lock_is_held_for_lock_timeout_unless_the_call_says_otherwise() -> None:
    # C-112
    with caliber.open(config(":memory:", lock_timeout="7s")) as memory:
        lock = memory.agents.locks.acquire("r", holder="me")
        assert (lock.expires_at - lock.acquired_at).total_seconds() == 7
        shorter = memory.agents.locks.acquire("r", holder="me", lease_ms=1_000)
        assert (shorter.expires_at - shorter.acquired_at).total_seconds() == 1
