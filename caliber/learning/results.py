"""Results of learning: ``Learned`` as the log of decisions and the queue of jobs hold it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from caliber.engine.engine import Engine
from caliber.jobs.queue import JobQueue
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
from caliber.storage.write.unit_of_work import UnitOfWork

_SHOWN = 1_000
"""The characters of a message that a decision shows: what was too long to read may be all of it."""
_LOOKED_AT = 1_000
"""The newest batches of a task among which one is looked for by its turns."""


class Results:
    """The results of learning of one tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs = engine.part(JobQueue)

    def events(self, learned_id: uuid.UUID) -> tuple[Event | None, bool]:
        """Return the decisions of a batch, if it is done, and whether they were undone."""
        found: list[Event] = self._engine.read(lambda uow: uow.select_path(EVENT, "list_by_subject", learned_id.bytes))
        made = next((each for each in found if each.event_type == EventType.LEARN), None)
        return made, any(each.event_type == EventType.LEARN_UNDO for each in found)

    def get(
        self, learned_id: uuid.UUID, turns: Sequence[Turn] = (), reads: Callable[[uuid.UUID], bool] = lambda _: True
    ) -> Learned:
        """Return a result; ``turns`` are those of the call, by default those that taught.

        It has no decisions where ``reads`` is false for the id of the user whose facts they are. Raises: NotFound.
        """
        event, undone = self.events(learned_id)
        job = self._jobs.find(learned_id)
        if event is None and (job is None or job.kind != KIND):
            raise NotFound(entity_type=KIND, id=learned_id)
        if event is not None:
            payload, task, state = event.payload, event.trajectory_id, JobState.DONE
        else:
            assert job is not None
            payload, task, state = job.payload, job.trajectory_id, job.state
        assert task is not None
        owner = taught_by(payload)
        keys = tuple(turn.turn_id for turn in turns) or tuple(TurnId(uuid.UUID(each)) for each in payload["turns"])
        decided = payload.get("decisions", ()) if owner is not None and reads(owner.id) else ()
        decisions = tuple(self._decision(each) for each in decided)
        return Learned(learned_id, task, keys, state, decisions, undone)

    def of_turns(self, trajectory_id: TrajectoryId, turns: Sequence[Turn]) -> uuid.UUID | None:
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

        return self._engine.read(read)

    def _decision(self, body: dict[str, Any]) -> LearningDecision:
        note = None if "note_id" not in body else self._find(NOTE, uuid.UUID(body["note_id"]))
        turn_id = TurnId(uuid.UUID(body["turn_id"]))
        learnt = body["action"] != LearningAction.NOTHING
        if isinstance(note, Note) and learnt:
            statement = note.content
        else:
            turn = self._find(TURN, turn_id)
            statement = turn.text[slice(*body["span"])][:_SHOWN] if isinstance(turn, Turn) else ""
        return LearningDecision(
            action=LearningAction(body["action"]),
            person=body["person"],
            attribute=PersonAttribute(body["attribute"]),
            value=body.get("value", ""),
            statement=statement,
            reason=body["reason"],
            turn_id=turn_id,
            note_type=note.note_type if isinstance(note, Note) else NoteType.FACT,
            note_id=None if "note_id" not in body else NoteId(uuid.UUID(body["note_id"])),
            replaces=None if "replaces" not in body else NoteId(uuid.UUID(body["replaces"])),
        )

    def _find(self, relation: Relation, key: uuid.UUID) -> object:
        return self._engine.read(lambda uow: uow.find(relation, key.bytes))
