"""Lint of an artifact: too large, nearly the same as another one, malformed, tags outside the vocabulary.

Source: C-278 to C-282, K-087; docs/pcp.md.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from caliber.access.visibility import Readers
from caliber.config.pcp import AntiSprawlConfig
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.guard.validation import LintIssue, LintIssueType, LintResult, Severity
from caliber.model.references import EntityRef, kind_named
from caliber.model.storage import ReadConsistency
from caliber.model.trajectory import Artifact
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot, visible_rows
from caliber.search.service import Searching
from caliber.trajectory.artifacts import NewArtifact

DUPLICATE_LIMIT: Final = 5
"""Near duplicates that one lint reports."""


class Linter:
    """Lints artifacts as one principal sees them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._readers = Searching(engine, principal).readers

    def lint(self, key: uuid.UUID) -> LintResult:
        """Return the issues of an artifact. Raises: as ``Pcp.lint``."""
        snapshot = self._engine.snapshot(ReadConsistency.LATEST)
        found = snapshot.locate(key.bytes)
        artifact = None if found is None else self._engine.memory.entity(*found)
        if found is None or not isinstance(artifact, Artifact):
            raise NotFound(entity_type="artifact", id=key)
        readers = self._readers
        if readers.serves_tasks:  # as for a window: the application acts for the task's user
            readers = readers.acting_for(artifact.trajectory_id)
        if not readers.allows(*found):
            raise NotFound(entity_type="artifact", id=key)
        knobs = self._engine.config.pcp.anti_sprawl
        if knobs is None or not knobs.linter_enabled:
            return LintResult(True, ())
        own = (EntityRef(kind_named("artifact"), artifact.artifact_id),)
        issues = [*_of_content(own, artifact, knobs), *self._duplicates(snapshot, readers, *found, knobs)]
        return LintResult(all(issue.severity is not Severity.ERROR for issue in issues), tuple(issues))

    def _duplicates(
        self,
        snapshot: ResidentSnapshot,
        readers: Readers,
        owners: RelationSnapshot,
        number: int,
        knobs: AntiSprawlConfig,
    ) -> Iterator[LintIssue]:
        """Yield the records in use that are nearly the same, the nearest first (C-279)."""
        space = snapshot.space_in_use
        index = None if space is None else snapshot.vectors.get((owners.relation.name, space))
        if not knobs.duplicate_detection or index is None:
            return
        vectors = index.vectors(owners, number)
        if not len(vectors):
            return
        allowed = visible_rows(owners, self._engine.clock.now_us(), readers.over(owners))
        allowed[number] = False
        rows, scores = index.best(vectors[0], owners, allowed, DUPLICATE_LIMIT, knobs.duplicate_similarity)
        if not len(rows):
            return
        kind = kind_named(owners.relation.name)
        alike = tuple(EntityRef(kind, owners.entity_id(row)) for row in rows.tolist())
        own = EntityRef(kind, owners.entity_id(number))
        message = f"{len(alike)} artifacts are nearly the same; the nearest is {alike[0].id} ({float(scores[0]):.2f})"
        action = "use that one, or let this one supersede it"
        yield LintIssue(Severity.INFO, LintIssueType.DUPLICATE, message, (own, *alike), action)


def lint_new(knobs: AntiSprawlConfig, new: NewArtifact) -> tuple[LintIssue, ...]:
    """Return the issues of an artifact about to be stored, but near duplicates: it has no vector yet.

    Raises: ConstraintViolation for one that is to be refused.
    """
    issues = tuple(_of_content((), new, knobs))
    guess = (LintIssueType.MALFORMED_CONTENT, Severity.WARNING)  # about a format that nothing declares
    refused = [issue for issue in issues if (issue.issue_type, issue.severity) != guess]
    if refused and knobs.on_write == "refuse":
        reason = "; ".join(f"{issue.message}: {issue.action}" for issue in refused)
        raise ConstraintViolation(constraint="pcp.anti_sprawl.on_write", reason=reason)
    return issues


