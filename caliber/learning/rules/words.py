"""Word lists and checks of values: places, professions, names, languages, diets, days."""

from __future__ import annotations

import re
from typing import Final

_I = re.IGNORECASE
MAX_VALUE: Final = 80
_MAX_WORDS: Final = 10

_CONDITION = re.compile(
    r"\b(?:diabetes|asthma|adhd|add|autism|epilepsy|c(?:o)?eliac|arthritis|dyslexia|insomnia|ibs|migraines?|depression|"
    r"anxiety|ptsd|ocd|bipolar|cancer|leuk(?:a)?emia|hypertension|high blood pressure|low blood pressure|tinnitus|"
    r"vertigo|"
    r"pacemaker|eczema|psoriasis|hay fever|lupus|parkinson'?s?|alzheimer'?s?|raynaud'?s?|crohn'?s?|hashimoto'?s?|"
    r"tourette'?s?|"
    r"down syndrome|an? (?:\w+ )?(?:syndrome|disorder|disease)|\w+itis|\w+osis|syndrome|disorder|disease|thyroid|"
    r"stutter|scoliosis|an(?:a)?emia|bad (?:back|knee|hip)|hearing loss|allergies|endometriosis|sciatica|gout)\b",
    _I,
)
_MEDICINE = re.compile(
    r"\b(?:medication|meds|medicine|pills?|blood thinners?|antidepressants?|antibiotics|insulin|beta blockers?|"
    r"statins?|"
    r"steroids|warfarin|metformin|ibuprofen|levothyroxine|lithium|ssris?|inhaler|\w+(?:pril|sartan|statin|oxetine|azole|"
    r"olol|idone|azepam|cillin))\b",
    _I,
)
DIETS: Final = (
    "vegan|vegetarian|pescatarian|pescetarian|flexitarian|keto|ketogenic|paleo|halal|kosher|gluten[- ]free|"
    "dairy[- ]free|"
    "low[- ]carb|plant[- ]based|raw vegan|sugar[- ]free|carnivore|omnivore|mediterranean"
)
_POINTING = re.compile(
    r"^(?:it|that|this|these|those|them|him|her|you|me|us|your|yours|his|hers|their|theirs|its|what|"
    r"how|when|where|why|"
    r"which|who|whether|if|to (?:be honest|know|hear|see|think|say|ask|talk|believe|add|point|thank|clarify)|"
    r"the (?:\w+ )?(?:idea|way|fact|answer|sound|look|first|second|third|one|ones|option|suggestion|plan|list|result|"
    r"new version|version|other|last|same|thought|response|draft|design|tone|style|recipe)|everything|nothing|"
    r"something|"
    r"anything|all of|both|either|neither|so|too|hearing|being|having to|working with you|talking to you|chatting)\b",
    _I,
)
_OPEN_END = re.compile(
    r"\b(?:the|a|an|my|your|of|in|at|to|for|with|and|or|but|is|are|was|were|very|really|so|not|no)$", _I
)
_ARTICLE = re.compile(
    r"^(?:an?|my|our|your|this|that|these|those|his|her|their|its|another|some|any|one|two|it|here|there)\b", _I
)
_NEAR_NOTHING = re.compile(
    r"^(?:it|here|there|home|town|work|bed|trouble|love|hell|peace|fear|chaos|doubt|charge|touch|"
    r"sync|general|fact|contact|pain|progress|denial|shock|hurry|luck|the (?:area|countryside|"
    r"past|present|moment|future|dark|middle|same|city|suburbs|dorms?|cloud|backend|office|"
    r"next|new|other|second|top|bottom|mood|loop|know|process|zone|garden|kitchen|attic|house))\b",
    _I,
)
_TECH_TEXT = """
linux windows mac macos vim emacs neovim python rust java golang javascript typescript react vue angular svelte
postgres postgresql sqlite mysql kubernetes docker aws azure gcp slack notion jira github gitlab bitbucket vscode
chrome firefox safari android ios iphone spotify netflix production staging prod dev master main
"""
_TECH = frozenset(_TECH_TEXT.split())
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    rf"^(?:the )?(?:\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? \d{{4}})?|{_MONTH}(?: the)? \d{{1,2}}(?:st|nd|"
    rf"rd|th)?"
    rf"(?:,? \d{{4}})?|{_MONTH}(?: \d{{4}})?|\d{{4}}|\d{{4}}-\d\d-\d\d|\d{{1,2}}[./]\d{{1,2}}[./]?(?:\d{{2,4}})?)$",
    _I,
)
_TIMEZONE = re.compile(
    r"^(?:utc|gmt|(?:utc|gmt) ?[+-] ?\d{1,2}(?::\d\d)?|[ecmp][sd]?t|ce?s?t|eet|ist|jst|aest|bst|wet|msk|akst|hst|"
    r"(?:eastern|central|mountain|pacific)(?: (?:standard|daylight))?(?: time)?|"
    r"[A-Z][a-z]+/[A-Z][a-z_]+)(?: time ?zone| time)?$",
    _I,
)
_LANGUAGES_TEXT = """
afrikaans albanian amharic arabic armenian basque bengali bosnian bulgarian burmese cantonese catalan chinese croatian
czech danish dutch english esperanto estonian farsi filipino finnish flemish french galician georgian german greek
gujarati hausa hebrew hindi hungarian icelandic igbo indonesian irish italian japanese kannada kazakh khmer korean
kurdish lao latin latvian lithuanian luxembourgish macedonian malay malayalam maltese mandarin marathi mongolian
nepali norwegian pashto persian polish portuguese punjabi quechua romanian russian serbian slovak slovene slovenian
somali spanish swahili swedish tagalog tamil telugu thai tibetan turkish ukrainian urdu uzbek vietnamese welsh xhosa
yiddish yoruba zulu asl bsl
"""
LANGUAGES: Final = frozenset(_LANGUAGES_TEXT.split())
_PROFESSIONS_TEXT = """
accountant actor actress actuary analyst anesthesiologist animator anthropologist archaeologist architect archivist
artist astronomer attorney auditor author baker banker barber barista bartender biochemist biologist blogger
bookkeeper botanist broker builder butcher carpenter cashier chef chemist chiropractor choreographer cleaner coach
composer conductor consultant contractor cook copywriter counselor counsellor curator dancer dentist dermatologist
designer detective developer dietitian director doctor driver economist editor educator electrician engineer
entrepreneur epidemiologist farmer filmmaker firefighter fisherman florist founder freelancer gardener geologist
geneticist goldsmith hairdresser handyman historian illustrator instructor interpreter janitor jeweler journalist
judge lawyer lecturer librarian lifeguard linguist locksmith machinist manager marketer mason mathematician mechanic
midwife miner model musician nanny neurologist neuroscientist nurse nutritionist optician optometrist painter
paralegal paramedic pathologist pediatrician pharmacist philosopher photographer physician physicist physiotherapist
pianist pilot planner plumber poet policeman policewoman politician postdoc potter principal producer professor
programmer psychiatrist psychologist psychotherapist radiologist ranger realtor receptionist recruiter researcher
sailor salesman salesperson saleswoman scientist sculptor secretary security singer social-worker sociologist soldier
statistician stylist student surgeon surveyor tailor teacher technician therapist trader trainer translator tutor
underwriter undertaker veterinarian vet videographer violinist waiter waitress welder writer zookeeper zoologist
worker officer intern apprentice assistant administrator sysadmin devops pastor priest rabbi imam nun monk beekeeper
brewer winemaker butler chauffeur courier dispatcher estimator inspector investigator operator supervisor
superintendent specialist strategist stockbroker cto ceo cfo coo vp
"""
_PROFESSIONS: Final = frozenset(_PROFESSIONS_TEXT.split())
_NOT_NAMES_TEXT = """
sorry sure fine good great okay ok well glad happy sad tired busy back here there home ready done late early new not
just still also very really so too all both only now then the a an your my his her their our this that it he she they
we you i me him them us american british english german french italian spanish portuguese dutch swedish danish
norwegian finnish polish czech russian ukrainian chinese japanese korean indian mexican canadian australian brazilian
greek turkish irish scottish welsh european asian african muslim christian jewish catholic buddhist hindu atheist
vegan vegetarian trying looking going working thinking using getting having feeling doing making planning hoping
wondering writing reading learning building running studying living male female single married divorced engaged
pregnant sick ill hungry thirsty bored excited confused stuck lost interested curious afraid worried nervous monday
tuesday wednesday thursday friday saturday sunday aware able about at in on from with for off out up down over under
always never sometimes often usually currently quite pretty fully almost nearly what who how why when where which
actually no yes maybe allergic older younger retired unemployed self-employed bilingual fluent coming leaving moving
online offline free open closed available unavailable more less better worse best diabetic based originally used dead
alive asking calling serious kidding joking right wrong true false pm am nobody somebody everyone anyone someone
impressed surprised amazed grateful thankful
"""
_NOT_NAMES: Final = frozenset(_NOT_NAMES_TEXT.split())
_VERBAL = re.compile(r"^(?:\w+ing|\w+ed|\w+ly)$", _I)


