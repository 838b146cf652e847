"""Word lists of a language: stop words, filler words, and words about time.

Data, one entry a language. A language without an entry is searched without these: no word is left out, days
are read in numbers alone. Lists hold folded forms (lower case, straight apostrophes).
"""

from __future__ import annotations

import re
from typing import Final

from caliber.model.lazy_dataclass import dataclass
from caliber.text.dates import MONTHS

_NOTHING: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of one language by their role in search."""

    stop_words: frozenset[str] = frozenset()
    fillers: frozenset[str] = frozenset()
    """Filler words: they are searched, but a query of these alone has no content."""
    time_words: frozenset[str] = frozenset()
    """Words that mark a time."""
    asks_time: re.Pattern[str] = _NOTHING
    names_days: bool = False
    """Whether the words of days of ``text.dates`` are its own."""


def _words(text: str) -> list[str]:
    return text.split()


ENGLISH: Final = Lexicon(
    stop_words=frozenset(
        _words(
            """
            a about above after again against all am an and any are aren't as at be because been before
            being below between both but by can can't cannot could couldn't did didn't do does doesn't
            doing don't down during each few for from further had hadn't has hasn't have haven't having
            he he'd he'll he's her here here's hers herself him himself his how how's i i'd i'll i'm
            i've if in into is isn't it it's its itself just let's me more most my myself no nor not now
            of off on once only or other ought our ours ourselves out over own s same shan't she she'd
            she'll she's should shouldn't so some such t than that that's the their theirs them
            themselves then there there's these they they'd they'll they're they've this those through
            to too under until up very was wasn't we we'd we'll we're we've were weren't what what's
            when when's where where's which while who who's whom why why's will with won't would
            wouldn't you you'd you'll you're you've your yours yourself yourselves
            """
        )
    ),
    fillers=frozenset(
        _words("hello hey hi know let maybe nope ok okay please sorry sure tell thank thanks yeah yep yes")
    ),
    time_words=frozenset(
        _words(
            """
            monday tuesday wednesday thursday friday saturday sunday yesterday today tonight tomorrow
            ago recently last next week weeks weekend weekends month months year years
            """
        )
    ).union(list(MONTHS)[:12]),
    asks_time=re.compile(r"\bwhen\b|\bhow long\b|\b(?:what|which) (?:date|day|week|month|year|time)\b", re.IGNORECASE),
    names_days=True,
)

LEXICONS: Final = {"english": ENGLISH, "porter": ENGLISH}
NOTHING_KNOWN: Final = Lexicon()


def lexicon_of(language: str) -> Lexicon:
    """Return the lexicon of a language; an empty one for an unknown language."""
    return LEXICONS.get(language, NOTHING_KNOWN)
