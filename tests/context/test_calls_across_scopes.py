"""A tool's result stands behind the call that it answers, also where a scope was closed between the two."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import USER
from support.context.limits import set_limits
from support.drawn import needs

from caliber import ToolCall
from caliber.config import profiles

pytestmark = pytest.mark.databases("one")

PROFILES = ("reference", "coding-agent", "chat-companion", "ops-agent", "sources")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("between", ["call and results", "results"])
@needs("reopen")
def test_a_call_from_a_closed_scope_comes_with_its_results(backend: Any, profile: str, between: str) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], **{k.replace("__", "."): v for k, v in backend.knobs.items()}}
    memory = backend.open(profiles.PROFILES[profile](backend.path, **knobs))
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    before = memory.current_scope(task)
    memory.append_turn(before.scope_id, role="user", content="What is the weather in Oslo and in Rome?")
    calls = [ToolCall("oslo", "weather", '{"city": "Oslo"}'), ToolCall("rome", "weather", '{"city": "Rome"}')]
    memory.append_turn(before.scope_id, role="assistant", content="", tool_calls=calls)
    results = [{"role": "tool", "content": "snow", "tool_call_id": "oslo"}]
    last = {"role": "tool", "content": "sun", "tool_call_id": "rome"}
    if between == "results":
        memory.append_turns(before.scope_id, results)
        results = []
    memory.close_scope(before.scope_id)
    after = memory.open_scope(task)
    memory.append_turns(after.scope_id, [*results, last])
    messages = memory.assemble_context(task, max_tokens=2_000).to_messages()
    asked = next(at for at, message in enumerate(messages) if message.get("tool_calls"))
    assert [message.get("tool_call_id") for message in messages[asked + 1 :]] == ["oslo", "rome"]
    assert [message["content"] for message in messages[asked + 1 :]] == ["snow", "sun"]


def test_a_result_whose_call_was_never_stored_is_shown(backend: Any) -> None:
    memory = backend.open()
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    memory.append_turn(scope.scope_id, role="tool", content="snow", tool_call_id="unknown")
    assert "snow" in memory.assemble_context(task).text


def test_ids_that_are_used_again_bring_the_newest_call_alone(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, max_turns=2)
    memory = backend.open(policies=[])
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    for at in range(6):
        memory.append_turn(scope.scope_id, role="user", content=f"question {at}")
        memory.append_turn(
            scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("call_0", "look", f'{{"at": {at}}}')]
        )
        if at < 5:
            memory.append_turn(scope.scope_id, role="tool", content=f"result {at}", tool_call_id="call_0")
        memory.close_scope(scope.scope_id)
        scope = memory.open_scope(task)
    memory.append_turn(scope.scope_id, role="tool", content="result 5", tool_call_id="call_0")
    said = [m for m in memory.assemble_context(task, query="", max_tokens=2_000).to_messages() if "name" not in m]
    asked = [call["function"]["arguments"] for m in said for call in m.get("tool_calls") or ()]
    assert asked == ['{"at": 5}']
    assert [m["content"] for m in said if m["role"] == "tool"] == ["result 5"]


@pytest.mark.parametrize("profile", ["reference", "coding-agent"])
@needs("reopen")
def test_a_result_whose_call_the_limit_cut_off_stays_out(
    backend: Any, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], **{k.replace("__", "."): v for k, v in backend.knobs.items()}}
    set_limits(monkeypatch, max_turns=3)
    memory = backend.open(profiles.PROFILES[profile](backend.path, **knobs))
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    memory.append_turn(scope.scope_id, role="user", content="go")
    memory.append_turn(scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("old", "look", "{}")])
    memory.close_scope(scope.scope_id)
    scope = memory.open_scope(task)
    memory.append_turn(scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("here", "look", "{}")])
    memory.append_turn(scope.scope_id, role="tool", content="of here", tool_call_id="here")
    memory.append_turn(scope.scope_id, role="tool", content="of old", tool_call_id="old")
    memory.append_turn(scope.scope_id, role="assistant", content="ok")
    said = memory.assemble_context(task, query="", max_tokens=2_000).to_messages()
    asked = {call["id"] for m in said for call in m.get("tool_calls") or ()}
    assert {m["tool_call_id"] for m in said if m.get("tool_call_id")} <= asked
