"""Result of a validation: issues of stored records, and verdicts about pairs of statements. Source: C-258 to C-265."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from caliber.model import arguments
from caliber.model.errors import ConstraintViolation, Contradiction, StaleData
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import Disagreement
from caliber.model.references import EntityRef


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


_ORDER: Final = list(Severity)


class IssueType(StrEnum):
    CONTRADICTION = "contradiction"
    STALE_DATA = "stale_data"
    LOW_CONFIDENCE = "low_confidence"
    MISSING_SOURCE = "missing_source"
    DAMAGE = "damage"


class VerdictKind(StrEnum):
    """The way in which two statements contradict each other."""

    NEGATION = "negation"
    NUMBER = "number"
    DATE = "date"
    VALUE = "value"
    PREFERENCE = "preference"
    ANTONYM = "antonym"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A contradiction between two statements, and the words or numbers that make it one."""

    kind: VerdictKind
    reason: str


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One finding about stored records, with what to do about it. Source: C-283."""

    severity: Severity
    issue_type: IssueType
    message: str
    entities: tuple[EntityRef, ...]
    action: str
    reason: str = ""
    """Why, without the names of the records."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The issues of a window, scope or task, errors first. ``valid``: none of them is an error (C-258).

    ``checked`` counts the records. ``complete`` is False where there were more similar pairs than are compared.
    ``conflicts`` are those of the contradictions, if the call recorded them.
    """

    valid: bool
    issues: tuple[ValidationIssue, ...]
    checked: int = 0
    complete: bool = True
    conflicts: tuple[Disagreement, ...] = ()

    def raise_for(self, severity: Severity | str = Severity.ERROR) -> None:
        """Raise the first issue that is at least as severe as ``severity``, if there is one.

        Raises: InvalidValue; StaleData, Contradiction (C-074, C-075); ConstraintViolation for other issues.
        """
        least = _ORDER.index(arguments.as_enum(severity, Severity, "severity"))
        for issue in self.issues:
            if _ORDER.index(issue.severity) > least:
                continue
            first, *others = issue.entities
            if issue.issue_type is IssueType.STALE_DATA:
                raise StaleData(entity_type=first.entity_type, id=first.id, age=issue.reason)
            if issue.issue_type is IssueType.CONTRADICTION:
                raise Contradiction(artifact_a=first.id, artifact_b=others[0].id)
            raise ConstraintViolation(constraint=issue.issue_type.value, reason=issue.message)


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
