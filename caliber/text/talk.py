"""Sentences of a conversation that a summary may quote, and their weights.

A conversation is a text of paragraphs that begin with their speakers. Source: docs/decisions/0014.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from caliber.text.naming import STOP_WORDS
from caliber.text.sentences import Sentence, UnitKind, iter_sentences

_TURN: Final = re.compile(r"(?:\A|\n\n)([^\s:][^:\n]{0,60}): ")
_ROLES: Final = frozenset({"user", "assistant", "system", "tool"})
_WORDS: Final = """
hi hello hey thanks thank welcome good great nice lovely wonderful awesome amazing cool sure alright nope yep yeah
wow haha lol oh ah bye goodbye night morning evening idea ideas sound sounds sounded really glad happy hear see look
looking looks soon sorry course absolutely definitely exactly right true totally interesting fun wait talk catch
later take care luck congrats congratulations enjoy works perfect agree got get today day everything something
anything thing things doing going know think tell say let hope feel well pleasure problem worries same here
"""
_COURTESIES: Final = frozenset(_WORDS.split())
_WORD: Final = re.compile(r"\w[\w'’]{0,63}")
_FIGURE: Final = re.compile(
    r"\d|\b(?:yesterday|tonight|tomorrow)\b"
    r"|\b(?:last|next|this) (?:week|weekend|month|year|summer|winter|spring|fall|autumn)\b"
)
_NAME: Final = re.compile(r"(?<=[a-zà-ÿ,;’'] )(?!I\b|I['’])[A-ZÀ-Þ][\w’'-]+")
_OUTCOME: Final = re.compile(
    r"\b(?:decided?|agreed|settled|chosen?|chose|picked|booked|bought|ordered|cancel+ed|moved|instead|due|deadline|must"
    r"|(?:we|i)(?:['’]ll| will|['’]m going to)|going with|plan(?:s|ned)? to|allergic|no longer)\b",
    re.IGNORECASE,
)
_FACT: Final = 2.0
"""The weight of a figure or day, a name, or an outcome, beside that of any sentence."""
_ENOUGH: Final = 3
"""Words of content that a sentence without figure, name or outcome needs."""
_LONG: Final = 12
"""Characters of a run of letters that holds several words, in scripts without spaces."""


class Utterance(NamedTuple):
    """A sentence of a turn. ``weight``: from 1, the more outcome of the talk the sentence holds."""

    turn: int
    speaker: str
    sentence: Sentence
    weight: float

    @property
    def asks(self) -> bool:
        """True for a question."""
        return self.sentence.text.rstrip("\"'”’)*_ ").endswith(("?", "？"))


def turns_of(text: str) -> list[tuple[str, str]]:
    """Return the turns of a conversation as (speaker, words); none for another text."""
    found = list(_TURN.finditer(text))
    count = Counter(match[1] for match in found)
    known = [match for match in found if match[1] in _ROLES or count[match[1]] > 1]
    if 2 * len(found) < text.count("\n\n"):  # long turns may hold labels of other things
        found = known
    if not known or len(found) < 2 or found[0].start():
        return []
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [(match[1], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]


def utterances(turns: list[tuple[str, str]]) -> Iterator[Utterance]:
    """Yield the sentences with some content: no greetings, thanks or code."""
    speakers = frozenset(speaker for speaker, _ in turns)
    for number, (speaker, words) in enumerate(turns):
        for sentence in iter_sentences(words):
            if sentence.kind in (UnitKind.PROSE, UnitKind.ITEM) and (weight := _weight(sentence.text, speakers)):
                yield Utterance(number, speaker, sentence, weight)


def _weight(text: str, speakers: frozenset[str]) -> float:
    """Return the weight of a sentence: 0 without content; decisions, figures, days and names of others count most."""
    if not speakers.isdisjoint(_WORD.findall(text)):
        text = _WORD.sub(lambda word: "" if word[0] in speakers else word[0], text)
    words = [word.casefold().replace("’", "'") for word in _WORD.findall(text)]
    words = [word for word in words if word not in STOP_WORDS and word.partition("'")[0] not in _COURTESIES]
    facts = bool(_FIGURE.search(text)) + bool(_NAME.search(text)) + bool(_OUTCOME.search(text))
    if not words or not (facts or len(words) >= _ENOUGH or max(map(len, words)) > _LONG):
        return 0.0
    return 1.0 + _FACT * facts
