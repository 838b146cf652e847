"""Links between to-dos, those that wait for others and those that belong to others, and circles among them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable

from caliber.model.errors import CircularReference, ConstraintViolation
from caliber.model.references import EntityRef, EntityType
from caliber.model.workspace import Todo, TodoStatus
from caliber.schema.relations import TODO, TODO_DEPENDENCY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.records import not_readable_by, readable_by


def awaited_by(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the to-dos that a to-do waits for."""
    return [link.depends_on for link in uow.select_path(TODO_DEPENDENCY, "list_by_todo", key.bytes)]


def parent_of(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the to-do that a to-do belongs to, if any."""
    todo: Todo | None = uow.find(TODO, key.bytes)
    return () if todo is None or todo.parent_todo_id is None else (todo.parent_todo_id,)


def check_acyclic(
    uow: UnitOfWork, todo: uuid.UUID, other: uuid.UUID, beyond: Callable[[UnitOfWork, uuid.UUID], Iterable[uuid.UUID]]
) -> None:
    """Raise CircularReference if ``todo`` is reached from ``other``, or is it."""
    seen, open_ends = {other}, [other]
    while open_ends:
        key = open_ends.pop()
        if key == todo:
            raise CircularReference(entity_type=TODO.name, ids=[str(todo), str(other)])
        for found in beyond(uow, key):
            if found not in seen:
                seen.add(found)
                open_ends.append(found)


def check_ready(uow: UnitOfWork, todo: Todo) -> None:
    """Raise ConstraintViolation while a to-do that this one waits for is not completed."""
    if waits := waits_for(uow, todo):
        raise ConstraintViolation(constraint="todo_ready", reason=f"it waits for {waits} to-dos that are not completed")


def waits_for(uow: UnitOfWork, todo: Todo) -> int:
    """Return how many to-dos that are not completed a to-do waits for."""
    awaited = (uow.find(TODO, key.bytes) for key in awaited_by(uow, todo.todo_id))
    return sum(other is not None and other.status is not TodoStatus.COMPLETED for other in awaited)


def given(todo: Todo, agent: EntityRef) -> Todo:
    """Return a to-do that is assigned to an agent, which sees it while it is."""
    todo = taken(todo)
    return dataclasses.replace(todo, assigned_to=agent.id, visible_to=readable_by(todo.visible_to, agent))


def taken(todo: Todo) -> Todo:
    """Return a to-do that no agent is assigned to, and that its agent until now no longer sees as such."""
    if todo.assigned_to is None:
        return todo
    readers = not_readable_by(todo.visible_to, EntityRef(EntityType.AGENT, todo.assigned_to))
    return dataclasses.replace(todo, assigned_to=None, visible_to=readers)


def begun(todo: Todo) -> Todo:
    """Return a to-do that is in progress."""
    return dataclasses.replace(todo, status=TodoStatus.IN_PROGRESS)
