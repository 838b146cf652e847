"""Statements matched against the rules: the facts that one clause states, and their values without further words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters import dates, everyday, habits, household, life, pastimes
from caliber.learning.matters.patterns import Rule
from caliber.learning.rules.candidates import Candidate
from caliber.learning.rules.clauses import Clause
from caliber.model.learning import PersonAttribute

RULES: Final = (*life.RULES, *household.RULES, *habits.RULES, *dates.RULES, *everyday.RULES, *pastimes.RULES)
"""The rules, in the order in which they are tried: the first whose pattern and check match."""
_I = re.IGNORECASE


def _begins(rule: Rule) -> str:
    """Return "i" or "my" for a pattern that begins with the user or with what is the user's, else nothing."""
    group = re.match(r"\(\?:([^()]*)\)(?!\?)|(i|my) ", rule.pattern.pattern)
    if group is None:
        return ""
    firsts = {re.split(r"[ ']", each)[0] for each in (group[1] or group[2]).split("|")}
    return "i" if firsts <= {"i", "im", "we"} else "my" if firsts <= {"my", "our"} else ""


_BY_BEGINNING: Final = {word: tuple(rule for rule in RULES if _begins(rule) in ("", word)) for word in ("i", "my", "")}
_BEGINNING: Final = {
    "": _BY_BEGINNING[""],
    **dict.fromkeys(("i ", "i'", "im", "we"), _BY_BEGINNING["i"]),
    **dict.fromkeys(("my", "ou"), _BY_BEGINNING["my"]),
}
"""The rules that may match a clause, by its first two characters."""
_TAIL: Final = re.compile(
    r"(?:[\s,]+(?:any ?more|there|i'm afraid|alas|tho|any longer|way too much|too much|rn|atm|myself|after all|now|"
    r"too|as well|these days|nowadays|at the moment|right now|currently|by the way|btw|actually|though|please|again|"
    r"today|yesterday|recently|lately|already|instead|for now|you know|fyi|to be honest|honestly|also|so much|a lot|"
    r"very much|the most|more than anything|of course|obviously|haha|and stuff|etc|or so|in fact|(?:for|since|in|"
    r"over) (?:(?:about|almost|around|over|nearly|the (?:last|past)|more than) )?(?:an? |two |three |four |five |six "
    r"|ten |many |several |some |a few |few )?(?:\d+ )?(?:years?|months?|weeks?|days?|decades?|ages|childhood|birth|"
    r"forever|now|ever)(?: now| ago)?|since (?:\w+ )?\d{4}|since (?:january|february|march|april|may|june|july|"
    r"august|september|october|november|december|last \w+|i was \w+|forever|then|yesterday|today|\w+day|(?:\d+|an?|"
    r"one|two|three|four|five|a few|many) (?:years?|months?|weeks?))|at all|on \w+day|as of [\w ]{2,20}|in the end|"
    r"at last|(?:an? |two |three |\d+ |a few |a couple of )(?:days?|weeks?|months?|years?) ago|in \d{4}|in "
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december)|(?:last|this|next|"
    r"earlier this|the other) (?:week|weekend|month|year|day|night|spring|summer|autumn|fall|winter|monday|tuesday|"
    r"wednesday|thursday|friday|saturday|sunday|january|february|march|april|may|june|july|august|september|october|"
    r"november|december)|with (?:my|our|a|his|her) .+|together|alone|from now on)){1,3}$",
    _I,
)
ENDING: Final = re.compile(r"[\s.!,;:)\]]+$")
_CUT: Final = re.compile(
    r"(?:,| -|\s+(?:because|since|when|which|who|where|that i|as i|so that|in case|after|before|during|until|but|"
    r"though)\b|\s*\()\s?.*$",
    _I,
)
_NARROW: Final = re.compile(
    r"(?:\s+(?:with(?! (?-i:[A-Z]))|near|for(?! (?-i:[A-Z]))|to|so|on|working|doing)\s.*|\s+and (?!(?-i:[A-Z])).*|"
    r"\s+(?:in|since) (?:the )?(?:january|february|march|april|may|june|july|august|september|october|november|"
    r"december|spring|summer|autumn|fall|winter|\d{4}).*)$",
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
_AT: Final = re.compile(r"^(?P<v>.+?) (?:at|for|with) (?P<employer>[^\W\d_a-z].*)$")
_FROM: Final = re.compile(r"^(?P<v>.+?) (?P<word>from|in) (?P<place>[^\W\d_a-z].*)$")
_IN: Final = re.compile(r"^(?P<v>.+?) (?P<word>in) (?P<place>\S+(?: \S+)?)$", _I)
_STUDIES: Final = re.compile(r"^studies |\b(?:student|phd|undergraduate|postgraduate|pupil)\b", _I)
_COMMA: Final = re.compile(r"\s*,\s+(?!(?:and|or)\b)")
_AND: Final = re.compile(r",?\s+(?:and|or|&)\s+", _I)
_PARENTHESIS: Final = re.compile(r"\s*\(.*$")
FRAGMENT: Final = re.compile(r"^(?:i'm|i am|im)\b", _I)
_LISTED: Final = re.compile(r"^(?:i'm|i am|im|i work (?:at|for)|my name(?:'s| is))\b", _I)
_PASSING: Final = re.compile(
    r"\bleft .+ (?:at \d|early|this (?:morning|afternoon|evening)|an hour ago|\w+ minutes ago|tonight|late)\b|"
    r"^(?!.*\bbeen\b).* for (?:an?|the|two|three|four|some|a few|\d+) (?:days?|nights?|weeks?|weekend|months?|summer|"
    r"winter|holidays?|while|bit|conference|trip|wedding|meeting)\b",
    _I,
)
"""The time of a stay, which is no home."""
_ITEM_WORDS: Final = 5
_INTRODUCED: Final = frozenset(
    {
        PersonAttribute.AGE,
        PersonAttribute.JOB,
        PersonAttribute.DIET,
        PersonAttribute.FAMILY,
        PersonAttribute.HOME,
        PersonAttribute.HEALTH,
    }
)
LEFT: Final = (PersonAttribute.HOME, PersonAttribute.EMPLOYER)


def restated(attribute: PersonAttribute, slot: str, correction: Candidate) -> Candidate | None:
    """Return the fact that a correction such as "no, it's Porto" states about a known matter, or None."""
    for rule in sorted(RULES, key=lambda each: "{x}" in each.slot):  # a rule of the slot alone before one of many
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


def matches_of(said: str) -> list[tuple[Rule, dict[str, str]]]:
    """Return the rules that a clause matches: as a whole, and each part of "I'm Ana, 41, from Porto"."""
    whole = match(said)
    found = [] if whole is None else [whole]
    if _LISTED.match(said) and "," in said:
        first, *others = said.split(",")
        begun = match(first) if whole is None else None
        parts = [ENDING.sub("", part).strip() for part in others if part.strip()]
        further = [one for part in parts if (one := item(part)) is not None]
        found += [] if begun is None else [begun]
        found += [one for one in further if one[0].attribute is not PersonAttribute.NAME]
    return found


def introduced(said: str) -> list[tuple[Rule, dict[str, str]]]:
    """Return the facts of "single, no kids, teacher": a list with two items at least of different matters."""
    parts = [ENDING.sub("", part).strip() for part in said.split(",")]
    found = [one for part in parts if len(part.split()) <= _ITEM_WORDS and (one := item(part)) is not None]
    found = [one for one in found if one[0].attribute in _INTRODUCED]
    return found if len({(one[0].attribute, one[0].slot) for one in found}) > 1 else []


def item(part: str) -> tuple[Rule, dict[str, str]] | None:
    """Return the rule that an item of a list about the user matches: "34", "teacher", "two kids"."""
    return match(f"I'm {part}") or match(f"I have {part}")


def match(said: str) -> tuple[Rule, dict[str, str]] | None:
    """Return the first rule that a clause matches, with its groups."""
    passing = _PASSING.search(said) is not None
    first = said.partition(",")[0]
    for form in dict.fromkeys((said, ENDING.sub("", _TAIL.sub("", said)), first, _TAIL.sub("", first))):
        for rule in _BEGINNING.get(form[:2].casefold(), _BEGINNING[""]):
            matched = rule.pattern.match(form)
            if matched is None or (passing and rule.attribute in LEFT):
                continue
            groups = {name: value for name, value in matched.groupdict().items() if value is not None}
            if "v" in groups:
                groups["whole"] = groups["v"]
                narrow, timed = rule.attribute in _NARROWED, rule.attribute is PersonAttribute.PLAN
                groups["v"] = value_of(groups["v"], several=rule.several, narrow=narrow, timed=timed)
                listed = members(groups["v"]) if rule.several else [groups["v"]]
                if not groups["v"] or not any(map(rule.check, listed)):
                    continue
            return rule, groups
    return None


def value_of(value: str, *, several: bool = False, narrow: bool = False, timed: bool = False) -> str:
    """Return a value without what follows it: reasons, further clauses, and times unless it is ``timed``."""
    cut = value if several else _CUT.sub("", value)
    cut = _NARROW.sub("", cut) if narrow else cut
    cut = cut if timed else _TAIL.sub("", cut)
    return ENDING.sub("", cut).strip("\"' ")


def candidates_of(rule: Rule, found: dict[str, str], clause: Clause, *, corrects: bool) -> Iterator[Candidate]:
    value, place = found.get("v", ""), ""
    further: list[str] = []
    if _STUDIES.search(f"{rule.slot} {value}"):
        pass  # "a student at Leeds": no employer, and no home for certain
    elif rule.attribute in (PersonAttribute.JOB, PersonAttribute.EMPLOYER) and not rule.ends:
        value, place, further = _working(rule.attribute, value)
    listed = [one for one in members(value) if rule.check(one)] if rule.several else [value]
    if rule.preference and len(listed) > 1:  # one taste, stated in one breath
        listed = [joined(listed)]
    for one in listed:
        if not value or rule.several or rule.check(one):
            candidate = _candidate(rule, {**found, "v": one}, clause, corrects=corrects)
            yield dataclasses.replace(candidate, content=candidate.content + place)
    for said in further:
        other = match(said)
        if other is not None:
            yield _candidate(other[0], other[1], clause, corrects=corrects)
    if place and words.is_known_place(place.removeprefix(" in ")):
        home = match(f"I live in {place.removeprefix(' in ')}")
        if home is not None:
            yield dataclasses.replace(_candidate(*home, clause, corrects=False), inferred=True)


def _working(attribute: PersonAttribute, value: str) -> tuple[str, str, list[str]]:
    """Return a job or employer by itself, its place, and what else its words state: "nurse at Charité from Bonn"."""
    place, further = "", []
    if found := _AS.match(value):
        value = found["v"]
        further.append(f"I work as {found['job']}")
    if attribute is PersonAttribute.JOB and (found := _AT.match(value)):
        value = found["v"]
        further.append(f"I work at {found['employer']}")
    elif (found := _FROM.match(value)) or ((found := _IN.match(value)) and words.is_known_place(found["place"])):
        value = found["v"]
        if found["word"].casefold() == "from":
            further.append(f"I come from {found['place']}")
        else:
            place = f" in {found['place']}"
    return value, place, further


def _candidate(rule: Rule, found: dict[str, str], clause: Clause, *, corrects: bool) -> Candidate:
    return Candidate(
        attribute=rule.attribute,
        slot=_filled(rule.slot, found),
        value=found.get("v", rule.content if rule.ends else ""),
        content=_filled(rule.content, found, fold=rule.attribute is not PersonAttribute.PLAN),
        start=clause.start,
        end=clause.end,
        note_type=rule.note_type,
        single=rule.single,
        ends=rule.ends,
        corrects=corrects,
        changes=rule.changes,
        opposite=rule.opposite,
        was=found.get("was", ""),
    )


def members(value: str) -> list[str]:
    """Return the members of a list such as "a, b and c"; what follows a comma without an "and" is none."""
    parts: list[str] = []
    pieces = _COMMA.split(_PARENTHESIS.sub("", value))
    joined = next((at for at, each in enumerate(pieces) if _AND.search(each)), None)
    for piece in pieces[: 1 if joined is None else joined + 1]:
        parts += _AND.split(piece)
    return [part for each in parts if (part := ENDING.sub("", _TAIL.sub("", each)).strip())]


def joined(parts: Sequence[str]) -> str:
    """Return the members of a list as one text: "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _filled(template: str, found: dict[str, str], *, fold: bool = True) -> str:
    other = found.get("x", "")
    other = other.casefold().replace("colour", "color") if fold else other
    return template.format(v=found.get("v", ""), x=other, a=found.get("a", ""), b=found.get("b", ""))
