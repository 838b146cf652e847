"""Rules of a person's household and taste: family, pets, food, likes and dislikes."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.lexicon.people import ANIMALS, RELATIVES, SIZE
from caliber.learning.matters.patterns import ADVERBS, AM, HAVE, NAME, NOT, WE, rule

FAMILY: Final = (
    rule(
        "family/{x}",
        rf"(?:my|our) (?P<x>{SIZE}(?:{RELATIVES})) is " + NAME + "$",
        "{x} is called {v}",
        words.is_given_name,
        single=True,
    ),
    rule(
        "family/{x}",
        rf"(?:my|our) (?P<x>{SIZE}(?:{RELATIVES}))(?:'s name)?(?:'s| is) (?:called |named )" + NAME + "$",
        "{x} is called {v}",
        words.is_name,
        single=True,
    ),
    rule(
        "family/{x}",
        rf"(?:my|our) (?P<x>{SIZE}(?:{RELATIVES}))'s name is " + NAME + "$",
        "{x} is called {v}",
        words.is_name,
        single=True,
    ),
    rule(
        "family/{x}",
        rf"{HAVE}(?:have|got) (?:an?|one) (?P<x>{SIZE}(?:{RELATIVES})),? (?:called|named) " + NAME + "$",
        "{x} is called {v}",
        words.is_name,
    ),
    rule(
        "family/count {x}",
        rf"{HAVE}(?:have|got) (?P<v>(?:an?|one|two|three|four|five|six|\d|no) {SIZE}(?P<x>{RELATIVES}|kid|son|"
        rf"daughter|sibling|grandchild|child)(?:ren|s)?(?: and (?:an?|one|two|three|four|\d) {SIZE}(?:{RELATIVES}|"
        rf"sons|daughters|brothers|sisters))?)$",
        "has {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "family/count",
        rf"{AM}(?P<v>(?:an? )?(?:[a-z]+ )?(?:dad|mum|mom|mother|father|parent|grandmother|grandfather|grandma|"
        rf"grandpa) "
        r"(?:of|to) (?:an?|one|two|three|four|five|six|\d|twins?)(?: [a-z]+)?)(?: who are .+| aged .+)?$",
        "is {v}",
        words.is_value,
    ),
    rule(
        "family/status",
        rf"{AM}(?P<v>married|engaged) to (?P<a>(?-i:[A-Z])[\w'-]+)$",
        "is {v} to {a}",
        words.is_value,
        single=True,
    ),
    rule(
        "family/status",
        rf"{AM}(?P<v>married|divorced|engaged|widowed|separated)(?: to (?P<x>[A-Z][\w'-]+))?$",
        "is {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "family/status",
        r"(?:i|we)(?:'ve)? (?:just |recently )?got (?P<v>married|divorced|engaged)(?: to .+)?$",
        "is {v}",
        words.is_value,
        single=True,
        changes=True,
    ),
    rule(
        "family/{x}",
        rf"{AM}(?:married|engaged) to " + NAME + "$",
        "partner is called {v}",
        words.is_name,
        single=True,
    ),
)
PETS: Final = (
    rule(
        "pet/{x}",
        rf"(?:my|our) (?:new |old )?(?P<x>{ANIMALS})(?:'s name is| is) " + NAME + "$",
        "{x} is called {v}",
        words.is_given_name,
        single=True,
    ),
    rule(
        "pet/{x}",
        rf"(?:my|our) (?:new |old )?(?P<x>{ANIMALS})(?:'s name)?(?:'s| is) (?:called |named )" + NAME + "$",
        "{x} is called {v}",
        words.is_name,
        single=True,
    ),
    rule(
        "pet/{x}",
        rf"{HAVE}(?:have|own|got|adopted|bought|rescued) (?:an?|one|the cutest) (?:\w+ )?(?P<x>{ANIMALS}),? "
        rf"(?:called|named|whose name is) {NAME}$",
        "{x} is called {v}",
        words.is_name,
    ),
    rule(
        "pet/count {x}",
        rf"{HAVE}(?:have|own|got|adopted) (?P<v>(?:an?|one|two|three|four|five|\d) (?:[a-z]+ )?(?P<x>{ANIMALS})s?(?: "
        rf"and (?:an?|one|two|three|\d) (?:{ANIMALS}|dogs|cats|rabbits|birds))?)$",
        "has {v}",
        words.is_value,
        single=True,
    ),
    rule(
        "pet/{x}",
        rf"(?:my|our|the|poor) (?:old |poor )?(?P<x>{ANIMALS})(?:,? (?P<v>[A-Z][\w'-]+),?)?(?:'s| is| has| had)? "
        r"(?:sadly |just )*(?:died|passed away|passed|gone|run away|ran away|to be put down|been put down|was put "
        r"down)$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "pet/{x}",
        rf"no (?:more )?(?P<x>{ANIMALS})s? (?:for (?:me|us)|any ?more)(?: then| now)?$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "pet/{x}",
        rf"(?:i|we) (?:no longer have|don't have|do not have|gave away|had to give away|gave) (?:an?|my|our|the|any) "
        rf"(?P<x>{ANIMALS})(?: any ?more| any longer| away)?$",
        "",
        words.is_anything,
        ends=True,
    ),
)
FOOD: Final = (
    rule(
        "diet",
        r"(?:i'm|i am|we're) back to eating (?:meat|fish|dairy|gluten|everything|animal products)$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "diet",
        r"(?:i|we)(?:'ve| have|'m| am)? (?:eat|eating|started eating|started to eat|back to eating) (?:meat|fish|"
        r"dairy|gluten|everything|animal products) again$",
        "",
        words.is_anything,
        ends=True,
    ),
    rule(
        "diet",
        rf"{AM}(?:an? |on a |on the |on )?(?:strict |lifelong )?(?P<v>{words.DIETS})(?: diet)?$",
        "is {v}",
        words.is_value,
        single=True,
        preference=True,
    ),
    rule(
        "diet",
        rf"{HAVE}(?:became|become|went|gone|turned|switched to|been) (?:an? )?(?P<v>{words.DIETS})$",
        "is {v}",
        words.is_value,
        single=True,
        preference=True,
        changes=True,
    ),
    rule(
        "diet",
        rf"(?:i|we) {ADVERBS}(?:eat|follow|keep) (?:an? )?(?P<v>{words.DIETS})(?: diet| food)?$",
        "eats {v}",
        words.is_value,
        single=True,
        preference=True,
    ),
    rule("diet", rf"{AM}(?:no longer|not) (?:an? )?(?P<v>{words.DIETS})$", "", words.is_value, ends=True),
    rule(
        "diet",
        rf"{HAVE}(?:stopped being|quit being|gave up being) (?:an? )?(?P<v>{words.DIETS})$",
        "",
        words.is_value,
        ends=True,
    ),
    rule("diet", r"i used to be (?:an? )?(?P<v>" + words.DIETS + ")$", "", words.is_value, ends=True),
    rule(
        "diet/avoids",
        r"(?:i|we) (?:(?:can't|cannot|can not|don't|do not|never|won't) eat|(?:can't|cannot) have) V$",
        "avoids {v}",
        words.is_food,
        several=True,
        preference=True,
    ),
    rule(
        "diet/avoids",
        r"(?:i|we) (?:can't|cannot|don't|do not|never) drink V$",
        "avoids {v}",
        words.is_food,
        several=True,
        preference=True,
    ),
    rule("likes/drinks", rf"i {ADVERBS}drink V$", "drinks {v}", words.is_food, preference=True),
    rule(
        "allergy",
        r"no (?P<v>[\w -]{3,20}?),? (?:please|pls|plz)?,? ?(?:i'm|i am|im) allergic$",
        "is allergic to {v}",
        words.is_allergen,
    ),
    rule("allergy", rf"{AM}allergic to V$", "is allergic to {v}", words.is_allergen, several=True),
    rule(
        "allergy",
        rf"{HAVE}(?:have|got|developed) an? (?:\w+ )?allergy to V$",
        "is allergic to {v}",
        words.is_allergen,
        several=True,
    ),
    rule(
        "allergy",
        rf"{HAVE}(?:have|got|developed) an? (?:severe |bad |mild |slight )?(?P<v>[\w -]{{2,30}}?) allergy$",
        "is allergic to {v}",
        words.is_allergen,
    ),
    rule(
        "health/intolerance",
        rf"{AM}(?P<v>lactose|gluten|fructose|histamine)[- ]intolerant$",
        "is {v} intolerant",
        words.is_value,
    ),
    rule(
        "health/intolerance",
        rf"{AM}(?:no longer|not) (?P<v>lactose|gluten|fructose|histamine)[- ]intolerant$",
        "",
        words.is_value,
        ends=True,
    ),
    rule(
        "allergy",
        r"(?:my|the) (?P<v>[\w -]{2,30}?) allergy is (?:gone|over|cured)$",
        "",
        words.is_allergen,
        ends=True,
    ),
    rule("allergy", rf"{AM}(?:no longer|not) allergic to V$", "", words.is_allergen, ends=True),
    rule(
        "allergy",
        rf"{HAVE}(?:outgrew|outgrown|lost|got over) (?:my|the) (?P<v>[\w -]{{2,30}}?) allergy$",
        "",
        words.is_allergen,
        ends=True,
    ),
)
TASTE: Final = (
    rule(
        "likes",
        r"(?:i|we) (?:no longer|don't|do not) (?:really |actually )?(?:like|love|enjoy|eat|drink) V any ?(?:more|"
        r"longer)$",
        "",
        words.is_liked,
        ends=True,
    ),
    rule(
        "likes",
        r"(?:i|we) (?:no longer|stopped|quit) (?:like|love|enjoy|liking|loving|enjoying) V$",
        "",
        words.is_liked,
        ends=True,
    ),
    rule(
        "likes",
        rf"{AM}(?:no longer|not) (?:into|a fan of|fond of|interested in) V any ?(?:more|longer)$",
        "",
        words.is_liked,
        ends=True,
    ),
    rule("likes", rf"{AM}(?:over|done with|tired of|sick of) V$", "", words.is_liked, ends=True),
    rule(
        "likes",
        rf"{WE}(?:like|love|enjoy|adore) (?:anything with |everything with )?V$",
        "likes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        rf"{AM}(?:an? )?(?:big |huge |massive |avid |real )?(?:fan of|into|fond of|passionate about|obsessed with|"
        rf"crazy about|keen on|lover of|interested in) V$",
        "likes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        rf"{AM}an? (?:big |huge |massive |real |total )?V (?:fan|supporter|lover|enthusiast|fanatic|nerd|buff)$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        rf"{AM}an? (?:big |real |total )?(?P<v>(?:tea|coffee|wine|beer|whisk(?:e)?y|gin|rum|dog|cat|beach|mountain) "
        r"(?:person|man|woman|guy|girl|drinker))$",
        "is a {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule(
        "likes",
        r"V (?:have|has) (?:really |kind of )?grown on me$",
        "likes {v}",
        words.is_liked,
        preference=True,
        opposite="dislikes",
    ),
    rule("likes", r"i support (?:the )?V$", "supports {v}", words.is_firm, preference=True),
    rule(
        "likes/does",
        rf"i {ADVERBS}(?P<v>(?:swim|run|cycle|paint|knit|dance|climb|sing|bake|ski|surf|hike|row|box|sew|draw|jog|"
        r"meditate|skate|fish)(?: (?:every \w+|daily|weekly|once a \w+|twice a \w+|\w+ times a \w+|on (?:mon|tues|"
        r"wednes|thurs|fri|satur|sun)days|a lot|regularly|competitively|in a (?:choir|band|club)|about \w+ (?:a|per) "
        r"\w+)))$",
        "likes to {v}",
        words.is_value,
        preference=True,
    ),
    rule(
        "dislikes",
        r"(?:i|we)(?:'ve| have)? never (?:really |much )?(?:like|liked|loved|cared for|enjoyed|been (?:into|a fan "
        r"of)) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "dislikes",
        rf"{WE}(?:hate|dislike|can't stand|cannot stand|can't bear|despise|detest|loathe) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "dislikes",
        rf"(?:i|we) (?:really |actually |just )?{NOT} (?:really |actually |particularly )?(?:like|love|enjoy|care "
        rf"for) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "dislikes",
        rf"{AM}not (?:really |much )?(?:an? )?(?:big |huge )?(?:fan of|into|fond of|keen on) V$",
        "dislikes {v}",
        words.is_liked,
        several=True,
        preference=True,
        opposite="likes",
    ),
    rule(
        "likes/favorite {x}",
        r"my (?:all-time |absolute |current |new )?favou?rite (?P<x>[\w' -]{2,30}?)(?: of all time)?(?:'s| is| are) "
        r"(?:now |definitely |probably )?V$",
        "favorite {x}: {v}",
        words.is_value,
        single=True,
        preference=True,
    ),
    rule(
        "likes/favorite {x}",
        r"(?P<v>[\w' -]{2,40}?) is my (?:all-time |absolute |new )?favou?rite (?P<x>[\w' -]{2,30})$",
        "favorite {x}: {v}",
        words.is_liked,
        single=True,
        preference=True,
    ),
    rule("likes/prefers", rf"(?:i|we)(?:'d)? {ADVERBS}prefer V$", "prefers {v}", words.is_preferred, preference=True),
    rule(
        "likes/plays",
        rf"i {ADVERBS}play (?:the )?(?!with|around|along|a role|devil)V$",
        "plays {v}",
        words.is_liked,
        several=True,
    ),
    rule(
        "likes/plays",
        r"i (?:no longer|don't|stopped|quit) play(?:ing)? (?:the )?V(?: any ?more)?$",
        "",
        words.is_liked,
        ends=True,
    ),
    rule("likes/collects", rf"i {ADVERBS}collect V$", "collects {v}", words.is_liked, several=True),
    rule(
        "likes",
        r"my (?:main |favou?rite )?hobb(?:y is|ies are) V$",
        "likes {v}",
        words.is_liked,
        several=True,
        preference=True,
    ),
    rule("other/car", r"(?:i|we)(?:'ve| have)? sold (?:the|my|our) V$", "", words.is_value, ends=True),
    rule("other/car", rf"(?:i|we) {ADVERBS}drive (?P<a>an? )V$", "drives {a}{v}", words.is_value, single=True),
    rule("other/owns", rf"(?:i|we) {ADVERBS}own (?P<a>an? )V$", "owns {a}{v}", words.is_value),
)

RULES: Final = (*FAMILY, *PETS, *FOOD, *TASTE)
