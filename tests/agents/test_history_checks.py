"""The judges of random histories, on histories made by hand: each kind of violation is named, a sound one is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.agents.handing_checks import Given, TaskState, handing_faults, task_faults
from support.agents.history import OK, REFUSED, UNKNOWN, FileLog, Op, operations, read_entries
from support.agents.lock_checks import Effect, lock_faults
from support.agents.message_checks import Stored, message_faults
from support.agents.state_checks import AgentState, state_faults
from support.agents.value_checks import value_faults

pytestmark = pytest.mark.prove


def call(client: str, name: str, at: int, result: Any = None, *, outcome: str = OK, **given: Any) -> Op:
    """Return a call that took a microsecond; one of unknown outcome has no end."""
    return Op(client, at, name, given, at, None if outcome == UNKNOWN else at + 1, outcome, result)


# --- values --------------------------------------------------------------------------------------------


def put(at: int, value: str, version: int | None, made: int | None, **options: Any) -> Op:
    result = {"value": value, "version": made} if made is not None else options.pop("result", None)
    return call(f"c{at}", "set", at, result, key="k", value=value, version=version, **options)


def get(at: int, value: str | None, version: int = 0) -> Op:
    return call(f"c{at}", "get", at, None if value is None else {"value": value, "version": version}, key="k")


def drop(at: int, value: str, version: int) -> Op:
    return call(f"c{at}", "delete", at, {"value": value, "version": version}, key="k", version=None)


def unknown(at: int, value: str) -> Op:
    return put(at, value, None, None, outcome=UNKNOWN)


SOUND_VALUES = {
    "writes and reads": ([get(0, None), put(2, "a", 0, 1), get(4, "a", 1), put(6, "b", 1, 2), drop(8, "b", 3)],),
    "a read of a deleted key": ([put(0, "a", 0, 1), drop(2, "a", 2), get(4, None), put(6, "b", 0, 3), get(8, "b", 3)],),
    "a write without an answer": ([put(0, "a", 0, 1), unknown(2, "b"), get(4, "b", 2), put(6, "c", 2, 3)],),
    "one that did nothing": ([put(0, "a", 0, 1), unknown(2, "b"), get(4, "a", 1), put(6, "c", 1, 2)],),
    "a lost race": ([put(0, "a", 0, 1), put(2, "b", 1, 2), put(4, "c", 1, None, outcome=REFUSED, result="Conflict")],),
}
WRONG_VALUES = {
    "two writes of one version": ([put(0, "a", None, 1), put(2, "b", None, 1)], "two writes have one version"),
    "a version of no write": ([put(0, "a", None, 2)], "versions of no write"),
    "a lost update": ([put(0, "a", 0, 1), put(2, "b", 1, 2), put(4, "c", 1, 3)], "followed on version 2"),
    "a new key that was there": ([put(0, "a", 0, 1), put(2, "b", 0, 2)], "replaced version 1"),
    "a stale read": ([put(0, "a", 0, 1), put(2, "b", 1, 2), get(4, "a", 1)], "saw version 1 after 2"),
    "a read of what comes later": ([get(0, "a", 1), put(4, "a", 0, 1), get(6, None)], "finds nothing"),
    "a torn read": ([put(0, "a", 0, 1), put(2, "b", 1, 2), get(4, "a", 2)], "version 2 is b"),
    "a read of nothing": ([put(0, "a", 0, 1), get(2, None)], "finds nothing"),
    "a read of a deleted value": ([put(0, "a", 0, 1), drop(2, "a", 2), get(4, "a", 2)], "version 2 is None"),
    "a deletion of another value": ([put(0, "a", 0, 1), drop(2, "b", 2)], "version 1 is a"),
    "a refusal without a reason": (
        [put(0, "a", 0, 1), put(2, "b", 1, None, outcome=REFUSED, result="Conflict")],
        "although its version was there",
    ),
    "a value of nobody": ([put(0, "a", 0, 1), unknown(2, "b"), get(4, "x", 2)], "a value that was sent"),
}


# --- tasks ---------------------------------------------------------------------------------------------


def task(name: str, client: str, at: int, **options: Any) -> Op:
    outcome = options.pop("outcome", OK)
    result = {"id": "t", "status": ""} if outcome == OK else None
    return call(client, name, at, result, outcome=outcome, task="t", agent=client, **options)


CLAIM, DONE, BACK = task("claim", "a", 0), task("complete", "a", 5), task("give_back", "a", 5)
SOUND_TASKS: dict[str, tuple[list[Op], TaskState]] = {
    "claimed and completed": ([CLAIM, DONE], TaskState("completed", "a")),
    "given back": ([CLAIM, BACK, task("claim", "b", 8)], TaskState("in_progress", "b")),
    "perhaps given back": (
        [CLAIM, task("give_back", "a", 5, outcome=UNKNOWN), task("claim", "b", 8)],
        TaskState("in_progress", "b"),
    ),
    "perhaps completed": ([CLAIM, task("complete", "a", 5, outcome=UNKNOWN)], TaskState("completed", "a")),
    "refused": ([CLAIM, task("claim", "b", 3, outcome=REFUSED)], TaskState("in_progress", "a")),
}
WRONG_TASKS: dict[str, tuple[list[Op], TaskState, str]] = {
    "two claims": ([CLAIM, task("claim", "b", 3)], TaskState("in_progress", "b"), "claimed 2 times"),
    "two claims before it was given back": ([CLAIM, task("claim", "b", 3), BACK], TaskState("pending", None),
                                            "was claimed again"),
    "two completions": ([CLAIM, DONE, task("complete", "a", 8)], TaskState("completed", "a"), "completed 2 times"),
    "completed by another": ([CLAIM, task("complete", "b", 5)], TaskState("completed", "a"), "never claimed it"),
    "a claim after the end": ([CLAIM, DONE, task("claim", "b", 8)], TaskState("completed", "a"), "claim after"),
    "a lost completion": ([CLAIM, DONE], TaskState("in_progress", "a"), "completion is lost"),
    "a lost claim": ([CLAIM], TaskState("pending", None), "claim is lost"),
    "a completion of nobody": ([CLAIM], TaskState("completed", "a"), "that nobody completed"),
    "a claim of nobody": ([], TaskState("in_progress", "a"), "nobody claimed"),
    "another's hands": ([CLAIM], TaskState("in_progress", "b"), "in the hands of b"),
}  # fmt: skip


def test_a_claim_of_a_task_of_nobody_is_named() -> None:
    assert "that nobody added" in task_faults([CLAIM], {})[0]


# --- messages ------------------------------------------------------------------------------------------


def send(at: int, tag: str, **options: Any) -> Op:
    outcome, to, topic = options.pop("outcome", OK), options.pop("to", "box"), options.pop("topic", "news")
    result = {"id": options.pop("id", tag)} if outcome == OK else None
    return call("s", "send", at, result, outcome=outcome, sender="s", to=to, topic=topic, tag=tag)


def claim(client: str, at: int, *tags: str, attempts: int = 1, lease: int = 1, box: str = "box") -> Op:
    held = [{"id": tag, "tag": tag, "attempts": attempts, "until": at + lease * 1_000} for tag in tags]
    return call(client, "claim", at, held, box=box, lease=lease)


def ack(client: str, at: int, tag: str, **options: Any) -> Op:
    outcome = options.get("outcome", OK)
    return call(client, "ack", at, 1 if outcome == OK else None, outcome=outcome, tag=tag, box="box")


def give_up(at: int, tag: str) -> Op:
    return call("r", "release", at, 1, tag=tag, box="box")


def kept(**states: str) -> dict[str, list[Stored]]:
    return {tag: [Stored(tag, state)] for tag, state in states.items()}


M, N = send(0, "m"), send(2, "n")
SOUND_MESSAGES: dict[str, tuple[list[Op], dict[str, list[Stored]]]] = {
    "delivered in order": ([M, N, claim("r", 10, "m"), ack("r", 12, "m"), claim("r", 14, "n"), ack("r", 16, "n")],
                           kept(m="acknowledged", n="acknowledged")),
    "perhaps acknowledged": ([M, N, claim("r", 10, "m"), ack("r", 12, "m", outcome=UNKNOWN), claim("q", 14, "n")],
                             kept(m="acknowledged", n="pending")),
    "delivered again after the lease": (
        [M, claim("r", 10, "m"), claim("q", 2_000, "m", attempts=2), ack("q", 2_002, "m")], kept(m="acknowledged")
    ),
    "given back": ([M, claim("r", 10, "m"), give_up(12, "m"), claim("q", 14, "m", attempts=2)], kept(m="pending")),
    "sent again under its key": ([send(0, "m", outcome=UNKNOWN), send(2, "m"), send(4, "m")], kept(m="pending")),
    "of another topic": ([M, send(2, "n", topic="plans"), claim("r", 10, "n")], kept(m="pending", n="pending")),
}  # fmt: skip
WRONG_MESSAGES: dict[str, tuple[list[Op], dict[str, list[Stored]], str]] = {
    "lost": ([M], {}, "message is lost"),
    "doubled": ([M], {"m": [Stored("m", "pending"), Stored("x", "pending")]}, "there 2 times"),
    "another id for the same key": ([M, send(2, "m", id="x")], kept(m="pending"), "is lost"),
    "refused and there": ([send(0, "m", outcome=REFUSED)], kept(m="pending"), "that was not sent is there"),
    "of nobody": ([claim("r", 10, "m")], {}, "a message that was not sent"),
    "delivered before it was sent": ([send(20, "m"), claim("r", 10, "m")], kept(m="pending"), "that was not sent"),
    "for another": ([send(0, "m", to="other"), claim("r", 10, "m")], kept(m="pending"), "a message for other"),
    "acknowledged twice": ([M, claim("r", 10, "m"), ack("r", 12, "m"), ack("q", 14, "m")], kept(m="acknowledged"),
                           "acknowledged 2 times"),
    "an acknowledgement that is lost": ([M, claim("r", 10, "m"), ack("r", 12, "m")], kept(m="pending"),
                                        "an acknowledgement is lost"),
    "delivered after its end": ([M, claim("r", 10, "m"), ack("r", 12, "m"), claim("q", 14, "m", attempts=2)],
                                kept(m="acknowledged"), "after its acknowledgement"),
    "an acknowledgement of nobody": ([M, claim("r", 10, "m")], kept(m="acknowledged"), "that nobody acknowledged is"),
    "dead": ([M], kept(m="dead"), "a message is dead"),
    "two readers": ([M, claim("r", 10, "m"), claim("q", 500, "m", attempts=2)], kept(m="pending"),
                    "two readers hold a message"),
    "an attempt twice": ([M, claim("r", 10, "m"), claim("q", 2_000, "m")], kept(m="pending"),
                         "attempt 1 of a message twice"),
    "a lease that is short": ([M, claim("r", 10, "m", lease=1)._replace(given={"box": "box", "lease": 5})],
                              kept(m="pending"), "shorter than asked"),
    "the second before the first": ([M, N, claim("r", 10, "n")], kept(m="pending", n="pending"), "came before"),
    "both at once": ([M, N, claim("r", 10, "m", "n")], kept(m="pending", n="pending"), "came before"),
}  # fmt: skip


# --- delegations and handoffs --------------------------------------------------------------------------


def handed(name: str, agent: str, at: int, *, outcome: str = OK, child: str = "c") -> Op:
    result = {"status": "", "child": child} if outcome == OK else None
    return call(f"c{at}", name, at, result, outcome=outcome, id="d", agent=agent)


ACCEPT, START, COMPLETE = handed("accept", "a", 0), handed("start", "a", 2), handed("complete", "a", 4)
SOUND_HANDING: dict[str, tuple[list[Op], Given]] = {
    "from beginning to end": ([ACCEPT, START, COMPLETE], Given("completed", "a", "completed")),
    "repeated": ([ACCEPT, handed("accept", "a", 1), START, handed("start", "a", 3)],
                 Given("in_progress", "a", "active")),
    "a completion of unknown outcome": ([ACCEPT, START, handed("complete", "a", 4, outcome=UNKNOWN)],
                                        Given("completed", "a", "completed")),
    "cancelled before it was accepted": ([handed("cancel", "boss", 0)], Given("rejected", None)),
    "taken over": ([handed("take", "a", 0), handed("finish", "a", 2)], Given("completed", "a")),
}  # fmt: skip
WRONG_HANDING: dict[str, tuple[list[Op], Given, str]] = {
    "two agents": ([ACCEPT, handed("accept", "b", 2)], Given("accepted", "a"), "two agents accepted"),
    "two tasks": ([ACCEPT, handed("accept", "a", 2, child="x")], Given("accepted", "a"), "two tasks began"),
    "another agent works": ([ACCEPT, handed("start", "b", 2)], Given("in_progress", "a"), "did not accept"),
    "in other hands": ([ACCEPT], Given("accepted", "b"), "in the hands of b"),
    "a step left out": ([ACCEPT, handed("complete", "a", 2)], Given("completed", "a"), "complete without start"),
    "half a completion": ([ACCEPT, START, handed("complete", "a", 4, outcome=UNKNOWN)],
                          Given("in_progress", "a", "completed"), "its task completed"),
    "two ends": ([ACCEPT, START, COMPLETE, handed("cancel", "boss", 6)], Given("completed", "a"), "ended 2 times"),
    "a step after the end": ([ACCEPT, START, COMPLETE, handed("start", "a", 6)], Given("completed", "a"),
                             "start after"),
    "a lost end": ([ACCEPT, START, COMPLETE], Given("in_progress", "a"), "end is lost"),
    "a lost step": ([ACCEPT], Given("pending", "a"), "step is lost"),
    "an end of nobody": ([ACCEPT], Given("failed", "a"), "no call did that"),
    "an acceptance of nobody": ([], Given("accepted", "a"), "no agent accepted"),
    "a task that is over": ([ACCEPT, START], Given("in_progress", "a", "completed"), "and its task completed"),
}  # fmt: skip


# --- states of agents ----------------------------------------------------------------------------------


def moved(at: int, status: str, version: int, asked: str | None = None, **options: Any) -> Op:
    result = {"version": version, "status": status}
    return call(f"c{at}", "set_status", at, result, agent="a", status=asked or status, **options)


LOST = moved(4, "blocked", 0, outcome=UNKNOWN)
SOUND_STATES = {
    "allowed steps": (
        [moved(0, "active", 2), moved(2, "blocked", 3), LOST, moved(6, "failed", 5)],
        AgentState(5, "failed"),
    )
}
WRONG_STATES = {
    "a step too far": ([moved(0, "blocked", 2)], AgentState(2, "blocked"), "from idle to blocked"),
    "two of one version": ([moved(0, "active", 2), moved(2, "failed", 2)], AgentState(2, "failed"), "one version"),
    "another state": ([moved(0, "idle", 2, "active")], AgentState(2, "idle"), "than asked"),
    "a lost change": ([moved(0, "active", 2)], AgentState(2, "idle"), "is lost"),
    "a version lost": ([moved(0, "active", 2)], AgentState(1, "idle"), "changes of no call"),
    "a change of nobody": ([moved(0, "active", 2)], AgentState(4, "idle"), "changes of no call"),
    "a change before one that was over": ([moved(0, "active", 3), moved(4, "idle", 2)], AgentState(3, "active"),
                                          "that was over"),
}  # fmt: skip


# --- locks ------------------------------------------------------------------------------------------------


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
SHARED = [acquire("a", 0, 1, mode="shared"), acquire("b", 5, 2, mode="shared"), write("b", 10, 2), W1]
UNANSWERED = write("a", 20, 1, ended=None, outcome=UNKNOWN)
FENCED = [
    A,
    W1,
    UNANSWERED,
    op("a", "renew", 30, token=1, lease=0, result={"token": 1, "expires": 150}),
    B,
    W2,
    op("b", "release", 220, token=2, result=True),
    write("a", 230, 1, outcome=REFUSED, result="LockExpired"),
    acquire("c", 222, 3),
]
SOUND_LOCKS = {
    "an old token's write is refused": (FENCED, effects(W1, W2)),
    "a write of unknown outcome is there": (FENCED, effects(W1, UNANSWERED, W2)),
    "shared locks": (SHARED, effects(SHARED[2], W1)),
}
WRONG_LOCKS: dict[str, tuple[list[Op], dict[str, list[Effect]], str]] = {
    "a token twice": ([A, acquire("b", 200, 1)], {}, "was given 2 times"),
    "a token that falls": ([acquire("a", 0, 2), acquire("b", 200, 1)], {}, "does not rise"),
    "two holders": ([A, acquire("b", 50, 2)], {}, "two hold"),
    "a shared one beside an exclusive one": ([A, acquire("b", 50, 2, mode="shared")], {}, "two hold"),
    "a renewed lock that did not hold": (
        [A, op("a", "renew", 50, token=1, lease=0, result={"token": 1, "expires": 400}), B], {}, "two hold"
    ),
    "an old token's write after a new one's": ([A, B, W1, W2], effects(W2, W1), "after one under 2"),
    "an old token's write once a new one was given": (
        [A, B, write("a", 210, 1)], effects(write("a", 210, 1)), "although 2 was given"
    ),
    "a lost write": ([A, W1], {R: []}, "is lost"),
    "a doubled write": ([A, W1], effects(W1, W1), "took effect 2 times"),
    "a refused write that took effect": ([A, write("a", 10, 1, outcome=REFUSED)], effects(W1),
                                         "a refused write took effect"),
    "a write of no client": ([A], effects(W1), "that no client made"),
    "a write under another token": ([A, W1], {R: [Effect("a#10", 7)]}, "of another resource or token"),
    "a release by another": ([A, op("b", "release", 10, token=1, result=True)], {}, "release of a lock of a"),
    "a renewal by another": ([A, op("b", "renew", 10, token=1, lease=0, result={"token": 1, "expires": 150})], {},
                             "renew of a lock of a"),
    "a renewal under another token": ([A, op("a", "renew", 10, token=1, lease=0, result={"token": 3, "expires": 150})],
                                      {}, "has another token"),
    "a lease that is short": (
        [op("a", "acquire", 0, mode="exclusive", lease=1, result={"token": 1, "mode": "exclusive", "expires": 999})],
        {},
        "shorter than asked",
    ),
    "a write after the release": ([A, op("a", "release", 5, token=1, result=True), W1], effects(W1),
                                  "after the release"),
    "a second release": ([A, op("a", "release", 5, token=1, result=True), op("a", "release", 8, token=1, result=True)],
                         {}, "after the release"),
}  # fmt: skip


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


# --- all of them ---------------------------------------------------------------------------------------

JUDGES: dict[str, tuple[Callable[..., list[str]], Mapping[str, Any], Mapping[str, Any]]] = {
    "values": (value_faults, SOUND_VALUES, WRONG_VALUES),
    "tasks": (lambda ops, state: task_faults(ops, {"t": state}), SOUND_TASKS, WRONG_TASKS),
    "messages": (message_faults, SOUND_MESSAGES, WRONG_MESSAGES),
    "handing": (lambda ops, given: handing_faults(ops, {"d": given}), SOUND_HANDING, WRONG_HANDING),
    "states": (lambda ops, last: state_faults(ops, {"a": AgentState(1, "idle")}, {"a": last}), SOUND_STATES,
               WRONG_STATES),
    "locks": (lock_faults, SOUND_LOCKS, WRONG_LOCKS),
}  # fmt: skip


@pytest.mark.parametrize("part", JUDGES)
def test_each_violation_is_named_and_a_sound_history_has_none(part: str) -> None:
    judge, sound, wrong = JUDGES[part]
    for name, arguments in sound.items():
        assert judge(*arguments) == [], name
    for name, (*arguments, expected) in wrong.items():
        faults = judge(*arguments)
        assert any(expected in fault for fault in faults), (name, faults)


@pytest.mark.parametrize("judge", [value_faults, lambda ops: task_faults(ops, {}), lambda ops: message_faults(ops, {})])
def test_an_empty_history_has_no_violation(judge: Callable[[list[Op]], list[str]]) -> None:
    assert judge([]) == []
