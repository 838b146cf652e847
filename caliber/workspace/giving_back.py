"""Events of to-dos; the to-dos of an agent that leaves, which others may claim again. Source: P-043, C-421."""

from __future__ import annotations

import dataclasses

from caliber.engine.engine import Engine
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.model.workspace import Todo, TodoStatus
from caliber.schema.relations import TODO
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.dependencies import taken


def give_back(engine: Engine, uow: UnitOfWork, agent: EntityRef, by: str) -> None:
    """Take the to-dos that are still to do from an agent: they are pending, and no agent is assigned to them."""
    for each in uow.select_path(TODO, "list_by_agent", agent.id.bytes):
        if not each.is_open:
            continue  # it stays as it ended
        uow.lock(TODO, each.todo_id.bytes)
        todo: Todo | None = uow.find(TODO, each.todo_id.bytes)
        if todo is not None and todo.is_open and todo.assigned_to == agent.id:
            free = dataclasses.replace(taken(todo), status=TodoStatus.PENDING, updated_at=from_us(uow.now_us))
            emit_todo(engine, uow, uow.update(TODO, free), "assign", by)


def emit_todo(engine: Engine, uow: UnitOfWork, todo: Todo, action: str, by: str) -> None:
    """Emit the event of a change of a to-do that the principal ``by`` made."""
    payload = {"id": str(todo.todo_id), "action": action, "status": todo.status.value}
    if todo.assigned_to is not None:
        payload["assigned_to"] = str(todo.assigned_to)
    engine.emit(uow, "todo", principal=by, subject=(TODO.name, todo.todo_id), payload=payload)
