"""Importer of conversations from a JSON Lines file; a grown file adds only its new messages.

A line is one message (all such lines are one conversation), or a conversation ``{"messages": [...]}``. The file is
checked as a whole before anything is stored. A conversation is recognised by its messages: one that continues a stored
one is appended to it, so a growing log can be imported again and again. Source: docs/decisions/0022.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from caliber.api.caliber import Caliber
from caliber.config.trust import TrustConfig
from caliber.importing.errors import SourceError
from caliber.importing.json_lines import json_object
from caliber.importing.source import Imported, open_scope_of, start_trajectory_of, trajectories_of
from caliber.model.errors import CaliberError
from caliber.model.process.files import open_file
from caliber.model.references import EntityRef
from caliber.model.trajectory import ToolCall, Trajectory, TrajectoryStatus, TurnRole
from caliber.model.trust import TrustLabel, least_trusted
from caliber.trajectory.turns import check_turn

MAX_LINE_BYTES: Final = 64 << 20
_BATCH: Final = 500
_TIMES: Final = ("occurred_at", "timestamp", "created_at")
_NAMES: Final = ("id", "conversation_id", "thread_id", "session_id")
_ROLES: Final = {"developer": "system"}


class BadLine(ValueError):
    """The fault of a line."""


@dataclass(slots=True)
class Conversation:
    """Messages as ``append_turns`` takes them, without keys; ``digests`` names each by its content."""

    goal: str = ""
    name: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    other_parts: int = 0

    def keyed(self) -> list[dict[str, Any]]:
        """Return the turns with idempotency keys: their place and their content."""
        return [
            {**turn, "idempotency_key": f"chat:{at}:{digest}"}
            for at, (turn, digest) in enumerate(zip(self.turns, self.digests, strict=True))
        ]

    @property
    def identity(self) -> str:
        """The key under which its trajectory is looked up: its own name, or its first lines."""
        return f"chat:{self.name}" if self.name is not None else f"chat:first:{self.digests[0]}"


@dataclass(slots=True)
class Parsed:
    """A file as read: its conversations, and (line, fault) of each bad line."""

    conversations: list[Conversation]
    bad: list[tuple[int, str]]
    lines: int


def parse(path: Path, advance: Callable[[int], None]) -> Parsed:
    """Read and check a whole file; bad lines are collected, not raised.

    Raises: SourceError when the file cannot be read.
    """
    out = Parsed([], [], 0)
    loose = Conversation()
    try:
        with open_file(path) as stream:
            for number, raw in enumerate(_lines(stream), 1):
                advance(len(raw))
                out.lines = number
                try:
                    _line(raw, out, loose)
                except BadLine as error:
                    out.bad.append((number, str(error)))
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file", "check the path") from None
    except IsADirectoryError:
        raise SourceError(f"{path} is a folder", "name a .jsonl file") from None
    if loose.turns:
        out.conversations.insert(0, loose)
    for conversation in out.conversations:
        conversation.goal = conversation.goal or _goal(conversation, path)
    return out


def _lines(stream: Any) -> Iterator[bytes]:
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        if len(raw) > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE_BYTES + 1)
            raw = b"\x00"  # reported as a malformed line
        yield raw


def _line(raw: bytes, out: Parsed, loose: Conversation) -> None:
    if raw == b"\x00":
        raise BadLine(f"longer than {MAX_LINE_BYTES >> 20} MB")
    raw = raw.removeprefix(b"\xef\xbb\xbf").strip()
    if not raw:
        return
    data = json_object(raw, BadLine)
    if "messages" not in data:
        _message(data, loose)
        return
    messages = data["messages"]
    if not isinstance(messages, list) or not messages:
        raise BadLine("messages must be a list with at least one message")
    conversation = Conversation(goal=_short(data.get("goal") or data.get("title")), name=_name(data))
    for at, message in enumerate(messages):
        try:
            if not isinstance(message, dict):
                raise BadLine(f"expected an object, got {type(message).__name__}")
            _message(message, conversation)
        except BadLine as error:
            raise BadLine(f"messages[{at}]: {error}") from None
    out.conversations.append(conversation)


def _name(data: Mapping[str, Any]) -> str | None:
    for key in _NAMES:
        value = data.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return f"{key}={value}"
    return None


def _message(data: Mapping[str, Any], conversation: Conversation) -> None:
    role = data.get("role")
    if not isinstance(role, str):
        raise BadLine("role is missing; expected user, assistant, system or tool")
    if role == "function" or "function_call" in data:
        raise BadLine("function_call and role function are the old form; convert them to tool_calls and role tool")
    text, others = _content(data.get("content"))
    turn: dict[str, Any] = {"role": _ROLES.get(role, role), "content": text}
    calls = data.get("tool_calls")
    if calls:
        turn["tool_calls"] = _calls(calls)
    elif data.get("content") is None:
        raise BadLine("content is missing")
    for key in ("name", "tool_call_id"):
        if data.get(key) is not None:
            turn[key] = data[key]
    if isinstance(data.get("model"), str):
        turn["model_id"] = data["model"]
    turn["occurred_at"] = next((_instant(data[key], key) for key in _TIMES if data.get(key) is not None), None)
    try:
        check_turn(None, _unlabelled, **turn, token_count=0)
    except CaliberError as error:
        raise BadLine(str(error)) from None
    conversation.turns.append(turn)
    conversation.digests.append(_digest(turn))
    conversation.other_parts += others


def _unlabelled(_role: TurnRole, _name: str | None) -> TrustLabel:
    """Placeholder for the trust rules, which belong to the target store."""
    return TrustLabel.WEB


def _digest(turn: Mapping[str, Any]) -> str:
    fields = {key: value for key, value in turn.items() if key not in ("occurred_at", "model_id")}
    if "tool_calls" in fields:
        fields["tool_calls"] = [[call.id, call.name, call.arguments] for call in fields["tool_calls"]]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


def _content(content: Any) -> tuple[str, int]:
    """Return the text of a message, and how many parts that are no text it keeps as JSON."""
    if content is None:
        return "", 0
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        raise BadLine(f"content must be text or a list of parts, got {type(content).__name__}")
    texts, others = [], 0
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, str):
            texts.append(part)
        else:
            texts.append(json.dumps(part, ensure_ascii=False, sort_keys=True))
            others += 1
    return "\n".join(texts), others


def _calls(calls: Any) -> list[ToolCall]:
    if not isinstance(calls, list):
        raise BadLine("tool_calls must be a list")
    out = []
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(call.get("id"), str)
            or not isinstance(function.get("name"), str)
        ):
            raise BadLine(f"tool_calls[{at}]: expected id and function: {{name, arguments}}")
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
        out.append(ToolCall(call["id"], function["name"], arguments))
    return out


def _instant(value: Any, key: str) -> datetime:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            # Logs that name no time zone are taken as UTC, so that they mean the same on every machine.
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise BadLine(f"{key}: expected an ISO 8601 time or seconds since 1970")


def _goal(conversation: Conversation, path: Path) -> str:
    first = next(
        (turn["content"] for turn in conversation.turns if turn["role"] == "user" and turn["content"].strip()), ""
    )
    return _short(first) or f"Conversation from {path.name}"


def _short(text: Any) -> str:
    if not isinstance(text, str):
        return ""
    words = " ".join(text.split())
    return words if len(words) <= 120 else words[:119].rstrip() + "…"


# --- storing ------------------------------------------------------------------------------------


def store(
    memory: Caliber, conversation: Conversation, done: Imported, trust: TrustLabel, owner: EntityRef | None
) -> tuple[Trajectory, int]:
    """Store the new messages of a conversation, for its owner or everybody; return its trajectory and the turns added.

    Its turns are labelled as those of a conversation held here, but none is trusted more than ``trust``.
    """
    keyed = conversation.keyed()
    trajectory, stored = _continued(memory, conversation, [turn["idempotency_key"] for turn in keyed], owner)
    fresh = keyed[stored:]
    if trajectory is None:
        trajectory = start_trajectory_of(memory, conversation.identity, conversation.goal, ("chat",), owner)
    if fresh:
        scope = open_scope_of(memory, trajectory)
        fresh = list(_labelled(keyed, memory.config.trust, scope.trust, trust))[stored:]
        for at in range(0, len(fresh), _BATCH):
            done.turns += len(memory.append_turns(scope.scope_id, fresh[at : at + _BATCH]))
    done.turns_known += stored
    return trajectory, len(fresh)


def _labelled(
    turns: Sequence[dict[str, Any]], rules: TrustConfig, before: TrustLabel, most: TrustLabel
) -> Iterator[dict[str, Any]]:
    """Yield turns with labels: roles in a file count only as far as the file is trusted."""
    called: dict[str, str] = {}
    least = before
    for turn in turns:
        role = TurnRole(turn["role"])
        called.update({call.id: call.name for call in turn.get("tool_calls", ())})
        name = turn.get("name") or called.get(turn.get("tool_call_id", ""))
        trust = least_trusted(rules.of_turn(role, name), most)
        if role is TurnRole.ASSISTANT:
            trust = least_trusted(trust, least)
        least = least_trusted(least, trust)
        yield {**turn, "trust": trust}


def _continued(
    memory: Caliber, conversation: Conversation, keys: list[str], owner: EntityRef | None
) -> tuple[Trajectory | None, int]:
    """Return the owner's trajectory that holds these messages, or begins with them, and how many of them it holds."""
    for trajectory in trajectories_of(memory, conversation.identity, owner):
        stored = [
            turn.idempotency_key
            for scope in memory.storage.scopes.list_by_trajectory(trajectory.trajectory_id)
            for turn in memory.storage.turns.list_by_scope(scope.scope_id)
            if (turn.idempotency_key or "").startswith("chat:")
        ]
        common = min(len(stored), len(keys))
        if stored[:common] == keys[:common] and (trajectory.status is TrajectoryStatus.ACTIVE or common == len(keys)):
            return trajectory, common
    return None, 0