def is_anything(value: str) -> bool:  # noqa: ARG001  (a check takes the value)
    """Accept every value: the pattern decides."""
    return True


def is_value(value: str) -> bool:
    """Return whether a value names something by itself, in few words."""
    plain = value.strip()
    return (
        0 < len(plain) <= MAX_VALUE
        and len(plain.split()) <= _MAX_WORDS
        and "\u0001" not in plain
        and _POINTING.match(plain) is None
        and _OPEN_END.search(plain) is None
    )


def is_liked(value: str) -> bool:
    """Return whether a value is what a person may like in general, and not a thing of this conversation."""
    return (
        is_value(value)
        and re.match(r"^(?:to|the|an?) (?:do|have|go|get|use|make|be|know|only)\b", value, _I) is None
        and re.match(r"^(?:the|my|our) ", value, _I) is None
    )


def is_preferred(value: str) -> bool:
    """Return whether a value is a preference in general."""
    return is_value(value) and re.match(r"^(?:the|an?) (?:first|second|third|other|latter|former)\b", value, _I) is None


def is_food(value: str) -> bool:
    """Return whether a value may be food or drink."""
    return is_liked(value) and len(value.split()) <= 6


def is_allergen(value: str) -> bool:
    """Return whether a value may be something to be allergic to; work and Mondays are jokes."""
    return (
        is_value(value)
        and re.search(
            r"\b(?:work(?:ing)?|mondays?|mornings?|exercise|meetings?|bullshit|stupidity|"
            r"stupid people|people|nonsense|"
            r"homework|fun|commitment|you|drama|effort|maths?)\b",
            value,
            _I,
        )
        is None
    )


