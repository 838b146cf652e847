"""Ends of facts in words that no rule of their matter knows: "handed over the keys", "veganism lasted a week".

The fact is looked for in the clause by its own words, whatever stands after them; words of ending must stand right
before or behind it. So nothing happens unless such a fact is held.
"""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.lexicon import endings, words
from caliber.learning.lexicon.people import PARTNERS
from caliber.learning.rules.candidates import words_of
from caliber.model.learning import PersonAttribute

_I = re.IGNORECASE
_FACT: Final = "§"
"""The sign in a clause for the words of a fact."""
_TOKEN: Final = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*|,")
_LONG_FORMS: Final = (
    (re.compile(r"\bcan't\b", _I), "can not"),
    (re.compile(r"\bwon't\b", _I), "will not"),
    (re.compile(r"n't\b", _I), " not"),
    (re.compile(r"'m\b", _I), " am"),
    (re.compile(r"'ve\b", _I), " have"),
    (re.compile(r"'re\b", _I), " are"),
    (re.compile(r"(?<=\b(?:he|it))'s\b|(?<=\b(?:she))'s\b|(?<=\b(?:that))'s\b", _I), " is"),
    (
        re.compile(
            r"(?<=[a-z])'s (?=(?:gone|dead|over|off|finished|done|cancel+ed|died|passed|left|moved|been|no longer|no "
            r"more|not|closed|history|out|better|fine|healed|postponed|now|all|already|finally|officially|sadly)\b)",
            _I,
        ),
        " is ",
    ),
)
_ENDINGS: Final = ("ism", "ing", "ers", "er", "ed", "es", "s", "e")
_EMPTY_TEXT = """
a an the my our his her their its this that these those to of in at on for with from as and or i we me us is are was
be been being have has had do does did not called named who which
"""
_EMPTY: Final = frozenset(_EMPTY_TEXT.split())
_COMMON_TEXT = """
job work year day time week month new old good big little small people friend home house child kid part full half
favorite favourite color colour team class group school company office name age number life lot bit way one two three
four five living little single city town language food thing brother sister son daughter wife husband partner
"""
_COMMON: Final = frozenset(_COMMON_TEXT.split())
"""Words by which alone no fact is named."""

_MEANING_TEXT = """
going planning visiting training preparing studying getting having taking doing flying seeing meeting hosting starting
booked bought got signed up registered looking saving trying trip married moving running
"""
_MEANING_TO: Final = frozenset(_MEANING_TEXT.split())
"""Verbs of plans, which name none."""

_OTHER_WORDS: Final = (
    (re.compile(r"\bmarried|marrying\b"), "wedding"),
    (re.compile(r"\bmoving\b"), "move"),
    (re.compile(r"\b(?:going|flying|travell?ing|visiting|planning|booked)\b"), "trip holiday vacation visit"),
)
"""Nouns by which a plan is spoken of later."""

# --- clauses with the fact as one sign ---------------------------------------------------------------

