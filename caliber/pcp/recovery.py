"""Recovery of a task from a checkpoint: what came after is marked as rolled back, nothing is deleted.

A checkpoint says which turns, scopes and artifacts were in use, by their numbers and ids, so clocks decide nothing.
Recovering marks the others, and lifts the marks of those: a recovery can be taken back.

Source: C-271, C-272, C-482 to C-486, K-088 to K-090.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from caliber.access.corrections import Corrections
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
from caliber.model.events import CorrectionAction, EventType
from caliber.model.ids import CheckpointId, ScopeId, TrajectoryId
from caliber.model.pcp import Checkpoint, RecoveryResult
from caliber.model.references import EntityType
from caliber.model.time import from_us
from caliber.model.trajectory import Artifact, Scope, Trajectory, TrajectoryStatus, TTLKind, Turn
from caliber.pcp.checkpoints import CheckpointState, read_state
from caliber.schema.predicate import Comparison, Operator
from caliber.schema.relation import ORDINAL, Relation
from caliber.schema.relations import ARTIFACT, CHECKPOINT, SCOPE, TRAJECTORY, TURN
from caliber.schema.validity import is_active
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle
from caliber.trajectory.service import Tasks

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


@dataclass(slots=True)
class _Plan:
    """The changes that a recovery makes: records to mark, and marks to lift."""

    mark: list[tuple[Relation, Any]] = field(default_factory=list)
    lift: list[tuple[Relation, Any]] = field(default_factory=list)
    close: list[Scope] = field(default_factory=list)
    empty: Scope | None = None
    """The open scope, if it is newer than the checkpoint and nothing happened in it."""

    def of(self, relation: Relation, changes: list[tuple[Relation, Any]]) -> list[Any]:
        return [record for each, record in changes if each is relation]

    @property
    def is_done(self) -> bool:
        """True where the records of the task are as they were at the checkpoint."""
        return not (self.mark or self.lift or self.close)


class Recovery:
    """Makes checkpoints of tasks and recovers from them, for one principal."""

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks[Any], facts: LearntFacts) -> None:
        self._engine = engine
        self._principal = principal
        self._tasks = tasks
        self._facts = facts
        self._corrections = Corrections(engine, principal)

    def checkpoint(self, trajectory_id: uuid.UUID) -> Checkpoint:
        """Store a checkpoint of a task as it is now. Raises: NotFound, InvalidStateTransition for an ended task."""
        subject, state = self.prepare(trajectory_id)

        def work(uow: UnitOfWork) -> Checkpoint:
            _check_going(uow.get(TRAJECTORY, trajectory_id.bytes), "checkpoint")
            key = self._tasks.policies.apply_checkpoint(uow, subject, state)
            made: Checkpoint = uow.get(CHECKPOINT, key.bytes)
            return made

        return self._engine.write(work)

    def prepare(self, trajectory_id: uuid.UUID, what: str = "checkpoint") -> tuple[Any, tuple[str, bytes]]:
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
        from caliber.model.process.logs import log  # loaded by a program that recovers

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
        records = _Records(uow, trajectory_id)
        checkpoint, state, damaged = self._choose(uow, records, checkpoint_id)
        if task.status is not state.trajectory_status:
            states.TRAJECTORY.check(task.status, state.trajectory_status)
        plan = records.plan(state)
        result = RecoveryResult(
            trajectory_id=TrajectoryId(trajectory_id),
            checkpoint_id=checkpoint.checkpoint_id,
            restored_to=checkpoint.created_at,
            turn_number=state.turn_number,
            scopes_rolled_back=len(plan.of(SCOPE, plan.mark)),
            turns_rolled_back=len(plan.of(TURN, plan.mark)),
            artifacts_rolled_back=len(plan.of(ARTIFACT, plan.mark)),
            turns_restored=len(plan.of(TURN, plan.lift)),
            artifacts_restored=len(plan.of(ARTIFACT, plan.lift)),
            damaged=damaged,
            preview=before is None,
        )
        if plan.empty is not None and plan.is_done and task.status is state.trajectory_status:
            reason = "the task is as it was at the checkpoint"
            return dataclasses.replace(result, new_scope_id=plan.empty.scope_id, preview=False, reason=reason)
        if before is None:
            return result
        return self._carry_out(uow, task, state, plan, result, before)

    def _choose(
        self, uow: UnitOfWork, records: _Records, checkpoint_id: uuid.UUID | None
    ) -> tuple[Checkpoint, CheckpointState, tuple[CheckpointId, ...]]:
        """Return the checkpoint to recover from, its state, and newer ones that are damaged.

        Without an id it is the newest all of whose records still stand: not one of a course that was rolled back.
        A damaged one falls back to the one before it.
        """
        of_task = Comparison("trajectory_id", Operator.EQUAL, records.trajectory_id)
        newest = self._engine.store.listing(CHECKPOINT, of_task, ORDINAL, descending=True)
        is_reached = checkpoint_id is None
        damaged: list[CheckpointId] = []
        for each in uow.listed(CHECKPOINT, newest):
            is_named = each.checkpoint_id == checkpoint_id
            is_reached = is_reached or is_named
            if is_named and not each.recoverable:
                raise InvalidValue(field="checkpoint", reason="is not recoverable; take another one, or none")
            if not is_reached or not each.recoverable:
                continue
            try:
                state = read_state(each)
            except StorageError:
                damaged.append(each.checkpoint_id)
                continue
            if is_named or records.stand(state):
                return each, state, tuple(damaged)
        if not is_reached:
            raise NotFound(entity_type=CHECKPOINT.name, id=checkpoint_id)
        raise NoCheckpointAvailable(trajectory_id=records.trajectory_id)

    def _carry_out(
        self,
        uow: UnitOfWork,
        task: Trajectory,
        state: CheckpointState,
        plan: _Plan,
        result: RecoveryResult,
        before: tuple[Any, tuple[str, bytes]],
    ) -> RecoveryResult:
        at = from_us(uow.now_us)
        # One more than are kept: the checkpoint that the task returns to must not go for it.
        before_id = self._tasks.policies.apply_checkpoint(uow, *before, spare=1)
        for scope in plan.close:
            self._tasks.policies.cancel(uow, "list_by_scope", scope.scope_id.bytes, CANCELLED)
            lifecycle.close_scope(
                uow, scope.scope_id, summary=None, estimator=self._engine.estimator, artifact_ids=(), checkpoint_id=None
            )
        for relation, record in plan.mark:
            self._set(uow, relation, record, {"rolled_back_at": at})
        for relation, record in plan.lift:
            self._lift(uow, relation, record)
        if task.status is not TrajectoryStatus.ACTIVE:
            lifecycle.move_trajectory(uow, task.trajectory_id, TrajectoryStatus.ACTIVE)
        opened = lifecycle.open_scope(uow, task.trajectory_id)
        if state.trajectory_status is not TrajectoryStatus.ACTIVE:
            lifecycle.move_trajectory(uow, task.trajectory_id, state.trajectory_status)
        undone, kept = self._facts.take_back(uow, task.trajectory_id, plan.of(TURN, plan.mark))
        self._facts.learn_again(uow, task.trajectory_id, plan.of(TURN, plan.lift))
        done = dataclasses.replace(
            result,
            facts_undone=undone,
            facts_kept=kept,
            new_scope_id=opened.scope_id,
            recovered_at=at,
            before_id=CheckpointId(before_id),
        )
        self._emit(uow, EventType.SCOPE_OPEN, opened, {"id": str(opened.scope_id)})
        counts = {each: getattr(done, each) for each in _COUNTS}
        self._emit(uow, EventType.CHECKPOINT_RECOVER, opened, {"id": str(done.checkpoint_id), **counts})
        return done

    def _set(self, uow: UnitOfWork, relation: Relation, record: Any, changes: dict[str, Any]) -> None:
        """Write columns of a record as it is by now."""
        if "updated_at" in codec_of(relation).names:
            changes = {**changes, "updated_at": from_us(uow.now_us)}
        now = uow.get(relation, getattr(record, relation.key[0]).bytes)
        changed = dataclasses.replace(now, **changes)
        codec = codec_of(relation)
        old = uow.current(relation, codec.encode(now, 0 if relation.ordinal else None))
        if uow.has_twin(relation, old, codec.encode(changed, old[0] if relation.ordinal else None)):
            return  # an equal record took its place, and stays
        uow.update(relation, changed)

    def _lift(self, uow: UnitOfWork, relation: Relation, record: Any) -> None:
        """Bring a record back into use that was rolled back, or that a later record superseded."""
        ends, changes = relation.ends, {"rolled_back_at": None}
        if ends is not None and ends.supersede is not None:
            now = uow.get(relation, getattr(record, relation.key[0]).bytes)
            event = self._corrections.last(uow, relation, now)
            if event is not None and event.payload["action"] == CorrectionAction.SUPERSEDE:
                with contextlib.suppress(Conflict):  # it was changed again since: only these columns are put back
                    self._corrections.undo(uow, relation, now, event)
            changes |= dict.fromkeys((ends.supersede, ends.archive or ends.supersede))
        self._set(uow, relation, record, changes)

    def _emit(self, uow: UnitOfWork, kind: EventType, scope: Scope, payload: dict[str, Any]) -> None:
        about = EntityType.SCOPE if kind is EventType.SCOPE_OPEN else EntityType.CHECKPOINT
        uow.emit(
            self._engine.event(
                kind,
                principal=self._principal.label,
                trajectory_id=scope.trajectory_id,
                scope_id=scope.scope_id,
                subject=(about, uuid.UUID(payload["id"])),
                payload=payload,
            )
        )


_COUNTS = (
    "scopes_rolled_back",
    "turns_rolled_back",
    "artifacts_rolled_back",
    "facts_undone",
    "facts_kept",
    "turns_restored",
    "artifacts_restored",
)


class _Records:
    """The scopes, turns and artifacts of a task, as a transaction has them.

    Rows of turns and artifacts become entities only where a recovery may change them: a task has thousands.
    """

    def __init__(self, uow: UnitOfWork, trajectory_id: uuid.UUID) -> None:
        self.trajectory_id = trajectory_id
        self.scopes: list[Scope] = uow.select_path(SCOPE, "list_by_trajectory", trajectory_id.bytes)
        self._turns = [
            row for scope in self.scopes for row in uow.path_rows(TURN, "list_by_scope", scope.scope_id.bytes)
        ]
        self._artifacts = uow.path_rows(ARTIFACT, "list_by_trajectory", trajectory_id.bytes)

    def stand(self, state: CheckpointState) -> bool:
        """Return whether nothing that was in use at a checkpoint was rolled back since."""
        turns = any(gone is not None and state.used(number) for number, gone, _ in self._numbered())
        return not turns and not any(
            gone is not None and key in state.artifacts for key, gone, _ in self._keyed("rolled_back_at")
        )

    def plan(self, state: CheckpointState) -> _Plan:
        """Return the changes that bring the task back to a checkpoint."""
        plan = _Plan()
        busy: set[ScopeId] = set()
        for number, gone, row in self._numbered():
            if state.used(number) is (gone is None):
                continue
            turn: Turn = codec_of(TURN).decode(row)
            if gone is None:
                plan.mark.append((TURN, turn))
                busy.add(turn.scope_id)
            else:
                plan.lift.append((TURN, turn))
        for key, gone, row in self._keyed("rolled_back_at", "superseded_by", "retired_at"):
            was_used = key in state.artifacts
            if was_used and gone is None:
                continue
            artifact: Artifact = codec_of(ARTIFACT).decode(row)
            lapsed = artifact.retired_at is not None and artifact.ttl.kind is TTLKind.SCOPE
            if was_used and (artifact.rolled_back_at or artifact.superseded_by is not None or lapsed):
                plan.lift.append((ARTIFACT, artifact))
            elif not was_used and is_active(ARTIFACT, artifact):
                plan.mark.append((ARTIFACT, artifact))
                busy.add(artifact.scope_id)
        for scope in self.scopes:
            self._plan_scope(plan, scope, state, is_busy=scope.scope_id in busy)
        return plan

    def _numbered(self) -> Iterator[tuple[int, Any, Row]]:
        """Yield the number of each turn, when it was rolled back as the driver stores it, or None, and its row."""
        index = codec_of(TURN).index
        number, gone = index("turn_number"), index("rolled_back_at")
        return ((row[number], row[gone], row) for row in self._turns)

    def _keyed(self, *columns: str) -> Iterator[tuple[bytes, Any, Row]]:
        """Yield the id of each artifact, the first of some columns that is set, or None, and its row."""
        index = codec_of(ARTIFACT).index
        key, ends = index("artifact_id"), [index(name) for name in columns]
        for row in self._artifacts:
            yield row[key], next((row[end] for end in ends if row[end] is not None), None), row

    def _plan_scope(self, plan: _Plan, scope: Scope, state: CheckpointState, *, is_busy: bool) -> None:
        is_new = scope.sequence_number >= state.scope_count
        if is_new and scope.is_open and not is_busy and not scope.turn_count:
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


def _check_going(task: Trajectory, what: str) -> None:
    """Raise InvalidStateTransition for a task that ended."""
    if states.TRAJECTORY.is_terminal(task.status):
        raise InvalidStateTransition(entity_type=TRAJECTORY.name, from_state=task.status.value, to_state=what)
