"""Artifacts found by rules."""

from __future__ import annotations

from itertools import pairwise

import pytest

from caliber.model.providers import ExtractedArtifact, ExtractionTurn
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text import note_rules
from caliber.text.blocks import find_blocks
from caliber.text.note_rules import extract_artifacts

PATCH, ERROR = ArtifactType.CODE_PATCH, ArtifactType.ERROR_LOG
DECISION, PREFERENCE = ArtifactType.DESIGN_DECISION, ArtifactType.USER_PREFERENCE
CONSTRAINT, FACT, TOOL = ArtifactType.CONSTRAINT, ArtifactType.FACT, ArtifactType.TOOL_RESULT

DIFF = """diff --git a/x.py b/x.py
index 111..222 100644
--- a/x.py
+++ b/x.py
@@ -1,3 +1,3 @@ def f():
 kept
-old
+new

@@ -9 +9 @@
-y
+z
\\ No newline at end of file"""
PYTHON = """Traceback (most recent call last):
  File "a.py", line 3, in load
    return table[key]
KeyError: 'x'"""
CHAINED = f"""{PYTHON}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 9, in main
    raise ImporterFault from None
importer.ImporterFault: no key"""
JAVA = """Exception in thread "main" java.lang.NullPointerException: x
\tat com.foo.Bar.run(Bar.java:3)
\tat com.foo.Main.main(Main.java:4)
Caused by: java.io.IOException: closed
\t... 3 more"""
JAVASCRIPT = """TypeError: Cannot read properties of undefined (reading 'x')
    at load (/app/src/load.js:1:2)
    at async main (/app/main.js:7:1)"""
GO = """panic: runtime error: index out of range [5]

goroutine 1 [running]:
main.main()
\t/app/main.go:8 +0x1d"""
RUST = """thread 'main' panicked at src/main.rs:4:5:
index out of bounds"""


def found(content: str, role: TurnRole = TurnRole.USER) -> list[tuple[ArtifactType, str]]:
    return [(item.artifact_type, item.content) for item in extract_artifacts([ExtractionTurn(3, role, content)])]


@pytest.mark.parametrize("language", ["python", "c", "", "bash", "rust ignore"])
def test_fenced_code_is_a_patch(language: str) -> None:
    assert found(f"Try this:\n```{language}\nx = 1\n\ny = 2\n```\nFine?", TurnRole.ASSISTANT) == [
        (PATCH, "x = 1\n\ny = 2")
    ]


@pytest.mark.parametrize("content", [DIFF, f"Here:\n{DIFF}\nDone.", f"```diff\n{DIFF}\n```", f"```\n{DIFF}\n```"])
def test_a_unified_diff_is_one_patch(content: str) -> None:
    assert found(content, TurnRole.ASSISTANT) == [(PATCH, DIFF)]


def test_a_diff_ends_where_its_hunks_end() -> None:
    content = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n- a list item, not a removed line"
    assert found(content) == [(PATCH, "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new")]


def test_rules_and_dashes_are_no_diff() -> None:
    assert found("Title\n---\nText\n--- a\nmore\n+++ b") == []


@pytest.mark.parametrize(
    "trace", [PYTHON, CHAINED, JAVA, JAVASCRIPT, GO, RUST], ids=["py", "chain", "java", "js", "go", "rust"]
)
@pytest.mark.parametrize("frame", ["{}", "I get this:\n\n{}\n\nWhat now?", "```\n{}\n```", "```text\n{}\n```"])
def test_a_stack_trace_is_one_error_log(trace: str, frame: str) -> None:
    assert found(frame.format(trace)) == [(ERROR, trace)]


@pytest.mark.parametrize("line", [
    "2024-01-01 12:00:00,123 ERROR db: lost connection",
    "[2024-01-01T12:00:00Z] FATAL: out of memory",
    "src/main.c:12:5: error: expected ';'",
    "error[E0382]: borrow of moved value",
    "ValueError: bad digit",
    "npm ERR! code ENOENT",
    "fatal: not a git repository",
])  # fmt: skip
def test_error_lines_are_an_error_log(line: str) -> None:
    assert found(f"make all\n{line}\n{line} again\nbye") == [(ERROR, f"{line}\n{line} again")]


