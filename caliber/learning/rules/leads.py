"""Leads of clauses, such as "by the way", "sorry" and "correction": words before the statement itself."""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.rules.matching import ENDING

_I = re.IGNORECASE
_LEAD: Final = re.compile(
    r"^(?:\W*(?:well|so+|and|but|or|hi|hello|hey|hiya|oh|ok|okay|yes|yeah|yep|yup|no(?! longer\b| more\b| (?!wait|"
    r"sorry|actually|hold|scratch|thanks|make|i\b|it\b)(?-i:[a-z]+)(?: (?:for now|then|after all|any ?more))?\W*$|"
    r" \w+ for (?:me|us)\b|"
    r" [a-z]+(?: [a-z]+)?(?: pls| please|,)? (?:i'm|i)\b)|nope|nah|btw|by the way|fyi|"
    r"actually|"
    r"just so you know|for the record|for your information|(?:please |do |also |just )?(?:remember|note|keep in mind|"
    r"bear in mind|don't forget|be aware|know)(?: that)?|also|plus|as you know|i should (?:mention|"
    r"add|say|tell you)(?: that)?|"
    r"i forgot to (?:say|mention|tell you)(?: that)?|i got (?:that|it|this|the \w+) wrong|i need to be reminded that|"
    r"remind me that|change of plans?|to be honest|honestly|frankly|unfortunately|sadly|luckily|"
    r"fun fact|random fact|thanks|thank you|hi there|hey there|good (?:morning|evening|afternoon)|since (?:\d{4}|"
    r"last \w+)|since|as|because|(?:on )?weekdays|by day|for a living|irl|in real life|at home|"
    r"in english|strange thing|i must correct myself|let me correct (?:that|myself)|i stand corrected|my mistake|"
    r"on second thoughts?|"
    r"come to think of it|plot twist|wait no|no wait|oh no|funny thing|long story short|confession|(?:small|slight|"
    r"quick) (?:change|correction)|"
    r"given that|now that|now|today|currently|at the moment|these days|nowadays|recently|"
    r"lately|yesterday|"
    r"sorry|correction|wait|oops|update|i mean|i meant|i meant to say|what i meant is|one more thing|"
    r"(?:last|this|the other|past) (?:week|weekend|month|year|day|night|spring|summer|autumn|fall|winter)|"
    r"(?:a|two|three|few|a few|\d+) (?:days|weeks|months|years|week|month|year|day) ago|"
    r"in (?:january|february|march|april|may|june|july|august|september|october|november|december|\d{4})|"
    r"as of (?:today|now|this \w+|last \w+)|about me|a bit about me|my bad|i was wrong|i misspoke|that's (?:wrong|"
    r"not right|"
    r"incorrect)|not quite|anyway|anyways|guess what|good news|big news|bad news|great news|i'm happy to say|"
    r"as i said|like i said|in case you (?:need|wonder)|you (?:should|must) know(?: that)?|"
    r"tell you what|i'm afraid|as (?:you|i) (?:may|might) have (?:guessed|noticed)|believe it or not|to my surprise|"
    r"(?:this|last) term|apparently(?= i\b)|"
    r"(?:i(?:'ve| have) (?:just )?been|i was|i got) told(?: that)?(?= i(?:'m)?\b)|"
    r"(?:(?:my|the) )?(?:doctor|doc|gp|dr|dentist|specialist|consultant|vet|physio) (?:says|said|thinks|told me|"
    r"confirmed)(?: that)?(?= (?:i(?:'m|'ve)?|no|my)\b)|"
    r"(?:it )?(?:turns|turned|has turned) out(?: that)?|"
    r"i(?:'ve)? (?:just |recently |finally )*(?:found out|discovered|learned|learnt)(?: that)?(?= (?:i|my|we)\b)|"
    r"typo|scratch that|make that|that|tbh|um|aha|heads up|reminder|i forgot|"
    r"should mention|i should probably mention|"
    r"i need to mention|hm+|ah|oh and|lol|omg|yo|ps|psa|small update|as an aside|"
    r"(?:quick|small|little|sad|happy) (?:update|news|note|correction)|small correction|a correction|news|"
    r"personally|in general|"
    r"generally|first of all|"
    r"dear \w+)\b[\s,:!.–—-]*)+",
    _I,
)
_CORRECTION: Final = re.compile(
    r"\b(?:typo|scratch that|make that|actually|correct myself|correct that|my mistake|"
    r"no|nope|sorry|correction|i meant?|wait|oops|my bad|i was wrong|i misspoke|that's (?:wrong|"
    r"not right|"
    r"incorrect)|not quite|i got (?:that|it|this|the \w+) wrong)\b",
    _I,
)
_OPENING: Final = re.compile(r"^[\s\-*•(\[]+")
_NEGATED: Final = re.compile(r",\s*not (?:in |at |a |an )?[\w' -]+$", _I)
_IT: Final = re.compile(r"^(?:(?:it|that|the|on|in|at)\b|\S+,)", _I)


def body_of(clause: str) -> tuple[str, bool]:
    """Return a clause without its lead and end, and whether it corrects an earlier one."""
    body = _OPENING.sub("", clause).replace("\u2024", ".")
    lead = _LEAD.match(body)
    corrects = lead is not None and _CORRECTION.search(lead[0]) is not None
    body = body[lead.end() :] if lead is not None else body
    body = ENDING.sub("", body)
    negated = _NEGATED.search(body)
    if negated is None or _IT.match(body):
        return body, corrects
    return body[: negated.start()], True
