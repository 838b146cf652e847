"""Results of learning, and undoing them by batch or by turn, in one transaction with its audit event."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as Collection
from typing import Any

from caliber.access.corrections import Corrections
from caliber.access.identities import current, current_in
from caliber.engine.engine import Engine
from caliber.knowledge.notes import NoteCorrections
from caliber.learning.learner import KIND, Learner
from caliber.learning.owner import Owner, owner_in, owner_of, taught_by
from caliber.model.access import Principal
from caliber.model.errors import Conflict, NotFound
from caliber.model.events import Event, EventType
from caliber.model.jobs import Job, JobOutcome, JobState
from caliber.model.knowledge import Note, NoteType
from caliber.model.learning import Learned, LearningAction, LearningDecision, PersonAttribute, PersonFact
from caliber.model.process.interrupts import suppress
from caliber.model.references import EntityType, NoteId, TrajectoryId, TurnId
from caliber.model.trajectory import Turn
from caliber.schema.predicate import Comparison, Operator, all_of
from caliber.schema.relation import Relation
from caliber.schema.relations import EVENT, JOB, NOTE, PERSON_FACT, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.conditions import Listing
from caliber.storage.write.unit_of_work import UnitOfWork


def undo(engine: Engine, principal: Principal, learned_id: uuid.UUID) -> None:
    """Take back what a batch learnt; a second time changes nothing.

    Raises: as ``Learning.undo``.
    """
    event, undone = engine.read(lambda uow: decided_in(uow, learned_id))
    if event is None:
        result_of(engine, learned_id)  # NotFound for no batch at all
        raise Conflict(entity_type=KIND, id=learned_id, reason="it is not learnt yet", retryable=True)
    if undone:
        return
    user = taught_by(event.payload)
    if user is None:
        raise NotFound(entity_type=KIND, id=learned_id)
    owner = owner_of(engine, current(engine, user))
    if not principal.serves and principal.label not in owner.principals:
        raise principal.denied("undo", f"{KIND} {learned_id}")
    undoing = _Undoing(engine, owner, learned_id)

    def work(uow: UnitOfWork) -> None:
        uow.serialize(f"learning {owner.entity.id}")
        for decision in reversed(event.payload["decisions"]):
            undoing.undo(uow, decision)
        _log_undone(engine, principal, event, uow)

    engine.write(work)


class RolledBack:
    """Facts learnt from turns that a recovery rolls back, or brings back, for one principal."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def take_back(self, uow: UnitOfWork, trajectory_id: uuid.UUID, turns: Iterable[Turn]) -> tuple[int, int]:
        """Undo the decisions about turns that are rolled back; return the facts taken back, and those kept.

        A fact that was corrected since stays. Where a batch has other turns too, their facts stay.
        """
        gone = {str(turn.turn_id) for turn in turns}
        undone = kept = 0
        for event in self._batches(uow, trajectory_id, gone):
            owner = _owner(uow, event)
            assert event.subject_id is not None  # the job
            undoing = _Undoing(self._engine, owner, event.subject_id)
            uow.serialize(f"learning {owner.entity.id}")
            corrected: list[str] = []
            for decision in reversed(event.payload["decisions"]):
                if decision["turn_id"] not in gone or decision["action"] == LearningAction.NOTHING:
                    continue
                try:
                    undoing.undo(uow, decision)
                    undone += 1
                except Conflict:
                    corrected.append(decision["note_id"])
            kept += len(corrected)
            left = {"turns": sorted(gone), "corrected": corrected}
            _log_undone(self._engine, self._principal, event, uow, **left)
        return undone, kept

    def learn_again(self, uow: UnitOfWork, trajectory_id: uuid.UUID, turns: Iterable[Turn]) -> None:
        """Add the jobs that learn from turns which are no longer rolled back, in the order in which they taught.

        What a user took back stays so: a batch that a user undid is not learnt again, and of a turn with a fact that
        was corrected before it was rolled back, the other added facts are restored.
        """
        back = {str(turn.turn_id): turn for turn in turns}
        undoings = {
            undoing.payload["undone"]: undoing.payload.get("corrected", ())
            for undoing in self._events(uow, trajectory_id, EventType.LEARN_UNDO)
            if "turns" in undoing.payload  # a recovery's
        }
        for event in reversed(self._batches(uow, trajectory_id, back.keys(), undone=True)):
            corrected = undoings.get(str(event.event_id))
            if corrected is None:
                continue
            owner, decisions = _owner(uow, event), event.payload["decisions"]
            touched = {each["turn_id"] for each in decisions if each.get("note_id") in corrected}
            again = [back[key] for key in event.payload["turns"] if key in back and key not in touched]
            if again:
                self._engine.part(Learner).enqueue(uow, again, owner.entity, self._principal, now=False)
            assert event.subject_id is not None  # the job
            undoing = _Undoing(self._engine, owner, event.subject_id)
            for decision in decisions:
                if decision["turn_id"] in touched and decision["note_id"] not in corrected:
                    undoing.restore(uow, decision)

    def learnt(self, uow: UnitOfWork, trajectory_id: uuid.UUID) -> Collection[bytes]:
        """Return the ids of the notes that were ever learnt from a task."""
        decisions = [
            decision
            for event in self._events(uow, trajectory_id, EventType.LEARN)
            for decision in event.payload.get("decisions", ())
        ]
        named = (decision.get(name) for decision in decisions for name in ("note_id", "replaces"))
        return {uuid.UUID(key).bytes for key in named if key is not None}

    def _batches(
        self, uow: UnitOfWork, trajectory_id: uuid.UUID, turns: Collection[str], *, undone: bool = False
    ) -> list[Event]:
        """Return the batches learnt from some turns of a task that stand, or were undone; the newest first."""
        if not turns:
            return []
        taken = {event.payload.get("undone") for event in self._events(uow, trajectory_id, EventType.LEARN_UNDO)}
        return [
            event
            for event in self._events(uow, trajectory_id, EventType.LEARN)
            if (str(event.event_id) in taken) is undone
            and taught_by(event.payload) is not None
            and not turns.isdisjoint(event.payload["turns"])
        ]

    def _events(self, uow: UnitOfWork, trajectory_id: uuid.UUID, kind: EventType) -> Iterator[Event]:
        """Yield the events of a type of a task, the newest first."""
        of_task = Comparison("trajectory_id", Operator.EQUAL, trajectory_id)
        asked = all_of(of_task, Comparison("event_type", Operator.EQUAL, kind.value))
        newest = Listing(EVENT, asked, self._engine.store.dialect, EVENT.column("created_at"), descending=True)
        return uow.listed(EVENT, newest)


