"""Recovery of a task from a checkpoint: what came after is marked as rolled back, nothing is deleted.

A checkpoint says which turns, scopes and artifacts were in use, by their numbers and ids, so clocks decide nothing.
Recovering marks the others, and lifts the marks of those: a recovery can be taken back.

A conflict with a side that left is closed; one whose sides hold again is open again. A record that ended because it
lost to one that left holds again, whichever task it belongs to. When that one comes back, by a recovery from the
recovery, the other ends again.

Source: C-271, C-272, C-286, C-432, C-482 to C-486, K-088 to K-090; docs/pcp.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from caliber.access.corrections import Corrections, key_of
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs
from caliber.model import states
from caliber.model.access import Principal
from caliber.model.errors import (
    Conflict,
    InvalidStateTransition,
    InvalidValue,
    NoCheckpointAvailable,
    NotFound,
    StorageError,
)
from caliber.model.events import CorrectionAction, Event, EventType
from caliber.model.pcp import Checkpoint, ConflictWinner, Disagreement, RecoveryResult
from caliber.model.process.interpreter import log
from caliber.model.references import CheckpointId, EntityType, TrajectoryId
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Scope, Trajectory, TrajectoryStatus, Turn
from caliber.pcp.checkpoints import NEVER_BEGUN, CheckpointState, read_state
from caliber.pcp.conflicts import close, conflicts_of, holds, in_use, reopen
from caliber.pcp.rollback.plan import Plan, Rollback, TaskRecords
from caliber.pcp.rollback.reach import reached
from caliber.schema.predicate import Comparison, Operator
from caliber.schema.relation import ORDINAL, Relation
from caliber.schema.relations import ARTIFACT, CHECKPOINT, CONFLICT, SCOPE, TRAJECTORY, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.conditions import Listing
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle, triggers
from caliber.trajectory.service import Tasks

Prepared = tuple[Any, tuple[str, bytes]]
"""A task as it is, and the packed state of its checkpoint."""
CANCELLED = "the task was recovered from a checkpoint"


class LearntFacts(Protocol):
    """Facts that were learnt from turns; a recovery takes them back, or has them learnt again."""

    def take_back(self, uow: UnitOfWork, trajectory_id: uuid.UUID, turns: Iterable[Turn]) -> tuple[int, int]:
        """Undo what was learnt from turns that are rolled back; return the facts taken back, and those kept.

        A fact that was corrected since stays.
        """
        ...

    def learn_again(self, uow: UnitOfWork, trajectory_id: uuid.UUID, turns: Iterable[Turn]) -> None:
        """Add the jobs that learn from turns which are no longer rolled back."""
        ...

    def learnt(self, uow: UnitOfWork, trajectory_id: uuid.UUID) -> Collection[bytes]:
        """Return the ids of the records that were ever learnt from a task."""
        ...


class Recovery:
    """Makes checkpoints of tasks and recovers from them, for one principal."""

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks, facts: LearntFacts) -> None:
        self._engine = engine
        self._principal = principal
        self._tasks = tasks
        self._facts = facts
        self._corrections = Corrections(engine, principal)
        self._readers = Readers(engine.part(TaskOwners), principal)

    def checkpoint(self, trajectory_id: uuid.UUID) -> Checkpoint:
        """Store a checkpoint of a task as it is now. Raises: NotFound, InvalidStateTransition for an ended task."""
        subject, state = self.prepare(trajectory_id)

        def work(uow: UnitOfWork) -> Checkpoint:
            _check_going(uow.get(TRAJECTORY, trajectory_id.bytes), "checkpoint")
            key = self._tasks.policies.apply_checkpoint(uow, subject, state)
            made: Checkpoint = uow.get(CHECKPOINT, key.bytes)
            return made

        return self._engine.write(work)

    def prepare(self, trajectory_id: uuid.UUID, what: str = "checkpoint") -> Prepared:
        """Return a task as it is, and the state of its checkpoint. Raises: NotFound, InvalidStateTransition."""
        snapshot = self._engine.snapshot("latest")
        scope = self._tasks.current_scope(snapshot, trajectory_id)
        subject = self._tasks.subject(snapshot, trajectory_id, scope, all_turns=False)
        _check_going(subject.trajectory, what)
        return subject, self._tasks.policies.prepare_checkpoint(subject)

    def recover(self, trajectory_id: uuid.UUID, checkpoint_id: uuid.UUID | None, *, preview: bool) -> RecoveryResult:
        """Bring a task back to a checkpoint, by default the newest of its present course; with ``preview`` tell only.

        Raises: as ``Pcp.recover``.
        """

        def attempt() -> RecoveryResult:
            before = None if preview else self.prepare(trajectory_id, "recovery")
            return self._engine.write(lambda uow: self._recover(uow, trajectory_id, checkpoint_id, before))

        done: RecoveryResult = self._tasks.retry(attempt)
        if done.before_id is not None:
            log("pcp", "info", "task %s was recovered from checkpoint %s", trajectory_id, done.checkpoint_id)
        return done

    def _recover(
        self, uow: UnitOfWork, trajectory_id: uuid.UUID, checkpoint_id: uuid.UUID | None, before: Any
    ) -> RecoveryResult:
        """Return the changes of a recovery, made if ``before``, a checkpoint of the task as it is, was prepared."""
        uow.lock(TRAJECTORY, trajectory_id.bytes)
        task: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
        _check_going(task, "recovery")
        if before is not None and before[0].trajectory.version != task.version:
            raise StaleInputs(entity_type=TRAJECTORY.name, id=trajectory_id, reason="it went on while it was recovered")
        checkpoint, state, damaged = self._choose(uow, trajectory_id, checkpoint_id)
        if task.status is not state.trajectory_status:
            states.TRAJECTORY.check(task.status, state.trajectory_status)
        plans = [self._plan(self._records(uow, task), state), *self._below(uow, trajectory_id, state)]
        result = _counted(
            RecoveryResult(
                trajectory_id=TrajectoryId(trajectory_id),
                checkpoint_id=checkpoint.checkpoint_id,
                restored_to=checkpoint.created_at,
                turn_number=state.turn_number,
                damaged=damaged,
                preview=before is None,
            ),
            plans,
        )
        conflicts = RecoveredConflicts(self._engine, uow, self._corrections, plans, self._principal.label)
        empty = plans[0].empty
        if empty is not None and all(plan.is_done for plan in plans) and not any(conflicts.ends()):
            reason = "the task is as it was at the checkpoint"
            return dataclasses.replace(result, new_scope_id=empty.scope_id, reason=reason)
        if before is None:
            return result
        return self._carry_out(uow, plans, conflicts, result, before)

    def _records(self, uow: UnitOfWork, task: Trajectory) -> TaskRecords:
        return TaskRecords(uow, task, self._corrections, self._facts.learnt)

    def _plan(self, records: TaskRecords, state: CheckpointState) -> Plan:
        """Return the plan of a task without records with readers of their own that the principal may not see."""
        plan, readers = records.plan(state), self._readers.acting_for(records.task.trajectory_id)
        for changes in (plan.mark, plan.lift):
            changes[:] = [each for each in changes if each[0].rights.readers is None or readers.allows_entity(*each)]
        return plan

    def _below(self, uow: UnitOfWork, trajectory_id: uuid.UUID, state: CheckpointState) -> Iterator[Plan]:
        """Yield the plans of tasks below one: those that started later leave, those that left come back.

        A task that was there, and is, keeps its own course, as does one that the principal may not see.
        """
        waiting, seen = [trajectory_id], {trajectory_id}  # only a damaged store has a chain that comes back to itself
        while waiting:
            children: list[Trajectory] = uow.select_path(TRAJECTORY, "list_children", waiting.pop().bytes)
            for child in children:
                key = child.trajectory_id
                if key in seen or not self._readers.allows_change(TRAJECTORY, child):
                    continue
                seen.add(key)
                wanted = state.below.get(key.bytes, NEVER_BEGUN)
                uow.lock(TRAJECTORY, key.bytes)
                records = self._records(uow, uow.get(TRAJECTORY, key.bytes))
                if wanted is NEVER_BEGUN or records.has_left:
                    yield self._plan(records, wanted)
                    waiting.append(key)

    def _choose(
        self, uow: UnitOfWork, trajectory_id: uuid.UUID, checkpoint_id: uuid.UUID | None
    ) -> tuple[Checkpoint, CheckpointState, tuple[CheckpointId, ...]]:
        """Return the checkpoint to recover from, its state, and newer ones that are damaged.

        Without an id it is the newest of the present course: before each recovery the task was on another one.
        A damaged one falls back to the one before it. Raises: StorageError for a damaged one that a recovery made:
        the one before it may be far from it.
        """
        of_task = Comparison("trajectory_id", Operator.EQUAL, trajectory_id)
        newest = Listing(CHECKPOINT, of_task, self._engine.store.dialect, ORDINAL, descending=True)
        wanted = checkpoint_id  # the next one to take; None for the next one that there is
        damaged: list[CheckpointId] = []
        for each in uow.listed(CHECKPOINT, newest):
            if wanted not in (None, each.checkpoint_id):
                continue
            if each.checkpoint_id == checkpoint_id and not each.recoverable:
                raise InvalidValue(field="checkpoint", reason="is not recoverable; take another one, or none")
            if wanted is None and each.recovered_to is not None:
                wanted = each.recovered_to
                continue
            wanted = None
            if not each.recoverable:
                continue
            try:
                return each, read_state(each), tuple(damaged)
            except StorageError:
                if each.recovered_to is not None:
                    raise
                damaged.append(each.checkpoint_id)
        if wanted is not None and wanted == checkpoint_id:
            raise NotFound(entity_type=CHECKPOINT.name, id=checkpoint_id)
        raise NoCheckpointAvailable(trajectory_id=trajectory_id)

    def _carry_out(
        self,
        uow: UnitOfWork,
        plans: list[Plan],
        conflicts: RecoveredConflicts,
        result: RecoveryResult,
        before: Prepared,
    ) -> RecoveryResult:
        at = from_us(uow.now_us)
        before_id = self._tasks.policies.apply_checkpoint(uow, *before, recovered_to=result.checkpoint_id)
        writes = Rollback(uow, self._corrections, before_id)
        for scope in (scope for plan in plans for scope in plan.close):
            triggers.cancel(self._engine, uow, "list_by_scope", scope.scope_id.bytes, CANCELLED)
            lifecycle.close_scope(uow, scope.scope_id, estimator=self._engine.estimator)
        for relation, record in (change for plan in plans for change in plan.mark):
            writes.mark(relation, record)
        for plan in plans:
            for relation, record in plan.lift:
                known = relation.recovered is not None and relation.rights.task is not None
                used = plan.state.in_use(relation.name)
                wanted = used.wanted(key_of(relation, record).bytes) if known else (None, None)
                writes.lift(relation, record, *wanted)
        scope = self._resume(uow, plans[0])
        for plan in plans[1:]:
            self._settle(uow, plan)
        undone = kept = 0
        for plan in plans:
            key = plan.task.trajectory_id
            taken, stayed = self._facts.take_back(uow, key, plan.of(TURN, plan.mark))
            undone, kept = undone + taken, kept + stayed
            self._facts.learn_again(uow, key, plan.of(TURN, plan.lift))
        conflicts.follow(before_id)
        done = dataclasses.replace(
            result,
            facts_undone=undone,
            facts_kept=kept,
            new_scope_id=scope.scope_id,
            recovered_at=at,
            before_id=CheckpointId(before_id),
        )
        counts = {each: getattr(done, each) for each in _COUNTS}
        self._emit(uow, EventType.CHECKPOINT_RECOVER, scope, {"id": str(done.checkpoint_id), **counts})
        return done

    def _resume(self, uow: UnitOfWork, plan: Plan) -> Scope:
        """Return the scope in which the task goes on, an empty one or a new one; give the task the status it had."""
        key, scope = plan.task.trajectory_id, plan.empty
        if scope is None:
            self._move(uow, key, TrajectoryStatus.ACTIVE)
            scope = lifecycle.open_scope(uow, key)
            self._emit(uow, EventType.SCOPE_OPEN, scope, {"id": str(scope.scope_id)})
        self._move(uow, key, plan.state.trajectory_status)
        return scope

    def _settle(self, uow: UnitOfWork, plan: Plan) -> None:
        """Suspend a task below that leaves; let one that comes back go on."""
        status = plan.status
        if plan.opens:
            self._resume(uow, plan)
        elif status is not None and states.TRAJECTORY.can_transition(plan.task.status, status):
            self._move(uow, plan.task.trajectory_id, status)

    @staticmethod
    def _move(uow: UnitOfWork, key: uuid.UUID, status: TrajectoryStatus) -> None:
        if uow.get(TRAJECTORY, key.bytes).status is not status:
            lifecycle.move_trajectory(uow, key, status)

    def _emit(self, uow: UnitOfWork, kind: EventType, scope: Scope, payload: dict[str, Any]) -> None:
        about = EntityType.SCOPE if kind is EventType.SCOPE_OPEN else EntityType.CHECKPOINT
        self._engine.emit(
            uow,
            kind,
            principal=self._principal.label,
            trajectory_id=scope.trajectory_id,
            scope_id=scope.scope_id,
            subject=(about, uuid.UUID(payload["id"])),
            payload=payload,
        )


_COUNTS = (
    "scopes_rolled_back",
    "turns_rolled_back",
    "artifacts_rolled_back",
    "records_rolled_back",
    "subtasks_rolled_back",
    "facts_undone",
    "facts_kept",
    "turns_restored",
    "artifacts_restored",
    "records_restored",
    "subtasks_restored",
)


def _counted(result: RecoveryResult, plans: list[Plan]) -> RecoveryResult:
    """Return a result with the counts of plans."""
    main, marked, lifted = plans[0], Counter[str](), Counter[str]()
    for plan in plans:
        marked.update(relation.name for relation, _ in plan.mark)
        lifted.update(relation.name for relation, _ in plan.lift)
    below = [plan.state is NEVER_BEGUN for plan in plans if plan is not main and not plan.is_done]
    return dataclasses.replace(
        result,
        scopes_rolled_back=marked[SCOPE.name],
        turns_rolled_back=marked[TURN.name],
        artifacts_rolled_back=marked[ARTIFACT.name],
        records_rolled_back=_others(marked),
        subtasks_rolled_back=below.count(True),
        turns_restored=lifted[TURN.name],
        artifacts_restored=lifted[ARTIFACT.name],
        records_restored=_others(lifted),
        subtasks_restored=below.count(False),
    )


def _others(counts: Counter[str]) -> int:
    """Return how many records there are that have no count of their own."""
    return counts.total() - counts[SCOPE.name] - counts[TURN.name] - counts[ARTIFACT.name]


def _check_going(task: Trajectory, what: str) -> None:
    """Raise InvalidStateTransition for a task that ended."""
    if states.TRAJECTORY.is_terminal(task.status):
        raise InvalidStateTransition(entity_type=TRAJECTORY.name, from_state=task.status.value, to_state=what)


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
