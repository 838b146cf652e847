"""Facet ``memory.agents.delegations``: an agent gives a task to another one, which works on it in a task of its own.

Accepting is one transaction: the agent, the task below the parent, the grants of the shared records. So of agents that
accept at once one wins, and a killed process leaves all of it or nothing.

Source: C-374, C-382, C-400, C-426 to C-429, C-439, C-445, C-446.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import ClassVar

from caliber.access.acting import registered, require_assignable
from caliber.agents.handing.ending import (
    DONE,
    Endings,
    due_us,
    grant_to,
    readable,
    share,
    show_task,
    to_grant,
    unshare,
    watch,
)
from caliber.agents.handing.parties import Parties
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.kernels import uuid7
from caliber.model import arguments, states
from caliber.model.access import Principal
from caliber.model.agents.delegation import Delegation, DelegationId, DelegationResult, DelegationStatus
from caliber.model.agents.registry import Agent
from caliber.model.errors import DelegationFailed, InvalidStateTransition, InvalidValue
from caliber.model.events import EventType
from caliber.model.references import ArtifactId, EntityRef, EntityType, Id, NoteId, TrajectoryId
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import OutcomeStatus, Trajectory, TrajectoryStatus
from caliber.schema.relations import DELEGATION, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import Tasks


class Delegations(Parties[Delegation]):
    """Tasks that agents give to each other, as one principal gives, does and sees them."""

    _relation = DELEGATION
    _agents = ("delegator_agent_id", "delegatee_agent_id")
    _addressed = "delegatee_agent_type"
    _waits = DelegationStatus.PENDING
    _tasks_of = ("parent_trajectory_id", "child_trajectory_id")
    _told: ClassVar = {
        "delegator": "delegator_agent_id",
        "delegatee": "delegatee_agent_id",
        "child": "child_trajectory_id",
    }
    _paths: ClassVar = {
        "task": ("list_by_parent",),
        "agent": ("list_by_delegator", "list_by_delegatee"),
        "taker": ("list_by_delegatee",),
        "status": ("list_by_status",),
        "type": ("list_pending_of_type",),
    }

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks) -> None:
        super().__init__(engine, principal)
        self._tasks = tasks
        self._endings = Endings(engine, tasks.retention, cascade=True)

    # --- giving ----------------------------------------------------------------------------------

    def delegate(
        self,
        task: str,
        *,
        parent: Id,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        artifacts: Iterable[Id] = (),
        notes: Iterable[Id] = (),
        context: str | None = None,
        constraints: Iterable[str] = (),
        deadline: datetime | None = None,
        agent: str | EntityRef | None = None,
    ) -> Delegation:
        """Give a task to an agent, or to the first agent of a type that accepts it, and return the delegation.

        The agent works in a task below ``parent``, and may read the ``artifacts`` and ``notes`` until the delegation
        ends. Unanswered it is rejected after ``delegation_timeout`` or at its ``deadline``, at which accepted work
        fails. ``agent`` is the agent that delegates.

        Raises: InputError kinds; NotRegistered; NotFound for a task or shared record that does not exist or is hidden;
            PermissionDenied for a task that the principal may only read; DelegationFailed for a type that the agent may
            not delegate to, a task that ended, and for itself or an agent that waits for this task already.
        """
        goal, below = arguments.as_text(task, "task"), arguments.as_uuid(parent, "parent")
        addressee = self._addressee(to, to_type)
        shared = self._ids(artifacts, "artifacts"), self._ids(notes, "notes")
        words = None if context is None else arguments.as_text(context, "context")
        rules, ends = self._texts(constraints, "constraints"), arguments.as_instant(deadline, "deadline")
        self._check_length("context", goal, words, *rules)
        self._check_open()
        acting = self._acting(agent, "delegate as")
        self._writes(below)
        readers = self._readers.acting_for(below)

        def work(uow: UnitOfWork) -> Delegation:
            uow.lock(TRAJECTORY, below.bytes)
            above: Trajectory = uow.get(TRAJECTORY, below.bytes)
            me = registered(uow, self._engine.config, acting)
            other = None if addressee.agent is None else require_assignable(uow, addressee.agent.ref)
            self._check_given(uow, me, other, addressee.type, above)
            if ends is not None and to_us(ends) <= uow.now_us:
                raise InvalidValue(field="deadline", reason="is past; a delegation must end later than now")
            readable(uow, readers, *shared)
            now = from_us(uow.now_us)
            made = Delegation(
                delegation_id=DelegationId(uuid7()),
                delegator_agent_id=me.agent_id,
                task_description=goal,
                parent_trajectory_id=TrajectoryId(below),
                status=DelegationStatus.PENDING,
                created_at=now,
                updated_at=now,
                delegatee_agent_id=None if other is None else other.agent_id,
                delegatee_agent_type=addressee.type,
                shared_artifacts=tuple(map(ArtifactId, shared[0])),
                shared_notes=tuple(map(NoteId, shared[1])),
                additional_context=words,
                constraints=rules,
                deadline=ends,
            )
            uow.insert(DELEGATION, made)
            watch(self._engine, uow, made)
            self._logged(uow, EventType.DELEGATION_CREATE, made)
            return made

        return self._engine.write(work)

    def _check_given(
        self, uow: UnitOfWork, me: Agent, other: Agent | None, agent_type: str | None, above: Trajectory
    ) -> None:
        """Raise DelegationFailed where an agent may not delegate to another, or below a task."""
        wanted = agent_type if other is None else other.agent_type
        if other is not None and other.agent_id == me.agent_id:
            raise DelegationFailed(reason="an agent cannot delegate to itself")
        if wanted not in me.can_delegate_to:
            raise DelegationFailed(
                reason="the type of the agent is not in can_delegate_to of the agent that delegates; set it with"
                " memory.agents.register"
            )
        if states.TRAJECTORY.is_terminal(above.status):
            raise DelegationFailed(reason=f"the parent task is {above.status.value}")
        if other is not None:
            self._check_chain(uow, above, other)

    def _check_chain(self, uow: UnitOfWork, above: Trajectory, worker: Agent) -> None:
        """Raise DelegationFailed where the task is a part of one that an agent waits for itself."""
        seen = {above.trajectory_id}
        task: Trajectory | None = above
        while task is not None:
            for each in uow.select_path(DELEGATION, "list_by_child", task.trajectory_id.bytes):
                if each.is_open and worker.agent_id in (each.delegator_agent_id, each.delegatee_agent_id):
                    raise DelegationFailed(reason="the agent works on, or waits for, a task that this one is a part of")
            parent = task.parent_trajectory_id
            task = None if parent is None or parent in seen else uow.find(TRAJECTORY, parent.bytes)
            seen.add(parent)  # type: ignore[arg-type]

    def cancel(self, delegation_id: Id, *, reason: str, agent: str | EntityRef | None = None) -> Delegation:
        """Take back a delegation: its task, and all tasks and delegations below, end as failed with the ``reason``.

        Only the agent that delegated may; the application and an admin may for it, and then need not name it.

        Raises: InputError kinds; NotFound; PermissionDenied; InvalidStateTransition for one that ended.
        """
        key, why = arguments.as_uuid(delegation_id, "delegation_id"), arguments.as_text(reason, "reason")
        self._check_open()
        free = agent is None and self._principal.serves
        acting = None if free else self._acting(agent, "cancel as")

        def work(uow: UnitOfWork) -> Delegation:
            task, _ = self._locked(uow, key, self._may_name)
            if acting is not None and acting.ref.id != task.delegator_agent_id:
                raise self._denied("cancel", key)
            return self._endings.end(uow, task, why, self._principal.label)

        return self._engine.write(work)

    # --- doing -----------------------------------------------------------------------------------

    def accept(self, delegation_id: Id, *, agent: str | EntityRef | None = None) -> Delegation:
        """Accept a delegation: its task begins below the parent, and the shared records become readable.

        Of agents that accept at once one wins. Accepting again changes nothing.

        Raises: InputError kinds; NotFound; NotRegistered; PermissionDenied for an agent that it is not addressed to;
            DelegationFailed where another agent was first, its time is over, the parent task ended, or the agent waits
            for this task itself; ConstraintViolation for nesting beyond ``pcp.context_dag.max_depth``.
        """
        key = arguments.as_uuid(delegation_id, "delegation_id")
        self._check_open()
        self._readers.require_kind(TRAJECTORY)
        acting = self._acting(agent, "accept as")

        def work(uow: UnitOfWork) -> tuple[Delegation, Claim | None]:
            task, above = self._locked(uow, key, self._may_accept)
            me = registered(uow, self._engine.config, acting)
            if task.delegatee_agent_id == me.agent_id and task.is_open and task.accepted_at is not None:
                return task, None
            if task.status is not DelegationStatus.PENDING:
                taken = task.is_open or task.accepted_at is not None
                reason = "another agent accepted it" if taken else f"it is {task.status.value}"
                raise DelegationFailed(reason=reason)
            self._check_addressed(task.delegatee_agent_id, task.delegatee_agent_type, me, key)
            self._check_time(task, uow.now_us)
            if states.TRAJECTORY.is_terminal(above.status):
                raise DelegationFailed(reason=f"the parent task is {above.status.value}")
            if me.agent_id == task.delegator_agent_id:
                raise DelegationFailed(reason="an agent cannot delegate to itself")
            self._check_chain(uow, above, me)
            below, claim = self._tasks.begin(
                uow,
                task.task_description,
                EntityRef(EntityType.AGENT, me.agent_id),
                me.agent_id,
                above.trajectory_id,
            )
            now = from_us(uow.now_us)
            accepted: Delegation = uow.update(
                DELEGATION,
                dataclasses.replace(
                    task,
                    status=DelegationStatus.ACCEPTED,
                    delegatee_agent_id=me.agent_id,
                    child_trajectory_id=below.trajectory_id,
                    accepted_at=now,
                    updated_at=now,
                ),
            )
            by = self._principal.label
            share(self._engine, uow, accepted, me.agent_id, by)
            if below.user_id is not None:  # others are seen by all
                show_task(self._engine, uow, accepted, by)
            watch(self._engine, uow, accepted)
            self._logged(uow, EventType.DELEGATION_ACCEPT, accepted)
            return accepted, claim

        accepted, claim = self._engine.write(work)
        if claim is not None:
            self._tasks.after_commit(claim)
        return accepted

    def start(self, delegation_id: Id, *, agent: str | EntityRef | None = None) -> Delegation:
        """Mark an accepted delegation as being worked on; marking it again changes nothing.

        Raises: InputError kinds; NotFound; PermissionDenied unless the agent accepted it; InvalidStateTransition;
            DelegationFailed after its deadline.
        """
        key = arguments.as_uuid(delegation_id, "delegation_id")
        acting = self._acting_on(agent, "start as")

        def work(uow: UnitOfWork) -> Delegation:
            task = self._worked_on(uow, key, acting, "start")
            states.DELEGATION.check(task.status, DelegationStatus.IN_PROGRESS)
            if task.status is DelegationStatus.IN_PROGRESS:
                return task
            self._check_time(task, uow.now_us)
            now = from_us(uow.now_us)
            changed = dataclasses.replace(task, status=DelegationStatus.IN_PROGRESS, updated_at=now)
            begun: Delegation = uow.update(DELEGATION, changed)
            self._logged(uow, EventType.DELEGATION_START, begun)
            return begun

        return self._engine.write(work)

    def complete(
        self,
        delegation_id: Id,
        *,
        summary: str,
        artifacts: Iterable[Id] = (),
        notes: Iterable[Id] = (),
        status: OutcomeStatus | str = OutcomeStatus.SUCCESS,
        agent: str | EntityRef | None = None,
    ) -> Delegation:
        """Complete a delegation that is in progress, and its task with it; the result comes back to the delegator.

        The delegator may read the produced ``artifacts`` and ``notes`` from then on. ``status`` is success or partial;
        ``fail`` is for a failure. The task and the delegation end in one transaction, or neither does.

        Raises: InputError kinds; NotFound, also for a produced record; PermissionDenied unless the agent accepted it,
            and for a record that it may not grant, such as another author's private note; InvalidStateTransition for
            one that is not in progress; DelegationFailed after its deadline, and where its task ended as failed;
            ConstraintViolation while tasks below are active.
        """
        key = arguments.as_uuid(delegation_id, "delegation_id")
        words = arguments.as_text(summary, "summary", allow_empty=True)
        produced = self._ids(artifacts, "artifacts"), self._ids(notes, "notes")
        self._check_length("summary", words)
        outcome = arguments.as_enum(status, OutcomeStatus, "status")
        if outcome not in DONE:
            raise InvalidValue(field="status", reason="must be success or partial; use fail for a failure")
        acting = self._acting_on(agent, "complete as")
        task, below, _ = self._engine.write(lambda uow: self._may_complete(uow, key, acting, produced))
        result = DelegationResult(outcome, words, tuple(map(ArtifactId, produced[0])), tuple(map(NoteId, produced[1])))

        def work(uow: UnitOfWork) -> None:
            nonlocal task
            current, _, records = self._may_complete(uow, key, acting, produced)
            now = from_us(uow.now_us)
            task = uow.update(
                DELEGATION,
                dataclasses.replace(
                    current, status=DelegationStatus.COMPLETED, result=result, completed_at=now, updated_at=now
                ),
            )
            by = self._principal.label
            unshare(self._engine, uow, task, task.delegatee_agent_id, by)
            for ref in records:
                grant_to(self._engine, uow, task, task.delegator_agent_id, ref, by)
            self._logged(uow, EventType.DELEGATION_COMPLETE, task)

        # One transaction ends both: a cancellation comes before or after.
        self._tasks.complete(below.trajectory_id, status=outcome, summary=words, guard=None, along=work)
        return task

    def _may_complete(
        self, uow: UnitOfWork, key: uuid.UUID, acting: uuid.UUID, produced: tuple[Iterable[uuid.UUID], ...]
    ) -> tuple[Delegation, Trajectory, Sequence[EntityRef]]:
        """Return a delegation that may be completed, its task, and the records to grant. Raises: as ``complete``."""
        task = self._worked_on(uow, key, acting, "complete")
        if task.status is DelegationStatus.COMPLETED:
            raise InvalidStateTransition(
                f"delegation {key} is completed: its task was ended before; complete the delegation instead of its"
                " task, which ends both, to name what was produced",
                entity_type=DELEGATION.name,
                from_state=task.status.value,
                to_state=task.status.value,
            )
        states.DELEGATION.check(task.status, DelegationStatus.COMPLETED)
        self._check_time(task, uow.now_us)
        below = None
        if task.child_trajectory_id is not None:
            below = uow.find(TRAJECTORY, task.child_trajectory_id.bytes)
        if below is None:
            raise DelegationFailed(reason="its task was deleted; call fail")
        if below.status is TrajectoryStatus.FAILED:
            raise DelegationFailed(reason="its task ended as failed; call fail")
        records = readable(uow, self._readers.acting_for(below.trajectory_id), *produced)
        return task, below, to_grant(self._engine, self._principal, self._readers, task, records)

    def reject(self, delegation_id: Id, *, reason: str, agent: str | EntityRef | None = None) -> Delegation:
        """Decline a pending delegation that names the agent, for a ``reason``.

        One that is addressed to a type waits for the others of the type: leave it.

        Raises: InputError kinds; NotFound; PermissionDenied; InvalidStateTransition for one that was accepted or ended.
        """
        return self._given_up(delegation_id, reason, agent, "reject", DelegationStatus.REJECTED)

    def fail(self, delegation_id: Id, *, reason: str, agent: str | EntityRef | None = None) -> Delegation:
        """Give up an accepted delegation for a ``reason``: its task, and all below it, end as failed.

        Raises: InputError kinds; NotFound; PermissionDenied unless the agent accepted it; InvalidStateTransition.
        """
        return self._given_up(delegation_id, reason, agent, "fail", DelegationStatus.FAILED)

    def _given_up(
        self, delegation_id: Id, reason: str, agent: str | EntityRef | None, action: str, status: DelegationStatus
    ) -> Delegation:
        key, why = arguments.as_uuid(delegation_id, "delegation_id"), arguments.as_text(reason, "reason")
        acting = self._acting_on(agent, f"{action} as")

        def work(uow: UnitOfWork) -> Delegation:
            task = self._worked_on(uow, key, acting, action)
            states.DELEGATION.check(task.status, status)
            return self._endings.end(uow, task, why, self._principal.label)

        return self._engine.write(work)

    # --- seeing ----------------------------------------------------------------------------------

    def get(self, delegation_id: Id, *, user: str | EntityRef | None = None) -> Delegation:
        """Return a delegation.

        ``user`` is whom the call is for, as in ``list``.

        Raises: InputError kinds; NotFound for one that does not exist or is hidden; PermissionDenied for another user.
        """
        return self._seen(arguments.as_uuid(delegation_id, "delegation_id"), user)

    # --- checks ----------------------------------------------------------------------------------

    def _worked_on(self, uow: UnitOfWork, key: uuid.UUID, acting: uuid.UUID, action: str) -> Delegation:
        """Return a delegation, locked with its task, that names an agent. Raises: NotFound, PermissionDenied."""
        task: Delegation = self._locked(uow, key, self._may_name)[0]
        if task.delegatee_agent_id != acting:
            raise self._denied(action, key)
        return task

    def _check_time(self, task: Delegation, now_us: int) -> None:
        due = due_us(task, self._engine.config.delegation_timeout)
        if due is not None and due <= now_us:
            raise DelegationFailed(reason="its time is over")
