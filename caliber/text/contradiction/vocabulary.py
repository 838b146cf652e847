"""Vocabulary of the comparison of statements: the key of each word, and the words that are more than content."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

import Stemmer

from caliber.text.contradiction import opposites as words
from caliber.text.contradiction import qualifiers
from caliber.text.contradiction.quantities import NUMBERS, PARTS
from caliber.text.dates import DAYS, MONTHS

PREFIXES: Final = ("un", "in", "im", "ir", "il", "non", "dis")
"""Prefixes that can negate a word."""
SUFFIXES: Final = ("less", "-free")
"""Ends that negate a word: "stateless", "sugar-free"."""
_SHORTEST: Final = 4
"""Letters of the shortest word that is looked for behind a prefix: "under" is not the opposite of "der"."""
PLACES: Final = {"first": 1, "second": 2, "third": 3, "last": 31}
EVENING: Final = frozenset(("evening", "afternoon", "night", "tonight", "noon"))


@functools.lru_cache(maxsize=8_192)
def key_of(word: str) -> str:
    """Return the form by which a folded word is compared: its stem, without the ends that derivation changes."""
    stem: str = word if len(word) < 4 or not word.isalpha() else Stemmer.Stemmer("english", 0).stemWord(word)
    if len(stem) > 4:
        stem = stem.rstrip("aeiouy")
        if stem.endswith("c"):
            stem = stem[:-1] + "s"
    return stem


def _table() -> dict[str, tuple[str, int]]:
    out: dict[str, tuple[str, int]] = {}
    for names in (*(row[0].split() for row in words.SYNONYMS), *qualifiers.IRREGULAR):
        first = names[0]
        for name in names:
            out.setdefault(name, (key_of(first), 1))
    for same, opposite in words.OPPOSITES:
        first = same.split()[0]
        for sign, names in ((1, same.split()), (-1, opposite.split())):
            for name in names:
                out[name] = (out[first][0] if first in out else key_of(first), sign)
    for name in qualifiers.GRADED & out.keys():
        out.setdefault(_comparative(name), out[name])
    return out


def _comparative(adjective: str) -> str:
    if adjective.endswith("y"):
        return adjective[:-1] + "ier"
    if adjective in ("big", "hot", "wet", "thin"):
        return adjective + adjective[-1] + "er"
    return adjective.rstrip("e") + "er"


TABLE: Final = _table()
BY_KEY: Final = {key_of(name): value for name, value in reversed(TABLE.items())}
SPECIAL: Final = frozenset().union(
    words.NEGATIONS,
    NUMBERS,
    PARTS,
    MONTHS,
    DAYS,
    (f"{day}s" for day in DAYS),
    (
        "weekday",
        "weekdays",
        "workday",
        "workdays",
        "weekend",
        "weekends",
        "a",
        "an",
        "noon",
        "midday",
        "midnight",
        "per",
    ),
    (
        "was",
        "were",
        "had",
        "has",
        "have",
        "did",
        "is",
        "are",
        "want",
        "wants",
        "wanted",
        "like",
        "than",
        "least",
        "stopped",
        "quit",
    ),
    qualifiers.EXISTENTIAL,
    qualifiers.ADVERBS,
    qualifiers.SEASONS,
    ("can", "may", "could", "single", "default", "from", "moved", "must", "requires", "of", "as", "ago"),
    qualifiers.UNIVERSAL,
    qualifiers.SCOPES,
    qualifiers.SENTIMENTS,
    ("find", "finds", "found", "considers"),
    PLACES,
    EVENING,
    words.UNSURE,
    words.PAST,
    words.FUTURE,
    words.EXCEPT,
    words.EXCLUSIVE,
    words.PREFERENCE,
)
"""Words that are more than content, or none."""
SINGLE: Final = frozenset(TABLE.get(name, (key_of(name), 1))[0] for name in words.SINGLE_VALUED)
SINGLE_NAMES: Final = {
    **{name: key for name, (key, _) in TABLE.items() if key in SINGLE},
    **{name + end: TABLE.get(name, (key_of(name), 1))[0] for name in words.SINGLE_VALUED for end in ("", "s")},
}
"""The words that name an attribute with one value, each with its key: not a word of the same stem."""
LIKE: Final = frozenset(TABLE[name][0] for name in ("like", "favourite"))


def negatable(terms: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the keys of words without an affix that can negate: "irreversible", "case-insensitive", "stateless".

    ``terms`` are keys with the words as written.
    """
    out: dict[str, str] = {}
    for key, word in terms:
        if "-" not in word and not word.startswith(PREFIXES) and not word.endswith(SUFFIXES):
            continue
        start, _, end = word.rpartition("-")
        wholes = [end] if start == "non" else []
        wholes += [
            f"{start}-{end[len(prefix) :]}".lstrip("-")
            for prefix in PREFIXES
            if end.startswith(prefix) and len(end) - len(prefix) >= _SHORTEST
        ]
        wholes += [word[: -len(suffix)] for suffix in SUFFIXES if word.endswith(suffix)]
        for whole in wholes:
            if len(whole) >= _SHORTEST:
                stem = key_of(whole)
                out[TABLE.get(whole, BY_KEY.get(stem, (stem, 1)))[0]] = key
    return out
