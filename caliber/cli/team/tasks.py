"""Commands ``tasks``: list and show the tasks of the workspace, assign, release and cancel them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.confirming import confirm, yes_option
from caliber.cli.settings import Settings, with_store
from caliber.cli.team.shared import agent_names, named, when
from caliber.model.workspace import WorkStatus

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from caliber.cli.output import Output
    from caliber.model.workspace import WorkspaceTask


@click.group()
def tasks() -> None:
    """List tasks of the workspace, show one, give it to another agent, release or cancel it."""


@tasks.command("list")
@click.option("--status", type=click.Choice([each.value for each in WorkStatus]), help="Only tasks with this status.")
@click.option("--agent", help="Only tasks that this agent has.")
@click.option("--ready", is_flag=True, help="Only tasks that an agent can claim now.")
@click.option("--user", help="The tasks that this user sees, by name.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most tasks to list.")
@with_store
def list_(settings: Settings, status: str | None, agent: str | None, ready: bool, user: str | None, limit: int) -> None:
    """List tasks that are still to do, or those of one status: the most urgent first, then the oldest."""
    with settings.memory(note=False) as memory:
        listed = memory.workspace.tasks.list(status=status, agent=agent, ready=ready, user=user, limit=limit)
        names = agent_names(memory)
    found = [_fields(each, names) for each in listed]
    settings.out.result({"tasks": found}, lambda: _print(settings.out, found))


@tasks.command()
@click.argument("task_id")
@with_store
def show(settings: Settings, task_id: str) -> None:
    """Show a task, and the tasks that it waits for."""
    with settings.memory(note=False) as memory:
        names = agent_names(memory)
        task = _fields(memory.workspace.tasks.get(task_id), names)
        awaited = [_fields(each, names) for each in memory.workspace.tasks.dependencies(task_id)]

    def human() -> None:
        _print(settings.out, [task])
        if task["description"]:
            settings.out.print(f"    {task['description']}")
        if awaited:
            settings.out.print("waits for")
            _print(settings.out, awaited)

    settings.out.result({"task": task | {"depends_on": awaited}}, human)


@tasks.command()
@click.argument("task_id")
@click.argument("agent")
@yes_option
@with_store
def assign(settings: Settings, task_id: str, agent: str, yes: bool) -> None:
    """Give a task to an agent, also one that another agent has: it is pending then."""
    confirm(settings, yes, "this takes the task from its agent", f"give task {task_id} to {agent}?")
    _change(settings, "assign", task_id, agent)


@tasks.command()
@click.argument("task_id")
@yes_option
@with_store
def release(settings: Settings, task_id: str, yes: bool) -> None:
    """Take a task from its agent, so that another one can claim it."""
    confirm(settings, yes, "this takes the task from its agent", f"take task {task_id} from its agent?")
    _change(settings, "assign", task_id, None)


@tasks.command()
@click.argument("task_id")
@yes_option
@with_store
def cancel(settings: Settings, task_id: str, yes: bool) -> None:
    """End a task that need not be done. Tasks that wait for it stay waiting."""
    confirm(settings, yes, "this ends the task", f"cancel task {task_id}?")
    _change(settings, "cancel", task_id)


@tasks.command()
@click.argument("task_id")
@with_store
def reopen(settings: Settings, task_id: str) -> None:
    """Let a task that was completed or cancelled be pending again, without an agent."""
    _change(settings, "reopen", task_id)


def _change(settings: Settings, change: str, task_id: str, *values: str | None) -> None:
    with settings.memory(note=False) as memory:
        changed = getattr(memory.workspace.tasks, change)(task_id, *values)
        task = _fields(changed, agent_names(memory))
    settings.out.result({"task": task}, lambda: _print(settings.out, [task]))


def _fields(task: WorkspaceTask, names: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    return {"task_id": fields.pop("task_id"), **fields, "agent": named(names, task.assigned_to)}


def _print(out: Output, found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("there are no such tasks")
    for each in found:
        out.print(f"{each['task_id']}  {each['status']:<11}  {each['priority']:<6}  {each['title']}")
        agent = "no agent has it" if each["agent"] is None else f"agent {each['agent']}"
        due = "" if each["due_at"] is None else f", due {when(each['due_at'])}"
        out.print(f"    {agent}, changed {when(each['updated_at'])}{due}")
