"""The rules by which providers refuse a request for its messages, as their documentation and their refusals state them.

OpenAI: https://platform.openai.com/docs/api-reference/chat/create. Anthropic: https://docs.claude.com, pages Messages,
tool use, extended thinking. Written without sight of the code that makes such messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Request = list[dict[str, Any]]
_FIELDS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "name", "tool_call_id"},
}


def openai_faults(messages: Request) -> list[str]:
    """Return the reasons for which OpenAI's chat completions refuse messages."""
    return [fault for _, fault in _openai(messages)]


def _openai(messages: Request) -> Iterator[tuple[int, str]]:
    waiting: list[str] = []
    systems = 0
    for at, message in enumerate(messages):
        role = message.get("role")
        if role not in _FIELDS:
            yield at, f"{at}: no role {role}"
            continue
        if not set(message) <= _FIELDS[role]:
            yield at, f"{at}: unknown fields {sorted(set(message) - _FIELDS[role])}"
        if not isinstance(message.get("content"), str):
            yield at, f"{at}: content is no text"
        if "name" in message and not re.fullmatch(r"[^\s<|\\/>]{1,64}", str(message["name"])):
            yield at, f"{at}: name {message['name']!r}"
        systems += role == "system"
        if role == "system" and (systems > 1 or at):
            yield at, f"{at}: a system message that is not the only one, at the beginning"  # of windows, docs/trust.md
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                yield at, f"{at}: a result of {message.get('tool_call_id')!r} without its call right before"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield at, f"{at}: calls {waiting} without results"
        waiting = []
        if "tool_calls" in message and not message["tool_calls"]:
            yield at, f"{at}: tool_calls is empty"
        for call in message.get("tool_calls", ()):
            yield from ((at, f"{at}: {fault}") for fault in _call_faults(call))
            if call["id"] in waiting:
                yield at, f"{at}: id {call['id']} twice"
            waiting.append(call["id"])
    if waiting:
        yield len(messages), f"calls {waiting} without results at the end"


def _call_faults(call: dict[str, Any]) -> Iterator[str]:
    if set(call) != {"id", "type", "function"} or call["type"] != "function":
        yield f"fields of a call: {sorted(call)}"
    if not isinstance(call["id"], str) or not 1 <= len(call["id"]) <= 40:
        yield f"id {call['id']!r}"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"]):
        yield f"name of a function {call['function']['name']!r}"
    try:
        parsed = json.loads(call["function"]["arguments"], parse_constant=lambda name: name / 1)
    except (ValueError, TypeError):
        parsed = None
    if not isinstance(parsed, dict):  # OpenAI takes any text; those who speak its language parse it
        yield f"arguments {call['function']['arguments']!r}"


def anthropic_faults(messages: Request) -> list[str]:
    """Return the reasons for which Anthropic's messages API refuses messages."""
    return list(_anthropic(messages))


def _anthropic(messages: Request) -> Iterator[str]:
    used: set[str] = set()
    expected: list[str] = []
    last: str | None = None
    for at, message in enumerate(messages):
        role, blocks = message.get("role"), message.get("content")
        if set(message) != {"role", "content"} or role not in ("user", "assistant"):
            yield f"{at}: fields or role of {message}"
            continue
        if role == last:
            yield f"{at}: two messages of {role} in a row"
        if last is None and role != "user":
            yield f"{at}: the first message is not the user's"
        last = role
        if not isinstance(blocks, list) or not blocks:
            yield f"{at}: no content"
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(expected):
            yield f"{at}: results {results} for calls {expected}"
        if any(block["type"] == "tool_result" for block in blocks[len(results) :]):
            yield f"{at}: results that are not first"
        expected = []
        for block in blocks:
            yield from (f"{at}: {fault}" for fault in _block_faults(role, block))
            if block["type"] == "tool_use":
                if block["id"] in used:
                    yield f"{at}: id {block['id']} twice"
                used.add(block["id"])
                expected.append(block["id"])
        yield from (f"{at}: {fault}" for fault in _thinking_faults(blocks, final=at == len(messages) - 1))
    if expected:
        yield f"calls {expected} without results at the end"
    if messages and last == "assistant":
        closing = messages[-1]["content"][-1]
        if closing.get("text", "").endswith((" ", "\n", "\t")):
            yield "the last message of the assistant ends with space"


def _thinking_faults(blocks: list[dict[str, Any]], *, final: bool) -> Iterator[str]:
    thoughts = [block["type"] in ("thinking", "redacted_thinking") for block in blocks]
    if any(thoughts) and thoughts != sorted(thoughts, reverse=True):
        yield "thoughts that are not first"
    if thoughts[-1]:
        yield "the final block is a thought"
    if any(thoughts) and final:
        yield "the last message thinks"


def _block_faults(role: str, block: dict[str, Any]) -> Iterator[str]:
    fields = {
        ("user", "text"): {"text"},
        ("assistant", "text"): {"text"},
        ("assistant", "thinking"): {"thinking", "signature"},
        ("assistant", "redacted_thinking"): {"data"},
        ("assistant", "tool_use"): {"id", "name", "input"},
        ("user", "tool_result"): {"tool_use_id", "content"},
    }.get((role, block["type"]))
    if fields is None:
        yield f"a block {block['type']} of {role}"
    elif set(block) - {"is_error"} != fields | {"type"}:
        yield f"fields of {block['type']}: {sorted(block)}"
    if block["type"] == "text" and not block["text"].strip():
        yield "an empty text"
    if block["type"] in ("thinking", "redacted_thinking") and not block.get("signature", block.get("data")):
        yield "a thought without its signature"
    if block["type"] == "tool_use":
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
            yield f"id {block['id']!r}"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]):
            yield f"name of a tool {block['name']!r}"
        if not isinstance(block["input"], dict):
            yield "an input that is no object"
        json.dumps(block["input"], allow_nan=False, ensure_ascii=False).encode()
    if block["type"] == "tool_result" and not isinstance(block["content"], str):
        yield "the content of a result"
    if "is_error" in block and (block["type"] != "tool_result" or not isinstance(block["is_error"], bool)):
        yield "is_error"
