"""Transactions of conflicts between agents: recording one a pair, and escalating it.

Conflicts of agents are rows of the relation that contradictions found by validation are in, so a pair has one open
conflict whoever finds it. Source: C-401, C-432 to C-434, C-441, K-045.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Final

from caliber.access.acting import is_live
from caliber.access.identities import named_in
from caliber.agents.mail import delivery
from caliber.agents.mail.wakeups import wakeups_of
from caliber.engine.engine import Engine
from caliber.model import states
from caliber.model.access import PrincipalKind
from caliber.model.agents import MessagePriority, MessageType
from caliber.model.agents.registry import Agent, AgentId
from caliber.model.errors import Conflict, InputError
from caliber.model.events import EventType
from caliber.model.ids import TrajectoryId
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictStatus, ConflictType, ConflictWinner, Disagreement
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.pcp.conflict_sides import change, of_pair, open_conflict
from caliber.schema.relations import AGENT, CONFLICT
from caliber.storage.write.unit_of_work import UnitOfWork

_CLAIMS: Final = uuid.UUID("7f0c0f6e-6a52-5c9d-9a7e-0b8f3a1d2c41")
"""The namespace of the claims of agents on resources; it never changes."""
_AGENT: Final = f"{PrincipalKind.AGENT.value}:"


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a conflict: a record, or a claim on a resource, and its agent."""

    item: EntityRef
    agent_id: AgentId | None


def agent_of(uow: UnitOfWork, label: str | None) -> AgentId | None:
    """Return the id of the agent of a label, such as ``agent:planner``; None for one that is not registered."""
    if not is_agent(label):
        return None
    assert label is not None
    try:
        ref = named_in(uow, EntityType.AGENT, label.removeprefix(_AGENT).partition("@")[0])
    except InputError:
        return None
    known: Agent | None = uow.find(AGENT, ref.id.bytes)
    return None if known is None else known.agent_id


def is_agent(label: str | None) -> bool:
    """Return whether a label names an agent."""
    return label is not None and label.startswith(_AGENT)


def same_agent(one: str | None, other: str | None) -> bool:
    """Return whether two labels, with a role behind them or not, name one agent."""
    return (one or "").partition("@")[0] == (other or "").partition("@")[0]


def claim_on(resource: str, holder: str) -> EntityRef:
    """Return the claim of a holder on a resource: the same in every program, whichever lock it is."""
    return EntityRef(EntityType.LOCK, uuid.uuid5(uuid.uuid5(_CLAIMS, resource), holder))


def record(
    engine: Engine,
    uow: UnitOfWork,
    kind: ConflictType,
    sides: tuple[Side, Side],
    reason: str,
    by: str,
    *,
    task: TrajectoryId | None = None,
    resource: str | None = None,
    escalated: bool = False,
) -> Disagreement:
    """Record a conflict of a pair and return it, or the one that is open already.

    Two that were kept side by side are no conflict until one of them changes: their resolved conflict is returned. Of
    two writes of one value each pair is a new conflict.

    Raises: Conflict, to be tried again, where another writer records the same pair.
    """
    pair = sides[0].item, sides[1].item
    for each in of_pair(uow, *pair):
        if each.is_open or (each.winner is ConflictWinner.BOTH and pair[0] != pair[1]):
            return each
    a, b = sorted(sides, key=lambda each: each.item.id.bytes)
    made = open_conflict(
        *(engine, uow, (a.item, b.item), reason, by, ConflictStatus.DETECTED),
        conflict_type=kind, trajectory_id=task, resource=resource, agent_a_id=a.agent_id, agent_b_id=b.agent_id,
    )  # fmt: skip
    if made is not None:
        return escalate(engine, uow, made, by) if escalated else made
    found = next((each for each in of_pair(uow, *pair) if each.is_open), None)
    if found is None:  # another writer's, which this transaction does not see yet
        reason = "another writer records a conflict of the pair"
        raise Conflict(entity_type=CONFLICT.name, id=None, reason=reason, retryable=True)
    return found


def escalate(engine: Engine, uow: UnitOfWork, conflict: Disagreement, by: str) -> Disagreement:
    """Leave a conflict to the agent above its agents, which gets a message; without one to a person.

    Of one that was escalated to an agent, that is the agent above this one. Raises: InvalidStateTransition.
    """
    if conflict.status is ConflictStatus.ESCALATED and conflict.escalated_to is None:
        return conflict  # a person has it already
    if conflict.status is not ConflictStatus.ESCALATED:
        states.CONFLICT.check(conflict.status, ConflictStatus.ESCALATED)
    judge = _judge(uow, conflict)
    changed = dataclasses.replace(
        conflict,
        status=ConflictStatus.ESCALATED,
        escalated_to=None if judge is None else judge.agent_id,
        updated_at=from_us(uow.now_us),
    )
    changed = change(engine, uow, EventType.CONFLICT_ESCALATE, changed, by)
    if judge is not None:
        _tell(engine, uow, changed, judge)
    return changed


def _judge(uow: UnitOfWork, conflict: Disagreement) -> Agent | None:
    """Return the agent that is to decide: the nearest live one above both, and none of the two."""
    if conflict.escalated_to is not None:
        above = _above(uow, conflict.escalated_to)
    else:
        chains = [_above(uow, key) for key in (conflict.agent_a_id, conflict.agent_b_id) if key is not None]
        common = set.intersection(*({each.agent_id for each in chain} for chain in chains)) if chains else set()
        above = [each for each in chains[0] if each.agent_id in common] if chains else []
    parties = (conflict.agent_a_id, conflict.agent_b_id)
    fit = (each for each in above if each.agent_id not in parties and is_live(each))
    return next(fit, None)


def _above(uow: UnitOfWork, key: AgentId) -> list[Agent]:
    """Return the agents above an agent, the nearest first."""
    found: list[Agent] = []
    agent: Agent | None = uow.find(AGENT, key.bytes)
    while agent is not None and agent.reports_to is not None:
        if agent.reports_to in (key, *(each.agent_id for each in found)):
            break  # a chain that comes back to itself: only a damaged store has one
        agent = uow.find(AGENT, agent.reports_to.bytes)
        if agent is not None:
            found.append(agent)
    return found


def _tell(engine: Engine, uow: UnitOfWork, conflict: Disagreement, judge: Agent) -> None:
    """Send the agent that is to decide a message; a full mailbox gets none, and the conflict stands in its list."""
    party = conflict.agent_b_id or conflict.agent_a_id
    sender: Agent | None = None if party is None else uow.find(AGENT, party.bytes)
    most = engine.config.agents.messages.pending_max
    if sender is None or uow.select("message.backlog", judge.agent_id.bytes, uow.now_us, most)[0][0] >= most:
        return
    out = delivery.Outgoing(
        to=EntityRef(EntityType.AGENT, judge.agent_id),
        message_type=MessageType.QUESTION,
        priority=MessagePriority.HIGH,
        payload={"conflict": str(conflict.conflict_id), "conflict_type": conflict.conflict_type.value},
        trajectory_id=conflict.trajectory_id,
        idempotency_key=f"conflict {conflict.conflict_id} to {judge.agent_id}",
    )
    messages, new = delivery.send(uow, engine.config, sender, out)
    if new:
        wakeups_of(engine).notify(uow, [each.mailbox for each in messages])