_BEFORE: Final = (
    r"^(?:(?:i|we|have|am|are|had|just|finally|now|also|already|recently|officially|so|and|then|well|yeah|yes|no|ok|"
    r"okay|to|decided|ended up|actually|eventually|sadly|basically|reluctantly|since|today|yesterday|last \w+|this "
    r"\w+|\w+ \w+ ago|in \w+|both|all|even|totally|completely|simply|quickly|me|got|going|,) )*"
)
_OF: Final = (
    r"(?:(?:the|my|our|a|an|that|this|being|doing|playing|going|working|on|to|from|as|at|in|with|of|for|it|whole|old|"
    r"all|about|up|out|off|both|completely|taking|eating|drinking|having|making|learning|practi[sc]ing|smoking|using|"
    r"early|retirement|seeing|dating|job|role|post|position) )*"
)
_LIGHT: Final = (
    r"(?: (?:thing|things|stuff|part|bit|job|role|position|post|gig|diet|plan|idea|phase|business|group|club|kick|"
    r"trip|altogether|completely|too|either|up|over|off|place|lessons?|class(?:es)?))*"
)
_STOP: Final = (
    r"(?= ?(?:$|,| (?:after|before|because|since|when|so|and|but|in|for|to|with|by|last|this|now|then|today|"
    r"yesterday|recently|anymore|any more|is|it|they|we|i|he|she|as|which|a|two|three|four|five|\w+ly|years?|months?|"
    r"weeks?|at (?:easter|christmas|the end)|on \w+day|due|until|once|while|instead|entirely|though|the|there|here|"
    r"tbh|lol|says)\b))"
)
_CLAUSE: Final = (
    r"^(?:(?:so|and|well|oh|my|our|the|that|this|whole|sad|update|news|,|good|bad|yeah|ok|okay|i am afraid|as of now|"
    r"turns out|unfortunately|sadly|old|long|being|doing|working at|working|i|we|me|as) )*"
)
_ADVERBS: Final = (
    r"(?: (?:,|is|are|was|were|has|have|had|got|been|now|all|just|sadly|officially|finally|completely|also|both|"
    r"already|recently|basically|kind of|and))* "
)
_END: Final = (
    r"(?= ?(?:$|,| (?:now|after|because|since|so|and|but|last|then|yesterday|recently|as|about|almost|exactly|me|us|"
    r"a|two|three|four|five|six|until|once|tbh|altogether|\w+ly|already|barely|all|due|says|for (?:me|us|good)|"
    r"during|on \w+day|in (?:the end|(?-i:[A-Z])\w+|\d{4}))\b))"
)


def _before(phrases: str) -> re.Pattern[str]:
    """Return the pattern of a clause of the user that has the fact behind one of these phrases."""
    return re.compile(rf"{_BEFORE}(?:{phrases}) {_OF}{_FACT}{_LIGHT}{_STOP}", _I)


def _behind(phrases: str) -> re.Pattern[str]:
    """Return the pattern of a clause that has one of these phrases behind the fact."""
    return re.compile(rf"{_CLAUSE}{_FACT}{_LIGHT}{_ADVERBS}(?:{phrases}){_END}", _I)


