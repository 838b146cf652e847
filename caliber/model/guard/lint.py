"""Result of the lint of an artifact. Source: C-278 to C-285."""

from __future__ import annotations

from enum import StrEnum

from caliber.model.guard.validation import Severity
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef


class LintIssueType(StrEnum):
    OVERSIZED = "oversized"
    DUPLICATE = "duplicate"
    MALFORMED_CONTENT = "malformed_content"
    VOCABULARY_VIOLATION = "vocabulary_violation"


@dataclass(frozen=True, slots=True)
class LintIssue:
    """One finding about an artifact, with what to do; ``entities`` are the artifact, and those it resembles."""

    severity: Severity
    issue_type: LintIssueType
    message: str
    entities: tuple[EntityRef, ...]
    action: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """The issues of an artifact. ``valid``: none of them is an error."""

    valid: bool
    issues: tuple[LintIssue, ...]
