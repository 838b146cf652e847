"""Conflicts between statements: recorded where a check found a contradiction, and ended on one side.

Nothing is overwritten: the side that loses ends by the correction that also ends records by hand. So a read ``as_of``
an earlier instant finds it, and undoing brings it back. A side
that is corrected closes its conflicts; undoing its end opens one.

Source: C-286, C-376, C-417, C-432, C-433, C-441; docs/pcp.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from caliber.access.correcting import RecordCorrections
from caliber.access.corrections import CorrectionListener, Corrections
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.knowledge.notes import NoteCorrections
from caliber.model import states
from caliber.model.access import Principal
from caliber.model.errors import (
    Conflict,
    InvalidStateTransition,
    InvalidValue,
    NotFound,
    PermissionDenied,
)
from caliber.model.events import CorrectionAction, EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, Disagreement
from caliber.model.references import ConflictId, EntityRef, EntityType
from caliber.model.time import from_us
from caliber.pcp.pairs import Statement
from caliber.schema.relation import Relation
from caliber.schema.relations import CONFLICT
from caliber.schema.validity import is_active
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.correcting import ArtifactCorrections

if TYPE_CHECKING:
    from caliber.pcp.verifying import JudgedPair

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


class StatementConflicts:
    """The contradictions that one principal records, and whose sides it ends, for ``user`` if one is given."""

    def __init__(self, engine: Engine, principal: Principal, user: str | EntityRef | None = None) -> None:
        self._engine = engine
        self._principal = principal
        self._corrections = Corrections(engine, principal, user)
        made: tuple[RecordCorrections[Any], ...] = (
            NoteCorrections(engine, principal, user),
            ArtifactCorrections(engine, principal),
        )
        self._corrections_of = {each.relation.name: each for each in made}

    # --- recording -------------------------------------------------------------------------------

    def record(self, findings: Sequence[JudgedPair]) -> tuple[Disagreement, ...]:
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

    def _recorded(self, uow: UnitOfWork, finding: JudgedPair) -> Disagreement | None:
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
        sides, by, status = (first.ref, second.ref), self._principal.label, status_of_new(self._engine)
        made = open_conflict(self._engine, uow, sides, finding.reason, by, status, trajectory_id=task)
        return made or next((each for each in of_pair(uow, first.ref, second.ref) if each.is_open), None)

    @staticmethod
    def _unchanged(uow: UnitOfWork, statement: Statement) -> Any | None:
        """Return the record of a statement, locked; None if it was changed, ended or forgotten since it was read."""
        relation, key = statement.owners.relation, statement.ref.id.bytes
        uow.lock(relation, key)
        record = uow.find(relation, key)
        (version,) = statement.owners.packed_values("version", [statement.number])
        is_same = record is not None and record.version == version and holds(relation, record, uow.now_us)
        return record if is_same else None

    def _settled(self, conflict: Disagreement) -> Disagreement:
        """Resolve a conflict as configured; one that cannot be resolved that way stays open."""
        try:
            by, reason = strategy_of(self._engine), "found by validation"
            return self._engine.write(lambda uow: self.resolve(uow, conflict.conflict_id, None, by, reason))
        except (PermissionDenied, NotFound, Conflict, InvalidStateTransition, InvalidValue):
            return conflict  # resolved by another meanwhile, or one side has not begun

    # --- resolving -------------------------------------------------------------------------------

    def resolve(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        keep: Keep | None,
        by: ConflictResolution,
        reason: str | None,
        merged: EntityRef | None = None,
    ) -> Disagreement:
        """Resolve a conflict in a transaction; both sides end for a ``merged`` record.

        Raises: as ``Conflicts.resolve``.
        """
        conflict: Disagreement = uow.get(CONFLICT, key.bytes)
        sides = self._sides(uow, conflict)
        decided = keep is not None or merged is not None
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
            self.check_corrects(uow, conflict, "resolve")
        for loser in losers:
            # First, as any correction of a side does, which then changes the conflict.
            self._corrections_of[loser.relation.name].hold(uow, loser.ref.id, CorrectionAction.END)
        now: Disagreement = uow.get(CONFLICT, key.bytes)
        if now.version != conflict.version:
            reason = "another writer changed it first"
            raise Conflict(entity_type=CONFLICT.name, id=key, reason=reason, retryable=True)
        strategy = ConflictResolution.MANUAL if decided else by
        closed = close(self._engine, uow, now, winner, strategy, reason, self._principal.label, merged)
        for loser in losers:
            self._corrections_of[loser.relation.name].end(loser.ref.id, None, None, None)(uow)
        return closed

    def check_corrects(self, uow: UnitOfWork, conflict: Disagreement, action: str) -> None:
        """Raise PermissionDenied unless the principal may correct one of the sides."""
        sides = self._sides(uow, conflict)
        if not any(self._corrections.may_correct(each.relation, each.record) for each in sides):
            raise self._principal.denied(action, f"{conflict.item_a.entity_type} {conflict.item_a.id}")

    @staticmethod
    def _sides(uow: UnitOfWork, conflict: Disagreement) -> list[_Side]:
        """Return the sides that exist."""
        sides: list[_Side] = []
        for winner, ref in ((ConflictWinner.A, conflict.item_a), (ConflictWinner.B, conflict.item_b)):
            relation = uow.catalog.by_name[ref.entity_type]
            record = uow.find(relation, ref.id.bytes)
            if record is not None:
                sides.append(_Side(winner, ref, relation, record, holds(relation, record, uow.now_us)))
        return sides


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


_OUTDATED: Final = "a side was corrected since"


class ConflictSides(CorrectionListener):
    """The listener of one tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def corrected(
        self, uow: UnitOfWork, relation: Relation, before: Any, after: Any, action: CorrectionAction, by: str
    ) -> None:
        """Close the open conflicts of a side that ended or changed; open one of a pair whose ended side came back."""
        if relation.grounded is None:
            return
        key: uuid.UUID = getattr(after, relation.key[0])
        found = conflicts_of(uow, key)
        if not found:
            return
        ended, changed = not holds(relation, after, uow.now_us), states_otherwise(relation, before, after)
        for conflict in found:
            is_a = conflict.item_a.id == key
            if changed:  # nobody reads words that a side no longer has
                conflict = dataclasses.replace(conflict, reason=_OUTDATED)
            if ended and conflict.is_open:
                other = ConflictWinner.B if is_a else ConflictWinner.A
                close(self._engine, uow, conflict, other, None, f"the other side was corrected: {action}", by)
            elif changed and (conflict.is_open or conflict.winner is ConflictWinner.BOTH):
                close(self._engine, uow, conflict, ConflictWinner.NONE, None, f"a side was corrected: {action}", by)
            elif changed:
                uow.update(CONFLICT, conflict)
        if action is CorrectionAction.UNDO and not ended and not changed:
            self._reopen(uow, key, found, by)

    def _reopen(self, uow: UnitOfWork, key: uuid.UUID, found: list[Disagreement], by: str) -> None:
        newest = {(each.item_a, each.item_b): each for each in found}
        for conflict in newest.values():
            if conflict.ended is not None and conflict.ended.id == key and in_use(uow, conflict.kept):
                reopen(self._engine, uow, conflict, by)


