"""Conflicts after a recovery: one with a side that left is closed, one whose sides hold again is open again.

A record that ended because it lost to one that left holds again, whichever task it belongs to. When that one comes
back, by a recovery from the recovery, the other ends again.

Source: C-286, C-432; docs/pcp.md.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from caliber.access.corrections import Corrections, key_of
from caliber.engine.engine import Engine
from caliber.model.errors import Conflict
from caliber.model.events import CorrectionAction, Event
from caliber.model.pcp import ConflictWinner, Disagreement
from caliber.model.time import to_us
from caliber.pcp.conflict_sides import close, conflicts_of, holds, in_use, reopen
from caliber.pcp.rollback.plan import Plan
from caliber.pcp.rollback.reach import reached
from caliber.schema.relation import Relation
from caliber.schema.relations import CONFLICT
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

_GONE = "a side was rolled back"
Change = tuple[Relation, Any]


class RecoveredConflicts:
    """The conflicts of the records of a task that is recovered to a state."""

    def __init__(
        self, engine: Engine, uow: UnitOfWork, corrections: Corrections, plans: Sequence[Plan], label: str
    ) -> None:
        self._engine = engine
        self._uow = uow
        self._corrections = corrections
        self._label = label
        self._known = plans[0].state.conflicts
        self._gone = _keys(change for plan in plans for change in plan.mark)
        self._used = frozenset(
            key for plan in plans for relation in reached(uow.catalog) for key in plan.state.in_use(relation.name).keys
        )
        self._pairs: dict[tuple[uuid.UUID, uuid.UUID], list[Disagreement]] = {}
        if not uow.count(CONFLICT):
            return
        decode, mine = codec_of(CONFLICT).decode, self._gone | self._used
        for conflict in (decode(row) for page in uow.pages(CONFLICT) for row in page):
            if conflict.item_a.id.bytes in mine or conflict.item_b.id.bytes in mine:
                self._pairs.setdefault((conflict.item_a.id, conflict.item_b.id), []).append(conflict)
        for conflicts in self._pairs.values():
            conflicts.sort(key=lambda each: (each.detected_at, each.conflict_id.bytes))

    def ends(self) -> Iterator[tuple[Relation, Any, list[Event]]]:
        """Yield the sides whose end came after the state, or was taken back since, and the corrections to undo."""
        for conflicts in self._pairs.values():
            newest = conflicts[-1]
            was_open = any(self._known.get(each.conflict_id.bytes) for each in conflicts)
            before = [each for each in conflicts if each.conflict_id.bytes in self._known]
            if not newest.is_open and self._came_later(newest):
                relation, record = self._ended(newest)
                last = None if record is None else self._corrections.last(self._uow, relation, record)
                if last is not None and _ended_by(relation, last, newest):
                    yield relation, record, [last]
            elif before and not was_open and before[-1].ended is not None:
                relation, record = self._ended(before[-1])
                if record is not None and holds(relation, record, self._uow.now_us):
                    events = self._corrections.of_recovery(self._uow, relation, record)
                    if events:
                        yield relation, record, events

    def _came_later(self, conflict: Disagreement) -> bool:
        """Return whether a resolved conflict was not resolved yet, and its loser should hold."""
        kept, ended = conflict.kept, conflict.ended
        if kept is None or ended is None or ended.id.bytes in self._gone:
            return False
        is_new = self._known.get(conflict.conflict_id.bytes, True)
        return kept.id.bytes in self._gone or (is_new and ended.id.bytes in self._used)

    def _ended(self, conflict: Disagreement) -> tuple[Relation, Any]:
        assert conflict.ended is not None
        relation = self._uow.catalog.by_name[conflict.ended.entity_type]
        return relation, self._uow.find(relation, conflict.ended.id.bytes)

    def follow(self, recovery: uuid.UUID) -> None:
        """Bring ends and conflicts to what holds now; ``recovery`` names the recovery in their audit events."""
        for relation, record, events in list(self.ends()):
            for event in events:
                with contextlib.suppress(Conflict):  # it was corrected otherwise since
                    now = self._uow.get(relation, key_of(relation, record).bytes)
                    self._corrections.undo(self._uow, relation, now, event, recovery=recovery)
        for conflicts in self._pairs.values():
            self._settle(conflicts[0])

    def _settle(self, of_pair: Disagreement) -> None:
        """Close the open conflict of a pair of which a side is gone; open one where both hold, as they did."""
        now = [each for each in conflicts_of(self._uow, of_pair.item_a.id) if each.item_b == of_pair.item_b]
        standing = next((each for each in now if each.is_open), None)
        a, b = in_use(self._uow, of_pair.item_a), in_use(self._uow, of_pair.item_b)
        if standing is not None:
            if not (a and b):
                winner = ConflictWinner.A if a else ConflictWinner.B if b else ConflictWinner.NONE
                close(self._engine, self._uow, standing, winner, None, _GONE, self._label)
            return
        if not (a and b) or any(each.winner is ConflictWinner.BOTH for each in now):
            return
        if now[-1].ended is not None or any(self._known.get(each.conflict_id.bytes) for each in now):
            reopen(self._engine, self._uow, now[-1], self._label)


def _keys(changes: Iterable[Change]) -> set[bytes]:
    """Return the ids of those records that state something."""
    return {key_of(relation, record).bytes for relation, record in changes if relation.grounded is not None}


def _ended_by(relation: Relation, event: Event, conflict: Disagreement) -> bool:
    """Return whether a correction is the end of the side that lost a conflict."""
    until = event.payload["changes"].get(relation.times.until)
    return (
        event.payload["action"] == CorrectionAction.END
        and conflict.resolved_at is not None
        and until is not None
        and until[1] == to_us(conflict.resolved_at)
    )
