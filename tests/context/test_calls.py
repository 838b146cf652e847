"""Tool calls in windows that are too small for them: a call and its results enter together or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import caliber
from caliber import Caliber, ContextWindow, EntityRef, EntityType, ToolCall
from caliber.context.limits import MAX_TURNS

ME = EntityRef(EntityType.USER, uuid.UUID(int=7))
LONG = "a line of a log, one of many. " * 300


class Talk:
    """One task, whose windows are asked for without recall of anything else."""

    def __init__(self, memory: Caliber) -> None:
        self.memory = memory
        self.task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        self.scope = memory.open_scope(self.task).scope_id

    def say(self, *turns: dict[str, Any]) -> None:
        self.memory.append_turns(self.scope, list(turns))

    def window(self, max_tokens: int) -> ContextWindow:
        return self.memory.assemble_context(self.task, max_tokens=max_tokens)


@pytest.fixture(params=["truncate", "exclude"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "assembly.overflow_policy": request.param}
    with caliber.open(
        caliber.profiles.PROFILES["reference"](":memory:", **knobs), principal=caliber.Principal.admin()
    ) as memory:
        yield Talk(memory)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calling(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    calls = [ToolCall(call, "look", arguments) for call in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(call: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call}


def pairs(window: ContextWindow) -> tuple[set[str], set[str]]:
    """Return the calls and the answered calls of a window."""
    calls = {call["id"] for message in window.messages for call in message.tool_calls}
    return calls, {message.tool_call_id for message in window.messages if message.tool_call_id is not None}


BUDGETS = (60, 80, 120, 200, 400, 1_000, 2_000)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_waiting_call_never_enters_without_a_result_that_it_has(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Look twice."), calling("one", "two"), result("one", LONG))
    window = talk.window(max_tokens)
    calls, answered = pairs(window)
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))
    assert window.used_tokens <= max_tokens
    again = talk.memory.replay(window.window_id)
    assert (again.text, again.messages) == (window.text, window.messages)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_result_never_enters_without_its_waiting_call(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Look twice."), calling("one", "two", arguments=f'{{"text": "{LONG}"}}'), result("one", "Seen."))
    calls, answered = pairs(talk.window(max_tokens))
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_call_from_before_the_last_message_leaves_with_its_results(talk: Talk, max_tokens: int) -> None:
    talk.say(calling("one", "two", arguments=f'{{"text": "{LONG}"}}'), user("Well?"), result("one", "Seen."))
    window = talk.window(max_tokens)
    assert any(message.content == "Well?" for message in window.messages)
    calls, answered = pairs(window)
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))


def test_a_waiting_call_that_does_not_fit_enters_with_its_result_cut(talk: Talk) -> None:
    talk.say(user("Look twice."), calling("one", "two"), result("one", LONG))
    window = talk.window(200)
    # The result enters cut: the newest results are never missing.
    assert [item.rule_id for item in window.assembly_trace if item.action.value != "include"] == ["overflow_truncate"]
    assert [message.role for message in window.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("max_tokens", [400, 4_000])
def test_the_last_user_message_enters_however_many_calls_have_followed(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Do all of it."))
    for number in range(MAX_TURNS // 2 + 10):
        talk.say(calling(f"c{number}"), result(f"c{number}", "Done."))
    window = talk.window(max_tokens)
    assert window.messages[0].content == "Do all of it."
    calls, answered = pairs(window)
    assert calls == answered != set()
    left = next(turn for turn in talk.memory.storage.turns.all() if turn.tool_calls)
    assert talk.memory.explain(window.window_id, exclusion=left.turn_id)["filter"] == "newest"
    assert talk.memory.replay(window.window_id).text == window.text


def test_nothing_stands_between_a_call_and_its_result_where_no_user_speaks(talk: Talk) -> None:
    talk.memory.create_artifact(
        talk.scope, artifact_type="fact", content="The log is long.", extraction_method="explicit"
    )
    talk.say(calling("one"), result("one", "Seen."))
    roles = [message.role for message in talk.window(2_000).messages]
    assert roles == ["user", "assistant", "tool"]
