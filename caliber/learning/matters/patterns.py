"""Patterns of statements about people: one regular expression, and the fact it states.

Each is matched against a whole clause, without its lead ("by the way, …") and its tail ("… these days"). ``v`` is the
value. Every expression is linear in a clause of bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from caliber.learning.lexicon import words
from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import PersonAttribute

Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern; ``content`` is the fact with ``{v}`` and other groups of the pattern. ``check`` judges the value.

    ``several`` splits a value at commas and "and"; the other fields are those of ``Candidate``.
    """

    attribute: PersonAttribute
    slot: str
    pattern: re.Pattern[str]
    content: str
    check: Check
    single: bool = False
    several: bool = False
    preference: bool = False
    ends: bool = False
    changes: bool = False
    opposite: PersonAttribute | None = None

    @property
    def note_type(self) -> NoteType:
        """The type of the notes of this rule."""
        return NoteType.PREFERENCE if self.preference else NoteType.FACT


ADVERBS = (
    r"(?:(?:really|just|currently|now|still|also|actually|always|usually|mostly|mainly|do|absolutely|totally|"
    r"recently|finally|only|personally|generally|officially|already|both|basically|originally|especially|"
    r"particularly|simply|truly|rather|quite|so|very|pretty|even|sure|kinda|have|'ve|all|much|strictly|severely|"
    r"highly|deathly|slightly|mildly|fully|completely|entirely) )*"
)
WE = rf"(?:i|we) {ADVERBS}"
AM = rf"(?:i'm|i am|im|we're|we are) {ADVERBS}"
HAVE = rf"(?:i|we)(?:'ve| have)? {ADVERBS}"
FIRM = r"(?:an? [\w -]*?(?:company|startup|start-up|firm|bank|agency|studio|charity)(?: called|,) )?"
NOT = r"(?:don't|do not|didn't|did not|dont|never)"
NO_LONGER = r"(?:no longer|not .{0,20}(?:any ?more|any longer))"
V = r"(?P<v>.+)"
NAME = r"(?P<v>[^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,2})"


V_SHORT = r"(?P<v>.+?)"
_PLACE = re.compile(r"(?<![\w\\])V(?:\$|(?!\w))")
"""The place of the value in a pattern, at its end or before further words."""


def rule(
    matter: str,
    pattern: str,
    content: str,
    check: Check = words.is_value,
    opposite: str | None = None,
    **fields: bool,
) -> Rule:
    compiled = re.compile(_PLACE.sub(lambda at: V + "$" if at[0] == "V$" else V_SHORT, pattern), re.IGNORECASE)
    attribute, _, slot = matter.partition("/")
    contrary = None if opposite is None else PersonAttribute(opposite)
    return Rule(PersonAttribute(attribute), slot, compiled, content, check, opposite=contrary, **fields)
