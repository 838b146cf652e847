"""Word lists and checks of values: places, professions, names, languages, diets, days."""

from __future__ import annotations

import re
from typing import Final

from caliber.learning.lexicon import lists

_I = re.IGNORECASE
MAX_VALUE: Final = 80
_MAX_WORDS: Final = 10

_SIGNS: Final = frozenset("\u0001{}\\<>")
"""Signs that no value has: of masked quotations, templates and markup."""
_CONDITION = re.compile(
    r"\b(?:diabetes|asthma|adhd|add|autism|epilepsy|c(?:o)?eliac|arthritis|dyslexia|insomnia|ibs|migraines?|"
    r"depression|anxiety|ptsd|ocd|bipolar|cancer|leuk(?:a)?emia|hypertension|high blood pressure|low blood pressure|"
    r"tinnitus|vertigo|pacemaker|eczema|psoriasis|hay fever|lupus|parkinson'?s?|alzheimer'?s?|raynaud'?s?|crohn'?s?|"
    r"hashimoto'?s?|tourette'?s?|down syndrome|an? (?:\w+ )?(?:syndrome|disorder|disease)|\w+itis|\w+osis|syndrome|"
    r"disorder|disease|thyroid|dementia|(?:high )?cholesterol|copd|chronic \w+|heart (?:disease|condition|failure)|"
    r"ulcers?|acid reflux|gerd|pcos|sleep apn(?:o)?ea|glaucoma|cataracts|rosacea|acne|multiple sclerosis|"
    r"fibromyalgia|long covid|asperger'?s?|panic attacks|anorexia|bulimia|carpal tunnel|stutter|scoliosis|"
    r"an(?:a)?emia|bad (?:back|knee|hip)|hearing loss|allergies|endometriosis|sciatica|gout)\b",
    _I,
)
_MEDICINE = re.compile(
    r"\b(?:medication|meds|medicine|pills?|blood thinners?|antidepressants?|antibiotics|insulin|beta blockers?|"
    r"statins?|steroids|warfarin|metformin|ibuprofen|levothyroxine|lithium|ssris?|inhaler|\w+(?:pril|sartan|statin|"
    r"oxetine|azole|olol|idone|azepam|cillin|opram|ipramine|triptan|dipine|semide|thiazide|xaban|gliptin|gliflozin|"
    r"glutide|lukast|mycin|traline|afaxine|cetamol|profen|codone|thyroxine|tropium|formin|nazole))\b",
    _I,
)
DIETS: Final = (
    "vegan|vegetarian|pescatarian|pescetarian|flexitarian|keto|ketogenic|paleo|halal|kosher|gluten[- ]free|"
    "dairy[- ]free|"
    "low[- ]carb|plant[- ]based|raw vegan|sugar[- ]free|carnivore|omnivore|mediterranean"
)
_POINTING = re.compile(
    r"^(?:it|that|this|these|those|them|him|her|you|me|us|your|yours|his|hers|their|theirs|its|what|how|when|where|"
    r"why|which|who|whether|if|to (?:be honest|know|hear|see|think|say|ask|talk|believe|add|point|thank|clarify)|the "
    r"(?:\w+ )?(?:idea|way|fact|answer|sound|look|first|second|third|one|ones|option|suggestion|plan|list|result|new "
    r"version|version|other|last|same|thought|response|draft|design|tone|style|recipe)|everything|nothing|something|"
    r"anything(?! [a-z]+$)|all of|both|either|neither|so|too|hearing|being|having to|working with you|talking to you|"
    r"chatting)\b",
    _I,
)
_OPEN_END = re.compile(
    r"\b(?:the|a|an|my|your|of|in|at|to|for|with|and|or|but|is|are|was|were|very|really|so|not|no)$", _I
)
_ARTICLE = re.compile(
    r"^(?:an?|my|our|your|this|that|these|those|his|her|their|its|another|some|any|one|two|it|here|there|with|from|"
    r"for|on|the (?!netherlands|hague|uk|us|usa|uae|bronx|bahamas|philippines|gambia|[A-Z](?-i:[a-z])))\b",
    _I,
)
_NEAR_NOTHING = re.compile(
    r"^(?:it|here|there|home|town|work|bed|hope|pajamas|pyjamas|sweatpants|leggings|jeans|excel|trouble|love|hell|"
    r"peace|fear|chaos|doubt|charge|touch|sync|general|fact|contact|pain|progress|denial|shock|hurry|luck|the "
    r"(?:area|countryside|\d+s|past|present|moment|future|dark|middle|same|city|suburbs|dorms?|cloud|backend|office|"
    r"next|new|other|second|top|bottom|mood|loop|know|process|zone|garden|kitchen|attic|house))\b",
    _I,
)
_PLACES = frozenset((*lists.PLACES.split(), *lists.LONG_PLACES.replace("\n", "").split("|")))
_BUSINESSES = frozenset(lists.BUSINESSES.split())
_TECH = frozenset((*lists.TECH.split(), "vs code"))
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    rf"^(?:the )?(?:\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? \d{{4}})?|{_MONTH}(?: the)? \d{{1,2}}(?:st|nd|rd|"
    rf"th)?(?:,? \d{{4}})?|{_MONTH}(?: \d{{4}})?|\d{{4}}|\d{{4}}-\d\d-\d\d|"
    rf"\d{{1,2}}[./]\d{{1,2}}[./]?(?:\d{{2,4}})?)$",
    _I,
)
_DAY = re.compile(rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?)(?!\w)", _I)
_NO_FOOD = re.compile(r"^(?:another|any|and|kids|children|babies|pets|cats|dogs|guests|visitors|fun|nice|both)\b", _I)
_NO_EVENT = re.compile(
    r"\b(?:trial|newsletters?|account|services?|beta|waitlist|waiting list|subscription|premium|free|worst|fun|"
    r"updates?|emails?|list|password|address|number|it|this|that)\b",
    _I,
)
_WHEN = re.compile(
    rf"^(?:(?:on |in |for |this |next |early |late |mid[- ]|the )*(?:{_MONTH}|spring|summer|autumn|fall|winter|year|"
    rf"month|week|weekend|\w+day|\d{{4}})|(?:on )?{_DATE.pattern[1:-1]})$",
    _I,
)
_DUE = re.compile(
    rf"^(?:on |in |for |the )*(?:{_WHEN.pattern[1:-1]}|the \d{{1,2}}(?:st|nd|rd|th)(?: of {_MONTH})?)$", _I
)
_DATED: Final = re.compile(
    rf"(?: (?:on|in|next|this|for|over|at|until|till|by) (?:the |early |late |mid[- ]|next |this )*(?:{_MONTH}|"
    rf"spring|summer|autumn|fall|winter|year|month|week|weekend|\w+day|christmas|easter|thanksgiving|new year'?s?|"
    rf"half term|\d{{4}}|{_DATE.pattern[1:-1]}|\d{{1,2}}(?:st|nd|rd|th))| tomorrow)(?: (?:next year|\d{{4}}|at "
    rf"\S+(?: ?[ap]m)?|"
    r"morning|afternoon|evening|night|with .+|for .+|to .+)){0,3}$",
    _I,
)
_TIME: Final = re.compile(rf"^(?:{_MONTH}|spring|summer|autumn|fall|winter|\w+day|\d+(?:st|nd|rd|th)?|next|last)$", _I)
_ONE_DAY: Final = (
    rf"(?:(?:the |early |late |mid[- ]|end of |next |this |coming )*(?:\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}|"
    rf"{_MONTH}(?: the)?(?: \d{{1,2}}(?:st|nd|rd|th)?(?!\d))?|spring|summer|autumn|fall|winter|(?:mon|tues|wednes|"
    rf"thurs|fri|satur|sun)day|week|weekend|month|year|christmas|easter|\d{{1,2}}(?:st|nd|rd|th)|\d{{4}}))"
    r"(?: (?:next year|\d{4}))?"
)
_FIRST_DAY: Final = re.compile(rf"^(?:on |in |to )?({_ONE_DAY})\b", _I)
_LAST_DAY: Final = re.compile(rf"(?:(?<= )(?:on|in|for) )?\b{_ONE_DAY}$", _I)
_TEENS = "thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
SPELT: Final = (
    rf"(?:{_TEENS}|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[ -](?:one|two|three|four|five|six|"
    r"seven|eight|nine))?)"
)
"""Ages in words."""
_LIKED_THE: Final = re.compile(
    r"^the (?:cold|heat|sea|sun|rain|snow|outdoors|mountains|beach|theatre|theater|opera|city|countryside|ocean|"
    r"cinema|dark|gym|ballet|blues|simpsons|beatles|piano|violin|guitar|news|winter|summer)\b",
    _I,
)
_TIMEZONE = re.compile(
    r"^(?:utc|gmt|(?:utc|gmt) ?[+-] ?\d{1,2}(?::\d\d)?|[ecmp][sd]?t|ce?s?t|eet|ist|jst|aest|bst|wet|msk|akst|hst|"
    r"(?:eastern|central|mountain|pacific)(?: (?:standard|daylight))?(?: time)?|[A-Z][a-z]+/[A-Z][a-z_]+)(?: time "
    r"?zone| time)?$",
    _I,
)
LANGUAGES: Final = frozenset(lists.LANGUAGES.split())
_MUCH: Final = re.compile(r"^(?:(?:only|just|also|very|a|little|bit|of|some|basic|broken|good) )+", _I)
_AMBIGUOUS: Final = frozenset(("guide", "model", "guard", "intern", "freelance", "cook", "coach", "security"))
_LEARNED: Final = re.compile(
    r"\w(?:ologist|ographer|ometrist|therapist|atrician|atrist|technician|engineer|smith|keeper|maker|wright|worker|"
    r"grapher)$"
)
_PROFESSIONS: Final = frozenset(lists.PROFESSIONS.split())
_NOT_NAMES: Final = frozenset(lists.NOT_NAMES.split())
_CHARACTERS: Final = frozenset(lists.CHARACTERS.split())
_VERBAL = re.compile(r"^(?:\w+ing|\w+ed|\w+ly)$", _I)


