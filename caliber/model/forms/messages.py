"""Messages of a window as the APIs of language models take them.

Anthropic's has content blocks and roles that alternate. It refuses an empty text, a call whose result does not follow
it, a result without a call, and a first message that is not the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_SPEAKER_CHARS: Final = 64
_TOOL_CHARS: Final = 128
"""Characters of the names of speakers and tools: letters, digits, ``_`` and ``-``, and how many at most."""
_OPENING: Final = "[The conversation began earlier.]"
"""The user's message before an assistant's that is the first of a window."""


class Message(Protocol):
    """A message of a window, as ``caliber.model.Message`` is one."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tool_call_id(self) -> str | None: ...
    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]: ...


def openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with all that they have, in the form that most providers understand."""
    out: list[dict[str, Any]] = []
    for message in messages:
        item: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.name is not None:
            item["name"] = _fit(message.name)[:_SPEAKER_CHARS]
        if message.tool_call_id is not None:
            item["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            item["tool_calls"] = [dict(call) for call in message.tool_calls]
        out.append(item)
    return out


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
    return {"type": "tool_use", "id": _fit(call["id"]), "name": _fit(name)[:_TOOL_CHARS], "input": value}


def _fit(name: str) -> str:
    return _UNFIT.sub("_", name)


FORMS: Final[Mapping[str, Callable[[Sequence[Message]], list[dict[str, Any]]]]] = {
    "openai": openai_messages,
    "anthropic": anthropic_messages,
}
