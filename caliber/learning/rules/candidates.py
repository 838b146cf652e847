"""Candidates: statements about people that were found in messages, before it is decided what becomes of them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import PersonAttribute

_WORD: Final = re.compile(r"\w+", re.UNICODE)
ANY_SLOT: Final = "*"
"""The slot of an end of all that is known of a person."""
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
    the fact as it is stored. ``ends`` is the end of a fact, of any value if ``value`` is empty; ``corrects`` a fact
    that was wrong, ``changes`` one that was right until now. ``was`` is the value that the fact must have which the
    new one replaces. With ``restates`` the statement names no matter: ``was`` or, for an end, ``value`` finds the fact.
    ``said`` is a clause with words of ending, in the first person: it ends the fact that it names, if ``was`` is in it.
    An ``inferred`` fact gives way to one that is known. ``opposite`` is the attribute of which the same value
    cannot hold. ``start`` and ``end`` are its place in the text.
    Units: confidence 0 to 1.
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
    restates: bool = False
    was: str = ""
    said: str = ""
    inferred: bool = False
    opposite: PersonAttribute | None = None
    confidence: float = 0.9


@dataclass(frozen=True, slots=True)
class Refused:
    """A statement about a person that teaches nothing, the reason, and its place in the text."""

    reason: str
    start: int
    end: int
    attribute: PersonAttribute = PersonAttribute.OTHER


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
