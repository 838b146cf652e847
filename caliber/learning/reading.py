"""Reader of a conversation by rule: the clauses of the user's messages, each as a candidate, or as refused.

What is asked, supposed, reported, joked, quoted, translated or played states nothing. "Remember that …" is kept as it
was said, "forget …" is a request.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Final

from caliber.learning.deciding import (
    ANY_SLOT,
    DIED,
    INSTRUCTION,
    NAMED,
    NOT_READ,
    Candidate,
    Person,
    Refused,
    comparable,
    is_instruction,
)
from caliber.learning.patterns import ANIMAL, APPOSITION, DENIED, ENDS, GONE, GREETED, ONLY, RULES, THIRD, Rule
from caliber.model.deadline import check
from caliber.model.knowledge import NoteType
from caliber.model.learning import PersonAttribute
from caliber.text.dates import Moment, days_said
from caliber.text.sentences import UnitKind, iter_sentences

MAX_CHARS_READ: Final = 20_000
"""The beginning of a longer message is read: the rest is a document, not talk."""
_MAX_SENTENCE: Final = 600
_MAX_CLAUSE: Final = 300
SAYS_NOT_WHAT: Final = "a request that does not say what"


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


def _any(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_QUOTED = _any(r"\"[^\"]{2,2000}\"|“[^”]{2,2000}”|«[^»]{2,2000}»|(?<!\w)'[^'\n]{12,400}'(?!\w)")
_PLAYS = _words(
    r"role-?play|let'?s (?:play|pretend)|pretend(?:ing)? (?:to be|that|you|i|we)|(?:act|speak|talk|answer) as (?:if|an"
    r"?|the|my)|you(?:'re| are|'ll be| play) (?:now )?(?:an? |the |my )[\w ]{2,40}(?:,| and) (?:and )?i(?:'?m| am|'?ll"
    r" be| play)|i(?:'ll| will) (?:play|be) (?:an? |the )|my character|in character|dungeon master|play the (?:part|ro"
    r"le)"
)
"""From here on the user plays a part, until it is played out."""
_PLAYED_OUT = _words(
    r"(?:stop|end|quit|exit|finish|enough|no more|done)(?: of)?(?: \w+){0,2} (?:role-?play(?:ing)?|playing|pretending|"
    r"game|scene|character)|out of character|ooc|game over|back to (?:reality|real life|normal|being me)"
)
_WORK = _words(
    r"translate|rewrite|rephrase|paraphrase|proofread|summari[sz]e|lyrics|screenplay|stor(?:y|ies)|novel|poem|haiku|fi"
    r"ction|fictional|character|protagonist|dialogue|imagine|pretend|to whom it may concern|(?:draft|write|compose) (?"
    r":me )?(?:an?|the|some)|(?:correct|fix|check|edit|improve) (?:this|these|the following)|dear (?:sir|madam|\w+ (?:"
    r"team|manager))|for example|in (?:the|a|this|that|my) (?:movie|film|book|game|dream|song|show|series|play)|dreamt"
    r"|dreamed"
)
"""Words of a text to work on or to make up: it is about nobody."""
_THE_FOLLOWING = _any(r"\b(?:this|these|following|text|below)\W*$|^\W*dear\b|whom it may concern")
_JOKE = _any(
    r"\b(?:kidding|jk|joking|joke|yeah,? right|as if|lol|lmao|rofl|ha(?:ha)+)\b|/s\b|[😜😉😏😂🤣🙃]"
    r"|\b(?-i:LOVE|LOVING)\b(?=[^\n]*(?-i:[a-z]{4}))"
)
_TAKEN_BACK = _any(r"\W*(?:(?:just )?kidding|jk|i was joking|i'?m joking|scratch that|no, \w+\W*$)")
_SUPPOSES = _words(r"if|unless|whether|suppos(?:e|ing)|assum(?:e|ing)|hypothetically|let'?s say|were i|had i|as though")
"""Words from which on nothing of a sentence is stated."""
_REPORT = _words(
    r"says?|said|tells?|told|claims?|claimed|thinks?|thought|wrote|writes|insists?|asks?|asked|replied|according to|ru"
    r"mou?r|i (?:read|heard|saw)"
)
_OPEN = _any(
    r"\b(?:would|could|should|might|may have|wish|want(?:ed)? to|wanna|hop(?:e|ing)|maybe|perhaps|probably|possibly|i "
    r"guess|i think|i believe|not sure|doubt|wonder|seems?|feels? like|almost|nearly|when i was|thinking|considering|p"
    r"lanning)\b|(?:'d|\bwill|'ll|\bgoing to)\b(?! (?:go|fly|travel|move|drive) to\b| (?-i:[^\W\d_a-zß-ÿ]))"
)
"""Words by which a clause is not stated."""
_I = (
    r"(?:also |now |then |still )?(?:i|i'?m|i'?ve|i'?d|i'?ll|my|we|we'?re|our|he|she|they|it|it's|you|please|can|could"
    r"|what|how|do|don'?t|(?:it )?turn(?:s|ed) out)\b"
)
_ASKS = r"(?:what|how|where|when|why|who|which|is|are|any|should|would|does|did|will|ok|okay|thoughts|ideas|tips)\b"
_SPLIT = _any(
    r"\s*(?:[;•…]|\.{3}|\s[-–—]+\s|[–—])\s*|,?\s(?:but|though|although|however|because|cause|while|except|plus|so)\s(?"
    r"!that\b)"
    rf"|,?\s(?:and|&)\s(?={_I})(?!i (?:\w+ )?(?:broke|split)\b)|,\s(?={_I}|{_ASKS})|[.!?]\s(?=(?-i:[a-z]))|:\s(?=(?:i|"
    rf"i'?m|my|we)\b)"
)
_STATE = _any(r"(?:also |now |just |still )?(?:allergic|vegan|vegetarian|married|retired|based|living|working)\b")
_ELLIPSIS = _any(
    rf"(?:,? and|,) (?={_STATE.pattern}|(?:also |now |just |still )?(?:work|live|have|love|like|hate|speak|prefer|enjo"
    rf"y|moved|"
    r"eat|don'?t|can'?t|want|need|am)\b)"
)
_FIRST_PERSON = _any(r"(?:i|i'?m|i'?ve|we|we're)\b")
_LEAD = _any(
    r"(?:\W*(?:well|so|and|but|or|hi|hello|hey|hola|there|oh|ok(?:ay)?|yes|yeah|yep|no(?! longer\b| more\b)|nope|btw|b"
    r"y the way|fyi|actually|also|plus|because|since|(?:as|like) i (?:said|told you|mentioned)|as you know|as|now|sorr"
    r"y|correction|wait|oops|i meant?|update|anyway|thanks|thank you|good (?:morning|evening|afternoon)|just so you kn"
    r"ow|for the record|tbh|to be honest|honestly|(?:it )?turn(?:s|ed) out|i(?:'?ve)? (?:just )?(?:found out|learn(?:e"
    r"d|t))|i forgot to (?:say|mention)|(?:i )?should (?:mention|add|say)|my mistake|one more thing|sadly|luckily|unfo"
    r"rtunately|hm+|ah|currently|these days|omg|personally|(?:great|good|bad|sad|big) news|today|yesterday|recently|la"
    r"st (?:week|month|year))(?: that)?\b[\s,:!.–—-]*){1,6}"
)
_NAME_IS = _any("my name(?:'?s| is) ")
_GREETS = _any(r"\W*(?:hi|hello|hey|hola|good (?:morning|evening|afternoon))\b")
_CORRECTS = _words(r"actually|no|nope|sorry|correction|wait|oops|i meant?|my mistake")
_SLIP = _any(
    r"[\s,;.–—-]*(?:ah |oh )?(?:no(?:,| \d| (?-i:[^\W\d_a-zß-ÿ]))|(?:no,? )?(?:scratch that|wait|sorry|i mean|oops|or "
    r"rather)\b)"
)
"""What follows a value that is taken back at once: "35, no 36"."""
_ALSO = _words("also|too|as well|another|second")
_PASSING = _words(
    r"this (?:week|weekend|month|summer|morning)|for (?:now|the (?:weekend|week|day|summer|night|moment)|an? (?:few |c"
    r"ouple of )?(?:day|week|weekend|month|while|bit|semester|conference|meeting|trip)s?)|today|tonight|until|till|tem"
    r"porarily|half the|part of|in (?:the|a|my|this) (?:game|dream|book|film|movie|story|novel)"
)
_IN_YEAR = _any(r"\W*(?:back )?(?:in|on|around)\b[^,;]{0,20}\b(?:19|20)\d\d\b")
_NO_LONGER = _any(
    r"(i'?m|i am|we're|we are|i|we) (?:(?:no longer|used to) (.+)|(?:not|don'?t|do not) (.+?) (?:any ?more|any longer|"
    r"after all|at all)\b(.*)|not ((?:an? )?(?:allergic|vegan|vegetarian|diabetic|pregnant|married|engaged).*))$"
)
_ASKED = r"\W*(?:(?:please|pls|can you|could you|you (?:can|may|should)|also|actually|hey|so|and|ok|now),? )*"
_REMEMBER = _any(
    rf"{_ASKED}(?:remember|note that|keep in mind|bear in mind|(?:don'?t|do not|never) forget)"
    r"(?:(?:(?<=that)|,? that)\b|:| (?=(?:my|i|i'?m|we|our)\b)),?\s*(?P<said>.*)$"
)
_FORGET = _any(rf"{_ASKED}forget(?: about)?(?: that\b| the fact that\b)?\s*(?P<said>.*)$")
_ALL_OF_IT = _any(r"(?:everything|all)(?: (?:that )?(?:you|i) \w+(?: you)?)?(?: (?:about|of) me)?\W*$")
_POINTS = _any(r"(?:it|this|them)\W*$")
_THING_OF = _any(r"(?:my|our|the) (?P<x>[^,;:]{2,40}?) (?:is|are) ")
_LIST = _any(r", (?:and |or )?| and | or | & ")
_BEFORE_DAY = _any(r"(?:(?:at|in|with|to|for) [\w .'&-]{2,40} )?(?:on |in |at |for )?")
_AFTER_DAY = _any(r"\W*$|[,;:!?.(]| (?:and|but|so|because|with|for|at|in|from|to|till|until|btw|by the way)\b")
_OWN: Final = (PersonAttribute.NAME, PersonAttribute.PET)
_ROLES: Final = {"mom": "mother", "mum": "mother", "dad": "father", "gf": "girlfriend", "bf": "boyfriend"}
_VERBS: Final = {"is": "am", "'s": "am", "has": "have", "doesn't": "don't", "doesnt": "don't"}
_TASTES: Final = (PersonAttribute.LIKES, PersonAttribute.DISLIKES, PersonAttribute.DIET)
_CONTRARY: Final = {
    PersonAttribute.LIKES: PersonAttribute.DISLIKES,
    PersonAttribute.DISLIKES: PersonAttribute.LIKES,
}


class MessageReader:
    """Reads the messages of one conversation in their order; it knows whether a part is being played."""

    def __init__(self) -> None:
        self.plays = False

    def hear(self, text: str) -> None:
        """Take note of a message that teaches nothing now: a part may be played from there on."""
        for _ in self._own_sentences(text[:MAX_CHARS_READ]):
            pass

    def read(self, text: str, moment: Moment) -> Iterator[Candidate | Refused]:
        """Yield what a message states about people, in order, as its author meant it at a moment.

        What is too long to be read is refused as ``NOT_READ``. Raises: Unavailable when the deadline passes.
        """
        seen: set[tuple[object, ...]] = set()
        for start, end, sentence in self._own_sentences(text[:MAX_CHARS_READ]):
            check("the messages were read")
            if len(sentence) > _MAX_SENTENCE:
                yield Refused(NOT_READ, start, end)
                continue
            for found in _statements(sentence, moment):
                one = dataclasses.replace(found, start=start, end=end)
                if isinstance(one, Refused):
                    yield one
                elif is_instruction(sentence) or is_instruction(one.content):
                    yield Refused(INSTRUCTION, start, end, one.attribute)
                elif (key := (one.attribute, one.slot, one.value.casefold(), one.person, one.ends)) not in seen:
                    seen.add(key)
                    yield one
        if len(text) > MAX_CHARS_READ:
            yield Refused(NOT_READ, MAX_CHARS_READ, len(text))

    def _own_sentences(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield the sentences in which the user speaks as such, with plain apostrophes, quotations masked."""
        # A saint's full stop ends no sentence.
        plain = _QUOTED.sub(lambda found: "\x01" * len(found[0]), text.replace("’", "'").replace("St. ", "St\u2024 "))
        talk = [each for each in iter_sentences(plain) if each.kind in (UnitKind.PROSE, UnitKind.ITEM)]
        for each, following in zip(talk, [*(after.text for after in talk[1:]), ""], strict=False):
            if self.plays:
                self.plays = _PLAYED_OUT.search(each.text) is None
            elif _PLAYS.search(each.text):
                self.plays = True
            elif (work := _WORK.search(each.text)) and not _FORGET.match(each.text):
                if ":" in each.text[work.end() :] or _THE_FOLLOWING.search(each.text):
                    return
            elif not (_JOKE.search(each.text) or _TAKEN_BACK.match(following) or each.text.lstrip()[:1] in (">", "|")):
                yield each.start, each.end, each.text.replace("\n", " ")


