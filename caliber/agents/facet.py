"""Facet ``memory.agents``: the registry of agents that share a store, views of roles over notes, and locks.

Source: C-362, C-363, C-381, C-418 to C-421, C-442, P-011.
"""

from __future__ import annotations

import builtins
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.acting import (
    ActingAgent,
    acting_agent,
    agent_named,
    find_agent,
    insert_agent,
    new_agent,
    watch,
)
from caliber.access.identities import not_registered, require_registered
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.agents.liveness import all_agents, fail_silent, log_change, renew
from caliber.agents.views import AgentMemoryView
from caliber.engine.engine import Engine
from caliber.model import arguments, states
from caliber.model.access import AgentRole, Principal
from caliber.model.agents.registry import Agent, AgentId, AgentLifecycle, AgentStatus, MemoryAccess
from caliber.model.errors import CircularReference, InvalidValue, RequiredFieldMissing
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType
from caliber.model.storage import ReadConsistency
from caliber.model.time import MS_US, from_us
from caliber.model.trajectory import Trajectory, TrajectoryStatus
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations import AGENT, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import Tasks
from caliber.workspace.records import give_back

if TYPE_CHECKING:
    from caliber.agents.handing.delegating import Delegations
    from caliber.agents.handing.handing_off import Handoffs
    from caliber.agents.locks import LockService
    from caliber.agents.mail.messages import Messages
    from caliber.agents.teams.groups import Groups

_HIERARCHY: Final = "caliber:agents reports_to"
"""Serializes changes of the hierarchy: two that are sound alone could close a cycle together."""
_RIGHTS: Final = {"role", "can_delegate_to", "reports_to", "memory_access"}
"""Set by the application and admins alone, as the type is."""
_NEVER: Final = -1
"""The code of a value that no row has."""


