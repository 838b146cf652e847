"""Commands ``messages``: list and show messages between agents, and deliver dead letters again."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

import click

from caliber.cli.output import Output, plural
from caliber.cli.settings import Settings, confirm, with_store, yes_option
from caliber.cli.team.shared import agent_names, named, when
from caliber.model.agents import AgentMessage, MessageState
from caliber.model.time import SystemClock, from_us


@click.group()
def messages() -> None:
    """List messages between agents, show one, and deliver a dead letter again."""


@messages.command("list")
@click.option(
    "--state", type=click.Choice([state.value for state in MessageState]), help="Only messages in this state."
)
@click.option("--agent", help="Only messages that this agent sent or receives.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most messages to list.")
@with_store
def list_(settings: Settings, state: str | None, agent: str | None, limit: int) -> None:
    """List messages, the newest first, without their payloads. Dead letters are those of --state dead."""
    with settings.memory(note=False) as memory:
        listed = memory.agents.messages.list(state=state, limit=limit, agent=agent)
        names = agent_names(memory)
    found = [_fields(each, names) for each in listed]
    for each in found:
        del each["payload"]
    settings.out.result({"messages": found}, lambda: _print(settings.out, found))


@messages.command()
@click.argument("message_id")
@with_store
def show(settings: Settings, message_id: str) -> None:
    """Show one message with its payload."""
    with settings.memory(note=False) as memory:
        message = _fields(memory.agents.messages.get(message_id), agent_names(memory))

    def say() -> None:
        _print(settings.out, [message])
        settings.out.print(f"    {message['payload']}")

    settings.out.result({"message": message}, say)


@messages.command()
@click.argument("message_id")
@yes_option
@with_store
def redeliver(settings: Settings, message_id: str, yes: bool) -> None:
    """Deliver a dead letter again, or a message whose receiver is lost: that receiver's claim ends."""
    confirm(settings, yes, "this ends a claim", f"deliver message {message_id} again?")
    with settings.memory(note=False) as memory:
        message = _fields(memory.agents.messages.redeliver(message_id), agent_names(memory))
    settings.out.result({"message": message}, lambda: _print(settings.out, [message]))


def _fields(message: AgentMessage, names: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    del fields["mailbox"], fields["rank"]
    state = message.state(from_us(SystemClock().now_us()))
    fields |= {"from": named(names, message.from_agent_id), "to": named(names, message.to_agent_id)}
    return {"message_id": fields.pop("message_id"), "state": str(state), "priority": str(message.priority), **fields}


def _print(out: Output, found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("there are no messages")
    for each in found:
        receiver = each["to"] or f"type {each['to_agent_type']}"
        out.print(f"{each['message_id']}  {each['state']:<12}  {each['priority']:<8}  {each['message_type']}")
        attempts = f", {plural(each['attempts'], 'attempt')}" if each["attempts"] else ""
        topic = "" if each["topic"] is None else f", topic {each['topic']}"
        out.print(f"    {when(each['created_at'])}, from {each['from']} to {receiver}{topic}{attempts}")
