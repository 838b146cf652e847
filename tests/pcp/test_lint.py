"""Lint of artifacts. Source: C-278 to C-282, K-087."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.model import EntityRef, Principal
from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.guard.validation import LintIssueType, LintResult, Severity
from caliber.pcp import lint as linting
from caliber.pcp.lint import fault_of, tags_of

RULES = {
    "linter_enabled": True,
    "vocabulary_enforcement": True,
    "vocabulary": ["billing", "Search"],
    "duplicate_detection": True,
    "duplicate_similarity": 0.95,
    "max_artifact_size": 1_000,
}
DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n import os\n-a = 1\n+a = 2\n"


@pytest.fixture
def agent(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(linting, "DUPLICATE_LIMIT", 2)
    return start(backend.open(pcp__anti_sprawl=RULES))


def kinds(result: LintResult) -> list[tuple[Severity, LintIssueType]]:
    return [(each.severity, each.issue_type) for each in result.issues]


def lint(agent: Any, content: Any, **options: Any) -> LintResult:
    artifact = agent.keep(content, **options)
    agent.memory.flush()
    result: LintResult = agent.memory.pcp.lint(artifact.artifact_id)
    return result


def test_a_plain_artifact_has_no_issue(agent: Any) -> None:
    assert lint(agent, "The cache holds 40 MB.") == LintResult(True, ())


def test_size(agent: Any) -> None:
    # C-278
    result = lint(agent, "x" * 1_001)
    assert kinds(result) == [(Severity.WARNING, LintIssueType.OVERSIZED)]
    assert result.valid


def test_near_duplicates_are_named_nearest_first(agent: Any, backend: Any, start: Any) -> None:
    # C-279
    words = "the staging Redis instance listens on port 6379 since the move to the new cluster in May"
    others = [agent.keep(f"{words}{'.' * number}").artifact_id for number in range(3)]
    result = lint(agent, words + "!")
    assert kinds(result) == [(Severity.INFO, LintIssueType.DUPLICATE)]
    own, *alike = (ref.id for ref in result.issues[0].entities)
    assert own not in others
    assert len(alike) == 2
    assert set(alike) <= set(others)
    far = "the staging Redis instance moved to another cluster and port"
    duplicate = [(Severity.INFO, LintIssueType.DUPLICATE)]
    for rules, found in (
        ({"duplicate_detection": False, "duplicate_similarity": 0.3}, []),
        ({"duplicate_similarity": 1.0}, []),
        ({"duplicate_similarity": 0.3}, duplicate),
    ):
        other = start(backend.open(pcp__anti_sprawl={**RULES, **rules}))
        other.keep(words)
        assert kinds(lint(other, f"{far} {len(rules)} {found}")) == found


@pytest.mark.parametrize(("content", "options", "is_sound"), [
    (b"\xff\xfe", {}, False),
    ('{"rows": 3}', {"artifact_type": "tool_result", "schema_version": "json"}, True),
    ('{"rows": 3', {"artifact_type": "tool_result", "schema_version": "application/json; v=2"}, False),
    ('{"rows": 3', {"artifact_type": "tool_result"}, True),
    ("[" * 100_000, {"schema_version": "json"}, False),
    ("[" * 100_000 + "]" * 99_999 + "}", {"schema_version": "json"}, False),
    ("[" * 100_000 + '"]"' + "]" * 100_000, {"schema_version": "json"}, True),
    ("{a: 1,}", {"schema_version": "json5"}, True),
    ("{a: 1,}", {"schema_version": "application/json5"}, True),
    ("{a: 1,}", {"schema_version": "json/5"}, False),
    ('\ufeff{"a": 1}', {"schema_version": "json"}, True),
    ('\ufeff{"a": 1', {"schema_version": "json"}, False),
    ('\ufeff{"a": 1}\n', {"schema_version": "jsonl"}, True),
    ("\ufeffa = 1\n", {"schema_version": "python"}, True),
    ('print "x"\n', {"schema_version": "python2"}, True),
    ("`x`\n", {"schema_version": "python 2.7"}, True),
    ("x = 0777\n", {"schema_version": "text/x-python; version=2"}, False),
    ('print "x"\n', {"schema_version": "python"}, True),
    ("any syntax to come", {"schema_version": "py3.99"}, True),
    ("any syntax to come", {"schema_version": "py3.8"}, False),
    ("no code at all", {"schema_version": "python"}, False),
    ("def f():\n    return 1\n", {"artifact_type": "code_patch", "schema_version": "python/3"}, True),
    ("def f(:\n", {"artifact_type": "code_patch", "schema_version": "python/3"}, False),
    ("(" * 10_000, {"artifact_type": "code_patch", "schema_version": "python"}, False),
    (DIFF, {"artifact_type": "code_patch"}, True),
    (DIFF[:-8], {"artifact_type": "code_patch", "schema_version": "diff-1"}, False),
    ('{"a": 1}\n{"a": 2}\n', {"schema_version": "jsonl"}, True),
    ('{"a": "\u2028"}\r\n\r\n[2]', {"schema_version": "json-lines/1"}, True),
    ('{"a": 1}\n{"a": \n', {"schema_version": "application/x-ndjson"}, False),
    ('{"a": 1}\n{"a": 2}\n', {"schema_version": "json"}, False),
    ("[" + "9" * 5_000 + "]", {"schema_version": "json"}, True),
    ("no report in json", {"schema_version": "my-json-report"}, True),
    (DIFF.replace("-1,2", "-1,9"), {"artifact_type": "code_patch", "schema_version": "diff"}, False),
    ("no hunk at all", {"artifact_type": "code_patch", "schema_version": "diff"}, False),
])  # fmt: skip
def test_content_of_its_declared_format(agent: Any, content: Any, options: dict[str, Any], is_sound: bool) -> None:
    # C-280
    result = lint(agent, content, **options)
    found = (Severity.ERROR, LintIssueType.MALFORMED_CONTENT) in kinds(result)
    assert found is not is_sound
    assert result.valid is is_sound


GIT = {
    "rename": "diff --git a/f b/h\nsimilarity index 100%\nrename from f\nrename to h\n",
    "mode": "diff --git a/g b/g\nold mode 100644\nnew mode 100755\n",
    "empty file": "diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n",
    "binary": "diff --git a/b b/b\nindex 0b66f..19de2 100644\nBinary files a/b and b/b differ\n",
    "binary patch": "diff --git a/b b/b\nGIT binary patch\nliteral 3\nKcmZQzWC8#H0001Q\n\n",
    "no newline": DIFF.removesuffix("\n") + "\n\\ No newline at end of file\n",
    "old without newline": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n",
    "combined": "diff --cc h\n--- a/h\n+++ b/h\n@@@ -1,3 -1,3 +1,3 @@@\n -a\n +A\n- b\n+ B\n -c\n +C\n",
    "form feed": "--- a/g\n+++ b/g\n@@ -1,2 +1,2 @@\n-x\x0cy\n+x\x0cy2\u2028 z\x0b\x1c\x85\n z\n",
    "carriage returns": DIFF.replace("\n", "\r\n"),
    "mail": "From ba031e4a Mon Sep 17 00:00:00 2001\nSubject: [PATCH] two: a\n\n- list\n---\n x.py | 2 +-\n\n"
    + DIFF
    + "-- \n2.40.1\n\n",
    "subversion": "Index: x.py\n" + "=" * 67 + "\n" + DIFF,
    "context": "*** a/x\n--- b/x\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
    "empty": "",
    "byte order mark": "\ufeff" + DIFF,
    "differing files": "Files a/x and b/x differ\n",
    "submodule": "Submodule lib 123..456:\n  > mend it\n",
    "binary files": "Binary files a and b differ\n",
    "combined binary": "diff --cc b\nindex 0b66f,19de2..7a3f\nBinary files differ\n",
    "ed": "2,3d\n",
    "by numbers": "d3 1\na3 1\nfoo\n",
    "normal": "1c1\n< a\n---\n> b\n",
}  # fmt: skip


@pytest.mark.parametrize("name", GIT)
def test_sound_patches_have_no_fault(name: str) -> None:
    assert fault_of(GIT[name], "diff") is None
    assert fault_of(GIT[name], "1.0") is None


@pytest.mark.parametrize("text", [
    "Index: of terms\nA, B", "--- a title ---\nand a text", "--- ", "---\ntitle: front matter\n---\n",
    "diff --git is a command",
])  # fmt: skip
def test_texts_that_only_begin_as_a_patch_are_written(backend: Any, start: Any, text: str) -> None:
    agent = start(backend.open(pcp__anti_sprawl={**RULES, "on_write": "refuse"}, policies=[]))
    artifact = agent.keep(text)
    agent.memory.flush()
    assert agent.memory.pcp.lint(artifact.artifact_id).valid


def test_a_guessed_format_is_reported_and_not_refused(backend: Any, start: Any) -> None:
    agent = start(backend.open(pcp__anti_sprawl={**RULES, "on_write": "refuse"}, policies=[]))
    artifact = agent.keep(DIFF[:-8], artifact_type="code_patch")
    agent.memory.flush()
    result = agent.memory.pcp.lint(artifact.artifact_id)
    assert kinds(result) == [(Severity.WARNING, LintIssueType.MALFORMED_CONTENT)]
    assert result.valid
    with pytest.raises(ConstraintViolation, match="last hunk is cut off"):
        agent.keep(DIFF[:-8], artifact_type="code_patch", schema_version="diff")


def test_tags_are_of_the_vocabulary(agent: Any) -> None:
    # C-281
    assert lint(agent, json.dumps({"tags": ["Billing", "search"], "n": 1}), schema_version="json").issues == ()
    result = lint(agent, "Tags: billing, misc, other\n\nThe invoice is late.")
    assert kinds(result) == [(Severity.WARNING, LintIssueType.VOCABULARY_VIOLATION)]
    assert "misc, other" in result.issues[0].message


@pytest.mark.parametrize("rules", [None, {**RULES, "linter_enabled": False}])
def test_a_linter_that_is_off_finds_nothing(backend: Any, start: Any, rules: Any) -> None:
    # C-282
    agent = start(backend.open(pcp__anti_sprawl=rules))
    assert lint(agent, b"\xff" * 5_000) == LintResult(True, ())


def test_only_visible_artifacts_are_linted_and_named(agent: Any) -> None:
    memory = agent.memory
    task = memory.start_trajectory("plan", initiator=EntityRef.user("ana"))
    scope = memory.current_scope(task.trajectory_id)
    text = "the staging Redis instance listens on port 6379 since the move"
    hidden = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content=text, extraction_method="explicit"
    ).artifact_id
    shared = agent.keep(text + ".").artifact_id
    memory.flush()
    ben = memory.acting_as(Principal.user("ben"))
    for key in (hidden, uuid.uuid4(), agent.scope_id):
        with pytest.raises(NotFound):
            ben.pcp.lint(key)
    (issue,) = memory.acting_as(Principal.application("crm")).pcp.lint(hidden).issues  # it acts for the task's user
    assert issue.issue_type is LintIssueType.DUPLICATE
    assert hidden not in {ref.id for issue in ben.pcp.lint(shared).issues for ref in issue.entities}


@given(st.text(max_size=200), st.sampled_from(["json", "python", "diff", "1"]))
def test_any_text_is_judged(text: str, declared: str) -> None:
    fault = fault_of(text, declared)
    assert fault is None or (fault.reason and fault.guessed is (declared == "1"))
    assert all(isinstance(tag, str) for tag in tags_of(text))


def test_on_write_issues_are_noted(backend: Any, start: Any) -> None:
    # C-278: the artifact is stored all the same
    memory = backend.open(pcp__anti_sprawl={**RULES, "on_write": "warn"}, policies=[])
    agent = start(memory)
    agent.keep("fine")
    bad = agent.keep("{", schema_version="json-1")
    memory.flush()
    assert memory.get(bad.artifact_id) == bad
    (event,) = memory.trace(agent.trajectory_id, event_type="validation_run")
    assert (event.payload["valid"], event.payload["malformed_content"]) == (False, 1)
    assert str(event.payload["id"]) == str(bad.artifact_id)
    memory.artifacts.supersede(bad.artifact_id, content="x" * 1_001, schema_version="1.0")
    memory.flush()
    assert len(memory.trace(agent.trajectory_id, event_type="validation_run")) == 2


def test_on_write_issues_are_refused(backend: Any, start: Any) -> None:
    memory = backend.open(pcp__anti_sprawl={**RULES, "on_write": "refuse"}, policies=[])
    agent = start(memory)
    good = agent.keep("fine")
    for content, version, named in (
        ("{", "json-1", "not JSON"),
        ("x" * 1_001, "1.0", "max_artifact_size"),
        (b"\xff\xfe", "1.0", "UTF-8"),
        ("Tags: cooking\nsoup", "1.0", "vocabulary"),
    ):
        with pytest.raises(ConstraintViolation) as refused:
            agent.keep(content, schema_version=version)
        assert named in refused.value.message
        with pytest.raises(ConstraintViolation):
            memory.artifacts.supersede(good.artifact_id, content=content, schema_version=version)
    memory.flush()
    assert list(memory.storage.artifacts.all()) == [memory.get(good.artifact_id)]
