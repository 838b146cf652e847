"""Patterns of what people tell about themselves: name, home, work, family and pets, allergy and diet, taste, plans.

Each is tried at the beginning of a clause in the first person, and ends where the clause does or a word goes on that
cannot belong to the value. A pattern is here for its precision: a language model finds the rest.
"""

from __future__ import annotations

import re
from typing import Final

from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import PersonAttribute

_FUNCTION = """
a an the this that these those it i me my mine we us our you your he him his she her they them their one ones who what
which when where why how if whether as and or but nor so than then because since though although while until till to in
on at for from with without by of off up down out over under about into onto like is are was were be being been am do
does did done has have had having will would can could shall should may might must not no any some every each all both
more most much many less few such there here now just only too also very really quite even still yet again option
version answer idea plan first second third last next other another same way part sorry
"""
_JOBS = """
accountant actor actress analyst architect artist assistant astronomer attorney baker barber barista bartender biologist
bookkeeper bricklayer builder butcher carer caregiver carpenter cashier chef chemist cleaner clerk coach consultant cook
copywriter dentist designer dev developer director doctor driver economist editor electrician engineer farmer
firefighter florist freelancer gardener geologist hairdresser historian illustrator journalist lawyer lecturer librarian
manager mechanic midwife musician nurse nutritionist optician painter paramedic pharmacist photographer physicist
physiotherapist pilot plumber producer professor programmer psychiatrist psychologist receptionist recruiter researcher
scientist secretary singer soldier sommelier student surgeon surveyor tailor teacher technician therapist trainer
translator tutor vet waiter waitress welder writer
"""
_TONGUES = """
afrikaans albanian amharic arabic armenian basque bengali bulgarian burmese cantonese catalan chinese croatian czech
danish dutch english esperanto estonian farsi filipino finnish flemish french galician georgian german greek gujarati
hausa hebrew hindi hungarian icelandic igbo indonesian irish italian japanese kannada khmer korean kurdish lao latin
latvian lithuanian malay maltese mandarin marathi mongolian nepali norwegian pashto persian polish portuguese punjabi
romanian russian serbian slovak slovene somali spanish swahili swedish tagalog tamil telugu thai tibetan turkish
ukrainian urdu uzbek vietnamese welsh xhosa yiddish yoruba zulu
"""
_SOFTWARE = (
    "Linux|Windows|Mac|macOS|Ubuntu|Debian|Fedora|Python|Rust|Java|Kotlin|Go|Kubernetes|Docker|React|Vue|Postgres"
)
_PARTS: Final = {
    "NOT": "|".join(_FUNCTION.split()),
    "DAY": r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?|today|tomorrow|yesterday",
    "MONTH": "january|february|march|april|may|june|july|august|september|october|november|december",
    "NUMBER": r"(?:\d{1,2}|one|two|three|four|five|six|seven|eight|nine|ten)",
    "CLOSE": "sister|brother|wife|husband|partner|spouse|girlfriend|boyfriend|fiancée?|fiancee?|gf|bf|son|daughter|kid"
    "|child|baby|mom|mum|mother|dad|father|uncle|aunt|cousin|niece|nephew|grand(?:ma|mother|pa|father|dad|son|daughter"
    ")|step(?:son|daughter|mother|father)|friend",
    "RELATIVE": r"(?:(?:older|elder|younger|little|big|oldest|youngest|twin|best) )?(?:<CLOSE>)(?:-in-law)?",
    "ANIMAL": "(?:dog|cat|puppy|kitten|rabbit|bunny|hamster|parrot|bird|budgie|canary|cockatiel|horse|pony|goldfish|fi"
    "sh|turtle|tortoise|snake|lizard|gecko|guinea pig|ferret|chicken|labrador|beagle|poodle|corgi|dachshund|husky|grey"
    "hound)",
    # A capital letter begins a name.
    "CAP": r"(?-i:[^\W\d_a-zß-öø-ÿ])[\w'&-]*",
    "NAMED": rf"(?!(?:<DAY>|<MONTH>|i'm|(?-i:Is|Has|And|But|The|A|I|My|We|So|Or|In|On|At|For|To|{_SOFTWARE}))"
    r"\b)<CAP>",
    "SAINT": r"(?:(?-i:St|Mt|Ft)[.\u2024] )?",
    "ORG": "(?:the )?<SAINT><NAMED>(?: (?:(?:of|and|&|de|the) )?<SAINT><NAMED>){0,4}",
    "SOME": r"an? (?:(?!at\b|in\b)[\w-]+ ){0,2}(?:company|startup|bank|agency|studio|school|hotel|hospital|bakery|clin"
    r"ic|"
    "shop|store|warehouse|restaurant|university|library|museum|factory|farm|firm|café|cafe|bar|pub)",
    "NAME": "(?P<v><NAMED>(?:[ -]<NAMED>){0,3})",
    "PLACE": "(?P<v>(?:the )?<SAINT><NAMED>(?:,? (?:(?:de|del|la|le|las|los|of|the|upon|am|do|da) )?<SAINT><NAMED>){0,"
    "4})",
    "EMPLOYER": "(?P<v>(?:<SOME>(?:,| called| named) )?<ORG>|<SOME>)(?P<in> in <ORG>)?",
    "JOB": r"(?:(?!(?:at|for|with|in|on|and|or|who|bit|huge|big)\b)[\w-]+ ){0,3}(?:<JOBS>)",
    "JOBS": "|".join(_JOBS.split()),
    "WORD": r"(?!(?:<NOT>|<DAY>)\b)[^\W\d_][\w'-]*",
    "THING": "<WORD>(?: <WORD>){0,2}",
    "THINGS": "(?P<v><THING>(?:(?:, <THING>){0,5},? (?:and|or|&) <THING>)?)",
    "DATE": r"(?P<v>(?:(?:the )?\d{1,2}(?:st|nd|rd|th)?(?: of)? (?:<MONTH>)|(?:<MONTH>) (?:the )?\d{1,2}(?:st|nd|rd|th"
    r")?)(?:,? (?:19|20)\d\d)?)",
    "TONGUE": f"(?:{'|'.join(_TONGUES.split())})",
    "DIET": "vegan|vegetarian|pescatarian|(?:gluten|lactose)[- ](?:free|intolerant)|halal|kosher|keto",
    "ILL": "asthma|(?:type [12] )?diabetes|epilepsy|migraines?|arthritis|high blood pressure|hypertension|a pacemaker|"
    "(?:celiac|coeliac|crohn'?s|heart|kidney|liver) disease|a heart condition|adhd|anxiety|depression|eczema|a bad (?:"
    "back|knee|hip|shoulder)|insomnia|an(?:a)?emia|glaucoma",
    "EVENT": r"(?:(?!<NOT>)[\w'-]+ )?(?:wedding|surgery|operation|exam|interview|flight|appointment|driving test|gradu"
    r"ation|"
    "concert|recital|marathon|race|check-?up|hearing|audition|presentation|funeral|reunion|due date|tournament)",
    "ADVERBS": "(?:(?:really|just|currently|now|still|also|actually|always|usually|mostly|officially|finally|recently|"
    "already|both|originally|absolutely|totally|do|have|'ve|only|so|very|mainly) ){0,3}",
    "I": "(?:i|we)(?:'ve)? <ADVERBS>",
    "AM": r"(?:i am|i'?m|we are|we'?re|i(?:'?ve| have) been) <ADVERBS>",
    "MOVED": "pushed|moved|postponed|rescheduled|delayed",
    "MY": "(?:my|our) ",
    "IS": "(?: is| are|'s)?(?: (?:booked|planned|scheduled|set|fixed))? ",
}
_END = (
    r"(?=\W*$|[,;:!?()]|\.\s| (?:and|but|so|because|since|though|now|right|currently|these|too|also|myself|as|btw|by|a"
    r"gain|actually|please|during|last|this|yesterday|{})\b)"
)
_ENDS: Final = {True: _END.format(r"in (?:19|20)\d\d"), False: _END.format("at|for|with|in|from|on|near|where")}
"""The end of a pattern with a list of things, and of another one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, and the fact that it states: ``content`` with the groups of the pattern, ``v`` the value.

    Of a ``single`` matter a person has one value at a time; ``several`` makes one fact of each member of a list;
    ``changes`` says that it was otherwise until now. A ``dated`` value needs a day in it.
    """

    attribute: PersonAttribute
    slot: str
    content: str
    pattern: re.Pattern[str]
    single: bool
    several: bool
    changes: bool
    dated: bool
    ends: bool


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern with the parts that it names in capitals."""
    while (filled := re.sub(r"<([A-Z]+)>", lambda found: _PARTS[found[1]], pattern)) != pattern:
        pattern = filled
    return re.compile(pattern, re.IGNORECASE)


def _rules(table: str, *, ends: bool = False) -> tuple[Rule, ...]:
    """Return the rules of a table: a matter, its signs, the fact, and the pattern.

    The signs: 1 single, + several, ~ changes, @ dated. A line that begins with blanks goes on with the one before.
    """
    rules = []
    for line in table.replace("\n  ", "").strip().split("\n"):
        head, content, pattern = (part.strip() for part in line.split(" | ", 2))
        matter, _, signs = head.partition(" ")
        attribute, _, slot = matter.replace("_", " ").partition("/")
        whole = pattern if "@" in signs else f"(?:{pattern}){_ENDS['+' in signs]}"
        single, several, changes, dated = (sign in signs for sign in "1+~@")
        kind = PersonAttribute(attribute)
        rules.append(Rule(kind, slot, content, _compiled(whole), single, several, changes, dated, ends))
    return tuple(rules)


RULES: Final = _rules(r"""
name      1 | is called {v} | my (?:full |first )?name(?:'?s| is) (?P<v><CAP>(?:[ -]<NAMED>){0,3})
name      1 | is called {v} | my name(?:'?s| is) (?P<v>(?!(?:not|this|that|it|here|there)\b)(?-i:[a-zß-öø-ÿ])[\w'-]*)
  (?=\W*$|[,.!]| and| from)
