"""Results of learning: ``Learned`` as the log of decisions and the queue of jobs hold it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caliber.engine.engine import Engine
from caliber.learning.learner import KIND
from caliber.learning.owner import taught_by
from caliber.model.errors import NotFound
from caliber.model.events import Event, EventType
from caliber.model.ids import NoteId, TrajectoryId, TurnId
from caliber.model.jobs import Job, JobOutcome, JobState
from caliber.model.knowledge import Note, NoteType
from caliber.model.learning import Learned, LearningAction, LearningDecision, PersonAttribute
from caliber.model.trajectory import Turn
from caliber.schema.relation import Relation
from caliber.schema.relations import EVENT, JOB, NOTE, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

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
    if note is not None and body["action"] != LearningAction.NOTHING:
        statement = note.content
    else:
        statement = "" if turn is None else turn.text[slice(*body["span"])][:_SHOWN]
    return LearningDecision(
        action=LearningAction(body["action"]),
        person=body["person"],
        attribute=PersonAttribute(body["attribute"]),
        value=body.get("value", ""),
        statement=statement,
        reason=body["reason"],
        turn_id=TurnId(uuid.UUID(body["turn_id"])),
        note_type=NoteType.FACT if note is None else note.note_type,
        note_id=None if "note_id" not in body else NoteId(uuid.UUID(body["note_id"])),
        replaces=None if "replaces" not in body else NoteId(uuid.UUID(body["replaces"])),
    )
