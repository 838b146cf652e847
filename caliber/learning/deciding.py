"""Decisions by rule: what becomes of a statement, given what is known about its person."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Final

from caliber.learning.rules.candidates import Candidate, words_of
from caliber.model.knowledge import Note, NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute, PersonFact
from caliber.model.references import EntityRef
from caliber.model.trajectory import Turn

SAME_TALK: Final = timedelta(hours=1)
"""The time in which "no, it's Porto" may correct a fact that was stated before."""
KNOWN: Final = "known already"
OLDER: Final = "older than what is known"
NOTHING_TO_END: Final = "ends nothing that is known"
_LEFT: Final = frozenset({PersonAttribute.HOME, PersonAttribute.EMPLOYER})
NEW: Final = "new"
CHANGED: Final = "changed"
CORRECTED: Final = "corrected"
ENDED: Final = "holds no longer"


@dataclass(slots=True)
class Held:
    """A fact that holds as far as the batch has come: one that is stored, or one that a step adds."""

    person: EntityRef
    attribute: PersonAttribute
    slot: str
    value: str
    stated_at: datetime
    content: str
    note_type: NoteType
    stored: tuple[PersonFact, Note] | None = None
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Statement:
    """A candidate with the turn that makes it, the person it is about by reference and name, and its time."""

    candidate: Candidate
    turn: Turn
    person: EntityRef
    name: str
    stated_at: datetime

    def held(self) -> Held:
        """Return the fact that the statement adds."""
        new = self.candidate
        return Held(self.person, new.attribute, new.slot, new.value, self.stated_at, new.content, new.note_type)


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about a statement: ``target`` is the fact that it replaces or ends, ``made`` the one it adds.

    ``in_place`` is a correction: the target was never true.
    """

    action: LearningAction
    statement: Statement
    reason: str
    target: Held | None = None
    made: Held | None = None
    in_place: bool = False


@dataclass(slots=True)
class Decider:
    """Decides about the statements of a batch, one after the other."""

    held: list[Held]
    steps: list[Step] = field(default_factory=list)

    def decide(self, statements: Sequence[Statement]) -> list[Step]:
        """Return the steps for these statements, in their order."""
        for statement in statements:
            if statement.candidate.restates:
                self._restate(statement)
            elif statement.candidate.ends:
                self._end(statement)
            else:
                self._state(statement)
        return self.steps

    def _same(self, statement: Statement, attribute: PersonAttribute) -> list[Held]:
        return [
            each
            for each in self.held
            if each.holds
            and each.person == statement.person
            and each.attribute is attribute
            and each.slot == statement.candidate.slot
        ]

    def _end(self, statement: Statement) -> None:
        candidate = statement.candidate
        same = self._same(statement, candidate.attribute)
        if candidate.attribute in _LEFT and candidate.value:  # "I left Siemens", "I left Berlin"
            same += [each for other in _LEFT - {candidate.attribute} for each in self._same(statement, other)]
        if candidate.attribute is PersonAttribute.EMPLOYER and not candidate.value and not same:
            same = self._same(statement, PersonAttribute.JOB)  # "I quit my job"
        ended = [each for each in same if matches(each.value, candidate.value)]
        if candidate.attribute is PersonAttribute.PET:  # "has two cats" as well as the cat by name
            counted = [each for each in self.held if each.holds and each.person == statement.person]
            counted = [each for each in counted if each.attribute is PersonAttribute.PET and each not in ended]
            ended += [each for each in counted if words_of(candidate.slot) < words_of(each.value)]
        if not ended:
            self._step(LearningAction.NOTHING, statement, NOTHING_TO_END)
        for each in ended:
            if statement.stated_at < each.stated_at:
                self._step(LearningAction.NOTHING, statement, OLDER, each)
                continue
            each.holds = False
            rest = remaining(each.content, candidate.value)
            if rest is None:
                self._step(LearningAction.END, statement, ENDED, each)
            else:
                kept = dataclasses.replace(candidate, content=rest, value=rest.partition(" ")[2], ends=False)
                kept = dataclasses.replace(kept, note_type=each.note_type)
                left = dataclasses.replace(statement, candidate=kept)
                self._step(LearningAction.UPDATE, left, CHANGED, each, self._made(left))

    def _restate(self, statement: Statement) -> None:
        """Correct the newest fact that the new value fits, if it was stated in the same talk."""
        from caliber.learning.rules.reading import restated

        recent = [each for each in self.held if each.holds and abs(statement.stated_at - each.stated_at) <= SAME_TALK]
        for each in sorted(recent, key=lambda held: held.stated_at, reverse=True):
            candidate = restated(each.attribute, each.slot, statement.candidate)
            if candidate is not None:
                self._state(dataclasses.replace(statement, candidate=candidate, person=each.person))
                return

    def _state(self, statement: Statement) -> None:
        candidate = statement.candidate
        same = self._same(statement, candidate.attribute)
        equal = next((each for each in same if alike(each.value, candidate.value)), None)
        if equal is not None:
            self._step(LearningAction.NOTHING, statement, KNOWN, equal)
            return
        replaced = None
        if candidate.opposite is not None:
            contrary = self._same(statement, candidate.opposite)
            replaced = next((each for each in contrary if alike(each.value, candidate.value)), None)
        if replaced is None and same and (candidate.single or candidate.corrects):
            replaced = same[-1]
        if replaced is None:
            made = self._made(statement)
            self._step(LearningAction.ADD, statement, NEW, None, made)
        elif statement.stated_at < replaced.stated_at:
            self._step(LearningAction.NOTHING, statement, OLDER, replaced)
        else:
            replaced.holds = False
            reason = CORRECTED if candidate.corrects else CHANGED
            made = self._made(statement)
            self.steps.append(
                Step(LearningAction.UPDATE, statement, reason, replaced, made, in_place=candidate.corrects)
            )

    def _made(self, statement: Statement) -> Held:
        made = statement.held()
        self.held.append(made)
        return made

    def _step(
        self,
        action: LearningAction,
        statement: Statement,
        reason: str,
        target: Held | None = None,
        made: Held | None = None,
    ) -> None:
        self.steps.append(Step(action, statement, reason, target, made))


def alike(known: str, value: str) -> bool:
    """Return whether two values are the same, or the new one has less than the known one."""
    return words_of(value) <= words_of(known)


def matches(known: str, value: str) -> bool:
    """Return whether a fact of the ``known`` value is one that the words of ``value`` end; none end any."""
    if not value:
        return True
    one, other = words_of(known), words_of(value)
    return one <= other or other <= one


def remaining(content: str, ended: str) -> str | None:
    """Return the content of a fact such as "likes tea and jazz" without one member; None if none would be left."""
    from caliber.learning.rules.reading import joined, members  # late: its patterns take long to compile

    verb, _, listed = content.partition(" ")
    parts = members(listed)
    left = [part for part in parts if not matches(part, ended)]
    return f"{verb} {joined(left)}" if ended and left and len(left) < len(parts) else None
