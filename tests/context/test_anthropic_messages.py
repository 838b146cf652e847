"""Messages of a window in the form of Anthropic's API."""

from __future__ import annotations

from typing import Any

import pytest

from caliber.model.forms.messages import anthropic_messages
from caliber.model.windows import Message


def call(key: str, name: str = "weather", arguments: str = '{"city": "Ghent"}') -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def result(key: str, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": key, "content": content}


def use(key: str, name: str = "weather", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": name, "input": given}


def test_calls_and_results_are_blocks_of_messages_that_alternate() -> None:
    window = [
        Message("system", "Be brief."),
        Message("user", "What is known.", name="memory"),
        Message("user", "Weather in Ghent and Bruges?"),
        Message("assistant", "", tool_calls=(call("c1"), call("c2", arguments='{"city": "Bruges"}'))),
        Message("tool", "rain", tool_call_id="c1"),
        Message("tool", "sun", tool_call_id="c2"),
        Message("assistant", "Rain, and sun."),
        Message("user", "Thanks."),
    ]
    assert anthropic_messages(window) == [
        {"role": "user", "content": [text("What is known."), text("Weather in Ghent and Bruges?")]},
        {"role": "assistant", "content": [use("c1", city="Ghent"), use("c2", city="Bruges")]},
        {"role": "user", "content": [result("c1", "rain"), result("c2", "sun")]},
        {"role": "assistant", "content": [text("Rain, and sun.")]},
        {"role": "user", "content": [text("Thanks.")]},
    ]


def test_calls_and_results_without_each_other() -> None:
    window = [
        Message("assistant", "I look.", tool_calls=(call("open"), call("done"))),
        Message("tool", "lost", tool_call_id="gone"),
        Message("tool", "rain", tool_call_id="done"),
        Message("user", "And?"),
        Message("assistant", "", tool_calls=(call("open"),)),
    ]
    found = anthropic_messages(window)
    assert [each["role"] for each in found] == ["user", "assistant", "user", "assistant", "user"]
    assert found[1]["content"] == [text("I look."), use("open", city="Ghent"), use("done", city="Ghent")]
    no_result = {**result("open", "[no result]"), "is_error": True}  # the call may have been made
    lost = text("tool: [Result of a tool] lost")
    assert found[2]["content"] == [no_result, result("done", "rain"), lost, text("And?")]
    assert found[3:] == [
        {"role": "assistant", "content": [use("open_2", city="Ghent")]},
        {"role": "user", "content": [{**no_result, "tool_use_id": "open_2"}]},
    ]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [("", {}), ("{}", {}), ("[1]", {"arguments": [1]}), ("{broken", {"arguments": "{broken"})],
)
def test_the_input_of_a_call_is_an_object(arguments: str, given: dict[str, Any]) -> None:
    window = [
        Message("user", "x"),
        Message("assistant", "", tool_calls=(call("c.1", "my tool", arguments),)),
        Message("tool", "", tool_call_id="c.1"),
    ]
    found = anthropic_messages(window)
    assert found[1]["content"] == [use("c_1", "my_tool", **given)]
    assert found[2]["content"] == [result("c_1", "")]


def test_a_window_without_messages() -> None:
    assert anthropic_messages([Message("system", "Be brief."), Message("assistant", " ")]) == []
