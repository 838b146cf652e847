"""Rules of a person's habits and duties: shifts, studies of a language, hobbies, roles, aids, conditions, dates."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters.patterns import AM, HAVE, WE, rule

_SHIFT: Final = (
    r"(?P<v>(?:(?:night|day|early|late|morning|evening|weekend|split|double|twelve-hour|12-hour) shifts?|nights|days|"
    r"earlies|lates|part[- ]time|full[- ]time))"
)
_BODY: Final = (
    r"acl|mcl|wrist|ankle|arm|leg|foot|knee|back|shoulder|hand|finger|toe|elbow|hip|neck|nose|rib|collarbone|"
    r"hamstring|meniscus|achilles|rotator cuff|thumb|jaw|calf|ligament|tendon|pulley|finger pulley|tibia|fibula|"
    r"pelvis"
)
_HEAD: Final = (
    r"(?:company|firm|agency|bank|hospital|school|startup|start-up|council|charity|clinic|plant|factory|warehouse|"
    r"studio|shop|restaurant|hotel|university|lab|publisher|law firm)"
)
_DOCTOR: Final = (
    r"(?:doctor|doc|dr|gp|physio|vet|dentist|specialist|consultant|midwife|cardiologist|pediatrician|surgeon)"
)

WORKING: Final = (
    rule(
        "job/shift",
        rf"(?:{WE}(?:work|do|am on|'m on)|{AM}(?:back )?(?:working|doing|on)|{HAVE}(?:switched|moved|changed|gone|"
        rf"went) (?:over |back )?to|they(?:'ve| have)? (?:\w+ )?(?:put|moved|switched) me (?:back )?(?:on|onto|to)) "
        rf"(?:the )?{_SHIFT}\b"
        r"(?: (?:at|in|for|on|as|now|as of|since|again|from|this|next) ?.*)?$",
        "works {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "job",
        r"i (?:now )?do (?P<v>(?!(?:this|that|it|a|an|the|my|some|not|everything|nothing|homework|favou?rs|things|"
        r"chores)\b)[\w -]{3,40}?) "
        rf"(?:for|at) (?P<a>(?:an? |the |my )?(?:[\w-]+ ){{0,2}}{_HEAD})(?:\b.*)?$",
        "does {v} for {a}",
        words.is_value,
        single=True,
    ),
    rule(
        "job",
        rf"(?:{WE}work|{AM}(?:working|employed)) (?:in|at|for) (?P<a>[\w' -]{{3,30}}?) as (?:an? |the )?V$",
        "works as {v} at {a}",
        words.is_profession,
        single=True,
    ),
    rule("job", rf"{AM}(?:working|employed) as V$", "works as {v}", words.is_title, single=True),
    rule("job", rf"{AM}(?:now |then )?V$", "works as {v}", words.is_plain_profession, single=True),
    rule("job", r"V here$", "works as {v}", words.is_plain_profession, single=True),
    rule(
        "employer",
        r"(?:i|we) (?:drive|deliver|fly|cook|code|consult|write|nurse|clean|freelance|trade|design) (?:for|at) V$",
        "works for {v}",
        words.is_firm,
        single=True,
    ),
    rule(
        "other/role",
        r"i (?P<a>chair|lead|run|coach|captain|manage|head|direct|conduct|organi[sz]e|train|volunteer (?:at|for|"
        r"with)) (?P<v>(?!.*\b(?:meeting|call|today|tomorrow|session|lunch)\b)(?:the|our|a|an|my) [\w' -]*\b(?:team|"
        r"club|society|choir|band|group|orchestra|league|committee|board|union|association|squad|troop|scouts|food "
        r"bank|shelter|library|garden)\b.*)$",
        "role: {a} {v}",
        words.is_value,
    ),
    rule(
        "other/role",
        rf"{HAVE}(?:been )?(?:voted out|stepped down|ousted|kicked out|resigned|removed|stood down) (?:as|from) .+$",
        "",
        words.is_anything,
        ends=True,
    ),
)
LEAVING: Final = (
    rule(
        "employer",
        r"(?:i(?:'ve| have)? )?(?:just |finally )?(?:quit|resigned from|walked out of|got fired from|got sacked from|"
        r"left(?= the (?:factory|firm|company|agency|bakery|startup|charity|council|warehouse)(?: (?:last|this|in)\b|"
        r"$))) (?:the|my) (?:bakery|factory|plant|shop|store|school|hospital|bank|firm|company|agency|office|"
        r"restaurant|bar|pub|cafe|café|hotel|warehouse|clinic|studio|salon|startup|council|charity|law firm|lab|"
        r"garage|place)(?: .+)?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "employer",
        r"i(?:'ve| have)? (?:just |finally )?(?:quit|resigned)(?: (?:today|yesterday|last \w+))?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "employer",
        r"(?:i'm |i am |i )?(?:starting|start|got a job|got the job|got an offer and start|been hired|got hired)(?: "
        r"work| a new job| my new job)? (?:at|with|for) V(?: on | in | next | as ).*$",
        "works at {v}",
        words.is_firm,
        single=True,
        changes=True,
    ),
    rule(
        "employer",
        r"(?:i'm |i am |i )?(?:starting|got a job|got the job|been hired|got hired)(?: work| a new job| my new job)? "
        r"(?:at|with) V$",
        "works at {v}",
        words.is_firm,
        single=True,
        changes=True,
    ),
    rule(
        "job", r"i (?:don't|do not|no longer|stopped|quit|gave up) teach(?:ing)? V$", "", words.is_anything, ends=True
    ),
    rule(
        "job",
        r"i (?:don't|do not|no longer|stopped|quit|gave up) (?:do|work|doing|working) (?:the )?(?:nights|days|night "
        r"shifts?|day shifts?|shifts)$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "job/shift",
        r"no more (?P<v>(?:(?:night|day|early|late|weekend) shifts?|nights|earlies|lates))(?: for me)?$",
        "",
        words.is_anything,
        ends=True,
    ),
)
LEARNING: Final = (
    rule(
        "language/learning",
        r"i(?:'ve| have)? (?:learn|been learning|started learning|started to learn|started) (?P<v>[\w-]+)(?: "
        r"(?:since|for|with|on|at|in|last|this) .+)?$",
        "is learning {v}",
        words.is_language,
    ),
    rule(
        "language/learning",
        rf"(?:my (?:\w+ )?level is|{HAVE}(?:have|got|passed|reached|made|finished|completed|am at|am on)|{AM}(?:at|"
        rf"on)?|now) ?(?:my |the |a |at |level )*"
        r"(?P<a>[a-z]+ )?(?P<v>[abc][12])\b(?: (?:level|exam|certificate|test))?(?: (?:of|in) [a-z]+)?(?: (?:since|"
        r"now|in|last|this) .*| now)?$",
        "has language level {v}",
        words.is_value,
        single=True,
    ),
    rule("language/learning", r"(?P<v>\w+ [abc][12])$", "has language level {v}", words.is_level, single=True),
    rule(
        "language",
        r"(?:i|we) (?:gave up|stopped|quit|dropped) (?:on )?(?:learning |my )?(?P<v>[\w-]+)(?: lessons| classes| "
        r"course)?$",
        "",
        words.is_language,
        ends=True,
    ),
)
TASTES: Final = (
    rule(
        "dislikes",
        r"(?:i|we) (?:(?:can't|cannot) (?:deal with|abide|tolerate|stomach)|have no time for|don't do|won't touch) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "dislikes",
        rf"{AM}(?:terrified|scared|afraid|frightened|petrified) of V$",
        "is afraid of {v}",
        words.is_liked,
        preference=True,
    ),
    rule(
        "dislikes",
        r"(?:i|we) (?:don't|do not|no longer) (?:mind|hate|dislike) V(?: any ?more| any longer| so much| now)?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "dislikes",
        r"V (?:is|are|isn't|aren't|'s) (?:\w+ )?(?:ok|okay|fine|alright|all right|so bad|that bad)(?: (?:with me|by "
        r"me|after all|now))*$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "dislikes",
        rf"{HAVE}(?:got|gotten|grown|become|am|'m) (?:used to|over my fear of|over|to like|fond of) (?:the )?V$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "likes",
        r"(?:i|we)(?:'ve| have)? (?:\w+ )?(?:gone off|went off|go off|fell out of love with|fallen out of love with|"
        r"lost interest in|got bored of|got sick of|had enough of|can't look at|given up on) (?:the )?V$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "likes",
        r"V (?:is|are|'s|has become|have become|became) (?:now |really |totally )?my (?:new )?(?:thing|jam|passion|"
        r"obsession|happy place|comfort food|addiction|weakness|everything|guilty pleasure)(?: now)?$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        r"V is (?:where my heart is|where it's at for me|the love of my life|the one for me)(?: now)?$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes/favorite {x}",
        r"(?P<v>[\w' -]{2,40}?) (?:became|has become|is now|are now|have become) my (?:all-time |absolute |new "
        r")?favou?rite (?P<x>[\w' -]{2,30})$",
        "favorite {x}: {v}",
        words.is_liked,
        single=True,
        preference=True,
    ),
    rule(
        "likes",
        rf"{AM}more (?:of )?an? (?P<v>[\w -]{{2,25}}?) (?:person|man|woman|guy|girl|type|kid|fan|lover)(?: really| "
        rf"myself| these days)?$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule("likes/drinks", rf"{AM}drinking V$", "drinks {v}", words.is_food, preference=True),
    rule(
        "likes/does",
        r"i (?:grow|breed|brew|restore|practi[sc]e|crochet|do(?= (?:yoga|pilates|karate|judo|crossfit|ballet|aikido|"
        r"taekwondo|bouldering|tai chi|origami|calligraphy|pottery|gymnastics|parkour|boxing|archery|martial arts|"
        r"jiu|bjj|weights)\b)|go(?= \w+ing\b)) (?P<v>(?!.*\b(?:up|out|tired|old|mad|crazy)\b)(?:my own "
        r")?[a-z][\w ' -]{2,40}?)(?: (?:every|on|at|with|in|once|twice|three|\d)\b.*| and nothing but .*)?$",
        "likes {v}",
        words.is_liked,
        several=True,
        preference=True,
    ),
    rule(
        "likes/does",
        r"i (?P<v>boulder|crochet|knit|snowboard|skateboard|garden|quilt|powerlift|birdwatch|longboard|windsurf|"
        r"kitesurf|freedive)(?: .*)?$",
        "likes to {v}",
        words.is_value,
        preference=True,
    ),
    rule(
        "likes",
        rf"(?:{AM}|{HAVE})(?:taking up|taken up|took up|picked up|picking up|got into|gotten into|getting into|"
        rf"learning|started|starting) (?:the |playing )?V (?:instead|now|these days)$",
        "likes {v}",
        words.is_liked,
        preference=True,
    ),
    rule(
        "other/keeps",
        r"i keep (?P<v>(?:\d+ |two |three |four |five |a few |some )?(?:hives|bees|chickens|hens|goats|sheep|pigs|"
        r"ducks|alpacas|quails?|geese|koi|beehives))\b.*$",
        "keeps {v}",
        words.is_value,
    ),
    rule("diet", r"(?P<v>" + words.DIETS + ") here$", "is {v}", words.is_value, single=True, preference=True),
    rule(
        "diet",
        r"(?:(?:my |the |being |going )?(?:veganism|vegetarianism|vegan|vegetarian|keto|paleo|pescatarian|diet|vegan "
        r"thing|veggie thing|keto thing|veganuary))(?: diet| thing)? (?:lasted|didn't last|did not last|is over|is "
        r"done|didn't work|did not work|went out of the window|went out the window|is off|is history).*$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "diet",
        rf"(?:{AM}|{HAVE})(?:back on|back to|eating|started eating|been eating) (?:the )?(?:meat|bacon|steak|burgers|"
        rf"chicken|beef|carbs|animals)(?: again)?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "diet",
        r"back (?:on|to|to eating|eating) (?:the )?(?:meat|bacon|steak|burgers|chicken|beef|carbs|fish|dairy|"
        r"eggs)(?: again)?$",
        "",
        words.is_anything,
        ends=True,
    ),
)
HEALTH: Final = (
    rule(
        "health",
        r"(?:the|our|my) baby(?:'s| is| has| was)* (?:here|born|arrived|come|finally here)\b.*$",
        "pregnant",
        words.is_anything,
        ends=True,
    ),
    rule(
        "health",
        r"(?:i|we)(?:'ve| have)? (?:had (?:the|my|our|a) baby|gave birth|given birth|lost the baby|"
        r"miscarried)(?:.*)?$",
        "pregnant",
        words.is_anything,
        ends=True,
    ),
    rule(
        "allergy",
        rf"{AM}not (?:actually |really )?allergic(?: to (?:anything|it|them))?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "health/aid",
        r"i (?:use|wear|walk with|have|need) (?:an? )?(?P<v>(?:walking )?stick|wheelchair|walker|cane|hearing aids?|"
        r"crutches|cpap|insulin pump|prosthe\w+|rollator|zimmer frame|stoma bag|mobility scooter|stairlift)(?:,? "
        r"(?:now|these days|since|because|when|to|and|so)\b.*)?$",
        "uses {v}",
        words.is_value,
    ),
    rule(
        "health",
        rf"{HAVE}(?:had|survived|suffered|have had) an? (?P<v>(?:\w+ )?(?:stroke|heart attack|miscarriage|concussion|"
        rf"hip replacement|knee replacement|transplant|bypass|c-section|"
        r"hernia|hysterectomy|seizure|tumou?r|mastectomy|slipped disc|burnout|brain injury))\b.*$",
        "had {v}",
        words.is_value,
    ),
    rule("health", r"(?:i've|i have) had (?:an? )?V$", "has {v}", words.is_condition),
    rule("health", rf"(?:.*, )?(?P<v>[\w -]{{3,30}}),? says (?:the|my) {_DOCTOR}$", "has {v}", words.is_condition),
    rule(
        "health/injury",
        rf"(?:{HAVE}|i've got |{AM})?(?:an? |my )?(?P<v>(?:torn|broken|sprained|fractured|dislocated|pulled|ruptured|"
        rf"twisted) (?:\w+ )?(?:{_BODY}))$",
        "{v}",
        words.is_value,
    ),
    rule(
        "health/injury",
        rf"(?:my )?(?P<v>(?:\w+ )?(?:{_BODY})) (?:is |got )?(?:snapped|broken|sprained|torn|fractured|dislocated|"
        rf"ruptured)$",
        "hurt the {v}",
        words.is_value,
    ),
    rule(
        "health",
        r"(?:my |the )?(?P<v>[\w ]{3,30}) (?:is|are|has gone|went|have gone) (?:now |all )?(?:back to normal|normal "
        r"again|under control|better now|in remission)$",
        "",
        words.is_anything,
        ends=True,
    ),
)
PEOPLE: Final = (
    rule(
        "other/pronouns",
        rf"{AM}(?P<v>they/them|she/her|he/him|she/they|he/they|ze/zir)$",
        "uses {v}",
        words.is_value,
        single=True,
    ),
    rule("name", r"(?P<v>[A-Z][a-z]+(?: [A-Z][a-z]+)?) here$", "is called {v}", words.is_first_name, single=True),
    rule("name", r"myself (?P<v>[A-Z]\w+(?: [A-Z]\w+)?)$", "is called {v}", words.is_given_name, single=True),
    rule(
        "name",
        r"(?:everyone|everybody|people|friends|my friends|they all|most people) calls? me (?P<v>[A-Z]\w+)$",
        "is called {v}",
        words.is_given_name,
        single=True,
    ),
    rule(
        "age",
        rf"{AM}(?P<v>\d{{2,3}}) (?:years old|yo) (?:and|but|so) .+$",
        "is {v} years old",
        words.is_age,
        single=True,
    ),
    rule(
        "age",
        rf"{AM}(?:about to turn|turning|nearly|almost) (?P<v>\d\d)(?:,? (?:next|in|on|this|soon|and|so|but)\b.*)?$",
        "is turning {v}",
        words.is_age,
        single=True,
    ),
    rule(
        "age",
        rf"{AM}(?P<v>{words.SPELT})(?: years? old)?(?: and .+)?$",
        "is {v} years old",
        words.is_anything,
        single=True,
    ),
    rule(
        "birthday",
        r"i was born (?:on |in )?(?P<v>[\w ]+?) (?:in|at|to|near|during|outside) .+$",
        "was born in {v}",
        words.is_date,
        single=True,
    ),
    rule("birthday", r"i was born (?:in )?'?(?P<v>\d\d)$", "was born in {v}", words.is_anything, single=True),
    rule(
        "family/status",
        r"(?:me and|i and) (?P<a>[A-Z]\w+) (?:just |recently )?(?:got|are) (?P<v>engaged|married)$",
        "is {v} to {a}",
        words.is_value,
        single=True,
    ),
    rule(
        "family/status",
        r"(?P<a>[A-Z]\w+) and (?:i|me) (?:just |recently |finally )?(?:got|are) (?P<v>engaged|married)$",
        "is {v} to {a}",
        words.is_value,
        single=True,
    ),
    rule(
        "family/status",
        rf"{AM}(?P<v>single|widowed|a widow|a widower|recently divorced)$",
        "is {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "home",
        r"(?:(?:i'm|i am|we're) )?back in (?P<v>(?!(?:january|february|march|april|may|june|july|august|september|"
        r"october|november|december|\w+day)\b)(?-i:[A-Z])[\w-]+(?: (?-i:[A-Z])[\w-]+)?)$",
        "lives in {v}",
        words.is_town,
        single=True,
        changes=True,
    ),
    rule("home", r"(?:i'm|i am) still in V$", "lives in {v}", words.is_town, single=True),
    rule(
        "home",
        r"(?:i|we)(?:'ve| have)? (?:\w+ )*?(?:drove|flew|moved) (?:down |up |over |out )?to V,? (?:for good|staying "
        r"with .+|staying w .+)$",
        "lives in {v}",
        words.is_town,
        single=True,
        changes=True,
    ),
    rule("home", r"(?:home|my home) is (?:now )?V(?: now)?$", "lives in {v}", words.is_town, single=True),
)
RULES: Final = (*WORKING, *LEAVING, *LEARNING, *TASTES, *HEALTH, *PEOPLE)
