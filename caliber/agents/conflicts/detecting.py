"""Detection of conflicts between agents, where one comes up: a refused write, a decision, a lock that is contended.

Nothing is polled. A call that meets no other agent pays nothing: a decision looks up the decisions about its subject,
and the others come here only after they were refused, or waited. Source: C-432, C-434.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from caliber.access.corrections import CorrectionListener
from caliber.agents.conflicts.recording import Side, agent_of, claim_on, is_agent, record, same_agent
from caliber.engine.engine import Engine
from caliber.model.deadline import unbounded
from caliber.model.errors import CaliberError
from caliber.model.events import CorrectionAction
from caliber.model.pcp import ConflictResolution, ConflictType
from caliber.model.references import EntityRef, kind_named
from caliber.pcp.conflict_sides import holds, strategy_of
from caliber.schema.relation import Relation
from caliber.storage.write.unit_of_work import UnitOfWork

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
        if is_agent(by) and holds(relation, after, uow.now_us):
            changed = (*grounded.subject, *(relation.text.searched if relation.text else ()))
            if not grounded.is_decision(before) or any(getattr(before, n) != getattr(after, n) for n in changed):
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
