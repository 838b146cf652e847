"""Messages of a window as the APIs of language models take them.

Both forms are written from the same steps: each call is followed by its result, whatever the order in which they were
stored, and ids are unique. A provider refuses a whole request for one call without a result, or one result without a
call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

from caliber.model.lazy_dataclass import dataclass

MEMORY: Final = "memory"
"""The name of the message that holds the records that follow the query."""
NO_RESULT: Final = "[no result]"
"""The result of a call that was interrupted, or is not answered yet: it may have been made."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_OPENAI_CHARS: Final = 64
"""Characters of the names of speakers and tools."""
_ANTHROPIC_CHARS: Final = 128
_ID_CHARS: Final = 40
_OPENING: Final = "[The conversation began earlier.]"
"""The user's message before an assistant's that is the first of a window."""
_ORPHAN: Final = "[Result of a tool] "
THOUGHTS: Final[Mapping[str, tuple[str, ...]]] = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}
"""Blocks of Anthropic's models that are thoughts, and their fields; the last one proves whose they are."""
_FAILED: Final = "[error] "
"""The beginning of a result that is an error in OpenAI's form, which has no field for that."""


class WindowMessage(Protocol):
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
    @property
    def thinking(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def is_error(self) -> bool: ...


class _Call:
    """A call of a tool: the id that it was stored with, the one that it is sent with, and its result."""

    __slots__ = ("arguments", "id", "name", "result", "stored_id")

    def __init__(self, stored_id: str, sent_id: str, name: str, arguments: str) -> None:
        self.stored_id = stored_id
        self.id = sent_id
        self.name = name
        self.arguments = arguments
        self.result: WindowMessage | None = None

    @property
    def input(self) -> tuple[dict[str, Any], bool]:
        """Its arguments as an object, and whether the model wrote one."""
        try:
            found = json.loads(self.arguments, parse_constant=_refuse) if self.arguments.strip() else {}
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            found = self.arguments
        return (found, bool(self.arguments.strip())) if isinstance(found, dict) else ({"arguments": found}, False)


@dataclass(frozen=True, slots=True)
class _Step:
    """A message that is no result of a tool, and its calls."""

    role: str
    content: str
    name: str | None
    calls: list[_Call]
    thinking: tuple[dict[str, Any], ...]


def openai_messages(messages: Sequence[WindowMessage]) -> list[dict[str, Any]]:
    """Return messages with all that they have, in the form that most providers understand."""
    out: list[dict[str, Any]] = []
    for step in _steps(messages, lambda value: value):
        item: dict[str, Any] = {"role": step.role, "content": step.content}
        if step.name is not None:
            item["name"] = _fit(step.name)[:_OPENAI_CHARS]
        if step.calls:
            item["tool_calls"] = [_tool_call(call) for call in step.calls]
        out.append(item)
        for call in step.calls:
            content = NO_RESULT if call.result is None else _FAILED * call.result.is_error + call.result.content
            name = None if call.result is None else call.result.name
            out.append(
                {"role": "tool", "content": content}
                | ({} if name is None else {"name": _fit(name)[:_OPENAI_CHARS]})
                | {"tool_call_id": call.id}
            )
    return out


def anthropic_messages(messages: Sequence[WindowMessage]) -> list[dict[str, Any]]:
    """Return messages of roles user and assistant that alternate, without those of role system."""
    out: list[dict[str, Any]] = []
    for step in _steps(messages, _fit):
        if step.role == "system":
            continue
        said = step.content
        if step.role == "user" and step.name not in (None, MEMORY):
            said = f"{step.name}: {said}"
        blocks = [dict(block) for block in step.thinking]
        blocks += [_text(said)] if step.content.strip() else []
        for call in step.calls:
            name = _fit(call.name)[:_ANTHROPIC_CHARS]
            blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": call.input[0]})
        _add(out, step.role, blocks)
        _add(out, "user", [_tool_result(call) for call in step.calls])
    if out and out[0]["role"] == "assistant":
        out.insert(0, {"role": "user", "content": [_text(_OPENING)]})
    if out and out[-1]["role"] == "assistant":
        _end(out)
    return out


def _steps(messages: Sequence[WindowMessage], fit: Callable[[str], str]) -> list[_Step]:
    """Return messages with the results of their calls; a result without its call becomes a message of the user."""
    out: list[_Step] = []
    waiting: list[_Call] = []  # those of the newest message first
    ids: set[str] = set()
    for message in messages:
        if message.role != "tool":
            calls = list(_calls(message, fit, ids))
            if calls or message.content.strip():
                out.append(_Step(message.role, message.content, message.name, calls, message.thinking))
            waiting[:0] = calls
            continue
        call = next((each for each in waiting if each.stored_id == message.tool_call_id), None)
        if call is None:
            content = _ORPHAN + _FAILED * message.is_error + message.content
            out.append(_Step("user", content, message.name or "tool", [], ()))
        else:
            call.result = message
            waiting.remove(call)
    return out


def _calls(message: WindowMessage, fit: Callable[[str], str], ids: set[str]) -> Iterator[_Call]:
    """Yield the calls of a message under ids that no other call has, short enough for every provider."""
    for each in message.tool_calls:
        stored, number = each["id"], 1
        short = fit(stored)
        if len(short) > _ID_CHARS:
            digest = blake2b(stored.encode(), digest_size=8).hexdigest()
            short = f"{short[: _ID_CHARS - 1 - len(digest)]}_{digest}"
        unique = short
        while unique in ids:
            number += 1
            unique = f"{short[: _ID_CHARS - 1 - len(str(number))]}_{number}"
        ids.add(unique)
        yield _Call(stored, unique, each["function"]["name"], each["function"]["arguments"])


def _tool_call(call: _Call) -> dict[str, Any]:
    value, written = call.input
    function = {
        "name": _fit(call.name)[:_OPENAI_CHARS],
        "arguments": call.arguments if written else json.dumps(value, ensure_ascii=False),
    }
    return {"id": call.id, "type": "function", "function": function}


def _tool_result(call: _Call) -> dict[str, Any]:
    content = NO_RESULT if call.result is None else call.result.content
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    return block | ({"is_error": True} if call.result is None or call.result.is_error else {})


def _add(out: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks to the last message if it is of the same role, else as another; thoughts alone are no message."""
    if all(_is_thought(block) for block in blocks):
        return
    if not out or out[-1]["role"] != role:
        out.append({"role": role, "content": []})
    content = out[-1]["content"]
    content.extend(blocks)
    content.sort(key=lambda block: not _is_thought(block))  # an answer that thinks begins with its thoughts


def _end(out: list[dict[str, Any]]) -> None:
    """Mend a last message that the model is to go on with: without thoughts, nor space at its end."""
    content = [block for block in out[-1]["content"] if not _is_thought(block)]
    content[-1] = _text(content[-1]["text"].rstrip())
    out[-1]["content"] = content


def _is_thought(block: Mapping[str, Any]) -> bool:
    return block["type"] in THOUGHTS


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _fit(name: str) -> str:
    return _UNFIT.sub("_", name)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


FORMS: Final[Mapping[str, Callable[[Sequence[WindowMessage]], list[dict[str, Any]]]]] = {
    "openai": openai_messages,
    "anthropic": anthropic_messages,
}