_PLACELESS: Final = re.compile(
    r"^(?:nothing|something|everything|stuck|please|thanks|hello|hi|hey|winter|summer|spring|autumn|rain|snow|today|"
    r"mom|mum|dad|newbie|beginner|student|teacher|parent|stop|look|wait|come|right|over|up|down|in|out|same|night|"
    r"morning|typo|problem|question|issue|error|bug|mistake|life|things|people|work|see|click|sign|insert|vegan|"
    r"vegetarian)\b",
    _I,
)


def is_anything(value: str) -> bool:  # noqa: ARG001  (a check takes the value)
    """Accept every value: the pattern decides."""
    return True


def is_value(value: str) -> bool:
    """Return whether a value names something by itself, in few words."""
    plain = value.strip()
    return (
        0 < len(plain) <= MAX_VALUE
        and len(plain.split()) <= _MAX_WORDS
        and not _SIGNS & set(plain)
        and _POINTING.match(plain) is None
        and _OPEN_END.search(plain) is None
    )


def is_liked(value: str) -> bool:
    """Return whether a value is what a person may like in general, and not a thing of this conversation."""
    return (
        is_value(value)
        and re.match(r"^(?:to|the|an?) (?:do|have|go|get|use|make|be|know|only)\b", value, _I) is None
        and (re.match(r"^(?:the|my|our) ", value, _I) is None or _LIKED_THE.match(value) is not None)
    )


