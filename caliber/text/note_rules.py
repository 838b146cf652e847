"""Rule-based generation of notes from a trajectory's artifacts, summaries and goal, and merging of notes.

Decisions become conventions or strategies, constraints conventions, preferences preferences, facts facts, an error
with the change that followed it a gotcha; goal and outcome together say how such a task went.

Source: C-233, C-234, K-111; docs/decisions/0014-rules-without-a-language-model.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from caliber.model.errors import InvalidValue
from caliber.model.knowledge import NoteType
from caliber.model.providers import ExtractedArtifact, GeneratedNote, MergedNote, TrajectoryDigest
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.naming import MAX_ENTITY_CHARS, name_entity
from caliber.text.sentences import UnitKind, split_sentences
from caliber.text.statements import MAX_STATEMENT_CHARS, find_statements

# A change this many turns after an error counts as its fix.
_FIX_WITHIN_TURNS = 20
_FIX_CERTAINTY = 0.7
# A summary is second-hand.
_SUMMARY_CERTAINTY = 0.8
_OUTCOME_CONFIDENCE = 0.6
_MAX_SUMMARY_CHARS = 200_000
_HEADLINE_CHARS = 300

_ANY_ROLE = frozenset({TurnRole.USER, TurnRole.ASSISTANT, TurnRole.SYSTEM})
# Statements that hold from now on, not only for this task.
_LASTING = re.compile(
    r"\b(?:always|never|every|all (?:new|code|files|tests|modules)|convention|naming|name|style|format|standardi[sz]e"
    r"|from now on|by default|use|adopt|stick with|go with)\b",
    re.IGNORECASE,
)
_RAISED = re.compile(r"([A-Za-z_][\w.$]{0,150}(?:Error|Exception|Panic|Interrupt|Exit|Timeout|NotFound))\b")
_PYTHON_FRAME = re.compile(r'File "([^"\n]{1,300})", line \d')
_CHANGED_FILE = re.compile(r"^\+\+\+ (?:b/)?([^\t\r\n]{1,300})", re.MULTILINE)
_MAX_ERROR_CHARS = 100_000


def generate_notes(
    trajectory: TrajectoryDigest, scope_summaries: Sequence[str], artifacts: Sequence[ExtractedArtifact]
) -> list[GeneratedNote]:
    """Return the notes of a trajectory, at most one per (entity, entity_type, note_type), in order of their sources."""
    return unite_notes(_all_notes(trajectory, scope_summaries, artifacts))


def unite_notes(found: Iterable[GeneratedNote]) -> list[GeneratedNote]:
    """Return one note for each (entity ignoring case, entity_type, note_type), in order, without repetitions."""
    groups: dict[tuple[str, str, NoteType], list[GeneratedNote]] = {}
    for note in found:
        groups.setdefault((note.entity.casefold(), note.entity_type, note.note_type), []).append(note)
    return [
        GeneratedNote(
            first.entity,
            first.entity_type,
            first.note_type,
            _united([note.content for note in notes]),
            max(note.confidence for note in notes),
        )
        for notes in groups.values()
        for first in notes[:1]
    ]


def merge_notes(a: GeneratedNote, b: GeneratedNote) -> MergedNote:
    """Return one note with the statements of both, without repetition, and the higher confidence.

    Raises: InvalidValue unless entity (whatever its case), entity_type and note_type agree (K-111).
    """
    require_mergeable(a, b)
    return MergedNote(
        a.entity, a.entity_type, a.note_type, _united([a.content, b.content]), max(a.confidence, b.confidence)
    )


def require_mergeable(a: GeneratedNote, b: GeneratedNote) -> None:
    """Raise InvalidValue unless entity (whatever its case), entity_type and note_type agree (K-111)."""
    for field, left, right in (
        ("entity", a.entity.casefold(), b.entity.casefold()),
        ("entity_type", a.entity_type, b.entity_type),
        ("note_type", a.note_type, b.note_type),
    ):
        if left != right:
            raise InvalidValue(field=field, reason="only notes about the same entity and of the same types are merged")


def fold_statement(sentence: str) -> str:
    """Return the canonical form of a sentence: its words, whatever the case, space and closing mark."""
    return " ".join(sentence.split()).casefold().strip(" .!;,:*_-•")


def _all_notes(
    trajectory: TrajectoryDigest, scope_summaries: Sequence[str], artifacts: Sequence[ExtractedArtifact]
) -> Iterator[GeneratedNote]:
    subject = _subject(trajectory)
    for place, artifact in enumerate(artifacts):
        if artifact.artifact_type is ArtifactType.ERROR_LOG:
            fix = _fix_of(artifacts, place)
            if fix is not None:
                yield _gotcha(artifact, fix)
        else:
            yield from _stated(artifact.artifact_type, artifact.content, artifact.confidence, subject)
    summaries = [*scope_summaries, *([trajectory.summary] if trajectory.summary else [])]
    for summary in summaries:
        for statement in find_statements(summary[:_MAX_SUMMARY_CHARS], _ANY_ROLE):
            certainty = statement.confidence * _SUMMARY_CERTAINTY
            yield from _stated(statement.artifact_type, statement.content, certainty, subject)
    if trajectory.goal and trajectory.goal.strip() and trajectory.summary and trajectory.summary.strip():
        entity, entity_type = subject
        content = f"Goal: {trajectory.goal.strip()}\nOutcome: {trajectory.summary.strip()}"
        yield GeneratedNote(entity, entity_type, NoteType.META, content, _OUTCOME_CONFIDENCE)


def _subject(trajectory: TrajectoryDigest) -> tuple[str, str]:
    """Return the subject of the whole trajectory, for statements that name none."""
    return (name_entity(trajectory.goal) if trajectory.goal else None) or ("general", "topic")


def _stated(kind: ArtifactType, content: str, confidence: float, subject: tuple[str, str]) -> Iterator[GeneratedNote]:
    if kind is ArtifactType.DESIGN_DECISION:
        note_type = NoteType.CONVENTION if _LASTING.search(content[:MAX_STATEMENT_CHARS]) else NoteType.STRATEGY
    elif kind is ArtifactType.CONSTRAINT:
        note_type = NoteType.CONVENTION
    elif kind is ArtifactType.USER_PREFERENCE:
        note_type = NoteType.PREFERENCE
    elif kind is ArtifactType.FACT:
        note_type = NoteType.FACT
    else:
        return
    if content.strip():
        entity, entity_type = name_entity(content) or subject
        yield GeneratedNote(entity, entity_type, note_type, content.strip(), confidence)


def _fix_of(artifacts: Sequence[ExtractedArtifact], place: int) -> ExtractedArtifact | None:
    """Return the first change within reach after an error; artifacts come in order of turns."""
    turn = artifacts[place].source_turn
    if turn is None:
        return None
    for later in artifacts[place + 1 :]:
        if later.source_turn is None or later.source_turn <= turn:
            continue
        if later.source_turn > turn + _FIX_WITHIN_TURNS:
            return None
        if later.artifact_type in (ArtifactType.CODE_PATCH, ArtifactType.DESIGN_DECISION):
            return later
    return None


def _gotcha(error: ExtractedArtifact, fix: ExtractedArtifact) -> GeneratedNote:
    text = error.content[-_MAX_ERROR_CHARS:]
    headline = _headline(text)
    entity, entity_type = _error_entity(text, headline)
    confidence = min(error.confidence, fix.confidence) * _FIX_CERTAINTY
    return GeneratedNote(entity, entity_type, NoteType.GOTCHA, f"{headline}\nFix: {_change(fix)}", confidence)


def _headline(text: str) -> str:
    """Return the line that names the error: the last that does in Python's order, else the first one."""
    named = [line.strip() for line in text.split("\n") if _RAISED.search(line[:_HEADLINE_CHARS])]
    python = "Traceback (most recent call last)" in text
    lines = named or [line.strip() for line in text.split("\n") if line.strip()] or [text.strip()]
    return lines[-1 if python else 0][:_HEADLINE_CHARS]


