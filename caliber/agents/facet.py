"""Facet ``memory.agents``: locks for agents that share a store."""

from __future__ import annotations

from caliber.engine.engine import Engine
from caliber.engine.leases import LockService, locks_for
from caliber.model.access import Principal


class Agents:
    """Several agents in one store, as one principal works among them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    @property
    def locks(self) -> LockService:
        """Locks between agents, as the principal acquires and sees them."""
        return locks_for(self._engine.locks, self._principal)
