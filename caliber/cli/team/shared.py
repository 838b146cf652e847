"""Parts of all commands about agents: the names of agents, and instants."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber


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
