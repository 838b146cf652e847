"""Rules of what people do and mean to do: what they took up, trips and visits, what they save and look for."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.lexicon.people import OTHERS, RELATIVES, SIZE
from caliber.learning.matters.patterns import ADVERBS, AM, HAVE, rule

_TRIP: Final = (
    r"(?:(?:an?|the|two|three|four|five|ten|\d+|our|my|a few|a couple of|some) )?(?:[\w-]+ ){0,2}?(?:days?|nights?|"
    r"weeks?|weekend|fortnight|month|trip|holidays?|vacation|honeymoon|road trip|city break|cruise|break|getaway|"
    r"hike|trek|wedding|party|safari)"
)
TASTES: Final = (
    rule(
        "likes/does",
        r"i go to (?:the |my )?(?P<v>(?:gym|church|mass|mosque|temple|yoga|pilates|therapy|choir|pool|swimming pool|"
        r"book club|spin class|dance class|night school)(?: .+)?)$",
        "goes to {v}",
    ),
    rule("other/uses", rf"i {ADVERBS}use an? V$", "uses a {v}", words.is_tool),
    rule(
        "other/car",
        r"(?:(?:i|we)(?:'ve| have)? )?(?:just |finally )?(?:got|bought|have|picked up) (?:a|my|our) new car[,:]? "
        r"(?:it's )?(?P<a>an? )V$",
        "drives {a}{v}",
        single=True,
        changes=True,
    ),
    rule(
        "likes/does",
        r"i(?:'ve| have) been (?P<v>(?:running|swimming|cycling|meditating|journaling|climbing|hiking|painting|"
        r"knitting|baking|boxing|skating|surfing|rowing|dancing|gardening|lifting)(?: (?:every|a lot|regularly|daily|"
        r"for|since|more|again|lately|recently|\w+ times)\b.*)?)$",
        "has been {v}",
        preference=True,
    ),
    rule(
        "other/car",
        r"(?:my|our) (?:new )?car is (?P<a>an? )(?P<v>(?:\d{4} )?(?-i:[A-Z]).*)$",
        "drives {a}{v}",
        single=True,
    ),
    rule(
        "likes",
        rf"{HAVE}(?:(?:come|came) (?:a)?round (?:to|on)|(?:grown|learned|learnt|started|come) to (?:like|love|"
        rf"enjoy)) "
        r"V$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        rf"{HAVE}(?:been (?:getting|really getting) into|been into|got really into|gotten really into|got hooked on|"
        r"gotten hooked on|fell in love with|fallen in love with|taken up|took up|picked up|got back into|been "
        r"loving|been enjoying) (?:the )?V$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        rf"{AM}(?:an? )?(?:big|huge|massive|total) V (?:guy|girl|man|woman|person)$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        r"(?:(?:really|absolutely|just|also|big|huge) )*(?:love|adore|fan of|into|obsessed with) (?P<v>(?!.*\b(?:is|"
        r"are|was|were|has|have|do|does|how|when|it|this|that|your)\b).+)$",
        "likes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "dislikes",
        r"not (?:really )?(?:a (?:big |huge )?fan of|into|keen on|fond of) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "dislikes",
        r"V (?:is|are|'s)(?:n't| not) (?:really )?(?:my thing|my cup of tea|for me|my favou?rite|my style)$",
        "dislikes {v}",
        words.is_liked,
        preference=True,
        opposite="likes",
    ),
    rule(
        "likes/learns",
        rf"{AM}learning (?:how )?(?:to play (?:the )?|the )(?P<v>[a-z]+(?: [a-z]+)?)$",
        "is learning {v}",
        words.is_liked,
    ),
    rule(
        "likes/plays",
        r"i(?:'ve| have) been playing (?:the )?V(?: for .+| since .+)?$",
        "plays {v}",
        words.is_liked,
        several=True,
    ),
    rule(
        "other/uses",
        rf"{AM}(?:stuck |still |using )?(?:on )?(?P<v>(?:python|java|node|php|ruby|django|postgres|windows|ubuntu|"
        rf"react|"
        r"angular|go|swift|ios|android|c\+\+|php) ?v?\d[\d.]*)(?: (?:at|on|for|in) .+)?$",
        "uses {v}",
        words.is_value,
    ),
)
PLANS: Final = (
    rule("plan", rf"{AM}(?P<v>moving(?: house| home| flat| out)? (?:on|in|next|this) .+)$", "is {v}", words.is_dated),
    rule("plan", rf"{AM}(?P<a>saving|saving up) for V$", "is {a} for {v}"),
    rule(
        "plan",
        rf"{AM}(?P<a>writing|working on|finishing) (?P<v>(?:a|my|our) (?:[\w'-]+ )?(?:novel|book(?! (?:report|"
        rf"review))|thesis|dissertation|memoir|"
        r"screenplay|phd|album|startup|start-up|podcast)\b.*)$",
        "is {a} {v}",
    ),
    rule(
        "plan",
        rf"{AM}trying to (?P<v>(?:lose|gain) (?:\d+|weight|some weight|a few)\b.*|quit smoking|stop smoking|get "
        rf"pregnant|"
        r"eat healthier|get fit|conceive|save money|drink less)$",
        "is trying to {v}",
    ),
    rule(
        "plan",
        r"i start (?P<v>(?:uni|university|college|school|kindergarten|nursery|work|a new job|my new job|"
        r"reception)\b.* (?:on|in|next|this) .+)$",
        "starts {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>planning|doing|spending|taking|going on|having|off on) (?P<v>{_TRIP} (?:in|to|around|at|across|"
        r"through|on|along) .+)$",
        "is {a} {v}",
        words.is_long_value,
    ),
    rule(
        "plan/{x}",
        rf"(?:my|our) (?P<x>(?:{SIZE}(?:{RELATIVES}|{OTHERS}|mates?|friends?|parents|in-laws|family|folks|kids|"
        rf"cousins|"
        r"sons|daughters|brothers|sisters|grandparents|grandkids)(?: (?-i:[A-Z])\w+)?))(?:'s| is| are) "
        r"(?P<a>coming(?: over| round| to visit| to stay| to see (?:me|us)| here)?|visiting(?: me| us)?|staying(?: "
        r"with me| with us)?|arriving|flying in|moving in) (?:on |in |for |over )?(?P<v>.+)$",
        "{x} {a}: {v}",
        words.is_coming,
        single=True,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>visiting|seeing|meeting|hosting|flying to|going to|driving to|travell?ing to|moving to|heading "
        rf"to|"
        r"off to) (?P<v>(?!it\b|this\b|that\b)[\w' ]{2,40}? (?:on|in|next|this|for|over|at) .+)$",
        "is {a} {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        r"(?:i|we) (?P<a>go|fly|travel|drive|leave|head|move|sail) (?P<b>to|for) (?P<v>(?-i:[A-Z])[\w' -]*? (?:on|in|"
        r"next|this|tomorrow|for) ?.*)$",
        "{a} {b} {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>having|getting) (?P<v>(?=.*\b(?:party|wedding|surgery|operation|marathon|race|shower|exam|"
        rf"course|class|trip|holiday|interview|procedure|scan|transplant|mri|lasik|half|10k|concert|exhibition|tour|"
        rf"appointment|baby|braces|tattoo|treatment|chemo)\b)(?!(?:trouble|problems|issues|a hard|fun|it|this|that|"
        rf"them|an? error|errors)\b)[\w' -]{{2,40}} (?:on|next|this) .+)$",
        "is {a} {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>marrying) (?P<v>(?-i:[A-Z])[\w' -]+)$",
        "is {a} {v}",
        words.is_long_value,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>looking for|searching for|hunting for|house hunting for|flat hunting for) (?P<v>(?:an?|my first|"
        r"our first) (?:new |bigger |smaller |cheaper |first |\w+[- ]bed(?:room)? )*(?:apartment|flat|house|room|"
        r"studio|job(?! (?:title|description|ad)\b)|place to (?:live|rent))(?: (?:in|near|with|close|to rent|to buy|"
        r"for (?:us|me)|under)\b(?!.*\b(?:this|pdf|sims)\b).*)?)$",
        "is {a} {v}",
        words.is_long_value,
    ),
    rule(
        "plan",
        rf"{HAVE}(?:just |finally |already )*(?P<a>booked|bought|got) (?P<v>(?:(?:a|the|our|my|some) )?(?:flights?|"
        r"tickets?|a trip|a holiday|a cruise|train tickets?|a hotel|a cottage|a villa)\b.* (?:to|for|in) "
        r"(?-i:[A-Z]).*)$",
        "has {a} {v}",
        words.is_long_value,
    ),
    rule(
        "plan",
        r"(?:i|we)(?:'ve| have)?(?: got)? (?P<v>(?:an?|my) (?:[\w-]+ ){0,2}(?:interview|exam|appointment|test|"
        r"presentation|flight|meeting|operation|surgery|check-?up|scan|wedding|date|deadline|audition|marathon|race) "
        r"(?:on|at|with|in|next|this|tomorrow).*)$",
        "has {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>running|doing|having|getting|taking|starting|hosting|throwing) (?P<v>(?=.*\b(?:party|wedding|"
        rf"surgery|operation|marathon|race|shower|exam|course|class|trip|holiday|interview|procedure|scan|transplant|"
        rf"mri|lasik|half|10k|concert|exhibition|tour|appointment|baby|braces|tattoo|treatment|chemo)\b)(?:the|an?|"
        rf"my|our) .+? (?:on|"
        r"in|next|this) .+)$",
        "is {a} {v}",
        words.is_dated,
    ),
    rule(
        "plan",
        rf"{AM}(?P<a>starting) (?P<v>(?:uni|university|college|school|work|a new job|my new job|my master'?s|my phd|"
        r"therapy|chemo|treatment)\b.* (?:on|in|next|this) .+)$",
        "is {a} {v}",
        words.is_dated,
    ),
)
RULES: Final = (*TASTES, *PLANS)
