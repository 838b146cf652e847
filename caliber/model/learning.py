"""Data types of learning: a fact about a person, the decision about one statement, and what one call learnt."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum

from caliber.model.jobs import JobState
from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, NoteId, TrajectoryId, TurnId
from caliber.model.windows import printed


class LearningAction(StrEnum):
    """The decision about a statement: a new fact, a fact that replaces another, the end of a fact, or nothing."""

    ADD = "add"
    UPDATE = "update"
    END = "end"
    NOTHING = "nothing"


class PersonAttribute(StrEnum):
    """The matter of a fact about a person."""

    NAME = "name"
    AGE = "age"
    BIRTHDAY = "birthday"
    HOME = "home"
    JOB = "job"
    EMPLOYER = "employer"
    FAMILY = "family"
    PET = "pet"
    LANGUAGE = "language"
    HEALTH = "health"
    ALLERGY = "allergy"
    DIET = "diet"
    LIKES = "likes"
    DISLIKES = "dislikes"
    PLAN = "plan"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PersonFact:
    """The link from a note to the person it is about, and to the user whose messages taught it.

    ``slot`` tells matters of one attribute apart, such as the ``dog`` of ``pet``; ``value`` is compared, not shown.
    """

    note_id: NoteId
    person: EntityRef
    owner: EntityRef
    attribute: PersonAttribute
    slot: str
    value: str
    stated_at: datetime
    created_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class LearningDecision:
    """The decision about one statement of a message.

    ``person`` is the name of the person it is about, ``value`` the words of the message that are the fact, and
    ``statement`` the fact as stored, or the clause of the message where nothing was learnt. ``note_id`` is the note
    that says so now, ``replaces`` the one that it replaced.
    """

    action: LearningAction
    person: str
    attribute: PersonAttribute
    value: str
    statement: str
    reason: str
    turn_id: TurnId
    note_type: NoteType = NoteType.FACT
    note_id: NoteId | None = None
    replaces: NoteId | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """The turns and decisions of a call of ``remember``; ``state`` is ``waiting`` while it is learnt behind the call.

    ``learned_id`` is None where no message is new and the user's; an admin's ``jobs.retry`` takes that of a failed one.
    """

    learned_id: uuid.UUID | None
    trajectory_id: TrajectoryId
    turns: tuple[TurnId, ...]
    state: JobState
    decisions: tuple[LearningDecision, ...] = ()
    undone: bool = False

    def __repr__(self) -> str:
        found = "; ".join(f"{each.action} {each.statement!r}" for each in self.decisions)
        begin = f"Learned({self.state}, {len(self.turns)} turns, task {self.trajectory_id}: "
        return printed(begin, found or "nothing")

    @property
    def added(self) -> tuple[LearningDecision, ...]:
        """The facts that are new."""
        return self._of(LearningAction.ADD)

    @property
    def updated(self) -> tuple[LearningDecision, ...]:
        """The facts that replaced others."""
        return self._of(LearningAction.UPDATE)

    @property
    def ended(self) -> tuple[LearningDecision, ...]:
        """The facts that hold no longer."""
        return self._of(LearningAction.END)

    @property
    def ignored(self) -> tuple[LearningDecision, ...]:
        """The statements that taught nothing, and why."""
        return self._of(LearningAction.NOTHING)

    def _of(self, action: LearningAction) -> tuple[LearningDecision, ...]:
        return tuple(each for each in self.decisions if each.action is action)
