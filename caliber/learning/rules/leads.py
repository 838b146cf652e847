"""Leads of clauses, such as "by the way", "sorry" and "correction": words before the statement itself."""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.rules.matching import ENDING

_I = re.IGNORECASE
_LEAD: Final = re.compile(
    r"^(?:\W*(?:well|so+|and|but|or|hi|hello|hey|hiya|oh|ok|okay|yes|yeah|yep|yup|no(?! longer\b| more\b| (?!wait|"
    r"sorry|actually|hold|scratch|thanks|make|i\b|it\b)(?-i:[a-z]+)(?: (?:for now|then|after all|any ?more))?\W*$| "
    r"\w+ for (?:me|us)\b| [a-z]+(?: [a-z]+)?(?: pls| please|,)? (?:i'm|i)\b)|nope|nah|btw|by the way|fyi|actually|"
    r"just so you know|for the record|for your information|(?:please |do |also |just )?(?:remember|note|keep in mind|"
    r"bear in mind|don't forget|be aware|know)(?: that)?|also|plus|as you know|i should (?:mention|add|say|tell "
    r"you)(?: that)?|i forgot to (?:say|mention|tell you)(?: that)?|i got (?:that|it|this|the \w+) wrong|i need to "
    r"be reminded that|remind me that|change of plans?|to be honest|honestly|frankly|unfortunately|sadly|luckily|fun "
    r"fact|random fact|thanks|thank you|hi there|hey there|good (?:morning|evening|afternoon)|since (?:\d{4}|last "
    r"\w+)|since|as|because|(?:on )?weekdays|by day|for a living|irl|in real life|at home|in english|strange thing|i "
    r"must correct myself|let me correct (?:that|myself)|i stand corrected|my mistake|on second thoughts?|come to "
    r"think of it|plot twist|wait no|no wait|oh no|funny thing|long story short|confession|(?:small|slight|quick) "
    r"(?:change|correction)|given that|now that|now|today|currently|at the moment|these days|nowadays|recently|"
    r"lately|yesterday|sorry|correction|wait|oops|update|i mean|i meant|i meant to say|what i meant is|one more "
    r"thing|(?:last|this|the other|past) (?:week|weekend|month|year|day|night|spring|summer|autumn|fall|winter)|(?:a|"
    r"two|three|few|a few|\d+) (?:days|weeks|months|years|week|month|year|day) ago|in (?:january|february|march|"
    r"april|may|june|july|august|september|october|november|december|\d{4})|as of (?:today|now|this \w+|last \w+)|"
    r"about me|a bit about me|my bad|i was wrong|i misspoke|that's (?:wrong|not right|incorrect)|not quite|anyway|"
    r"anyways|guess what|good news|big news|bad news|great news|i'm happy to say|as i said|like i said|in case you "
    r"(?:need|wonder)|you (?:should|must) know(?: that)?|tell you what|i'm afraid|as (?:you|i) (?:may|might) have "
    r"(?:guessed|noticed)|believe it or not|to my surprise|(?:this|last) term|apparently(?= i\b)|(?:i(?:'ve| have) "
    r"(?:just )?been|i was|i got) told(?: that)?(?= i(?:'m)?\b)|(?:(?:my|the) )?(?:doctor|doc|gp|dr|dentist|"
    r"specialist|consultant|vet|physio) (?:says|said|thinks|told me|confirmed)(?: that)?(?= (?:i(?:'m|'ve)?|no|"
    r"my)\b)|(?:it )?(?:turns|turned|has turned) out(?: that)?|i(?:'ve)? (?:just |recently |finally )*(?:found out|"
    r"discovered|learned|learnt)(?: that)?(?= (?:i|my|we)\b)|typo|scratch that|make that|that|tbh|um|aha|heads up|"
    r"reminder|i forgot|should mention|i should probably mention|i need to mention|hm+|ah|oh and|lol|omg|yo|ps|psa|"
    r"small update|as an aside|(?:quick|small|little|sad|happy) (?:update|news|note|correction)|small correction|a "
    r"correction|news|personally|in general|generally|first of all|dear \w+)\b[\s,:!.–—-]*)+",
    _I,
)
_CORRECTION: Final = re.compile(
    r"\b(?:typo|scratch that|make that|actually|correct myself|correct that|my mistake|no|nope|sorry|correction|i "
    r"meant?|wait|oops|my bad|i was wrong|i misspoke|that's (?:wrong|not right|incorrect)|not quite|i got (?:that|it|"
    r"this|the \w+) wrong)\b",
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
