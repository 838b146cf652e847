"""Candidates for facts, and decisions by rule about each, given what is known about its person."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import field
from datetime import date, datetime
from typing import Final, NamedTuple

from caliber.model.knowledge import Note, NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute, PersonFact
from caliber.model.references import EntityRef
from caliber.model.trajectory import Turn

_WORD: Final = re.compile(r"\w+", re.UNICODE)
ANY_SLOT: Final = "*"
"""The slot of an end of whatever fits."""
DIED: Final = "died"
"""The content of a candidate that ends the fact that a person or animal is there."""
NAMED: Final = " is called "
INSTRUCTION: Final = "an instruction, not a fact"
NOT_READ: Final = "not read: too long for rules"
_INSTRUCTION: Final = re.compile(
    r"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|ing)|bypass(?:ing)?)\b.{0,40}\b(?:above|"
    r"previous|prior|earlier|instructions?|rules?|prompts?)\b|\b(?:system prompt|jailbreak|developer mode|you (?:are|"
    r"must|should|will) (?:now )?(?:act|obey|reveal|answer|ignore))\b",
    re.IGNORECASE,
)
_EMPTY_TEXT = "a an the my our his her their of in at to for is as really very so just that"
_EMPTY: Final = frozenset(_EMPTY_TEXT.split())


class Person(NamedTuple):
    """A person or animal that a message is about, by the role in the user's life, by name, or by both."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A statement about a person; ``person`` is None for the user who wrote it.

    ``attribute`` and ``slot`` are the matter; a person has one value of a ``single`` one at a time. ``content`` is
    the fact as it is stored. ``ends`` is the end of a fact, of any value if ``value`` is empty; ``asked`` one that the
    user asked for, by the words of ``value`` if ``slot`` is ``ANY_SLOT``. ``corrects`` a fact that was wrong,
    ``changes`` one that was right until now, on ``day`` if the message says so. ``opposite`` is the attribute of which
    the same value cannot hold. ``start`` and ``end`` are its place in the text. Units: confidence 0 to 1.
    """

    attribute: PersonAttribute
    value: str
    content: str
    start: int
    end: int
    slot: str = ""
    note_type: NoteType = NoteType.FACT
    person: Person | None = None
    single: bool = False
    ends: bool = False
    corrects: bool = False
    changes: bool = False
    asked: bool = False
    day: date | None = None
    opposite: PersonAttribute | None = None
    confidence: float = 0.9


@dataclass(frozen=True, slots=True)
class Refused:
    """A statement about a person that teaches nothing, the reason, and its place in the text."""

    reason: str
    start: int
    end: int
    attribute: PersonAttribute = PersonAttribute.OTHER


@dataclass(slots=True)
class Held:
    """A fact that holds as far as the batch has come: one that is stored, or one that a step adds."""

    person: EntityRef
    attribute: PersonAttribute
    slot: str
    value: str
    stated_at: datetime
    content: str
    stored: tuple[PersonFact, Note] | None = None
    holds: bool = True


@dataclass(frozen=True, slots=True)
class StatedCandidate:
    """A candidate with the turn that makes it, the person it is about by reference and name, and its time.

    ``unnamed`` is the same person as far as it was spoken of without a name: "my daughter" before "my daughter Ines".
    """

    candidate: Candidate
    turn: Turn
    person: EntityRef
    name: str
    stated_at: datetime
    unnamed: EntityRef | None = None

    def held(self) -> Held:
        """Return the fact that the statement adds."""
        new = self.candidate
        return Held(self.person, new.attribute, new.slot, new.value, self.stated_at, new.content)


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about a statement: ``target`` is the fact that it replaces or ends, ``made`` the one it adds.

    ``in_place`` is a correction: the target was never true.
    """

    action: LearningAction
    statement: StatedCandidate
    reason: str
    target: Held | None = None
    made: Held | None = None
    in_place: bool = False


def is_instruction(text: str) -> bool:
    """Return whether a text looks like an instruction to a language model."""
    return _INSTRUCTION.search(text) is not None


def words_of(value: str) -> frozenset[str]:
    """Return the words of a value by which it is compared: folded, without articles and the like."""
    folded = unicodedata.normalize("NFKC", value).casefold()
    found = [_singular(word) for word in _WORD.findall(folded)]
    return frozenset(word for word in found if word not in _EMPTY) or frozenset(found)


def comparable(value: str) -> str:
    """Return a value as it is compared and stored for that."""
    return " ".join(sorted(words_of(value)))


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


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
