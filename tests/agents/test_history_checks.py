"""The judges of values, tasks and messages, on histories made by hand: each kind of violation is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.agents.handing_checks import Given, handing_faults
from support.agents.history import OK, REFUSED, UNKNOWN, Op
from support.agents.message_checks import Stored, message_faults
from support.agents.state_checks import AgentState, state_faults
from support.agents.task_checks import TaskState, task_faults
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
    "writes and reads": [get(0, None), put(2, "a", 0, 1), get(4, "a", 1), put(6, "b", 1, 2), drop(8, "b", 3)],
    "a read of a deleted key": [put(0, "a", 0, 1), drop(2, "a", 2), get(4, None), put(6, "b", 0, 3), get(8, "b", 3)],
    "a write without an answer": [put(0, "a", 0, 1), unknown(2, "b"), get(4, "b", 2), put(6, "c", 2, 3)],
    "one that did nothing": [put(0, "a", 0, 1), unknown(2, "b"), get(4, "a", 1), put(6, "c", 1, 2)],
    "a lost race": [put(0, "a", 0, 1), put(2, "b", 1, 2), put(4, "c", 1, None, outcome=REFUSED, result="Conflict")],
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


@pytest.mark.parametrize("name", SOUND_VALUES)
def test_a_register_that_is_linearizable_has_no_violation(name: str) -> None:
    assert value_faults(SOUND_VALUES[name]) == []


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_each_violation_of_a_register_is_named(name: str) -> None:
    ops, expected = WRONG_VALUES[name]
    faults = value_faults(ops)
    assert any(expected in fault for fault in faults), faults


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
    "two claims before it was given back": (
        [CLAIM, task("claim", "b", 3), BACK],
        TaskState("pending", None),
        "was claimed again",
    ),
    "two completions": ([CLAIM, DONE, task("complete", "a", 8)], TaskState("completed", "a"), "completed 2 times"),
    "completed by another": ([CLAIM, task("complete", "b", 5)], TaskState("completed", "a"), "never claimed it"),
    "a claim after the end": (
        [CLAIM, DONE, task("claim", "b", 8)],
        TaskState("completed", "a"),
        "claim after",
    ),
    "a lost completion": ([CLAIM, DONE], TaskState("in_progress", "a"), "completion is lost"),
    "a lost claim": ([CLAIM], TaskState("pending", None), "claim is lost"),
    "a completion of nobody": ([CLAIM], TaskState("completed", "a"), "that nobody completed"),
    "a claim of nobody": ([], TaskState("in_progress", "a"), "nobody claimed"),
    "another's hands": ([CLAIM], TaskState("in_progress", "b"), "in the hands of b"),
}


@pytest.mark.parametrize("name", SOUND_TASKS)
def test_tasks_that_one_agent_has_at_a_time_have_no_violation(name: str) -> None:
    ops, state = SOUND_TASKS[name]
    assert task_faults(ops, {"t": state}) == []


@pytest.mark.parametrize("name", WRONG_TASKS)
def test_each_violation_of_tasks_is_named(name: str) -> None:
    ops, state, expected = WRONG_TASKS[name]
    faults = task_faults(ops, {"t": state})
    assert any(expected in fault for fault in faults), faults


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
    "delivered in order": (
        [M, N, claim("r", 10, "m"), ack("r", 12, "m"), claim("r", 14, "n"), ack("r", 16, "n")],
        kept(m="acknowledged", n="acknowledged"),
    ),
    "perhaps acknowledged": (
        [M, N, claim("r", 10, "m"), ack("r", 12, "m", outcome=UNKNOWN), claim("q", 14, "n")],
        kept(m="acknowledged", n="pending"),
    ),
    "delivered again after the lease": (
        [M, claim("r", 10, "m"), claim("q", 2_000, "m", attempts=2), ack("q", 2_002, "m")],
        kept(m="acknowledged"),
    ),
    "given back": ([M, claim("r", 10, "m"), give_up(12, "m"), claim("q", 14, "m", attempts=2)], kept(m="pending")),
    "sent again under its key": ([send(0, "m", outcome=UNKNOWN), send(2, "m"), send(4, "m")], kept(m="pending")),
    "of another topic": (
        [M, send(2, "n", topic="plans"), claim("r", 10, "n")],
        kept(m="pending", n="pending"),
    ),
}
WRONG_MESSAGES: dict[str, tuple[list[Op], dict[str, list[Stored]], str]] = {
    "lost": ([M], {}, "message is lost"),
    "doubled": ([M], {"m": [Stored("m", "pending"), Stored("x", "pending")]}, "there 2 times"),
    "another id for the same key": ([M, send(2, "m", id="x")], kept(m="pending"), "is lost"),
    "refused and there": ([send(0, "m", outcome=REFUSED)], kept(m="pending"), "that was not sent is there"),
    "of nobody": ([claim("r", 10, "m")], {}, "a message that was not sent"),
    "delivered before it was sent": ([send(20, "m"), claim("r", 10, "m")], kept(m="pending"), "that was not sent"),
    "for another": ([send(0, "m", to="other"), claim("r", 10, "m")], kept(m="pending"), "a message for other"),
    "acknowledged twice": (
        [M, claim("r", 10, "m"), ack("r", 12, "m"), ack("q", 14, "m")],
        kept(m="acknowledged"),
        "acknowledged 2 times",
    ),
    "an acknowledgement that is lost": (
        [M, claim("r", 10, "m"), ack("r", 12, "m")],
        kept(m="pending"),
        "an acknowledgement is lost",
    ),
    "delivered after its end": (
        [M, claim("r", 10, "m"), ack("r", 12, "m"), claim("q", 14, "m", attempts=2)],
        kept(m="acknowledged"),
        "after its acknowledgement",
    ),
    "an acknowledgement of nobody": ([M, claim("r", 10, "m")], kept(m="acknowledged"), "that nobody acknowledged is"),
    "dead": ([M], kept(m="dead"), "a message is dead"),
    "two readers": (
        [M, claim("r", 10, "m"), claim("q", 500, "m", attempts=2)],
        kept(m="pending"),
        "two readers hold a message",
    ),
    "an attempt twice": (
        [M, claim("r", 10, "m"), claim("q", 2_000, "m")],
        kept(m="pending"),
        "attempt 1 of a message twice",
    ),
    "a lease that is short": (
        [M, claim("r", 10, "m", lease=1)._replace(given={"box": "box", "lease": 5})],
        kept(m="pending"),
        "shorter than asked",
    ),
    "the second before the first": ([M, N, claim("r", 10, "n")], kept(m="pending", n="pending"), "came before"),
    "both at once": ([M, N, claim("r", 10, "m", "n")], kept(m="pending", n="pending"), "came before"),
}


@pytest.mark.parametrize("name", SOUND_MESSAGES)
def test_messages_that_arrive_as_promised_have_no_violation(name: str) -> None:
    ops, stored = SOUND_MESSAGES[name]
    assert message_faults(ops, stored) == []


@pytest.mark.parametrize("name", WRONG_MESSAGES)
def test_each_violation_of_messages_is_named(name: str) -> None:
    ops, stored, expected = WRONG_MESSAGES[name]
    faults = message_faults(ops, stored)
    assert any(expected in fault for fault in faults), faults


# --- delegations and handoffs --------------------------------------------------------------------------


def handed(name: str, agent: str, at: int, *, outcome: str = OK, child: str = "c") -> Op:
    result = {"status": "", "child": child} if outcome == OK else None
    return call(f"c{at}", name, at, result, outcome=outcome, id="d", agent=agent)


ACCEPT, START, COMPLETE = handed("accept", "a", 0), handed("start", "a", 2), handed("complete", "a", 4)
SOUND_HANDING: dict[str, tuple[list[Op], Given]] = {
    "from beginning to end": ([ACCEPT, START, COMPLETE], Given("completed", "a", "completed")),
    "repeated": (
        [ACCEPT, handed("accept", "a", 1), START, handed("start", "a", 3)],
        Given("in_progress", "a", "active"),
    ),
    "a completion of unknown outcome": (
        [ACCEPT, START, handed("complete", "a", 4, outcome=UNKNOWN)],
        Given("completed", "a", "completed"),
    ),
    "cancelled before it was accepted": ([handed("cancel", "boss", 0)], Given("rejected", None)),
    "taken over": ([handed("take", "a", 0), handed("finish", "a", 2)], Given("completed", "a")),
}
WRONG_HANDING: dict[str, tuple[list[Op], Given, str]] = {
    "two agents": ([ACCEPT, handed("accept", "b", 2)], Given("accepted", "a"), "two agents accepted"),
    "two tasks": ([ACCEPT, handed("accept", "a", 2, child="x")], Given("accepted", "a"), "two tasks began"),
    "another agent works": ([ACCEPT, handed("start", "b", 2)], Given("in_progress", "a"), "did not accept"),
    "in other hands": ([ACCEPT], Given("accepted", "b"), "in the hands of b"),
    "a step left out": ([ACCEPT, handed("complete", "a", 2)], Given("completed", "a"), "complete without start"),
    "half a completion": (
        [ACCEPT, START, handed("complete", "a", 4, outcome=UNKNOWN)],
        Given("in_progress", "a", "completed"),
        "its task completed",
    ),
    "two ends": (
        [ACCEPT, START, COMPLETE, handed("cancel", "boss", 6)],
        Given("completed", "a"),
        "ended 2 times",
    ),
    "a step after the end": (
        [ACCEPT, START, COMPLETE, handed("start", "a", 6)],
        Given("completed", "a"),
        "start after",
    ),
    "a lost end": ([ACCEPT, START, COMPLETE], Given("in_progress", "a"), "end is lost"),
    "a lost step": ([ACCEPT], Given("pending", "a"), "step is lost"),
    "an end of nobody": ([ACCEPT], Given("failed", "a"), "no call did that"),
    "an acceptance of nobody": ([], Given("accepted", "a"), "no agent accepted"),
    "a task that is over": ([ACCEPT, START], Given("in_progress", "a", "completed"), "and its task completed"),
}


@pytest.mark.parametrize("name", SOUND_HANDING)
def test_work_that_is_handed_over_once_has_no_violation(name: str) -> None:
    ops, given = SOUND_HANDING[name]
    assert handing_faults(ops, {"d": given}) == []


@pytest.mark.parametrize("name", WRONG_HANDING)
def test_each_violation_of_handing_over_is_named(name: str) -> None:
    ops, given, expected = WRONG_HANDING[name]
    faults = handing_faults(ops, {"d": given})
    assert any(expected in fault for fault in faults), faults


# --- states of agents ----------------------------------------------------------------------------------


def moved(at: int, status: str, version: int, asked: str | None = None, **options: Any) -> Op:
    result = {"version": version, "status": status}
    return call(f"c{at}", "set_status", at, result, agent="a", status=asked or status, **options)


def test_allowed_steps_have_no_violation() -> None:
    lost = moved(4, "blocked", 0, outcome=UNKNOWN)
    ops = [moved(0, "active", 2), moved(2, "blocked", 3), lost, moved(6, "failed", 5)]
    assert state_faults(ops, {"a": AgentState(1, "idle")}, {"a": AgentState(5, "failed")}) == []


@pytest.mark.parametrize(
    ("ops", "last", "expected"),
    [
        ([moved(0, "blocked", 2)], AgentState(2, "blocked"), "from idle to blocked"),
        ([moved(0, "active", 2), moved(2, "failed", 2)], AgentState(2, "failed"), "one version"),
        ([moved(0, "idle", 2, "active")], AgentState(2, "idle"), "than asked"),
        ([moved(0, "active", 2)], AgentState(2, "idle"), "is lost"),
        ([moved(0, "active", 2)], AgentState(1, "idle"), "changes of no call"),
        ([moved(0, "active", 2)], AgentState(4, "idle"), "changes of no call"),
        ([moved(0, "active", 3), moved(4, "idle", 2)], AgentState(3, "active"), "that was over"),
    ],
)
def test_each_violation_of_states_is_named(ops: list[Op], last: AgentState, expected: str) -> None:
    faults = state_faults(ops, {"a": AgentState(1, "idle")}, {"a": last})
    assert any(expected in fault for fault in faults), faults


@pytest.mark.parametrize("judge", [value_faults, lambda ops: task_faults(ops, {}), lambda ops: message_faults(ops, {})])
def test_an_empty_history_has_no_violation(judge: Callable[[list[Op]], list[str]]) -> None:
    assert judge([]) == []