_BAR: Final = re.compile(
    r"\b(?:almost|nearly|about to|going to|want|wants|wanted|might|(?<!till )(?<!until )(?<!in )(?<!to )(?<!of "
    r")(?<!by )may(?! \d)|would|could|should|will|if|unless|wish|hate to|never (?!again)|refuse|love to|hope|hoping|"
    r"try|trying|tried|when|whenever|every time|for (?:now|today|tonight|the day|the holidays?|the weekend|lunch|"
    r"dinner|work|a bit|a while|an hour|a minute|her|his|the)|tonight|early|on pause|on a break|rarely|forgot|forget|"
    r"late|on \w+days|(?:at|by|around) (?:\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|noon|"
    r"midnight|lunch)|this (?:morning|afternoon|evening|week)|just left|with an?|on the (?:bus|train|way)|and (?:got|"
    r"went)|laughing|in (?:my|the) (?:dream|game|movie|film|photo|picture|play)|in minecraft|but (?:came|found)|"
    r"again lol|gross|yuck|by accident|polite|even more|as long as|too ?$|once|one more|last year|in a (?:dream|"
    r"game))\b",
    _I,
)
"""Words with which no clause ends a fact."""
_NOT_ANY_MORE: Final = re.compile(
    rf"{_BEFORE}(?:do |did |can )?(?:not|never|no longer) (?:\w+ ){{0,3}}?{_FACT}(?: \w+){{0,3}}? "
    r"(?:anymore|any more|any longer)\b",
    _I,
)
_NO_MORE: Final = re.compile(
    rf"^(?:\w+ )*?no more {_OF}{_FACT}{_LIGHT}(?= ?$| ,| for (?:me|us)| since| now| because)|^no {_FACT}{_LIGHT} "
    rf"(?:for (?:me|us) )?(?:anymore|any more|after all|in the end|any longer)\b",
    _I,
)
_NEVER: Final = (_NOT_ANY_MORE, _NO_MORE)
_NO_PLAN: Final = re.compile(
    rf"{_BEFORE}(?:did|could|can|are|am|is|) ?not (?:\w+ ){{0,3}}?{_FACT}{_LIGHT} (?:in the end|after all|any ?more|"
    rf"this year|any longer)|{_BEFORE}did not (?:\w+ ){{0,3}}?{_FACT}{_LIGHT}(?= ?(?:$|,))|^no {_FACT}{_LIGHT} "
    rf"(?:for (?:me|us)|this (?:year|summer|time|month))",
    _I,
)
_SHUT: Final = re.compile(
    rf"^(?:they|the \w+)(?: have| has| had| just)* (?:shut|closed|cancel+ed|axed|scrapped|called off|"
    rf"discontinued)(?: down)? {_OF}{_FACT}{_LIGHT}{_STOP}",
    _I,
)
_DROPPED_CLASS: Final = re.compile(
    rf"{_BEFORE}(?:dropped|drop|quit|cancel+ed|stopped) (?:(?:my |the )?{_FACT} (?:lessons?|class(?:es)?|training|"
    rf"club)|(?:the )?{_FACT}){_STOP}",
    _I,
)
_PAST: Final = re.compile(rf"{_BEFORE}(?:{endings.PASSED}) (?:my|the|our) {_FACT}(?= ?$| ,)", _I)
_WELL: Final = re.compile(
    rf"{_BEFORE}(?:outgrew|outgrown|grew out of|grown out of|got over|rid of|recovered from|healed from|cured of|"
    rf"beat) {_OF}{_FACT}(?= ?$| ,)|{_CLAUSE}{_FACT}{_LIGHT}{_ADVERBS}(?:healed|cured|cleared up|misdiagnosed|a "
    rf"misdiagnosis|gone for good|"
    r"completely gone)(?= ?$| ,| now| again| after| up)|"
    rf"^(?:my |the )?(?:doctor|doc|gp|they|psychiatrist|specialist)(?: have| has| is)? (?:took|taken|taking) me off "
    rf"(?:the |my )?{_FACT}|{_BEFORE}(?:came|come|coming|am|got) off (?:the |my )?{_FACT}(?= ?$| ,)|"
    rf"{_BEFORE}(?:stopped|quit) (?:taking |using )?(?:the |my )?{_FACT}{_LIGHT}{_STOP}|{_BEFORE}(?:do|does) not "
    rf"(?:actually |really )?have (?:an? |the )?{_FACT}(?= ?$| ,| any ?more| after all)|{_BEFORE}not {_FACT}(?= "
    rf"after all| any ?more)|{_BEFORE}never had (?:a |an |the )?{_FACT}(?= ?$| ,| after all)",
    _I,
)
_MENDED: Final = re.compile(
    rf"{_CLAUSE}{_FACT}{_LIGHT}{_ADVERBS}(?:healed|fine|better|ok|okay|good|mended|fixed)(?= ?$| ,| now| again| "
    rf"after| up)",
    _I,
)
_HURT: Final = re.compile(r"\b(?:hurt|bad|broken|torn|sprained|fractured|injured|dislocated)\b")
_TOLERATED: Final = re.compile(
    rf"\bno {_FACT} (?:allergy|allergies|intolerance)\b|{_BEFORE}not (?:\w+ )?(?:allergic|intolerant|sensitive) "
    rf"(?:to )?{_FACT}|{_BEFORE}(?:do|does) not (?:actually |really )?have (?:an? |the |any )?{_FACT} (?:allergy|"
    rf"intolerance)|^(?:my |the ){_FACT} (?:allergy|intolerance) (?:is|was|has) (?:\w+ )?(?:gone|over|cured|wrong|a "
    rf"misdiagnosis|cleared)\b|{_BEFORE}(?:can|am|are) (?:allowed to )?(?:finally |now |safely )?(?:eat|eating|have|"
    rf"having|drink|tolerate) {_OF}{_FACT}(?: just| totally| perfectly)? (?:again|now|fine|after all)\b|"
    rf"{_BEFORE}(?:outgrew|outgrown|grew out of|grown out of|got over) {_OF}{_FACT}(?= ?$| ,)",
    _I,
)
_TAKEN_TO: Final = re.compile(
    rf"{_BEFORE}(?:love|like|enjoy|crave|craving|loving|enjoying|adore|into) {_OF}{_FACT}{_LIGHT}(?: ,)? (?:now|"
    rf"these days|after all|again)|{_BEFORE}(?:actually|now|suddenly|kind of|really|grown to|come to|came to|learned "
    rf"to|learnt to|started to|starting to|began to|beginning to) (?:love|like|enjoy|adore|loving|enjoying|liking|"
    rf"appreciate) {_OF}{_FACT}|{_BEFORE}(?:do |did )?not mind {_OF}{_FACT}|{_BEFORE}(?:come|came|coming) "
    rf"(?:a)?round (?:to|on) {_OF}{_FACT}|{_BEFORE}(?:warmed|warming) (?:up )?to {_OF}{_FACT}|{_BEFORE}used to "
    rf"(?:hate|dislike) {_OF}{_FACT}|{_BEFORE}changed my mind (?:about|on) {_OF}{_FACT}|{_BEFORE}back (?:to|on|into) "
    rf"(?:eating |drinking |having )?{_OF}{_FACT}|{_BEFORE}(?:eat|eating|drink|drinking|ate|have|having|had) "
    rf"{_OF}{_FACT} again|{_FACT}{_LIGHT} (?:has |have |really |kind of |is |are )*(?:grew on|grown on|growing on) "
    rf"me|{_FACT}{_LIGHT} (?:is|are) (?:actually |now |really |totally |quite |not )*(?:fine|ok|okay|good|great|nice|"
    rf"amazing|"
    r"(?:so|that) bad)(?= (?:now|after all|with me|for me|these days|actually)\b)",
    _I,
)
_EATS: Final = re.compile(
    rf"{_BEFORE}(?:eat|eating|drink|drinking|have|having) {_OF}{_FACT}(?: (?:now|again|these days)|$)", _I
)
_TO_WHEN: Final = r"(?: back| forward| out| off| again)*(?: ,)? (?:to|till|until|for|on|in) (?P<v>.+)"
_MOVED: Final = (
    re.compile(rf"\b(?:{endings.SHIFTED}) {_OF}{_FACT}{_LIGHT}{_TO_WHEN}", _I),
    re.compile(
        rf"{_FACT}{_LIGHT}(?: (?:is|are|was|has|have|had|got|been|be|now|just|also|to|being|gets|it))* "
        rf"(?:{endings.SHIFTED}){_TO_WHEN}",
        _I,
    ),
    re.compile(rf"{_FACT}{_LIGHT} (?:is |are )?(?:now|actually) (?:on|in|at|for)? ?(?P<v>.+)", _I),
)
_FAREWELL: Final = re.compile(
    rf"{_BEFORE}(?:moved out of|moved away from|no longer (?:in|live in|living in|based in)) {_FACT}{_LIGHT}(?= ?$| "
    rf",| for good| last| because| after)|{_BEFORE}(?:do |did )?not (?:live |living |based )?(?:in|at) {_FACT} "
    rf"(?:anymore|any more|any longer)",
    _I,
)
_LEFT_WORK: Final = (*_NEVER, _before(endings.FIRED), _behind(endings.BUST))
_GIVEN_UP: Final = (*_NEVER, _before(endings.QUIT), _DROPPED_CLASS, _behind(endings.FADED))
_BY_MATTER: Final = {
    PersonAttribute.HOME: (_FAREWELL,),
    PersonAttribute.HEALTH: (_WELL,),
    PersonAttribute.ALLERGY: (_TOLERATED,),
    PersonAttribute.DISLIKES: (_TAKEN_TO,),
    PersonAttribute.JOB: _LEFT_WORK,
    PersonAttribute.EMPLOYER: _LEFT_WORK,
    PersonAttribute.LIKES: _GIVEN_UP,
    PersonAttribute.LANGUAGE: _GIVEN_UP,
    PersonAttribute.DIET: (*_GIVEN_UP, _TAKEN_TO),
    PersonAttribute.PLAN: (*_NEVER, _before(endings.DROPPED), _PAST, _behind(endings.FELL_THROUGH), _SHUT, _NO_PLAN),
    PersonAttribute.FAMILY: (_NOT_ANY_MORE, _behind(endings.DIED)),
    PersonAttribute.PET: (_behind(endings.DIED), re.compile(rf"{_BEFORE}lost {_FACT}(?= ?$| ,| on \w+day| last)", _I)),
}
_PARTNER: Final = (_NOT_ANY_MORE, _before(endings.PARTED), _behind(endings.GONE))
_NAMED: Final = re.compile(r"^(?P<role>[\w ]+) is called ")
_MOVED_OUT: Final = re.compile(rf"{_CLAUSE}{_FACT} (?:has |have |just )*(?:moved out|left the company){_END}", _I)
_OTHER: Final = (*_NEVER, _before(endings.LEFT), _behind(endings.FADED), _SHUT)
_BY_SLOT: Final = {
    "uses": (*_NEVER, _before(endings.UNUSED)),
    **dict.fromkeys(("car", "owns"), (*_NEVER, _before(endings.SOLD), _behind(endings.STOLEN))),
    **dict.fromkeys(("origin", "birthplace", "nationality", "pronouns", "time zone"), ()),
}
"""Patterns of matters that have no attribute of their own."""
_ENDLESS: Final = frozenset({PersonAttribute.NAME, PersonAttribute.AGE, PersonAttribute.BIRTHDAY})
_LEFT_GROUP: Final = re.compile(
    r"\b(?:left|quit|dropped out of) (?:the |my |our )(?:\w+ )?(choir|band|club|team|group|orchestra|league|class|"
    r"course|society|gym|troupe|squad)\b(?! (?:bus|van|room|dinner|chat|party|practice)\b)",
    _I,
)
_EATER: Final = re.compile(
    r"^(?:(?:and|so|ok|okay|well|confession|now|just|,|actually|i|we|am|are|have|been|started|caved|back|on|to) "
    r")*(?:eating|eat|ate|had|back|drinking|drink)\b(?!.*\b(?:vegan|veggie|vegetarian|plant|oat|almond|soy|soya|"
    r"coconut|rice milk|free|fake|mock|sauce|not|my|watch|for|until|happening)\b)",
    _I,
)
"""The beginning of a clause about what its speaker eats."""
_DIETS: Final = (
    (
        re.compile(r"\b(?:vegan|vegetarian|pescatarian|veggie)", _I),
        re.compile(
            r"\b(?:meat|chicken|beef|steaks?|bacon|pork|burgers?|lamb|ham|sausages?|turkey|ribs)\b.*\b(?:again|now|"
            r"these days|back|never looked back)\b|\b(?:back (?:on|to|into)|started|eat|eating) (?:\w+ )*?(?:meat|"
            r"chicken|beef|steak|bacon|pork)(?= ?$| ,| again| now| once| twice| on)|\b(?:omnivore|not (?:a "
            r")?(?:vegan|vegetarian|veggie|pescatarian))\b",
            _I,
        ),
    ),
    (
        re.compile(r"\bvegan", _I),
        re.compile(
            r"\b(?:cheese|eggs?|dairy|milk|butter|yogh?urt|fish|salmon)\b.*\b(?:again|now|these days|back)\b", _I
        ),
    ),
    (
        re.compile(r"\b(?:alcohol|drink|sober|teetotal)", _I),
        re.compile(r"\b(?:drinking|drink|have (?:a )?(?:wine|beer)s?) again\b", _I),
    ),
    (re.compile(r"\bgluten", _I), re.compile(r"\b(?:bread|pasta|gluten|wheat)\b.*\bagain\b", _I)),
    (re.compile(r"\b(?:dairy|lactose|milk)", _I), re.compile(r"\b(?:cheese|milk|dairy|yogh?urt)\b.*\bagain\b", _I)),
)
"""Diets, and what people eat who have given them up."""