def _statements(sentence: str, moment: Moment) -> Iterator[Candidate | Refused]:
    asks = sentence.rstrip().endswith("?")
    if (asked := _REMEMBER.match(sentence)) and not (asks and " you " not in sentence[: asked.start("said")].lower()):
        said = asked["said"].strip(" .!?")
        found = list(_clauses(said, moment))
        yield from found
        if not said:
            yield Refused(SAYS_NOT_WHAT, 0, 0)
        elif not found and len(said.split()) > 2 and len(said) <= _MAX_CLAUSE:
            thing = _THING_OF.match(said)
            slot = "" if thing is None else comparable(thing["x"])
            yield Candidate(PersonAttribute.OTHER, said, said, 0, 0, slot, single=thing is not None)
    elif asked := _FORGET.match(sentence):
        said = asked["said"].strip(" .!?")
        found = [dataclasses.replace(each, ends=True, asked=True) for each in _clauses(said, moment)]
        words = "" if _ALL_OF_IT.match(said) else said
        by_words = Candidate(PersonAttribute.OTHER, words, "", 0, 0, ANY_SLOT, ends=True, asked=True)
        if not said:
            yield Refused(SAYS_NOT_WHAT, 0, 0)
        elif _POINTS.fullmatch(said) is None:
            yield from found or [by_words]
    else:
        yield from _clauses(sentence, moment)


