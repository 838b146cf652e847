"""Word analysis for the keyword index: splits identifiers into parts and stems words (Snowball).

``UserProfile`` is found by ``user``, ``profile`` and ``userprofile``; ``path/to/file.py`` by its parts and itself;
``Wälder`` by its stem. Text and queries go through the same rules, so that either form finds the other.

Source: issue "Search in native memory"; https://snowballstem.org; NFKC and case folding: Unicode, chapter 3.
"""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from collections.abc import Sequence
from typing import Final, Literal

import Stemmer

from caliber.kernels import Analysis
from caliber.model.errors import InvalidValue
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


NO_STEMMER: Final = "none"
"""The language that leaves words as they are."""

NAMES_A_TIME: Final = 1
"""Flag of a word, and so of a text, that marks a time."""

_REMEMBERED: Final = 4_096
_YEAR = re.compile(r"(?:19|20)\d\d")

_LONGEST: Final = 64
"""Longer parts are not stemmed."""

_PIECE: Final = 256
"""Characters normalized at once: to order the marks of one character takes time by the square of their number."""

_UNACCENTED: Final = dict(zip("ıłøđħŧ", "ilodht", strict=True))
"""Letters of ASCII whose accent Unicode holds for a part of the letter."""

_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\da-zA-Z_]+")
_SIGNS = re.compile(r"[^\w'’]+|_+")
_EMOJI = re.compile(r"[\u2600-\u27bf\U0001f000-\U0001faff]")
_ELISION = re.compile(r"^\w{1,3}['’](?=\w{3,})|['’]+$")
"""An article bound to the word after it (``l'homme``), which is no part of it."""


def languages() -> tuple[str, ...]:
    """Return the languages that words can be stemmed in, and ``none``."""
    return (*sorted(Stemmer.algorithms()), NO_STEMMER)


class Analyzer:
    """Analyses words of one language: parts and terms.

    Raises:  InvalidValue for an unknown language
    """

    def __init__(self, language: str) -> None:
        if language not in languages():
            raise InvalidValue(
                field="search.keyword.language", reason=f"{language!r} is unknown; there are {', '.join(languages())}"
            )
        self.language = language
        self.lexicon: Lexicon = lexicon_of(language)
        self._stemmer = None if language == NO_STEMMER else Stemmer.Stemmer(language, 0)
        # The stemmer is not thread-safe, and both readers and indexing threads use it.
        self._lock = threading.Lock()
        self.cached = functools.lru_cache(maxsize=_REMEMBERED)(self)
        """As the call itself, remembering: for queries, whose words come again."""

    def __call__(self, word: str) -> Analysis:
        """Return the parts of a word as written, and its search terms."""
        text = normalized("NFKC", word)
        parts = _parts(text)
        folded_parts = tuple(map(_folded, parts))
        whole = folded_parts[0] if parts[0] == text else _folded(text)
        if len(parts) == 1 and (whole == folded_parts[0] or "'" in text or "’" in text):
            folded = folded_parts[0]
            return Analysis(folded_parts, (self.stem(folded),), self._flags(folded))
        # A single letter of a camel-case word has no meaning.
        named = [self.stem(part) for part in folded_parts if len(part) > 1 or not part.isascii() or part.isdigit()]
        flags = max(map(self._flags, folded_parts))
        return Analysis(folded_parts, (*named, self.stem(whole) if whole.isalnum() else whole), flags)

    def _flags(self, folded: str) -> int:
        dated = folded in self.lexicon.time_words or (self.lexicon.names_days and _YEAR.fullmatch(folded))
        return NAMES_A_TIME if dated else 0

    def stem(self, folded: str) -> str:
        """Return the stem of a folded word, without accents where letters of ASCII are left."""
        stem = folded
        if self._stemmer is not None and len(folded) <= _LONGEST:
            with self._lock:
                stem = self._stemmer.stemWord(folded)
        return stem if stem.isascii() else _plain(stem)

    def stems(self, folded: Sequence[str]) -> list[str]:
        """Return the stem of each folded word, as ``stem`` does, in a quarter of the time."""
        if self._stemmer is None or max(map(len, folded), default=0) > _LONGEST:
            return list(map(self.stem, folded))
        with self._lock:
            stems: list[str] = self._stemmer.stemWords(folded)
        return [stem if stem.isascii() else _plain(stem) for stem in stems]


def normalized(form: Literal["NFC", "NFKC"], word: str) -> str:
    """Return a word in a normal form; one longer than any word is normalized in pieces, to bound the marks."""
    if word.isascii():
        return word
    if len(word) <= _PIECE:
        return unicodedata.normalize(form, word)
    pieces = (word[at : at + _PIECE] for at in range(0, len(word), _PIECE))
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


def _parts(text: str) -> list[str]:
    """Return the pieces of a word: between signs, and where its case or kind changes."""
    if (text.isalpha() and (text.islower() or text[1:].islower())) or (text.isascii() and text.isdigit()):
        return [text]
    pieces: list[str] = []
    for piece in _SIGNS.split(text):
        bare = _ELISION.sub("", piece)
        if not bare:
            continue
        if "'" in bare or "’" in bare:
            pieces.append(bare.replace("’", "'"))
        elif bare.isascii() and not (bare.islower() or bare.isupper() or bare[1:].islower()):
            pieces.extend(_CAMEL.findall(bare))
        else:
            pieces.append(bare)
    return [*pieces, *_EMOJI.findall(text)] or [text]


def _folded(text: str) -> str:
    """Return text in small letters; ``İ`` is an ``i``, not two characters."""
    folded = text.casefold()
    return folded if folded.isascii() else folded.replace("i\u0307", "i")


def _plain(text: str) -> str:
    """Return text without the accents on letters of ASCII, digits as those of ASCII.

    ``cafe`` for ``café``, ``12`` for ``१२``, but ``й`` for ``й``.
    """
    out = []
    for char in text:
        base = unicodedata.normalize("NFKD", char)
        out.append(base[0] if base[0].isascii() else str(unicodedata.decimal(char, _UNACCENTED.get(char, char))))
    return "".join(out)
