"""The conversations of a folder, and the same without names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from caliber.cli.evaluating.conversations import BadData, Conversation, load


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
