"""Parts of all commands about agents: confirmation, the names of agents, and instants."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caliber.cli.failures import UsageError

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(command: F) -> F:
    """Add --yes, which answers the question that ``confirm`` asks."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(settings: Settings, yes: bool, effect: str, question: str) -> None:
    """Ask before a change, unless ``yes``. Raises: UsageError where no terminal can answer, click.Abort for a no."""
    if yes:
        return
    if settings.out.json or not sys.stdin.isatty():
        raise UsageError(f"{effect}, and no terminal can confirm it", "confirm with --yes")
    click.confirm(question, abort=True)


def agent_names(memory: Caliber) -> dict[uuid.UUID, str]:
    """Return the names of all agents by their ids; none for a user, who sees no registry."""
    if memory.principal.is_user:
        return {}
    return {agent.agent_id: agent.name for agent in memory.agents.list()}


def named(names: Mapping[uuid.UUID, str], agent_id: uuid.UUID | None) -> str | None:
    """Return the name of an agent, or its id where the registry has no name for it."""
    return None if agent_id is None else names.get(agent_id, str(agent_id))


def when(instant: datetime) -> str:
    """Return an instant for people, in UTC."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