def _owner(uow: UnitOfWork, event: Event) -> Owner:
    user = taught_by(event.payload)
    assert user is not None  # of a batch that stands
    return owner_in(uow, current_in(uow, user))


def _log_undone(engine: Engine, principal: Principal, event: Event, uow: UnitOfWork, **payload: Any) -> None:
    assert event.subject_id is not None  # the job
    engine.audit(
        uow,
        EventType.LEARN_UNDO,
        principal=principal.label,
        trajectory_id=event.trajectory_id,
        subject=(EntityType.JOB, event.subject_id),
        payload={"undone": str(event.event_id), **payload},
    )


class _Undoing:
    def __init__(self, engine: Engine, owner: Owner, learned_id: uuid.UUID) -> None:
        self._notes = NoteCorrections(engine, owner.author, rights=owner.learner)
        self._corrections = Corrections(engine, owner.author, rights=owner.learner)
        self._learned_id = learned_id

    def undo(self, uow: UnitOfWork, decision: dict[str, Any]) -> None:
        """Take back one decision; one about a note that was forgotten since is passed over."""
        if decision["action"] == LearningAction.NOTHING:
            return
        key = uuid.UUID(decision.get("replaces", decision["note_id"]))
        uow.lock(NOTE, key.bytes)  # nobody corrects it between the look for corrections and the undoing
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

    def restore(self, uow: UnitOfWork, decision: dict[str, Any]) -> None:
        """Bring an added fact back that ``undo`` took back, unless it was forgotten or corrected since."""
        if decision["action"] != LearningAction.ADD:
            return
        with suppress(NotFound, Conflict):
            self._notes.undo(uuid.UUID(decision["note_id"]), None, None)(uow)


_SHOWN = 1_000
"""The characters of a message that a decision shows: what was too long to read may be all of it."""
_LOOKED_AT = 1_000
"""The newest batches of a task among which one is looked for by its turns."""


