"""Reader of a conversation: clauses of its messages matched against the rules, each as a candidate or as refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final

from caliber.learning.rules import household, life, words
from caliber.learning.rules.candidates import Candidate, Refused
from caliber.learning.rules.clauses import Clause, clauses_of
from caliber.learning.rules.patterns import Rule
from caliber.learning.rules.subjects import Person, Subjects, is_relative
from caliber.model.knowledge import NoteType
from caliber.model.learning import PersonAttribute

RULES: Final = (*life.RULES, *household.RULES)
"""The rules, in the order in which they are tried: the first whose pattern and check match."""
_I = re.IGNORECASE
_LEAD: Final = re.compile(
    r"^(?:\W*(?:well|so|and|but|or|hi|hello|hey|hiya|oh|ok|okay|yes|yeah|yep|yup|no|nope|nah|btw|by the way|fyi|"
    r"actually|"
    r"just so you know|for the record|for your information|(?:please |do |also |just )?(?:remember|note|keep in mind|"
    r"bear in mind|don't forget|be aware|know)(?: that)?|also|plus|as you know|i should (?:mention|"
    r"add|say)(?: that)?|"
    r"i forgot to (?:say|mention|tell you)(?: that)?|to be honest|honestly|frankly|unfortunately|sadly|luckily|"
    r"fun fact|random fact|thanks|thank you|hi there|hey there|good (?:morning|evening|afternoon)|since|as|because|"
    r"given that|now that|now|today|currently|at the moment|these days|nowadays|recently|lately|yesterday|"
    r"sorry|correction|wait|oops|update|i mean|i meant|i meant to say|what i meant is|one more thing|"
    r"(?:last|this|the other|past) (?:week|weekend|month|year|day|night|spring|summer|autumn|fall|winter)|"
    r"(?:a|two|three|few|a few|\d+) (?:days|weeks|months|years|week|month|year|day) ago|"
    r"in (?:january|february|march|april|may|june|july|august|september|october|november|december|\d{4})|"
    r"as of (?:today|now|this \w+|last \w+)|about me|a bit about me|my bad|i was wrong|i misspoke|that's (?:wrong|"
    r"not right|"
    r"incorrect)|not quite|anyway|anyways|guess what|good news|big news|bad news|great news|i'm happy to say|"
    r"as i said|like i said|in case you (?:need|wonder)|you (?:should|must) know(?: that)?|"
    r"tell you what|(?:it )?turns out(?: that)?|"
    r"typo|scratch that|make that|that|tbh|um|aha|heads up|reminder|i forgot|"
    r"should mention|i should probably mention|"
    r"i need to mention|hm+|ah|oh and|lol|omg|yo|ps|psa|small update|as an aside|"
    r"(?:quick|small|little) (?:update|note|correction)|small correction|a correction|news|personally|in general|"
    r"generally|first of all|"
    r"dear \w+)\b[\s,:!.–—-]*)+",
    _I,
)
_CORRECTION: Final = re.compile(
    r"\b(?:typo|scratch that|make that|actually|"
    r"no|nope|sorry|correction|i meant?|wait|oops|my bad|i was wrong|i misspoke|that's (?:wrong|"
    r"not right|"
    r"incorrect)|not quite)\b",
    _I,
)
_TAIL: Final = re.compile(
    r"(?:[\s,]+(?:any ?more|any longer|way too much|too much|rn|atm|myself|"
    r"after all|now|too|as well|these days|nowadays|at the moment|right now|currently|by the way|"
    r"btw|actually|though|"
    r"please|again|today|yesterday|recently|lately|already|instead|for now|you know|fyi|to be honest|honestly|also|"
    r"so much|a lot|very much|the most|more than anything|of course|obviously|haha|and stuff|etc|or so|in fact|"
    r"(?:for|since|in|over) (?:(?:about|almost|around|over|nearly|the (?:last|past)|more than) )?(?:an? |two |three |"
    r"four |five |six |ten |many |several |some |a few |few )?(?:\d+ )?(?:years?|months?|weeks?|days?|decades?|ages|"
    r"childhood|birth|forever|now|ever)(?: now| ago)?|since (?:\w+ )?\d{4}|since (?:january|february|march|april|"
    r"may|june|"
    r"july|august|september|october|november|december|last \w+|i was \w+|forever|then)|"
    r"(?:an? |two |three |\d+ |a few |a couple of )(?:days?|weeks?|months?|years?) ago|in \d{4}|"
    r"in (?:january|february|"
    r"march|april|may|june|july|august|september|october|november|december)|"
    r"(?:last|this|next|earlier this|the other) (?:week|weekend|month|year|day|night|spring|summer|"
    r"autumn|fall|winter|"
    r"monday|tuesday|wednesday|thursday|friday|saturday|sunday|january|february|march|april|may|june|july|august|"
    r"september|october|november|december)|with (?:my|our|a|his|her) .+|together|alone|from now on))+$",
    _I,
)
_ENDING: Final = re.compile(r"[\s.!,;:)\]]+$")
_OPENING: Final = re.compile(r"^[\s\-*•(\[]+")
_CUT: Final = re.compile(
    r"(?:,| -|\s+(?:because|since|when|which|who|where|that i|as i|so that|"
    r"in case|after|before|during|until|but|though)\b|\s*\()\s?.*$",
    _I,
)
_NARROW: Final = re.compile(
    r"(?:\s+(?:with|near|for|to|so|on|working|doing)\s.*|\s+and (?![A-Z]).*|\s+(?:in|since) (?:the )?(?:january|"
    r"february|march|april|may|"
    r"june|july|august|september|october|november|december|spring|summer|autumn|fall|winter|\d{4}).*)$",
    _I,
)
_NARROWED: Final = frozenset(
    {
        PersonAttribute.HOME,
        PersonAttribute.EMPLOYER,
        PersonAttribute.JOB,
        PersonAttribute.NAME,
        PersonAttribute.BIRTHDAY,
    }
)
_AS: Final = re.compile(r"^(?P<v>.+?) as (?P<job>(?:an?|the) .+)$", _I)
_AT: Final = re.compile(r"^(?P<v>.+?) (?:at|for) (?P<employer>[^\W\d_a-z].*)$")
_FROM: Final = re.compile(r"^(?P<v>.+?) (?P<word>from|in) (?P<place>[^\W\d_a-z].*)$")
_COMMA: Final = re.compile(r"\s*,\s+(?!(?:and|or)\b)")
_AND: Final = re.compile(r",?\s+(?:and|or|&)\s+", _I)
_PARENTHESIS: Final = re.compile(r"\s*\(.*$")
_NEGATED: Final = re.compile(r",\s*not (?:in |at |a |an )?[\w' -]+$", _I)
_FRAGMENT: Final = re.compile(r"^(?:i'm|i am|im)\b", _I)
_MIND: Final = re.compile(
    r"\b(?:i(?:'ve)? )?changed my mind about (?:the )?(?P<x>[\w ]{2,30}?)\s*[-–—:,;]\s*(?P<v>[\w ]{2,30}?)"
    r"(?: from now on| now| please| after all)?(?=[,.!]|$)",
    _I,
)
_PROMOTED: Final = re.compile(
    r"\b(?:i(?:'ve| was| have been| got)?|just got|got|been|was) promoted\b[!.,:\s]+(?:to |as )?(?:an? |the )?"
    r"(?P<v>[\w &]{3,50}?)(?= from\b| starting\b| as of\b| since\b| now\b|[,.!]|$)",
    _I,
)
_MEANT: Final = re.compile(r"\b(?:correction|i meant?|typo|make that|scratch that)\b", _I)
_BARE: Final = re.compile(r"^(?P<v>\S+(?: \S+){0,3})$")
_RESTATED: Final = re.compile(r"^(?:it's|it is|i meant|i mean|make that|rather)\s+(?:actually |now )?(?P<v>.+)$", _I)


class Reader:
    """Reads the messages of one conversation in their order; it knows the people that were spoken of."""

    def __init__(self) -> None:
        self._subjects = Subjects()

    def read(self, text: str) -> Iterator[Candidate | Refused]:
        """Yield what a message states about people, and what it only seems to state, in order."""
        yield from _across(text)
        corrected = False
        for clause in clauses_of(text):
            body, corrects = _body(clause.text)
            corrected, corrects = corrects and not body, corrects or corrected  # "no, it's Porto" is two clauses
            named = [] if clause.refusal is not None else self._subjects.mentions(body)
            yield from (_named(person, clause) for person in named)
            found = False
            for one in self._statements(body, clause, corrects=corrects, named=named):
                found = True
                yield one
            if not found and corrects and clause.refusal is None:
                restated = _RESTATED.match(body) or (_MEANT.search(clause.text) and _BARE.match(body))
                if restated is not None:
                    yield Candidate(
                        PersonAttribute.OTHER,
                        _value(restated["v"], narrow=True),
                        "",
                        clause.start,
                        clause.end,
                        corrects=True,
                        restates=True,
                    )

    def _statements(
        self, said: str, clause: Clause, *, corrects: bool, named: list[Person]
    ) -> Iterator[Candidate | Refused]:
        person: Person | None = None
        matches = _matches(said)
        if not matches:
            subject = self._subjects.read(said)
            if subject is None or subject[0] is None:
                return
            person, own = subject
            matches = _matches(own)
        for rule, found in matches:
            if clause.refusal is not None:
                yield Refused(clause.refusal, clause.start, clause.end, rule.attribute)
            elif not (named and rule.content.startswith("{x} is called")):  # else the name was found already
                for candidate in _candidates(rule, found, clause, corrects=corrects):
                    yield dataclasses.replace(candidate, person=person)


def restated(attribute: PersonAttribute, slot: str, correction: Candidate) -> Candidate | None:
    """Return the fact that a correction such as "no, it's Porto" states about a known matter, or None."""
    for rule in RULES:
        groups = {"v": correction.value, "x": slot.rpartition(" ")[2] if "{x}" in rule.slot else ""}
        if rule.attribute is not attribute or _filled(rule.slot, groups) != slot or rule.ends or not rule.single:
            continue
        if rule.check(correction.value):
            return dataclasses.replace(
                correction,
                attribute=attribute,
                slot=slot,
                content=_filled(rule.content, groups),
                note_type=rule.note_type,
                single=True,
                restates=False,
            )
    return None


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


def _body(clause: str) -> tuple[str, bool]:
    """Return a clause without its lead and end, and whether it corrects an earlier one."""
    body = _OPENING.sub("", clause).replace("\u2024", ".")
    lead = _LEAD.match(body)
    corrects = lead is not None and _CORRECTION.search(lead[0]) is not None
    body = body[lead.end() :] if lead is not None else body
    body = _ENDING.sub("", body)
    negated = _NEGATED.search(body)
    if negated is None:
        return body, corrects
    return body[: negated.start()], True


def _matches(said: str) -> list[tuple[Rule, dict[str, str]]]:
    """Return the rules that a clause matches: as a whole, and each part of "I'm Ana, 41, from Porto"."""
    whole = match(said)
    found = [] if whole is None else [whole]
    if _FRAGMENT.match(said) and "," in said:
        first, *others = said.split(",")
        begun = match(first) if whole is None else None
        parts = [f"I'm {_ENDING.sub('', part).strip()}" for part in others if part.strip()]
        further = [one for part in parts if (one := match(part)) is not None]
        found += [] if begun is None else [begun]
        found += [one for one in further if one[0].attribute is not PersonAttribute.NAME]
    return found


def match(said: str) -> tuple[Rule, dict[str, str]] | None:
    """Return the first rule that a clause matches, with its groups."""
    for form in dict.fromkeys((said, _ENDING.sub("", _TAIL.sub("", said)))):
        for rule in RULES:
            matched = rule.pattern.match(form)
            if matched is None:
                continue
            groups = {name: value for name, value in matched.groupdict().items() if value is not None}
            if "v" in groups:
                groups["whole"] = groups["v"]
                groups["v"] = _value(groups["v"], several=rule.several, narrow=rule.attribute in _NARROWED)
                if not groups["v"] or not rule.check(groups["v"]):
                    continue
            return rule, groups
    return None


def _value(value: str, *, several: bool = False, narrow: bool = False) -> str:
    """Return a value without what follows it: reasons, times, further clauses."""
    cut = value if several else _CUT.sub("", value)
    cut = _NARROW.sub("", cut) if narrow else cut
    cut = _TAIL.sub("", cut)
    return _ENDING.sub("", cut).strip("\"' ")


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


def _candidates(rule: Rule, found: dict[str, str], clause: Clause, *, corrects: bool) -> Iterator[Candidate]:
    value = found.get("v", "")
    further: list[tuple[str, str]] = []
    if rule.attribute in (PersonAttribute.JOB, PersonAttribute.EMPLOYER) and not rule.ends:
        value, further = _working(rule.attribute, value)
    listed = [one for one in members(value) if rule.check(one)] if rule.several else [value]
    if rule.preference and len(listed) > 1:  # one taste, stated in one breath
        listed = [joined(listed)]
    for one in listed:
        if not value or rule.several or rule.check(one):
            yield _candidate(rule, {**found, "v": one}, clause, corrects=corrects)
    for said, place in further:
        other = match(said)
        if other is not None:
            yield _candidate(other[0], other[1], clause, corrects=corrects)
        elif place:
            yield Candidate(
                PersonAttribute.JOB, place, f"works in {place}", clause.start, clause.end, slot="place", single=True
            )


def _working(attribute: PersonAttribute, value: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a job or employer by itself, and what else its words state: "nurse at Charité", "MTN in Accra as …"."""
    further: list[tuple[str, str]] = []
    if found := _AS.match(value):
        value = found["v"]
        further.append((f"I work as {found['job']}", ""))
    if attribute is PersonAttribute.JOB and (found := _AT.match(value)):
        value = found["v"]
        further.append((f"I work at {found['employer']}", ""))
    elif found := _FROM.match(value):
        value = found["v"]
        further.append(
            (f"I come from {found['place']}", "") if found["word"].casefold() == "from" else ("", found["place"])
        )
    return value, further


