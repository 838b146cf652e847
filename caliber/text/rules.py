"""Rule-based extraction of artifacts (code, errors, decisions, facts) from turns, without a language model.

Fenced code and diffs become code patches, stack traces and error lines error logs, what tools returned tool results;
sentences with cue words become decisions, preferences, constraints and facts. Deterministic, and linear in the text.

Source: issue 2 (providers), C-497; docs/decisions/0014-rules-without-a-language-model.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caliber.model.providers import ExtractedArtifact, ExtractionTurn
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.blocks import Block, find_blocks
from caliber.text.statements import find_statements

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
