"""The agent that a call is made for, and its row in the registry.

The registry's ids are those of ``EntityRef.agent(name)``; the principal ``agent:planner`` is the agent ``planner``.
Source: C-420, C-422.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from caliber.access.identities import as_entity, current, entity_of, not_registered, require_registered
from caliber.config import CaliberConfig
from caliber.engine.engine import Engine
from caliber.jobs.states import SYSTEM, new_job
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents.registry import Agent, AgentId, AgentLifecycle, AgentStatus
from caliber.model.errors import PermissionDenied, RequiredFieldMissing
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import MS_US, from_us, to_us
from caliber.schema.relations import AGENT, IDENTITY, JOB
from caliber.storage.write.unit_of_work import UnitOfWork

WATCH: Final = "agents.silent"
"""The kind of the job that looks for silent agents, of which there is one while there are active agents."""
DEFAULT_TYPE: Final = "agent"
"""The type of an agent that was registered by its first act."""


@dataclass(frozen=True, slots=True)
class ActingAgent:
    """An agent by its name and reference; ``name`` is None for one that was given by reference and is unknown."""

    name: str | None
    ref: EntityRef

    @property
    def label(self) -> str:
        """The name of the agent in audit records and of locks' holders: ``agent:planner``."""
        return f"{PrincipalKind.AGENT.value}:{self.name or self.ref.id}"


def agent_named(engine: Engine, agent: str | EntityRef, field: str = "agent") -> ActingAgent:
    """Return the agent of a name or reference, registered or not.

    Raises: DTypeError; InvalidValue for an empty, overlong or invisible name, or a reference to something else.
    """
    if isinstance(agent, EntityRef):
        ref = current(engine, as_entity(agent, EntityType.AGENT, field))
        known = find_agent(engine, ref)
        return ActingAgent(None if known is None else known.name, ref)
    name = EntityRef.plain_name(arguments.as_text(agent, field, limit=arguments.MAX_NAME_CHARS))
    if not engine.memory.snapshot[IDENTITY.name].count():
        return ActingAgent(name, EntityRef.agent(name))
    return ActingAgent(name, entity_of(engine, name, EntityType.AGENT, field=field, register=False))


def acting_agent(
    engine: Engine,
    principal: Principal,
    agent: str | EntityRef | None = None,
    action: str = "act as",
    *,
    registering: bool = False,
) -> ActingAgent:
    """Return the agent that a call is made for: a handle's own, or the one that the application or an admin names.

    Raises: as ``agent_named``; NotRegistered for an agent that is to be in the registry, unless it is ``registering``;
        RequiredFieldMissing where the principal is no agent and names none; PermissionDenied
        for an agent that names another one, and for a user.
    """
    if not registering:
        require_registered(engine, principal)
    own = agent_named(engine, principal.id) if principal.kind is PrincipalKind.AGENT else None
    if agent is None:
        if own is not None:
            return own
        if principal.serves:
            raise RequiredFieldMissing(
                "agent is required: name the agent that acts, or use memory.as_agent(...)",
                field="agent",
            )
        raise principal.denied(action, "an agent")
    named = agent_named(engine, agent)
    if principal.serves or (own is not None and own.ref == named.ref):
        return named
    raise principal.denied(action, "another agent")


def find_agent(engine: Engine, ref: EntityRef) -> Agent | None:
    """Return an agent's row as memory has it, or None."""
    rows = engine.snapshot()[AGENT.name]
    number = rows.find(ref.id.bytes)
    if number < 0:
        return None
    agent: Agent = engine.memory.entity(rows, number)
    return agent


def registered(uow: UnitOfWork, config: CaliberConfig, agent: ActingAgent) -> Agent:
    """Return the row of an agent that acts, as this transaction has it; with ``open`` its first act registers it.

    An act is a sign of life: the heartbeat is renewed where it is old, and a failed agent becomes idle.

    Raises: NotRegistered; PermissionDenied for an agent that is hibernated or archived.
    """
    key = agent.ref.id.bytes
    known: Agent | None = uow.find(AGENT, key)
    if known is None:
        if agent.name is None or config.agents.registration == "required":
            raise not_registered(agent.ref)
        insert_agent(uow, config, new_agent(uow, agent.name, agent.ref))
        known = uow.find(AGENT, key)
        assert known is not None  # inserted here, or by another transaction that has ended
    if _acts_unwritten(known, uow.now_us, config):
        return known
    _check_active(known)
    revived = AgentStatus.IDLE if known.status is AgentStatus.FAILED else known.status
    now = from_us(uow.now_us)
    renewed: Agent = uow.update(AGENT, dataclasses.replace(known, status=revived, last_heartbeat=now, updated_at=now))
    return renewed


