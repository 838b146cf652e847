"""Messages as providers write them, and what of them comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from support.context.provider_rules import anthropic_faults, openai_faults

import caliber
from caliber.model import ToolCall
from caliber.model.errors import InputError, InvalidValue
from caliber.model.forms.reading import read_message

SIGNED = {"type": "thinking", "thinking": "The zebra is missing.", "signature": "c2lnbmVk"}
HIDDEN = {"type": "redacted_thinking", "data": "aGlkZGVu"}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"in": "Rome"}}
GEMINI = {"id": "t1", "name": "weather", "args": {"in": "Rome"}}
CALL = ToolCall("t1", "weather", '{"in": "Rome"}')


def turns(message: Any) -> list[tuple[Any, ...]]:
    """Return the role, text, calls and answered call of each turn of a message."""
    found = read_message(message, "message").turns
    return [(each["role"], each["content"], each.get("tool_calls", []), each.get("tool_call_id")) for each in found]


def openai(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "t1", "function": function}]}


CALLS: list[dict[str, Any]] = [
    openai(name="weather", arguments='{"in": "Rome"}'),
    openai(name="weather", arguments={"in": "Rome"}),
    {"role": "assistant", "content": "", "tool_calls": [{"name": "weather", "args": {"in": "Rome"}, "id": "t1"}]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "assistant", "content": [USE]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"in": "Rome"}}}]},
    {"role": "model", "parts": [{"functionCall": GEMINI}]},
    {"role": "model", "parts": [{"text": None, "function_call": GEMINI}]},
    {"author": "agent", "content": {"role": "model", "parts": [{"functionCall": GEMINI}]}},
    {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "weather", "arguments": '{"in": "Rome"}'},
]  # fmt: skip
RESULTS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "t1", "content": "sun"},
    {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "sun"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "sun"}]}}]},
    {"type": "function_call_output", "call_id": "t1", "output": "sun"},
    {"role": "function", "name": "t1", "content": "sun"},
]


def test_every_form_of_a_call_and_its_result_is_read() -> None:
    assert [message for message in CALLS if turns(message) != [("assistant", "", [CALL], None)]] == []
    assert [message for message in RESULTS if turns(message) != [("tool", "sun", [], "t1")]] == []


def test_calls_without_an_id_have_that_of_their_tool() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    new = {"role": "model", "parts": [{"functionCall": {"name": "look"}}]}
    assert turns(old) == turns(new) == [("assistant", "", [ToolCall("look", "look", "{}")], None)]
    assert turns({"role": "function", "name": "look", "content": "x"}) == [("tool", "x", [], "look")]
    response = {"functionResponse": {"name": "look", "response": {"result": 1}}}
    assert turns({"role": "user", "parts": [response]}) == [("tool", '{"result": 1}', [], "look")]


def test_parts_that_are_no_text_are_said() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:x"}},
        {"type": "hologram", "matter": 1},
        {"inlineData": {"mimeType": "image/png", "data": "x"}},
        {"type": "input_audio", "transcript": "good day"},
        {"type": "odd]\n# Notes", "text": "kept"},
        {"text": "hm", "thought": True},
        {"type": "reasoning", "summary": []},
    ]
    read = read_message({"role": "user", "content": parts}, "message")
    assert read.turns[0]["content"].split("\n\n") == [
        "[image_url]", "[hologram]", "[inlineData]", "[input_audio] good day", "[odd_Notes] kept",
    ]  # fmt: skip
    assert read.other_parts == 5
    assert turns({"role": "assistant", "content": None, "refusal": "I must not."}) == [
        ("assistant", "I must not.", [], None)
    ]
    assert turns({"type": "reasoning", "summary": []}) == []


def test_messages_that_hold_nothing_readable_are_refused() -> None:
    for message in (
        {"role": "model"},
        {"role": "assistant", "text": "in a field that nobody knows"},
        {"role": "user", "parts": None},
        {"role": "user", "parts": [{}]},
        {"role": "user", "content": [7]},
        {"role": "assistant", "content": "", "function_call": {"arguments": "{}"}},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {1}}}]},
        {"role": "assistant", "content": [{**SIGNED, "thinking": 7}]},
    ):
        with pytest.raises(InputError, match="message"):
            read_message(message, "message")


def test_times_are_read_in_every_form() -> None:
    noon = datetime(2025, 4, 2, 12, tzinfo=UTC)
    for value in (
        noon,
        "2025-04-02T12:00:00Z",
        "2025-04-02T12:00:00",
        "2025-04-02 14:00+02:00",
        noon.astimezone(timezone(timedelta(hours=-7))),
        noon.timestamp(),
        int(noon.timestamp() * 1_000),
        int(noon.timestamp() * 1_000_000),
    ):
        for key in ("occurred_at", "created_at", "timestamp", "create_time"):
            assert read_message({"role": "user", "content": "x", key: value}, "m").turns[0]["occurred_at"] == noon
    for value in ("yesterday", "2025-02-31", True, float("nan"), 1e300, [], "12"):
        with pytest.raises(InvalidValue, match=r"m\.timestamp.*ISO 8601"):
            read_message({"role": "user", "content": "x", "timestamp": value}, "m")


def test_thoughts_and_errors_come_back_as_they_were(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": "no such city", "is_error": True}
    task = ana.remember(
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": [SIGNED, HIDDEN, {"type": "text", "text": "I look."}, USE]},
            {"role": "user", "content": [failed]},
        ]
    ).trajectory_id
    window = ana.assemble_context(task)
    sent = window.to_messages(form="anthropic")
    assert sent[-2:] == [
        {"role": "assistant", "content": [SIGNED, HIDDEN, {"type": "text", "text": "I look."}, USE]},
        {"role": "user", "content": [failed]},
    ]
    assert window.to_messages()[-1]["content"] == "[error] no such city"
    assert "The zebra is missing." in window.text
    assert ana.replay(window.window_id).to_messages(form="anthropic") == sent
    ana.remember([{"role": "assistant", "content": "I cannot say."}, {"role": "user", "content": "Why?"}], task=task)
    later = ana.assemble_context(task).to_messages(form="anthropic")
    assert [block for each in later for block in each["content"] if block["type"].endswith("thinking")] == [
        SIGNED,
        HIDDEN,
    ]
    found = ana.search("zebra").hits
    assert not [hit for hit in found if "keyword" in hit.found_by]  # thoughts are not searched


def test_an_answer_with_thoughts_alone_and_fifty_open_calls(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    calls = [{**USE, "id": f"t{number}"} for number in range(50)]
    task = ana.remember(
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": [SIGNED, *calls]},
            {"role": "assistant", "content": [SIGNED]},
            {"role": "user", "content": "Stop."},
        ]
    ).trajectory_id
    window = ana.assemble_context(task)
    sent = window.to_messages(form="anthropic")
    assert openai_faults(window.to_messages()) == anthropic_faults(sent) == []
    assert [block["content"] for block in sent[-1]["content"][:-1]] == ["[no result]"] * 50


def test_results_that_stand_for_missing_ones_count_in_the_budget(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    calls = [{**USE, "id": f"t{number}"} for number in range(50)]
    told = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": "wet"} for number in range(0, 50, 5)]
    task = ana.remember(
        [
            {"role": "user", "content": "Rain? " * 40},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": told},
            {"role": "assistant", "content": [{**USE, "id": "t1"}]},
            {"role": "user", "content": "Stop."},
        ]
    ).trajectory_id
    shown = set()
    for budget in (*range(40, 140, 7), *range(600, 1_700, 60)):
        window = ana.assemble_context(task, max_tokens=budget)
        sent = window.to_messages()
        fillers = sum(each["content"] == "[no result]" for each in sent)
        text = sum(each.token_count for each in window.sections)
        assert text + 4 * len(sent) + 3 * fillers <= window.used_tokens <= budget
        assert ana.replay(window.window_id).used_tokens == window.used_tokens
        shown.add(fillers)
    assert shown == {0, 1, 41}


def test_appended_turns_have_thoughts_and_errors(backend: Any) -> None:
    memory = backend.open()
    scope = memory.current_scope(memory.start_trajectory("task", user="ana").trajectory_id).scope_id
    asked = memory.append_turn(scope, role="assistant", content="", thinking=[SIGNED], tool_calls=[CALL])
    told = memory.append_turn(scope, role="tool", content="x", tool_call_id="t1", is_error=True)
    assert (memory.get(asked.turn_id).thinking, memory.get(told.turn_id).is_error) == ((SIGNED,), True)
    for wrong in (
        {"role": "user", "thinking": [SIGNED]},
        {"role": "assistant", "thinking": [{"type": "thinking", "thinking": "unsigned"}]},
        {"role": "assistant", "thinking": "hm"},
        {"role": "assistant", "is_error": True},
        {"role": "tool", "is_error": "yes"},
    ):
        with pytest.raises(InputError):
            memory.append_turn(scope, content="x", **wrong)


def test_objects_of_a_providers_package_are_read() -> None:
    dumped = {"id": "m1", "role": "assistant", "content": [SIGNED, USE], "model": "claude", "stop_reason": "tool_use"}
    (turn,) = read_message(SimpleNamespace(model_dump=lambda: dumped), "message").turns
    assert (turn["tool_calls"], turn["thinking"], turn["model_id"]) == ([CALL], [SIGNED], "claude")