def _candidate(rule: Rule, found: dict[str, str], clause: Clause, *, corrects: bool) -> Candidate:
    return Candidate(
        attribute=rule.attribute,
        slot=_filled(rule.slot, found),
        value=found.get("v", ""),
        content=_filled(rule.content, found),
        start=clause.start,
        end=clause.end,
        note_type=rule.note_type,
        single=rule.single,
        ends=rule.ends,
        corrects=corrects,
        changes=rule.changes,
        opposite=rule.opposite,
    )


def members(value: str) -> list[str]:
    """Return the members of a list such as "a, b and c"; what follows a comma without an "and" is none."""
    parts: list[str] = []
    pieces = _COMMA.split(_PARENTHESIS.sub("", value))
    joined = next((at for at, each in enumerate(pieces) if _AND.search(each)), None)
    for piece in pieces[: 1 if joined is None else joined + 1]:
        parts += _AND.split(piece)
    return [part for each in parts if (part := _ENDING.sub("", _TAIL.sub("", each)).strip())]


def joined(parts: Sequence[str]) -> str:
    """Return the members of a list as one text: "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _filled(template: str, found: dict[str, str]) -> str:
    other = found.get("x", "").casefold().replace("colour", "color")
    return template.format(v=found.get("v", ""), x=other, a=found.get("a", ""))
