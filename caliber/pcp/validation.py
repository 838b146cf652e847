"""Validation of stored knowledge: contradictions, age, ended validity, low confidence, missing sources.

A check covers the sources of a window, or the records of a scope or task. Resident memory is read, and no SQL runs.

Source: C-258 to C-265, K-085, K-086; docs/pcp.md.
"""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import Readers
from caliber.config.pcp import GroundingConfig
from caliber.context.record.record import unpack_record
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.events import Event, EventType
from caliber.model.guard.validation import IssueType, Severity, ValidationIssue, ValidationResult
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, kind_named, uuid_from_bytes
from caliber.model.storage import ReadConsistency
from caliber.model.time import MS_US
from caliber.model.windows import ContextWindow
from caliber.pcp.conflicts import StatementConflicts
from caliber.pcp.pairs import Candidate, Statement, candidate_pairs, first_pairs
from caliber.pcp.readings import Readings
from caliber.pcp.verifying import JudgedPair, Verifier
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.derived import Sha256
from caliber.schema.relation import ColumnType, Relation, Residence
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
            issues += self._damaged(rows)
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

    def _damaged(self, rows: Rows) -> Iterator[ValidationIssue]:
        """Yield the rows whose stored hash is not that of their content (C-041, C-240)."""
        owners, numbers = rows.owners, rows.numbers
        relation, stored = owners.relation, self._engine.memory.stored
        for rule in relation.derived or ():
            if not isinstance(rule, Sha256):
                continue
            contents, hashes = (stored(owners, numbers, relation.column(name)) for name in (rule.of[0], rule.column))
            for number, content, stated in zip(numbers, contents, hashes, strict=True):
                raw = content.encode() if isinstance(content, str) else content
                if raw is not None and sha256(raw).digest() != stated:
                    ref = EntityRef(kind_named(relation.name), owners.entity_id(number))
                    message = f"the stored {rule.of[0]} of {ref.entity_type} {ref.id} is damaged"
                    yield ValidationIssue(Severity.ERROR, IssueType.DAMAGE, message, (ref,), "run `caliber doctor`")

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


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one relation that a check covers."""

    owners: RelationSnapshot
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class Target:
    """The records that a check covers, and the ids of sources that cannot be read: gone, or hidden."""

    snapshot: ResidentSnapshot
    rows: list[Rows]
    missing: list[uuid.UUID]
    trajectory_id: uuid.UUID


class Targets:
    """Finds the records of windows, scopes and tasks, as one principal sees them."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._reader = ContextService(engine, principal, searching)
        self._readers = self._reader.searching.readers

    def find(self, target: Any) -> Target:
        """Return the records of a window, or of the window, scope or task under an id.

        Raises: ConstraintViolation for an id of none of them.
        """
        if isinstance(target, ContextWindow):
            keys = [each.id for section in target.sections for each in section.sources if each.id is not None]
            return self._of_window(self._engine.snapshot(), target.trajectory_id, keys)
        key = arguments.as_uuid(target, "target")
        snapshot = self._engine.snapshot(ReadConsistency.LATEST)
        for name in _containers(self._engine.store.catalog):
            owners = snapshot[name]
            number = owners.find(key.bytes)
            if number >= 0 and (self._readers.serves_tasks or self._readers.allows(owners, number)):
                return self._below(snapshot, owners, number)
        try:
            window, _, _ = self._reader.recorded(key)
        except NotFound:
            reason = f"{key} is no window, scope or task that can be read here; windows that expired are gone"
            if self._readers.serves_tasks and not self._readers.everything:
                reason += ", and those of a user's task need user="
            raise ConstraintViolation(constraint="context_window_exists", reason=reason) from None
        record = unpack_record(window.record)
        return self._of_window(snapshot, record.facts.trajectory_id, list(record.ids.values()))

    def _of_window(self, snapshot: ResidentSnapshot, task: uuid.UUID, keys: list[uuid.UUID]) -> Target:
        return Target(snapshot, *rows_of(snapshot, self._reading(task), keys), task)

    def _reading(self, task: uuid.UUID) -> Readers:
        """Return the readers of a window's task; of one that was purged, those of the principal."""
        try:
            return self._readers.acting_for(task)
        except NotFound:
            return self._readers

    def _below(self, snapshot: ResidentSnapshot, owners: RelationSnapshot, number: int) -> Target:
        """Return the statements of a task or scope: its own records, and those that were drawn from the task."""
        key = owners.entity_id(number).bytes
        column = owners.relation.rights.task
        task = key if column is None else owners.interned(column)[owners.column(column)[number]]
        readers = self._reading(uuid.UUID(bytes=task))
        out = []
        for relation in self._engine.store.catalog.relations:
            if relation.grounded is None:
                continue
            rows = snapshot[relation.name]
            numbers: list[int] = []
            if relation.rights.task is not None:
                numbers = list(self._members(rows, task))
                numbers = numbers if column is None else _referring(rows, owners.relation, key, numbers)
            elif column is None:
                numbers = _drawn_from(rows, key)
            numbers = [each for each in numbers if readers.allows(rows, each)]
            if numbers:
                out.append(Rows(rows, numbers))
        return Target(snapshot, out, [], uuid.UUID(bytes=task))

    @staticmethod
    def _members(rows: RelationSnapshot, task: bytes) -> Iterator[int]:
        """Yield the rows in use that belong to a task."""
        column = rows.relation.rights.task
        assert column is not None
        if column in rows.relation.resident.groups:
            yield from rows.group(column, task).tolist()
            return
        code = rows.interned_codes(column).get(task)
        if code is not None:
            yield from np.flatnonzero((rows.column(column) == code) & rows.live_mask).tolist()


def rows_of(
    snapshot: ResidentSnapshot, readers: Readers, keys: Iterable[uuid.UUID]
) -> tuple[list[Rows], list[uuid.UUID]]:
    """Return the rows of some records, and the ids of those that are gone, or hidden from ``readers``."""
    found: dict[int, Rows] = {}  # records that are not in memory come each in a snapshot of its own
    missing = []
    unique = list(dict.fromkeys([key.bytes for key in keys]))
    for key, located in zip(unique, snapshot.locate_all(unique), strict=True):
        if located is None or not readers.allows(*located):
            missing.append(uuid.UUID(bytes=key))
            continue
        owners, number = located
        rows = found.get(id(owners))
        if rows is None:
            rows = found[id(owners)] = Rows(owners, [])
        rows.numbers.append(number)
    return list(found.values()), missing


def _containers(catalog: Catalog) -> list[str]:
    """Return the relations that records with statements are parts of: tasks and scopes."""
    keys = [key for relation in catalog.relations if relation.grounded for key in relation.foreign_keys]
    return list(dict.fromkeys(key.relation for key in keys if key.on_delete == "cascade"))


def _referring(rows: RelationSnapshot, to: Relation, key: bytes, numbers: list[int]) -> list[int]:
    """Return which of some rows refer to a record."""
    for foreign in rows.relation.foreign_keys:
        if foreign.relation == to.name:
            values = rows.packed_values(foreign.column, numbers)
            return [number for number, value in zip(numbers, values, strict=True) if value == key]
    return []


def _drawn_from(rows: RelationSnapshot, task: bytes) -> list[int]:
    """Return the rows that name a task among their sources."""
    relation = rows.relation
    assert relation.grounded is not None
    columns = [name for name in relation.grounded.sources if relation.column(name).type is ColumnType.UUID_ARRAY]
    numbers = rows.rows().tolist()
    return [
        number
        for column in columns
        for number, value in zip(numbers, rows.packed_values(column, numbers), strict=True)
        if value and task in value
    ]
