"""Conflicts between records: recorded where a check found a contradiction, listed, and resolved.

Nothing is overwritten: the side that loses ends by the correction that also ends records by hand. So a read ``as_of``
an earlier instant finds it, and undoing brings it back.

Source: C-286, C-376, C-417, C-432, C-433, C-441; docs/pcp.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from caliber.access.correcting import RecordCorrections
from caliber.access.corrections import Corrections
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.knowledge.correcting import NoteCorrections
from caliber.model import states
from caliber.model.access import Principal
from caliber.model.errors import (
    Conflict,
    InvalidStateTransition,
    InvalidValue,
    NotFound,
    PermissionDenied,
    RequiredFieldMissing,
)
from caliber.model.events import CorrectionAction, EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictWinner, RecordConflict
from caliber.model.references import EntityRef
from caliber.model.search import ReadConsistency
from caliber.model.time import from_us
from caliber.pcp.conflict_sides import (
    ConflictSides,
    audit,
    holds,
    of_pair,
    open_conflict,
    resolved,
    strategy_of,
)
from caliber.pcp.pairs import Statement
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import CONFLICT, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.correcting import ArtifactCorrections

if TYPE_CHECKING:
    from caliber.pcp.verifying import Finding

Keep = uuid.UUID | Literal["both"]


@dataclass(frozen=True, slots=True)
class _Side:
    """A side as a transaction has it."""

    winner: ConflictWinner
    ref: EntityRef
    relation: Relation
    record: Any
    holds: bool

    @property
    def made(self) -> tuple[Any, bytes]:
        """The age of the record, as conflicts are decided by it."""
        assert self.relation.grounded is not None
        return getattr(self.record, self.relation.grounded.since), self.ref.id.bytes

    @property
    def confidence(self) -> float:
        """The confidence of the record; below all others without any."""
        assert self.relation.grounded is not None
        name = self.relation.grounded.confidence
        value = None if name is None else getattr(self.record, name)
        return -1.0 if value is None else value


class Conflicts:
    """The conflicts that one principal sees, records and resolves, for ``user`` if one is given."""

    def __init__(
        self, engine: Engine, principal: Principal, readers: Readers, user: str | EntityRef | None = None
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._readers = readers if user is None else readers.seeing_for(user)
        self._acts_for = user is not None
        self._sides = ConflictSides(engine)
        self._corrections = Corrections(engine, principal, user)
        made: tuple[RecordCorrections[Any], ...] = (
            NoteCorrections(engine, principal, user),
            ArtifactCorrections(engine, principal),
        )
        self._corrections_of = {each.relation.name: each for each in made}

    # --- recording -------------------------------------------------------------------------------

    def record(self, findings: Sequence[Finding]) -> tuple[RecordConflict, ...]:
        """Record the confirmed contradictions, and resolve them as configured; return the conflicts.

        A pair with an open conflict keeps it. A pair that somebody kept both sides of is passed over, one of which a
        side was changed or forgotten since the check, and one of which the principal may correct neither side.
        """
        confirmed = [each for each in findings if each.confirmed]
        if not confirmed:
            return ()
        found = self._engine.write(lambda uow: [self._recorded(uow, each) for each in confirmed])
        conflicts = [each for each in found if each is not None]
        if strategy_of(self._engine) is not ConflictResolution.MANUAL:
            conflicts = [self._settled(each) for each in conflicts]
        return tuple(conflicts)

    def _recorded(self, uow: UnitOfWork, finding: Finding) -> RecordConflict | None:
        first, second = sorted((finding.candidate.first, finding.candidate.second), key=lambda each: each.ref.id.bytes)
        known = of_pair(uow, first.ref, second.ref)
        standing = next((each for each in known if each.is_open), None)
        if standing is not None or any(each.winner is ConflictWinner.BOTH for each in known):
            return standing
        tasks, may_correct = set(), False
        for each in (first, second):
            record, relation = self._unchanged(uow, each), each.owners.relation
            if record is None:
                return None
            may_correct = may_correct or self._corrections.may_correct_seen(relation, record)
            tasks.add(None if relation.rights.task is None else getattr(record, relation.rights.task))
        if not may_correct:
            return None  # one side of a recorded conflict leaves the windows of everybody
        task = tasks.pop() if len(tasks) == 1 else None
        sides, by = (first.ref, second.ref), self._principal.label
        conflict = open_conflict(sides, finding.reason, task, self._sides.waits, by, uow.now_us)
        if not uow.insert_new(CONFLICT, conflict):
            return next((each for each in of_pair(uow, first.ref, second.ref) if each.is_open), None)
        audit(self._engine, uow, EventType.CONFLICT_DETECT, conflict, by)
        return conflict

    @staticmethod
    def _unchanged(uow: UnitOfWork, statement: Statement) -> Any | None:
        """Return the record of a statement, locked; None if it was changed, ended or forgotten since it was read."""
        relation, key = statement.owners.relation, statement.ref.id.bytes
        uow.lock(relation, key)
        record = uow.find(relation, key)
        (version,) = statement.owners.packed_values("version", [statement.number])
        is_same = record is not None and record.version == version and holds(relation, record, uow.now_us)
        return record if is_same else None

    def _settled(self, conflict: RecordConflict) -> RecordConflict:
        """Resolve a conflict as configured; one that cannot be resolved that way stays open."""
        try:
            return self.resolve(conflict.conflict_id, None, None, "found by validation")
        except (PermissionDenied, NotFound, Conflict, InvalidStateTransition, InvalidValue):
            return conflict  # resolved by another meanwhile, or one side has not begun

    # --- listing ---------------------------------------------------------------------------------

    def page(
        self, task: uuid.UUID | None, status: ConflictStatus | None, limit: int, after: uuid.UUID | None
    ) -> list[RecordConflict]:
        """Return conflicts, the oldest first. Raises: as ``Pcp.conflicts``."""
        readers = self._readers
        snapshot = self._engine.snapshot(ReadConsistency.LATEST)
        if task is not None:
            hidden = self._acts_for and not readers.sees_task(task.bytes)
            if hidden or snapshot[TRAJECTORY.name].find(task.bytes) < 0:
                raise NotFound(entity_type=TRAJECTORY.name, id=task)
            readers = readers if self._acts_for else readers.acting_for(task)
        rows = snapshot[CONFLICT.name]
        found: list[RecordConflict] = [self._engine.memory.entity(rows, number) for number in rows.rows().tolist()]
        found = [each for each in found if (each.is_open if status is None else each.status is status)]
        found.sort(key=lambda each: (each.detected_at, each.conflict_id.bytes))
        start = 0
        if after is not None:
            number = rows.find(after.bytes)
            last: RecordConflict | None = None if number < 0 else self._engine.memory.entity(rows, number)
            if last is None or not self.shows(snapshot, readers, last, None):
                raise NotFound(entity_type=CONFLICT.name, id=after)
            place = last.detected_at, last.conflict_id.bytes
            start = sum((each.detected_at, each.conflict_id.bytes) <= place for each in found)
        out: list[RecordConflict] = []
        for each in found[start:]:
            if len(out) == limit:
                break
            if self.shows(snapshot, readers, each, task):
                out.append(each)
        return out

    @staticmethod
    def shows(snapshot: ResidentSnapshot, readers: Readers, conflict: RecordConflict, task: uuid.UUID | None) -> bool:
        """Return whether both sides may be seen; with ``task``, and one of them is of that task."""
        sides = [snapshot.locate(ref.id.bytes) for ref in (conflict.item_a, conflict.item_b)]
        if not all(side is not None and readers.allows(*side) for side in sides):
            return False
        if any(side is not None and side[0].relation.grounded is None for side in sides):
            return False  # conflicts of other things are in memory.agents.conflicts
        return task is None or any(_is_of_task(*side, task.bytes) for side in sides if side is not None)

    # --- resolving -------------------------------------------------------------------------------

    def resolve(
        self, key: uuid.UUID, keep: Keep | None, strategy: ConflictResolution | None, reason: str | None
    ) -> RecordConflict:
        """Resolve a conflict. Raises: as ``Pcp.resolve``."""
        by = strategy or strategy_of(self._engine)
        if keep is None and strategy is None and by is ConflictResolution.MANUAL:
            raise RequiredFieldMissing("give keep or strategy: conflicts wait for a person", field="keep")
        return self._engine.write(lambda uow: self.resolve_in(uow, key, keep, by, reason))

    def resolve_in(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        keep: Keep | None,
        by: ConflictResolution,
        reason: str | None,
        merged: EntityRef | None = None,
    ) -> RecordConflict:
        """Resolve a conflict in a transaction; both sides end for a ``merged`` record. Raises: as ``Pcp.resolve``."""
        conflict, sides = self._read(uow, key)
        if any(each.relation.grounded is None for each in sides):
            reason = "is no conflict between statements: resolve it with memory.agents.conflicts.resolve"
            raise InvalidValue(field="conflict", reason=reason)
        decided = keep is not None or merged is not None
        if not decided and by is ConflictResolution.MANUAL:
            return self._escalated(uow, conflict)
        winner = ConflictWinner.MERGED if merged is not None else _choice(sides, keep, by)
        same = conflict.winner is winner and conflict.merged_id == (None if merged is None else merged.id)
        if not conflict.is_open and (same or (not decided and conflict.strategy is by)):
            return conflict
        states.CONFLICT.check(conflict.status, ConflictStatus.RESOLVED)
        if any(each.winner is winner and not each.holds for each in sides):
            raise Conflict(entity_type=CONFLICT.name, id=key, reason="the side to keep has ended; undo that first")
        ends = winner in (ConflictWinner.A, ConflictWinner.B, ConflictWinner.MERGED)
        losers = [each for each in sides if ends and each.winner is not winner and each.ref != merged and each.holds]
        if winner is ConflictWinner.BOTH:
            self._check_corrects(sides)
        for loser in losers:
            # First, as any correction of a side does, which then changes the conflict.
            self._corrections_of[loser.relation.name].hold(uow, loser.ref.id, CorrectionAction.END)
        now: RecordConflict = uow.get(CONFLICT, key.bytes)
        if now.version != conflict.version:
            reason = "another writer changed it first"
            raise Conflict(entity_type=CONFLICT.name, id=key, reason=reason, retryable=True)
        strategy = ConflictResolution.MANUAL if decided else by
        label = self._principal.label
        closed = resolved(now, winner, strategy, reason, label, uow.now_us)
        if merged is not None:
            closed = dataclasses.replace(closed, merged_type=merged.entity_type, merged_id=merged.id)
        stored: RecordConflict = uow.update(CONFLICT, closed)
        audit(self._engine, uow, EventType.CONFLICT_RESOLVE, stored, label)
        for loser in losers:
            self._corrections_of[loser.relation.name].end(loser.ref.id, None, None, None)(uow)
        return stored

    def _read(self, uow: UnitOfWork, key: uuid.UUID) -> tuple[RecordConflict, list[_Side]]:
        """Return a conflict, and those of its sides that exist. Raises: NotFound unless both may be seen."""
        conflict: RecordConflict | None = uow.find(CONFLICT, key.bytes)
        sides: list[_Side] = []
        refs = () if conflict is None else (conflict.item_a, conflict.item_b)
        for winner, ref in zip((ConflictWinner.A, ConflictWinner.B), refs, strict=False):
            relation = uow.catalog.by_name[ref.entity_type]
            record = uow.find(relation, ref.id.bytes)
            if record is not None and self._readers.allows_change(relation, record):
                sides.append(_Side(winner, ref, relation, record, holds(relation, record, uow.now_us)))
        if conflict is None or (len(sides) < 2 and not self._readers.everything):
            raise NotFound(entity_type=CONFLICT.name, id=key)
        return conflict, sides

    def _escalated(self, uow: UnitOfWork, conflict: RecordConflict) -> RecordConflict:
        """Leave a conflict to a person."""
        if conflict.status is ConflictStatus.ESCALATED:
            return conflict
        states.CONFLICT.check(conflict.status, ConflictStatus.ESCALATED)
        changed = dataclasses.replace(conflict, status=ConflictStatus.ESCALATED, updated_at=from_us(uow.now_us))
        stored: RecordConflict = uow.update(CONFLICT, changed)
        return stored

    def _check_corrects(self, sides: Sequence[_Side]) -> None:
        """Raise PermissionDenied unless the principal may correct one of the sides."""
        if not any(self._corrections.may_correct(each.relation, each.record) for each in sides):
            each = sides[0]
            resource = f"{each.relation.name} {each.ref.id}"
            raise PermissionDenied(agent_id=self._principal.label, action="resolve", resource=resource)


def _choice(sides: Sequence[_Side], keep: Keep | None, by: ConflictResolution) -> ConflictWinner:
    """Return the side to keep. Raises: InvalidValue for the id of another record."""
    if keep == "both":
        return ConflictWinner.BOTH
    if keep is not None:
        for each in sides:
            if each.ref.id == keep:
                return each.winner
        raise InvalidValue(field="keep", reason=f"{keep} is no side of this conflict; name one of its sides, or both")
    standing = [each for each in sides if each.holds]
    if not standing or len(sides) < 2:
        return ConflictWinner.NONE
    if by is ConflictResolution.NEWEST:
        return max(standing, key=lambda each: each.made).winner
    return max(standing, key=lambda each: (each.confidence, each.made)).winner


def _is_of_task(rows: RelationSnapshot, number: int, task: bytes) -> bool:
    """Return whether a record belongs to a task, or was drawn from it."""
    relation = rows.relation
    if relation.rights.task is not None:
        return bool(rows.packed_values(relation.rights.task, [number])[0] == task)
    sources = () if relation.grounded is None else relation.grounded.sources
    columns = [name for name in sources if relation.column(name).type is ColumnType.UUID_ARRAY]
    return any(task in (rows.packed_values(name, [number])[0] or ()) for name in columns)
