"""Listener that keeps conflicts true to their sides: a corrected side closes its conflicts, undoing its end opens one.

Source: C-286, C-432, C-441.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Final

from caliber.access.corrections import CorrectionListener
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model.events import CorrectionAction, EventType
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, Disagreement
from caliber.model.references import ConflictId, EntityRef, EntityType
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
