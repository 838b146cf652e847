"""Data types of calls about facts: a fact as extracted, the question of what becomes of it, and the decision."""

from __future__ import annotations

from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute

USER_PERSON = "user"
"""Stands for the user who wrote a message, where a fact names its person."""


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """A fact about a person that a message states; ``person`` is ``user`` or a name, ``value`` words of the message.

    ``statement`` is the fact without its subject. Units: ``source_turn`` a turn number.
    """

    person: str
    attribute: PersonAttribute
    value: str
    statement: str
    source_turn: int


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """A new statement about a person, and the statements that are known about the same person."""

    person: str
    statement: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactDecision:
    """The decision about a new statement: ``known`` is the place of the known one that it replaces or ends."""

    action: LearningAction
    known: int | None = None
    reason: str = ""
