"""Protocol of the registry of agents, as to-dos need it; the room of agents, further down, hands it in."""

from __future__ import annotations

from typing import Protocol

from caliber.model.references import EntityRef
from caliber.storage.write.unit_of_work import UnitOfWork


class NamedAgent(Protocol):
    """An agent, registered or not."""

    @property
    def ref(self) -> EntityRef:
        """Its reference."""
        ...


class AgentDirectory(Protocol):
    """The agents of a store, as one principal may act as them or name them."""

    def acting(self, agent: str | EntityRef | None) -> NamedAgent:
        """Return the agent that a call is made for. Raises: PermissionDenied, InputError kinds."""
        ...

    def named(self, agent: str | EntityRef) -> NamedAgent:
        """Return the agent of a name or reference. Raises: InputError kinds."""
        ...

    def require(self, uow: UnitOfWork, agent: NamedAgent) -> None:
        """Require the row of an agent that acts, or register it. Raises: NotRegistered, PermissionDenied."""
        ...

    def require_assignable(self, uow: UnitOfWork, agent: NamedAgent) -> None:
        """Require the row of an agent that gets work, or register it: for it that is no sign of life.

        Raises: NotRegistered; PermissionDenied for an archived one.
        """
        ...
