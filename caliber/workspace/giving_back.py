"""Events of tasks, and the tasks of an agent that leaves, which other agents may claim again. Source: P-043, C-421."""

from __future__ import annotations

import dataclasses

from caliber.engine.engine import Engine
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.model.workspace import WorkspaceTask, WorkStatus
from caliber.schema.relations import TASK
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.dependencies import taken


def give_back(engine: Engine, uow: UnitOfWork, agent: EntityRef, by: str) -> None:
    """Take the tasks that are still to do from an agent: they are pending, and no agent is assigned to them."""
    for each in uow.select_path(TASK, "list_by_agent", agent.id.bytes):
        if not each.is_open:
            continue  # it stays as it ended
        uow.lock(TASK, each.task_id.bytes)
        task: WorkspaceTask | None = uow.find(TASK, each.task_id.bytes)
        if task is not None and task.is_open and task.assigned_to == agent.id:
            free = dataclasses.replace(taken(task), status=WorkStatus.PENDING, updated_at=from_us(uow.now_us))
            emit_task(engine, uow, uow.update(TASK, free), "assign", by)


def emit_task(engine: Engine, uow: UnitOfWork, task: WorkspaceTask, action: str, by: str) -> None:
    """Emit the event of a change of a task that the principal ``by`` made."""
    payload = {"id": str(task.task_id), "action": action, "status": task.status.value}
    if task.assigned_to is not None:
        payload["assigned_to"] = str(task.assigned_to)
    uow.emit(engine.event("task", principal=by, subject=(TASK.name, task.task_id), payload=payload))
