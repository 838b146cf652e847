"""Messages of a window as Anthropic's Messages API takes them: content blocks, and roles that alternate.

The API refuses an empty text, a call whose result does not follow it, a result without a call, and a first message
that is not the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from caliber.model.windows import Message

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARS: Final = 128
_OPENING: Final = "[The conversation began earlier.]"
"""The user's message before an assistant's that is the first of a window."""


def anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages of roles user and assistant, without those of role system.

    A call without its result is left out; a result without its call is a text that names it so.
    """
    spoken = [each for each in messages if each.role != "system"]
    out: list[dict[str, Any]] = []
    open_calls: set[str] = set()
    for at, message in enumerate(spoken):
        if message.role == "tool":
            key = message.tool_call_id
            if key is not None and key in open_calls:
                open_calls.discard(key)
                _add(out, "user", {"type": "tool_result", "tool_use_id": _fit(key), "content": message.content})
            else:
                _add(out, "user", _text(f"[Result of a tool] {message.content}"))
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if message.content.strip():
            _add(out, role, _text(message.content))
        answered = _answered(spoken, at)
        open_calls = set()
        for call in message.tool_calls:
            if call["id"] in answered:
                open_calls.add(call["id"])
                _add(out, role, _tool_use(call))
    if out and out[0]["role"] == "assistant":
        out.insert(0, {"role": "user", "content": [_text(_OPENING)]})
    for message_out in out:  # the API wants results before texts
        message_out["content"].sort(key=lambda block: block["type"] != "tool_result" and message_out["role"] == "user")
    return out


def _answered(messages: Sequence[Message], at: int) -> set[str]:
    """Return the ids of the calls whose results follow a message at once."""
    found: set[str] = set()
    for message in messages[at + 1 :]:
        if message.role != "tool":
            break
        if message.tool_call_id is not None:
            found.add(message.tool_call_id)
    return found


def _add(out: list[dict[str, Any]], role: str, block: dict[str, Any]) -> None:
    if not out or out[-1]["role"] != role:
        out.append({"role": role, "content": []})
    out[-1]["content"].append(block)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    name, given = call["function"]["name"], call["function"]["arguments"]
    try:
        found = json.loads(given) if given.strip() else {}
    except ValueError:
        found = given
    value = found if isinstance(found, dict) else {"arguments": found}
    return {"type": "tool_use", "id": _fit(call["id"]), "name": _fit(name)[:_NAME_CHARS], "input": value}


def _fit(name: str) -> str:
    return _UNFIT.sub("_", name)
