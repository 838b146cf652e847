"""Corrections that name no matter, but a value: "the 24th, not the 14th", "from tea to coffee", "no more Cork".

The value finds the fact that is corrected or ends. So nothing happens unless a fact with just this value is held.
"""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.rules.candidates import Candidate
from caliber.learning.rules.clauses import Clause
from caliber.model.learning import PersonAttribute

_I = re.IGNORECASE
_ARTICLE: Final = r"(?:(?:the|an?|all|my|our|in|on|at|to|as|for) )*"
_OLD: Final = rf"{_ARTICLE}(?P<was>\S+(?: \S+){{0,3}}?)"
_NEW: Final = rf"{_ARTICLE}(?P<v>\S+(?: \S+){{0,3}}?)"
_GONE: Final = rf"{_ARTICLE}(?P<v>\S+(?: \S+){{0,3}}?)"
_WHEN: Final = (
    r"(?:,? (?:now|instead|though|today|yesterday|recently|please|again|from now on|after all|in the end|at last|"
    r"(?:for|with) (?:me|us|good)|i'm afraid|sadly|from here on|any ?more|after .+|over .+|since .+|because .+|last "
    r"\w+|this \w+|on \w+day|in \w+|(?:a|two|three|\d+|a few) \w+ ago)){0,3}"
)
_I_HAVE: Final = (
    r"(?:(?:i|we)(?:'ve| have|'m| am|'re| are)? )?(?:just |finally |now |also |recently |already |had to |decided to "
    r")*"
)
_SWAPPED: Final = (
    re.compile(
        rf"^{_I_HAVE}(?:swap(?:ped)?|traded?|exchanged?|ditch(?:ed)?|switched) {_OLD}(?: in)? for {_NEW}{_WHEN}$",
        _I,
    ),
    re.compile(
        r"\b(?:switch(?:ed)?|changed?|moved?|went|gone|transferred|converted|pushed|postponed|rescheduled|shifted)"
        rf"(?: \w+){{0,3}}? from {_OLD} to {_NEW}{_WHEN}$",
        _I,
    ),
)
_WRONG: Final = (
    re.compile(rf"^(?:(?:it|that|she|he)(?:'s| is) |i meant? |should be )?{_NEW},? not {_OLD}$", _I),
    re.compile(
        rf"^(?:(?:it|that|she|he)(?:'s| is) |i meant? |i'm |i am )?not {_OLD}(?: any ?more| any longer)?(?:,| but|, "
        rf"but) (?:it's |rather )?{_NEW}$",
        _I,
    ),
)
_OVER: Final = (
    re.compile(
        rf"^{_I_HAVE}(?:dropped(?! my\b)|cancel?led|quit|gave up(?: on)?|given up(?: on)?|stopped(?! (?:at|in|by|for|"
        rf"on|to)\b)|sold|got rid of|gotten rid of|"
        r"gave away|broke up with|broken up with|split (?:up )?(?:from|with)|divorced|left|ended things with|"
        rf"called off|changed (?:my|our) mind (?:about|on)|called time on|stopped doing|(?:am |'m )?not doing(?!.* "
        rf"now$)|done with|gone off|went off|over|finished with|through with) {_GONE}{_WHEN}$",
        _I,
    ),
    re.compile(rf"^(?:i'm|i am|we're) off (?!to |\w+ing\b){_GONE}{_WHEN}$", _I),
    re.compile(rf"^no (?:more|longer) {_GONE}(?: for (?:me|us))?{_WHEN}$", _I),
    re.compile(
        rf"^{_I_HAVE}(?:gave|rehome|rehomed|sold|put|surrendered|returned|donated) {_GONE} (?:away|down|to sleep|to "
        rf"(?:my|a|the|our|his|her) .+|(?:back )?to the .+){_WHEN}$",
        _I,
    ),
    re.compile(rf"^{_I_HAVE}(?:rehome|rehomed|lost) {_GONE}{_WHEN}$", _I),
    re.compile(rf"^no {_GONE} for (?:me|us) (?:any ?more|now|then|from now on){_WHEN}$", _I),
    re.compile(
        rf"^(?:please )?(?:scratch|forget(?: about)?|ignore|delete|remove|skip|drop|strike) {_ARTICLE}(?P<v>\S+(?: "
        rf"\S+)?(?: \S+)?) (?:part|bit|thing|one|stuff|info)$",
        _I,
    ),
    re.compile(
        rf"^{_GONE}(?: is| are| was|'s| has| got)?(?: been)? (?:over|history|gone|off|cancel?led|dead|no more|called "
        rf"off|off the (?:table|menu|cards)|on hold|a no-go|cancel+ed|ran away|run away|rehomed|put down|a thing of "
        rf"the past|behind me|not happening|died|passed away|fell through){_WHEN}$",
        _I,
    ),
    re.compile(
        rf"^{_GONE} and (?:i|me) (?:broke up|split up|split|separated|divorced|called it (?:off|quits|a day)|are "
        rf"(?:over|done|finished|history|no more|not together)){_WHEN}$",
        _I,
    ),
    re.compile(rf"^(?:i|me|we) and {_GONE} (?:broke up|split up|split|separated|divorced){_WHEN}$", _I),
)
_FOR_ONCE: Final = re.compile(r"\b(?:today|this week|so)\b", _I)
_CALLED_OFF: Final = re.compile(r"\b(?:over|off|cancel+ed|closed|dead)\b", _I)
_THE: Final = re.compile(r"\bnot (?!the\b)\S+.*, (?:it's |rather )?the (?!\d)", _I)
"""A cause, and no other value: "it's not nuts, it's the price"."""
_PAUSE: Final = re.compile(
    r"\b(?:for (?:today|now|tonight|the day|this week)|tonight|(?:at|around) \d+|off today|this (?:morning|afternoon|"
    r"evening)|left early|on \w+days)\b",
    _I,
)
"""Words of a moment, in which nothing ends for good."""
_NONE: Final = re.compile(
    r"^no (?P<v>\w+(?: \w+)?)(?: (?:for now|then|after all|any ?more|this year|in the end|now))*$", _I
)
"""The end of a plan: "no wedding"."""
_SAID: Final = r"(?P<said>\S+(?: \S+){0,3}?)"
_MEANT: Final = r"(?P<meant>\S+(?: \S+){0,3}?)"
_DENIED: Final = re.compile(
    rf"^(?:it|that)(?:'s| is) not {_OLD}$|^i (?:said|told you|wrote|typed|put|mentioned) (?:it was |it's |that |i'm |"
    rf"we're |my \w+ (?:is|was) )?{_ARTICLE}{_SAID}(?: earlier| before| yesterday)*$",
    _I,
)
_IS: Final = re.compile(
    rf"^(?:it|that)(?:'s| is| should be) (?:actually |really )?{_NEW}{_WHEN}$|^i meant {_ARTICLE}{_MEANT}$", _I
)
_PARTED: Final = re.compile(
    rf"^we(?:'ve| have)? (?:\w+ )?(?:broke up|broken up|split up|separated|divorced){_WHEN}$",
    _I,
)
_NO_LONGER: Final = re.compile(
    r"\b(?:i|we)(?:(?: no longer| stopped| quit) \w+(?: \w+)?? V$|"
    r"(?: don't| do not| can't|'m not| am not|'re not| never)(?: \w+){1,2}? W any ?(?:more|longer)$)".replace(
        "V", _GONE
    ).replace("W", _GONE.replace("P<v>", "P<w>")),
    _I,
)
_VERBAL: Final = re.compile(
    r"\b(?:i|it|he|she|we|they|you|is|are|was|be|do|does|did|have|has|had|says?|said|name|anymore|use|make|go|try|"
    r"put|want|need|like)\b|'m\b|n't\b",
    _I,
)
"""Words that no value has: what has one is a clause of its own."""
LASTING: Final = frozenset({PersonAttribute.NAME, PersonAttribute.AGE, PersonAttribute.BIRTHDAY})
"""Attributes that have no end, only other values."""
NAMED_BY_VERB: Final = frozenset({PersonAttribute.HOME, PersonAttribute.JOB, PersonAttribute.EMPLOYER, *LASTING})
"""Attributes of which "I don't go to Berlin any more" says nothing: rules of their own read how they end."""