def _error_entity(text: str, headline: str) -> tuple[str, str]:
    own_paths = [path for path in _PYTHON_FRAME.findall(text) if "site-packages" not in path and "<" not in path]
    if own_paths:
        return own_paths[-1].replace("\\", "/").rsplit("/", 1)[-1][:MAX_ENTITY_CHARS], "file"
    raised = _RAISED.search(headline)
    if raised is not None:
        return raised[1][:MAX_ENTITY_CHARS], "error"
    return name_entity(headline) or ("error", "error")


def _change(fix: ExtractedArtifact) -> str:
    if fix.artifact_type is ArtifactType.DESIGN_DECISION:
        return fix.content.strip()
    files = list(dict.fromkeys(_CHANGED_FILE.findall(fix.content[:_MAX_ERROR_CHARS])))
    if files:
        return "change in " + ", ".join(files[:5])
    line = next((line.strip() for line in fix.content.split("\n", 200) if line.strip()), "")
    return line[:_HEADLINE_CHARS]


def _united(contents: Sequence[str]) -> str:
    """Return the first text, then those sentences of the others that were not there yet, each on its own line."""
    out = [contents[0].rstrip()]
    seen = {fold_statement(sentence.text) for sentence in split_sentences(contents[0])} | {""}
    for content in contents[1:]:
        for sentence in split_sentences(content):
            folded = fold_statement(sentence.text)
            if folded not in seen:
                seen.add(folded)
                out.append(sentence.text if sentence.kind is UnitKind.CODE else " ".join(sentence.text.split()))
    return "\n".join(filter(None, out)) if len(out) > 1 else contents[0]
