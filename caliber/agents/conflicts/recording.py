"""Conflicts between agents: detected where one comes up, recorded one a pair, and escalated.

Conflicts of agents are rows of the relation that contradictions found by validation are in, so a pair has one open
conflict whoever finds it. Source: C-401, C-432 to C-434, C-441, K-045.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any, Final

from caliber.access.acting import is_live
from caliber.access.corrections import CorrectionListener
from caliber.access.identities import named_in
from caliber.agents.mail import delivery
from caliber.agents.mail.receiving import wakeups_of
from caliber.engine.engine import Engine
from caliber.model import states
from caliber.model.access import PrincipalKind
from caliber.model.agents import MessagePriority, MessageType
from caliber.model.agents.registry import Agent, AgentId
from caliber.model.deadline import unbounded
from caliber.model.errors import CaliberError, Conflict, InputError
from caliber.model.events import CorrectionAction, EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, Disagreement
from caliber.model.references import EntityRef, EntityType, TrajectoryId, kind_named
from caliber.model.time import from_us
from caliber.pcp.conflicts import change, holds, of_pair, open_conflict, states_otherwise, strategy_of
from caliber.schema.relation import Relation
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


_MOST: Final = 100
"""The newest decisions about one subject that a new one is compared with."""


class AgentConflictListener(CorrectionListener):
    """Records conflicts of writes: decisions that contradict each other, and writes that came too late."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def added(self, uow: UnitOfWork, relation: Relation, record: Any, by: str) -> None:
        if is_agent(by):
            self._compare(uow, relation, record, by)

    def corrected(
        self, uow: UnitOfWork, relation: Relation, before: Any, after: Any, action: CorrectionAction, by: str
    ) -> None:
        grounded = relation.grounded
        if action is not CorrectionAction.UPDATE or grounded is None or not grounded.is_decision(after):
            return
        changed = not grounded.is_decision(before) or states_otherwise(relation, before, after)
        if changed and is_agent(by) and holds(relation, after, uow.now_us):
            self._compare(uow, relation, after, by)

    def _compare(self, uow: UnitOfWork, relation: Relation, made: Any, by: str) -> None:
        from caliber.text.contradictions import contradicts  # word lists that few processes need

        assert relation.grounded is not None
        subject = tuple(getattr(made, name) for name in relation.grounded.subject)
        # Of two at once, in two processes, one sees the other's.
        uow.serialize(f"caliber:decisions:{relation.name}:{subject!r}")
        text, key = self._text(relation, made), getattr(made, relation.key[0])
        for each in self._others(uow, relation, made, by, subject):
            verdict = contradicts(self._text(relation, each), text, subject[0])
            if verdict is not None:
                ids = (getattr(each, relation.key[0]), key)
                authors = (getattr(each, relation.rights.author or ""), by)
                sides = [
                    Side(EntityRef(kind_named(relation.name), one), agent_of(uow, label))
                    for one, label in zip(ids, authors, strict=True)
                ]
                record(
                    self._engine,
                    uow,
                    ConflictType.INCOMPATIBLE_DECISION,
                    (sides[0], sides[1]),
                    f"{verdict.kind}: {verdict.reason}",
                    by,
                    escalated=strategy_of(self._engine) is ConflictResolution.MANUAL,
                )

    @staticmethod
    def _others(uow: UnitOfWork, relation: Relation, made: Any, by: str, subject: Sequence[str]) -> list[Any]:
        """Return the decisions of other agents about a subject that hold, the newest ones."""
        assert relation.grounded is not None
        path = next(each for each in relation.paths if each.by == relation.grounded.subject)
        return [
            each
            for each in uow.select_path(relation, path.name, *subject)
            if relation.grounded.is_decision(each)
            and getattr(each, relation.key[0]) != getattr(made, relation.key[0])
            and is_agent(author := getattr(each, relation.rights.author or ""))
            and not same_agent(author, by)
            and holds(relation, each, uow.now_us)
        ][-_MOST:]

    @staticmethod
    def _text(relation: Relation, made: Any) -> str:
        assert relation.text is not None
        return "\n".join(getattr(made, name) for name in relation.text.searched)

    def refused(self, relation: Relation, key: uuid.UUID, by: str, other: str) -> None:
        if not is_agent(by) or not is_agent(other) or same_agent(by, other):
            return
        item = EntityRef(kind_named(relation.name), key)

        def work(uow: UnitOfWork) -> None:
            sides = (Side(item, agent_of(uow, other)), Side(item, agent_of(uow, by)))
            record(
                self._engine,
                uow,
                ConflictType.CONCURRENT_WRITE,
                sides,
                f"{by} wrote what {other} changed since it was read",
                by,
            )

        _write(self._engine, work)


def record_contention(engine: Engine, resource: str, holders: Sequence[str], asker: str) -> None:
    """Record that an agent contends with others for a resource."""
    others = [each for each in holders if is_agent(each) and not same_agent(each, asker)]
    if not is_agent(asker) or not others:
        return

    def work(uow: UnitOfWork) -> None:
        for holder in others:
            sides = [Side(claim_on(resource, each), agent_of(uow, each)) for each in (holder, asker)]
            record(
                engine,
                uow,
                ConflictType.RESOURCE_CONTENTION,
                (sides[0], sides[1]),
                f"{asker} asked for what {holder} held",
                asker,
                resource=resource,
            )

    _write(engine, work)


def _write(engine: Engine, work: Any) -> None:
    """Record a conflict after the call that met it, whose own result stands whatever becomes of this."""
    try:
        with unbounded():
            engine.write(work)
    except CaliberError as error:
        engine.record_error("conflicts", error)
