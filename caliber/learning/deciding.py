"""Decisions by rule: what becomes of a statement, given what is known about its person."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from typing import Final

from caliber.learning.candidates import ANY_SLOT, DIED, NAMED, Candidate, Held, StatedCandidate, Step, words_of
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute

KNOWN: Final = "known already"
OLDER: Final = "older than what is known"
NOTHING_TO_END: Final = "ends nothing that is known"
NOTHING_TO_FORGET: Final = "asked to forget, but nothing that is known says so"
NEW: Final = "new"
CHANGED: Final = "changed"
CORRECTED: Final = "corrected"
ENDED: Final = "holds no longer"
ASKED: Final = "asked to forget"
_WORK: Final = (PersonAttribute.EMPLOYER, PersonAttribute.JOB)
_CLOSE: Final = (PersonAttribute.PET, PersonAttribute.FAMILY)
_WHOSE: Final = frozenset(("i", "me", "my", "mine", "we", "our", "m", "about", "live", "am"))


@dataclass(slots=True)
class Decider:
    """Decides about the statements of a batch, one after the other."""

    held: list[Held]
    steps: list[Step] = field(default_factory=list)

    def decide(self, statements: Sequence[StatedCandidate]) -> list[Step]:
        """Return the steps for these statements, in their order."""
        for statement in statements:
            if statement.candidate.ends:
                self._end(statement)
            else:
                self._state(statement)
        return self.steps

    def _same(self, statement: StatedCandidate, attribute: PersonAttribute) -> list[Held]:
        """Return the facts of the matter of a statement that hold."""
        slot = statement.candidate.slot
        return [
            each for each in self._known(statement) if each.attribute is attribute and slot in (each.slot, ANY_SLOT)
        ]

    def _known(self, statement: StatedCandidate) -> list[Held]:
        people = statement.person, statement.unnamed
        return [each for each in self.held if each.holds and each.person in people]

    def _end(self, statement: StatedCandidate) -> None:
        candidate = statement.candidate
        value = words_of(candidate.value)
        if candidate.asked and candidate.slot == ANY_SLOT:
            named = value - _WHOSE if candidate.value else frozenset()
            known = self._known(statement)
            ended = [each for each in known if named <= words_of(f"{each.content} {each.attribute} {each.slot}")]
        elif candidate.attribute in _CLOSE:
            kinds = _CLOSE if candidate.slot == ANY_SLOT else (candidate.attribute,)
            same = [each for kind in kinds for each in self._same(statement, kind) if not each.content.endswith(DIED)]
            # "I no longer have a dog" ends the one dog, whatever its name.
            named = value - words_of(f"a an {candidate.slot}") if value else value
            ended = [each for each in same if named and named <= words_of(each.value)]
            ended = ended or (same if len(same) == 1 and not named else [])
        elif candidate.attribute is PersonAttribute.EMPLOYER and not value:
            ended = [each for kind in _WORK for each in self._same(statement, kind)]  # "I quit my job"
        else:
            same = self._same(statement, candidate.attribute)
            ended = [each for each in same if not value or words_of(each.value) == value]
        if not ended:
            nothing = NOTHING_TO_FORGET if candidate.asked else NOTHING_TO_END
            self.steps.append(Step(LearningAction.NOTHING, statement, nothing))
        for each in ended:
            self._finish(statement, each)

    def _finish(self, statement: StatedCandidate, ended: Held) -> None:
        candidate = dataclasses.replace(statement.candidate, attribute=ended.attribute, slot=ended.slot)
        if statement.stated_at < ended.stated_at:
            self.steps.append(Step(LearningAction.NOTHING, statement, OLDER, ended))
            return
        ended.holds = False
        if candidate.content == DIED and NAMED in ended.content:
            content = f"{ended.content.replace(NAMED, ' ')} {DIED}"
            late = dataclasses.replace(candidate, content=content, value=ended.value, slot=f"late {ended.slot}")
            self._replace(dataclasses.replace(statement, candidate=late), ended)
            return
        of_it = dataclasses.replace(statement, candidate=candidate)
        self.steps.append(Step(LearningAction.END, of_it, ASKED if candidate.asked else ENDED, ended))

    def _state(self, statement: StatedCandidate) -> None:
        candidate = statement.candidate
        same = self._same(statement, candidate.attribute)
        known = self._known(statement) if candidate.attribute in _CLOSE else same
        equal = next((each for each in known if alike(each, candidate)), None)
        if equal is not None:
            self.steps.append(Step(LearningAction.NOTHING, statement, KNOWN, equal))
            return
        replaced = same[-1] if same and candidate.single else None
        if candidate.attribute is PersonAttribute.PLAN and candidate.changes and not same:  # "the interview" of a job
            plans = [each for each in self._known(statement) if each.attribute is candidate.attribute]
            plans = [each for each in plans if words_of(candidate.slot) <= words_of(each.slot)]
            replaced = plans[0] if len(plans) == 1 else None
        if candidate.opposite is not None and replaced is None:
            contrary = self._same(statement, candidate.opposite)
            replaced = next((each for each in contrary if words_of(each.value) == words_of(candidate.value)), None)
        if replaced is None:
            self.steps.append(Step(LearningAction.ADD, statement, NEW, None, self._made(statement)))
        elif statement.stated_at < replaced.stated_at:
            self.steps.append(Step(LearningAction.NOTHING, statement, OLDER, replaced))
        else:
            replaced.holds = False
            self._replace(statement, replaced)

    def _replace(self, statement: StatedCandidate, replaced: Held) -> None:
        corrects = statement.candidate.corrects
        made = self._made(statement)
        reason = CORRECTED if corrects else CHANGED
        self.steps.append(Step(LearningAction.UPDATE, statement, reason, replaced, made, in_place=corrects))

    def _made(self, statement: StatedCandidate) -> Held:
        made = statement.held()
        self.held.append(made)
        return made


def alike(held: Held, new: Candidate) -> bool:
    """Return whether a fact is what a candidate states, or more: "has a dog", which is known by name."""
    words = words_of(new.value)
    if held.attribute is not new.attribute:
        return False
    if new.attribute in _CLOSE and held.slot == new.slot and words == words_of(f"a {new.slot}"):
        return True
    return words == words_of(held.value) if new.single else words <= words_of(held.value)
