"""Statements of the last messages of a conversation, and the corrections and ends that point back to them."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.rules import matching
from caliber.learning.rules.candidates import Candidate, words_of
from caliber.learning.rules.clauses import Clause
from caliber.learning.rules.slips import NUMBERED, of_matter
from caliber.model.learning import PersonAttribute

_I = re.IGNORECASE
_REMEMBERED: Final = 8
_RECENT: Final = 4
"""The messages back to which "no, it's Porto" may point."""
_NEW_DAY: Final = re.compile(
    r"\b(?:new (?:date|day)|(?:date|day) is now|postponed|rescheduled|pushed (?:back|to)|brought forward|shifted|"
    r"moved (?:to|back|forward)|delayed|now it's|it's now)\b",
    _I,
)
_FROM_NOW: Final = re.compile(r"\b(?:for (?:me|us)(?: now)?|from (?:here|now) on|instead)(?: too)?$", _I)
_FINE: Final = re.compile(
    r"^(?:(?:just |go with |stick with |use |call me )*)(?P<v>(?-i:[A-Z])\w+)(?:'s| is| works)?(?: (?:just )?(?:fine|"
    r"better|ok|okay|good|great|it is))(?: (?:after all|too|actually|instead|again))*$",
    _I,
)
"""A name that will do: "Katya's fine after all"."""
_CANCELLED: Final = re.compile(
    r"^(?:.* )?(?:cancel+ed|called off|scrapped|postponed indefinitely|pulled the plug on|binned|shelved) (?:it|that|"
    r"the whole thing|the lot|everything)\b|\bcalled it off\b|^(?:it|that|the \w+|whole thing)(?:'s| is| was| got| "
    r"has| been)+ (?:all )?(?:off|cancel+ed|called off|not happening|been cancel+ed|scrapped)\b|^it fell through\b|"
    r"^(?:i'm|we're|i am|we are) not going(?: any ?more| after all| in the end)?$",
    _I,
)
"""The end of the one plan spoken of."""
_HOLDING_ON: Final = frozenset({PersonAttribute.LIKES})
_NOW: Final = re.compile(
    r"^(?:(?:it's|its|it is|that's)\s+(?:now |actually )?(?P<v>.+?)(?: for (?:me|us))?(?: now too| now| these days| "
    r"from (?:here|now) on| instead|(?<= now))|(?P<it>\S+(?: \S+)?) it is(?: then| now)?)$",
    _I,
)
_MEANT: Final = re.compile(r"\b(?:correction|i meant?|typo|make that|scratch that)\b", _I)
_BARE: Final = re.compile(r"^(?P<v>\S+(?: \S+){0,3})$")
_NUMBER: Final = re.compile(r"^(?P<v>\d{1,3})(?:,| since| now| as of| actually).*$", _I)
_RESTATED: Final = re.compile(r"^(?:it's|it is|i meant|i mean|make that|rather)\s+(?:actually |now )?(?P<v>.+)$", _I)
_SPELT: Final = re.compile(
    r"^(?:(?:sorry|oops|typo|it's|its|it is|that's|the name is|i meant|meant|should be|spelled|spelt|correction|"
    r"actually|\*),? ?)*(?P<v>(?-i:[A-Z])[\w'-]+(?: (?-i:[A-Z])[\w'-]+){0,3})\*?(?:,.*| with .+| without .+| not .+| "
    r"btw| actually| by the way)?$",
    _I,
)
"""A name by itself, and how it is spelt."""
_CLOSE: Final = 0.8
"""The likeness from which on two spellings are those of one name."""
_SPELT_OUT: Final = 0.7
"""The same where the words say that a spelling is corrected."""


class Recent:
    """The statements of the last messages, the newest last."""

    def __init__(self) -> None:
        self._recent: list[list[Candidate]] = []

    def add(self, stated: list[Candidate]) -> None:
        """Add the statements of a message, which are still to come."""
        self._recent = [*filter(None, self._recent[-_REMEMBERED:]), stated]

    def about(self, amended: Candidate) -> Candidate:
        """Return a correction or end as one about the only person with such a value in this talk."""
        named = words_of(amended.was or amended.value)
        about = [
            one.person
            for some in self._recent
            for one in some
            if not one.ends and named & words_of(f"{one.content} {one.slot}")
        ]
        if not amended.restates or not about or None in about:
            return amended
        return dataclasses.replace(amended, person=about[-1])

    def cancelled(self, body: str, clause: Clause) -> Iterator[Candidate]:
        """Yield the end of the plan lately stated, if it was one, and of the engagement that was called off."""
        if not _CANCELLED.search(body):
            return
        stated = {(one.person, one.slot): one for some in self._recent[:-1] for one in some if not one.ends}
        plans = [one for one in stated.values() if one.attribute is PersonAttribute.PLAN]
        engaged = [one for one in stated.values() if one.slot == "status" and one.value == "engaged"]
        if re.search(r"\bcalled it off\b", body):
            plans = plans if len(plans) == 1 else [one for one in plans if "wedding" in one.slot]
            plans += engaged
        elif len(plans) != 1:
            return
        for one in plans:
            yield dataclasses.replace(one, ends=True, start=clause.start, end=clause.end, corrects=False)

    def over(self, body: str, clause: Clause) -> Candidate | None:
        """Return the end of the fact stated last whose verb a correction puts in the past: "Correction: played"."""
        past = re.fullmatch(r"(\w{3,}e?)d", body.casefold())
        stated = next(reversed(self._recent[:-1] or [[]]), [])
        if past is None or len(stated) != 1 or stated[0].ends:
            return None
        verb = stated[0].content.partition(" ")[0].removesuffix("s")
        if past[1] not in (verb, f"{verb}e"):
            return None
        return dataclasses.replace(stated[0], ends=True, start=clause.start, end=clause.end)

    def restated(self, body: str, clause: Clause, *, corrects: bool) -> Candidate | None:
        """Return the fact that "no, it's Porto" states: of the one matter lately spoken of that the value fits."""
        if fine := _FINE.match(body):
            return self._renamed(fine["v"], clause)
        found = _RESTATED.match(body) if corrects else _NOW.match(body)
        if (respelt := self._respelt(body, clause, corrects=corrects)) is not None:
            return respelt
        bare = (_BARE.match(body) or _NUMBER.match(body)) if found is None and corrects else None
        found = bare if bare is not None and _MEANT.search(clause.text) else found
        if found is None:
            short = self._short(bare["v"], clause) if bare is not None else None
            return short or self._redated(body, clause, corrects=corrects)
        value = matching.value_of(found["v"] or found.groupdict().get("it") or "", narrow=True)
        correction = Candidate(
            PersonAttribute.OTHER, value, "", clause.start, clause.end, corrects=corrects, changes=not corrects
        )
        for stated in self._recent[: -_RECENT - 1 : -1]:
            fitting = [new for old in stated if (new := of_matter(old, correction)) is not None]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
        return self._replaced_taste(value, clause) if _FROM_NOW.search(body) else None

    def _respelt(self, body: str, clause: Clause, *, corrects: bool) -> Candidate | None:
        """Return the name stated lately that a clause spells in another way: "it's Motio, without the n"."""
        found = _SPELT.match(body)
        if found is None:
            return None
        named = [one for some in self._recent for one in some if one.value[:1].isupper() and not one.ends]
        least = _SPELT_OUT if corrects or re.search(r"\bspel", body, _I) else _CLOSE
        close = {one.value: one for one in named if _likeness(one.value, found["v"]) >= least}
        if len(close) != 1:
            return None
        ((value, one),) = close.items()
        content = one.content.replace(value, found["v"])
        return _replacing(one, content, found["v"], value, clause, corrects=True)

    def _short(self, value: str, clause: Clause) -> Candidate | None:
        """Return the fact stated just before that "No, 36." corrects, if the value is one of its matter."""
        stated = [one for some in self._recent[-2:] if some for one in some][-1:]
        correction = Candidate(PersonAttribute.OTHER, value, "", clause.start, clause.end, corrects=True)
        return of_matter(stated[0], correction) if stated and stated[0].attribute in NUMBERED else None

    def _renamed(self, name: str, clause: Clause) -> Candidate | None:
        """Return the name that will do after all, if the conversation spoke of one."""
        names = [one for some in self._recent for one in some if one.attribute is PersonAttribute.NAME]
        if not names or names[-1].person is not None or not words.is_given_name(name):
            return None
        new = Candidate(PersonAttribute.OTHER, name, "", clause.start, clause.end, changes=True)
        return matching.restated(PersonAttribute.NAME, "", new)

    def _replaced_taste(self, value: str, clause: Clause) -> Candidate | None:
        """Return the taste lately stated with another thing: "it's sweet peas from here on" after leeks."""
        stated = [one for some in self._recent[:-1] for one in some if one.attribute in _HOLDING_ON and not one.ends]
        if not stated or not stated[-1].value or not words.is_liked(value) or stated[-1].restates:
            return None
        old = stated[-1]
        if old.value not in old.content or old.slot.startswith("favorite"):
            return None
        return dataclasses.replace(
            old,
            content=old.content.replace(old.value, value),
            value=value,
            was=old.value,
            single=True,
            changes=True,
            start=clause.start,
            end=clause.end,
        )

    def _redated(self, body: str, clause: Clause, *, corrects: bool) -> Candidate | None:
        """Return the fact lately stated with a day, now with another: "wait, the wedding is on 31 October".

        Unless the clause corrects, it names the matter: "the flight has been moved to the 15th".
        """
        days, named = words.days(body) or words.ordinals(body), words_of(body)
        if len(days) != 1:
            return None
        moved = corrects or _NEW_DAY.search(body) is not None
        dated = [old for stated in self._recent for old in stated if not old.ends and len(words.days(old.content)) == 1]
        held = {(old.person, old.attribute, old.slot): old for old in dated if _matter(old) <= named} or (
            {(old.person, old.attribute, old.slot): old for old in dated} if moved else {}
        )
        if len(held) != 1:
            return None
        (old,) = held.values()
        (was,) = words.days(old.content)
        day = words.moved(was, days[0])
        content, value = (text.replace(was, day) for text in (old.content, old.value))
        return _replacing(old, content, value, was, clause, corrects=corrects)


def _replacing(old: Candidate, content: str, value: str, was: str, clause: Clause, *, corrects: bool) -> Candidate:
    """Return a statement in the place of an old one: a correction of it, or a change since."""
    return dataclasses.replace(
        old,
        content=content,
        value=value,
        was=was,
        single=True,
        start=clause.start,
        end=clause.end,
        corrects=corrects,
        changes=not corrects,
    )


def _likeness(old: str, new: str) -> float:
    """Return how like another spelling is, from 0 to 1; 0 for the same one."""
    return 0.0 if old == new else difflib.SequenceMatcher(None, old.casefold(), new.casefold()).ratio()


def _matter(dated: Candidate) -> frozenset[str]:
    """Return the words that name the matter of a fact with a day: "flight" of "flight to Toronto on 14 February"."""
    (day,) = words.days(dated.content)
    name = dated.slot.partition(" to ")[0] or dated.value.replace(day, "").partition(" on ")[0]
    return words_of(name or dated.attribute.value)
