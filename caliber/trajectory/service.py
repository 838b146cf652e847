"""Service of tasks: start, close, complete and consolidate, with their policies, events and checkpoints.

Source: C §4.2, K-043 to K-049, K-093.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from caliber.access.identities import keeping
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.embedding.embedding_target import attach
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, erasures
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.queue import JobQueue
from caliber.model import states
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.declared import Trigger
from caliber.model.errors import (
    CaliberError,
    Conflict,
    ConstraintViolation,
    InvalidStateTransition,
    NotFound,
    Unavailable,
)
from caliber.model.events import EventType
from caliber.model.knowledge import Note
from caliber.model.pcp import RecoveryFrequency
from caliber.model.references import EntityRef, ScopeId, TrajectoryId
from caliber.model.trajectory import OutcomeStatus, Scope, Trajectory, TrajectoryOutcome, TrajectoryStatus, Turn
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relations import SCOPE, TRAJECTORY, TURN
from caliber.search.opening import SearchEngine
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle, triggers
from caliber.trajectory.triggers import SCOPE_CLOSED, WAITING, Policies, Retention, Subject

T = TypeVar("T")

CHECKPOINT_JOB: Final = "checkpoint"
"""The kind of the jobs that checkpoint a task after a turn."""


class Tasks:
    """The lifecycle of trajectories and scopes for one principal."""

    def __init__(self, engine: Engine, principal: Principal, policies: Policies, retention: Retention) -> None:
        self._engine = engine
        self._principal = principal
        self._search = engine.part(SearchEngine)
        self._jobs = engine.part(JobQueue)
        self._frequency = engine.config.pcp.recovery_points.frequency
        self.policies = policies
        self.retention = retention

    # --- reading the inputs ---------------------------------------------------------------------

    def _snapshot(self) -> ResidentSnapshot:
        # Prepared results are checked again inside the transaction; starting from the newest boundary saves a second
        # round.
        return self._engine.snapshot("latest")

    def _erased(self, trigger: Trigger) -> int | None:
        """Return the number of erasures so far, where actions of a trigger will derive data from what is read."""
        checkpoints = trigger is Trigger.SCOPE_CLOSE and self._frequency is RecoveryFrequency.PER_SCOPE
        return erasures(self._engine) if checkpoints or self.policies.actions(trigger) else None

    def find(self, snapshot: ResidentSnapshot, relation: str, record_id: uuid.UUID) -> object:
        """Return an entity of one relation. Raises: NotFound."""
        row = snapshot[relation].find(record_id.bytes)
        if row < 0:
            raise NotFound(entity_type=relation, id=record_id)
        return self._engine.memory.entity(snapshot[relation], row)

    def scopes_of(self, snapshot: ResidentSnapshot, trajectory_id: uuid.UUID) -> list[Scope]:
        """Return a trajectory's scopes in their order."""
        scopes = snapshot["scope"]
        rows = scopes.group("trajectory_id", trajectory_id.bytes).tolist()
        found: list[Scope] = [self._engine.memory.entity(scopes, row) for row in rows]
        return sorted(found, key=lambda scope: scope.sequence_number)

    def turns_of(self, snapshot: ResidentSnapshot, scope_id: uuid.UUID) -> list[Turn]:
        """Return a scope's turns in their order."""
        turns = snapshot["turn"]
        rows = turns.group("scope_id", scope_id.bytes).tolist()
        found: list[Turn] = self._engine.memory.entities(turns, rows)
        return sorted(found, key=lambda turn: turn.sequence)

    def current_scope(self, snapshot: ResidentSnapshot, trajectory_id: uuid.UUID) -> Scope | None:
        """Return the open scope with the highest sequence number (C-472)."""
        self.find(snapshot, "trajectory", trajectory_id)
        return max(
            (scope for scope in self.scopes_of(snapshot, trajectory_id) if scope.is_open),
            key=lambda scope: scope.sequence_number,
            default=None,
        )

    def subject(
        self,
        snapshot: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        scope: Scope | None,
        *,
        all_turns: bool,
        erased: int | None = None,
    ) -> Subject:
        """Return the records that a trigger's actions work on; ``erased`` was read before the snapshot."""
        scope_ids = None if all_turns else [] if scope is None else [scope.scope_id]
        if scope_ids is None:
            scope_ids = [each.scope_id for each in self.scopes_of(snapshot, trajectory_id)]
        snapshot = self._search.around(snapshot, trajectory_id, scope_ids)
        trajectory = self.find(snapshot, "trajectory", trajectory_id)
        assert isinstance(trajectory, Trajectory)
        scopes = self.scopes_of(snapshot, trajectory_id)
        if all_turns:
            turns = [turn for each in scopes for turn in self.turns_of(snapshot, each.scope_id)]
        else:
            turns = [] if scope is None else self.turns_of(snapshot, scope.scope_id)
        return Subject(trajectory, scopes, scope, turns, snapshot, erased=erased)

    def retry(self, attempt: Callable[[], T]) -> T:
        """Repeat ``attempt`` while its prepared results are stale."""
        for _ in range(self._engine.config.storage.serialization_retries):
            try:
                return attempt()
            except StaleInputs:
                continue
        try:
            return attempt()
        except StaleInputs as error:
            raise Conflict(error.message, retryable=True, **error.context) from error

    # --- starting --------------------------------------------------------------------------------

    def start(
        self,
        goal: str,
        *,
        initiator: EntityRef,
        agent_id: uuid.UUID | None,
        parent: uuid.UUID | None,
        session: uuid.UUID | None,
        tags: tuple[str, ...],
        key: uuid.UUID | None = None,
        known: Callable[[Trajectory], bool] | None = None,
    ) -> Trajectory:
        """Open a trajectory with scope 0 and run the task_start policies.

        ``key`` is its id. A trajectory that has it already is returned if ``known`` says so.

        Raises: Conflict for one that is not.
        """
        who = keeping(self._engine, initiator)

        def work(uow: UnitOfWork) -> tuple[Trajectory, Claim | None]:
            if key is not None:
                uow.serialize(f"trajectory {key}")
                held = uow.find(TRAJECTORY, key.bytes)
                if held is not None and known is not None and known(held):
                    return held, None
                if held is not None:
                    reason = "a task has this key; exist_ok=True goes on with one of its user that you may write to"
                    raise Conflict(entity_type="trajectory", id=key, reason=reason)
            return self.begin(uow, goal, who(uow), agent_id, parent, session, tags, key)

        trajectory, claim = self._engine.write(work)
        if claim is not None:
            self.after_commit(claim)
        return trajectory

    def begin(
        self, uow: UnitOfWork, goal: str, initiator: EntityRef, agent_id: uuid.UUID | None, parent: uuid.UUID | None,
        session: uuid.UUID | None = None, tags: tuple[str, ...] = (), key: uuid.UUID | None = None,
    ) -> tuple[Trajectory, Claim | None]:  # fmt: skip
        """Open a trajectory with scope 0 in a transaction; the claim, if any, is for ``after_commit``."""
        dag = self._engine.config.pcp.context_dag
        keep_goal, depth = self._engine.config.trajectory.store_goal_text, dag.max_depth if dag.enabled else None
        trajectory, scope = lifecycle.start_trajectory(
            uow, goal=goal, initiator=initiator, agent_id=agent_id, parent=parent, session=session, tags=tags,
            keep_goal=keep_goal, max_depth=depth, key=key,
        )  # fmt: skip
        self._emit(uow, EventType.TRAJECTORY_START, trajectory.trajectory_id)
        self._emit(uow, EventType.SCOPE_OPEN, trajectory.trajectory_id, scope)
        return trajectory, self._enqueue(uow, Trigger.TASK_START, trajectory.trajectory_id)

    def _emit(
        self, uow: UnitOfWork, kind: EventType, trajectory_id: uuid.UUID, scope: Scope | None = None, **payload: object
    ) -> None:
        lifecycle.emit(self._engine, uow, self._principal.label, kind, trajectory_id, scope, **payload)

    def _enqueue(
        self, uow: UnitOfWork, trigger: Trigger, trajectory_id: TrajectoryId, scope_id: ScopeId | None = None
    ) -> Claim | None:
        """Add the job of a trigger's policies to this transaction; nothing is written where there are none."""
        if not self.policies.actions(trigger):
            return None
        return triggers.enqueue(self._engine, uow, trigger, trajectory_id, scope_id, self._principal)

    def after_commit(self, claim: Claim) -> None:
        """Run a trigger's policies right after the commit that caused it.

        When the store stops them for longer, the job is left to the process that finds it when its lease is over.
        """
        self._work(f"policies on {triggers.trigger_of(claim.job).value}", claim, self.run_trigger)

    def _work(self, what: str, claim: Claim, run: Callable[[Claim], object]) -> None:
        def work() -> None:
            with claim.working(), contextlib.suppress(Superseded):
                self._after(what, lambda: run(claim))

        self._engine.after_commit(work)

    def run_trigger(self, claim: Claim) -> int:
        """Run a trigger's policies in a transaction that ends the job; return the number of actions done.

        Raises: Superseded, Conflict, Unavailable, and what stopped an action.
        """
        return self.retry(lambda: self._run(claim))

    def _run(self, claim: Claim) -> int:
        """Run a trigger's policies on the present records, in its scope or the current one. Raises: Superseded.

        There may be no open scope any more; then derived records go to the last one, as when the task ends.
        """
        trigger, trajectory_id = triggers.trigger_of(claim.job), claim.job.trajectory_id
        assert trajectory_id is not None  # a trigger is of a task
        erased, snapshot = self._erased(trigger), self._snapshot()
        scopes = self.scopes_of(snapshot, trajectory_id)
        named = next((scope for scope in scopes if scope.scope_id == claim.job.scope_id), None)
        scope = named or self.current_scope(snapshot, trajectory_id) or next(reversed(scopes), None)
        subject = self.subject(snapshot, trajectory_id, scope, all_turns=False, erased=erased)
        prepared = self.policies.prepare(trigger, subject, claim)
        self.policies.write(prepared, subject, lambda uow: self.policies.apply(uow, subject, prepared))
        return sum(step.error is None for step in prepared.steps)

    def _after(self, what: str, task: Callable[[], object]) -> None:
        """Run the steps after a committed write: their errors must not make the call fail, as if nothing had been
        written.

        An outage of the store is retried once; providers have been retried already.
        """
        erased = self._engine.memory.erasures
        try:
            try:
                task()
            except (Conflict, Unavailable) as error:
                if not error.retryable:
                    raise
                task()
        except CaliberError as error:
            self._engine.record_error(what, error, erased)

    def appended(self, uow: UnitOfWork, trajectory_id: TrajectoryId, scope_id: ScopeId) -> list[Callable[[], None]]:
        """Add the jobs of a turn to the transaction that appends: its policies, and a checkpoint if each turn has one.

        Return the work to do right after the commit, by ``after_append`` (C-235, C-253).
        """
        policies = self._enqueue(uow, Trigger.TURN, trajectory_id, scope_id)
        deferred: list[Callable[[], None]] = (
            [] if policies is None else [functools.partial(self.after_commit, policies)]
        )
        if self._frequency is RecoveryFrequency.PER_TURN:
            checkpoint = self._jobs.enqueue_claimed(
                uow, CHECKPOINT_JOB, principal=self._principal, trajectory_id=trajectory_id, scope_id=scope_id
            )
            deferred.append(functools.partial(self._work, "the checkpoint of a turn", checkpoint, self.run_checkpoint))
        return deferred

    def after_append(self, deferred: Sequence[Callable[[], None]]) -> None:
        """Do the jobs of a turn, right after its commit."""
        for work in deferred:
            self._engine.after_commit(work)

    def run_checkpoint(self, claim: Claim) -> int:
        """Store a checkpoint of a task as it is now, in the transaction that ends the job; return 1.

        A task that has ended since needs none. Raises: Superseded, Conflict, Unavailable.
        """
        trajectory_id = claim.job.trajectory_id
        assert trajectory_id is not None  # a checkpoint is of a task
        snapshot = self._snapshot()
        scope = self.current_scope(snapshot, trajectory_id)
        subject = self.subject(snapshot, trajectory_id, scope, all_turns=False)
        needed = not states.TRAJECTORY.is_terminal(subject.trajectory.status)
        state = self.policies.prepare_checkpoint(subject) if needed else None

        def work(uow: UnitOfWork) -> None:
            claim.ack(uow)
            if state is not None:
                self.policies.apply_checkpoint(uow, subject, state)

        self._engine.write(work)
        return 1

    # --- scopes ----------------------------------------------------------------------------------

    def open_scope(self, trajectory_id: uuid.UUID) -> Scope:
        """Open the next scope."""

        def work(uow: UnitOfWork) -> Scope:
            scope = lifecycle.open_scope(uow, trajectory_id)
            self._emit(uow, EventType.SCOPE_OPEN, trajectory_id, scope)
            return scope

        return self._engine.write(work)

    def close_scope(self, scope_id: uuid.UUID, guard: LockToken | None) -> Scope:
        """Close a scope: prepare the policies' results, then one short transaction (C-212 to C-216).

        Closing a closed scope returns it as it is.
        """

        def attempt() -> Scope:
            erased, snapshot = self._erased(Trigger.SCOPE_CLOSE), self._snapshot()
            scope = self.find(snapshot, "scope", scope_id)
            assert isinstance(scope, Scope)
            if not scope.is_open:
                return scope
            subject = self.subject(snapshot, scope.trajectory_id, scope, all_turns=False, erased=erased)
            prepared = self.policies.prepare(Trigger.SCOPE_CLOSE, subject)
            if not prepared.has_checkpoint and self._frequency is RecoveryFrequency.PER_SCOPE:
                prepared.checkpoint = self.policies.prepare_checkpoint(subject)
            return self.policies.write(prepared, subject, lambda uow: self._close(uow, subject, prepared, guard))

        return self.retry(attempt)

    def _close(self, uow: UnitOfWork, subject: Subject, prepared: Any, guard: LockToken | None) -> Scope:
        uow.guard(guard, self._principal)
        assert subject.scope is not None
        current: Scope = uow.get(SCOPE, subject.scope.scope_id.bytes)
        if not current.is_open:
            return current
        _check_turns(current, subject.scope)
        # Derived records are as trusted as their turns, even if those are removed by the end of this.
        turns: list[Turn] = uow.select_path(TURN, "list_by_scope", current.scope_id.bytes)
        applied = self.policies.apply(uow, subject, prepared)
        summarized = prepared.summarized
        summary = None if summarized is None else summarized.summary
        try:
            closed = lifecycle.close_scope(
                uow,
                current.scope_id,
                summary=summary,
                estimator=self._engine.estimator,
                artifact_ids=[artifact.artifact_id for artifact in applied.artifacts],
                checkpoint_id=applied.checkpoint_id,
                turns=turns,
            )
        except InvalidStateTransition as error:  # since the check above; nothing of this stays
            raise StaleInputs(entity_type="scope", id=current.scope_id, reason="somebody else closed it") from error
        if self.policies.actions(Trigger.TURN):
            triggers.cancel(self._engine, uow, "list_by_scope", closed.scope_id.bytes, SCOPE_CLOSED)
        _check_turns(closed, subject.scope)  # as it was when it was written: writers may not wait for each other
        vector = None if summarized is None else summarized.summary_vector
        if summary is not None:
            attach(uow, "scope", closed.scope_id, summary, vector)
        self.retention.scope_closed(uow, closed)
        counts = {"pruned": applied.pruned, "artifacts": len(applied.artifacts)}
        self._emit(uow, EventType.SCOPE_CLOSE, closed.trajectory_id, closed, **counts)
        return closed

    # --- ending ----------------------------------------------------------------------------------

    def complete(
        self,
        trajectory_id: uuid.UUID,
        *,
        status: OutcomeStatus,
        summary: str,
        guard: LockToken | None,
        along: Callable[[UnitOfWork], None] | None = None,
    ) -> TrajectoryOutcome:
        """Close open scopes, run the task_end policies, store the outcome and change the status last (K-093).

        If interrupted half way it stays active; completing it again continues there. ``along`` writes with the change.
        """
        cascade = self._engine.config.trajectory.children_on_complete == "cascade_fail"

        def attempt() -> TrajectoryOutcome:
            snapshot = self._snapshot()
            trajectory = self.find(snapshot, "trajectory", trajectory_id)
            assert isinstance(trajectory, Trajectory)
            states.TRAJECTORY.check(trajectory.status, lifecycle.status_of(status))
            self._settle_children(snapshot, trajectory)
            for scope in self.scopes_of(snapshot, trajectory_id):
                if scope.is_open:
                    self.close_scope(scope.scope_id, guard)
            erased, now = self._erased(Trigger.TASK_END), self._snapshot()
            scopes = self.scopes_of(now, trajectory_id)
            last = scopes[-1] if scopes else None
            subject = dataclasses.replace(
                self.subject(now, trajectory_id, last, all_turns=True, erased=erased),
                outcome=status,
                outcome_summary=summary,
            )
            prepared = self.policies.prepare(Trigger.TASK_END, subject)

            def work(uow: UnitOfWork) -> TrajectoryOutcome:
                uow.guard(guard, self._principal)
                if along is not None:
                    along(uow)
                self.retention.task_ends(uow, trajectory_id, status, summary, self._principal.label)
                current: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
                states.TRAJECTORY.check(current.status, lifecycle.status_of(status))
                if uow.select_path(SCOPE, "list_open", trajectory_id.bytes):
                    raise StaleInputs(
                        entity_type="trajectory", id=trajectory_id, reason="a scope was opened while it was completing"
                    )
                children = uow.select_path(TRAJECTORY, "list_children", trajectory_id.bytes)
                if any(not states.TRAJECTORY.is_terminal(child.status) for child in children):
                    raise StaleInputs(
                        entity_type="trajectory", id=trajectory_id, reason="a sub-trajectory was started meanwhile"
                    )
                if any(self.policies.actions(trigger) for trigger in WAITING):
                    triggers.cancel(self._engine, uow, "list_by_trajectory", trajectory_id.bytes, "the task ended")
                notes = self.policies.apply(uow, subject, prepared).notes
                done, session = lifecycle.finish_trajectory(
                    uow, trajectory_id, status=status, summary=summary, notes=[note.note_id for note in notes]
                )
                if session is not None:
                    self.retention.session_ended(uow, session)
                self.retention.task_ended(uow, trajectory_id, self._principal.label, cascade=cascade)
                self._emit(uow, EventType.TRAJECTORY_COMPLETE, trajectory_id, None, status=status.value)
                assert done.outcome is not None
                return done.outcome

            return self.policies.write(prepared, subject, work)

        return self.retry(attempt)

    def _settle_children(self, snapshot: ResidentSnapshot, trajectory: Trajectory) -> None:
        trajectories = snapshot["trajectory"]
        rows = trajectories.group("parent_trajectory_id", trajectory.trajectory_id.bytes).tolist()
        children: list[Trajectory] = [self._engine.memory.entity(trajectories, row) for row in rows]
        alive = [child for child in children if not states.TRAJECTORY.is_terminal(child.status)]
        if not alive:
            return
        # A hidden task goes on alone: neither its being there nor its end is up to who does not see it.
        readers = Readers(self._engine.part(TaskOwners), self._principal)
        own = [child for child in alive if readers.allows_change(TRAJECTORY, child)]
        rule = self._engine.config.trajectory.children_on_complete
        if rule == "reject" and own:
            raise ConstraintViolation(
                constraint="children_ended",
                reason=f"{len(own)} sub-trajectories are still active; complete them first",
            )
        for child in alive:
            if rule == "cascade_fail" and child in own and readers.writes_task(child.trajectory_id.bytes):
                self.complete(
                    child.trajectory_id,
                    status=OutcomeStatus.FAILURE,
                    summary="the parent trajectory was completed",
                    guard=None,
                )
            else:
                self._detach(child.trajectory_id)

    def _detach(self, trajectory_id: uuid.UUID) -> None:
        def work(uow: UnitOfWork) -> None:
            child: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
            uow.update(TRAJECTORY, dataclasses.replace(child, parent_trajectory_id=None))

        self._engine.write(work)

    def move(self, trajectory_id: uuid.UUID, status: TrajectoryStatus) -> Trajectory:
        """Suspend or resume."""

        def work(uow: UnitOfWork) -> Trajectory:
            moved = lifecycle.move_trajectory(uow, trajectory_id, status)
            suspended = status is TrajectoryStatus.SUSPENDED
            kind = EventType.TRAJECTORY_SUSPEND if suspended else EventType.TRAJECTORY_RESUME
            self._emit(uow, kind, trajectory_id)
            return moved

        return self._engine.write(work)

    def consolidate(self, trajectory_id: uuid.UUID) -> list[Note]:
        """Draw notes from a trajectory and merge them into existing ones (C-233)."""

        def attempt() -> list[Note]:
            erased, snapshot = erasures(self._engine), self._snapshot()
            scopes = self.scopes_of(snapshot, trajectory_id)
            subject = self.subject(snapshot, trajectory_id, scopes[-1] if scopes else None, all_turns=True)
            outcome = subject.trajectory.outcome
            subject = dataclasses.replace(subject, outcome_summary=None if outcome is None else outcome.summary)
            prepared = self.policies.prepare_notes(subject)

            def work(uow: UnitOfWork) -> list[Note]:
                check_erasures(uow, erased)
                return self.policies.apply_notes(uow, subject, prepared, {})

            return self._engine.write(work)

        return self.retry(attempt)


def _check_turns(now: Scope, prepared: Scope) -> None:
    """Refuse to close a scope that has other turns than those it was prepared with. Raises: StaleInputs."""
    if now.turn_count != prepared.turn_count:
        raise StaleInputs(entity_type="scope", id=now.scope_id, reason="turns were appended while it was closing")