class Agents:
    """Several agents in one store, as one principal works among them."""

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks) -> None:
        self._engine = engine
        self._principal = principal
        self._tasks = tasks

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
        self._engine.check_open()
        acting = acting_agent(self._engine, self._principal, agent, "register", registering=True)
        changes = self._checked(type, capabilities, rights, description)
        boss = changes.get("reports_to")
        boss_ref = None if boss is None else agent_named(self._engine, boss, "reports_to")
        if changes.keys() & _RIGHTS:
            self._principal.require_service("set the rights of", "an agent")

        def work(uow: UnitOfWork) -> Agent:
            if boss_ref is not None:
                self._check_boss(uow, acting.ref, boss_ref)
                changes["reports_to"] = AgentId(boss_ref.ref.id)
            return self._registered(uow, acting, changes)

        return self._engine.write(work)

    def _registered(self, uow: UnitOfWork, acting: ActingAgent, changes: dict[str, Any]) -> Agent:
        key, now = acting.ref.id.bytes, from_us(uow.now_us)
        if acting.name is not None and uow.find(AGENT, key) is None:
            plain = new_agent(uow, acting.name, acting.ref)
            fresh = dataclasses.replace(plain, **changes)
            self._check_type(plain, fresh)
            if insert_agent(uow, self._engine.config, fresh):
                log_change(self._engine, uow, self._principal.label, EventType.AGENT_REGISTER, fresh, changes)
                return fresh
        known = self._known(uow, acting.ref)
        status = AgentStatus.IDLE if known.status is AgentStatus.FAILED else known.status
        changed = {name: value for name, value in changes.items() if getattr(known, name) != value}
        later = dataclasses.replace(known, **changed, status=status, last_heartbeat=now, updated_at=now)
        self._check_type(known, later)
        stored: Agent = uow.update(AGENT, later)
        if changed:
            log_change(self._engine, uow, self._principal.label, EventType.AGENT_REGISTER, stored, changed)
        return stored

    def _check_type(self, known: Agent, later: Agent) -> None:
        """Raise PermissionDenied for an agent that changes its own type: a type gets messages, work and handoffs."""
        if later.agent_type != known.agent_type:
            self._principal.require_service("set the rights of", "an agent")

    def get(self, agent: str | EntityRef) -> Agent:
        """Return a registered agent. Raises: InputError kinds; NotRegistered; PermissionDenied for a user."""
        self._require_reader()
        self._engine.snapshot(ReadConsistency.LATEST)  # as in ``tasks``
        named = agent_named(self._engine, agent)
        found = find_agent(self._engine, named.ref)
        if found is None:
            raise not_registered(named.ref)
        return found

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
        self._require_reader()
        kind = arguments.as_name(type, "type")
        state = None if status is None else arguments.as_enum(status, AgentStatus, "status")
        stage = None if lifecycle is None else arguments.as_enum(lifecycle, AgentLifecycle, "lifecycle")
        found = [
            each
            for each in all_agents(self._engine)
            if kind in (None, each.agent_type) and state in (None, each.status) and stage in (None, each.lifecycle)
        ]
        return sorted(found, key=lambda each: (each.created_at, each.name))

    def tasks(self, agent: str | EntityRef | None = None) -> builtins.list[Trajectory]:
        """Return the active tasks of an agent that the principal may see, the one that was last worked on first.

        ``agent`` left out is the principal itself. An agent has the tasks that it started, those that were handed over
        to it, and those of delegations that it accepted, until they end or are handed on.

        Raises: InputError kinds; NotRegistered; PermissionDenied for a user.
        """
        self._require_reader()
        self._engine.snapshot(ReadConsistency.LATEST)  # names that another process gave or merged count too
        acting = acting_agent(self._engine, self._principal) if agent is None else agent_named(self._engine, agent)
        if find_agent(self._engine, acting.ref) is None:
            raise not_registered(acting.ref)
        readers = Readers(self._engine.part(TaskOwners), self._principal)
        rows = readers.within(self._engine.snapshot())[TRAJECTORY.name]
        active = rows.column("status") == rows.enum_code("status", TrajectoryStatus.ACTIVE)
        numbers: builtins.list[int] = np.flatnonzero(
            rows.live_mask & active & _worked_on_by(rows, acting.ref.id)
        ).tolist()
        found: builtins.list[Trajectory] = [
            readers.shown(TRAJECTORY, self._engine.memory.entity(rows, at))
            for at in numbers
            if readers.allows(rows, at)
        ]
        return sorted(found, key=lambda each: (each.last_activity_at, each.trajectory_id), reverse=True)

    def heartbeat(self, agent: str | EntityRef | None = None) -> Agent:
        """Renew the sign of life of an agent, by the database's clock, and return it; a failed one becomes idle.

        Raises: InputError kinds; NotRegistered; PermissionDenied for another agent than the principal.
        """
        self._engine.check_open()
        acting = acting_agent(self._engine, self._principal, agent)
        renewed = self._engine.write(lambda uow: renew(uow, [acting.ref.id.bytes]))
        if not renewed:
            raise not_registered(acting.ref)
        return renewed[0]

    def set_status(self, status: AgentStatus | str, agent: str | EntityRef | None = None) -> Agent:
        """Set the status of an agent: idle, active, blocked or failed; it is a sign of life too.

        Raises: InputError kinds; NotRegistered; InvalidStateTransition, such as from idle to blocked; PermissionDenied
            for another agent than the principal.
        """
        self._engine.check_open()
        target = arguments.as_enum(status, AgentStatus, "status")
        acting = acting_agent(self._engine, self._principal, agent)

        def work(uow: UnitOfWork) -> Agent:
            known = self._known(uow, acting.ref)
            states.AGENT.check(known.status, target)
            now = from_us(uow.now_us)
            updated: Agent = uow.update(
                AGENT, dataclasses.replace(known, status=target, updated_at=now, last_heartbeat=now)
            )
            return updated

        return self._engine.write(work)

    def heartbeat_many(self, agents: Sequence[str | EntityRef]) -> int:
        """Renew the signs of life of several agents in one transaction; return how many of them are registered.

        Raises: InputError kinds; PermissionDenied for other agents than the principal.
        """
        self._engine.check_open()
        named = arguments.as_items(agents, "agents", "a sequence of agents")
        keys = {acting_agent(self._engine, self._principal, each).ref.id.bytes for each in named}
        return len(self._engine.write(lambda uow: renew(uow, keys))) if keys else 0

    def set_lifecycle(self, lifecycle: AgentLifecycle | str, agent: str | EntityRef) -> Agent:
        """Make an agent active, hibernated or archived, and return it; only active agents act.

        An archived agent gives its to-dos of the workspace back: other agents may claim them.

        Raises: InputError kinds; NotRegistered; PermissionDenied unless the principal is the application or an admin.
        """
        self._engine.check_open()
        target = arguments.as_enum(lifecycle, AgentLifecycle, "lifecycle")
        self._principal.require_service("set the lifecycle of", "an agent")
        named = agent_named(self._engine, agent)

        def work(uow: UnitOfWork) -> Agent:
            known = self._known(uow, named.ref)
            if known.lifecycle is target:
                return known
            now = from_us(uow.now_us)
            changed: Agent = uow.update(
                AGENT, dataclasses.replace(known, lifecycle=target, updated_at=now, last_heartbeat=now)
            )
            if target is AgentLifecycle.ARCHIVED:
                give_back(self._engine, uow, named.ref, self._principal.label)
            if target is AgentLifecycle.ACTIVE:
                watch(uow, uow.now_us + self._engine.config.agents.heartbeat_timeout_ms * MS_US)
            log_change(
                self._engine, uow, self._principal.label, EventType.AGENT_LIFECYCLE, changed, {"lifecycle": target}
            )
            return changed

        return self._engine.write(work)

    def fail_silent(self) -> builtins.list[Agent]:
        """Set agents that were silent for longer than ``agents.heartbeat_timeout_ms`` to failed, and return them.

        Their locks are released in the same transaction, their requests for locks withdrawn, and those who wait behind
        them woken. A job does so by itself, where jobs run in the background.

        Raises: PermissionDenied unless the principal is the application or an admin.
        """
        self._engine.check_open()
        self._principal.require_service("fail", "silent agents")
        return fail_silent(self._engine, self._principal.label)

    @property
    def groups(self) -> Groups:
        """Groups of agents, and the member that speaks next."""
        from caliber.agents.teams.groups import Groups  # few processes lead a group

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
            raise self._principal.denied("read", f"the view of role {wanted.value}")
        return AgentMemoryView(self._engine, Searching(self._engine, self._principal).seen_by(user), wanted)

    # --- rules -----------------------------------------------------------------------------------

    def _known(self, uow: UnitOfWork, ref: EntityRef) -> Agent:
        """Return an agent's row, locked. Raises: NotRegistered."""
        uow.lock(AGENT, ref.id.bytes)
        known: Agent | None = uow.find(AGENT, ref.id.bytes)
        if known is None:
            raise not_registered(ref)
        return known

    def _check_boss(self, uow: UnitOfWork, ref: EntityRef, boss: ActingAgent) -> None:
        """Raise NotRegistered for an unknown boss, CircularReference for one that reports to the agent itself."""
        uow.serialize(_HIERARCHY)
        seen: list[uuid.UUID] = [ref.id]
        above: uuid.UUID | None = boss.ref.id
        while above is not None:
            if above in seen:
                raise CircularReference(entity_type=AGENT.name, ids=[str(each) for each in (*seen, above)])
            seen.append(above)
            known: Agent | None = uow.find(AGENT, above.bytes)
            if known is None:
                raise not_registered(EntityRef(EntityType.AGENT, above))
            above = known.reports_to

    def _checked(self, agent_type: Any, capabilities: Any, rights: dict[str, Any], description: Any) -> dict[str, Any]:
        """Return the arguments that were given, checked. Raises: InputError kinds."""
        changes: dict[str, Any] = {}
        if agent_type is not None:
            changes["agent_type"] = EntityRef.plain_name(
                arguments.as_text(agent_type, "type", limit=arguments.MAX_NAME_CHARS)
            )
        if capabilities is not None:
            changes["capabilities"] = arguments.as_names(capabilities, "capabilities")
        if description is not None:
            changes["description"] = arguments.as_text(description, "description", allow_empty=True)
        if rights["can_delegate_to"] is not None:
            changes["can_delegate_to"] = arguments.as_names(rights["can_delegate_to"], "can_delegate_to")
        if rights["memory_access"] is not None:
            changes["memory_access"] = self._access(rights["memory_access"])
        if rights["role"] is not ...:
            role = rights["role"]
            changes["role"] = None if role is None else arguments.as_enum(role, AgentRole, "role")
        if rights["reports_to"] is not ...:
            changes["reports_to"] = rights["reports_to"]
        return changes

    def _access(self, value: Any) -> MemoryAccess | None:
        """Return rights by kind as they are stored; None for ``{}``, every right. Raises: InputError kinds."""
        from caliber.access.rights import (
            ALL,
            OWN,
            kinds_of,  # few agents have rights of their own
        )

        given = {"read": value.read, "write": value.write} if isinstance(value, MemoryAccess) else value
        parts = dict(arguments.as_mapping(given, "memory_access"))
        if not parts:
            return None
        kinds, scopes = kinds_of(self._engine.store.catalog), (ALL, OWN)
        for part in parts:
            if part not in ("read", "write"):
                raise InvalidValue(field="memory_access", reason="has the keys read and write")
        checked: dict[str, dict[str, str]] = {}
        for part in ("read", "write"):
            field = f"memory_access.{part}"
            checked[part] = dict(arguments.as_mapping(parts.get(part), field))
            for kind, scope in checked[part].items():
                if kind not in kinds:
                    known = ", ".join(sorted(kinds))
                    raise InvalidValue(field=field, reason=f"names a kind that there is not; there are {known}")
                if scope not in scopes:
                    raise InvalidValue(field=field, reason="gives each kind one of: " + ", ".join(scopes))
        return MemoryAccess(checked["read"], checked["write"])

    def _require_reader(self) -> None:
        """Raise PermissionDenied for a user: the registry is closed to users; and as ``require_registered``."""
        if self._principal.is_user:
            raise self._principal.denied("read", "the registry of agents")
        require_registered(self._engine, self._principal)


def _worked_on_by(tasks: RelationSnapshot, agent_id: uuid.UUID) -> NDArray[np.bool_]:
    """Return the mask of the tasks of an agent: it works on them, or started them and no other agent does."""

    def named(column: str) -> NDArray[np.bool_]:
        own: NDArray[np.bool_] = tasks.column(column) == tasks.interned_codes(column).get(agent_id.bytes, _NEVER)
        return own

    started = (tasks.column("initiator_type") == tasks.enum_code("initiator_type", EntityType.AGENT)) & named(
        "initiator_id"
    )
    of_none: NDArray[np.bool_] = tasks.column("agent_id") == tasks.interned_codes("agent_id").get(None, _NEVER)
    own: NDArray[np.bool_] = named("agent_id") | (of_none & started)
    return own