def is_preferred(value: str) -> bool:
    """Return whether a value is a preference in general."""
    return is_value(value) and re.match(r"^(?:the|an?) (?:first|second|third|other|latter|former)\b", value, _I) is None


def is_food(value: str) -> bool:
    """Return whether a value may be food or drink."""
    return is_liked(value) and len(value.split()) <= 6 and _NO_FOOD.match(value) is None


def is_thing(value: str) -> bool:
    """Return whether a value names something, or a list, in so few words that it can be nothing else."""
    few = value.replace(",", " ").split()
    return (
        is_liked(value)
        and len(few) <= 4
        and not any(word.casefold() in _NOT_NAMES for word in few if word.casefold() not in ("and", "or"))
        and re.search(r"\b(?:none|nope|nothing|nah|not|don't|can't|allerg\w+|thanks|eat|eats|think)\b", value, _I)
        is None
    )


def is_allergen(value: str) -> bool:
    """Return whether a value may be something to be allergic to; work and Mondays are jokes."""
    return (
        is_value(value)
        and re.search(
            r"\b(?:work(?:ing)?|mondays?|mornings?|exercise|meetings?|bullshit|stupidity|stupid people|people|"
            r"nonsense|homework|fun|commitment|you|drama|effort|maths?)\b",
            value,
            _I,
        )
        is None
    )


def is_place(value: str) -> bool:
    """Return whether a value is a town, region, country or address: written as a name, or known as one."""
    known = value.split(",")[0].casefold() in _PLACES or any(char.isdigit() for char in value)
    return is_home(value) and (known or value != value.lower())


def is_home(value: str) -> bool:
    """Return whether a value may be a town, region, country or address, behind a verb of living."""
    plain = value.strip()
    first = plain.split()[0].casefold() if plain.split() else ""
    return (
        is_value(plain)
        and len(plain.split()) <= 7
        and _ARTICLE.match(plain) is None
        and _NEAR_NOTHING.match(plain) is None
        and first not in _TECH
        and not re.match(r"^\w+ing\b", plain)
        and (plain[0].isupper() or plain[0].isdigit() or plain == plain.lower())
    )


