"""The judge of the random machine finds each kind of fault, and nothing in a sound history."""

from __future__ import annotations

from typing import Any

from support.agents.history import OK, REFUSED, UNKNOWN, Op
from support.crash.machine import Judge
from support.crash.machine_process import digest

WORLD = {"scope": "5c", "counter": "c0", "people": ["ana"], "overwrites": False}
ANA = {"person": "ana"}
LOCKED = {"error": "Unavailable", "reason": "locked"}
DAMAGED = {"error": "StorageError", "reason": "corrupt"}
FOUND_NOT = {"error": "NotFound", "reason": None}


def op(at: int, name: str, given: dict[str, Any], outcome: str = OK, result: Any = None, ended: int | None = 0) -> Op:
    """A call at a time, or one without an answer for which ``ended`` is None."""
    return Op("p0/0", at, name, given, at * 10, None if ended is None else at * 10 + 5, outcome, result)


def text(label: str) -> str:
    return f"[{label}] I live in Graz."


def writes(at: int, *labels: str, outcome: str = OK, result: Any = None, name: str = "append", **given: Any) -> Op:
    made = {"ids": [f"id-{label}" for label in labels], "task": "t"} if outcome == OK else result
    given = {"writes": {f"[{label}]": digest(text(label)) for label in labels}, "task": "t", **ANA, **given}
    return op(at, name, given, outcome, made, None if outcome == UNKNOWN else 0)


def judged(ops: list[Op], *stored: str, count: int = 0, **more: Any) -> list[str]:
    """Return the kinds of fault of a history, beside a store with texts of these labels."""
    turns = [[f"id{label}", text(label), None, None] for label in stored]
    rows = {"turn": turns, "note": [["c0", str(count), count + 1, None]], "artifact": [], "trajectory": [], **more}
    return [fault.partition(":")[0] for fault in Judge(WORLD, ops, rows).faults()]


A, B = "p0/0#1:0", "p0/0#1:1"
FORGOTTEN, PURGED = op(5, "forget", ANA), op(5, "purge", {**ANA, "task": "t"})
BACKUP = op(3, "backup", {"archive": "a"})
CASES: dict[str, tuple[list[Op], tuple[str, ...], list[str]]] = {
    "sound": ([writes(1, A)], (A,), []),
    "sound: no answer, and not stored": ([writes(1, A, outcome=UNKNOWN)], (), []),
    "sound: no answer, and stored": ([writes(1, A, outcome=UNKNOWN)], (A,), []),
    "sound: refused": ([writes(1, A, outcome=REFUSED, result=LOCKED)], (), []),
    "sound: forgotten": ([writes(1, A), FORGOTTEN], (), []),
    "sound: written again": ([FORGOTTEN, writes(6, A)], (A,), []),
    "lost": ([writes(1, A)], (), ["lost"]),
    "lost after an erasure": ([FORGOTTEN, writes(6, A)], (), ["lost"]),
    "lost, of another person": ([writes(1, A), op(5, "forget", {"person": "ben"})], (), ["lost"]),
    "doubled": ([writes(1, A)], (A, A), ["doubled"]),
    "refused, and stored": ([writes(1, A, outcome=REFUSED, result=LOCKED)], (A,), ["refused, and stored"]),
    "half written": ([writes(1, A, B, outcome=UNKNOWN)], (A,), ["half written"]),
    "not erased": ([writes(1, A), FORGOTTEN], (A,), ["not erased"]),
    "not purged": ([writes(1, A), PURGED], (A,), ["not erased"]),
    "sound: nobody found it while it was forgotten": (
        [writes(1, A), FORGOTTEN, writes(6, B, outcome=REFUSED, result=FOUND_NOT)], (), [],
    ),
    "not found, though nobody forgot it": (
        [writes(1, A), writes(6, B, outcome=REFUSED, result=FOUND_NOT)], (A,), ["unexpected error"],
    ),
    "an error that means damage": (
        [writes(1, A, outcome=REFUSED, result=DAMAGED)], (), ["unexpected error"],
    ),
    "lost in a backup": (
        [writes(1, A), BACKUP, op(4, "restore", {"archive": "a"}, OK, [])], (A,), ["lost in a backup"],
    ),
    "erased, and in a later backup": (
        [writes(0, A), op(1, "forget", ANA), BACKUP, op(4, "restore", {"archive": "a"}, OK, [f"id-{A}"])], (),
        ["erased, and in a later backup"],
    ),
    "sound: undone by a restoration": ([BACKUP, writes(4, A), op(6, "overwrite", {"archive": "a"})], (), []),
    "lost by a restoration": ([writes(1, A), BACKUP, op(6, "overwrite", {"archive": "a"})], (), ["lost"]),
    "sound: one record under a key": ([op(at, "once", {"key": "once 1"}, OK, "a-1") for at in (1, 2)], (), []),
    "two records under a key": (
        [op(at, "once", {"key": "once 1"}, OK, f"a-{at}") for at in (1, 2)], (), ["two records under one key"],
    ),
    "an update lost": ([op(1, "count", {})], (), ["the counter is 0 in version 1, after 1 to 1 updates"]),
}  # fmt: skip


def test_verdicts() -> None:
    wrong = {
        name: found for name, (ops, stored, _) in CASES.items() if (found := judged(ops, *stored)) != CASES[name][2]
    }
    assert not wrong


def test_a_changed_text_and_a_gap_on_the_board_are_found() -> None:
    changed = [[f"id{A}", text(A) + "!", None, None]]
    assert judged([writes(1, A)], turn=changed) == ["changed"]
    board = [[f"id{at}", "", number, "5c"] for at, number in enumerate((0, 2))]
    assert judged([], turn=board) == ["turns of the board are numbered [0, 2]"]
