"""Commands ``agents``: list and show agents, change their status, fail and retire them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from caliber.cli.output import plural
from caliber.cli.settings import Settings, confirm, with_store, yes_option
from caliber.cli.team.shared import agent_names, named, when
from caliber.model.agents.registry import AgentLifecycle, AgentStatus

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output
    from caliber.model.agents.registry import Agent

_STATUS = click.Choice([each.value for each in AgentStatus])
_LIFECYCLE = click.Choice([each.value for each in AgentLifecycle])


@click.group()
def agents() -> None:
    """List agents, show one, change its status or stage of life, fail and retire it."""


@agents.command("list")
@click.option("--type", "agent_type", help="Only agents of this type.")
@click.option("--status", type=_STATUS, help="Only agents with this status.")
@click.option("--lifecycle", type=_LIFECYCLE, help="Only agents in this stage of life.")
@with_store
def list_(settings: Settings, agent_type: str | None, status: str | None, lifecycle: str | None) -> None:
    """List agents, the oldest first."""
    with settings.memory(note=False) as memory:
        listed = memory.agents.list(type=agent_type, status=status, lifecycle=lifecycle)
        names = agent_names(memory)
    found = [_fields(each, names) for each in listed]
    settings.out.result({"agents": found}, lambda: _print(settings.out, found))


@agents.command()
@click.argument("name")
@with_store
def show(settings: Settings, name: str) -> None:
    """Show an agent: its rights, what it works on, its locks, the locks it waits for, and the work it gave and has."""
    with settings.memory(note=False) as memory:
        agent = memory.agents.get(name)
        names = agent_names(memory)
        label = f"agent:{agent.name}"
        held = [each for each in memory.agents.locks.list() if each.holder == label]
        awaited = [each for each in memory.agents.locks.waiting() if each.holder == label]
        delegations = [each for each in memory.agents.delegations.list(agent=agent.ref) if each.is_open]
        todos = memory.workspace.todos.list(agent=agent.ref)
        works_on = memory.agents.tasks(agent.ref)
    fields = _fields(agent, names) | {
        "works_on": [
            {"trajectory_id": each.trajectory_id, "goal": each.goal, "last_activity_at": each.last_activity_at}
            for each in works_on
        ],
        "locks": [{"resource": each.resource, "mode": each.mode, "expires_at": each.expires_at} for each in held],
        "waits_for": [{"resource": each.resource, "mode": each.mode} for each in awaited],
        "delegations": [
            {
                "delegation_id": each.delegation_id,
                "status": each.status,
                "from": named(names, each.delegator_agent_id),
                "to": named(names, each.delegatee_agent_id) or f"type {each.delegatee_agent_type}",
                "task": each.task_description,
            }
            for each in delegations
        ],
        "todos": [{"todo_id": each.todo_id, "status": each.status, "title": each.title} for each in todos],
    }
    settings.out.result({"agent": fields}, lambda: _print_whole(settings.out, fields))


@agents.command()
@click.argument("name")
@click.argument("status", type=_STATUS)
@yes_option
@with_store
def status(settings: Settings, name: str, status: str, yes: bool) -> None:
    """Set the status of an agent; only changes that the agent could make itself are allowed."""
    confirm(settings, yes, f"this changes the status of {name}", f"set {name} to {status}?")
    with settings.memory(note=False) as memory:
        _changed(settings, memory, [memory.agents.set_status(status, name)])


@agents.command()
@click.argument("name", required=False)
@click.option("--silent", is_flag=True, help="Every agent that was silent for longer than its timeout.")
@yes_option
@with_store
def fail(settings: Settings, name: str | None, silent: bool, yes: bool) -> None:
    """Set an agent to failed, or all silent ones. Its next sign of life makes it idle again.

    Locks of silent agents are released; those of an agent that is named end with their leases, or by `caliber locks
    break`.
    """
    if silent == (name is not None):
        raise click.UsageError("give NAME or --silent")
    whose = "agents that are silent" if name is None else name
    confirm(settings, yes, f"this sets {whose} to failed", f"set {whose} to failed?")
    with settings.memory(note=False) as memory:
        failed = memory.agents.fail_silent() if name is None else [memory.agents.set_status("failed", name)]
        _changed(settings, memory, failed)


@agents.command()
@click.argument("name")
@click.argument("stage", type=_LIFECYCLE)
@yes_option
@with_store
def lifecycle(settings: Settings, name: str, stage: str, yes: bool) -> None:
    """Make an agent active, hibernated or archived. Only active agents act."""
    _live(settings, name, stage, yes)


@agents.command()
@click.argument("name")
@yes_option
@with_store
def retire(settings: Settings, name: str, yes: bool) -> None:
    """Archive an agent: it acts no more, and gets no messages. `lifecycle NAME active` brings it back."""
    _live(settings, name, AgentLifecycle.ARCHIVED.value, yes)


def _live(settings: Settings, name: str, stage: str, yes: bool) -> None:
    confirm(settings, yes, f"this makes {name} {stage}", f"make {name} {stage}?")
    with settings.memory(note=False) as memory:
        _changed(settings, memory, [memory.agents.set_lifecycle(stage, name)])


def _changed(settings: Settings, memory: Caliber, changed: list[Agent]) -> None:
    names = agent_names(memory)
    found = [_fields(each, names) for each in changed]
    settings.out.result({"agents": found}, lambda: _print(settings.out, found))


def _fields(agent: Agent, names: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    fields = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    return {"name": fields.pop("name"), **fields, "reports_to": named(names, agent.reports_to)}


def _print(out: Output, found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("there are no such agents")
    for each in found:
        out.print(f"{each['name']:<20}  {each['status']:<8}  {each['lifecycle']:<10}  {each['agent_type']}")
        above = "" if each["reports_to"] is None else f", reports to {each['reports_to']}"
        out.print(f"    last sign of life {when(each['last_heartbeat'])}{above}")


def _print_whole(out: Output, agent: dict[str, Any]) -> None:
    _print(out, [agent])
    for label, values in (("can", agent["capabilities"]), ("delegates to", agent["can_delegate_to"])):
        if values:
            out.print(f"    {label} {', '.join(values)}")
    if agent["description"]:
        out.print(f"    {agent['description']}")
    for each in agent["works_on"]:
        out.print(f"  works on {each['trajectory_id']}, last at {when(each['last_activity_at'])}")
        if each["goal"]:
            out.print(f"    {each['goal']}")
    for lock in agent["locks"]:
        out.print(f"  holds {lock['resource']}, {lock['mode']}, until {when(lock['expires_at'])}")
    for request in agent["waits_for"]:
        out.print(f"  waits for {request['resource']}, {request['mode']}")
    for each in agent["delegations"]:
        out.print(f"  delegation {each['delegation_id']}  {each['status']}, {each['from']} to {each['to']}")
        out.print(f"    {each['task']}")
    for each in agent["todos"]:
        out.print(f"  to-do {each['todo_id']}  {each['status']}")
        out.print(f"    {each['title']}")
    counts = (plural(len(agent[name]), noun) for name, noun in (("locks", "lock"), ("delegations", "open delegation")))
    out.print(f"  {', '.join(counts)}, {plural(len(agent['todos']), 'to-do')}")