def is_place(value: str) -> bool:
    """Return whether a value may be a town, region, country or address."""
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
    return is_job(value) and bool(plain) and plain.split()[-1].strip(".,") in _PROFESSIONS


def is_employer(value: str) -> bool:
    """Return whether a value may be the name of an employer: capitalised, or "a" something."""
    plain = value.strip()
    if not is_value(plain) or len(plain.split()) > 7:
        return False
    if re.match(
        r"^(?:home|night|nights|a distance|the (?:moment|weekend|office|same|top|bottom)|\d+\w*|least|once|my|it|"
        r"first|present|all|times|minimum|both)\b",
        plain,
        _I,
    ):
        return False
    return plain[0].isupper() or re.match(r"^(?:an? \w|the [A-Z])", plain) is not None or plain == plain.lower()


def is_firm(value: str) -> bool:
    """Return whether a value is written as the name of an employer."""
    return is_employer(value) and re.match(r"^(?:the )?(?-i:[^\W\d_a-z])", value) is not None


def is_condition(value: str) -> bool:
    """Return whether a value names an illness or disability."""
    return is_value(value) and _CONDITION.search(value) is not None and len(value.split()) <= 5


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
        and all(word[0].isupper() and not word.isupper() for word in words)
        and not any(word.casefold() in LANGUAGES or word.casefold() in _PROFESSIONS for word in words)
    )


def is_age(value: str) -> bool:
    """Return whether a number may be a person's age."""
    return value.isdigit() and 3 < int(value) < 120


def is_date(value: str) -> bool:
    """Return whether a value is a day, month or year."""
    return _DATE.match(value.strip()) is not None


def is_timezone(value: str) -> bool:
    """Return whether a value names a time zone."""
    return _TIMEZONE.match(value.strip()) is not None


def is_language(value: str) -> bool:
    """Return whether a value begins with a language."""
    words = [word.strip(",.").casefold() for word in value.split()]
    return any(word in LANGUAGES for word in words[:2])