def batch_of(engine: Engine, trajectory_id: TrajectoryId, turns: Sequence[Turn]) -> uuid.UUID | None:
    """Return the newest batch of a task that has one of these turns: one that waits or failed, else one done."""
    keys = {str(turn.turn_id) for turn in turns}
    task, of_learning = trajectory_id.bytes, EventType.LEARN.value

    def read(uow: UnitOfWork) -> uuid.UUID | None:
        waiting: list[Job] = uow.select_path(JOB, "list_by_trajectory", task)
        failed: list[Job] = uow.select_entities(JOB, "job.list_ended", JobOutcome.FAILED.value, KIND, _LOOKED_AT)
        for job in (*reversed(waiting), *failed):
            if job.kind == KIND and keys & set(job.payload["turns"]):
                return job.job_id
        done: list[Event] = uow.select_path(EVENT, "list_by_trajectory_and_type", task, of_learning, _LOOKED_AT)
        return next((each.subject_id for each in done if keys & set(each.payload.get("turns", ()))), None)

    return engine.read(read)


def decided_in(uow: UnitOfWork, learned_id: uuid.UUID) -> tuple[Event | None, bool]:
    """Return the decisions of a batch, if it is done, and whether they were undone."""
    found: list[Event] = uow.select_path(EVENT, "list_by_subject", learned_id.bytes)
    made = next((each for each in found if each.event_type == EventType.LEARN), None)
    return made, any(each.event_type == EventType.LEARN_UNDO for each in found)


def result_of(
    engine: Engine,
    learned_id: uuid.UUID,
    turns: Sequence[Turn] = (),
    reads: Callable[[uuid.UUID], bool] = lambda _: True,
) -> Learned:
    """Return a result; ``turns`` are those of the call, by default those that taught.

    It has no decisions where ``reads`` is false for the id of the user whose facts they are. Raises: NotFound.
    """
    return engine.read(lambda uow: _result(uow, learned_id, turns, reads))


def _result(
    uow: UnitOfWork, learned_id: uuid.UUID, turns: Sequence[Turn], reads: Callable[[uuid.UUID], bool]
) -> Learned:
    event, undone = decided_in(uow, learned_id)
    if event is not None:
        payload, task, state = event.payload, event.trajectory_id, JobState.DONE
    else:
        job: Job | None = uow.find(JOB, learned_id.bytes)
        if job is None or job.kind != KIND:
            raise NotFound(entity_type=KIND, id=learned_id)
        payload, task, state = job.payload, job.trajectory_id, job.state
    assert task is not None
    owner = taught_by(payload)
    keys = tuple(turn.turn_id for turn in turns) or tuple(TurnId(uuid.UUID(each)) for each in payload["turns"])
    decided = payload.get("decisions", ()) if owner is not None and reads(owner.id) else ()
    notes = _found(uow, NOTE, "note_id", decided)
    quoted = [each for each in decided if each["action"] == LearningAction.NOTHING or each["note_id"] not in notes]
    said = _found(uow, TURN, "turn_id", quoted)
    decisions = tuple(_decision(each, notes.get(each.get("note_id")), said.get(each["turn_id"])) for each in decided)
    return Learned(learned_id, task, keys, state, decisions, undone)


def _found(uow: UnitOfWork, relation: Relation, name: str, decided: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the records of a relation that decisions name, under their names there."""
    keys = {uuid.UUID(each[name]).bytes: each[name] for each in decided if name in each}
    return {keys[key]: codec_of(relation).decode(row) for key, row in uow.find_rows(relation, keys).items()}


def _decision(body: Mapping[str, Any], note: Note | None, turn: Turn | None) -> LearningDecision:
    said = "" if turn is None else turn.text[slice(*body["span"])][:_SHOWN]
    return LearningDecision(
        action=LearningAction(body["action"]),
        person=body["person"],
        attribute=PersonAttribute(body["attribute"]),
        value=body.get("value", ""),
        statement=note.content if note is not None and body["action"] != LearningAction.NOTHING else said,
        reason=body["reason"],
        turn_id=TurnId(uuid.UUID(body["turn_id"])),
        note_type=NoteType.FACT if note is None else note.note_type,
        note_id=None if "note_id" not in body else NoteId(uuid.UUID(body["note_id"])),
        replaces=None if "replaces" not in body else NoteId(uuid.UUID(body["replaces"])),
    )
