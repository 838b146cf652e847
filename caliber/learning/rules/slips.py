"""Corrections in the same breath: "I'm 35, no 36", "I live in Berlin, no wait, Bonn"."""

from __future__ import annotations

import dataclasses
import re
from typing import Final, NamedTuple

from caliber.learning.lexicon import words
from caliber.learning.rules.candidates import Candidate
from caliber.learning.rules.matching import restated
from caliber.model.learning import PersonAttribute

UNCLEAR: Final = "corrected in the same breath, it is not clear to what"
_I = re.IGNORECASE
_MARK: Final = (
    r"(?:no|nope|nah|sorry|wait|hold on|oops|er+|erm|uh|i mean|i meant|make that|rather|scratch that|actually)"
)
_SLIP: Final = re.compile(
    rf"^(?P<statement>\w.{{3,200}}?)(?:,| [-–—]+) (?P<marks>{_MARK}(?:,? {_MARK})*)(?P<comma>,)? "
    r"(?:it's |i'm |in |at |to )?(?P<v>[^\s,]+(?: [^\s,]+){0,2}?)(?: (?:since|now|from|as of|then|actually|today|"
    r"these days)\b.*)?$",
    _I,
)
_COUNT: Final = re.compile(r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\d{1,2})\b", _I)
NUMBERED: Final = (PersonAttribute.AGE, PersonAttribute.BIRTHDAY)
"""Attributes of which a number by itself can be the value, whoever is spoken to."""
_ALONE: Final = (*NUMBERED, PersonAttribute.HOME)
"""Attributes of which "no" before a value can only mean another value: "I'm a nurse, no doctor" means none."""
CERTAIN: Final = {
    PersonAttribute.HOME: words.is_town,
    PersonAttribute.EMPLOYER: words.is_firm,
    PersonAttribute.JOB: words.is_title,
    PersonAttribute.NAME: words.is_given_name,
    PersonAttribute.AGE: words.is_age,
    PersonAttribute.BIRTHDAY: words.is_date,
    PersonAttribute.FAMILY: words.is_given_name,
    PersonAttribute.PET: words.is_given_name,
}
"""Checks of values that stand by themselves, without a verb that names the matter."""
_DENIES: Final = re.compile(r"\b(?:no|nope|nah|i meant?|make that|scratch that|rather)\b", _I)
_DIGIT: Final = re.compile(r"\d")


class Slip(NamedTuple):
    """A clause without the correction at its end, and the value that was meant.

    ``is_sure`` unless the words may go on with another matter: "I like tea, no sugar". ``denies`` if, whatever was
    meant, it was not what the clause states: so with "no, ", but not with "sorry mum".
    """

    statement: str
    value: str
    is_sure: bool
    denies: bool


def slip_of(clause: str) -> Slip | None:
    """Return the correction that a clause ends with, or None."""
    found = _SLIP.match(clause)
    if found is None:
        return None
    is_sure = found["comma"] is not None or found["marks"].casefold() != "no"
    denies = is_sure and _DENIES.search(found["marks"]) is not None
    return Slip(found["statement"], found["v"], is_sure, denies)


def of_matter(old: Candidate, correction: Candidate) -> Candidate | None:
    """Return a correction as a new value of the matter of an old fact, or None where it is none for certain."""
    if old.ends or bool(_DIGIT.search(old.value)) != bool(_DIGIT.search(correction.value)):
        return None
    check = CERTAIN.get(old.attribute)
    if check is None and (correction.changes or old.restates):
        return None
    if check is not None and not check(correction.value):
        return None
    new = restated(old.attribute, old.slot, correction)
    return None if new is None else dataclasses.replace(new, person=old.person)


def mended(old: Candidate, slip: Slip) -> Candidate | None:
    """Return a statement with the value that was meant, or None where this value is none of its matter."""
    if old.ends or old.restates or not (slip.is_sure or old.attribute in _ALONE):
        return None
    counted = _COUNT.findall(old.value)
    if _COUNT.fullmatch(slip.value) and len(counted) == 1 and old.value != counted[0]:
        content, value = (text.replace(counted[0], slip.value) for text in (old.content, old.value))
    else:
        new = of_matter(old, Candidate(old.attribute, slip.value, "", old.start, old.end, changes=True))
        if new is None:
            return None
        content, value = new.content, new.value
    return dataclasses.replace(old, content=content, value=value)
