"""Closed word lists of what limits a statement: its cases, its time, how sure it is, and how it measures."""

from __future__ import annotations

from typing import Final

from caliber.text.contradiction.opposites import word_list

UNIVERSAL: Final = frozenset(word_list("all every each always never nobody none everybody everyone"))
"""Words that leave out no case."""

EXISTENTIAL: Final = frozenset(word_list("some few several most many usually often sometimes occasionally"))
"""Words that name some cases."""

SCOPES: Final = {
    **dict.fromkeys(("before", "until", "till"), "ends"),
    **dict.fromkeys(("after", "since"), "begins"),
}
"""Words that bound the time of a statement."""

GRADED: Final = frozenset(
    word_list(
        "fast quick slow cheap big large small short hot warm cold cool high low tall easy simple hard safe loud quiet "
        "bright dark thick thin wet dry strong weak young old rich poor wide narrow heavy clean dirty deep "
        "shallow early"
    )
)
"""Adjectives with a comparative in -er."""

SENTIMENTS: Final = {
    **dict.fromkeys(word_list("unbearable dreadful awful terrible horrible boring disgusting annoying tedious"), -1),
    **dict.fromkeys(word_list("wonderful delightful lovely delicious fantastic brilliant excellent great"), 1),
}
"""Words after "finds" for how somebody likes a thing."""

COLOURS: Final = frozenset(
    word_list(
        "red blue green yellow white black brown grey gray orange purple pink beige turquoise violet silver golden"
    )
)
"""Values that exclude each other, of what is of one colour."""

ATTITUDES: Final = frozenset(
    word_list(
        "believe believes believed assume assumes assumed fear fears feared doubt doubts doubted pretends pretended "
        "thought hope hopes hoped imagined dreamt dreamed suspects suspected rumour rumor possible"
    )
)
"""Acts whose object, after "that", is not stated as a fact."""

ADDED: Final = frozenset(word_list("another additional extra further more"))
"""Words beside a number that is added to another one."""

NUMBERED: Final = frozenset(
    word_list(
        "ticket issue pr pull_request invoice incident migration release pipeline order task case chapter step phase "
        "bus tram route rfc build job node page section article paragraph figure table contract project"
    )
)
"""Nouns that a number behind them makes a name of: "ticket 12"."""

ADVERBS: Final = {
    "hourly": "hour",
    "daily": "day",
    "nightly": "night",
    "weekly": "week",
    "monthly": "month",
    "yearly": "year",
}
"""Adverbs of how often, each with its unit."""

IRREGULAR: Final = [
    word_list(row)
    for row in """
    go goes went gone
    drive drives drove driven
    eat eats ate eaten
    drink drinks drank drunk
    see sees saw seen
    build builds built
    meet meets met
    speak speaks spoke spoken
    bring brings brought
    choose chooses chose chosen
    fly flies flew flown flight
    know knows knew known
    sleep sleeps slept
    spend spends spent
    swim swims swam swum
    wear wears wore worn
    break breaks broke broken
    sing sings sang sung
    draw draws drew drawn
    hear hears heard
    lend lends lent
    ride rides rode ridden
    sit sits sat
    throw throws threw thrown
    steal steals stole stolen
    die dies died death
    marry marries wedding
    man men
    woman women
    foot feet
    wife wives
    earn earns earned salary
    study studies studied studying
    repair repairs repaired fix fixes fixed
    invent invents invented inventor
    """.strip().splitlines()
]
"""Forms of one word that no rule of endings makes of each other."""

AGES: Final = frozenset(word_list("child boy girl kid teenager student youth toddler baby"))
"""Words after "as a" that name a time of life."""

SEASONS: Final = frozenset(word_list("spring summer autumn winter"))
HELD: Final = frozenset(word_list("job employer inhabits"))
"""Words that phrases such as "working as" and "living in" are read as."""
PLURALS: Final = frozenset(word_list("people children men women feet mice staff"))
"""Plurals without -s."""
PRONOUNS: Final = frozenset(word_list("he she it they him her them"))
"""Words for something that another word names."""
