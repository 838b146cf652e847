"""State transitions of sessions, trajectories and scopes in a transaction: start, close, complete, fail.

Source: C-202 to C-212, C-436 to C-438.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence

from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model import states
from caliber.model.errors import CircularReference, ConstraintViolation, InvalidStateTransition
from caliber.model.events import EventType
from caliber.model.references import ArtifactId, CheckpointId, EntityRef, EntityType, ScopeId, SessionId, TrajectoryId
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import (
    OutcomeStatus,
    Scope,
    ScopeStatus,
    Session,
    Trajectory,
    TrajectoryOutcome,
    TrajectoryStatus,
    TTLKind,
    Turn,
)
from caliber.model.trust import TrustLabel
from caliber.schema.relations import ARTIFACT, SCOPE, SESSION, TRAJECTORY, TURN
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import triggers
from caliber.trajectory.triggers import Retention

_STATUS_OF_OUTCOME = {
    OutcomeStatus.SUCCESS: TrajectoryStatus.COMPLETED,
    OutcomeStatus.PARTIAL: TrajectoryStatus.COMPLETED,
    OutcomeStatus.FAILURE: TrajectoryStatus.FAILED,
    OutcomeStatus.SYSTEM_ABORT: TrajectoryStatus.FAILED,
}


def status_of(outcome: OutcomeStatus) -> TrajectoryStatus:
    """Return the status a trajectory ends in for an outcome (C-206)."""
    return _STATUS_OF_OUTCOME[outcome]


# --- sessions ------------------------------------------------------------------------------------


def start_session(uow: UnitOfWork, initiator: EntityRef) -> Session:
    """Open a session."""
    now = from_us(uow.now_us)
    session = Session(SessionId(uuid7()), initiator, started_at=now, last_active_at=now)
    uow.insert(SESSION, session)
    return session


def end_session(uow: UnitOfWork, session_id: uuid.UUID) -> tuple[Session, bool]:
    """Close a session and retire records that end with it; ending an ended session changes nothing (C-013).

    Return the session and whether this call ended it.
    """
    session: Session = uow.get(SESSION, session_id.bytes)
    if session.ended_at is not None:
        return session, False
    now = from_us(uow.now_us)
    for artifact in uow.select_path(ARTIFACT, "list_by_session", session_id.bytes):
        if artifact.ttl.kind is TTLKind.SESSION:
            archive(uow, ARTIFACT, artifact)
    ended: Session = uow.update(SESSION, dataclasses.replace(session, ended_at=now, last_active_at=now))
    return ended, True


def end_idle_session(uow: UnitOfWork, trajectory: Trajectory) -> Session | None:
    """End the session of a root trajectory that just became terminal, if it was the last one alive (C-013).

    Return the session that this ended.
    """
    if trajectory.session_id is None or trajectory.parent_trajectory_id is not None:
        return None
    # Of two that end at once, the later one has to see the earlier: neither changes a row that both read.
    uow.serialize(f"session {trajectory.session_id}")
    for other in uow.select_path(TRAJECTORY, "list_by_session", trajectory.session_id.bytes):
        if other.trajectory_id == trajectory.trajectory_id or other.parent_trajectory_id is not None:
            continue
        if not states.TRAJECTORY.is_terminal(other.status):
            return None
    session, ended = end_session(uow, trajectory.session_id)
    return session if ended else None


# --- trajectories --------------------------------------------------------------------------------


def start_trajectory(
    uow: UnitOfWork,
    *,
    goal: str,
    initiator: EntityRef,
    agent_id: uuid.UUID | None,
    parent: uuid.UUID | None,
    session: uuid.UUID | None,
    tags: tuple[str, ...],
    keep_goal: bool,
    max_depth: int | None,
    key: uuid.UUID | None = None,
) -> tuple[Trajectory, Scope]:
    """Open a trajectory and its scope 0; ``key`` is its id, otherwise a new one.

    Raises: NotFound for an unknown parent or session, ConstraintViolation for an ended one or too deep a nesting,
        CircularReference.
    """
    user_id: uuid.UUID | None = None
    if parent is not None:
        above: Trajectory = uow.get(TRAJECTORY, parent.bytes)
        user_id = above.initiator.id if above.initiator.entity_type is EntityType.USER else above.user_id
        if states.TRAJECTORY.is_terminal(above.status):
            raise ConstraintViolation(constraint="parent_active", reason=f"the parent is {above.status.value}")
        depth = _depth(uow, above)
        if max_depth is not None and depth > max_depth:
            raise ConstraintViolation(
                constraint="pcp.context_dag.max_depth",
                reason=f"{depth} ancestors are more than the limit of {max_depth}",
            )
        session = session or above.session_id
    if session is not None:
        owner: Session = uow.get(SESSION, session.bytes)
        if owner.ended_at is not None:
            raise ConstraintViolation(constraint="session_open", reason="the session has ended; start a new one")
        if user_id is None and owner.initiator.entity_type is EntityType.USER:
            user_id = owner.initiator.id
        uow.update(SESSION, dataclasses.replace(owner, last_active_at=from_us(uow.now_us)))
    now = from_us(uow.now_us)
    trajectory = Trajectory(
        trajectory_id=TrajectoryId(key or uuid7()),
        status=TrajectoryStatus.ACTIVE,
        initiator=initiator,
        goal_hash=derived_value(TRAJECTORY, "goal_hash", None, goal=goal),
        created_at=now,
        updated_at=now,
        last_activity_at=now,
        goal=goal if keep_goal else None,
        tags=tags,
        parent_trajectory_id=None if parent is None else TrajectoryId(parent),
        user_id=None if initiator.entity_type is EntityType.USER else user_id,
        agent_id=agent_id,
        session_id=None if session is None else SessionId(session),
    )
    uow.insert(TRAJECTORY, trajectory)
    return trajectory, _insert_scope(uow, trajectory, 0)


def _depth(uow: UnitOfWork, trajectory: Trajectory) -> int:
    seen = [trajectory.trajectory_id]
    while trajectory.parent_trajectory_id is not None:
        if trajectory.parent_trajectory_id in seen:
            raise CircularReference(entity_type="trajectory", ids=[str(item) for item in seen])
        trajectory = uow.get(TRAJECTORY, trajectory.parent_trajectory_id.bytes)
        seen.append(trajectory.trajectory_id)
    return len(seen)


def move_trajectory(uow: UnitOfWork, trajectory_id: uuid.UUID, status: TrajectoryStatus) -> Trajectory:
    """Change a trajectory's status along its state machine. Raises: NotFound, InvalidStateTransition."""
    trajectory: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
    states.TRAJECTORY.check(trajectory.status, status)
    if trajectory.status is status:
        return trajectory
    now = from_us(uow.now_us)
    moved: Trajectory = uow.update(
        TRAJECTORY, dataclasses.replace(trajectory, status=status, updated_at=now, last_activity_at=now)
    )
    return moved


