"""Notes by rules: what they say, what they are about, and how they merge."""

from __future__ import annotations

import pytest

from caliber.llm.local.extractive import ExtractiveProvider
from caliber.llm.protocols import SummarizationProvider
from caliber.model.errors import InvalidValue
from caliber.model.knowledge import NoteType
from caliber.model.providers import ExtractedArtifact, ExtractionTurn, GeneratedNote, MergedNote, TrajectoryDigest
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text.naming import name_entity
from caliber.text.note_rules import generate_notes, merge_notes

NOTHING = TrajectoryDigest(None, None)
TRACE = """Traceback (most recent call last):
  File "/srv/app/importer/load.py", line 3, in load
    return table[key]
  File "/usr/lib/python3/site-packages/lib.py", line 1, in get
    raise KeyError(key)
KeyError: 'x'"""


def artifact(kind: ArtifactType, content: str, turn: int | None = 1, confidence: float = 0.8) -> ExtractedArtifact:
    return ExtractedArtifact(kind, content, confidence, turn)


def note(content: str, confidence: float = 0.5, entity: str = "SQLite") -> GeneratedNote:
    return GeneratedNote(entity, "name", NoteType.FACT, content, confidence)


@pytest.mark.parametrize(("kind", "content", "note_type"), [
    (ArtifactType.DESIGN_DECISION, "We decided to always use tabs in SQLite.", NoteType.CONVENTION),
    (ArtifactType.DESIGN_DECISION, "We decided to migrate SQLite in two steps.", NoteType.STRATEGY),
    (ArtifactType.CONSTRAINT, "SQLite files must not exceed 5 MB.", NoteType.CONVENTION),
    (ArtifactType.USER_PREFERENCE, "I prefer SQLite.", NoteType.PREFERENCE),
    (ArtifactType.FACT, "Note that SQLite runs here.", NoteType.FACT),
])  # fmt: skip
def test_artifacts_become_notes_of_their_kind(kind: ArtifactType, content: str, note_type: NoteType) -> None:
    # C-233
    assert generate_notes(NOTHING, [], [artifact(kind, content)]) == [
        GeneratedNote("SQLite", "name", note_type, content, 0.8)
    ]


@pytest.mark.parametrize("kind", [ArtifactType.TOOL_RESULT, ArtifactType.CODE_PATCH, ArtifactType.INTERMEDIATE_OUTPUT])
def test_raw_outputs_become_no_notes(kind: ArtifactType) -> None:
    assert generate_notes(NOTHING, [], [artifact(kind, "some output of SQLite")]) == []


def test_an_error_and_the_change_that_followed_are_a_gotcha() -> None:
    fix = artifact(ArtifactType.CODE_PATCH, "--- a/load.py\n+++ b/importer/load.py\n@@ -1 +1 @@\n-x\n+y", 5, 0.9)
    (gotcha,) = generate_notes(NOTHING, [], [artifact(ArtifactType.ERROR_LOG, TRACE, 3, 0.9), fix])
    assert (gotcha.entity, gotcha.entity_type, gotcha.note_type) == ("load.py", "file", NoteType.GOTCHA)
    assert gotcha.content == "KeyError: 'x'\nFix: change in importer/load.py"
    assert gotcha.confidence == pytest.approx(0.63)


@pytest.mark.parametrize("turn", [2, 3, 24])
def test_a_change_before_with_or_long_after_the_error_is_not_its_fix(turn: int) -> None:
    error, change = artifact(ArtifactType.ERROR_LOG, TRACE, 3), artifact(ArtifactType.CODE_PATCH, "y = 2", turn)
    assert generate_notes(NOTHING, [], sorted([error, change], key=lambda item: item.source_turn or 0)) == []


def test_an_error_without_a_file_is_named_by_its_kind() -> None:
    error = artifact(ArtifactType.ERROR_LOG, "java.io.IOException: closed\n\tat a.b(C.java:1)", 1)
    (gotcha,) = generate_notes(NOTHING, [], [error, artifact(ArtifactType.CODE_PATCH, "\n  reopen()\n", 2)])
    assert (gotcha.entity, gotcha.entity_type) == ("java.io.IOException", "error")
    assert gotcha.content == "java.io.IOException: closed\nFix: reopen()"


def test_summaries_are_read_too_with_less_confidence() -> None:
    notes = generate_notes(NOTHING, ["They met. We decided to migrate SQLite in two steps."], [])
    assert [(item.content, item.note_type) for item in notes] == [
        ("We decided to migrate SQLite in two steps.", NoteType.STRATEGY)
    ]
    assert notes[0].confidence == pytest.approx(0.85 * 0.8)


def test_goal_and_outcome_are_remembered_together() -> None:
    (meta,) = generate_notes(TrajectoryDigest(" Fix `load.py` ", "It works."), [], [])
    assert meta == GeneratedNote(
        "load.py", "file", NoteType.META, "Goal: Fix `load.py`\nOutcome: It works.", meta.confidence
    )
    assert generate_notes(TrajectoryDigest("Fix it", None), [], []) == []
    assert generate_notes(TrajectoryDigest(None, "It works."), [], []) == []


