"""Links between tasks, those that wait for others and those that belong to others, and circles among them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable

from caliber.model.errors import CircularReference, ConstraintViolation
from caliber.model.references import EntityRef, EntityType
from caliber.model.workspace import WorkspaceTask, WorkStatus
from caliber.schema.relations import TASK, TASK_DEPENDENCY
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.records import not_readable_by, readable_by


def awaited_by(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the tasks that a task waits for."""
    return [link.depends_on for link in uow.select_path(TASK_DEPENDENCY, "list_by_task", key.bytes)]


def parent_of(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the task that a task belongs to, if any."""
    task: WorkspaceTask | None = uow.find(TASK, key.bytes)
    return () if task is None or task.parent_task_id is None else (task.parent_task_id,)


def check_acyclic(
    uow: UnitOfWork, task: uuid.UUID, other: uuid.UUID, beyond: Callable[[UnitOfWork, uuid.UUID], Iterable[uuid.UUID]]
) -> None:
    """Raise CircularReference if ``task`` is reached from ``other``, or is it."""
    seen, open_ends = {other}, [other]
    while open_ends:
        key = open_ends.pop()
        if key == task:
            raise CircularReference(entity_type=TASK.name, ids=[str(task), str(other)])
        for found in beyond(uow, key):
            if found not in seen:
                seen.add(found)
                open_ends.append(found)


def check_ready(uow: UnitOfWork, task: WorkspaceTask) -> None:
    """Raise ConstraintViolation while a task that this one waits for is not completed."""
    waits = 0
    for key in awaited_by(uow, task.task_id):
        other: WorkspaceTask | None = uow.find(TASK, key.bytes)
        waits += other is not None and other.status is not WorkStatus.COMPLETED
    if waits:
        raise ConstraintViolation(constraint="task_ready", reason=f"it waits for {waits} tasks that are not completed")


def waits(store: Store, session: StatementSession, key: uuid.UUID) -> bool:
    """Return whether a task waits for one that is not completed, as committed."""
    links, tasks = (store.plans[each.name] for each in (TASK_DEPENDENCY, TASK))
    for row in session.run(links.lists["list_by_task"], (key.bytes,)):
        other = session.run(tasks.get, (links.codec.decode(row).depends_on.bytes,))
        if other and tasks.codec.decode(other[0]).status is not WorkStatus.COMPLETED:
            return True
    return False


def given(task: WorkspaceTask, agent: EntityRef) -> WorkspaceTask:
    """Return a task that is assigned to an agent, which sees it while it is."""
    task = taken(task)
    return dataclasses.replace(task, assigned_to=agent.id, visible_to=readable_by(task.visible_to, agent))


def taken(task: WorkspaceTask) -> WorkspaceTask:
    """Return a task that no agent is assigned to, and that its agent until now no longer sees as such."""
    if task.assigned_to is None:
        return task
    readers = not_readable_by(task.visible_to, EntityRef(EntityType.AGENT, task.assigned_to))
    return dataclasses.replace(task, assigned_to=None, visible_to=readers)


def begun(task: WorkspaceTask) -> WorkspaceTask:
    """Return a task that is in progress."""
    return dataclasses.replace(task, status=WorkStatus.IN_PROGRESS)
