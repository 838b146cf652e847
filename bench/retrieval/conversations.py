"""LoCoMo's conversations with questions (Maharana et al., ACL 2024): read, stored, and the same without names.

A conversation is a JSON object: ``session_N`` with turns, ``session_N_date_time``, and ``qa`` with the turns that hold
each answer. The sessions may stand in an object ``conversation``, and several conversations in a list, as the
benchmark's own file has them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caliber.model.process.files import read_bytes
from caliber.model.references import EntityRef
from caliber.model.trajectory import Scope

if TYPE_CHECKING:
    from caliber import Caliber

ADVERSARIAL = 5
"""The category whose questions have no answer; left out of recall."""

_SESSION = re.compile(r"session_(\d+)\Z")
_EVIDENCE = re.compile(r"D\d+:\d+")
_WHEN = "%I:%M %p on %d %B, %Y"


class BadData(ValueError):
    """A file that is not a conversation."""


@dataclass(frozen=True)
class Turn:
    """One message; ``name`` is its identifier in the evidence."""

    name: str
    speaker: str
    text: str
    session: int
    said_at: datetime

    @property
    def document(self) -> str:
        """The text that is searched: speaker and message."""
        return f"{self.speaker}: {self.text}"


@dataclass(frozen=True)
class Question:
    """A question, its number in the file from 1, and the turns that answer it."""

    text: str
    evidence: frozenset[str]
    category: int
    number: int = 0


@dataclass(frozen=True)
class Conversation:
    """One conversation, in the order it was held."""

    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]

    @property
    def sessions(self) -> dict[int, list[Turn]]:
        """The turns of each session."""
        out: dict[int, list[Turn]] = {}
        for turn in self.turns:
            out.setdefault(turn.session, []).append(turn)
        return out


@dataclass(frozen=True)
class Remembered:
    """A conversation in a store, as the trajectory ``task``; ``names`` maps each turn's id to its identifier."""

    conversation: Conversation
    names: Mapping[str, str]
    task: uuid.UUID


def load(file: Path) -> list[Conversation]:
    """Return the conversations in a file, with the questions that have evidence and an answer. Raises: BadData."""
    try:
        data = json.loads(read_bytes(file))
        if not isinstance(data, list):
            return [_conversation(data, file.stem)]
        if not data:
            raise ValueError("the list is empty")
        return [_conversation(item, str(item.get("sample_id", at))) for at, item in enumerate(data, 1)]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadData(f"{file} is not a conversation of LoCoMo: {type(error).__name__}: {error}") from error


def _conversation(raw: Mapping[str, Any], name: str) -> Conversation:
    turns = tuple(_turns(raw.get("conversation", raw)))
    if not turns:
        raise ValueError("no session_N holds a turn")
    return Conversation(name, turns, tuple(_questions(raw["qa"], {turn.name for turn in turns})))


def _turns(raw: Mapping[str, Any]) -> list[Turn]:
    numbers = sorted(int(found[1]) for found in map(_SESSION.match, raw) if found)
    out = []
    for number in numbers:
        said_at = datetime.strptime(raw[f"session_{number}_date_time"].strip(), _WHEN).replace(tzinfo=UTC)
        for turn in raw[f"session_{number}"]:
            text = f"{turn['text']} {turn.get('blip_caption') or ''}".strip()
            out.append(Turn(turn["dia_id"], turn["speaker"], text, number, said_at))
    return out


def _questions(raw: Sequence[Mapping[str, Any]], turn_ids: set[str]) -> list[Question]:
    out = []
    for number, item in enumerate(raw, 1):
        # One string may hold several ids, and some ids name no turn.
        named = {name for text in item.get("evidence") or () for name in _EVIDENCE.findall(text)}
        evidence = frozenset(named & turn_ids)
        if evidence and item["category"] != ADVERSARIAL:
            out.append(Question(item["question"], evidence, item["category"], number))
    return out


def remember(
    memory: Caliber, conversation: Conversation, initiator: EntityRef, *, leave_open: bool = False
) -> Remembered:
    """Store a conversation as an agent would have met it: a trajectory, a scope a session, a turn a message.

    ``leave_open`` leaves the last session's scope open.
    """
    task = memory.start_trajectory(f"Conversation {conversation.name}", initiator=initiator)
    scope: Scope | None = memory.current_scope(task.trajectory_id)
    names: dict[str, str] = {}
    first = conversation.turns[0].speaker
    sessions = list(conversation.sessions.values())
    for turns in sessions:
        if scope is None:
            scope = memory.open_scope(task.trajectory_id)
        stored = memory.append_turns(
            scope.scope_id,
            [
                {
                    "role": "user" if turn.speaker == first else "assistant",
                    "name": turn.speaker or None,
                    "content": turn.text,
                    "occurred_at": turn.said_at,
                }
                for turn in turns
            ],
        )
        names.update({str(new.turn_id): turn.name for new, turn in zip(stored, turns, strict=True)})
        if not leave_open or turns is not sessions[-1]:
            memory.close_scope(scope.scope_id)
        scope = None
    memory.flush()
    return Remembered(conversation, names, task.trajectory_id)


def load_all(folder: Path) -> list[Conversation]:
    """Return the conversations of a folder, by name. Raises: BadData."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadData(f"{folder} holds no conversations: expected files such as 26.json")
    return [conversation for file in files for conversation in load(file)]


def without_names(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Return conversations whose turns name no speaker, with questions in the first person.

    A chat with one user names nobody; a name in the head of every turn makes each a little like each question.
    """
    out = []
    for item in conversations:
        names = "|".join(sorted({re.escape(turn.speaker) for turn in item.turns}))
        pattern = re.compile(rf"\b(?:{names})\b('s)?")
        turns = tuple(replace(turn, speaker="") for turn in item.turns)
        questions = tuple(
            replace(question, text=pattern.sub(lambda found: "my" if found[1] else "I", question.text))
            for question in item.questions
        )
        out.append(Conversation(f"{item.name}-unnamed", turns, questions))
    return out
