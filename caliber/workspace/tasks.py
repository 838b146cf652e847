"""Tasks of the workspace: created, claimed by one agent, assigned, completed or cancelled, and what they wait for.

A claim locks the task's row, so that of two agents one gets it. What a task waits for and belongs to is changed by one
transaction at a time, so that two writers cannot close a circle between them. Source: P-042, P-043, P-063, P-064.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from types import EllipsisType
from typing import Any, Final

from caliber.access.owners import author_of
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments, states
from caliber.model.access import Principal, PrincipalKind
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue, NotFound
from caliber.model.ids import Id, TaskId
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.model.workspace import TaskDependency, WorkKind, WorkPriority, WorkspaceTask, WorkStatus
from caliber.schema.relations import TASK, TASK_DEPENDENCY
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.agents import AgentDirectory
from caliber.workspace.dependencies import awaited_by, begun, check_acyclic, check_ready, given, parent_of, taken, waits
from caliber.workspace.giving_back import emit_task
from caliber.workspace.records import SharedRecords

_LINKS: Final = "caliber:workspace:task-links"
"""Serializes changes of what tasks wait for and belong to."""
_URGENT_FIRST: Final = tuple(reversed(WorkPriority))

Change = Callable[[UnitOfWork, WorkspaceTask], WorkspaceTask]


class WorkspaceTasks:
    """The tasks that one principal sees, adds and works on. An agent's own run is a trajectory, not a task."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching, agents: AgentDirectory) -> None:
        self._engine = engine
        self._principal = principal
        self._agents = agents
        self._records = SharedRecords(engine, principal, searching, TASK)

    # --- adding and changing ---------------------------------------------------------------------

    def add(
        self,
        title: str,
        *,
        description: str = "",
        kind: WorkKind | str | None = None,
        priority: WorkPriority | str = WorkPriority.MEDIUM,
        due_at: datetime | None = None,
        scheduled_at: datetime | None = None,
        parent: Id | None = None,
        depends_on: Sequence[Id] = (),
        user: str | EntityRef | None = None,
        visible_to: Sequence[str] | None = None,
    ) -> WorkspaceTask:
        """Add a pending task that no agent is assigned to, and return it.

        A task for ``user``, or of a user, has the ``kind`` user, and is seen by that user and the agent that does it;
        other tasks are shared work of the agents, of kind coordination, and seen by everybody, or by ``visible_to``. It
        is ready once each task that it ``depends_on`` is completed.

        Raises: InputError kinds; NotFound for a parent or a task to wait for that is hidden or does not exist;
            PermissionDenied for another user.
        """
        user_id, readers = self._records.placed(user, visible_to)
        of_user = WorkKind.COORDINATION if user_id is None else WorkKind.USER
        if kind is not None and arguments.as_enum(kind, WorkKind, "kind") is not of_user:
            needs = "needs user" if user_id is None else "is user: the task is for a user"
            raise InvalidValue(field="kind", reason=needs)
        above = None if parent is None else arguments.as_uuid(parent, "parent")
        awaited = tuple(dict.fromkeys(arguments.as_uuids(depends_on, "depends_on")))
        now = from_us(self._engine.clock.now_us())
        made = WorkspaceTask(
            task_id=TaskId(uuid7()),
            title=arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS),
            description=arguments.as_text(description, "description", allow_empty=True),
            kind=of_user,
            status=WorkStatus.PENDING,
            priority=arguments.as_enum(priority, WorkPriority, "priority"),
            created_at=now,
            updated_at=now,
            due_at=arguments.as_instant(due_at, "due_at"),
            scheduled_at=arguments.as_instant(scheduled_at, "scheduled_at"),
            parent_task_id=None if above is None else TaskId(above),
            user_id=user_id,
            visible_to=readers,
            created_by=author_of(self._principal),
        )
        seen, embeddings = self._records.readers_for(user), self._engine.part(Embeddings)

        def work(uow: UnitOfWork) -> WorkspaceTask:
            at = from_us(uow.now_us)
            task = dataclasses.replace(made, created_at=at, updated_at=at)
            others = {*awaited} if above is None else {*awaited, above}
            for other in sorted(others, key=lambda each: each.bytes):  # in one order, as by every writer
                self._records.found(uow, other, seen)  # a new task closes no circle
            uow.insert(TASK, task)
            embeddings.attach(uow, TASK.name, task.task_id, task.title, vectors)
            for other in awaited:
                uow.insert_new(TASK_DEPENDENCY, TaskDependency(task.task_id, TaskId(other), at))
            emit_task(self._engine, uow, task, "add", self._principal.label)
            return task

        vectors = embeddings.vector(TASK.name, made.title)
        return self._engine.write(work)

    def update(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        title: str | EllipsisType = ...,
        description: str | EllipsisType = ...,
        priority: WorkPriority | str | EllipsisType = ...,
        due_at: datetime | EllipsisType | None = ...,
        scheduled_at: datetime | EllipsisType | None = ...,
        parent: Id | EllipsisType | None = ...,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """Change a task, and return it as stored; fields that are left out stay, None clears one.

        Raises: InputError kinds; NotFound; PermissionDenied unless it is the principal's own, or one that it is
            assigned to; CircularReference for a ``parent`` that belongs to the task; Conflict when ``version`` is no
            longer that of the task.
        """
        fields: dict[str, Any] = {}
        if not isinstance(title, EllipsisType):
            fields["title"] = arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS)
        if not isinstance(description, EllipsisType):
            fields["description"] = arguments.as_text(description, "description", allow_empty=True)
        if not isinstance(priority, EllipsisType):
            fields["priority"] = arguments.as_enum(priority, WorkPriority, "priority")
        if not isinstance(due_at, EllipsisType):
            fields["due_at"] = arguments.as_instant(due_at, "due_at")
        if not isinstance(scheduled_at, EllipsisType):
            fields["scheduled_at"] = arguments.as_instant(scheduled_at, "scheduled_at")
        above = None if isinstance(parent, EllipsisType) or parent is None else arguments.as_uuid(parent, "parent")
        moves = not isinstance(parent, EllipsisType)
        if moves:
            fields["parent_task_id"] = above
        readers = self._records.readers_for(user)

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            if above is not None:
                self._records.found(uow, above, readers)
                check_acyclic(uow, task.task_id, above, parent_of)
            return dataclasses.replace(task, **fields)

        return self._change(id, user, version, "update", change, links=moves, title=fields.get("title"))

    # --- working on it ---------------------------------------------------------------------------

    def claim(
        self,
        id: Id | None = None,  # noqa: A002  (as ``Caliber.get``)
        *,
        agent: str | EntityRef | None = None,
        user: str | EntityRef | None = None,
    ) -> WorkspaceTask | None:
        """Take an unassigned task for an agent, and begin it; of several agents that try, one gets it.

        Without ``id`` it is the most urgent of the tasks that are ready and seen, the oldest first; None if there is
        none. The handle's own agent claims; the application names it in ``agent``.

        Raises: InputError kinds; NotFound; PermissionDenied for another agent; Conflict for a task that was claimed;
            ConstraintViolation for one that is not ready; InvalidStateTransition for one that has ended;
            NotRegistered.
        """
        acting = self._agents.acting(agent)
        readers = self._records.readers_for(user)
        wanted = None if id is None else arguments.as_uuid(id, "id")

        def take(uow: UnitOfWork, key: uuid.UUID) -> WorkspaceTask:
            task: WorkspaceTask = self._records.found(uow, key, readers)
            if task.assigned_to is not None:
                raise Conflict(entity_type=TASK.name, id=key, reason="an agent has it already", retryable=False)
            states.WORKSPACE_TASK.check(task.status, WorkStatus.IN_PROGRESS)
            check_ready(uow, task)
            self._agents.require(uow, acting)
            return self._stored(uow, begun(given(task, acting.ref)), "claim")

        if wanted is not None:
            return self._engine.write(lambda uow: take(uow, wanted))
        for priority in _URGENT_FIRST:
            for task in self._records.visible("list_by_status", (WorkStatus.PENDING.value, priority.value), readers):
                if task.assigned_to is None and self._is_due(task):
                    try:
                        return self._engine.write(functools.partial(take, key=task.task_id))
                    except (Conflict, ConstraintViolation, NotFound):
                        continue  # another agent was quicker, or it is not ready
        return None

    def assign(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        agent: str | EntityRef | None,
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """Assign a task to an agent, another one than before too; None takes it from its agent. It is pending then.

        Raises: InputError kinds; NotFound; NotRegistered; PermissionDenied unless the task is the principal's own, or
            one that it is assigned to; InvalidStateTransition for a task that has ended; Conflict.
        """
        named = None if agent is None else self._agents.named(agent)

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            if not task.is_open:
                states.WORKSPACE_TASK.check(task.status, WorkStatus.IN_PROGRESS)
            if named is None:
                return dataclasses.replace(taken(task), status=WorkStatus.PENDING)
            if task.assigned_to == named.ref.id:
                return task
            self._agents.require_assignable(uow, named)
            return dataclasses.replace(given(task, named.ref), status=WorkStatus.PENDING)

        return self._change(id, user, version, "assign", change)

    def start(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """Begin a task that is assigned, or a user's own.

        Raises: as ``assign``; ConstraintViolation for a task that is not ready.
        """

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            if task.assigned_to is None and task.kind is WorkKind.COORDINATION:
                reason = "nobody is assigned to it: claim it, or assign it to an agent"
                raise ConstraintViolation(constraint="task_assigned", reason=reason)
            states.WORKSPACE_TASK.check(task.status, WorkStatus.IN_PROGRESS)
            check_ready(uow, task)
            return begun(task)

        return self._change(id, user, version, "start", change)

    def complete(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """Note that a task is done: those that wait for it alone are ready then. Raises: as ``start``."""

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            states.WORKSPACE_TASK.check(task.status, WorkStatus.COMPLETED)
            check_ready(uow, task)
            return dataclasses.replace(task, status=WorkStatus.COMPLETED, completed_at=from_us(uow.now_us))

        return self._change(id, user, version, "complete", change)

    def cancel(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """End a task that need not be done; those that wait for it stay waiting. Raises: as ``assign``."""

        def change(_: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            states.WORKSPACE_TASK.check(task.status, WorkStatus.CANCELLED)
            return dataclasses.replace(task, status=WorkStatus.CANCELLED)

        return self._change(id, user, version, "cancel", change)

    def reopen(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> WorkspaceTask:
        """Let a task that was completed or cancelled be pending again, without an agent. Raises: as ``assign``."""

        def change(_: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            if task.is_open:
                raise ConstraintViolation(constraint="task_ended", reason="the task has not ended")
            return dataclasses.replace(taken(task), status=WorkStatus.PENDING, completed_at=None)

        return self._change(id, user, version, "reopen", change)

    # --- what it waits for -----------------------------------------------------------------------

    def depend(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        on: Id,
        *,
        user: str | EntityRef | None = None,
    ) -> bool:
        """Let a task wait for another one; return False if it does already.

        Raises: InputError kinds; NotFound; PermissionDenied as ``update``; CircularReference for a task that waits for
            this one, directly or not.
        """
        other = arguments.as_uuid(on, "on")
        readers = self._records.readers_for(user)
        added = False

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            nonlocal added
            self._records.found(uow, other, readers)
            check_acyclic(uow, task.task_id, other, awaited_by)
            link = TaskDependency(task.task_id, TaskId(other), from_us(uow.now_us))
            added = uow.insert_new(TASK_DEPENDENCY, link)
            return task

        self._change(id, user, None, "depend", change, links=True)
        return added

    def release(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        on: Id,
        *,
        user: str | EntityRef | None = None,
    ) -> bool:
        """Let a task no longer wait for another one; return False if it did not. Raises: as ``update``."""
        other = arguments.as_uuid(on, "on")
        removed = False

        def change(uow: UnitOfWork, task: WorkspaceTask) -> WorkspaceTask:
            nonlocal removed
            link = uow.find(TASK_DEPENDENCY, task.task_id.bytes, other.bytes)
            removed = link is not None
            if link is not None:
                uow.delete(TASK_DEPENDENCY, link)
            return task

        self._change(id, user, None, "release", change, links=True)
        return removed

    def dependencies(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
    ) -> list[WorkspaceTask]:
        """Return the tasks that a task waits for, done or not, as far as the principal may see them.

        Raises: InputError kinds; NotFound.
        """
        key = arguments.as_uuid(id, "id")
        readers = self._records.readers_for(user)
        self._records.read(key, readers)
        plans = self._engine.store.plans[TASK_DEPENDENCY.name]
        with self._engine.store.read() as session:
            rows = session.run(plans.lists["list_by_task"], (key.bytes,))
        found = [plans.codec.decode(row).depends_on for row in rows]
        return [task for task in (self._records.find(other, readers) for other in found) if task is not None]

    # --- reading ---------------------------------------------------------------------------------

    def get(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
    ) -> WorkspaceTask:
        """Return a task. Raises: InputError kinds; NotFound, also for one that the principal may not see."""
        key = arguments.as_uuid(id, "id")
        task: WorkspaceTask = self._records.read(key, self._records.readers_for(user))
        return task

    def list(
        self,
        *,
        status: WorkStatus | str | None = None,
        agent: str | EntityRef | None = None,
        parent: Id | None = None,
        ready: bool = False,
        user: str | EntityRef | None = None,
        limit: int = 100,
    ) -> list[WorkspaceTask]:
        """Return the tasks that are still to do, or those of one status: the most urgent first, then the oldest.

        ``agent``: those assigned to it. ``parent``: the parts of a task. ``ready``: pending ones without an agent that
        wait for nothing, neither for a task nor for ``scheduled_at``.

        Raises: InputError kinds; PermissionDenied for another user.
        """
        wanted = None if status is None else arguments.as_enum(status, WorkStatus, "status")
        above = None if parent is None else arguments.as_uuid(parent, "parent")
        assigned = None if agent is None else self._agents.named(agent).ref.id
        only_ready, most = arguments.as_flag(ready, "ready"), arguments.as_whole(limit, "limit", 1)
        states = (WorkStatus.PENDING, WorkStatus.IN_PROGRESS) if wanted is None else (wanted,)
        readers = self._records.readers_for(user)
        out: list[WorkspaceTask] = []
        for priority in _URGENT_FIRST:
            of_rank: list[WorkspaceTask] = []
            for each in states:
                of_rank += self._records.visible("list_by_status", (each.value, priority.value), readers)
            for task in sorted(of_rank, key=lambda task: (task.created_at, task.task_id.bytes)):
                if len(out) == most:
                    return out
                fits = assigned in (None, task.assigned_to) and above in (None, task.parent_task_id)
                if fits and (not only_ready or self._is_ready(task)):
                    out.append(task)
        return out

    # --- within a transaction ----------------------------------------------------------------------

    def _change(
        self,
        id: Id,  # noqa: A002
        user: str | EntityRef | None,
        version: int | None,
        action: str,
        change: Change,
        *,
        links: bool = False,
        title: str | None = None,
    ) -> WorkspaceTask:
        """Change a task that is the principal's own or assigned to it.

        ``links``: what it waits for or belongs to; ``title``: its new one, to be embedded.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        readers, embeddings = self._records.readers_for(user), self._engine.part(Embeddings)
        # Before the transaction: it may read, and in memory a reader waits for the writer.
        me = self._agents.acting(None).ref.id if self._principal.kind is PrincipalKind.AGENT else None

        def work(uow: UnitOfWork) -> WorkspaceTask:
            if links:
                uow.serialize(_LINKS)
            task: WorkspaceTask = self._records.found(uow, key, readers)
            if me is None or task.assigned_to != me:
                self._records.require_own(task, key, action)
            arguments.check_version(TASK.name, key, task.version, expected)
            changed = change(uow, task)
            stored = task if changed is task else self._stored(uow, changed, action)
            embeddings.attach(uow, TASK.name, key, stored.title, vectors)
            return stored

        vectors = None if title is None else embeddings.vector(TASK.name, title)
        return self._engine.write(work)

    def _stored(self, uow: UnitOfWork, task: WorkspaceTask, action: str) -> WorkspaceTask:
        stored: WorkspaceTask = uow.update(TASK, dataclasses.replace(task, updated_at=from_us(uow.now_us)))
        emit_task(self._engine, uow, stored, action, self._principal.label)
        return stored

    # --- ready or not ------------------------------------------------------------------------------

    def _is_due(self, task: WorkspaceTask) -> bool:
        return task.scheduled_at is None or task.scheduled_at <= from_us(self._engine.clock.now_us())

    def _is_ready(self, task: WorkspaceTask) -> bool:
        if task.status is not WorkStatus.PENDING or task.assigned_to is not None or not self._is_due(task):
            return False
        with self._engine.store.read() as session:
            return not waits(self._engine.store, session, task.task_id)
