"""Messages as OpenAI and Anthropic write them, read as the keywords of turns.

A message is a mapping with ``role`` and ``content``: a text, or a list of parts. One message with results of tools is
several turns. Other fields of a provider's message are ignored; thoughts of a model are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from caliber.kernels.tokens.estimators import Estimator
from caliber.model import arguments
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.trajectory import ToolCall, TurnRole
from caliber.trajectory.turns import LabelOf, NewTurn, check_turn

_ROLES: Final = {
    "user": TurnRole.USER,
    "assistant": TurnRole.ASSISTANT,
    "model": TurnRole.ASSISTANT,
    "system": TurnRole.SYSTEM,
    "developer": TurnRole.SYSTEM,
    "tool": TurnRole.TOOL,
    "function": TurnRole.TOOL,
}
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The kinds of parts that are texts, and the field that holds them."""
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})


def check_messages(estimator: Estimator, label_of: LabelOf, messages: Any) -> list[NewTurn]:
    """Return the turns of messages, those with an id under it as idempotency key.

    Raises: InputError kinds; nothing of several messages is used if one is wrong.
    """
    if isinstance(messages, Mapping):
        raise DTypeError(field="messages", expected="a sequence of messages", got="one message")
    turns: list[NewTurn] = []
    for at, item in enumerate(arguments.as_items(messages, "messages", "a sequence of messages")):
        field = f"messages[{at}]"
        message = _as_mapping(item, field)
        parts = list(_turns_of(message, field))
        key = arguments.as_name(message.get("id"), f"{field}.id")
        for place, part in enumerate(parts):
            name = key if key is None or place == len(parts) - 1 else f"{key}#{place}"
            turns.append(
                check_turn(
                    estimator,
                    label_of,
                    occurred_at=message.get("occurred_at"),
                    trust=message.get("trust"),
                    idempotency_key=name,
                    **part,
                )
            )
    return turns


def digest(turn: NewTurn) -> str:
    """Return a short hash of a message."""
    calls = [[call.id, call.name, call.arguments] for call in turn.tool_calls]
    said = json.dumps([turn.role.value, turn.name, calls, turn.tool_call_id]).encode() + b"\0" + turn.content
    return hashlib.sha256(said).hexdigest()[:32]


def _as_mapping(item: Any, field: str) -> Mapping[str, Any]:
    dump: Callable[..., Any] | None = getattr(item, "model_dump", None)  # the message of a provider's own package
    found = dump() if callable(dump) else item
    if not isinstance(found, Mapping):
        raise DTypeError(field=field, expected="a mapping with role and content", got=type(item).__name__)
    return found


def _turns_of(message: Mapping[str, Any], field: str) -> Iterator[dict[str, Any]]:
    """Yield the keywords of the turns of a message: results of tools first, then its texts and calls."""
    if "role" not in message:
        raise InvalidValue(field=field, reason="role is required: user, assistant, system or tool")
    role = _role(message["role"], field)
    content = message.get("content")
    texts: list[str] = []
    calls: list[ToolCall] = list(arguments.as_tool_calls(_calls(message)))
    results = 0
    if content is None:
        if role is TurnRole.USER:
            raise InvalidValue(field=f"{field}.content", reason="is required")
    elif isinstance(content, str):
        texts.append(content)
    else:
        for at, part in enumerate(arguments.as_items(content, f"{field}.content", "a text or a list of parts")):
            place = f"{field}.content[{at}]"
            kind, body = _part(part, place)
            if kind == "tool_result":
                results += 1
                yield {
                    "role": TurnRole.TOOL,
                    "content": _result(body.get("content"), place),
                    "tool_call_id": body.get("tool_use_id"),
                }
            elif kind == "tool_use":
                calls.append(_call(body, place))
            elif kind not in _THOUGHTS:
                texts.append(_text(kind, body, place))
    if results and not texts and not calls:
        return
    turn: dict[str, Any] = {"role": role, "content": "\n\n".join(texts), "name": message.get("name")}
    if role is TurnRole.TOOL:
        turn["tool_call_id"] = message.get("tool_call_id")
    elif calls:
        turn["tool_calls"] = calls
    yield turn


def _role(value: Any, field: str) -> TurnRole:
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise InvalidValue(field=f"{field}.role", reason=f"must be one of {', '.join(_ROLES)}")
    return role


def _part(part: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(part, str):
        return "text", {"text": part}
    body = _as_mapping(part, field)
    kind = body.get("type")
    if not isinstance(kind, str):
        raise InvalidValue(field=field, reason="type is required, such as text")
    return kind, body


def _text(kind: str, body: Mapping[str, Any], field: str) -> str:
    """Return the text of a part; of an image or another file only that there is one."""
    if kind not in _TEXTS:
        return f"[{kind}]"
    return arguments.as_text(body.get(_TEXTS[kind]), f"{field}.{_TEXTS[kind]}", allow_empty=True)


def _result(content: Any, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part, field) for part in arguments.as_items(content, f"{field}.content", "a text or parts")]
    return "\n\n".join(_text(kind, body, field) for kind, body in parts)


def _calls(message: Mapping[str, Any]) -> Any:
    return message.get("tool_calls") or ()


def _call(body: Mapping[str, Any], field: str) -> ToolCall:
    """Return the call of a tool that a part is; its input is kept as JSON."""
    try:
        written = json.dumps(body.get("input") or {}, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidValue(field=f"{field}.input", reason="cannot be written as JSON") from error
    name = arguments.as_text(body.get("name"), f"{field}.name", limit=arguments.MAX_NAME_CHARS)
    return ToolCall(arguments.as_text(body.get("id"), f"{field}.id", limit=arguments.MAX_NAME_CHARS), name, written)
