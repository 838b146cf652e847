"""Reader of messages in the forms of providers: OpenAI's old and new ones, Anthropic's, Gemini's, and their relatives.

A message becomes the keywords of turns: the result of a tool is a turn of its own. A part that is no text, such as an
image, leaves its kind in the text; thoughts that a provider signed are kept as they came, others are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from caliber.model import arguments
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.forms.messages import THOUGHTS
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from caliber.model.trajectory import ToolCall, TurnRole

_ROLES: Final = {
    "user": TurnRole.USER,
    "assistant": TurnRole.ASSISTANT,
    "model": TurnRole.ASSISTANT,
    "system": TurnRole.SYSTEM,
    "developer": TurnRole.SYSTEM,
    "tool": TurnRole.TOOL,
    "function": TurnRole.TOOL,
}
_TIMES: Final = ("occurred_at", "timestamp", "created_at", "create_time")
# Kinds of parts, in small letters alone: Gemini's ``functionCall`` is ``function_call`` in Python.
_TEXTS: Final = {"text": "text", "inputtext": "text", "outputtext": "text", "refusal": "refusal"}
_CALLS: Final = frozenset({"tooluse", "toolcall", "functioncall"})
_RESULTS: Final = frozenset({"toolresult", "functionresponse", "functioncalloutput"})
_UNSIGNED: Final = frozenset({"thinking", "redactedthinking", "reasoning", "thought"})
# Names of one field, the first that is there counts. A call without an id has that of its tool, and so has its result.
_NAME: Final = ("name", "tool_name", "toolName")
_ID: Final = ("call_id", "tool_use_id", "tool_call_id", "toolUseId", "toolCallId", "id", *_NAME)
_ANSWERED: Final = tuple(name for name in _ID if name != "id")
_UNNAMED: Final = "unknown"
"""The call that a result answers where a message names none."""
_INPUT: Final = ("arguments", "input", "args")
_OUTPUT: Final = ("content", "output", "response", "result")
_BESIDE: Final = frozenset({"thought", "thought_signature", "thoughtSignature", "video_metadata", "videoMetadata"})
"""The fields of Gemini's parts that are no kind of part."""
_UNFIT: Final = re.compile(r"[^\w.-]+")
_KIND_CHARS: Final = 64
_MILLISECONDS: Final = 1e11
"""From here on a number is no time in seconds, but in a thousandth of them, or less."""


@dataclass(frozen=True, slots=True)
class Read:
    """The turns of a message, as keywords of ``append_turn``; how many of its parts have left their kind alone."""

    turns: list[dict[str, Any]]
    other_parts: int = 0
    key: Any = None
    trust: Any = None


def read_message(item: Any, field: str) -> Read:
    """Return the turns of a message: calls before results that came with them, else results first.

    Raises: InvalidValue, DTypeError.
    """
    message = whole = _as_mapping(item, field)
    content = message.get("content")
    if "role" not in message and "type" in message:  # an item of OpenAI's Responses
        message = {"role": "assistant", "content": [message]}
    elif isinstance(content, Mapping) and "parts" in content:  # an event of ADK
        message = {**message, **content, "content": None}
    parts = _Parts(_role(message, field))
    calls = [*arguments.as_items(message.get("tool_calls") or (), f"{field}.tool_calls", "a sequence of calls")]
    if message.get("function_call"):
        calls.append(message["function_call"])  # OpenAI's old form
    parts.calls.extend(calls_of(calls, f"{field}.tool_calls"))
    parts.read(message, field)
    shared: dict[str, Any] = {"occurred_at": _instant(whole, field)}
    if isinstance(whole.get("model"), str):
        shared["model_id"] = whole["model"]
    turns = [{**turn, **shared} for turn in parts.turns(message)]
    return Read(turns, parts.others, whole.get("id"), whole.get("trust"))