def finish_trajectory(
    uow: UnitOfWork,
    trajectory_id: uuid.UUID,
    *,
    status: OutcomeStatus,
    summary: str,
    notes: Sequence[uuid.UUID],
) -> tuple[Trajectory, Session | None]:
    """Compute the outcome, store it and flip the status; the last step of completing (K-093).

    Return the trajectory, and the session that ended with it.

    Raises: InvalidStateTransition; ConstraintViolation while a scope is still open.
    """
    trajectory: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
    target = status_of(status)
    states.TRAJECTORY.check(trajectory.status, target)
    open_scopes = uow.select_path(SCOPE, "list_open", trajectory_id.bytes)
    if open_scopes:
        raise ConstraintViolation(constraint="scopes_closed", reason=f"{len(open_scopes)} scopes are still open")
    now = from_us(uow.now_us)
    artifacts = uow.select_path(ARTIFACT, "list_by_trajectory", trajectory_id.bytes)
    outcome = TrajectoryOutcome(
        status=status,
        summary=summary,
        artifacts_produced=tuple(
            ArtifactId(artifact.artifact_id) for artifact in artifacts if artifact.rolled_back_at is None
        ),
        notes_generated=tuple(notes),  # type: ignore[arg-type]
        duration_ms=(uow.now_us - to_us(trajectory.created_at)) // 1_000,
        tokens_input=trajectory.tokens_input,
        tokens_output=trajectory.tokens_output,
    )
    done: Trajectory = uow.update(
        TRAJECTORY,
        dataclasses.replace(trajectory, status=target, outcome=outcome, updated_at=now, last_activity_at=now),
    )
    return done, end_idle_session(uow, done)


# --- scopes --------------------------------------------------------------------------------------


def open_scope(uow: UnitOfWork, trajectory_id: uuid.UUID) -> Scope:
    """Open the next scope. Raises: NotFound; InvalidStateTransition when the trajectory is not active (C-210)."""
    trajectory: Trajectory = uow.get(TRAJECTORY, trajectory_id.bytes)
    if trajectory.status is not TrajectoryStatus.ACTIVE:
        raise InvalidStateTransition(
            entity_type="trajectory", from_state=trajectory.status.value, to_state="opening a scope"
        )
    now = from_us(uow.now_us)
    touched: Trajectory = uow.update(TRAJECTORY, dataclasses.replace(trajectory, last_activity_at=now, updated_at=now))
    return _insert_scope(uow, touched, uow.select("scope.next_sequence", trajectory_id.bytes)[0][0])