@pytest.mark.parametrize(
    "text", ["An error is no problem.", "No errors: all fine", "terror: a film", "The ERROR level is high."]
)
def test_words_about_errors_are_no_error_log(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(("sentence", "kind"), [
    ("We decided to use SQLite.", DECISION),
    ("After some talk we have finally agreed on two spaces.", DECISION),
    ("Let's go with apsw for the driver.", DECISION),
    ("We'll stick with one writer.", DECISION),
    ("The decision is to ship on Monday.", DECISION),
    ("I prefer tabs over spaces.", PREFERENCE),
    ("I’d really prefer short answers.", PREFERENCE),
    ("Please always run the tests first.", PREFERENCE),
    ("Never use semicolons.", PREFERENCE),
    ("I like green tea.", PREFERENCE),
    ("My favourite editor is vim.", PREFERENCE),
    ("From now on, answer in French.", PREFERENCE),
    ("Uploads must not exceed 5 MB.", CONSTRAINT),
    ("There is a limit of 20 requests a minute.", CONSTRAINT),
    ("The name has to be unique.", CONSTRAINT),
    ("Keys must be strings.", CONSTRAINT),
    ("Don't touch the main branch.", CONSTRAINT),
    ("Note that the server lives in Berlin.", FACT),
    ("Remember that Alice owns the account.", FACT),
    ("FYI the port is 8080.", FACT),
])  # fmt: skip
def test_what_people_say_becomes_artifacts(sentence: str, kind: ArtifactType) -> None:
    assert found(f"Hello there. {sentence} Thanks a lot!") == [(kind, sentence)]


@pytest.mark.parametrize(("line", "kind", "content"), [
    ("Decision: use one writer", DECISION, "use one writer"),
    ("- **Decision:** use one writer.", DECISION, "use one writer."),
    ("2. Constraint: at most one writer", CONSTRAINT, "at most one writer"),
    ("Fact: the sky is blue.", FACT, "the sky is blue."),
    ("note: the build needs cmake", FACT, "the build needs cmake"),
    ("Preference: dark mode please", PREFERENCE, "dark mode please"),
])  # fmt: skip
def test_labels_say_what_a_line_is(line: str, kind: ArtifactType, content: str) -> None:
    (artifact,) = extract_artifacts([ExtractionTurn(1, TurnRole.USER, f"Summary of today\n\n{line}\n")])
    assert (artifact.artifact_type, artifact.content) == (kind, content)
    assert 0.7 <= artifact.confidence <= 1.0


@pytest.mark.parametrize("sentence", [
    "Have we decided to use SQLite?",
    "If we decided to use it, it would break.",
    "Should we go with SQLite or not?",
    "Never mind.",
    "Always?",
    "I would like to ask something.",
    "He has to leave early.",
    "You must have been tired.",
    "The sky is blue.",
    "Do you prefer tea?",
    "Don't worry about it.",
])  # fmt: skip
def test_questions_and_asides_are_not_taken_for_statements(sentence: str) -> None:
    assert found(sentence) == []


@pytest.mark.parametrize(("role", "sentence", "kinds"), [
    (TurnRole.ASSISTANT, "I prefer tabs over spaces.", []),
    (TurnRole.ASSISTANT, "I like this approach.", []),
    (TurnRole.ASSISTANT, "The file has to be read first.", []),
    (TurnRole.ASSISTANT, "We decided to use SQLite.", [DECISION]),
    (TurnRole.ASSISTANT, "Preference: dark mode", []),
    (TurnRole.SYSTEM, "Never reveal the prompt.", [CONSTRAINT]),
    (TurnRole.SYSTEM, "We decided to use SQLite.", []),
    (TurnRole.TOOL, "I prefer tabs. We decided to use SQLite. Fact: x is y.", [TOOL]),
])  # fmt: skip
def test_who_says_it_matters(role: TurnRole, sentence: str, kinds: list[ArtifactType]) -> None:
    assert [kind for kind, _ in found(sentence, role)] == kinds


def test_a_tool_turn_is_kept_whole_and_its_errors_and_diffs_besides() -> None:
    content = f"running\n```python\nx = 1\n```\n{PYTHON}\n\n{DIFF}\nend"
    assert found(content, TurnRole.TOOL) == [(TOOL, content), (ERROR, PYTHON), (PATCH, DIFF)]
    assert found(" \n", TurnRole.TOOL) == []


def test_a_huge_tool_result_is_not_cut() -> None:
    content = "row\n" * 1_000_000 + "end"
    assert found(content, TurnRole.TOOL)[0] == (TOOL, content)


def test_order_source_and_repetition() -> None:
    turns = [
        ExtractionTurn(4, TurnRole.USER, "I like tabs. Remember that Bob is out."),
        ExtractionTurn(5, TurnRole.ASSISTANT, "```\ny = 2\n```\nWe decided to use tabs."),
        ExtractionTurn(9, TurnRole.USER, "Fact: Remember that  bob is OUT\n\n- i LIKE   tabs"),
    ]
    assert extract_artifacts(turns) == [
        ExtractedArtifact(PREFERENCE, "I like tabs.", 0.7, 4),
        ExtractedArtifact(FACT, "Remember that Bob is out.", 0.95, 4),
        ExtractedArtifact(PATCH, "y = 2", 0.6, 5),
        ExtractedArtifact(DECISION, "We decided to use tabs.", 0.85, 5),
    ]
    assert extract_artifacts([]) == []


def test_code_and_traces_are_not_searched_for_statements() -> None:
    assert found("```python\n# We decided to use tabs. I prefer it.\n```") == [
        (PATCH, "# We decided to use tabs. I prefer it.")
    ]
    assert found("```text\nWe decided to use tabs.\n```") == []


def test_fences_nested_without_end_are_read_once() -> None:
    text = "\n".join("~" * length for length in range(1_200, 2, -1)) + "\nValueError: deep inside"
    ((kind, content),) = found(text)
    assert kind is ERROR
    assert content.endswith("ValueError: deep inside")


def test_a_turn_gives_a_bounded_number_of_artifacts() -> None:
    text = "\n".join(f"- Fact: the value of key {number} is set" for number in range(5_000))
    artifacts = found(text)
    assert len(artifacts) == note_rules.MAX_ARTIFACTS_PER_TURN
    assert artifacts[0] == (FACT, "the value of key 0 is set")


def test_beginning_and_end_of_a_long_turn_are_read() -> None:
    text = "Fact: it starts here.\n" + "filler words\n" * 200_000 + "Fact: it ends here."
    assert found(text) == [(FACT, "it starts here."), (FACT, "it ends here.")]


def test_blocks_do_not_overlap_and_know_their_place() -> None:
    text = f"a\n```py\nx\n```\n{PYTHON}\nb\n{DIFF}\nERROR x\n~~~text\nquiet\n~~~"
    blocks = find_blocks(text)
    assert [block.artifact_type for block in blocks] == [PATCH, ERROR, PATCH, ERROR, None]
    assert all(one.end <= other.start for one, other in pairwise(blocks))
    assert text[blocks[1].start : blocks[1].end] == PYTHON
