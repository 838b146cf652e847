"""Undoing of one batch of learning: every note as it was before, in one transaction with its audit event."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from caliber.access.corrections import Corrections
from caliber.access.identities import current
from caliber.engine.engine import Engine
from caliber.events import event_log
from caliber.knowledge.correcting import NoteCorrections
from caliber.learning.learner import KIND
from caliber.learning.owner import Owner, owner_of
from caliber.learning.results import Results
from caliber.model.access import Principal
from caliber.model.errors import Conflict, NotFound, PermissionDenied
from caliber.model.events import EventFamily, EventType
from caliber.model.knowledge import Note
from caliber.model.learning import LearningAction, PersonAttribute, PersonFact
from caliber.model.references import EntityRef, EntityType
from caliber.schema.relations import NOTE, PERSON_FACT
from caliber.storage.write.unit_of_work import UnitOfWork


def undo(engine: Engine, principal: Principal, learned_id: uuid.UUID) -> None:
    """Take back what a batch learnt; a second time changes nothing.

    Raises: as ``Learning.undo``.
    """
    event, undone = Results(engine).events(learned_id)
    if event is None:
        Results(engine).get(learned_id)  # NotFound for no batch at all
        raise Conflict(entity_type=KIND, id=learned_id, reason="it is not learnt yet", retryable=True)
    if undone:
        return
    kind, key = event.payload["owner"]
    owner = owner_of(engine, current(engine, EntityRef(EntityType(kind), uuid.UUID(key))))
    if not principal.serves and principal.label not in owner.principals:
        raise PermissionDenied(agent_id=principal.label, action="undo", resource=f"{KIND} {learned_id}")
    undoing = _Undoing(engine, owner, learned_id)

    def work(uow: UnitOfWork) -> None:
        uow.serialize(f"learning {owner.entity.id}")
        for decision in reversed(event.payload["decisions"]):
            undoing.undo(uow, decision)
        event_log.audit(
            uow,
            engine.event(
                EventType.LEARN_UNDO,
                principal=principal.label,
                trajectory_id=event.trajectory_id,
                subject=(EntityType.JOB, learned_id),
                payload={"undone": str(event.event_id)},
                family=EventFamily.AUDIT,
                at_us=uow.now_us,
            ),
        )

    engine.write(work)


class _Undoing:
    def __init__(self, engine: Engine, owner: Owner, learned_id: uuid.UUID) -> None:
        self._notes = NoteCorrections(engine, owner.learner)
        self._corrections = Corrections(engine, owner.learner)
        self._learned_id = learned_id

    def undo(self, uow: UnitOfWork, decision: dict[str, Any]) -> None:
        """Take back one decision; one about a note that was forgotten since is passed over."""
        if decision["action"] == LearningAction.NOTHING:
            return
        key = uuid.UUID(decision.get("replaces", decision["note_id"]))
        try:
            note: Note = uow.get(NOTE, key.bytes)
        except NotFound:
            return
        last = self._corrections.last(uow, NOTE, note)
        if (None if last is None else str(last.event_id)) != decision.get("correction"):
            reason = f"note {key} was corrected since; correct that, or undo it first"
            raise Conflict(entity_type=KIND, id=self._learned_id, reason=reason)
        if decision["action"] == LearningAction.ADD:
            self._notes.delete(key, None, None)(uow)
            return
        self._notes.undo(key, None, None)(uow)
        if "was" in decision:
            fact: PersonFact | None = uow.find(PERSON_FACT, key.bytes)
            attribute, slot, value = decision["was"]
            was = {"attribute": PersonAttribute(attribute), "slot": slot, "value": value}
            if fact is not None:
                uow.update(PERSON_FACT, dataclasses.replace(fact, **was))
