"""The registry of agents as the workspace's to-dos need it: ``caliber.workspace.agents.AgentDirectory``."""

from __future__ import annotations

from caliber.agents.acting import ActingAgent, acting_agent, agent_named, registered, require_assignable
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.references import EntityRef
from caliber.schema.relations import AGENT
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.agents import NamedAgent


class Directory:
    """The agents of a store, as one principal may act as them or name them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def acting(self, agent: str | EntityRef | None) -> ActingAgent:
        """Return the agent that a call is made for. Raises: as ``acting_agent``."""
        return acting_agent(self._engine, self._principal, agent)

    def named(self, agent: str | EntityRef) -> ActingAgent:
        """Return the agent of a name or reference. Raises: as ``agent_named``."""
        return agent_named(self._engine, agent)

    def require(self, uow: UnitOfWork, agent: NamedAgent) -> None:
        """Require the row of an agent that acts, or register it. Raises: as ``registered``."""
        uow.lock(AGENT, agent.ref.id.bytes)  # archiving it waits, and gives back what it takes here
        registered(uow, self._engine.config, agent if isinstance(agent, ActingAgent) else agent.ref)

    def require_assignable(self, uow: UnitOfWork, agent: NamedAgent) -> None:
        """Require the row of an agent that gets work, or register it.

        Raises: as ``registered``, and as ``require_assignable`` of the room.
        """
        uow.lock(AGENT, agent.ref.id.bytes)
        if uow.find(AGENT, agent.ref.id.bytes) is None:
            self.require(uow, agent)
        else:
            require_assignable(uow, agent.ref)
