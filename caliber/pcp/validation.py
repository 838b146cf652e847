"""Validation of stored knowledge: contradictions, age, ended validity, low confidence, missing sources.

Resident memory is read, and no SQL runs. Source: C-258 to C-265, K-085, K-086; docs/pcp.md.
"""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import Readers
from caliber.config.pcp import GroundingConfig
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.events import Event, EventType
from caliber.model.guard.validation import IssueType, Severity, ValidationIssue, ValidationResult
from caliber.model.references import EntityRef, kind_named, uuid_from_bytes
from caliber.model.time import MS_US
from caliber.pcp.conflicts import StatementConflicts
from caliber.pcp.pairs import Candidate, Statement, candidate_pairs, first_pairs
from caliber.pcp.readings import Readings
from caliber.pcp.targets import Rows, Target, Targets, rows_of
from caliber.pcp.verifying import JudgedPair, Verifier
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relation import Residence
from caliber.schema.traits import Grounded
from caliber.search.service import Searching

_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}
NO_TASK: Final = uuid.UUID(int=0)
VERIFIER_TIMEOUT_MS: Final = 5_000
"""Longest time that one call asks a language model about contradictions; rules need none."""
_READ_PAIRS: Final = 50
"""Pairs of statements that the check of one read compares: those of one subject first."""
_DAY_US: Final = 86_400_000_000


class Examiner:
    """Examination of records by rules, for any principal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._grounding = engine.config.pcp.grounding

    def examine(self, found: Target) -> tuple[list[ValidationIssue], list[Statement]]:
        """Return the issues of single records, and the statements to compare."""
        now = self._engine.clock.now_us()
        issues = [_gone(key) for key in found.missing]
        statements: list[Statement] = []
        for rows in found.rows:
            ended = dict(_ended(rows, now))
            issues += [_stale(rows.owners, number, why) for number, why in ended.items()]
            grounded = rows.owners.relation.grounded
            if grounded is not None:
                numbers = [number for number in rows.numbers if number not in ended]
                numbers = _stating(rows.owners, grounded, numbers)
                if numbers:
                    statements += self._statements(rows.owners, grounded, numbers)
        grounding = self._grounding
        if grounding is not None:
            issues += _aged(statements, grounding.stale_data_max_age_ms, now)
            issues += _grounds(statements, grounding)
        return issues, statements

    def _statements(self, owners: RelationSnapshot, grounded: Grounded, numbers: list[int]) -> Iterator[Statement]:
        relation = owners.relation
        at = np.array(numbers)
        made = owners.column(grounded.since)[at].tolist()
        since, until = (
            [unbounded] * len(numbers) if name is None else owners.column(name)[at].tolist()
            for name, unbounded in (
                (relation.times.since, -(2**63)),
                (relation.times.until, 2**63 - 1),
            )
        )
        sure = [None] * len(numbers)
        if grounded.confidence is not None:
            column = owners.column(grounded.confidence)[at].tolist()
            sure = [value if value >= 0 else None for value in column]
        subjects: list[tuple[str, ...]] = [()] * len(numbers)
        if grounded.subject:
            parts = []
            for name in grounded.subject:
                values = owners.interned(name)
                parts.append([str(values[code]).casefold() for code in owners.column(name)[at].tolist()])
            subjects = list(zip(*parts, strict=True))
        texts = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
            for text in self._engine.memory.texts(owners, numbers)
        ]
        return map(Statement, texts, subjects, made, since, until, sure, repeat(owners), numbers)


class Validator(Examiner):
    """Checks records as one principal sees them."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        super().__init__(engine)
        self._label = principal.label
        self._targets = Targets(engine, principal, searching)

    def validate(self, target: Any, conflicts: StatementConflicts | None = None) -> ValidationResult:
        """Return the issues of a window, scope or task; record contradictions as conflicts, if those are given.

        Raises: as ``Pcp.validate``.
        """
        erased = self._engine.memory.erasures
        found = self._targets.find(target)
        issues, statements = self.examine(found)
        pairs = candidate_pairs(statements, found.snapshot, self._engine.config.contradiction_threshold)
        contradictions = self.findings(pairs.candidates)
        issues = ordered(issues, contradictions)
        valid = all(issue.severity is not Severity.ERROR for issue in issues)
        checked = sum(len(rows.numbers) for rows in found.rows) + len(found.missing)
        recorded = () if conflicts is None else conflicts.record(contradictions)
        result = ValidationResult(valid, tuple(issues), checked, pairs.complete, recorded)
        build = functools.partial(self._event, found, result, self._engine.clock.now_us())
        self._engine.publish_later(build, erased)
        return result

    def _event(self, found: Target, result: ValidationResult, at_us: int) -> Event:
        counts = Counter(issue.issue_type.value for issue in result.issues)
        return self._engine.event(
            EventType.VALIDATION_RUN,
            principal=self._label,
            trajectory_id=found.trajectory_id,
            payload={"valid": result.valid, "checked": result.checked, **counts},
            at_us=at_us,
        )

    def findings(self, candidates: Sequence[Candidate]) -> list[JudgedPair]:
        """Return which pairs of statements contradict each other, or may."""
        timeout = None if self._grounding is None else VERIFIER_TIMEOUT_MS
        return Verifier(self._engine.part(Readings), self._engine.summarization, timeout).judge(candidates)