def strategy_of(engine: Engine) -> ConflictResolution:
    """Return the configured strategy; without the section ``pcp.grounding`` a person decides."""
    grounding = engine.config.pcp.grounding
    return ConflictResolution.MANUAL if grounding is None else grounding.conflict_resolution


def status_of_new(engine: Engine) -> ConflictStatus:
    """Return the status of a new conflict of statements: ``escalated`` where a person decides."""
    is_manual = strategy_of(engine) is ConflictResolution.MANUAL
    return ConflictStatus.ESCALATED if is_manual else ConflictStatus.DETECTED


def conflicts_of(uow: UnitOfWork, key: uuid.UUID) -> list[Disagreement]:
    """Return the conflicts of a record, the oldest first."""
    found: list[Disagreement] = uow.select_path(CONFLICT, "list_by_item_a", key.bytes)
    # Both sides of a concurrent write are one record.
    found += (each for each in uow.select_path(CONFLICT, "list_by_item_b", key.bytes) if each.item_a.id != key)
    return sorted(found, key=lambda each: (each.detected_at, each.conflict_id.bytes))


def of_pair(uow: UnitOfWork, one: EntityRef, other: EntityRef) -> list[Disagreement]:
    """Return the conflicts of two records, in either order, the oldest first."""
    first, second = sorted((one.id, other.id))
    return [each for each in conflicts_of(uow, first) if {each.item_a.id, each.item_b.id} == {first, second}]