def _clauses(sentence: str, moment: Moment) -> Iterator[Candidate]:
    reported = _REPORT.search(_LEAD.sub(lambda lead: "," * len(lead[0]), sentence, count=1))
    clauses = _SPLIT.split(sentence if reported is None else sentence[: reported.start()])
    asks = sentence.rstrip().endswith("?")
    for clause, following in zip(clauses, [*clauses[1:], ""], strict=True):
        if _SUPPOSES.search(clause):
            return
        if len(clause) > _MAX_CLAUSE:
            continue
        for found in APPOSITION.finditer(clause):
            role, name = _role(found["r"]), found["v"]
            yield Candidate(_close(role), name, f"{role}{NAMED}{name}", 0, 0, role)
        if (asks and clause is clauses[-1]) or _SLIP.match(following):
            continue
        first, *more = _ELLIPSIS.split(clause)
        bodies = [first]
        if more and _FIRST_PERSON.match(_LEAD.sub("", first, count=1)):  # "I live here and work there"
            bodies += (f"{'I am' if _STATE.match(each) else 'I'} {each}" for each in more)
        also = _ALSO.search(clause) is not None
        greets = _GREETS.match(sentence) is not None
        for one in (one for body in bodies for one in _facts(body, moment, greets)):
            yield dataclasses.replace(one, single=one.single and not also)


