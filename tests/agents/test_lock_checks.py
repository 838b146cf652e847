"""The judge of lock histories, on histories made by hand: each kind of violation is named, a sound one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents.history import OK, REFUSED, UNKNOWN, FileLog, Op, operations, read_entries
from support.agents.lock_checks import Effect, lock_faults

R = "file"


def op(client: str, name: str, began: int, ended: int | None = 0, **given: Any) -> Op:
    """Return a call that took one microsecond, and was answered with ``result``."""
    outcome, result = given.pop("outcome", OK), given.pop("result", None)
    return Op(client, began, name, {"resource": R, **given}, began, began + 1 if ended == 0 else ended, outcome, result)


def acquire(client: str, at: int, token: int, *, lease: int = 100, mode: str = "exclusive") -> Op:
    return op(client, "acquire", at, mode=mode, lease=0, result={"token": token, "mode": mode, "expires": at + lease})


def write(client: str, at: int, token: int, **options: Any) -> Op:
    return op(client, "write", at, token=token, tag=f"{client}#{at}", **options)


def effects(*writes: Op) -> dict[str, list[Effect]]:
    return {R: [Effect(each.given["tag"], each.given["token"]) for each in writes]}


A, B = acquire("a", 0, 1), acquire("b", 200, 2)
W1, W2 = write("a", 10, 1), write("b", 210, 2)


def test_a_sound_history_has_no_violation() -> None:
    lost = write("a", 20, 1, ended=None, outcome=UNKNOWN)
    release = op("b", "release", 220, token=2, result=True)
    stale = write("a", 230, 1, outcome=REFUSED, result="LockExpired")
    renewed = op("a", "renew", 30, token=1, lease=0, result={"token": 1, "expires": 150})
    ops = [A, W1, lost, renewed, B, W2, release, stale, acquire("c", 222, 3)]
    assert lock_faults(ops, effects(W1, W2)) == []
    assert lock_faults(ops, effects(W1, lost, W2)) == []
    shared = [acquire("a", 0, 1, mode="shared"), acquire("b", 5, 2, mode="shared"), write("b", 10, 2), W1]
    assert lock_faults(shared, effects(shared[2], W1)) == []


VIOLATIONS: dict[str, tuple[list[Op], dict[str, list[Effect]], str]] = {
    "a token twice": ([A, acquire("b", 200, 1)], {}, "was given 2 times"),
    "a token that falls": ([acquire("a", 0, 2), acquire("b", 200, 1)], {}, "does not rise"),
    "two holders": ([A, acquire("b", 50, 2)], {}, "two hold"),
    "a shared one beside an exclusive one": ([A, acquire("b", 50, 2, mode="shared")], {}, "two hold"),
    "a renewed lock that did not hold": (
        [A, op("a", "renew", 50, token=1, lease=0, result={"token": 1, "expires": 400}), B],
        {},
        "two hold",
    ),
    "an old token's write after a new one's": ([A, B, W1, W2], effects(W2, W1), "after one under 2"),
    "an old token's write once a new one was given": (
        [A, B, write("a", 210, 1)],
        effects(write("a", 210, 1)),
        "although 2 was given",
    ),
    "a lost write": ([A, W1], {R: []}, "is lost"),
    "a doubled write": ([A, W1], effects(W1, W1), "took effect 2 times"),
    "a refused write that took effect": (
        [A, write("a", 10, 1, outcome=REFUSED)],
        effects(W1),
        "a refused write took effect",
    ),
    "a write of no client": ([A], effects(W1), "that no client made"),
    "a write under another token": ([A, W1], {R: [Effect("a#10", 7)]}, "of another resource or token"),
    "a release by another": ([A, op("b", "release", 10, token=1, result=True)], {}, "release of a lock of a"),
    "a renewal by another": (
        [A, op("b", "renew", 10, token=1, lease=0, result={"token": 1, "expires": 150})],
        {},
        "renew of a lock of a",
    ),
    "a renewal under another token": (
        [A, op("a", "renew", 10, token=1, lease=0, result={"token": 3, "expires": 150})],
        {},
        "has another token",
    ),
    "a lease that is short": (
        [op("a", "acquire", 0, mode="exclusive", lease=1, result={"token": 1, "mode": "exclusive", "expires": 999})],
        {},
        "shorter than asked",
    ),
    "a write after the release": (
        [A, op("a", "release", 5, token=1, result=True), W1],
        effects(W1),
        "after the release",
    ),
    "a second release": (
        [A, op("a", "release", 5, token=1, result=True), op("a", "release", 8, token=1, result=True)],
        {},
        "after the release",
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_named(name: str) -> None:
    ops, written, expected = VIOLATIONS[name]
    faults = lock_faults(ops, written)
    assert any(expected in fault for fault in faults), faults


def test_with_clocks_that_differ_only_tokens_and_writes_count() -> None:
    ops = [A, acquire("b", 50, 2)]
    assert lock_faults(ops, {}, same_clock=False) == []


def test_a_killed_client_loses_at_most_the_line_it_was_writing(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log")
    entry = {"client": "a", "number": 0, "name": "acquire", "given": {"resource": R}, "at": 1}
    log.append(entry)
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"client": "a", "number": 0, "outc')
    found = operations(read_entries(tmp_path / "log"))
    assert [(one.name, one.outcome, one.ended) for one in found] == [("acquire", UNKNOWN, None)]


@pytest.mark.parametrize("torn", ["an answer without its call", "two answers to one call", "two calls of one number"])
def test_a_torn_history_is_refused(torn: str) -> None:
    call = {"client": "a", "number": 0, "name": "acquire", "given": {}, "at": 1}
    answer = {"client": "a", "number": 0, "outcome": OK, "result": None, "at": 2}
    entries = {"an answer without its call": [answer], "two answers to one call": [call, answer, answer]}
    with pytest.raises(AssertionError):
        operations(entries.get(torn, [call, call]))
