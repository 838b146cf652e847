"""Facet ``memory.agents``: the registry of agents that share a store, views of roles over notes, and locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caliber.agents.views import AgentMemoryView
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import AgentRole, Principal
from caliber.model.agents.registry import Agent, AgentLifecycle, AgentStatus
from caliber.model.errors import PermissionDenied, RequiredFieldMissing
from caliber.model.references import EntityRef
from caliber.search.service import Searching
from caliber.trajectory.service import Tasks

if TYPE_CHECKING:
    from caliber.agents.delegating import Delegations
    from caliber.agents.handing_off import Handoffs
    from caliber.agents.locks import LockService
    from caliber.agents.registry import Registry


class Agents:
    """Several agents in one store, as one principal works among them."""

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks[Any]) -> None:
        self._engine = engine
        self._principal = principal
        self._tasks = tasks

    @property
    def _registry(self) -> Registry:
        from caliber.agents.registry import Registry  # opening a store registers no agent

        return Registry(self._engine, self._principal)

    def register(
        self,
        agent: str | EntityRef | None = None,
        *,
        type: str | None = None,  # noqa: A002  (the word of callers)
        capabilities: Sequence[str] | None = None,
        role: AgentRole | str | None = None,
        can_delegate_to: Sequence[str] | None = None,
        reports_to: str | EntityRef | None = None,
        description: str | None = None,
        deadline_ms: int | None = None,
    ) -> Agent:
        """Register an agent, or update the one of this name, and return it; what is left out stays as it is.

        ``agent`` left out is the principal itself. Registering is a sign of life: a failed agent becomes idle.
        ``can_delegate_to`` are the types of agents that it may give work to, ``reports_to`` is the agent above it.

        Raises: InputError kinds; NotRegistered for an unknown ``reports_to``; CircularReference for one that reports to
            the agent itself; PermissionDenied for a user, another agent, and for an agent that sets its own ``role``,
            ``can_delegate_to`` or ``reports_to``: these are the application's and an admin's to set.
        """
        rights = {"role": role, "can_delegate_to": can_delegate_to, "reports_to": reports_to}
        return self._registry.register(agent, type, capabilities, rights, description, deadline_ms)

    def get(self, agent: str | EntityRef, *, deadline_ms: int | None = None) -> Agent:
        """Return a registered agent. Raises: InputError kinds; NotRegistered."""
        return self._registry.get(agent, deadline_ms=deadline_ms)

    def list(
        self,
        *,
        type: str | None = None,  # noqa: A002  (the word of callers)
        status: AgentStatus | str | None = None,
        lifecycle: AgentLifecycle | str | None = None,
        deadline_ms: int | None = None,
    ) -> list[Agent]:
        """Return the registered agents, or those of a type, status and lifecycle, the oldest first.

        Raises: InputError kinds.
        """
        return self._registry.list(type, status, lifecycle, deadline_ms)

    def heartbeat(self, agent: str | EntityRef | None = None, *, deadline_ms: int | None = None) -> Agent:
        """Renew the sign of life of an agent, by the database's clock, and return it; a failed one becomes idle.

        Raises: InputError kinds; NotRegistered; PermissionDenied for another agent than the principal.
        """
        return self._registry.heartbeat(agent, deadline_ms)

    def set_status(
        self, status: AgentStatus | str, agent: str | EntityRef | None = None, *, deadline_ms: int | None = None
    ) -> Agent:
        """Set the status of an agent: idle, active, blocked or failed; it is a sign of life too.

        Raises: InputError kinds; NotRegistered; InvalidStateTransition, such as from idle to blocked; PermissionDenied
            for another agent than the principal.
        """
        return self._registry.set_status(status, agent, deadline_ms)

    @property
    def delegations(self) -> Delegations:
        """Tasks that agents give to other agents."""
        from caliber.agents.delegating import Delegations  # opening a store delegates nothing

        return Delegations(self._engine, self._principal, self._tasks)

    @property
    def handoffs(self) -> Handoffs:
        """Tasks that agents pass on to other agents."""
        from caliber.agents.handing_off import Handoffs

        return Handoffs(self._engine, self._principal, self._tasks)

    @property
    def locks(self) -> LockService:
        """Locks between agents, as the principal acquires and sees them."""
        from caliber.agents.locks import LockService  # most processes lock nothing

        return LockService(self._engine, self._principal)

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
