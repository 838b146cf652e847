"""A tool's result stands behind the call that it answers, also where a scope was closed between the two."""

from __future__ import annotations

from typing import Any

import pytest
from support.configs import USER

from caliber import ToolCall
from caliber.config import profiles

PROFILES = ("reference", "coding-agent", "chat-companion", "ops-agent", "sources")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("between", ["call and results", "results"])
def test_a_call_from_a_closed_scope_comes_with_its_results(backend: Any, profile: str, between: str) -> None:
    backend.needs("reopen")
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
