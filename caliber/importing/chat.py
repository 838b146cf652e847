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
from pathlib import Path
from typing import Any, Final

from caliber.api.caliber import Caliber
from caliber.config.lifecycle import TrustConfig
from caliber.importing.errors import SourceError
from caliber.importing.source import Imported, open_scope_of, start_trajectory_of, trajectories_of
from caliber.model.errors import CaliberError
from caliber.model.forms.reading import read_message
from caliber.model.process.files import open_file
from caliber.model.references import EntityRef
from caliber.model.trajectory import Trajectory, TrajectoryStatus, TurnRole
from caliber.model.trust import TrustLabel, least_trusted
from caliber.trajectory.turns import check_turn


def json_object(raw: bytes, wrong: Callable[[str], Exception]) -> dict[str, Any]:
    """Return the JSON object of a text. Raises: the error that ``wrong`` makes of the reason."""
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise wrong(f"not UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise wrong(f"not JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError):
        raise wrong("not JSON that can be read: nested too deeply, or a number too long") from None
    if not isinstance(data, dict):
        raise wrong(f"expected an object, got {type(data).__name__}")
    return data


MAX_LINE_BYTES: Final = 64 << 20
_BATCH: Final = 500
_NAMES: Final = ("id", "conversation_id", "thread_id", "session_id")


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
    try:
        read = read_message(data, "message")
        for turn in read.turns:
            check_turn(None, _unlabelled, **turn, token_count=0)
    except CaliberError as error:
        raise BadLine(str(error)) from None
    conversation.turns.extend(read.turns)
    conversation.digests.extend(map(_digest, read.turns))
    conversation.other_parts += read.other_parts


def _unlabelled(_role: TurnRole, _name: str | None) -> TrustLabel:
    """Placeholder for the trust rules, which belong to the target store."""
    return TrustLabel.WEB


def _digest(turn: Mapping[str, Any]) -> str:
    fields = {key: value for key, value in turn.items() if key not in ("occurred_at", "model_id")}
    if "tool_calls" in fields:
        fields["tool_calls"] = [[call.id, call.name, call.arguments] for call in fields["tool_calls"]]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


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
