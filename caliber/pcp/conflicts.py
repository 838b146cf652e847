"""Conflicts between statements: recorded where a check found a contradiction, and ended on one side.

Nothing is overwritten: the side that loses ends by the correction that also ends records by hand. So a read ``as_of``
an earlier instant finds it, and undoing brings it back.

Source: C-286, C-376, C-417, C-432, C-433, C-441; docs/pcp.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from caliber.access.correcting import RecordCorrections
from caliber.access.corrections import Corrections
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
)
from caliber.model.events import CorrectionAction
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictWinner, Disagreement
from caliber.model.references import EntityRef
from caliber.pcp.conflict_sides import close, holds, of_pair, open_conflict, status_of_new, strategy_of
from caliber.pcp.pairs import Statement
from caliber.schema.relation import Relation
from caliber.schema.relations import CONFLICT
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