def is_known_place(value: str) -> bool:
    """Return whether a value begins with a town, region or country of the list."""
    return value.split(",")[0].casefold() in _PLACES


def is_town(value: str) -> bool:
    """Return whether a value is written as the name of a place."""
    return is_place(value) and re.match(r"(?-i:[^\W\d_a-z])", value) is not None


def is_job(value: str) -> bool:
    """Return whether a value may be a profession, in a clause about one."""
    return is_value(value) and len(value.split()) <= 7


def is_title(value: str) -> bool:
    """Return whether a value has a profession or a rank among its words."""
    found = {word.casefold() for word in value.split()}
    return is_job(value) and bool(found & (_PROFESSIONS | {"head", "lead", "chief", "senior", "president", "partner"}))


def is_profession(value: str) -> bool:
    """Return whether a value ends with a profession of the list: "a big fan" is none."""
    plain = re.split(r" (?:at|in|for|from|with|by|on|of|who|and)\b", value.strip())[0].casefold()
    last = plain.split()[-1].strip(".,") if plain else ""
    return is_job(value) and (last in _PROFESSIONS or _LEARNED.search(last) is not None)


def is_plain_profession(value: str) -> bool:
    """Return whether a value is a profession without an article, as "I am nurse in Bonn" has it."""
    plain = re.split(r" (?:at|in|for|from|with|by|on|of)\b", value.strip())[0]
    return (
        is_profession(value)
        and len(plain.split()) <= 3
        and re.match(
            r"^(?:an?|the|my|your|his|her|not|no|such|with|(?!(?:managing|nursing|consulting|engineering|marketing|"
            r"teaching) )\w+ing|in|at|on|talking|writing|seeing|looking)\b",
            plain,
            _I,
        )
        is None
        and plain.casefold() not in _AMBIGUOUS
    )


def is_employer(value: str) -> bool:
    """Return whether a value may be the name of an employer: capitalised, or "a" something."""
    plain = value.strip()
    if not is_value(plain) or len(plain.split()) > 7:
        return False
    if re.match(
        r"^(?:home|work|school|uni|university|college|lunch|dinner|night|nights|free|fun|starbucks|ikea|heathrow|"
        r"hours|love|a desk|the (?:gym|dentist|doctor|vet|beach|airport|park)|.* (?:airport|station|hotel|cafe|café|"
        r"place|gate|terminal)$|a (?:distance|living|snail's|good|slow|fast|high|low|steady|different|certain)\b|the "
        r"(?:moment|weekend|office|same|top|bottom)|\d+\w*|least|once|my|it|first|present|all|times|minimum|both)\b",
        plain,
        _I,
    ):
        return False
    return plain[0].isupper() or re.match(r"^(?:an? \w|the [A-Z])", plain) is not None or plain == plain.lower()


def is_tool(value: str) -> bool:
    """Return whether a value is a program or language of programmers."""
    return value.casefold() in _TECH


def is_business(value: str) -> bool:
    """Return whether a value is a business that a person may run: "a small bakery"."""
    plain = re.split(r" (?:at|in|for|from|with|by|on|called|named)\b|,", value)[0].split()
    return is_value(value) and len(plain) <= 5 and plain[-1].casefold() in _BUSINESSES


def is_firm(value: str) -> bool:
    """Return whether a value is written as the name of an employer."""
    return (
        is_employer(value)
        and re.match(r"^(?:the )?(?-i:[^\W\d_a-z])", value) is not None
        and re.search(r" (?:call|meeting|team|group|chat|channel|class|server|webinar|discord)$", value, _I) is None
    )


def is_condition(value: str) -> bool:
    """Return whether a value names an illness or disability."""
    return is_value(value) and _CONDITION.search(value) is not None and len(value.split()) <= 5


def is_illness(value: str) -> bool:
    """Return whether a value is an illness or disability by itself: "diabetes awareness week" is none."""
    found = _CONDITION.search(value)
    return is_condition(value) and found is not None and not value[found.end() :].strip()


def is_medicine(value: str) -> bool:
    """Return whether a value names medicine."""
    return is_value(value) and _MEDICINE.search(value) is not None and len(value.split()) <= 5


def is_number(value: str) -> bool:
    """Return whether a value is a telephone number."""
    return re.fullmatch(r"\+?[\d ()/.-]{5,20}", value) is not None


def is_name(value: str) -> bool:
    """Return whether a value may be the name of a person or animal."""
    words = value.replace(".", " ").split()
    return (
        0 < len(words) <= 3
        and len(value) <= 40
        and not any(word.casefold() in _NOT_NAMES for word in words)
        and (value[0].isupper() or len(words) == 1)
        and not (value[0].islower() and _VERBAL.match(value))
    )


