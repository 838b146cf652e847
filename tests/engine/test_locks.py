"""Locks: leases with fencing tokens, and writes that a lost lease no longer gets through. Source: C-364 to C-368."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.configs import config

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


@pytest.mark.parametrize("wrong", [
    {"lease_ms": 0}, {"lease_ms": -1}, {"lease_ms": 2**62}, {"lease_ms": "long"}, {"mode": "half"}, {"wait_ms": -1},
    {"holder": ""}, {"holder": None}, {"resource": ""}, {"resource": 5},
])  # fmt: skip
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
