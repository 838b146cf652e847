"""Rule-based artifacts and notes from a trajectory's artifacts, summaries and goal; merging and comparing of notes.

Decisions become conventions or strategies, constraints conventions, preferences preferences, facts facts, an error
with the change that followed it a gotcha; goal and outcome together say how such a task went.

Source: C-233, C-234, K-111; docs/decisions/0014-rules-without-a-language-model.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from caliber.model.errors import InvalidValue
from caliber.model.knowledge import NoteType
from caliber.model.providers import (
    ConsolidationAction,
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TrajectoryDigest,
)
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.blocks import Block, find_blocks
from caliber.text.contradictions import NEGATIONS, OPPOSITES, contradicts
from caliber.text.naming import MAX_ENTITY_CHARS, name_entity
from caliber.text.sentences import UnitKind, iter_sentences, split_sentences
from caliber.text.statements import MAX_STATEMENT_CHARS, find_statements

# Of a longer turn its beginning and its end are read, half each: a log's cause is at one end or the other.
MAX_CHARS_READ = 1_000_000
# A longer turn is a dump; its beginning is kept.
MAX_ARTIFACTS_PER_TURN = 200
_TOOL_RESULT_CONFIDENCE = 1.0
_FOLDED_CHARS = 10_000


def extract_artifacts(turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
    """Return the artifacts in turns, in order of turns and of places in them.

    A repeated statement counts once: its first turn stays, with the highest confidence.
    """
    found: dict[tuple[ArtifactType, str], ExtractedArtifact] = {}
    for turn in turns:
        for artifact in _of_turn(turn):
            key = (artifact.artifact_type, _folded(artifact.content))
            existing = found.get(key)
            if existing is None:
                found[key] = artifact
            elif artifact.confidence > existing.confidence:
                found[key] = ExtractedArtifact(
                    existing.artifact_type, existing.content, artifact.confidence, existing.source_turn
                )
    return list(found.values())


def _of_turn(turn: ExtractionTurn) -> list[ExtractedArtifact]:
    found: list[ExtractedArtifact] = []
    if turn.role is TurnRole.TOOL and turn.content and not turn.content.isspace():
        # Complete, however long: a tool's result cannot be requested again.
        found.append(
            ExtractedArtifact(
                ArtifactType.TOOL_RESULT, turn.content.strip("\r\n"), _TOOL_RESULT_CONFIDENCE, turn.turn_number
            )
        )
    for kind, content, confidence in _inside(turn):
        if len(found) == MAX_ARTIFACTS_PER_TURN:
            break
        found.append(ExtractedArtifact(kind, content, confidence, turn.turn_number))
    return found


def _inside(turn: ExtractionTurn) -> Iterator[tuple[ArtifactType, str, float]]:
    from_tool = turn.role is TurnRole.TOOL
    for stretch in _stretches(turn.content):
        # Fences in a tool's result quote a file; they are no proposal.
        blocks = find_blocks(stretch, fences=not from_tool)
        pieces = [
            (block.start, block.artifact_type, block.content, block.confidence)
            for block in blocks
            if block.artifact_type is not None and block.content.strip()
        ]
        if not from_tool:
            pieces += [
                (start + statement.start, statement.artifact_type, statement.content, statement.confidence)
                for start, end in _between(blocks, len(stretch))
                for statement in find_statements(stretch[start:end], frozenset({turn.role}))
            ]
        for _, kind, content, confidence in sorted(pieces, key=lambda piece: piece[0]):
            yield kind, content, confidence


def _stretches(text: str) -> list[str]:
    if len(text) <= MAX_CHARS_READ:
        return [text]
    half = MAX_CHARS_READ // 2
    return [text[:half], text[-half:]]


def _between(blocks: Sequence[Block], size: int) -> Iterator[tuple[int, int]]:
    place = 0
    for block in blocks:
        if block.start > place:
            yield place, block.start
        place = block.end
    if place < size:
        yield place, size


def _folded(content: str) -> str:
    """Return the form that two repetitions of the same thing share."""
    if len(content) > _FOLDED_CHARS:
        return content
    return " ".join(content.split()).casefold().rstrip(" .!;,")


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


_MAX_CHARS = 20_000
_NEARLY_IDENTICAL = 0.95

_WORD = re.compile(r"\d{1,20}(?:[.,:]\d{1,20}){0,4}%?|[^\W\d_][\w'’-]{0,63}")
_SIDES = {
    word: (place, side) for place, row in enumerate(OPPOSITES) for side, words in enumerate(row) for word in words
}


def verify_contradiction(a: str, b: str) -> bool:
    """Return whether two texts contradict each other, as far as careful rules can tell."""
    return contradicts(a, b) is not None


def decide_consolidation(clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
    """Return one decision per cluster: near-identical memories yield to the newest one that covers all; else keep."""
    return [_decide(cluster) for cluster in clusters]


def _decide(cluster: Sequence[ConsolidationMember]) -> ConsolidationDecision:
    keys = tuple(member.key for member in cluster)
    statements = [
        frozenset(fold_statement(sentence.text) for sentence in iter_sentences(member.content)) - {""}
        for member in cluster
    ]
    words = [Counter(_WORD.findall(member.content[:_MAX_CHARS].casefold())) for member in cluster]
    newest_first = sorted(range(len(cluster)), key=lambda index: (-cluster[index].created_us, cluster[index].key))
    for survivor in newest_first if len(cluster) > 1 else []:
        if all(
            statements[other] <= statements[survivor] or _nearly_identical(words[other], words[survivor])
            for other in range(len(cluster))
        ):
            return ConsolidationDecision(ConsolidationAction.SUPERSEDE, keys, survivor=cluster[survivor].key)
    return ConsolidationDecision(ConsolidationAction.KEEP, keys)


def _nearly_identical(a: Counter[str], b: Counter[str]) -> bool:
    different = (a - b) + (b - a)
    # A number or a "not" more or less is no small difference.
    sides = {side for word in different if (side := _SIDES.get(word)) is not None}
    reversed_ = any((place, 1 - side) in sides for place, side in sides)
    negations = (word in NEGATIONS or word == "without" or word.endswith("n't") for word in different)
    if reversed_ or any(word[0].isdigit() for word in different) or any(negations):
        return False
    union = (a | b).total()
    return union > 0 and (a & b).total() / union >= _NEARLY_IDENTICAL