def ends(plain: str, attribute: PersonAttribute, slot: str, content: str, value: str) -> tuple[int, str] | None:
    """Return how many words of a fact a clause names that ends it, and these words; None where it does not.

    ``plain`` is a clause as of ``plain_clause``.
    """
    if attribute in _ENDLESS or slot.startswith("favorite") or _BAR.search(plain):
        return None
    if attribute is PersonAttribute.DIET and _EATER.match(plain):
        for diet, eaten in _DIETS:
            if diet.search(content) and eaten.search(plain):
                return 1, ""
    found = _with_sign(plain, attribute, content, value)
    if found is None:
        return None
    clause, named, hits = found
    group = _LEFT_GROUP.search(plain)
    if group is not None and _root(group[1]) in {_root(each) for each in named.split()}:
        return hits, named
    return (hits, named) if any(each.search(clause) for each in _patterns(attribute, slot, content)) else None


def _patterns(attribute: PersonAttribute, slot: str, content: str) -> tuple[re.Pattern[str], ...]:
    if (person := _NAMED.match(content)) is not None and attribute is not PersonAttribute.PET:
        if person["role"] in PARTNERS:
            return _PARTNER
        return _BY_MATTER[PersonAttribute.FAMILY] if attribute is PersonAttribute.FAMILY else (_MOVED_OUT,)
    patterns = _BY_MATTER.get(attribute) or _BY_SLOT.get(slot, _OTHER)
    if content.startswith("avoids"):
        patterns = (*patterns, _EATS)
    return (*patterns, _MENDED) if attribute is PersonAttribute.HEALTH and _HURT.search(content) else patterns


