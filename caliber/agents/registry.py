"""Registry of the agents that share a store: registering, heartbeats, states.

Source: C-362, C-363, C-381, C-418 to C-421, C-442, P-011.
"""

from __future__ import annotations

import builtins
import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.identities import not_registered, require_registered
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.agents.acting import (
    ActingAgent,
    acting_agent,
    agent_named,
    find_agent,
    insert_agent,
    new_agent,
    watch,
)
from caliber.agents.liveness import all_agents, fail_silent, log_change, renew
from caliber.engine.engine import Engine
from caliber.model import arguments, states
from caliber.model.access import AgentRole, Principal
from caliber.model.agents.registry import Agent, AgentId, AgentLifecycle, AgentStatus, MemoryAccess
from caliber.model.errors import CircularReference, InvalidValue, PermissionDenied
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType
from caliber.model.search import ReadConsistency
from caliber.model.time import MS_US, from_us
from caliber.model.trajectory import Trajectory, TrajectoryStatus
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations import AGENT, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.giving_back import give_back

_HIERARCHY: Final = "caliber:agents reports_to"
"""Serializes changes of the hierarchy: two that are sound alone could close a cycle together."""
_RIGHTS: Final = {"role", "can_delegate_to", "reports_to", "memory_access"}
"""Set by the application and admins alone, as the type is."""
_NEVER: Final = -1
"""The code of a value that no row has."""


class Registry:
    """The registry, as one principal uses it."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def register(
        self,
        agent: str | EntityRef | None,
        agent_type: str | None,
        capabilities: Sequence[str] | None,
        rights: dict[str, Any],
        description: str | None,
    ) -> Agent:
        """Insert an agent, or update the one of its name. ``rights`` are checked; see ``Agents.register``."""
        self._engine.check_open()
        acting = acting_agent(self._engine, self._principal, agent, "register", registering=True)
        changes = self._checked(agent_type, capabilities, rights, description)
        boss = changes.get("reports_to")
        boss_ref = None if boss is None else agent_named(self._engine, boss, "reports_to")
        if changes.keys() & _RIGHTS:
            self._require_service("set the rights of", "an agent")

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
                self._audit(uow, EventType.AGENT_REGISTER, fresh, changes)
                return fresh
        uow.lock(AGENT, key)
        known: Agent | None = uow.find(AGENT, key)
        if known is None:
            raise not_registered(acting.ref)
        status = AgentStatus.IDLE if known.status is AgentStatus.FAILED else known.status
        changed = {name: value for name, value in changes.items() if getattr(known, name) != value}
        later = dataclasses.replace(known, **changed, status=status, last_heartbeat=now, updated_at=now)
        self._check_type(known, later)
        known = uow.update(AGENT, later)
        if changed:
            self._audit(uow, EventType.AGENT_REGISTER, known, changed)
        return known

    def _check_type(self, known: Agent, later: Agent) -> None:
        """Raise PermissionDenied for an agent that changes its own type: a type gets messages, work and handoffs."""
        if later.agent_type != known.agent_type:
            self._require_service("set the rights of", "an agent")

    def get(self, agent: str | EntityRef) -> Agent:
        """Return an agent. Raises: InputError kinds; NotRegistered."""
        self._require_reader()
        self._engine.snapshot(ReadConsistency.LATEST)  # as in ``tasks``
        named = agent_named(self._engine, agent)
        found = find_agent(self._engine, named.ref)
        if found is None:
            raise not_registered(named.ref)
        return found

    def list(
        self, agent_type: str | None, status: AgentStatus | str | None, lifecycle: AgentLifecycle | str | None
    ) -> list[Agent]:
        """Return the agents of a type, status and stage of life, the oldest first."""
        self._require_reader()
        kind = arguments.as_name(agent_type, "type")
        state = None if status is None else arguments.as_enum(status, AgentStatus, "status")
        stage = None if lifecycle is None else arguments.as_enum(lifecycle, AgentLifecycle, "lifecycle")
        found = [
            each
            for each in all_agents(self._engine)
            if kind in (None, each.agent_type) and state in (None, each.status) and stage in (None, each.lifecycle)
        ]
        return sorted(found, key=lambda each: (each.created_at, each.name))

    def tasks(self, agent: str | EntityRef | None) -> builtins.list[Trajectory]:
        """Return the active tasks of an agent that the principal may see, the one that was last worked on first."""
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

    def heartbeat(self, agent: str | EntityRef | None) -> Agent:
        """Renew an agent's sign of life; a failed one becomes idle."""
        self._engine.check_open()
        acting = acting_agent(self._engine, self._principal, agent)
        renewed = self._engine.write(lambda uow: renew(uow, [acting.ref.id.bytes]))
        if not renewed:
            raise not_registered(acting.ref)
        return renewed[0]

    def set_status(self, status: AgentStatus | str, agent: str | EntityRef | None) -> Agent:
        """Change the state of an agent at run time."""
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
        """Renew the signs of life of several agents in one transaction; return how many are registered."""
        self._engine.check_open()
        named = arguments.as_items(agents, "agents", "a sequence of agents")
        keys = {acting_agent(self._engine, self._principal, each).ref.id.bytes for each in named}
        return len(self._engine.write(lambda uow: renew(uow, keys))) if keys else 0

    def set_lifecycle(self, lifecycle: AgentLifecycle | str, agent: str | EntityRef) -> Agent:
        """Change the stage of an agent's life; only active agents act."""
        self._engine.check_open()
        target = arguments.as_enum(lifecycle, AgentLifecycle, "lifecycle")
        self._require_service("set the lifecycle of", "an agent")
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
            self._audit(uow, EventType.AGENT_LIFECYCLE, changed, {"lifecycle": target})
            return changed

        return self._engine.write(work)

    def fail_silent(self) -> builtins.list[Agent]:
        """Set agents that were silent for longer than the timeout to failed and return them; locks and requests end."""
        self._engine.check_open()
        self._require_service("fail", "silent agents")
        return fail_silent(self._engine, self._principal.label)

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
        from caliber.access.rights import ALL, OWN, kinds_of  # few agents have rights of their own

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

    def _require_service(self, action: str, resource: str) -> None:
        if not self._principal.serves:
            raise PermissionDenied(agent_id=self._principal.label, action=action, resource=resource)

    def _require_reader(self) -> None:
        """Raise PermissionDenied for a user: the registry is closed to users; and as ``require_registered``."""
        if self._principal.is_user:
            raise PermissionDenied(agent_id=self._principal.label, action="read", resource="the registry of agents")
        require_registered(self._engine, self._principal)

    def _audit(self, uow: UnitOfWork, kind: EventType, agent: Agent, changes: dict[str, Any]) -> None:
        """Log a change of what an agent is, or may do, in its transaction; names and texts stay out of the log."""
        log_change(self._engine, uow, self._principal.label, kind, agent, changes)


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