def holds(relation: Relation, record: Any, now_us: int) -> bool:
    """Return whether a record is in use, and has not ended; it may begin to hold later."""
    until = None if relation.times.until is None else getattr(record, relation.times.until)
    return is_active(relation, record) and (until is None or until > from_us(now_us))


def in_use(uow: UnitOfWork, ref: EntityRef | None) -> bool:
    """Return whether a side exists and holds."""
    relation = None if ref is None else uow.catalog.by_name[ref.entity_type]
    record = None if ref is None or relation is None else uow.find(relation, ref.id.bytes)
    return record is not None and relation is not None and holds(relation, record, uow.now_us)


def open_conflict(
    engine: Engine,
    uow: UnitOfWork,
    sides: tuple[EntityRef, EntityRef],
    reason: str,
    by: str,
    status: ConflictStatus,
    *,
    conflict_type: ConflictType = ConflictType.CONTRADICTING_FACT,
    **fields: Any,
) -> Disagreement | None:
    """Record a conflict of two sides, of which the first has the lower id; None if the pair has an open one."""
    now = from_us(uow.now_us)
    made = Disagreement(
        conflict_id=ConflictId(uuid7()),
        conflict_type=conflict_type,
        item_a=sides[0],
        item_b=sides[1],
        status=status,
        reason=reason,
        detected_at=now,
        detected_by=by,
        updated_at=now,
        **fields,
    )
    if not uow.insert_new(CONFLICT, made):
        return None
    _audit(engine, uow, EventType.CONFLICT_DETECT, made, by)
    return made


def reopen(engine: Engine, uow: UnitOfWork, earlier: Disagreement, by: str) -> None:
    """Record the conflict of a pair again, of the kind and the agents that it had before."""
    names = ("conflict_type", "trajectory_id", "agent_a_id", "agent_b_id")
    kept = {name: getattr(earlier, name) for name in names}
    open_conflict(engine, uow, (earlier.item_a, earlier.item_b), earlier.reason, by, status_of_new(engine), **kept)


def close(
    engine: Engine,
    uow: UnitOfWork,
    conflict: Disagreement,
    winner: ConflictWinner,
    strategy: ConflictResolution | None,
    reason: str | None,
    by: str,
    merged: EntityRef | None = None,
) -> Disagreement:
    """Store a conflict as resolved, with the audit event of it; ``merged`` stands for both sides."""
    now = from_us(uow.now_us)
    closed = dataclasses.replace(
        conflict,
        status=ConflictStatus.RESOLVED,
        strategy=strategy,
        winner=winner,
        resolution_reason=reason,
        resolved_at=now,
        resolved_by=by,
        updated_at=now,
        merged_type=None if merged is None else merged.entity_type,
        merged_id=None if merged is None else merged.id,
    )
    return change(engine, uow, EventType.CONFLICT_RESOLVE, closed, by)


def change(engine: Engine, uow: UnitOfWork, kind: EventType, conflict: Disagreement, by: str) -> Disagreement:
    """Store a step of a conflict, with the audit event of it."""
    stored: Disagreement = uow.update(CONFLICT, conflict)
    _audit(engine, uow, kind, stored, by)
    return stored


def _audit(engine: Engine, uow: UnitOfWork, kind: EventType, conflict: Disagreement, by: str) -> None:
    """Write the audit event of a conflict that was found, escalated or resolved."""
    sides = [str(conflict.item_a.id), str(conflict.item_b.id)]
    engine.audit(
        uow,
        kind,
        principal=by,
        trajectory_id=conflict.trajectory_id,
        subject=(EntityType.CONFLICT, conflict.conflict_id),
        payload={"sides": sides, "strategy": conflict.strategy, "winner": conflict.winner},
    )


def states_otherwise(relation: Relation, before: Any, after: Any) -> bool:
    """Return whether a correction changed what a record states, or about what."""
    columns = () if relation.grounded is None else relation.grounded.subject
    columns += () if relation.text is None else relation.text.searched
    return any(getattr(before, name) != getattr(after, name) for name in columns)
