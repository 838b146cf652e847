"""Generator of the demo's questions from the imported content, each with the words that a right answer contains."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from caliber.cli.output import printable
from caliber.model.trajectory import TurnRole

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.windows import ContextWindow

_TRIED: Final = 12
_TITLE_CHARS: Final = 64


class DemoQuestion(NamedTuple):
    """A question, and the stored words that answer it; None if unknown."""

    text: str
    answer: str | None = None


def questions_about(memory: Caliber, trajectory_id: uuid.UUID) -> Iterator[DemoQuestion]:
    """Yield questions that an import can answer: about a commit, then sections of documents."""
    yield from _commit(memory, trajectory_id)
    yield from _documents(memory)
    yield from map(DemoQuestion, ("What is there to know?", "What else is there to know?"))


def shown_answer(window: ContextWindow, answer: str) -> str | None:
    """Return an answer as a window holds it, or None; a turn that is recalled begins with speaker and day."""
    if answer not in " ".join(window.text.split()):
        return None
    lines = (line for line in window.text.splitlines() if answer in line and line.startswith("["))
    return next(lines, answer.replace("**", ""))


def _commit(memory: Caliber, trajectory_id: uuid.UUID) -> Iterator[DemoQuestion]:
    """Yield a question about the date of a commit that a search distinguishes from all others."""
    subjects = {
        turn.turn_id: printable(turn.text.split("\n", 1)[0]).strip()
        for scope in memory.storage.scopes.list_by_trajectory(trajectory_id)[-6:]
        for turn in memory.storage.turns.list_by_scope(scope.scope_id)
        if turn.role is TurnRole.USER and turn.name
    }
    times = Counter(subjects.values())
    asked = [(-len(text), text, turn) for turn, text in subjects.items() if times[text] == 1]
    for _, subject, turn_id in sorted(item for item in asked if -item[0] <= _TITLE_CHARS)[:_TRIED]:
        question = DemoQuestion(f"When was this done: {subject}?", subject)
        if _finds(memory, question.text, "turn", turn_id):
            yield question
            return


def _documents(memory: Caliber) -> Iterator[DemoQuestion]:
    """Yield questions about sections of documents: those near the top first, of them the longest."""
    found = []
    for note in memory.storage.notes.all():
        path, _, title = printable(note.entity).partition(" § ")
        heading = title.split(" › ")[-1].strip(" .:!")
        if note.entity_type == "document" and 3 < len(heading) <= _TITLE_CHARS and len(note.content) >= 200:
            found.append((path.count("/"), -len(note.content), heading, note))
    for _, _, heading, note in sorted(found, key=lambda item: item[:3])[:_TRIED]:
        text = heading if heading.endswith("?") else f"What should I know about {heading}?"
        if _finds(memory, text, "note", note.note_id):
            yield DemoQuestion(text, re.split(r"(?<=[.!?]) ", " ".join(printable(note.content).split()))[0])


def _finds(memory: Caliber, text: str, kind: str, record_id: uuid.UUID) -> bool:
    """Return whether a search distinguishes a record from all others of its kind."""
    hits = memory.search(text, kinds=(kind,), limit=1).hits
    return bool(hits) and hits[0].id == record_id