name      1 | is called {v} | (?:you (?:can|may) |please |just )*call me <NAME>(?=\W*$)
age       1 | is {v} years old | <AM>(?P<v>[1-9]\d?|1[01]\d) (?:years old|y/?o)
age       1 | is {v} years old | <AM>(?P<v>[6-9]|[1-9]\d)(?= now\b|\W*$|,(?! \d))
age      1~ | is {v} years old | <I>turned (?P<v>[1-9]\d?)
birthday  1 | has birthday on {v} | my (?:birthday|bday)(?:'?s| is) (?:on )?<DATE>
birthday 1@ | has birthday {v} | my (?:birthday|bday)(?:'?s| is) (?P<v>(?:today|tomorrow|on \w+day).*)
birthday  1 | was born on {v} | i was born on <DATE>
home      1 | lives in {v} | (?:<I>(?:live|reside)|i(?:'ve| have) lived) (?:alone )?(?:in|near|outside) <PLACE>
home      1 | lives in {v} | (?:<AM>(?:based|living)|<I>been living) in <PLACE>
home     1~ | lives in {v} | (?:<I>|(?:(?:just|recently|finally) ){1,2})(?:moved|relocated) (?:from <ORG> )?(?:back )?t
  o <PLACE>
employer  1 | works at {v}{in} | (?:<I>work|<AM>(?:working|employed)) (?:at|for|by) <EMPLOYER>
employer 1~ | works at {v}{in} | <I>(?:started (?:work(?:ing)? |a (?:new )?job )?|got (?:a|the) (?:new )?job )(?:at|wit
  h) <EMPLOYER>
employer  1 | works at {v}{in} | <AM>(?:an? |the )<JOB> (?:at|for|with) <EMPLOYER>
job       1 | works as {a}{v} | <I>work (?:(?:at|for|in) .{2,40}? )?as (?P<a>an? |the )?(?P<v><JOB>)
job       1 | works as {a}{v} | <AM>(?P<a>an? |the )(?P<v><JOB>)
job       1 | works as {v} | <AM>(?P<v><JOBS>)
job       1 | is {v} | <AM>(?P<v>retired|unemployed|self-employed)
family/{r} | {r} is called {v} | <MY>(?P<r><RELATIVE>)(?:'s name)? is (?:called |named )<NAME>
family/{r} | {r} is called {v} | <MY>(?P<r><RELATIVE>)'s name is <NAME>
family/{r} | {r} is called {v} | <I>(?:got |have )?an? (?P<r><RELATIVE>) (?:called|named) <NAME>
family/{r} 1 | has {v} | <I>have (?P<v><NUMBER> (?P<r>kids|children|sons|daughters|siblings|sisters|brothers)(?:,? (?:c
  alled )?<NAMED> and <NAMED>)?)
family/status 1 | is {v} | <AM>(?P<v>married|divorced|widowed|engaged)
pet/{r}   1 | {r} is called {v} | <MY>(?P<r><ANIMAL>)(?: is(?: called| named)?|'s name is) (?!<TONGUE>)<NAME>
pet/{r} | {r} is called {v} | <I>(?:got |have |adopted )?an? (?:[a-z]+ )?(?P<r><ANIMAL>) (?:called|named) <NAME>
pet/{r} | has {v} | <I>(?:have|own|got) (?P<v>an? (?:(?:big|small|little|young|old|new|rescue) )?(?P<r><ANIMAL>))
pet/{r}s  1 | has {v} | <I>(?:have|own|got) (?P<v><NUMBER> (?P<r><ANIMAL>)s)
allergy   + | is allergic to {v} | <AM>(?:[a-z]+ly |a bit |very )?allergic to <THINGS>
allergy | has a {v} allergy | <I>have an? (?:(?!<NOT>)[a-z]+ )?(?P<v><WORD>) allergy
diet/way  1 | is {v} | <AM>(?:an? )?(?:strict |strictly )?(?P<v><DIET>)
diet/way  1 | eats {v} | <I>(?:eat|follow|do) (?:an? )?(?:strict |strictly )?(?P<v><DIET>)(?: diet)?
diet      + | avoids {v} | <I>(?:don'?t|do not|never|can'?t|cannot) (?:eat|drink) <THINGS>
health | has {v} | (?:<I>(?:have|suffer from)|i(?:'ve| have) had) (?P<v><ILL>)
health | is {v} | <AM>(?P<v>diabetic|asthmatic|epileptic|pregnant|celiac|coeliac|colou?r-?blind|deaf)
health | has {v} | <I>(?:was |been )?diagnosed with (?P<v>(?:type \d )?<THING>)
likes     + | likes {v} | <I>(?:like|love|enjoy|adore|prefer) <THINGS>(?: (?:to|over) .{2,60})?
likes/favorite_{x} 1 | favorite {x}: {v} | my fav(?:ou?rite)? (?P<x><WORD>(?: <WORD>)?) (?:is|are) (?:the )?(?P<v><THIN
  G>)
dislikes  + | dislikes {v} | <I>(?:(?:don'?t|do not) (?:like|enjoy)|can'?t stand|hate|dislike|detest|loathe) <THINGS>
language  + | speaks {v} | <I>speak (?P<v><TONGUE>(?:(?:, (?:and )?| and )<TONGUE>){0,5})
language | speaks {v} (native) | my (?:(?:native|first) language|mother tongue) is (?P<v><TONGUE>)
language | speaks {v} (native) | (?P<v><TONGUE>) is my (?:(?:native|first) language|mother tongue)
language | is learning {v} | (?:<AM>|<I>started )learning (?P<v><TONGUE>)
plan/{x} 1@ | is {a} to {x} {v} | <AM>(?P<a>going|flying|travell?ing|moving|driving|heading|off) to (?P<x><ORG>) (?P<v>
  .*)
plan/{x} 1@ | is going to {x} {v} | <I>(?:will |'ll )(?:go|fly|travel|move|drive) to (?P<x><ORG>) (?P<v>.*)
plan/{x} 1@ | {x} {v} | <MY>(?P<x><EVENT>)<IS>(?P<v>.*)
plan/{x} 1@ | {x} {v} | <I>(?:got |have |got a |have a |have an |have my )(?:an? |my )?(?P<x><EVENT>) (?P<v>.*)
plan/{x} 1@~ | {x} {v} | (?:(?:they(?:'ve| have)? |<I>)?(?:<MOVED>) (?:my|our|the) (?P<x><EVENT>)|(?:my|our|the) (?P<e>
  <EVENT>)(?: is| was| got| has been|'s been) (?:<MOVED>)) (?:back )?(?:to|till|until) (?P<v>.*)
plan/wedding 1@ | is getting married {v} | <AM>getting married (?P<v>.*)
""")
"""Statements in the first person; of a relative they are read so too."""
ENDS: Final = _rules(
    r"""
employer |  | <I>(?:quit|left|resigned from) <EMPLOYER>(?=\W*$)
employer |  | <I>(?:quit|left|lost) (?:my|the) job
employer |  | (?:<I>|i was )(?:got )?(?:laid off|fired)(?: (?:from|by) (?P<v><ORG>))?
home     |  | <I>(?:left|moved away from|moved out of) <PLACE>(?=\W*$)
family/{r} |  | <I>broke up with (?:my )?(?P<r><RELATIVE>)
plan/{x} |  | (?:my|our|the) (?P<x><EVENT>) (?:is|was|got|has been|is now) (?:cancell?ed|off|called off)
diet/way |  | <I>eat meat (?:again|now)
diet +   |  | <I>(?:eat|drink) (?!meat\b)<THINGS> (?:again|now)
family/* |  | (?:me and (?P<v><NAMED>)|(?P<w><NAMED>) and (?:i|me))(?: have| just)? (?:broke|split|broken) up
diet/way |  | <I>(?:gave|given) up (?:on |being )?(?P<v><DIET>)
likes    |  | <I>(?:gave up|given up|stopped) <THINGS>(?=\W*$)
""",
    ends=True,
)
"""Statements that something is over."""
DENIED: Final = _rules("employer |  | <AM>(?:at|with) <EMPLOYER>")
"""Statements that only their denial makes certain: "I'm not at Siemens any more"."""
GREETED: Final = _rules("name 1 | is called {v} | (?:i'?m|i am) (?!(?:<TONGUE>|american)\\b)<NAME>(?=\\W*$|, )")
"""A name behind a greeting: "Hi, I'm Maria"."""
GONE: Final = _compiled(
    r"(?:<MY>(?P<r><RELATIVE>|<ANIMAL>)(?: (?P<n><NAMED>))?|(?P<name><NAMED>))(?: has| just)? (?:died|passed away)(?="
    r"\W*$| (?:on|in|at|of|from|last|this|yesterday|today)\b)"
)
APPOSITION: Final = _compiled(r"\b<MY>(?P<r><RELATIVE>|<ANIMAL>),? (?P<v>(?!(?:<TONGUE>)\b)<NAMED>)(?<!'s)(?![\w'-])")
"""A relative or pet with its name, wherever a sentence has it: "my dog Rex"."""
THIRD: Final = _compiled(
    "<MY>(?P<r><RELATIVE>)(?:,? (?P<n><NAMED>),?)? (?P<no>no longer )?(?P<verb>is|'s|has|[a-z]+s|moved|started|doesn'?"
    "t|can'?t|quit|left|got) "
)
"""A clause about a relative, as far as its verb."""
ANIMAL: Final = _compiled("<ANIMAL>")
ONLY: Final = frozenset(("wife", "husband", "partner", "spouse", "girlfriend", "boyfriend", "mother", "father"))
"""Relatives of whom a person has one at a time."""
