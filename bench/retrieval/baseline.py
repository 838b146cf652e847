"""BM25 whose scores neighbouring turns lend each other: what a keyword search that knows of turns would find.

A plain implementation that shares nothing with the engine but the stemmer, so that a fault there cannot flatter both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import Stemmer
from numpy.typing import NDArray

K1, B = 0.9, 0.4
LEND_NEAR, LEND_FAR = 0.4, 0.15

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_FUNCTION_WORDS = """
a an the i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her
hers herself it its itself they them their theirs themselves this that these those who whom whose which what when
where why how

am is are was were be been being do does did doing have has had having will would shall should can could may might
must ought cannot isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't won't wouldn't shan't
shouldn't can't couldn't mustn't i'm you're we're they're he's she's it's that's who's what's here's there's let's
i've you've we've they've i'd you'd he'd she'd we'd they'd i'll you'll he'll she'll we'll they'll

of to in on at by for from with without about against between into through during before after above below up down out
off over under and or but nor if because as until while than then so too very not no only own same such any all both
each few more most other some again further once here there just now s t
"""
_SILENT = frozenset(_FUNCTION_WORDS.split())


class Baseline:
    """One conversation, indexed. ``stretches`` says which turns stand together: only those lend to each other."""

    def __init__(self, documents: Sequence[str], stretches: Sequence[int]) -> None:
        self._stem = Stemmer.Stemmer("english").stemWord
        counts = [Counter(map(self._stem, words(document))) for document in documents]
        lengths = np.array([sum(count.values()) for count in counts], float)
        self._size = len(documents)
        self._norms = K1 * (1 - B + B * lengths / lengths.mean())
        self._postings: dict[str, dict[int, int]] = {}
        for number, count in enumerate(counts):
            for stem, frequency in count.items():
                self._postings.setdefault(stem, {})[number] = frequency
        self._stretches = np.array(stretches)

    def ranked(self, question: str, depth: int) -> list[int]:
        """Return the numbers of the best documents, ties by number."""
        scores = self.lent(self.scores_of(question))
        return np.argsort(-scores, kind="stable")[:depth].tolist()

    def scores_of(self, question: str) -> NDArray[np.float64]:
        scores = np.zeros(self._size)
        for word in words(question):
            postings = self._postings.get(self._stem(word))
            if word in _SILENT or postings is None:
                continue
            rarity = np.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, frequency in postings.items():
                scores[number] += rarity * frequency * (K1 + 1) / (frequency + self._norms[number])
        return scores

    def lent(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        total = scores.copy()
        for distance, share in ((1, LEND_NEAR), (2, LEND_FAR)):
            together = self._stretches[distance:] == self._stretches[:-distance]
            total[distance:] += share * scores[:-distance] * together
            total[:-distance] += share * scores[distance:] * together
        return total


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without a possessive."""
    found = (match.lower().replace("’", "'") for match in _WORD.findall(text))
    return [word.removesuffix("'s") if word not in _SILENT else word for word in found]
