"""Parts of commands about agents: their names, instants, and figures of what they share."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from caliber.model.agents import MessageState
from caliber.model.agents.delegation import OPEN_DELEGATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

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


MOST: Final = 1_000
"""The most records of each kind that are counted."""


def team_figures(memory: Caliber) -> dict[str, Any] | None:
    """Return the figures of a store's agents as an administrator sees them; None for others, and where all are 0."""
    if not memory.principal.is_admin:
        return None
    agents = memory.agents
    found = {
        "agents": dict(Counter(each.status.value for each in agents.list(lifecycle="active"))),
        "locks_held": len(agents.locks.list(limit=MOST)),
        "locks_waiting": len(agents.locks.waiting(limit=MOST)),
        "messages_pending": len(agents.messages.list(state=MessageState.PENDING, limit=MOST)),
        "messages_delivered": len(agents.messages.list(state=MessageState.DELIVERED, limit=MOST)),
        "messages_dead": len(agents.messages.list(state=MessageState.DEAD, limit=MOST)),
        "delegations_open": sum(len(agents.delegations.list(status=status, limit=MOST)) for status in OPEN_DELEGATIONS),
    }
    return found if any(found.values()) else None


def team_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the figures for people: a line of agents, and one of what they share."""
    agents = ", ".join(f"{count:,} {status}" for status, count in sorted(found["agents"].items())) or "none active"
    held, queued, opened = (_count(found[name]) for name in ("locks_held", "locks_waiting", "delegations_open"))
    waiting, taken, dead = (_count(found[f"messages_{name}"]) for name in ("pending", "delivered", "dead"))
    return [
        f"agents     {agents}   delegations {opened} open   locks {held} held, {queued} waiting",
        f"messages   {waiting} pending, {taken} delivered, {dead} dead",
    ]


def _count(count: int) -> str:
    return f"{count:,} or more" if count >= MOST else f"{count:,}"