def _facts(clause: str, moment: Moment, greets: bool) -> Iterator[Candidate]:
    """Yield what one clause states, with its places still to be set."""
    lead = _LEAD.match(clause)
    said, body = ("", clause) if lead is None else (lead[0], clause[lead.end() :])
    over, body = _affirmed(body)
    if not over and _OPEN.search(body) and _NAME_IS.match(body) is None:
        return
    if gone := GONE.match(body):
        role, name = _role(gone["r"] or ""), gone["n"] or gone["name"] or ""
        yield Candidate(_close(role), name, DIED, 0, 0, role or ANY_SLOT, ends=True)
        return
    person = None
    rules = (*RULES, *ENDS, *GREETED[:greets])
    found = list(_matched((*RULES, *DENIED) if over else rules, body, moment))
    if not found and (third := THIRD.match(body)):
        verb = third["verb"].lower()
        verb = _VERBS.get(verb, verb[:-1] if verb.endswith("s") else verb)
        person = Person(_role(third["r"]), third["n"] or "")
        over, body = _affirmed(f"I {third['no'] or ''}{verb} {body[third.end() :]}")
        found = [each for each in _matched((*RULES, *ENDS), body, moment) if each.attribute not in _OWN]
    corrects = _CORRECTS.search(said) is not None
    for one in found:
        yield dataclasses.replace(one, person=person, corrects=corrects, ends=one.ends or over)