def _of_content(
    own: tuple[EntityRef, ...], artifact: Artifact | NewArtifact, knobs: AntiSprawlConfig
) -> Iterator[LintIssue]:
    size = len(artifact.content)
    if size > knobs.max_artifact_size:
        message = f"{size} bytes are more than pcp.anti_sprawl.max_artifact_size = {knobs.max_artifact_size}"
        yield LintIssue(Severity.WARNING, LintIssueType.OVERSIZED, message, own, "keep a summary, or split it")
    try:
        text = artifact.content.decode("utf-8")
    except UnicodeDecodeError:
        message = f"{artifact.artifact_type} is a text, and the content is not UTF-8"
        yield LintIssue(Severity.ERROR, LintIssueType.MALFORMED_CONTENT, message, own, "encode it as UTF-8")
        return
    fault = fault_of(text, artifact.schema_version)
    if fault is not None:
        severity = Severity.WARNING if fault.guessed else Severity.ERROR
        action = "mend the content, or declare its format" if fault.guessed else "mend the content, or its format"
        yield LintIssue(severity, LintIssueType.MALFORMED_CONTENT, fault.reason, own, action)
    if knobs.vocabulary_enforcement:
        known = {word.casefold() for word in knobs.vocabulary}
        unknown = [tag for tag in dict.fromkeys(tags_of(text)) if tag.casefold() not in known]
        if unknown:
            message = f"tags outside pcp.anti_sprawl.vocabulary: {', '.join(unknown)}"
            action = "use a term of the vocabulary, or add these to it"
            yield LintIssue(Severity.WARNING, LintIssueType.VOCABULARY_VIOLATION, message, own, action)


