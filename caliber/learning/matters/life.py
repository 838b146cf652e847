"""Rules of a person's life: name, age, home, work, languages, health."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters.patterns import ADVERBS, AM, FIRM, HAVE, NAME, WE, rule

HOME: Final = (
    rule(
        "home",
        rf"{WE}(?:live|reside|stay permanently|am based|am living)(?: here)? (?:now )?(?:in|near|outside|at) V$",
        "lives in {v}",
        words.is_home,
        single=True,
    ),
    rule(
        "home",
        rf"{AM}(?:living|based|located|residing|settled) (?:now )?(?:in|near|out of) V$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule(
        "home",
        rf"{HAVE}(?:moved|relocated|settled|emigrated|immigrated)(?: (?:back|over|here|house)| in with .+?){{0,2}}"
        rf"(?: from (?P<was>.+?))? (?:to|in|into) V$",
        "lives in {v}",
        words.is_place,
        single=True,
        changes=True,
    ),
    rule(
        "home",
        r"(?:my|our) (?:home|house|flat|apartment|place|new home|new place) is (?:now )?in V$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule(
        "home",
        r"(?:my|our) (?:home ?town|home city|city|current city|home address|address|new address|location) is (?:now "
        r")?V$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule(
        "home",
        r"(?:i|we) (?:no longer|don't|do not) (?:live|"
        "reside) in V$",
        "lives in {v}",
        words.is_place,
        ends=True,
    ),
    rule("home", rf"{AM}(?:no longer|not) (?:living|based) in V$", "lives in {v}", words.is_place, ends=True),
    rule(
        "home",
        rf"{HAVE}ended up (?:moving to|living in|in) V$",
        "lives in {v}",
        words.is_place,
        single=True,
        changes=True,
    ),
    rule("home", rf"{AM}no longer in V$", "lives in {v}", words.is_town, ends=True),
    rule("home", rf"{AM}not in V any ?(?:more|longer)$", "lives in {v}", words.is_town, ends=True),
    rule(
        "home",
        r"(?:.*, )?(?P<v>(?-i:[A-Z])[\w'-]*(?: (?-i:[A-Z])[\w'-]*)*) is (?:my |our )?(?:new )?home(?: now)?$",
        "lives in {v}",
        words.is_town,
        single=True,
        changes=True,
    ),
    rule("home", rf"(?:{HAVE})?(?:left|moved (?:away from|out of)) V$", "lives in {v}", words.is_place, ends=True),
    rule("home", r"i used to live in V$", "lives in {v}", words.is_place, ends=True),
    rule(
        "home",
        rf"{AM}(?:back )?in V (?:now|myself|these days|nowadays|as of .+|since (?:\d+|two|three|four|five|many|a "
        rf"few) "
        r"years|since \d{4})$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule("home", rf"{AM}V[- ]based$", "lives in {v}", words.is_town, single=True),
    rule(
        "home",
        rf"{WE}rent (?:an? |our |my )?(?:[a-z]+ )?(?:flat|house|apartment|studio|place|room|home|"
        r"condo|cottage|bungalow) in V$",
        "lives in {v}",
        words.is_town,
        single=True,
    ),
    rule(
        "home",
        r"(?:i've|i have|we've|we have) been (?:living )?in V for (?:\w+ ){0,3}(?:years?|months?)(?: now)?$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule(
        "home",
        r"(?:i've|i have|we've|we have) been (?:living|based) in V$",
        "lives in {v}",
        words.is_place,
        single=True,
    ),
    rule("other/origin", rf"{AM}(?:originally )?from V$", "comes from {v}", words.is_place, single=True),
    rule("other/origin", r"i come from V$", "comes from {v}", words.is_place, single=True),
    rule("other/origin", rf"i {ADVERBS}grew up in V$", "grew up in {v}", words.is_place, single=True),
    rule("other/birthplace", rf"{AM}(?P<v>[A-Z][\w-]+)[- ]born$", "was born in {v}", words.is_town, single=True),
    rule("other/birthplace", r"i was born (?:and raised )?in V$", "was born in {v}", words.is_place, single=True),
)
WORK: Final = (
    rule("job", rf"{AM}(?P<a>an? |the )V$", "works as {a}{v}", words.is_profession, single=True),
    rule("job", rf"{WE}work(?:ing)? as (?P<a>an? |the )V$", "works as {a}{v}", words.is_job, single=True),
    rule(
        "job",
        rf"{AM}(?:working|employed|freelancing) as (?P<a>an? |the )V$",
        "works as {a}{v}",
        words.is_job,
        single=True,
    ),
    rule(
        "job",
        r"(?:my|i'm) (?:job|profession|occupation|current job|new job|day job|role|job title|title) is (?:now "
        r")?(?:being |working as )?(?P<a>an? |the )?V$",
        "works as {a}{v}",
        words.is_job,
        single=True,
    ),
    rule(
        "job",
        rf"{HAVE}(?:became|become|retrained as|started (?:working )?as|got promoted to|was promoted to|been promoted "
        rf"to|started a new job as|got a (?:new )?job as|switched careers? to) (?P<a>an? |the )?V$",
        "works as {a}{v}",
        words.is_job,
        single=True,
        changes=True,
    ),
    rule("job", rf"i {ADVERBS}teach V$", "teaches {v}", words.is_value, single=True),
    rule(
        "job", r"i (?:run|own|have|opened|manage) (?P<v>(?:an?|my own) .+)$", "runs {v}", words.is_business, single=True
    ),
    rule(
        "job",
        rf"{AM}(?P<v>retired|unemployed|self-employed|between jobs|a freelancer|freelancing)$",
        "is {v}",
        words.is_value,
        single=True,
    ),
    rule("job", rf"{HAVE}(?P<v>retired)$", "is {v}", words.is_anything, single=True, changes=True),
    rule(
        "employer",
        rf"{HAVE}(?:(?:quit|lost|left|resigned from) my (?:old )?job(?: as .+| at .+)?|resigned|"
        r"(?:got|was|been) (?:fired|laid off|let go|made redundant|sacked))$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule("employer", r"they (?:let me go|fired me|laid me off|sacked me)$", "", words.is_anything, ends=True),
    rule("employer", rf"{AM}(?:no longer|not) (?:working )?(?:at|with|for) V$", "", words.is_employer, ends=True),
    rule("job", rf"{AM}not an? V any ?(?:more|longer)$", "", words.is_profession, ends=True),
    rule("job", rf"{AM}no longer (?:working as )?(?:an?|the) V$", "", words.is_job, ends=True),
    rule("job", r"i no longer work as (?:an?|the) V$", "", words.is_job, ends=True),
    rule("employer", rf"{WE}work(?:ing)? (?:for|at) {FIRM}V$", "works at {v}", words.is_employer, single=True),
    rule(
        "employer",
        rf"{AM}(?:working|employed|now|currently)? ?(?:for|at|by) {FIRM}V$",
        "works at {v}",
        words.is_employer,
        single=True,
    ),
    rule(
        "employer",
        r"my (?:employer|company|new employer|new company) is (?:called |now )?V$",
        "works at {v}",
        words.is_employer,
        single=True,
    ),
    rule(
        "employer",
        rf"(?:{HAVE})?(?:joined|signed (?:on )?with|started (?:working )?(?:at|for)|started a (?:new )?job at|got "
        rf"(?:a|the) (?:new )?job at|switched (?:jobs )?to|got hired (?:at|by)) V$",
        "works at {v}",
        words.is_firm,
        single=True,
        changes=True,
    ),
    rule(
        "employer",
        r"(?:(?:i |we )?(?:switched|changed) (?:jobs|companies|employers?)|new (?:job|employer|company))[,:] (?:at |"
        r"with |it's )?V$",
        "works at {v}",
        words.is_firm,
        single=True,
        changes=True,
    ),
    rule("employer", rf"{AM}with V (?:now|these days)$", "works at {v}", words.is_firm, single=True),
    rule("employer", r"(?:now )?with V (?:now|these days)$", "works at {v}", words.is_firm, single=True, changes=True),
    rule("employer", r"i (?:don't|do not|no longer) work there$", "", words.is_anything, ends=True),
    rule("employer", r"i no longer work (?:for|at) V$", "", words.is_employer, ends=True),
    rule("employer", r"i (?:don't|do not) work (?:for|at) V any ?(?:more|longer)$", "", words.is_employer, ends=True),
    rule("employer", rf"(?:{HAVE})?(?:left|quit|resigned from) (?:my job at )?V$", "", words.is_firm, ends=True),
    rule("employer", r"i used to work (?:for|at) V$", "", words.is_employer, ends=True),
    rule("job/studies", rf"{AM}studying V$", "studies {v}", words.is_value, single=True),
    rule("job/studies", rf"i {ADVERBS}study V$", "studies {v}", words.is_value, single=True),
)
PERSON: Final = (
    rule(
        "name",
        r"my (?:full |real |first |actual )?name(?:'s| is) (?:now )?" + NAME + "$",
        "is called {v}",
        words.is_name,
        single=True,
    ),
    rule(
        "name",
        r"(?:please |you can |just )*call me " + NAME + r"(?: from now on| instead)?$",
        "is called {v}",
        words.is_name,
        single=True,
    ),
    rule("name", r"i go by " + NAME + "$", "is called {v}", words.is_name, single=True),
    rule("name", r"(?:i'm|i am) " + NAME + "$", "is called {v}", words.is_given_name, single=True),
    rule(
        "age",
        rf"{AM}(?P<v>\d{{1,3}})(?: ?(?:years? old|yrs? old|yo|y/o|years of age))?$",
        "is {v} years old",
        words.is_age,
        single=True,
    ),
    rule(
        "age",
        r"i(?:'ve)? (?:just )?turned (?P<v>\d{1,3})$",
        "is {v} years old",
        words.is_age,
        single=True,
        changes=True,
    ),
    rule("age", r"my age is (?P<v>\d{1,3})$", "is {v} years old", words.is_age, single=True),
    rule("birthday", r"my birth(?:day|date)(?:'s| is) (?:on )?V$", "has birthday on {v}", words.is_date, single=True),
    rule(
        "birthday",
        r"i was born (?:on |in )?(?P<v>[\w ,.]+?)(?: in (?-i:[A-Z])[\w, -]+)$",
        "was born on {v}",
        words.is_date,
        single=True,
    ),
    rule("birthday", r"i was born (?:on|in) V$", "was born on {v}", words.is_date, single=True),
    rule(
        "other/uses",
        rf"i {ADVERBS}(?:mostly |mainly )?(?:use|write|code in) V(?: at work)?$",
        "uses {v}",
        words.is_tool,
    ),
    rule("other/uses", rf"{AM}on (?P<v>[\w# +]+?)(?: like .+)?$", "uses {v}", words.is_tool),
    rule(
        "other/uses",
        rf"{HAVE}(?:switched|migrated)(?: over)?(?: from (?P<was>[\w#+ ]+?))? to V$",
        "uses {v}",
        words.is_tool,
        changes=True,
    ),
    rule("other/time zone", r"(?:my|our) time ?zone is V$", "is in time zone {v}", words.is_value, single=True),
    rule("other/time zone", rf"{AM}(?:in|on) (?:the )?V$", "is in time zone {v}", words.is_timezone, single=True),
    rule("language", r"(?:i|we) (?:can )?" + ADVERBS + r"speak V$", "speaks {v}", words.is_language, several=True),
    rule(
        "language",
        rf"{AM}(?:fluent in|bilingual in|a native speaker of) V$",
        "speaks {v}",
        words.is_language,
        several=True,
    ),
    rule("language", rf"{AM}(?:an? )?(?:fluent|native) (?P<v>\w+)(?: speaker)?$", "speaks {v}", words.is_language),
    rule(
        "language",
        r"my (?P<v>[a-z]+) is (?:\w+ )?(?:ok|okay|good|fluent|decent|fine|so-so|basic|rusty|great|native|perfect|"
        r"passable|conversational|[abc][12])\b.*$",
        "speaks {v}",
        words.is_language,
    ),
    rule("language", r"V (?:is|are) (?:my )?native(?: languages?)?$", "speaks {v}", words.is_language, several=True),
    rule(
        "language",
        r"my (?:native|first|mother) (?:language|tongue) is V$",
        "speaks {v}",
        words.is_language,
        several=True,
    ),
    rule(
        "language/learning",
        rf"{AM}learning (?:to speak )?(?P<v>[\w-]+)(?: for .+| because .+)?$",
        "is learning {v}",
        words.is_language,
    ),
    rule("language", r"i (?:don't|do not|no longer) (?:really |actually )?speak V$", "", words.is_language, ends=True),
    rule(
        "other/{x}",
        r"my (?P<x>email|e-mail|email address|pronouns|blood type|shoe size|nationality|religion|height|weight|"
        r"hourly rate|day rate|rate|salary|hobby|major|star sign|zodiac sign|hometown|landlord|license plate|"
        r"username|zip code|postcode|(?:policy|member|membership|customer|passport|insurance|account|client|student) "
        r"(?:number|id))(?:'s| is| are) V$",
        "{x}: {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "other/{x}",
        r"my (?:new |current )?(?P<x>boss|manager|doctor|dentist|therapist|teacher|trainer|coach|neighbou?r|roommate|"
        r"flatmate|best friend|landlord|accountant|lawyer|vet|assistant|mentor)(?:'s name)? is (?:called |"
        r"named )?" + NAME + "$",
        "{x} is called {v}",
        words.is_given_name,
        single=True,
    ),
    rule(
        "health",
        rf"{AM}(?P<v>diabetic|asthmatic|pregnant|left-handed|colou?r-?blind|deaf|blind|dyslexic|autistic|"
        r"celiac|coeliac|epileptic|hard of hearing|in a wheelchair|visually impaired|short-sighted|neurodivergent)$",
        "is {v}",
        words.is_value,
    ),
    rule(
        "health",
        rf"{HAVE}(?:have|got|been diagnosed with|suffer from|was diagnosed with|got diagnosed with) (?:an? |the )?V$",
        "has {v}",
        words.is_condition,
    ),
    rule(
        "health/injury",
        rf"{HAVE}(?:broken|broke|sprained|fractured|tore|torn|twisted|injured|dislocated) my (?P<v>\w+).*$",
        "hurt the {v}",
        words.is_value,
    ),
    rule("health", rf"i {ADVERBS}(?:take|am on|use) V$", "takes {v}", words.is_medicine),
    rule(
        "health",
        r"i(?:'ve| have)? (?:stopped|quit|no longer) (?:taking|take|using|use) V$",
        "",
        words.is_medicine,
        ends=True,
    ),
    rule("health", rf"{AM}off (?!to )V$", "", words.is_medicine, ends=True),
    rule(
        "health",
        r"my V (?:is|has|are) (?:gone|gone away|cleared up|healed|cured|over)$",
        "",
        words.is_condition,
        ends=True,
    ),
    rule("health", rf"{AM}on V$", "takes {v}", words.is_medicine),
    rule(
        "health/injury",
        r"(?:(?:the|my) )?(?:cast|sling|stitches|splint|brace) (?:came|is|are|comes|got taken|has come) (?:off|out)$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "health/injury",
        r"(?:.*, )?(?:my )?(?P<v>wrist|ankle|arm|leg|foot|knee|back|shoulder|hand|finger|toe|elbow|hip|neck|nose|"
        r"rib)(?:'s| is| has) (?:all |fully |completely )?(?:good|fine|healed|better|okay|ok|recovered)(?: again)?$",
        "",
        words.is_value,
        ends=True,
    ),
    rule(
        "other/phone number",
        r"(?:my )?new (?:phone |mobile )?number (?:since \w+|as of \w+|is|from now on)?:? ?V$",
        "phone number: {v}",
        words.is_number,
        single=True,
        changes=True,
    ),
    rule(
        "other/phone number",
        r"my (?:new |mobile |cell )?(?:phone|phone number|number|mobile|cell)(?:'s| is) V$",
        "phone number: {v}",
        words.is_number,
        single=True,
    ),
    rule("name", r"this is " + NAME + " (?:writing|speaking|here|again)$", "is called {v}", words.is_name, single=True),
)
PLANS: Final = (
    rule(
        "plan/{x}",
        r"(?:my|our) (?P<x>(?!.*\b(?:birthday|birth ?date|anniversary))[\w' -]{2,30}?)(?:'s| is) (?:now )?(?:on )?V$",
        "{x} on {v}",
        words.is_day,
        single=True,
    ),
    rule(
        "plan/{x}",
        r"(?:they|we|i)(?:'ve| have| had to)? (?:pushed?|moved?|postponed?|rescheduled?|shift(?:ed)?|changed?) (?:my|"
        r"our) (?P<x>[\w' -]{2,30}?)(?: (?:back|forward|up|out))? to (?:the )?V$",
        "{x} on {v}",
        words.is_when,
        single=True,
        changes=True,
    ),
    rule(
        "plan/{x}",
        r"(?:my|our) (?P<x>[\w' -]{2,30}?)(?:'s| is| was| got| has been| were)+ (?:pushed|moved|postponed|"
        r"rescheduled|shifted|changed)(?: (?:back|forward|up|out))? to (?:the )?V$",
        "{x} on {v}",
        words.is_when,
        single=True,
        changes=True,
    ),
    rule("plan/due date", r"(?:my |the )?due date is (?:on )?V$", "due date: {v}", words.is_day, single=True),
    rule(
        "plan/{x}",
        r"(?:my|our) (?P<x>(?:flight|train|bus|ferry|ship)(?: to [\w -]{2,20})?) (?:is|leaves|departs|goes)(?: on)? "
        r"(?P<v>.+?)(?: at \d.*)?$",
        "{x} on {v}",
        words.is_day,
        single=True,
    ),
    rule(
        "plan",
        rf"{HAVE}(?P<a>signed up|registered|enrolled|entered) (?P<b>for|in) (?:the |an? )?V$",
        "{a} {b} {v}",
        words.is_event,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>training|preparing|revising|studying) (?P<b>for) (?P<v>(?:the |an? |my )?.+)$",
        "is {a} {b} {v}",
        words.is_event,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>flying|going|travell?ing|moving|relocating|heading) (?P<b>to) (?P<v>(?-i:[A-Z])[\w' -]*? (?:in|"
        rf"on|next|"
        r"this|for) [\w ]+)(?:,.*)?$",
        "is {a} {b} {v}",
        words.is_trip,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>getting) (?P<b>married) (?P<v>(?:in|on|next|this) .+)$",
        "is {a} {b} {v}",
        words.is_value,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>doing|running|walking|taking|seeing|visiting) (?P<v>(?:the|an?) .+) instead$",
        "is {a} {v}",
        words.is_event,
    ),
    rule(
        "plan",
        rf"(?:{AM}|i )(?P<a>go|going) (?P<b>on) (?P<v>(?:maternity|paternity|parental|sick) leave(?: .+)?)$",
        "goes {b} {v}",
        words.is_value,
    ),
)

RULES: Final = (*PLANS, *PERSON, *HOME, *WORK)