def moved(plain: str, content: str, value: str) -> str | None:
    """Return a plan with the day that a clause moves it to, or None where it moves it to none."""
    found = _with_sign(plain, PersonAttribute.PLAN, content, value)
    if found is None or _BAR.search(found[0]):
        return None
    for pattern in _MOVED:
        shifted = pattern.search(found[0])
        day = None if shifted is None else words.first_day(shifted["v"])
        if day is not None:
            return words.dated(content, day)
    return None


def plain_clause(said: str) -> str:
    """Return the words and commas of a clause in the first person, without short forms."""
    for pattern, text in _LONG_FORMS:
        said = pattern.sub(text, said)
    return " ".join(_TOKEN.findall(said.replace("’", "'")))


def _root(word: str) -> str:
    """Return the part of a word that its forms share: "vegan" of "veganism", "coach" of "coaching"."""
    word = word.casefold()
    while (ending := next((each for each in _ENDINGS if word.endswith(each)), "")) and len(word) - len(ending) >= 3:
        word = word[: -len(ending)]
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] + "i" if word.endswith("y") else word


def _with_sign(plain: str, attribute: PersonAttribute, content: str, value: str) -> tuple[str, str, int] | None:
    """Return a clause with a sign for the words of a fact, these words, and how many they are; None without them."""
    plan = attribute is PersonAttribute.PLAN
    content += "".join(f" {more}" for plans, more in _OTHER_WORDS if plan and plans.search(content))
    stated = [each for each in _TOKEN.findall(content) if each != ","]
    proper = {_root(each) for each in stated[1:] if each[0].isupper()}
    named = {*words_of(value), *(words_of(content) - _MEANING_TO if plan else ())}
    keys = {_root(each) for each in named if each not in _EMPTY and each not in _COMMON and not words.is_time(each)}
    soft = {_root(each) for each in stated if each.casefold() not in _EMPTY} | keys
    tokens = plain.split(" ")
    roots = [_root(each) for each in tokens]
    marks = [each in soft for each in roots]
    best: tuple[int, int, int] | None = None
    at = 0
    while at < len(tokens):
        if not marks[at]:
            at += 1
            continue
        end = last = at
        while end < len(tokens) and (marks[end] or (tokens[end].casefold() in _EMPTY and end - last < 3)):
            last = end if marks[end] else last
            end += 1
        found = set(roots[at : last + 1])
        hits = len(found & keys)
        enough = hits and (plan or hits * 2 >= len(keys) or found & proper or len(found & soft) > 1)
        if enough and (best is None or hits > best[0]):
            best = hits, at, last + 1
        at = last + 1
    if best is None:
        return None
    hits, start, end = best
    return " ".join([*tokens[:start], _FACT, *tokens[end:]]), " ".join(tokens[start:end]), hits
