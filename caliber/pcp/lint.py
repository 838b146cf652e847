"""Lint of an artifact: too large, nearly the same as another one, malformed, tags outside the vocabulary.

Source: C-278 to C-282, K-087; docs/pcp.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from caliber.access.visibility import Readers
from caliber.config.pcp import AntiSprawlConfig
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.guard.lint import LintIssue, LintIssueType, LintResult
from caliber.model.guard.validation import Severity
from caliber.model.references import EntityRef, kind_named
from caliber.model.search import ReadConsistency
from caliber.model.trajectory import Artifact
from caliber.pcp.formats import fault_of, tags_of
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.resident.validity import visible_rows
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
    refused = [issue for issue in issues if not _is_guess(issue)]
    if refused and knobs.on_write == "refuse":
        reason = "; ".join(f"{issue.message}: {issue.action}" for issue in refused)
        raise ConstraintViolation(constraint="pcp.anti_sprawl.on_write", reason=reason)
    return issues


def _is_guess(issue: LintIssue) -> bool:
    """Return whether an issue is about a format that nothing declares: such a guess refuses no write."""
    return issue.issue_type is LintIssueType.MALFORMED_CONTENT and issue.severity is Severity.WARNING


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
