"""Listener that keeps conflicts true to their sides: a corrected side closes its conflicts, undoing its end opens one.

Source: C-286, C-432, C-441.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Final

from caliber.access.corrections import CorrectionListener
from caliber.engine.engine import Engine
from caliber.events import event_log
from caliber.kernels import uuid7
from caliber.model.events import CorrectionAction, EventFamily, EventType
from caliber.model.ids import ConflictId, TrajectoryId
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, RecordConflict
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import CONFLICT
from caliber.schema.validity import is_active
from caliber.storage.write.unit_of_work import UnitOfWork

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
        ended, changed = not holds(relation, after, uow.now_us), _states_otherwise(relation, before, after)
        for conflict in found:
            is_a = conflict.item_a.id == key
            if changed:  # nobody reads words that a side no longer has
                conflict = dataclasses.replace(conflict, reason=_OUTDATED)
            if ended and conflict.is_open:
                other = ConflictWinner.B if is_a else ConflictWinner.A
                self._close(uow, conflict, other, f"the other side was corrected: {action}", by)
            elif changed and (conflict.is_open or conflict.winner is ConflictWinner.BOTH):
                self._close(uow, conflict, ConflictWinner.NONE, f"a side was corrected: {action}", by)
            elif changed:
                uow.update(CONFLICT, conflict)
        if action is CorrectionAction.UNDO and not ended and not changed:
            self._reopen(uow, key, found, by)

    def _close(self, uow: UnitOfWork, conflict: RecordConflict, winner: ConflictWinner, reason: str, by: str) -> None:
        closed = resolved(conflict, winner, None, reason, by, uow.now_us)
        uow.update(CONFLICT, closed)
        audit(self._engine, uow, EventType.CONFLICT_RESOLVE, closed, by)

    def _reopen(self, uow: UnitOfWork, key: uuid.UUID, found: list[RecordConflict], by: str) -> None:
        newest = {(each.item_a, each.item_b): each for each in found}
        for conflict in newest.values():
            if conflict.ended is None or conflict.ended.id != key or not self._in_use(uow, conflict.kept):
                continue
            sides, task = (conflict.item_a, conflict.item_b), conflict.trajectory_id
            opened = open_conflict(sides, conflict.reason, task, self.waits, by, uow.now_us)
            opened = like(opened, conflict)
            if uow.insert_new(CONFLICT, opened):
                audit(self._engine, uow, EventType.CONFLICT_DETECT, opened, by)

    def _in_use(self, uow: UnitOfWork, ref: EntityRef | None) -> bool:
        if ref is None:
            return False
        relation = uow.catalog.by_name[ref.entity_type]
        record = uow.find(relation, ref.id.bytes)
        return record is not None and holds(relation, record, uow.now_us)

    @property
    def waits(self) -> ConflictStatus:
        """The status of a new conflict: ``escalated`` where a person decides."""
        is_manual = strategy_of(self._engine) is ConflictResolution.MANUAL
        return ConflictStatus.ESCALATED if is_manual else ConflictStatus.DETECTED


def strategy_of(engine: Engine) -> ConflictResolution:
    """Return the configured strategy; without the section ``pcp.grounding`` a person decides."""
    grounding = engine.config.pcp.grounding
    return ConflictResolution.MANUAL if grounding is None else grounding.conflict_resolution


def conflicts_of(uow: UnitOfWork, key: uuid.UUID) -> list[RecordConflict]:
    """Return the conflicts of a record, the oldest first."""
    found: list[RecordConflict] = uow.select_path(CONFLICT, "list_by_item_a", key.bytes)
    # Both sides of a concurrent write are one record.
    found += (each for each in uow.select_path(CONFLICT, "list_by_item_b", key.bytes) if each.item_a.id != key)
    return sorted(found, key=lambda each: (each.detected_at, each.conflict_id.bytes))


def of_pair(uow: UnitOfWork, one: EntityRef, other: EntityRef) -> list[RecordConflict]:
    """Return the conflicts of two records, in either order, the oldest first."""
    first, second = sorted((one.id, other.id))
    return [each for each in conflicts_of(uow, first) if {each.item_a.id, each.item_b.id} == {first, second}]


def holds(relation: Relation, record: Any, now_us: int) -> bool:
    """Return whether a record is in use, and has not ended; it may begin to hold later."""
    until = None if relation.times.until is None else getattr(record, relation.times.until)
    return is_active(relation, record) and (until is None or until > from_us(now_us))


def resolved(
    conflict: RecordConflict,
    winner: ConflictWinner,
    strategy: ConflictResolution | None,
    reason: str | None,
    by: str,
    now_us: int,
) -> RecordConflict:
    """Return a conflict as it is once it is resolved."""
    now = from_us(now_us)
    return dataclasses.replace(
        conflict,
        status=ConflictStatus.RESOLVED,
        strategy=strategy,
        winner=winner,
        resolution_reason=reason,
        resolved_at=now,
        resolved_by=by,
        updated_at=now,
    )


def open_conflict(
    sides: tuple[EntityRef, EntityRef],
    reason: str,
    task: TrajectoryId | None,
    status: ConflictStatus,
    by: str,
    now_us: int,
    *,
    conflict_type: ConflictType = ConflictType.CONTRADICTING_FACT,
) -> RecordConflict:
    """Return a new open conflict of two records, of which the first has the lower id."""
    now = from_us(now_us)
    return RecordConflict(
        conflict_id=ConflictId(uuid7()),
        conflict_type=conflict_type,
        item_a=sides[0],
        item_b=sides[1],
        status=status,
        reason=reason,
        detected_at=now,
        detected_by=by,
        updated_at=now,
        trajectory_id=task,
    )


def like(opened: RecordConflict, earlier: RecordConflict) -> RecordConflict:
    """Return a conflict that is open again, of the kind and the agents that it had before."""
    agents = earlier.agent_a_id, earlier.agent_b_id
    return dataclasses.replace(opened, conflict_type=earlier.conflict_type, agent_a_id=agents[0], agent_b_id=agents[1])


def audit(engine: Engine, uow: UnitOfWork, kind: EventType, conflict: RecordConflict, by: str) -> None:
    """Write the audit event of a conflict that was found or resolved."""
    sides = [str(conflict.item_a.id), str(conflict.item_b.id)]
    event = engine.event(
        kind,
        principal=by,
        trajectory_id=conflict.trajectory_id,
        subject=(EntityType.CONFLICT, conflict.conflict_id),
        payload={"sides": sides, "strategy": conflict.strategy, "winner": conflict.winner},
        family=EventFamily.AUDIT,
        at_us=uow.now_us,
    )
    event_log.audit(uow, event)


def _states_otherwise(relation: Relation, before: Any, after: Any) -> bool:
    """Return whether a correction changed what a record states, or about what."""
    columns = () if relation.grounded is None else relation.grounded.subject
    columns += () if relation.text is None else relation.text.searched
    return any(getattr(before, name) != getattr(after, name) for name in columns)