class _Parts:
    """The texts, calls, results and thoughts of one message."""

    def __init__(self, role: TurnRole) -> None:
        self.role = role
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.results: list[dict[str, Any]] = []
        self.thinking: list[dict[str, Any]] = []
        self.others = 0
        self.omitted = False
        """Whether it had thoughts that are not kept."""

    def read(self, message: Mapping[str, Any], field: str) -> None:
        """Read the content of a message, or its parts."""
        name = "content" if message.get("content") is not None else "parts"
        content = message.get(name)
        if isinstance(content, str):
            self.texts.append(content)
        elif content is not None:
            for at, part in enumerate(arguments.as_items(content, f"{field}.{name}", "a text or a list of parts")):
                self._add(part, f"{field}.{name}[{at}]")
        elif isinstance(refusal := message.get("refusal"), str):
            self.texts.append(refusal)
        elif isinstance(audio := message.get("audio"), Mapping):
            self._add({**audio, "type": "audio"}, f"{field}.audio")
        elif not self.calls and (self.role is TurnRole.USER or "content" not in message):
            raise InvalidValue(field=f"{field}.content", reason="is required: a text, or a list of parts")

    def _add(self, part: Any, field: str) -> None:
        kind, body = _part(part, field)
        plain = kind.replace("_", "").replace("-", "").lower()
        if kind in THOUGHTS and body.get(THOUGHTS[kind][-1]):
            self.thinking.extend(thoughts_of((body,), field))
        elif plain in _CALLS:
            self.calls.append(_call(body, field))
        elif plain in _RESULTS:
            self.results.append(self._result(body, field))
        elif plain in _UNSIGNED or body.get("thought") is True:
            self.omitted = True
        else:
            self.texts.append(self._text(kind, plain, body, field))

    def _text(self, kind: str, plain: str, body: Mapping[str, Any], field: str) -> str:
        """Return the text of a part; of an image or another file only that there is one, and the words in it."""
        if plain in _TEXTS:
            return arguments.as_text(body.get(_TEXTS[plain]), f"{field}.{_TEXTS[plain]}", allow_empty=True)
        self.others += 1
        words = next((body[name] for name in ("text", "transcript") if isinstance(body.get(name), str)), "")
        return f"[{_UNFIT.sub('_', kind)[:_KIND_CHARS]}] {words}".rstrip()

    def _result(self, body: Mapping[str, Any], field: str) -> dict[str, Any]:
        content = _first(body, _OUTPUT)
        if isinstance(content, list | tuple) and all(isinstance(part, str | Mapping) for part in content):
            read = [(*_part(part, field), f"{field}.content[{at}]") for at, part in enumerate(content)]
            said = "\n\n".join(self._text(kind, kind.replace("_", ""), body, at) for kind, body, at in read)
        else:
            said = "" if content is None else _json(content, f"{field}.content")
        called = _first(body, _ID) or _UNNAMED
        return {"role": TurnRole.TOOL, "content": said, "tool_call_id": called, "is_error": _failed(body)}

    def turns(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the keywords of the turns that were read."""
        if not any(self.texts) and not self.calls and (self.results or self.omitted):
            return self.results
        turn: dict[str, Any] = {
            "role": self.role,
            "content": "\n\n".join(self.texts),
            "name": message.get("name"),
            "thinking": self.thinking,
        }
        if self.role is TurnRole.TOOL:
            turn |= {"tool_call_id": _first(message, _ANSWERED) or _UNNAMED, "is_error": _failed(message)}
        elif self.calls:
            turn["tool_calls"] = self.calls
        return [turn, *self.results] if self.calls else [*self.results, turn]


def thoughts_of(values: Any, field: str) -> tuple[dict[str, Any], ...]:
    """Return blocks of thoughts with the fields that their provider asks for. Raises: InvalidValue, DTypeError."""
    out = []
    for at, value in enumerate(arguments.as_items(values, field, "a sequence of blocks")):
        place = f"{field}[{at}]"
        block = _as_mapping(value, place)
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in THOUGHTS:
            raise InvalidValue(field=f"{place}.type", reason=f"must be one of {', '.join(THOUGHTS)}")
        *others, proof = THOUGHTS[kind]
        kept = {name: arguments.as_text(block.get(name), f"{place}.{name}", allow_empty=True) for name in others}
        out.append({"type": kind, **kept, proof: arguments.as_text(block.get(proof), f"{place}.{proof}")})
    return tuple(out)


def _as_mapping(item: Any, field: str) -> Mapping[str, Any]:
    dump: Callable[..., Any] | None = getattr(item, "model_dump", None)  # the message of a provider's own package
    found = dump() if callable(dump) else item
    if not isinstance(found, Mapping):
        raise DTypeError(field=field, expected="a mapping with role and content", got=type(item).__name__)
    return found


def _role(message: Mapping[str, Any], field: str) -> TurnRole:
    if "role" not in message:
        raise InvalidValue(field=field, reason="role is required: user, assistant, system or tool")
    value = message["role"]
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise InvalidValue(field=f"{field}.role", reason=f"must be one of {', '.join(_ROLES)}")
    return role


def _part(part: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of a part and its fields: those of Gemini, without a type, are named by what they have."""
    if isinstance(part, str):
        return "text", {"text": part}
    body = _as_mapping(part, field)
    kind = body.get("type")
    if isinstance(kind, str):
        return kind, body
    kind = next((name for name, value in body.items() if value is not None and name not in _BESIDE), None)
    if not isinstance(kind, str):
        raise InvalidValue(field=field, reason="type is required, such as text")
    inner = body[kind]
    if body.get("thought") is True or not isinstance(inner, Mapping):
        return kind, body
    return kind, inner


def calls_of(values: Any, field: str) -> tuple[ToolCall, ...]:
    """Return calls of tools, given as ToolCall or as a provider writes them. Raises: InvalidValue, DTypeError."""
    items = arguments.as_items(values, field, "a sequence of ToolCall")
    return tuple(_call(item, f"{field}[{at}]") for at, item in enumerate(items))


def _call(item: Any, field: str) -> ToolCall:
    """Return the call of a tool; arguments that are no text are kept as JSON."""
    if isinstance(item, ToolCall):
        item = {"id": item.id, "name": item.name, "arguments": item.arguments}
    body = _as_mapping(item, field)
    function = body.get("function")
    if isinstance(function, Mapping):
        body = {**function, **({} if body.get("id") is None else {"id": body["id"]})}
    given = _first(body, _INPUT)
    name = arguments.as_text(_first(body, _NAME), f"{field}.name", limit=arguments.MAX_NAME_CHARS)
    key = arguments.as_text(_first(body, _ID), f"{field}.id", limit=arguments.MAX_NAME_CHARS)
    written = "{}" if given is None else _json(given, f"{field}.arguments")
    return ToolCall(key, name, arguments.as_text(written, f"{field}.arguments", allow_empty=True))


def _first(body: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((body[name] for name in names if body.get(name) is not None), None)


def _failed(body: Mapping[str, Any]) -> bool:
    return body.get("is_error") is True or body.get("isError") is True or body.get("status") == "error"


def _json(value: Any, field: str) -> str:
    """Return a text as it is, and any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(field=field, reason="cannot be written as JSON") from error


def _instant(message: Mapping[str, Any], field: str) -> datetime | None:
    """Return the time of a message by the first field that has one: a time, its ISO text, or seconds since 1970."""
    key = next((name for name in _TIMES if message.get(name) is not None), None)
    value = None if key is None else message[key]
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            for _ in range(3):  # down from nanoseconds
                value = value / 1000 if abs(value) > _MILLISECONDS else value
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            # Logs that name no time zone are taken as UTC, so that they mean the same on every machine.
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError) as error:
        let_through(error)
        value = ()
    if value is None or isinstance(value, datetime):
        return value
    raise InvalidValue(field=f"{field}.{key}", reason="must be a time in ISO 8601, or seconds since 1970")