def require_assignable(uow: UnitOfWork, agent: EntityRef) -> Agent:
    """Return the row of an agent that gets work: for it that is no sign of life, and does not register it.

    Raises: NotRegistered; PermissionDenied for an archived agent.
    """
    known: Agent | None = uow.find(AGENT, agent.id.bytes)
    if known is None:
        raise not_registered(agent)
    if known.lifecycle is AgentLifecycle.ARCHIVED:
        raise PermissionDenied(
            f"agent {agent.id} is archived: name another one, or make it active with memory.agents.set_lifecycle",
            agent_id=str(agent.id),
            action="give work to",
            resource="an agent that is archived",
        )
    return known


def admitted(engine: Engine, agent: ActingAgent) -> Agent:
    """Return an agent that acts, as ``registered`` does, but from memory where its act would write nothing.

    Raises: as ``registered``.
    """
    known = find_agent(engine, agent.ref)
    if known is not None and _acts_unwritten(known, engine.clock.now_us(), engine.config):
        return known
    return engine.write(lambda uow: registered(uow, engine.config, agent))


def is_live(agent: Agent) -> bool:
    """Return whether an agent is active and has not failed: it is reached, and would be missed."""
    return agent.lifecycle is AgentLifecycle.ACTIVE and agent.status is not AgentStatus.FAILED


def require_active(engine: Engine, principal: Principal) -> None:
    """Raise PermissionDenied for an agent that memory has as hibernated or archived; an unknown one may act."""
    if principal.kind is PrincipalKind.AGENT and not principal.serves:
        known = find_agent(engine, agent_named(engine, principal.id).ref)
        if known is not None:
            _check_active(known)


def _check_active(agent: Agent) -> None:
    if agent.lifecycle is not AgentLifecycle.ACTIVE:
        shown = str(agent.agent_id)
        raise PermissionDenied(
            f"agent {shown} is {agent.lifecycle}: make it active with memory.agents.set_lifecycle before it acts",
            agent_id=shown,
            action="act as",
            resource=f"an agent that is {agent.lifecycle}",
        )


def _acts_unwritten(agent: Agent, now_us: int, config: CaliberConfig) -> bool:
    """Return whether an agent acts without a write: it may act, and no sign of life is due."""
    return is_live(agent) and now_us - to_us(agent.last_heartbeat) <= config.agents.sign_every_ms * MS_US


def insert_agent(uow: UnitOfWork, config: CaliberConfig, agent: Agent) -> bool:
    """Insert an agent unless there is one of its id, and see to it that its silence will be noticed."""
    inserted = uow.insert_new(AGENT, agent)
    if inserted:
        watch(uow, uow.now_us + config.agents.heartbeat_timeout_ms * MS_US)
    return inserted


def watch(uow: UnitOfWork, due_us: int) -> None:
    """Add the job that looks for silent agents, unless one waits already."""
    job = new_job(WATCH, from_us(uow.now_us), from_us(due_us), SYSTEM, key=WATCH, payload={}, of=(None, None))
    uow.insert_new(JOB, job)


def new_agent(uow: UnitOfWork, name: str, ref: EntityRef) -> Agent:
    """Return the row of an agent of which nothing but the name is known."""
    now = from_us(uow.now_us)
    return Agent(
        agent_id=AgentId(ref.id),
        name=name,
        agent_type=DEFAULT_TYPE,
        capabilities=(),
        role=None,
        memory_access=None,
        status=AgentStatus.IDLE,
        lifecycle=AgentLifecycle.ACTIVE,
        can_delegate_to=(),
        reports_to=None,
        created_at=now,
        updated_at=now,
        last_heartbeat=now,
    )
