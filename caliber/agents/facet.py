"""Facet ``memory.agents``: views of roles over notes, and locks for agents that share a store."""

from __future__ import annotations

from caliber.agents.views import AgentMemoryView
from caliber.engine.engine import Engine
from caliber.engine.leases import LockService, locks_for
from caliber.model import arguments
from caliber.model.access import AgentRole, Principal
from caliber.model.errors import PermissionDenied, RequiredFieldMissing
from caliber.model.references import EntityRef
from caliber.search.service import Searching


class Agents:
    """Several agents in one store, as one principal works among them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    @property
    def locks(self) -> LockService:
        """Locks between agents, as the principal acquires and sees them."""
        return locks_for(self._engine.locks, self._principal)

    def view(self, role: AgentRole | str | None = None, *, user: str | EntityRef | None = None) -> AgentMemoryView:
        """Return the notes that a role is interested in, as far as the principal may see them.

        ``role`` left out is that of the principal. ``user`` is whom the calls on it are for, as in ``search``.

        Raises: InvalidValue for an unknown role; RequiredFieldMissing for none; PermissionDenied for an agent that
            names another role than its own, or for another user.
        """
        self._engine.check_open()
        own = self._principal.role
        wanted = own if role is None else arguments.as_enum(role, AgentRole, "role")
        if wanted is None:
            raise RequiredFieldMissing("role is required: the principal has none", field="role")
        if own is not None and wanted is not own and not self._principal.is_admin:
            resource = f"the view of role {wanted.value}"
            raise PermissionDenied(agent_id=self._principal.label, action="read", resource=resource)
        return AgentMemoryView(self._engine, Searching(self._engine, self._principal).seen_by(user), wanted)
