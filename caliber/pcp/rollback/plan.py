"""Plan of a recovery for one task, and the writes that carry it out: records leave, or are as they were again.

The trait ``Recovers`` of a relation declares that its records follow their task; turns and scopes are told apart by
their numbers. Corrections that came after the checkpoint are undone one by one, each with its audit event, so that a
later recovery can undo that.

Source: C-271, C-272, C-482 to C-486, K-088 to K-090.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from caliber.access.corrections import Corrections, key_of
from caliber.model import states
from caliber.model.errors import Conflict
from caliber.model.events import CorrectionAction
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Scope, Trajectory, TrajectoryStatus, Turn
from caliber.pcp.checkpoints import NEVER_BEGUN, CheckpointState
from caliber.pcp.rollback.reach import Entry, entries_of, reached
from caliber.schema.relation import Relation
from caliber.schema.relations import SCOPE, TURN
from caliber.schema.validity import is_active
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

Learnt = Callable[[UnitOfWork, uuid.UUID], Collection[bytes]]
"""The ids of the records that were learnt from the turns of a task, which learning itself takes back."""


_MINOR: Final = (CorrectionAction.END, CorrectionAction.UNDO)


@dataclass(slots=True)
class Plan:
    """The changes that a recovery makes to one task: records to mark, and records to bring back."""

    task: Trajectory
    state: CheckpointState
    mark: list[tuple[Relation, Any]] = field(default_factory=list)
    lift: list[tuple[Relation, Any]] = field(default_factory=list)
    close: list[Scope] = field(default_factory=list)
    empty: Scope | None = None
    """The newest open scope, if it is newer than the checkpoint and nothing happened in it: the task goes on there."""
    opens: bool = False
    """Whether a task that was taken out comes back, and needs a scope to go on in."""

    @staticmethod
    def of(relation: Relation, changes: list[tuple[Relation, Any]]) -> list[Any]:
        """Return the records of one relation among changes."""
        return [record for each, record in changes if each is relation]

    @property
    def is_done(self) -> bool:
        """True where the records and the status are as they were at the checkpoint."""
        return not (self.mark or self.lift or self.close or self.opens) and self.status is None

    @property
    def status(self) -> TrajectoryStatus | None:
        """The status to set; None if the task has it, or has ended."""
        now, wanted = self.task.status, self.state.trajectory_status
        return None if now is wanted or states.TRAJECTORY.is_terminal(now) else wanted


class TaskRecords:
    """The records of a task, as a transaction has them.

    Rows become entities only where a recovery may change them: a task has thousands.
    """

    def __init__(self, uow: UnitOfWork, task: Trajectory, corrections: Corrections, learnt: Learnt) -> None:
        self.task = task
        self._uow = uow
        self._corrections = corrections
        key = task.trajectory_id
        self._learnt = functools.cache(lambda: learnt(uow, key))
        self.scopes: list[Scope] = uow.select_path(SCOPE, "list_by_trajectory", key.bytes)

    @property
    def has_left(self) -> bool:
        """True where a recovery took the task out with all its scopes, and no other was opened since."""
        return bool(self.scopes) and all(scope.rolled_back_at is not None for scope in self.scopes)

    def plan(self, state: CheckpointState) -> Plan:
        """Return the changes that bring the task back to a checkpoint."""
        plan = Plan(self.task, state)
        busy: set[bytes] = set()
        for number, gone, row in self._numbered():
            if state.used(number) is (gone is None):
                continue
            turn: Turn = codec_of(TURN).decode(row)
            if gone is None:
                plan.mark.append((TURN, turn))
                busy.add(turn.scope_id.bytes)
            else:
                plan.lift.append((TURN, turn))
        for relation in reached(self._uow.catalog):
            found = list(entries_of(self._uow, relation, self.task.trajectory_id.bytes))
            if relation.rights.task is None:
                self._plan_drawn(plan, relation, found)
                continue
            used, codec = state.in_use(relation.name), codec_of(relation)
            scope_at = codec.index("scope_id") if "scope_id" in codec.names else None
            for each in found:
                if each.key in used.keys:
                    if self._differs(relation, each, *used.wanted(each.key)):
                        plan.lift.append((relation, codec.decode(each.row)))
                    continue
                if each.active:
                    plan.mark.append((relation, codec.decode(each.row)))
                if scope_at is not None and each.key not in used.unused:
                    busy.add(each.row[scope_at])
        for scope in self.scopes:
            self._plan_scope(plan, scope, state, is_busy=scope.scope_id.bytes in busy)
        if self.has_left and state.open_scopes and plan.empty is None:
            plan.opens = not states.TRAJECTORY.is_terminal(self.task.status)
        return plan

    def _differs(self, relation: Relation, now: Entry, version: int, until: int | None) -> bool:
        """Return whether a record that was in use is otherwise than it was."""
        if now.version == version:
            return False
        record = codec_of(relation).decode(now.row)
        if not now.active:
            retired = None if relation.archive is None else getattr(record, relation.archive)
            # One whose time is over is retired again in any case.
            return now.marked is not None or until is None or retired is None or to_us(retired) < until
        return now.until != until or bool(self._corrections.since(self._uow, relation, record, version))

    def _plan_drawn(self, plan: Plan, relation: Relation, found: list[Entry]) -> None:
        """Plan records that were drawn from the task: those that were corrected since stay as they are."""
        assert relation.recovered is not None
        assert relation.erase is not None
        assert relation.erase.sources is not None
        used, codec, replaced = plan.state.in_use(relation.name), codec_of(relation), relation.ends
        gone: set[uuid.UUID] = set()
        lost: list[Any] = []
        for each in found:
            if each.active is (each.key in used.keys) or each.key in self._learnt():
                continue
            record = codec.decode(each.row)
            corrections = self._corrections.since(self._uow, relation, record, 0)
            if each.active:
                alone = getattr(record, relation.erase.sources) == (self.task.trajectory_id,)
                # An end says nothing against it: it may have lost a conflict.
                if alone and all(event.payload["action"] in _MINOR for event in corrections):
                    plan.mark.append((relation, record))
                    gone.add(key_of(relation, record))
            elif all(event.payload["changes"].keys().isdisjoint(relation.active) for event in corrections):
                lost.append(record)
        for record in lost:
            into = None if replaced is None or replaced.supersede is None else getattr(record, replaced.supersede)
            if into is None or into in gone:
                plan.lift.append((relation, record))

    def _numbered(self) -> Iterator[tuple[int, Any, Row]]:
        """Yield the number of each turn, when it was rolled back as the driver stores it, or None, and its row."""
        index = codec_of(TURN).index
        number, gone = index("turn_number"), index("rolled_back_at")
        for scope in self.scopes:
            for row in self._uow.path_rows(TURN, "list_by_scope", scope.scope_id.bytes):
                yield row[number], row[gone], row

    @staticmethod
    def _plan_scope(plan: Plan, scope: Scope, state: CheckpointState, *, is_busy: bool) -> None:
        is_new = scope.sequence_number >= state.scope_count
        if is_new and scope.is_open and not is_busy and not scope.turn_count and state is not NEVER_BEGUN:
            if plan.empty is not None:
                plan.close.append(plan.empty)
                plan.mark.append((SCOPE, plan.empty))
            plan.empty = scope  # the newest of them: scopes come in their order
            return
        if scope.is_open:
            plan.close.append(scope)
        # The summary of a scope that was open tells of later turns, unless it closed before any came.
        outgrown = state.had_open(scope) and (
            is_busy or (scope.end_turn is not None and scope.end_turn > state.turn_number)
        )
        gone = is_new or outgrown or scope.sequence_number in state.rolled_back_scopes
        if gone and scope.rolled_back_at is None:
            plan.mark.append((SCOPE, scope))
        elif not gone and scope.rolled_back_at is not None:
            plan.lift.append((SCOPE, scope))


class Rollback:
    """The writes of one recovery; ``recovery`` names it in the audit events of what it undoes."""

    def __init__(self, uow: UnitOfWork, corrections: Corrections, recovery: uuid.UUID) -> None:
        self._uow = uow
        self._corrections = corrections
        self._recovery = recovery

    def mark(self, relation: Relation, record: Any) -> None:
        """Take a record out of use; one that an earlier recovery brought back, as it was out of use before that."""
        column = "rolled_back_at" if relation.recovered is None else relation.recovered
        if relation.recovered is not None and record.version > 1:
            for event in self._corrections.of_recovery(self._uow, relation, record):
                self._undo(relation, self._now(relation, record), event)
            if not is_active(relation, self._now(relation, record)):
                return
        self._set(relation, record, {column: from_us(self._uow.now_us)})

    def lift(self, relation: Relation, record: Any, version: int | None, until: int | None) -> None:
        """Bring a record back as it was at a version; ``version`` is None for one that has none of its own.

        Units: until in µs
        """
        changes: dict[str, Any] = {}
        if version is not None:
            for event in self._corrections.since(self._uow, relation, record, version):
                self._undo(relation, self._now(relation, record), event)
            if relation.times.until is not None:
                changes[relation.times.until] = None if until is None else from_us(until)
        now = self._now(relation, record)
        changes |= dict.fromkeys(relation.active)
        changes = {name: value for name, value in changes.items() if getattr(now, name) != value}
        if changes:
            self._set(relation, now, changes)

    def _undo(self, relation: Relation, record: Any, event: Any) -> None:
        with contextlib.suppress(Conflict):  # it was changed again since: only what decides about its use is put back
            self._corrections.undo(self._uow, relation, record, event, recovery=self._recovery)

    def _now(self, relation: Relation, record: Any) -> Any:
        return self._uow.get(relation, key_of(relation, record).bytes)

    def _set(self, relation: Relation, record: Any, changes: dict[str, Any]) -> None:
        """Write columns of a record as it is by now."""
        codec, now = codec_of(relation), self._now(relation, record)
        stamp = {"updated_at": from_us(self._uow.now_us)} if "updated_at" in codec.names else {}
        changed = dataclasses.replace(now, **changes, **stamp)
        old = self._uow.current(relation, codec.encode(now, 0 if relation.ordinal else None))
        if self._uow.has_twin(relation, old, codec.encode(changed, old[0] if relation.ordinal else None)):
            return  # an equal record took its place, and stays
        self._uow.update(relation, changed)