_NAME: Final = re.compile(
    r"(?:(?:application|text)/(?:x-)?(?:[\w.-]+\+)?)?"
    r"(json[ _-]?5|[a-z]+(?:[ _-]lines)?)((?:[^a-z+]+v?[^a-z]*)?)(?:;.*)?"
)
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_COMBINED: Final = re.compile(r"(@@@+)((?: -\d+(?:,\d{1,9})?)+) \+\d+(?:,(\d{1,9}))? @@@+")
_SIZE: Final = re.compile(r"-\d+(?:,(\d+))?")
_PATCH: Final = re.compile(r"diff --git |--- [^\n]*\n\+\+\+ |Index: [^\n]*\n={20}")
_CHANGE: Final = re.compile(
    r"old mode \d|new file mode \d|deleted file mode \d|rename from |copy from |Binary files? |Submodule |"
    r"GIT binary patch|Only in |Common subdirectories: |Files .* (?:differ|are identical)$|Cannot display: |"
    r"File .* is an? .* while file .* is an? |\* Unmerged path |Property changes on: |\*{15}|"
    r"\d+(?:,\d+)?[acd](?:\d+(?:,\d+)?)?$|[ad]\d+ \d+$"
)
"""Lines that tell a difference without a hunk: modes, renames, binary files, submodules, context, normal, ed diffs."""
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)
_CLOSES: Final = {"]": "[", "}": "{"}
_TAGS: Final = re.compile(r"^(?:tags|terms)\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_HEAD_CHARS: Final = 2_000
"""Characters of a text in which a line of tags is looked for."""
_TAG_FIELDS: Final = ("tags", "terms")


class Fault(NamedTuple):
    """The reason why a text is not of a format; ``guessed``: no declaration names the format."""

    reason: str
    guessed: bool


def fault_of(text: str, declared: str) -> Fault | None:
    """Return why a text is not of its format; None if it is, or if it has none that is checked."""
    match = _NAME.fullmatch(declared.strip().casefold())
    check = None if match is None else _CHECKS.get(re.sub("[ _-]", "", match[1]))
    text = text.removeprefix("\ufeff")
    if match is not None and check is _python_fault and _is_other_python(match[2]):
        return None
    guessed = check is None
    if check is None and _PATCH.match(text):
        check = _diff_fault
    reason = None if check is None else check(text)
    return None if reason is None else Fault(reason, guessed)


def tags_of(text: str) -> list[str]:
    """Return the declared tags: field ``tags`` or ``terms`` of a JSON object, or such a line at the head of a text."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        try:
            body = json.loads(text, parse_int=str)
        except (ValueError, RecursionError):
            return []
        return [str(tag) for name in _TAG_FIELDS for tag in _items(body.get(name))]
    match = _TAGS.search(text[:_HEAD_CHARS])
    return [] if match is None else [tag.strip() for tag in match[1].strip("[] ").split(",") if tag.strip()]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _lines(text: str) -> list[str]:
    """Return the lines of a text; only a line feed, or a carriage return with it, ends one in these formats."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text, parse_int=str)  # JSON has no limit to the digits of a number, Python has
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:  # nested deeper than Python reads
        return None if _is_balanced(text) else "not JSON: its brackets do not match"
    return None


def _is_balanced(text: str) -> bool:
    """Return whether each bracket outside of strings is closed by its own kind."""
    opened: list[str] = []
    for match in _BRACKET.finditer(text):
        sign = match[0]
        if sign in _CLOSES:
            if not opened or opened.pop() != _CLOSES[sign]:
                return False
        elif sign in "[{":
            opened.append(sign)
    return not opened


def _json_lines_fault(text: str) -> str | None:
    for number, line in enumerate(_lines(text), 1):
        fault = _json_fault(line) if line.strip() else None
        if fault is not None:
            return f"line {number} is {fault}"
    return None


def _is_other_python(version: str) -> bool:
    """Return whether a version is one of Python 2, or newer than ours: its syntax is not what we can read."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return False
    major, minor = numbers[0][0], numbers[0][1:] or (numbers[1] if len(numbers) > 1 else "0")
    return int(major) == 2 or (int(major), int(minor[:9])) > sys.version_info[:2]


def _python_fault(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        if error.msg.startswith("Missing parentheses in call to"):  # Python 2, and no other text
            return None
        return f"not Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError):
        return "not Python that can be read"
    return None


def _diff_fault(text: str) -> str | None:
    """Return why a text is no diff: no hunk or other change, or a hunk of another size than it states."""
    left: list[int] = []
    changes = not text.strip()  # two equal files have an empty diff
    for number, line in enumerate(_lines(text), 1):
        if any(left):
            signs = line[: len(left) - 1].ljust(len(left) - 1)
            if line.startswith("\\"):  # no newline at the end of the file
                continue
            if signs.strip("+- "):
                return f"not a diff: line {number} belongs to no hunk"
            # The old files first, then the new one: a line that is nowhere removed is in the new file.
            removed = "-" in signs
            held = [sign == ("-" if removed else " ") for sign in signs]
            left = [count - is_in for count, is_in in zip(left, [*held, not removed], strict=True)]
            if min(left) < 0:
                return f"not a diff: the hunk before line {number} has another size than it states"
        elif (match := _HUNK.match(line)) is not None:
            left, changes = [_size(match[1]), _size(match[2])], True
        elif (match := _COMBINED.match(line)) is not None:
            left, changes = [*map(_size, _SIZE.findall(match[2])), _size(match[3])], True
        elif _CHANGE.match(line):
            changes = True
    if any(left):
        return "not a diff: its last hunk is cut off"
    return None if changes else "not a diff: it has no hunk"


def _size(stated: str | None) -> int:
    """Return the lines that a range of a hunk states; a range without a number has one."""
    return int(stated) if stated else 1


_CHECKS: Final[dict[str, Callable[[str], str | None]]] = {
    "json": _json_fault,
    "jsonl": _json_lines_fault,
    "ndjson": _json_lines_fault,
    "jsonlines": _json_lines_fault,
    "python": _python_fault,
    "py": _python_fault,
    "diff": _diff_fault,
    "patch": _diff_fault,
}