def is_given_name(value: str) -> bool:
    """Return whether a value is written as a name: after "I'm" most words are none."""
    words = value.split()
    return (
        is_name(value)
        and re.sub(r"[\W_]+", "", value.casefold()) not in _CHARACTERS
        and all(word[0].isupper() and not word.isupper() for word in words)
        and not any(word.casefold() in LANGUAGES or word.casefold() in _PROFESSIONS for word in words)
    )


def is_first_name(value: str) -> bool:
    """Return whether a value can be nothing but a name: "Nothing here" is none."""
    return is_given_name(value) and not _PLACELESS.match(value)


def is_age(value: str) -> bool:
    """Return whether a number may be a person's age."""
    return value.isascii() and value.isdigit() and 0 < int(value) < 120


def is_date(value: str) -> bool:
    """Return whether a value is a day, month or year."""
    return _DATE.match(value.strip()) is not None


def is_day(value: str) -> bool:
    """Return whether a value is a day of a month."""
    return (
        is_date(value)
        and re.search(r"[a-z]", value, _I) is not None
        and re.search(r"\b\d{1,2}(?!\d)", value) is not None
    )


def days(text: str) -> list[str]:
    """Return the days of months that a text names."""
    return [found[0] for found in _DAY.finditer(text)]


def ordinals(text: str) -> list[str]:
    """Return the days that a text names by their number alone: "the 15th"."""
    return re.findall(r"\bthe (\d{1,2}(?:st|nd|rd|th))\b", text, _I)


def moved(day: str, other: str) -> str:
    """Return another day in the words of one: of "14 February" and "15th" it is "15 February"."""
    if re.search(r" |[a-z]{3}", other):
        return other
    number = re.sub(r"(?<=\d)\D+$", "", other) if re.search(r"\d(?![\dsnrt])", day) else other
    return re.sub(r"\d{1,2}(?:st|nd|rd|th)?", number, day, count=1)


def is_time(word: str) -> bool:
    """Return whether a word is part of a date."""
    return _TIME.match(word) is not None


def first_day(text: str) -> str | None:
    """Return the day, month or season that a text begins with, or None."""
    found = _FIRST_DAY.match(text)
    return None if found is None else found[1]


def dated(content: str, day: str) -> str:
    """Return a fact with another day: in the place of the one that it ends with, or else behind it."""
    at = "" if re.match(r"(?:next|this) ", day, _I) else "on " if re.search(r"\d|day\b", day, _I) else "in "
    last = _LAST_DAY.search(content)
    return f"{content.rstrip()} {at}{day}" if last is None else f"{content[: last.start()].rstrip()} {at}{day}"


def is_event(value: str) -> bool:
    """Return whether a value names something that a person takes part in: no newsletter, not "the worst"."""
    return is_value(value) and _NO_EVENT.search(value) is None


def is_trip(value: str) -> bool:
    """Return whether a value is a place and a time: "Oslo in June"."""
    place, _, when = re.sub(r" (in|on|next|this|for) ", r"\t\1 ", value, count=1).partition("\t")
    return is_town(place) and is_when(when)


def is_when(value: str) -> bool:
    """Return whether a value tells the time of something to come."""
    return _WHEN.match(value.strip()) is not None


def is_level(value: str) -> bool:
    """Return whether a value is a language with a level: "German B1"."""
    return value.split()[0].casefold() in LANGUAGES and value[-2] in "abcABC"


def is_due(value: str) -> bool:
    """Return whether a value tells the day or season of something to come: "the 20th" too."""
    return _DUE.match(value.strip()) is not None


def is_dated(value: str) -> bool:
    """Return whether a value ends with a day, month or season, also a near one: "her in July", "an exam on Friday"."""
    return is_long_value(value) and _DATED.search(value) is not None


def is_coming(value: str) -> bool:
    """Return whether a value tells the day of a visit, also with its place: "from India in July"."""
    return is_due(value) or is_dated(value)


def is_long_value(value: str) -> bool:
    """Return whether a value names something in words that need not be few."""
    return 0 < len(value) <= MAX_VALUE and "\u0001" not in value and _OPEN_END.search(value) is None


def is_timezone(value: str) -> bool:
    """Return whether a value names a time zone."""
    return _TIMEZONE.match(value.strip()) is not None


def is_language(value: str) -> bool:
    """Return whether a value begins with a language."""
    words = [word.strip(",.").casefold() for word in _MUCH.sub("", value).split()]
    return any(word in LANGUAGES for word in words[:2])