def _insert_scope(uow: UnitOfWork, trajectory: Trajectory, sequence: int) -> Scope:
    now = from_us(uow.now_us)
    scope = Scope(
        scope_id=ScopeId(uuid7()),
        trajectory_id=trajectory.trajectory_id,
        sequence_number=sequence,
        start_turn=trajectory.turn_count,
        opened_at=now,
        last_activity_at=now,
        trust=TrustLabel.SYSTEM,  # nothing less trusted is in it yet
    )
    uow.insert(SCOPE, scope)
    return scope


def close_scope(
    uow: UnitOfWork,
    scope_id: uuid.UUID,
    *,
    estimator: Estimator,
    summary: str | None = None,
    artifact_ids: Sequence[uuid.UUID] | None = None,
    checkpoint_id: uuid.UUID | None = None,
    turns: Sequence[Turn] | None = None,
) -> Scope:
    """Write the close of an open scope and retire records that end with it.

    ``turns`` are those it had when closing it began, where some of them may be gone by now.

    Raises: NotFound; InvalidStateTransition when it is closed already (K-048).
    """
    scope: Scope = uow.get(SCOPE, scope_id.bytes)
    states.SCOPE.check(ScopeStatus.OPEN if scope.is_open else ScopeStatus.CLOSED, ScopeStatus.CLOSED)
    trajectory: Trajectory = uow.get(TRAJECTORY, scope.trajectory_id.bytes)
    if turns is None:
        turns = uow.select_path(TURN, "list_by_scope", scope_id.bytes)
    now = from_us(uow.now_us)
    # The trajectory before all that belongs to it: a deletion locks in this order too, so no deadlock occurs.
    uow.update(TRAJECTORY, dataclasses.replace(trajectory, last_activity_at=now, updated_at=now))
    for artifact in uow.select_path(ARTIFACT, "list_by_scope", scope_id.bytes):
        if artifact.ttl.kind is TTLKind.SCOPE:
            archive(uow, ARTIFACT, artifact)
    closed: Scope = uow.update(
        SCOPE,
        dataclasses.replace(
            scope,
            closed_at=now,
            last_activity_at=now,
            end_turn=trajectory.turn_count,
            start_turn_id=turns[0].turn_id if turns else scope.start_turn_id,
            end_turn_id=turns[-1].turn_id if turns else scope.end_turn_id,
            summary=summary,
            summary_tokens=derived_value(SCOPE, "summary_tokens", estimator, summary=summary),
            artifact_ids=scope.artifact_ids if artifact_ids is None else tuple(map(ArtifactId, artifact_ids)),
            checkpoint_id=scope.checkpoint_id if checkpoint_id is None else CheckpointId(checkpoint_id),
        ),
    )
    return closed


# --- ended by the program -------------------------------------------------------------------------


def end_without_policies(
    engine: Engine,
    retention: Retention,
    uow: UnitOfWork,
    task: uuid.UUID,
    status: OutcomeStatus,
    summary: str,
    by: str,
    *,
    cancelled: str,
    **payload: object,
) -> int:
    """End a task for which no policy runs, and close its open scopes; return how many these were.

    ``cancelled`` is the reason for which its triggers are cancelled, ``payload`` more fields of the events.
    """
    scopes: list[Scope] = uow.select_path(SCOPE, "list_open", task.bytes)
    for scope in scopes:
        close_left(engine, retention, uow, scope, by, **payload)
    triggers.cancel(engine, uow, "list_by_trajectory", task.bytes, cancelled)
    _, session = finish_trajectory(uow, task, status=status, summary=summary, notes=())
    if session is not None:
        retention.session_ended(uow, session)
    emit(engine, uow, by, EventType.TRAJECTORY_COMPLETE, task, None, **payload, status=status.value)
    return len(scopes)


def close_left(engine: Engine, retention: Retention, uow: UnitOfWork, scope: Scope, by: str, **payload: object) -> None:
    """Close a scope that its task leaves open, without a summary: windows and searches would show a reason as one.

    Raises: as ``close_scope``.
    """
    closed = close_scope(uow, scope.scope_id, estimator=engine.estimator)
    retention.scope_closed(uow, closed)
    emit(engine, uow, by, EventType.SCOPE_CLOSE, closed.trajectory_id, closed, **payload)


def emit(
    engine: Engine,
    uow: UnitOfWork,
    by: str,
    kind: EventType,
    task: uuid.UUID,
    scope: Scope | None = None,
    **payload: object,
) -> None:
    """Emit the event of a step of a task, or of one of its scopes."""
    about = (EntityType.TRAJECTORY, task) if scope is None else (EntityType.SCOPE, scope.scope_id)
    engine.emit(
        uow,
        kind,
        principal=by,
        trajectory_id=task,
        scope_id=None if scope is None else scope.scope_id,
        subject=about,
        payload={"id": str(about[1]), **payload},
    )
