"""Commands ``todos``: list and show the to-dos of the workspace, assign, release and cancel them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.settings import Settings, confirm, with_store, yes_option
from caliber.cli.team.shared import agent_names, named, when
from caliber.model.workspace import TodoStatus

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from caliber.cli.output import Output
    from caliber.model.workspace import Todo


@click.group()
def todos() -> None:
    """List to-dos of the workspace, show one, give it to another agent, release or cancel it."""


@todos.command("list")
@click.option("--status", type=click.Choice([each.value for each in TodoStatus]), help="Only to-dos with this status.")
@click.option("--agent", help="Only to-dos that this agent has.")
@click.option("--ready", is_flag=True, help="Only to-dos that an agent can claim now.")
@click.option("--user", help="The to-dos that this user sees, by name.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most to-dos to list.")
@with_store
def list_(settings: Settings, status: str | None, agent: str | None, ready: bool, user: str | None, limit: int) -> None:
    """List to-dos that are still to do, or those of one status: the most urgent first, then the oldest."""
    with settings.memory(note=False) as memory:
        listed = memory.workspace.todos.list(status=status, agent=agent, ready=ready, user=user, limit=limit)
        names = agent_names(memory)
    found = [_fields(each, names) for each in listed]
    settings.out.result({"todos": found}, lambda: _print(settings.out, found))


@todos.command()
@click.argument("todo_id")
@with_store
def show(settings: Settings, todo_id: str) -> None:
    """Show a to-do, and the to-dos that it waits for."""
    with settings.memory(note=False) as memory:
        names = agent_names(memory)
        todo = _fields(memory.workspace.todos.get(todo_id), names)
        awaited = [_fields(each, names) for each in memory.workspace.todos.dependencies(todo_id)]

    def human() -> None:
        _print(settings.out, [todo])
        if todo["description"]:
            settings.out.print(f"    {todo['description']}")
        if awaited:
            settings.out.print("waits for")
            _print(settings.out, awaited)

    settings.out.result({"todo": todo | {"depends_on": awaited}}, human)


@todos.command()
@click.argument("todo_id")
@click.argument("agent")
@yes_option
@with_store
def assign(settings: Settings, todo_id: str, agent: str, yes: bool) -> None:
    """Give a to-do to an agent, also one that another agent has: it is pending then."""
    confirm(settings, yes, "this takes the to-do from its agent", f"give to-do {todo_id} to {agent}?")
    _change(settings, "assign", todo_id, agent)


@todos.command()
@click.argument("todo_id")
@yes_option
@with_store
def release(settings: Settings, todo_id: str, yes: bool) -> None:
    """Take a to-do from its agent, so that another one can claim it."""
    confirm(settings, yes, "this takes the to-do from its agent", f"take to-do {todo_id} from its agent?")
    _change(settings, "assign", todo_id, None)


@todos.command()
@click.argument("todo_id")
@yes_option
@with_store
def cancel(settings: Settings, todo_id: str, yes: bool) -> None:
    """End a to-do that need not be done. To-dos that wait for it stay waiting."""
    confirm(settings, yes, "this ends the to-do", f"cancel to-do {todo_id}?")
    _change(settings, "cancel", todo_id)


@todos.command()
@click.argument("todo_id")
@with_store
def reopen(settings: Settings, todo_id: str) -> None:
    """Let a to-do that was completed or cancelled be pending again, without an agent."""
    _change(settings, "reopen", todo_id)


def _change(settings: Settings, change: str, todo_id: str, *values: str | None) -> None:
    with settings.memory(note=False) as memory:
        changed = getattr(memory.workspace.todos, change)(todo_id, *values)
        todo = _fields(changed, agent_names(memory))
    settings.out.result({"todo": todo}, lambda: _print(settings.out, [todo]))


def _fields(todo: Todo, names: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    fields = {field.name: getattr(todo, field.name) for field in dataclasses.fields(todo)}
    return {"todo_id": fields.pop("todo_id"), **fields, "agent": named(names, todo.assigned_to)}


def _print(out: Output, found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("there are no such to-dos")
    for each in found:
        out.print(f"{each['todo_id']}  {each['status']:<11}  {each['priority']:<6}  {each['title']}")
        agent = "no agent has it" if each["agent"] is None else f"agent {each['agent']}"
        due = "" if each["due_at"] is None else f", due {when(each['due_at'])}"
        out.print(f"    {agent}, changed {when(each['updated_at'])}{due}")
