"""Facet ``memory.agents``: the registry of agents that share a store, views of roles over notes, and locks."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from caliber.agents.views import AgentMemoryView
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import AgentRole, Principal
from caliber.model.agents.registry import (
    Agent,
    AgentGroup,
    AgentLifecycle,
    AgentStatus,
    GroupMember,
    GroupPattern,
    MemoryAccess,
)
from caliber.model.errors import PermissionDenied, RequiredFieldMissing
from caliber.model.references import EntityRef
from caliber.model.trajectory import Trajectory
from caliber.search.service import Searching
from caliber.trajectory.service import Tasks

if TYPE_CHECKING:
    from caliber.agents.handing.delegating import Delegations
    from caliber.agents.handing.handing_off import Handoffs
    from caliber.agents.locks import LockService
    from caliber.agents.mail.messages import Messages
    from caliber.agents.registry import Registry
    from caliber.agents.teams.groups import GroupService


class Groups:
    """The groups of agents, as one principal uses them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    @property
    def _service(self) -> GroupService:
        from caliber.agents.teams.groups import GroupService  # few processes lead a group

        return GroupService(self._engine, self._principal)

    def create(self, name: str, pattern: GroupPattern | str, *, description: str | None = None) -> AgentGroup:
        """Create a group, or return the one of this name and pattern.

        ``pattern`` is round_robin, dynamic, supervisor, pipeline or voting.

        Raises: InputError kinds, also for a name that has another pattern; PermissionDenied unless the principal is the
            application or an admin.
        """
        return self._service.create(name, pattern, description=description)

    def add(self, name: str, agent: str | EntityRef, *, role: str | None = None) -> GroupMember:
        """Let an agent join a group, behind the other members; a member again gets the ``role``.

        Raises: InputError kinds; NotFound for an unknown group; NotRegistered; PermissionDenied as ``create``.
        """
        return self._service.add(name, agent, role=role)

    def remove(self, name: str, agent: str | EntityRef) -> bool:
        """Let an agent leave a group; return whether it was a member.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied as ``create``.
        """
        return self._service.remove(name, agent)

    def members(self, name: str) -> list[GroupMember]:
        """Return the members of a group, in the order in which they joined.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied for a user.
        """
        return self._service.members(name)

    def next_speaker(
        self, name: str, *, choice: str | EntityRef | None = None, votes: Mapping[str, str] | None = None
    ) -> Agent | None:
        """Return the agent whose turn comes next, and take the turn: the next call returns the one after it.

        Members that are hibernated, archived or failed are passed over. By pattern: ``round_robin`` goes round in the
        order of joining; ``pipeline`` goes through it once, then returns None until ``restart``; ``dynamic`` takes the
        ``choice`` of the caller; ``supervisor`` gives every other turn to the member with the role ``supervisor``, and
        after it takes the ``choice``, or the supervisor again without one; ``voting`` takes the member with most
        ``votes`` (the name of a voter, and of the member it votes for), of equals the one that joined first.

        Raises: InputError kinds, also for a choice or vote that is no member; NotFound for an unknown group;
            PermissionDenied for a user.
        """
        return self._service.next_speaker(name, choice=choice, votes=votes)

    def restart(self, name: str) -> AgentGroup:
        """Start the order of a group again: the next turn is that of its first member.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied as ``create``.
        """
        return self._service.restart(name)


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
        role: AgentRole | str | EllipsisType | None = ...,
        can_delegate_to: Sequence[str] | None = None,
        reports_to: str | EntityRef | EllipsisType | None = ...,
        memory_access: MemoryAccess | Mapping[str, Mapping[str, str]] | None = None,
        description: str | None = None,
    ) -> Agent:
        """Register an agent, or update the one of this name, and return it; what is left out stays as it is.

        ``agent`` left out is the principal itself. Registering is a sign of life: a failed agent becomes idle.
        ``can_delegate_to`` are the types of agents that it may give work to, ``reports_to`` is the agent above it;
        None takes ``role`` or ``reports_to`` away.
        ``memory_access`` narrows what it may read and write: ``{"read": {"note": "all"}, "write": {"note": "own"}}``;
        a kind that is not named, it may not. ``{}`` is every right.

        Raises: InputError kinds; NotRegistered for an unknown ``reports_to``; CircularReference for one that reports to
            the agent itself; PermissionDenied for a user, another agent, and for an agent that sets its own ``type``,
            ``role``, ``can_delegate_to``, ``reports_to`` or ``memory_access``: these are the application's and an
            admin's to set.
        """
        rights: dict[str, Any] = {"role": role, "can_delegate_to": can_delegate_to, "reports_to": reports_to}
        rights["memory_access"] = memory_access
        return self._registry.register(agent, type, capabilities, rights, description)

    def get(self, agent: str | EntityRef) -> Agent:
        """Return a registered agent. Raises: InputError kinds; NotRegistered; PermissionDenied for a user."""
        return self._registry.get(agent)

    def list(
        self,
        *,
        type: str | None = None,  # noqa: A002  (the word of callers)
        status: AgentStatus | str | None = None,
        lifecycle: AgentLifecycle | str | None = None,
    ) -> list[Agent]:
        """Return the registered agents, or those of a type, status and lifecycle, the oldest first.

        Raises: InputError kinds; PermissionDenied for a user.
        """
        return self._registry.list(type, status, lifecycle)

    def tasks(self, agent: str | EntityRef | None = None) -> builtins.list[Trajectory]:
        """Return the active tasks of an agent that the principal may see, the one that was last worked on first.

        ``agent`` left out is the principal itself. An agent has the tasks that it started, those that were handed over
        to it, and those of delegations that it accepted, until they end or are handed on.

        Raises: InputError kinds; NotRegistered; PermissionDenied for a user.
        """
        return self._registry.tasks(agent)

    def heartbeat(self, agent: str | EntityRef | None = None) -> Agent:
        """Renew the sign of life of an agent, by the database's clock, and return it; a failed one becomes idle.

        Raises: InputError kinds; NotRegistered; PermissionDenied for another agent than the principal.
        """
        return self._registry.heartbeat(agent)

    def set_status(self, status: AgentStatus | str, agent: str | EntityRef | None = None) -> Agent:
        """Set the status of an agent: idle, active, blocked or failed; it is a sign of life too.

        Raises: InputError kinds; NotRegistered; InvalidStateTransition, such as from idle to blocked; PermissionDenied
            for another agent than the principal.
        """
        return self._registry.set_status(status, agent)

    def heartbeat_many(self, agents: Sequence[str | EntityRef]) -> int:
        """Renew the signs of life of several agents in one transaction; return how many of them are registered.

        Raises: InputError kinds; PermissionDenied for other agents than the principal.
        """
        return self._registry.heartbeat_many(agents)

    def set_lifecycle(self, lifecycle: AgentLifecycle | str, agent: str | EntityRef) -> Agent:
        """Make an agent active, hibernated or archived, and return it; only active agents act.

        An archived agent gives its to-dos of the workspace back: other agents may claim them.

        Raises: InputError kinds; NotRegistered; PermissionDenied unless the principal is the application or an admin.
        """
        return self._registry.set_lifecycle(lifecycle, agent)

    def fail_silent(self) -> builtins.list[Agent]:
        """Set agents that were silent for longer than ``agents.heartbeat_timeout_ms`` to failed, and return them.

        Their locks are released in the same transaction, their requests for locks withdrawn, and those who wait behind
        them woken. A job does so by itself, where jobs run in the background.

        Raises: PermissionDenied unless the principal is the application or an admin.
        """
        return self._registry.fail_silent()

    @property
    def groups(self) -> Groups:
        """Groups of agents, and the member that speaks next."""
        return Groups(self._engine, self._principal)

    @property
    def delegations(self) -> Delegations:
        """Tasks that agents give to other agents."""
        from caliber.agents.handing.delegating import Delegations  # opening a store delegates nothing

        return Delegations(self._engine, self._principal, self._tasks)

    @property
    def handoffs(self) -> Handoffs:
        """Tasks that agents pass on to other agents."""
        from caliber.agents.handing.handing_off import Handoffs

        return Handoffs(self._engine, self._principal, self._tasks)

    @property
    def messages(self) -> Messages:
        """Messages between agents: to an agent, to a type of agents, or to all."""
        from caliber.agents.mail.messages import Messages  # most processes send none

        return Messages(self._engine, self._principal)

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