def _affirmed(clause: str) -> tuple[bool, str]:
    """Return whether a clause is about something that is over, and what: "I no longer live here" as "I live here"."""
    over = _NO_LONGER.match(clause)
    return (False, clause) if over is None else (True, " ".join(filter(None, over.groups())).replace(" ,", ","))


def _matched(rules: Iterable[Rule], body: str, moment: Moment) -> Iterator[Candidate]:
    for rule in rules:
        found = rule.pattern.match(body)
        if found is None:
            continue
        groups = {name: (each or "").replace("\u2024", ".") for name, each in found.groupdict().items()}
        value, rest = groups.get("v") or groups.get("w", ""), body[found.end() :]
        if rule.dated:
            value = _planned(value, moment)
        if (rule.dated and not value) or _PASSING.search(rest[:80]) or _SLIP.match(rest):
            continue
        groups |= {"r": _role(groups.get("r", "")), "x": groups.get("x") or groups.get("e", "")}
        slot = rule.slot.format_map(groups).lower()
        dated = days_said(rest, moment) if rule.changes and _IN_YEAR.match(rest) else None
        day = None if dated is None or dated.last.year >= moment.day.year else dated.last
        for each in _LIST.split(value) if rule.several else (value,):
            content, contrary = rule.content.format_map(groups | {"v": each}), _CONTRARY.get(rule.attribute)
            kind = NoteType.PREFERENCE if rule.attribute in _TASTES else NoteType.FACT
            single = rule.single or groups["r"] in ONLY
            yield Candidate(
                rule.attribute, each, content, 0, 0, slot, kind, single=single, ends=rule.ends, changes=rule.changes,
                opposite=contrary, day=day,
            )  # fmt: skip


def _planned(said: str, moment: Moment) -> str:
    """Return the words of a plan up to its day, and the date if they name it otherwise; "" for no plan."""
    found = days_said(said, moment, ahead=True)
    if found is None or found.last < moment.day or not _BEFORE_DAY.fullmatch(said[: found.start]):
        return ""
    if _AFTER_DAY.match(said[found.end :]) is None:
        return ""
    words, day = said[: found.end], found.first
    if str(day.year) in words:
        return words
    if f"{day:%B}".lower() in words.lower():
        return f"{words} {day.year}"
    return words if found.first != found.last else f"{words} ({day.day} {day:%B %Y})"


def _role(said: str) -> str:
    role = said.lower()
    return _ROLES.get(role, role)


def _close(role: str) -> PersonAttribute:
    return PersonAttribute.PET if ANIMAL.fullmatch(role) else PersonAttribute.FAMILY
