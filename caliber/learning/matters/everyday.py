"""Rules of what people tell in passing: fields and places of work, houses, ages, medicine."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters.patterns import AM, HAVE, WE, rule

_FIELD: Final = (
    r"(?P<v>(?:(?:web|software|real|social|human|customer|mental|health|law|private|public|event|supply|early|"
    r"special|cyber|data|digital|higher|financial|medical|elderly|child|interior|graphic|video|game|renewable|clean) "
    r")?(?:construction|finance|tech|retail|healthcare|health care|education|marketing|sales|hr|insurance|"
    r"hospitality|logistics|media|advertising|publishing|banking|law|estate|politics|government|film|fashion|"
    r"agriculture|manufacturing|catering|pharma|biotech|aviation|cybersecurity|security|software|research|accounting|"
    r"accountancy|resources|work|childcare|care|service|support|admin|administration|procurement|recruitment|"
    r"recruiting|pr|communications|journalism|nursing|engineering|development|design|analytics|consulting|transport|"
    r"telecoms|energy|farming|forestry|tourism|events|management|planning|compliance|audit|tax|payroll|purchasing|"
    r"production|qa|gastronomy|a (?:[\w-]+ ){0,2}(?:school|hospital|bank|factory|warehouse|restaurant|kitchen|hotel|"
    r"supermarket|shop|call cent(?:re|er)|lab|library|office|nursery|kindergarten|care home|nursing home|pharmacy|"
    r"bakery|bar|cafe|café|pub|garage|museum|bookshop|bookstore|clinic|salon|startup|start-up|university|college|"
    r"prison|theatre)))"
)
_WORKPLACE: Final = (
    r"(?P<v>an? (?:[\w-]+ ){0,3}?(?:school|hospital|bank|factory|warehouse|restaurant|kitchen|hotel|supermarket|shop|"
    r"store|call cent(?:re|er)|lab|library|office|nursery|kindergarten|care home|nursing home|pharmacy|bakery|bar|"
    r"cafe|café|pub|garage|museum|bookshop|bookstore|clinic|salon|startup|start-up|university|college|law firm|firm|"
    r"company|charity|agency|gym|farm|vineyard|brewery|dental practice|practice|theatre|church|bike shop))"
)
_HOW: Final = r"(?:(?:from home|remotely|part[- ]time|full[- ]time|freelance|nights|days|as a temp|abroad) )*"
_PRESCRIBED: Final = (
    r"(?:(?:my |the )?(?:doctor|doc|dr|gp|physio|specialist|consultant|cardiologist|psychiatrist|nurse|hospital|"
    r"dermatologist|neurologist|they|she|he)(?:'s|'ve| has| have)? (?:just |now |finally |also )?)"
)
WORK: Final = (
    rule("job", rf"{WE}work(?:ing)? in {_FIELD}$", "works in {v}", words.is_value, single=True),
    rule("job", rf"{AM}(?:working|employed) in (?!an? ){_FIELD}$", "works in {v}", words.is_value, single=True),
    rule(
        "job",
        rf"{AM}in (?P<v>sales|marketing|finance|tech|construction|healthcare|hospitality|retail|insurance|logistics|"
        r"real estate|hr|advertising|publishing|banking|law enforcement|education|politics)(?: now)?$",
        "works in {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "employer",
        rf"{WE}work(?:ing)? {_HOW}(?:at|for) {_WORKPLACE}(?: (?:in|near|on) .+)?$",
        "works at {v}",
        single=True,
    ),
    rule("employer", rf"{WE}work(?:ing)? {_HOW}(?:at|for) V$", "works at {v}", words.is_firm, single=True),
    rule(
        "job",
        rf"{AM}(?:a |the )?(?P<v>stay[- ]at[- ]home (?:mum|mom|dad|parent|mother|father))$",
        "is a {v}",
        single=True,
    ),
    rule("job", r"we (?:run|own|opened|manage) (?P<v>(?:an?|our own) .+)$", "runs {v}", words.is_business, single=True),
    rule(
        "employer",
        rf"{HAVE}(?:gone|went|going|turned|become|became) (?P<v>self[- ]employed|freelance|independent)(?! in "
        rf"my)(?:,? (?:since|in|last|this|now|after|so|because|about|a|two|at) ?.*)?$",
        "is {v}",
        words.is_value,
        single=True,
        changes=True,
    ),
    rule(
        "job/shift",
        rf"{HAVE}(?:gone|went|going) (?P<v>part[- ]time|full[- ]time)(?:,? (?:since|in|last|this|now|after|so|"
        rf"because|"
        r"about|a|two|at) ?.*)?$",
        "works {v}",
        words.is_value,
        single=True,
        changes=True,
    ),
    rule(
        "job",
        r"(?:they|the school|my (?:boss|school|company|manager))(?:'ve| have|'s| has)? (?:just |now )?(?:given|gave|"
        r"assigned) me (?P<v>(?:year|grade|class) \w+)(?: instead| now)*$",
        "teaches {v}",
        words.is_value,
        single=True,
        changes=True,
    ),
    rule(
        "employer/company",
        r"(?:(?:my|our) (?:new )?(?:company|business|firm)(?:'s)? (?:name )?|(?:the )?company name )is (?:called |"
        r"now )?V$",
        "company is called {v}",
        words.is_firm,
        single=True,
    ),
    rule(
        "job",
        rf"{HAVE}(?:started|got|landed|accepted|taken|took|begun) (?:a |my |the )?(?:new )?(?:job|position|role|post)"
        r" as (?P<a>an? |the )?V$",
        "works as {a}{v}",
        words.is_job,
        single=True,
        changes=True,
    ),
    rule(
        "job/studies",
        rf"(?:{AM}|{HAVE}|i )(?:doing|do|started|starting|begun|pursuing|finishing|in the middle of) (?:my|a|an) "
        r"(?P<v>(?:phd|doctorate|master'?s?|mba|bachelor'?s?|degree|msc|bsc|apprenticeship|a-levels|gcses|"
        r"diploma)(?: degree)?(?: (?:in|on|of|at) .+)?)$",
        "studies: {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "job/studies",
        rf"{AM}in (?:my )?(?P<v>(?:first|second|third|fourth|fifth|final|last) year (?:of|at|in) (?:my )?(?:\w+ )?"
        r"(?:uni|university|college|school|high school|med school|phd|degree|master's|nursing|medicine|law)\b.*)$",
        "studies: {v}",
        single=True,
    ),
    rule(
        "job/studies",
        rf"{AM}(?:in )?(?:my |a )?(?P<v>(?:first|second|third|fourth|final|last|1st|2nd|3rd)[- ]year (?:[\w-]+ "
        rf"){{0,2}}"
        r"(?:student|of (?:college|university|uni|high school|medical school|law school|my (?:phd|degree))))$",
        "studies: {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "job/studies",
        rf"{HAVE}dropped out(?: of (?:my |the )?(?:uni|university|college|school|\w+ school|course|degree|phd)\b.*)?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "employer",
        rf"{HAVE}(?:found|got|landed|have) (?:a |some )?(?:new )?(?:job|work|position) (?:at|with|in) {_WORKPLACE}$",
        "works at {v}",
        single=True,
        changes=True,
    ),
    rule(
        "employer",
        rf"{HAVE}(?:found|landed|have) (?:a |some )?(?:new )?(?:job|work|position) (?:at|with) V$",
        "works at {v}",
        words.is_firm,
        single=True,
        changes=True,
    ),
    rule(
        "job",
        r"i(?:'ve| have)? (?:been |was |got |just )*(?:appointed|elected|named|hired as|hired on as|made) (?:as |to "
        r"be )?(?P<a>the )?V$",
        "works as {a}{v}",
        words.is_title,
        single=True,
        changes=True,
    ),
    rule(
        "job",
        r"i (?P<v>(?:bake|cook|write|paint|teach|drive|code|clean|sing|dance|garden|farm|fish|build \w+|fix \w+|sell "
        r"\w+|make \w+|grow \w+|restore \w+|repair \w+)) for a living$",
        "{v} for a living",
        single=True,
    ),
    rule(
        "other/volunteers",
        rf"{WE}volunteer(?:ing)? (?P<a>at|with) V(?: (?:on|every|once|twice) .+)?$",
        "volunteers {a} {v}",
    ),
    rule("other/volunteers", rf"{AM}volunteering (?P<a>at|with) V(?: on .+)?$", "volunteers {a} {v}"),
)
HOME: Final = (
    rule(
        "home",
        rf"{WE}live in (?P<v>the (?:countryside|suburbs|outskirts|north|south|east|west|cent(?:re|er))(?: of| near| "
        rf"outside)"
        r" (?-i:[A-Z]).*)$",
        "lives in {v}",
        single=True,
    ),
    rule(
        "home",
        rf"{WE}live in (?P<v>an? (?:[\w-]+ ){{0,3}}(?:village|town|suburb|house|flat|apartment|farm|cottage|place|"
        rf"city|"
        r"cabin|studio) (?:in|near|outside|by|close to|just outside|not far from) (?-i:[A-Z]).*)$",
        "lives in {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "home",
        rf"{HAVE}(?:just |finally )*(?:bought|got|rented|signed (?:a|the) lease (?:on|for)|got the keys to|"
        r"moved into|closed on) (?:an?|our|my|the)(?: [\w-]+){0,3}? (?:flat|house|apartment|place|home|condo|cottage|"
        r"studio|bungalow|townhouse|lease) in V$",
        "lives in {v}",
        words.is_known_place,
        single=True,
        changes=True,
    ),
    rule(
        "home",
        rf"{AM}(?:here|over here|down here|up here|out) in V$",
        "lives in {v}",
        words.is_known_place,
        single=True,
    ),
)
PERSON: Final = (
    rule("other/nationality", rf"{AM}(?P<v>(?:half[- ])?[A-Z][a-z]+)$", "is {v}", words.is_language, single=True),
    rule(
        "family/count",
        rf"{HAVE}(?:have|got) (?P<v>an? \d+[- ]?(?:month|year|week)s?[- ]?old(?: (?:baby|boy|girl|son|daughter|"
        rf"toddler))?)$",
        "has {v}",
    ),
    rule(
        "family/status",
        rf"{HAVE}been (?P<v>married) (?:for|since) .+$",
        "is {v}",
        single=True,
    ),
    rule("family/siblings", rf"{AM}an (?P<v>only child)$", "is an {v}", single=True),
    rule(
        "other/religion",
        rf"{AM}(?:an? )?(?P<v>christian|catholic|muslim|jewish|hindu|buddhist|sikh|atheist|agnostic|mormon|"
        rf"protestant|"
        r"quaker)$",
        "is {v}",
        single=True,
    ),
    rule(
        "other/temper",
        rf"{AM}(?:an? )(?P<v>(?:total |real |big )?(?:(?:morning|night|evening) (?:person|owl)|early bird|introvert|"
        r"extrovert|homebody|people person))$",
        "is a {v}",
        single=True,
    ),
    rule("birthday", r"my birthday(?:'s| is) in V$", "has birthday in {v}", words.is_date, single=True),
    rule(
        "family/status",
        r"(?:my|our|the) (?P<v>divorce) (?:came through|is (?:now )?(?:final|finali[sz]ed|done|through|official))$",
        "is divorced",
        single=True,
        changes=True,
    ),
    rule(
        "other/household",
        rf"{WE}(?:still |now |currently )*live with (?P<v>(?:my|our|a|two|three|four|some) [\w' -]+)$",
        "lives with {v}",
        single=True,
    ),
    rule(
        "age",
        rf"{AM}(?:an? )?(?P<v>\d{{1,3}})[- ]?(?:year|yr)s?[- ]?old(?: (?:[\w-]+ ){{0,3}}[\w-]+)?$",
        "is {v} years old",
        words.is_age,
        single=True,
    ),
    rule(
        "age",
        rf"{AM}(?P<v>\d{{2}})(?: years old| yo)?,? (?:and|but|so) (?:i|i'm|my|we|live|living|work|working|have|never|"
        rf"still|single|from|in|an?|married|"
        r"training|studying|feel|feeling|struggling|trying)\b.*$",
        "is {v} years old",
        words.is_age,
        single=True,
    ),
    rule("age", r"i have (?P<v>\d{2}) years old$", "is {v} years old", words.is_age, single=True),
    rule(
        "age",
        rf"{AM}(?P<v>\d{{2}})[ /,]?(?:f|m|female|male|nb)(?:,? and .+)?$",
        "is {v} years old",
        words.is_age,
        single=True,
    ),
    rule(
        "birthday",
        r"(?:i|we)(?:'ll| will|'m| am)? (?:turn|be|turning|hit|hitting) \d{1,3} (?P<a>on|in) (?:the )?V$",
        "has birthday {a} {v}",
        words.is_date,
        single=True,
    ),
    rule(
        "family/status",
        rf"{HAVE}(?:tied the knot|eloped)(?: (?:last|yesterday|on \w+day|in (?-i:[A-Z])\w+|this).*)?$",
        "is married",
        words.is_anything,
        single=True,
        changes=True,
    ),
    rule(
        "family/expecting",
        rf"{AM}expecting (?P<v>(?:(?:a|our|my) (?:baby|child|boy|girl|son|daughter|first|second|third|little one)|"
        r"twins)\b.*)$",
        "is expecting {v}",
        words.is_value,
    ),
    rule(
        "family/count kids",
        r"(?:my|our) (?:kids|children|boys|girls|sons|daughters|twins) are (?P<a>\d{1,2}(?:, \d{1,2})*,? (?:and|&) "
        r"\d{1,2})$",
        "has children of {a}",
        words.is_anything,
        single=True,
    ),
)
HEALTH: Final = (
    rule(
        "health/smoking",
        r"i (?P<v>smoke|vape)(?: (?:about |around )?(?:\d+|a pack|half a pack|a lot|too much).*)?$",
        "smokes",
    ),
    rule(
        "health/smoking",
        r"(?:i don't smoke|i've never smoked|i never smoke)$",
        "does not smoke",
        words.is_anything,
        single=True,
        changes=True,
    ),
    rule(
        "health/smoking",
        r"(?:i'm a non[- ]?smoker|i(?:'ve)? (?:quit|stopped|given up|gave up|kicked) (?:smoking|vaping|"
        r"cigarettes)\b.*|i(?:'ve| have)(?:n't| not) (?:smoked|vaped) (?:in|for|since)\b.*|i don't smoke "
        r"any ?more)$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "health",
        rf"{AM}(?:\d+|two|three|four|five|six|seven|eight|nine) (?:months?|weeks?) (?P<v>pregnant)$",
        "is {v}",
    ),
    rule(
        "diet",
        rf"(?:(?:i|we)(?:'ve| have)? )?been (?:doing|on|eating) (?:the )?(?P<v>{words.DIETS})\b.*$",
        "is on {v}",
        single=True,
        preference=True,
    ),
    rule("allergy", rf"{AM}a (?:bit|little) allergic to V$", "is allergic to {v}", words.is_allergen, several=True),
    rule(
        "health/aid",
        r"i wear (?:my )?(?P<v>glasses|contacts|contact lenses|braces|dentures|orthotics)(?: (?:now|every day|all "
        r"the time|since .+|for (?:reading|driving)))?$",
        "wears {v}",
    ),
    rule("health", rf"{AM}(?P<v>left|right) handed$", "is {v}-handed"),
    rule("diet/avoids", r"i (?:don't|do not|never) (?P<v>drink)$", "does not {v} alcohol", preference=True),
    rule(
        "health",
        r"i (?:often |sometimes |always |regularly |still )*(?:get|suffer from) V$",
        "has {v}",
        words.is_illness,
    ),
    rule(
        "diet",
        rf"{_PRESCRIBED}(?:put|has) me (?:back )?on (?:an? |the )?(?P<v>[\w -]{{3,30}}? diet)$",
        "is on a {v}",
        words.is_value,
        single=True,
        changes=True,
    ),
    rule("diet", rf"{AM}the only (?P<v>{words.DIETS})\b.*$", "is {v}", single=True, preference=True),
    rule("diet", rf"{AM}(?P<v>vegan|vegetarian|pescatarian)s$", "is {v}", single=True, preference=True),
    rule(
        "diet",
        rf"it's (?P<v>{words.DIETS}) (?:rather than|instead of|not|over) (?P<was>{words.DIETS})$",
        "is {v}",
        single=True,
        preference=True,
        changes=True,
    ),
    rule("health", rf"{_PRESCRIBED}(?:put|started|got) me (?:back )?on V$", "takes {v}", words.is_medicine),
    rule(
        "health",
        rf"(?:{HAVE}|{AM})(?:been |was |got |just |now )*(?:prescribed|put on|taking|started taking|started on) "
        r"(?P<v>(?!.*\b(?:ibuprofen|paracetamol|aspirin|tylenol|advil)\b).+)$",
        "takes {v}",
        words.is_medicine,
    ),
    rule(
        "health",
        r"(?:my|the) (?:doctor|doc|gp|consultant|specialist) (?:says|said|thinks|confirmed|told me)(?: that)? (?:i "
        r"have|i've got) V$",
        "has {v}",
        words.is_illness,
    ),
    rule(
        "allergy",
        r"V (?:gives? me (?:hives|a rash|migraines)|makes? me (?:break out|swell up|itch))$",
        "does not tolerate {v}",
        words.is_food,
    ),
    rule("allergy", r"V (?:doesn't|don't|does not|do not) agree with me$", "does not tolerate {v}", words.is_food),
)
RULES: Final = (*WORK, *HOME, *PERSON, *HEALTH)