def test_statements_that_name_nothing_are_about_the_goal() -> None:
    (found,) = generate_notes(
        TrajectoryDigest("Port the Berlin server", None), [], [artifact(ArtifactType.FACT, "It is so.")]
    )
    assert (found.entity, found.entity_type) == ("Berlin", "name")
    (found,) = generate_notes(NOTHING, [], [artifact(ArtifactType.FACT, "It is so.")])
    assert (found.entity, found.entity_type) == ("general", "topic")


def test_one_note_for_each_entity_and_type() -> None:
    # K-111
    facts = ["SQLite runs here.", "sqlite? No: SQLite runs here.", "SQLite has one writer.", "Postgres has many."]
    notes = generate_notes(
        NOTHING,
        [],
        [artifact(ArtifactType.FACT, f"Note that {fact}", confidence=0.5 + i / 10) for i, fact in enumerate(facts)],
    )
    assert [(item.entity, item.confidence) for item in notes] == [("SQLite", 0.7), ("Postgres", 0.8)]
    assert notes[0].content.count("SQLite has one writer.") == 1
    keys = [(item.entity.casefold(), item.entity_type, item.note_type) for item in notes]
    assert len(set(keys)) == len(keys)


def test_merging_unites_statements_without_repetition() -> None:
    # C-234, K-111
    merged = merge_notes(
        note("It has one writer. It is small.", 0.6),
        note("it is SMALL!\nIt is fast. It has  one writer. It is fast", 0.9, "sqlite"),
    )
    assert merged == MergedNote("SQLite", "name", NoteType.FACT, "It has one writer. It is small.\nIt is fast.", 0.9)


def test_merging_what_is_known_changes_nothing() -> None:
    # C-234: unchanged content need not be embedded again
    content = "It has  one writer.\n\n- It is small\n"
    assert merge_notes(note(content, 0.6), note("It is small.", 0.2)) == MergedNote(
        "SQLite", "name", NoteType.FACT, content, 0.6
    )


def test_merging_into_an_empty_note_adds_no_blank_line() -> None:
    assert merge_notes(note(" "), note("It is small.")).content == "It is small."


def test_merging_keeps_code_as_it_is() -> None:
    block = "```python\nif x:\n    y\n```"
    assert merge_notes(note("Use it so."), note(f"Like this:\n{block}")).content == f"Use it so.\nLike this:\n{block}"


@pytest.mark.parametrize(("other", "field"), [
    (GeneratedNote("Postgres", "name", NoteType.FACT, "x", 0.5), "entity"),
    (GeneratedNote("SQLite", "file", NoteType.FACT, "x", 0.5), "entity_type"),
    (GeneratedNote("SQLite", "name", NoteType.GOTCHA, "x", 0.5), "note_type"),
])  # fmt: skip
def test_notes_about_different_things_are_not_merged(other: GeneratedNote, field: str) -> None:
    # K-111: found and merged by all three
    with pytest.raises(InvalidValue) as caught:
        merge_notes(note("x"), other)
    assert caught.value.field == field


@pytest.mark.parametrize(("statement", "expected"), [
    ("Use `ruff` for all of it", ("ruff", "name")),
    ('The "write path" is short', ("write path", "name")),
    ("Look into caliber/llm/static.py for Berlin", ("caliber/llm/static.py", "file")),
    ("`pyproject.toml` is the place", ("pyproject.toml", "file")),
    ("We call open_scope before it", ("open_scope", "identifier")),
    ("We call flush() before it", ("flush()", "identifier")),
    ("Set CaliberConfig first", ("CaliberConfig", "identifier")),
    ("Read os.path of it", ("os.path", "identifier")),
    ("Pass --skip-bad there", ("--skip-bad", "identifier")),
    ("I moved to New York last year", ("New York", "name")),
    ("Alice Walker likes tea", ("Alice Walker", "name")),
    ("I think that Alice likes tea", ("Alice", "name")),
    ("SQLite is small", ("SQLite", "name")),
    ("Uploads must not exceed 5 MB", ("uploads", "topic")),
    ("I prefer green tea over black coffee", ("green tea black", "topic")),
    ("see https://example.com/a.py now", ("see https://example.com/a.py", "topic")),
    ("it is", None),
    ("", None),
    ("... !!! 5", None),
])  # fmt: skip
def test_what_a_statement_is_about(statement: str, expected: tuple[str, str] | None) -> None:
    assert name_entity(statement) == expected


def test_from_turns_to_notes_through_the_provider() -> None:
    # Issue 2: rule-based extraction of artifacts and of notes
    provider: SummarizationProvider = ExtractiveProvider(len, None)
    turns = [
        ExtractionTurn(1, TurnRole.USER, "I prefer `ruff`. It fails:\n\n" + TRACE),
        ExtractionTurn(2, TurnRole.ASSISTANT, "We decided to go with SQLite.\n```python\ntable.get(key)\n```"),
    ]
    artifacts = provider.extract_artifacts(turns)
    notes = provider.generate_notes(TrajectoryDigest("Fix it", "Fixed."), ["All done."], artifacts)
    assert {(item.entity, item.note_type) for item in notes} >= {
        ("ruff", NoteType.PREFERENCE),
        ("load.py", NoteType.GOTCHA),
        ("SQLite", NoteType.CONVENTION),
    }
    assert provider.model_id.startswith("extractive-2+hash-1:")
    assert provider.generate_notes(TrajectoryDigest("Fix it", "Fixed."), ["All done."], artifacts) == notes
