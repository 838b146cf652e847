"""Candidates: statements about people that were found in messages, before it is decided what becomes of them."""

from __future__ import annotations

import re
import unicodedata
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