def amendment(said: str, clause: Clause, before: str = "") -> Candidate | None:
    """Return the correction or end that a clause states of a value, whatever its matter, or None.

    ``before`` is the clause before it: "it's not Porto, it's Faro" is two.
    """
    if _THE.search(f"{before}, {said}"):
        return None
    denied, stated = _DENIED.match(before), _IS.match(said)
    if denied is not None and stated is not None:
        was, new = denied["was"] or denied["said"], stated["v"] or stated["meant"]
        if not _VERBAL.search(f"{was} {new}"):
            return _amendment(new, clause, was=was, corrects=True)
    for patterns, corrects in ((_SWAPPED, False), (_WRONG, True)):
        for pattern in patterns:
            found = pattern.search(said)
            if found is not None and not any(_VERBAL.search(found[group]) for group in ("v", "was")):
                return _amendment(found["v"], clause, was=found["was"], corrects=corrects)
    if _PAUSE.search(said) or (_CALLED_OFF.search(said) and _FOR_ONCE.search(said)):
        return None
    for pattern in _OVER:
        found = pattern.search(said.partition(",")[0]) or pattern.search(said)
        if found is not None and "'s " not in found["v"]:
            return _amendment(found["v"], clause, ends=True)
    if (found := _NONE.search(said)) is not None:
        return _amendment(found["v"], clause, ends=True, slot="plan")
    if _PARTED.search(said):
        return _amendment("partner", clause, ends=True)
    found = _NO_LONGER.search(said)
    if found is not None:
        return _amendment(found["v"] or found["w"], clause, ends=True, slot="habit")
    return None


def _amendment(
    value: str, clause: Clause, *, was: str = "", slot: str = "", corrects: bool = False, ends: bool = False
) -> Candidate:
    return Candidate(
        attribute=PersonAttribute.OTHER,
        value=value.strip("\"' ,;").removesuffix("'s"),
        content="",
        start=clause.start,
        end=clause.end,
        slot=slot,
        was=was,
        restates=True,
        ends=ends,
        corrects=corrects,
        changes=not ends and not corrects,
    )


def substituted(content: str, old: str, new: str) -> str | None:
    """Return the content of a fact with a new value in the place of the old one, or None where it is not there once.

    "lives in Lindenweg 3" with "Lindenweg 13" in the place of "3" is "lives in Lindenweg 13".
    """
    if bool(re.search(r"\d", old)) != bool(re.search(r"\d", new)):
        return None
    if re.fullmatch(r"\d+\D\D", old) and re.fullmatch(r"\d+\D\D", new) and old.casefold() not in content.casefold():
        old, new = old[:-2], new[:-2]  # "the 5th, not the 3rd" of 3 May
    found = list(re.finditer(rf"(?<![\w-]){re.escape(old)}(?![\w-])", content, _I))
    if len(found) != 1:
        return None
    before, after = content[: found[0].start()], content[found[0].end() :]
    overlap = next((part for part in _beginnings(new) if before.casefold().rstrip().endswith(part.casefold())), "")
    if overlap:
        before = before.rstrip()[: -len(overlap)]
    return f"{before}{new}{after}"


def _beginnings(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[:size]) for size in range(len(words) - 1, 0, -1)]
