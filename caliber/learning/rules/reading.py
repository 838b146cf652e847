"""Reader of a conversation: clauses of its messages matched against the rules, each as a candidate or as refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final

from caliber.learning.lexicon import endings, words
from caliber.learning.lexicon.people import ANIMALS, OTHERS, PARTNERS, RELATIVES, SIZE
from caliber.learning.matters.patterns import Rule
from caliber.learning.rules import answers
from caliber.learning.rules.candidates import (
    ANY_SLOT,
    INSTRUCTION,
    NOT_READ,
    Candidate,
    Person,
    Refused,
    comparable,
    is_instruction,
)
from caliber.learning.rules.clauses import (
    DOUBT,
    LAUGH,
    MAX_CHARS_READ,
    PLAN,
    QUESTION,
    QUOTE,
    TASK,
    Clause,
    clauses_of,
)
from caliber.learning.rules.correcting import amendment
from caliber.learning.rules.leads import body_of
from caliber.learning.rules.matching import (
    FRAGMENT,
    LEFT,
    candidates_of,
    introduced,
    match,
    matches_of,
)
from caliber.learning.rules.recent import Recent
from caliber.learning.rules.slips import CERTAIN, UNCLEAR, mended, slip_of
from caliber.learning.rules.subjects import Subjects, is_animal, is_other, is_relative, own_words
from caliber.model.deadline import check
from caliber.model.knowledge import NoteType
from caliber.model.learning import PersonAttribute

_MAX_STATED: Final = 60
"""The statements of one message to which corrections may point: a message with more is a document, not talk."""
_I = re.IGNORECASE
_NOT_OLD: Final = re.compile(r"(?<=\w),? not (?:in |at |an? |the |as )?(?P<was>[\w'-]+(?: [\w'-]+)?)$", _I)
_MIND: Final = re.compile(
    r"\b(?:i(?:'ve)? )?changed my mind about (?:the )?(?P<x>[\w ]{2,30}?)\s*[-–—:,;]\s*(?P<v>[\w ]{2,30}?)(?: from "
    r"now on| now| please| after all)?(?=[,.!]|$)",
    _I,
)
_PROMOTED: Final = re.compile(
    r"(?:^|\b(?:i(?:'ve| was| have been| got|'m| am)?(?: now)?|just got|got|been|was) )promoted\b[!.,:\s]+(?:to |as "
    r")?(?:an? |the )?(?P<v>[\w &]{3,50}?)(?= from\b| starting\b| as of\b| since\b| now\b|[,.!]|$)",
    _I,
)
_PRESUPPOSING: Final = (None, QUESTION, PLAN, DOUBT, TASK, LAUGH)
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
    r"joined|signed|started|starting (?:at|with|for)|switched|retired|turned|became|adopted|got|lost my|sold|was "
    r"born|live in|work (?:at|as|for)|not|no longer|doing|running|training for|studying for|preparing for|broke my|"
    r"sprained|fractured|tore my|can't stand|hate|allergic to|based in|born in|living in|working (?:at|as|for)|"
    r"studying|used to)\b",
    _I,
)
_TITLE: Final = re.compile(r"^(?:[a-z]+ ){1,3}(?:at|for|with) (?-i:[A-Z])", _I)
_TAKEN_BACK: Final = re.compile(r"^\W*(?:(?:haha|lol|no|nah|ok)\W+)*(?:jk|just kidding|i was joking|i'm joking)\b", _I)
_ANNOUNCED: Final = re.compile(r"^\W*(?:\w+ )?(?:update|news)\b", _I)
"""The beginning of a message about what has changed."""
_ANOTHER: Final = re.compile(
    rf"^(?:he|she|his|her|their|everyone|everybody|someone|somebody|they (?!(?:have |had |just |all )*(?:cancel|mov|"
    rf"postpon|push|resched|shift|delay|shut|clos|laid|fired|let|sack|made|took|scrap|axed|call))|(?:the |my |our "
    rf")?(?:kids|children|family|parents|friends?|baby|toddler)|(?:my|our|the) {SIZE}(?:{RELATIVES}|(?!(?:doctor|"
    rf"dentist|therapist)\b)(?:{OTHERS})|{ANIMALS}))\b",
    _I,
)
"""The beginning of a clause about somebody who is not known by name."""
_MOMENT: Final = re.compile(
    r"\b(?:just left|(?:at|around|after) (?:\d|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|noon|"
    r"dinner|lunch|work|class)|on the (?:bus|train|way)|for (?:lent|today|tonight|now|the day|the weekend|a bit|a "
    r"while|an hour|a minute)|(?:for |dry )january|laughing|from the vacuum|from the vet|in my dream|in (?:minecraft|"
    r"the sims)|with a|with cash|and got home|but (?:came|found)|every (?:day|night)|so i'm free|left me an?|when "
    r"it's|rehearsal|rims)\b",
    _I,
)
"""Words of a moment, in which nothing ends for good."""
_SPEAKER: Final = re.compile(
    rf"^(?:my|our) {SIZE}(?:{RELATIVES}) (?-i:[A-Z])[\w-]+(?= (?:just )?(?:says|said|tells|told|thinks)\b)", _I
)
"""A relative with a name, whose words a clause reports."""
_SAID_ALL_THE_SAME: Final = {
    PLAN: (PersonAttribute.PLAN,),
    LAUGH: (PersonAttribute.ALLERGY, PersonAttribute.PET, PersonAttribute.FAMILY, PersonAttribute.HEALTH),
}
"""Matters that a clause states which is refused for others."""
_CHILD: Final = re.compile(
    r"\b(?:my|our) (?P<v>(?:\d{1,2}|one|two|three|four|five|six|seven|eight|nine|ten)[- ]?(?:year|yr|month|"
    r"week)s?[- ]?old(?: (?:son|daughter|boy|girl|twins|grandson|granddaughter|nephew|niece|dog|cat|puppy|"
    r"kitten))?)(?=\s*(?:$|[,.?!]|(?:is|has|won't|can't|loves|keeps|just|and|to|who|will|does|doesn't|wants|needs|"
    r"hates|likes|refuses|wakes|started|starts|asked|asks|about|with)\b))",
    _I,
)
"""A child or animal by the age alone: "my 4 year old won't sleep"."""
_HOUSE: Final = re.compile(
    r"\b(?:my|our) (?:new |little |small |tiny )?(?:flat|apartment|house|place|studio) in (?P<v>(?-i:[A-Z])\w+(?: "
    r"(?-i:[A-Z])\w+)?)\b(?!'| (?:was|were|last|for|had)\b)",
    _I,
)
_ALLERGIC: Final = re.compile(r"^(?P<is>.*\ballergic)$", _I)
_WITHOUT: Final = re.compile(
    r"\b(?:without|no|with|has|contains?|free of|any) (?:any )?(?P<v>[a-z]+(?: (?:and|or) [a-z]+)?)$", _I
)
_BECAME: Final = re.compile(
    r"^(?P<who>he|she|(?-i:[A-Z])\w+)(?:'s| is) (?:now |officially |finally |actually |legally )*my (?P<role>wife|"
    r"husband|fiancé|fiancée|fiance|fiancee|partner|ex)(?: now| as of .+| since .+){0,2}$",
    _I,
)
_PROPOSED: Final = re.compile(
    r"^(?:omg |and |so )*(?:he|she|(?-i:[A-Z])\w+|i)(?: just| finally)? proposed(?! (?:an?|the|that|to (?!me\b|him\b|"
    r"her\b)|we|i|some|it)\b)",
    _I,
)
_SAID_YES: Final = re.compile(r"^(?:i|she|he)(?:'ve| have)? (?:just |finally )?said yes$", _I)
_ROLES_OF: Final = {
    "engaged": {"boyfriend": "fiancé", "girlfriend": "fiancée"},
    "married": {"boyfriend": "husband", "girlfriend": "wife", "fiancé": "husband", "fiancée": "wife"},
}
"""What a partner becomes by an engagement and by a wedding."""
_PARTED: Final = ("single", "divorced", "separated")
_DIED: Final = re.compile(
    r"^I(?:'ve)? (?:\w+ly )?(?:died|passed away|passed|had to be put down|was put down|ran away|had to go|was "
    r"rehomed|went to live with)\b",
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
    rf"^(?:(?:my|our) {SIZE}(?:{RELATIVES})(?: (?-i:[A-Z])[\w-]+)? \+\+\+ (?:i|me)|(?:me|i) and (?:my|our) "
    rf"{SIZE}(?:{RELATIVES})"
    r"(?: (?-i:[A-Z])[\w-]+)?)\b(?! (?:broke|split|divorced|separated|are (?:over|done|no)))",
    _I,
)
"""Both of a couple: what they do, the user does."""
_NOT_ME: Final = re.compile(r"^(?:please )?(?:don't|do not|stop|never) call(?:ing)? me\b", _I)
_BARE_THING: Final = re.compile(r"^(?P<v>(?:[a-z]{3,20} )?[a-z]{3,20}s)$", _I)
_AVERSIONS: Final = frozenset({PersonAttribute.DIET, PersonAttribute.DISLIKES, PersonAttribute.ALLERGY})


class Reader:
    """Reads the messages of one conversation in their order; it knows the people and facts that were spoken of."""

    def __init__(self) -> None:
        self._subjects = Subjects()
        self._question = ""
        self._last: list[Candidate] = []  # what the last message stated
        self._recent = Recent()

    def read(self, text: str) -> Iterator[Candidate | Refused]:
        """Yield what a message states about people, and what it only seems to state, in order.

        What is too long to be read is refused as ``NOT_READ``. Raises: Unavailable when the deadline passes.
        """
        size, text = len(text), text[:MAX_CHARS_READ]
        stated: list[Candidate] = []
        seen: set[tuple[object, ...]] = set()
        self._recent.add(stated)
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
            elif one.ends and ("'s " in one.value or _MOMENT.search(text[one.start : one.end])):
                continue  # "my son's asthma is gone", "just left the bank"
            elif not seen & _keys(one, _AVERSIONS - {one.attribute}):
                seen |= _keys(one, {one.attribute})
                new = _after(stated, dataclasses.replace(one, changes=True) if announced and one.single else one)
                if len(stated) < _MAX_STATED:
                    stated.append(new)
                yield new
        if size > len(text):
            yield Refused(NOT_READ, len(text), size)

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
            check("rules read a message")
            if clause.refusal == NOT_READ:
                yield Refused(NOT_READ, clause.start, clause.end)
                continue
            body, corrects = body_of(clause.text)
            renamed = _NOT_ME.match(body) is not None
            corrected, corrects = (
                (corrects and not body) or renamed,
                corrects or corrected,
            )  # "no, it's Porto" is two clauses
            named = self._subjects.mentions(body) if clause.refusal in _PRESUPPOSING else []
            if clause.refusal == QUOTE and (speaker := _SPEAKER.match(body)):
                named = self._subjects.mentions(speaker[0])
            named = [each for each in named if each.name.casefold() in body.casefold()]
            for person in named:
                yield _named(person, clause)
                if age := re.search(_AGED.format(re.escape(person.name)), body):
                    said = match(f"I'm {age[1]}")
                    yield from () if said is None else _of(person, candidates_of(*said, clause, corrects=corrects))
            if clause.refusal in _PRESUPPOSING and (child := _CHILD.search(body)):
                yield _of_age(child["v"], clause)
            if clause.refusal in _PRESUPPOSING and (house := _HOUSE.search(body)) and words.is_known_place(house["v"]):
                yield Candidate(
                    PersonAttribute.HOME, house["v"], f"lives in {house['v']}", clause.start, clause.end, inferred=True
                )
            found = []
            for one in self._statements(
                _resolved(body, before), clause, corrects=corrects, named=named, dropped=not of_another, before=before
            ):
                found.append(one)
                yield one
            earlier, before = before, body or before
            of_another = _OF_ANOTHER.match(before) is not None
            if clause.refusal is not None:
                continue
            engaged = self._engaged(body, clause) if not found else []
            if self._subjects.partner(_ROLES_OF.get(engaged[0].value, {}) if engaged else {}) is None:
                yield from engaged
            for one in (*found, *engaged):
                yield from self._promoted(one)
            if found:
                if all(isinstance(one, Candidate) and one.ends for one in found):
                    yield from self._ended(body, clause)
                continue
            amended = amendment(body, clause, earlier) or self._recent.restated(body, clause, corrects=corrects)
            if amended is None and corrects:
                amended = self._recent.over(body, clause)
            if amended is not None:
                yield self._recent.about(amended)
            cancelled = list(self._recent.cancelled(body, clause))
            yield from cancelled
            if not cancelled and (amended is None or amended.ends):
                yield from self._ended(body, clause)

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
            if clause.refusal is not None and rule.attribute not in _SAID_ALL_THE_SAME.get(clause.refusal, ()):
                yield Refused(clause.refusal, clause.start, clause.end, rule.attribute)
            elif not (
                named and (rule.slot.startswith("count") or rule.content.startswith("{x} is called"))
            ):  # else it was found already
                for one in _of(person, candidates_of(rule, found, clause, corrects=corrects)):
                    if one.person is None and one.content == f"{one.slot} is called {one.value}":
                        self._subjects.mention(Person(one.slot, one.value))
                    yield dataclasses.replace(one, was=was) if was else one

    def _engaged(self, body: str, clause: Clause) -> list[Candidate]:
        """Return the status of the user after "he proposed" and "she's my wife now"."""
        courting = self._subjects.courts(_ROLES_OF["engaged"])
        status = "engaged" if courting and (_PROPOSED.match(body) or _SAID_YES.match(body)) else ""
        if became := _BECAME.match(body):
            status = "married" if became["role"].casefold() in ("wife", "husband") else "engaged"
        family, start, end = PersonAttribute.FAMILY, clause.start, clause.end
        if not status or (became and became["role"].casefold() in ("partner", "ex")):
            return []
        return [Candidate(family, status, f"is {status}", start, end, slot="status", single=True, changes=True)]

    def _promoted(self, one: Candidate | Refused) -> Iterator[Candidate]:
        """Yield the role that a partner whose name is known has after an engagement or a wedding."""
        if isinstance(one, Refused) or one.ends or one.person is not None or one.slot != "status":
            return
        if one.value in _PARTED and (left := self._subjects.partner(PARTNERS)) is not None:
            yield dataclasses.replace(one, value=left.name, content="", slot=left.role, ends=True)
        partner = self._subjects.partner(_ROLES_OF.get(one.value, {}))
        if partner is None:
            return
        old, new = partner.role, _ROLES_OF[one.value][partner.role]
        yield dataclasses.replace(one, value=partner.name, content="", slot=old, ends=True)
        partner = self._subjects.renamed(partner, new)
        yield dataclasses.replace(
            one, value=partner.name, content=f"{new} is called {partner.name}", slot=new, changes=True
        )

    def _ended(self, body: str, clause: Clause) -> Iterator[Candidate]:
        """Yield the end of whatever fact a clause names, if it has words of ending."""
        subject = self._subjects.read(body) or self._subjects.begins(body)
        told: list[tuple[Person | None, str, str]] = []
        if subject is None and not _ANOTHER.match(body):
            told.append((None, body, ""))
        elif subject is not None and (person := subject[0]) is not None:
            told.append((person, subject[1], ""))
            if person.name:  # "Priya moved out" ends that a flatmate is called so
                told.append((None, body, person.name))
        for person, said, name in told:
            if endings.may_end(said):
                yield Candidate(
                    PersonAttribute.OTHER,
                    "",
                    "",
                    clause.start,
                    clause.end,
                    person=person,
                    restates=True,
                    ends=True,
                    said=said,
                    was=name,
                )


def _after(stated: list[Candidate], new: Candidate) -> Candidate:
    """Return a statement with the value that it replaces, if the message ended one: "left Rome, in Bari now"."""
    if new.ends or not new.single or new.was or new.attribute not in (PersonAttribute.HOME, PersonAttribute.EMPLOYER):
        return new
    ended = [old for old in stated if old.ends and old.person == new.person and words.is_firm(old.value or " ")]
    return dataclasses.replace(new, was=ended[-1].value) if ended and ended[-1].attribute in LEFT else new


def _keys(one: Candidate, aversions: Iterable[PersonAttribute]) -> set[tuple[object, ...]]:
    """Return the keys of a statement that those of one meaning share, such as "can't stand" and an aversion."""
    keys: set[tuple[object, ...]] = set()
    if one.attribute in _AVERSIONS:
        keys = {(one.person, each, one.ends, comparable(one.value)) for each in aversions}
    if one.content and not one.ends:
        keys.add((one.person, one.attribute, one.content))
    return keys


def _resolved(said: str, before: str) -> str:
    """Return a clause of taste with the thing that "it" stands for, if the clause before names just one."""
    if _ALLERGIC.match(said) and (food := _WITHOUT.search(before)):
        return f"{said} to {food['v']}"
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


def _of_age(age: str, clause: Clause) -> Candidate:
    animal = is_animal(age.split(" ")[-1])
    kind = PersonAttribute.PET if animal else PersonAttribute.FAMILY
    return Candidate(kind, age, f"has a {age}", clause.start, clause.end, slot=f"child: {age}")


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
