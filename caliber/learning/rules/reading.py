"""Reader of a conversation: clauses of its messages matched against the rules, each as a candidate or as refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.rules import answers
from caliber.learning.rules.candidates import (
    ANY_SLOT,
    INSTRUCTION,
    Candidate,
    Person,
    Refused,
    comparable,
    is_instruction,
    words_of,
)
from caliber.learning.rules.clauses import DOUBT, PLAN, QUESTION, TASK, Clause, clauses_of
from caliber.learning.rules.correcting import amendment
from caliber.learning.rules.leads import body_of
from caliber.learning.rules.matching import (
    FRAGMENT,
    LEFT,
    candidates_of,
    introduced,
    match,
    matches_of,
    restated,
    value_of,
)
from caliber.learning.rules.patterns import Rule
from caliber.learning.rules.slips import CERTAIN, NUMBERED, UNCLEAR, mended, of_matter, slip_of
from caliber.learning.rules.subjects import (
    RELATIVES,
    SIZE,
    Subjects,
    is_animal,
    is_other,
    is_relative,
    own_words,
)
from caliber.model.knowledge import NoteType
from caliber.model.learning import PersonAttribute

_I = re.IGNORECASE
_NOT_OLD: Final = re.compile(r"(?<=\w),? not (?:in |at |an? |the |as )?(?P<was>[\w'-]+(?: [\w'-]+)?)$", _I)
_MIND: Final = re.compile(
    r"\b(?:i(?:'ve)? )?changed my mind about (?:the )?(?P<x>[\w ]{2,30}?)\s*[-–—:,;]\s*(?P<v>[\w ]{2,30}?)"
    r"(?: from now on| now| please| after all)?(?=[,.!]|$)",
    _I,
)
_PROMOTED: Final = re.compile(
    r"(?:^|\b(?:i(?:'ve| was| have been| got|'m| am)?(?: now)?|just got|got|been|was) )promoted\b[!.,:\s]+(?:to |"
    r"as )?(?:an? |the )?"
    r"(?P<v>[\w &]{3,50}?)(?= from\b| starting\b| as of\b| since\b| now\b|[,.!]|$)",
    _I,
)
_REMEMBERED: Final = 8
_RECENT: Final = 4
"""The messages back to which "no, it's Porto" may point."""
_PRESUPPOSING: Final = (None, QUESTION, PLAN, DOUBT, TASK)
"""Clauses in which "my dog Rex" names the dog all the same."""
_AGED: Final = r"\b{},? \(?(\d{{1,3}})(?: years old)?(?=[,)]| and |$)"
"""The age of a person right behind the name: "my son Leo, 7, plays chess"."""
_GUESS: Final = re.compile(r"^guess who(?= |'s )", _I)
_YOUNGEST: Final = 6
"""The age from which on a user may be one who writes."""
_OF_ANOTHER: Final = re.compile(r"^(?:he|she|they|it|his|her|their|my|our|the|(?-i:[A-Z])\w+)\b(?!'m)", _I)
_STATE: Final = re.compile(
    r"^(?:\w+ly )?(?:not|no longer|allergic|based|born|living|working|doing|running|studying|married|retired|"
    r"originally) ",
    _I,
)
_DROPPED: Final = re.compile(
    r"^(?:(?:just|finally|recently|already|also|still|currently|originally|now) )*(?:moved|relocated|left|quit|"
    r"joined|"
    r"signed|started|starting (?:at|with|for)|switched|retired|turned|became|adopted|got|lost my|sold|was born|"
    r"live in|work (?:at|as|for)|"
    r"not|no longer|doing|running|broke my|sprained|fractured|tore my|can't stand|hate|allergic to|based in|born in|"
    r"living in|"
    r"working (?:at|as|for)|studying|used to)\b",
    _I,
)
_TITLE: Final = re.compile(r"^(?:[a-z]+ ){1,3}(?:at|for|with) (?-i:[A-Z])", _I)
_NEW_DAY: Final = re.compile(
    r"\b(?:new (?:date|day)|(?:date|day) is now|postponed|rescheduled|pushed (?:back|to)|brought forward|shifted|"
    r"moved (?:to|back|forward)|delayed|now it's|it's now)\b",
    _I,
)
_TAKEN_BACK: Final = re.compile(r"^\W*(?:(?:haha|lol|no|nah|ok)\W+)*(?:jk|just kidding|i was joking|i'm joking)\b", _I)
_ANNOUNCED: Final = re.compile(r"^\W*(?:\w+ )?(?:update|news)\b", _I)
"""The beginning of a message about what has changed."""
_DIED: Final = re.compile(
    r"^I(?:'ve)? (?:\w+ly )?(?:died|passed away|passed|had to be put down|was put down|"
    r"ran away|had to go|was rehomed|went to live with)\b",
    _I,
)
_TASTE_OF_IT: Final = re.compile(
    r"^(?P<taste>.*\b(?:love|like|hate|enjoy|adore|dislike|stand|bear)s?) (?P<it>it|them|em|'em)\b(?P<rest>.*)$", _I
)
_TASTE_OF: Final = re.compile(
    r"^.*\b(?:loves?|likes?|hates?|enjoys?|adores?|dislikes?|can't stand|come around (?:on|to)|came around (?:on|to)|"
    r"warmed (?:up )?to|gotten into|got into) (?P<v>(?!it\b|them\b)[\w' -]{3,40})$",
    _I,
)
_AND_ME: Final = re.compile(
    rf"^(?:(?:my|our) {SIZE}(?:{RELATIVES})(?: (?-i:[A-Z])[\w-]+)? \+\+\+ (?:i|me)|(?:me|i) and (?:my|"
    rf"our) {SIZE}(?:{RELATIVES})"
    r"(?: (?-i:[A-Z])[\w-]+)?)\b(?! (?:broke|split|divorced|separated|are (?:over|done|no)))",
    _I,
)
"""Both of a couple: what they do, the user does."""
_NOT_ME: Final = re.compile(r"^(?:please )?(?:don't|do not|stop|never) call(?:ing)? me\b", _I)
_FROM_NOW: Final = re.compile(r"\b(?:for (?:me|us)(?: now)?|from (?:here|now) on|instead)(?: too)?$", _I)
_FINE: Final = re.compile(
    r"^(?:(?:just |go with |stick with |use |call me )*)(?P<v>(?-i:[A-Z])\w+)(?:'s| is| works)?"
    r"(?: (?:just )?(?:fine|better|ok|okay|good|great|it is))(?: (?:after all|too|actually|instead|again))*$",
    _I,
)
"""A name that will do: "Katya's fine after all"."""
_CANCELLED: Final = re.compile(
    r"^(?:.* )?(?:cancel+ed|called off|scrapped|postponed indefinitely|pulled the plug on|binned|shelved) "
    r"(?:it|that|the whole thing|the lot|everything)\b"
    r"|\bcalled it off\b|^(?:it|that|the \w+|whole thing)(?:'s| is| was| got| has|'s been| has been| been)+ "
    r"(?:all )?(?:off|cancel+ed|called off|not happening|been cancel+ed|scrapped)\b|^it fell through\b"
    r"|^(?:i'm|we're|i am|we are) not going(?: any ?more| after all| in the end)?$",
    _I,
)
"""The end of the one plan spoken of."""
_HOLDING_ON: Final = frozenset({PersonAttribute.LIKES})
_BARE_THING: Final = re.compile(r"^(?P<v>(?:[a-z]{3,20} )?[a-z]{3,20}s)$", _I)
_NOW: Final = re.compile(
    r"^(?:(?:it's|its|it is|that's)\s+(?:now |actually )?(?P<v>.+?)"
    r"(?: for (?:me|us))?(?: now too| now| these days| from (?:here|now) on| instead|(?<= now))|"
    r"(?P<it>\S+(?: \S+)?) it is(?: then| now)?)$",
    _I,
)
_AVERSIONS: Final = (PersonAttribute.DIET, PersonAttribute.DISLIKES, PersonAttribute.ALLERGY)
_MEANT: Final = re.compile(r"\b(?:correction|i meant?|typo|make that|scratch that)\b", _I)
_BARE: Final = re.compile(r"^(?P<v>\S+(?: \S+){0,3})$")
_RESTATED: Final = re.compile(r"^(?:it's|it is|i meant|i mean|make that|rather)\s+(?:actually |now )?(?P<v>.+)$", _I)


class Reader:
    """Reads the messages of one conversation in their order; it knows the people and facts that were spoken of."""

    def __init__(self) -> None:
        self._subjects = Subjects()
        self._question = ""
        self._last: list[Candidate] = []  # what the last message stated
        self._recent: list[list[Candidate]] = []  # what each of the last messages stated, the newest last

    def read(self, text: str) -> Iterator[Candidate | Refused]:
        """Yield what a message states about people, and what it only seems to state, in order."""
        stated: list[Candidate] = []
        self._recent = [*filter(None, self._recent[-_REMEMBERED:]), stated]
        if self._last and _TAKEN_BACK.match(text):
            yield from (
                dataclasses.replace(old, ends=True, start=0, end=len(text)) for old in self._last if not old.ends
            )
        self._last = stated
        announced = _ANNOUNCED.match(text) is not None
        for one in self._read(text):
            if isinstance(one, Refused):
                yield one
            elif is_instruction(text[one.start : one.end]) or is_instruction(one.content):
                yield Refused(INSTRUCTION, one.start, one.end, one.attribute)
            elif not any(_same_aversion(one, other) for other in stated):
                stated.append(
                    _after(stated, dataclasses.replace(one, changes=True) if announced and one.single else one)
                )
                yield stated[-1]

    def asked(self, text: str) -> None:
        """Take note of a message of the assistant: the next one may answer its question."""
        self._question = answers.question_of(text)

    def _answer(self, text: str) -> Iterator[Candidate | Refused]:
        answer = answers.stated(self._question, text) if self._question else None
        self._question = ""
        if answer is None:
            return
        said, start, end = answer
        clause = Clause(said, start, end)
        yield from (_named(person, clause) for person in self._subjects.mentions(said))
        for one in self._statements(said, clause, corrects=False, named=[], dropped=False):
            # An answer says which place is meant, but not that what is known of another one is over.
            yield dataclasses.replace(one, single=False) if isinstance(one, Candidate) else one

    def _read(self, text: str) -> Iterator[Candidate | Refused]:
        yield from self._answer(text)
        yield from _across(text)
        corrected = of_another = False
        before = ""
        for clause in clauses_of(text):
            body, corrects = body_of(clause.text)
            renamed = _NOT_ME.match(body) is not None
            corrected, corrects = (
                (corrects and not body) or renamed,
                corrects or corrected,
            )  # "no, it's Porto" is two clauses
            named = self._subjects.mentions(body) if clause.refusal in _PRESUPPOSING else []
            for person in named:
                yield _named(person, clause)
                if age := re.search(_AGED.format(re.escape(person.name)), body):
                    said = match(f"I'm {age[1]}")
                    yield from () if said is None else _of(person, candidates_of(*said, clause, corrects=corrects))
            found = False
            for one in self._statements(
                _resolved(body, before), clause, corrects=corrects, named=named, dropped=not of_another, before=before
            ):
                found = True
                yield one
            earlier, before = before, body or before
            of_another = _OF_ANOTHER.match(before) is not None
            if found or clause.refusal is not None:
                continue
            amended = amendment(body, clause, earlier) or self._restated(body, clause, corrects=corrects)
            if amended is None and corrects:
                amended = self._over(body, clause)
            if amended is not None:
                yield self._about(amended)
            if _CANCELLED.search(body):
                yield from self._cancelled(body, clause)

    def _statements(
        self, said: str, clause: Clause, *, corrects: bool, named: list[Person], dropped: bool, before: str = ""
    ) -> Iterator[Candidate | Refused]:
        if (slip := slip_of(said)) is not None:
            stated = list(self._statements(slip.statement, clause, corrects=corrects, named=named, dropped=dropped))
            if len(stated) == 1 and isinstance(stated[0], Candidate):
                new = mended(stated[0], slip)
                if new is not None or slip.denies:
                    yield new or Refused(UNCLEAR, clause.start, clause.end, stated[0].attribute)
                    return
        person: Person | None = None
        was = ""
        if (old := _NOT_OLD.search(said)) is not None and matches_of(said[: old.start()]):
            said, was, corrects = said[: old.start()], old["was"], True
        said = _AND_ME.sub("we", said)
        matches = matches_of(said)
        if not matches:
            if (guessed := _GUESS.match(said)) and (own := own_words(said[guessed.end() :])) is not None:
                matches = matches_of(own)
            subject = None if matches else self._subjects.read(said)
            if subject is not None and subject[0] is None:
                return
            if subject is not None:
                person, own = subject
                if person is not None and not is_other(person.role) and _DIED.match(own):
                    yield _died(person, clause)
                    return
                matches = matches_of(own)
            elif not matches and dropped and _DROPPED.match(said):
                matches = [one for one in matches_of(_with_subject(said)) if _certain(*one)]
            elif not matches and FRAGMENT.match(before) and _TITLE.match(said):
                matches = matches_of(f"I'm a {said}")
        if not matches and clause.opens and "," in said:
            matches = introduced(said)
        for rule, found in matches:
            if (
                person is None
                and rule.attribute is PersonAttribute.AGE
                and found["v"].isdigit()
                and int(found["v"]) < _YOUNGEST
            ):
                continue
            if clause.refusal is not None and (clause.refusal, rule.attribute) != (PLAN, PersonAttribute.PLAN):
                yield Refused(clause.refusal, clause.start, clause.end, rule.attribute)
            elif not (
                named and (rule.slot.startswith("count") or rule.content.startswith("{x} is called"))
            ):  # else it was found already
                for one in _of(person, candidates_of(rule, found, clause, corrects=corrects)):
                    yield dataclasses.replace(one, was=was) if was else one

    def _restated(self, body: str, clause: Clause, *, corrects: bool) -> Candidate | None:
        """Return the fact that "no, it's Porto" states: of the one matter lately spoken of that the value fits."""
        if fine := _FINE.match(body):
            return self._renamed(fine["v"], clause)
        found = _RESTATED.match(body) if corrects else _NOW.match(body)
        bare = _BARE.match(body) if found is None and corrects else None
        found = bare if bare is not None and _MEANT.search(clause.text) else found
        if found is None:
            short = self._short(bare["v"], clause) if bare is not None else None
            return short or self._redated(body, clause, corrects=corrects)
        value = value_of(found["v"] or found.groupdict().get("it") or "", narrow=True)
        correction = Candidate(
            PersonAttribute.OTHER, value, "", clause.start, clause.end, corrects=corrects, changes=not corrects
        )
        for stated in self._recent[: -_RECENT - 1 : -1]:
            fitting = [new for old in stated if (new := of_matter(old, correction)) is not None]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
        return self._replaced_taste(value, clause) if _FROM_NOW.search(body) else None

    def _short(self, value: str, clause: Clause) -> Candidate | None:
        """Return the fact stated just before that "No, 36." corrects, if the value is one of its matter."""
        stated = [one for some in self._recent[-2:] if some for one in some][-1:]
        correction = Candidate(PersonAttribute.OTHER, value, "", clause.start, clause.end, corrects=True)
        return of_matter(stated[0], correction) if stated and stated[0].attribute in NUMBERED else None

    def _about(self, amended: Candidate) -> Candidate:
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

    def _cancelled(self, body: str, clause: Clause) -> Iterator[Candidate]:
        """Yield the end of the plan lately stated, if it was one, and of the engagement that was called off."""
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

    def _renamed(self, name: str, clause: Clause) -> Candidate | None:
        """Return the name that will do after all, if the conversation spoke of one."""
        names = [one for some in self._recent for one in some if one.attribute is PersonAttribute.NAME]
        if not names or names[-1].person is not None or not words.is_given_name(name):
            return None
        new = Candidate(PersonAttribute.OTHER, name, "", clause.start, clause.end, changes=True)
        return restated(PersonAttribute.NAME, "", new)

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

    def _over(self, body: str, clause: Clause) -> Candidate | None:
        """Return the end of the fact stated last whose verb a correction puts in the past: "Correction: played"."""
        past = re.fullmatch(r"(\w{3,}e?)d", body.casefold())
        stated = next(reversed(self._recent[:-1] or [[]]), [])
        if past is None or len(stated) != 1 or stated[0].ends:
            return None
        verb = stated[0].content.partition(" ")[0].removesuffix("s")
        if past[1] not in (verb, f"{verb}e"):
            return None
        return dataclasses.replace(stated[0], ends=True, start=clause.start, end=clause.end)

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


def _matter(dated: Candidate) -> frozenset[str]:
    """Return the words that name the matter of a fact with a day: "flight" of "flight to Toronto on 14 February"."""
    (day,) = words.days(dated.content)
    name = dated.slot.partition(" to ")[0] or dated.value.replace(day, "").partition(" on ")[0]
    return words_of(name or dated.attribute.value)


def _after(stated: list[Candidate], new: Candidate) -> Candidate:
    """Return a statement with the value that it replaces, if the message ended one: "left Rome, in Bari now"."""
    if new.ends or not new.single or new.was or new.attribute not in (PersonAttribute.HOME, PersonAttribute.EMPLOYER):
        return new
    ended = [old for old in stated if old.ends and old.person == new.person and words.is_firm(old.value or " ")]
    return dataclasses.replace(new, was=ended[-1].value) if ended and ended[-1].attribute in LEFT else new


def _same_aversion(one: Candidate, other: Candidate) -> bool:
    """Return whether both mean that a person avoids the same thing: "mushrooms. can't stand them"."""
    return (
        one.attribute in _AVERSIONS
        and other.attribute in _AVERSIONS
        and one.attribute is not other.attribute
        and (one.person, one.ends, comparable(one.value)) == (other.person, other.ends, comparable(other.value))
    )


def _resolved(said: str, before: str) -> str:
    """Return a clause of taste with the thing that "it" stands for, if the clause before names just one."""
    found = _TASTE_OF_IT.match(said)
    if found is None:
        return said
    named = _TASTE_OF.match(before) or (_BARE_THING.match(before) if found["it"] != "it" else None)
    return said if named is None else f"{found['taste']} {named['v']}{found['rest']}"


def _certain(rule: Rule, found: dict[str, str]) -> bool:
    """Return whether a rule reads a clause without a subject beyond doubt: "Left the tab open" is no end of a home."""
    if "v" not in found or rule.content == "is {v}":
        return True
    if rule.attribute is PersonAttribute.JOB and rule.slot:
        return False
    return CERTAIN.get(rule.attribute, words.is_value)(found["v"])


def _of(person: Person | None, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    return (dataclasses.replace(each, person=person) for each in candidates)


def _with_subject(said: str) -> str:
    return f"I'm {said}" if _STATE.match(said) else f"I {said}"


def _died(animal: Person, clause: Clause) -> Candidate:
    if not is_animal(animal.role):
        return Candidate(
            PersonAttribute.OTHER, "", "", clause.start, clause.end, slot=ANY_SLOT, ends=True, person=animal
        )
    return Candidate(PersonAttribute.PET, animal.name, "", clause.start, clause.end, slot=animal.role, ends=True)


def _across(text: str) -> Iterator[Candidate]:
    """Yield what is stated across clauses: a change of mind, a promotion."""
    if found := _MIND.search(text):
        matter, start, end = found["x"], found.start(), found.end()
        likes = PersonAttribute.LIKES
        yield Candidate(likes, matter, "", start, end, slot="prefers", ends=True)
        value = f"{found['v']} {matter}"
        kind = NoteType.PREFERENCE
        yield Candidate(likes, value, f"prefers {value}", start, end, slot="prefers", note_type=kind)
    if (found := _PROMOTED.search(text)) and words.is_title(found["v"]):
        value, start, end = found["v"], found.start(), found.end()
        yield Candidate(PersonAttribute.JOB, value, f"works as {value}", start, end, single=True, changes=True)


def _named(person: Person, clause: Clause) -> Candidate:
    kind = PersonAttribute.FAMILY if is_relative(person.role) else PersonAttribute.PET
    return Candidate(
        kind,
        person.name,
        f"{person.role} is called {person.name}",
        clause.start,
        clause.end,
        slot=person.role,
    )