class ReadChecks(Examiner):
    """Checks of what searches and windows return, by rules only: no model is asked, and nothing is written."""

    def issues(self, readers: Readers, keys: Iterable[uuid.UUID]) -> tuple[ValidationIssue, ...]:
        """Return the findings about some records that ``readers`` may see. Source: C-101."""
        snapshot = self._engine.memory.snapshot
        rows, missing = rows_of(snapshot, readers, keys)
        issues, statements = self.examine(Target(snapshot, rows, missing, NO_TASK))
        pairs = first_pairs(statements, snapshot, self._engine.config.contradiction_threshold, _READ_PAIRS)
        found = Verifier(self._engine.part(Readings), None, None).judge(pairs)
        return tuple(ordered(issues, found))


def ordered(issues: list[ValidationIssue], findings: Sequence[JudgedPair]) -> list[ValidationIssue]:
    """Return issues and contradictions, errors first."""
    return sorted([*issues, *map(_contradiction, findings)], key=lambda issue: _ORDER[issue.severity])


def _stating(owners: RelationSnapshot, grounded: Grounded, numbers: list[int]) -> list[int]:
    """Return the rows that state something."""
    if grounded.kinds is None:
        return numbers
    name, values = grounded.kinds
    codes = [owners.enum_code(name, value) for value in values]
    found = owners.column(name)[np.array(numbers, np.int64)].tolist()
    return [number for number, code in zip(numbers, found, strict=True) if code in codes]


def _ended(rows: Rows, now: int) -> Iterator[tuple[int, str]]:
    """Yield the rows that are not in use, or hold no more, and why."""
    owners, relation = rows.owners, rows.owners.relation
    for name in relation.active:
        column = relation.column(name)
        empty = 0 if column.residence is Residence.FLAG else column.resident_null
        values = owners.column(name)[np.array(rows.numbers)]
        for place in np.flatnonzero(values != empty).tolist():
            yield rows.numbers[place], "it is not in use any more"
    until = relation.times.until
    if until is not None:
        ends: NDArray[np.int64] = owners.column(until)[np.array(rows.numbers)]
        for place in np.flatnonzero(ends <= now).tolist():
            yield rows.numbers[place], "the time in which it held has ended"


def _stale(owners: RelationSnapshot, number: int, why: str) -> ValidationIssue:
    ref = EntityRef(kind_named(owners.relation.name), owners.entity_id(number))
    message = f"{ref.entity_type} {ref.id} is stale: {why}"
    return ValidationIssue(Severity.ERROR, IssueType.STALE_DATA, message, (ref,), "assemble the window again", why)


def _gone(key: uuid.UUID) -> ValidationIssue:
    # The same for a record that is hidden: its existence is no business of the caller.
    message = f"source {key} cannot be read: it was deleted or forgotten, or another principal owns it"
    ref = EntityRef("record", uuid_from_bytes(key.bytes))
    return ValidationIssue(Severity.ERROR, IssueType.MISSING_SOURCE, message, (ref,), "assemble the window again")


def _aged(statements: Sequence[Statement], oldest_ms: int, now: int) -> Iterator[ValidationIssue]:
    """Yield the statements that are older than an age, without an end of validity."""
    oldest = now - oldest_ms * MS_US
    for each in statements:
        if each.made < oldest and each.until == 2**63 - 1:
            days, ref = (now - each.made) // _DAY_US, each.ref
            why = f"{days} days old, and no end of its validity is stated"
            message = f"{ref.entity_type} {ref.id} is stale: {why}"
            action = "confirm it, supersede it, or state valid_until"
            yield ValidationIssue(Severity.WARNING, IssueType.STALE_DATA, message, (ref,), action, why)


def _grounds(statements: Sequence[Statement], knobs: GroundingConfig) -> Iterator[ValidationIssue]:
    """Yield what statements lack: confidence, sources."""
    for each in statements:
        if each.confidence is not None and each.confidence < knobs.confidence_threshold:
            ref, below = each.ref, knobs.confidence_threshold
            message = f"{ref.entity_type} {ref.id} has a confidence of {each.confidence:.2f}, below {below:g}"
            yield ValidationIssue(Severity.INFO, IssueType.LOW_CONFIDENCE, message, (ref,), "confirm it, or end it")
    if knobs.require_source_for_facts:
        for each in _sourceless(statements):
            ref = each.ref
            message = f"{ref.entity_type} {ref.id} names no source"
            action = "state the task or turn that it was drawn from"
            yield ValidationIssue(Severity.ERROR, IssueType.MISSING_SOURCE, message, (ref,), action)


def _sourceless(statements: Sequence[Statement]) -> Iterator[Statement]:
    by_owner: dict[int, list[Statement]] = {}
    for each in statements:
        by_owner.setdefault(id(each.owners), []).append(each)  # records that are not resident have each its own
    for group in by_owner.values():
        owners, numbers = group[0].owners, [each.number for each in group]
        grounded = owners.relation.grounded
        assert grounded is not None
        has = [False] * len(group)
        for name in grounded.sources:
            values = owners.packed_values(name, numbers)
            has = [known or value not in (None, b"", "[]") for known, value in zip(has, values, strict=True)]
        if grounded.given is not None:
            name, value = grounded.given
            has = [
                known or found == value for known, found in zip(has, owners.packed_values(name, numbers), strict=True)
            ]
        yield from (each for each, known in zip(group, has, strict=True) if not known)


def _contradiction(finding: JudgedPair) -> ValidationIssue:
    first, second = finding.candidate.first.ref, finding.candidate.second.ref
    names = f"{first.entity_type} {first.id} and {second.entity_type} {second.id}"
    if finding.confirmed:
        message, severity = f"{names} contradict each other: {finding.reason}", Severity.WARNING
    else:
        message, severity = f"{names}: unverified contradiction: {finding.reason}", Severity.INFO
    action = "correct or end one of them"
    return ValidationIssue(severity, IssueType.CONTRADICTION, message, (first, second), action, finding.reason)
