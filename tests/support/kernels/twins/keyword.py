"""The keyword kernels in Python: words of a text, and an index of documents without any postings.

Source: csrc/include/caliber.h, "keywords".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caliber.kernels.keyword.index import Analysis, Vocabulary
from caliber.kernels.keyword.query import KeywordRule, NeighbourBoost, QueryWord, WordScores

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256)
TABLE = Path(__file__).resolve().parents[4] / "csrc" / "keyword" / "unicode_words.h"

_NONE, _WORD, _DENSE = 0, 1, 2
_WORD_BYTES = 256
_JOINERS = frozenset("'.-/\\:@+#&’")
_INVALID = (-1, 1)  # a byte that is not UTF-8: no character, one byte


@cache
def _table() -> tuple[list[int], list[int]]:
    """Return the number of each block of 256 code points, and the blocks, of four code points a byte."""
    blocks, classes = re.findall(r"= \{(.*?)\};", TABLE.read_text(encoding="utf-8"), re.DOTALL)
    return list(map(int, re.findall(r"\d+", blocks))), list(map(int, re.findall(r"\d+", classes)))


def kind_of(code: int) -> int:
    """Return whether a code point is part of a word (1), of a script without spaces (2), or neither (0)."""
    blocks, classes = _table()
    return classes[64 * blocks[code // 256] + code % 256 // 4] >> 2 * (code % 4) & 3


def _characters(text: bytes) -> list[tuple[int, int]]:
    """Return code point and size of each character; code point -1 for a byte that is not UTF-8."""
    out: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        lead = text[at]
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        try:
            out.append((ord(text[at : at + size].decode("utf-8")), size))
            at += size
        except (UnicodeDecodeError, TypeError):
            out.append(_INVALID)
            at += 1
    return out


def words_of(text: bytes) -> list[bytes]:
    """Return the words of UTF-8 text, as the scanner of C finds them."""
    characters = _characters(text)
    kinds = [kind_of(code) if code >= 0 else _NONE for code, _ in characters]
    starts = [0]
    for _, size in characters:
        starts.append(starts[-1] + size)
    out: list[bytes] = []
    at = 0
    while at < len(characters):
        if kinds[at] == _NONE:
            at += 1
            continue
        end = _end_of_run(characters, kinds, at) if kinds[at] == _WORD else at
        if kinds[at] == _WORD:
            out.append(text[starts[at] : starts[end]])
        else:
            while end < len(characters) and kinds[end] == _DENSE:
                end += 1
            pairs = range(at, end - 1) if end - at > 1 else range(at, at)
            out.extend(text[starts[pair] : starts[pair + 2]] for pair in pairs)
            if end - at == 1:
                out.append(text[starts[at] : starts[end]])
        at = end
    return out


def _end_of_run(characters: list[tuple[int, int]], kinds: list[int], start: int) -> int:
    at, size = start, 0
    while at < len(characters):
        step = 1 if kinds[at] == _WORD else _joiner(characters, kinds, at) if at > start else 0
        taken = sum(width for _, width in characters[at : at + step])
        if not step or size + taken > _WORD_BYTES:
            break
        at, size = at + step, size + taken
    return _with_signs(characters, kinds, at, size)


def _char(characters: list[tuple[int, int]], at: int) -> str:
    return chr(characters[at][0]) if 0 <= at < len(characters) and characters[at][0] >= 0 else ""


def _joiner(characters: list[tuple[int, int]], kinds: list[int], at: int) -> int:
    """Return how many characters join the word before to the one after; 0 if they do not."""
    sign = _char(characters, at)
    if sign == ",":
        around = (_char(characters, at - 1), _char(characters, at + 1))
        return int(all(char != "" and char in "0123456789" for char in around))
    if sign not in _JOINERS:
        return 0
    count = 2 if sign == ":" and _char(characters, at + 1) == ":" else 1
    return count if at + count < len(characters) and kinds[at + count] == _WORD else 0


def _with_signs(characters: list[tuple[int, int]], kinds: list[int], at: int, size: int) -> int:
    """Return the end of a word with the + or # that may close it."""
    sign = _char(characters, at)
    if sign == "" or sign not in "+#" or _char(characters, at - 1) == sign:
        return at
    end = at + 2 if _char(characters, at + 1) == sign else at + 1
    if _char(characters, end) == sign or size + end - at > _WORD_BYTES:
        return at
    return end if end == len(characters) or kinds[end] == _NONE else at


def _with_boost(reached: list[float], document: int, boost: NeighbourBoost) -> float:
    def beside(column: npt.NDArray[np.int64], of: int) -> int:
        other = -1 if of < 0 else int(column[of])
        return other if 0 <= other < len(reached) else -1

    def worth(of: int) -> float:
        return 0.0 if of < 0 else reached[of]

    before, after = beside(boost.before, document), beside(boost.after, document)
    total = reached[document]
    total = total + boost.near * (worth(before) + worth(after))
    total = total + boost.far * (worth(beside(boost.before, before)) + worth(beside(boost.after, after)))
    if before >= 0 and boost.asks[before]:
        total = total + boost.answer * reached[before]
    return total


def _saturated(worth: float, idf: float, saturate: float) -> float:
    return idf * worth / (worth + saturate * idf) if saturate > 0 and worth > 0 else worth


class TwinIndex:
    """Documents, and the numbers of their parts and terms in a vocabulary."""

    def __init__(self, documents: Sequence[bytes], analyze: Callable[[str], Analysis], vocabulary: Vocabulary) -> None:
        words = [[analyze(word.decode()) for word in words_of(text)] for text in documents]
        self.parts = [[vocabulary.parts[part] for word in text for part in word.parts] for text in words]
        self._terms = [
            Counter(vocabulary.terms[term] for word in text for term in dict.fromkeys(word.terms)) for text in words
        ]
        self.lengths = [counts.total() for counts in self._terms]
        self.flags = [int(np.bitwise_or.reduce([0, *(word.flags for word in text)])) for text in words]

    def documents(self, term: int, mask: npt.NDArray[np.bool_]) -> list[int]:
        """Return the documents in ``mask`` that hold a term."""
        return [document for document in np.flatnonzero(mask).tolist() if term in self._terms[document]]

    def scores(
        self,
        words: Sequence[QueryWord],
        mask: npt.NDArray[np.bool_],
        rule: KeywordRule,
        boost: NeighbourBoost | None = None,
        *,
        kept: npt.NDArray[np.bool_] | None = None,
        given: Sequence[int] = (),
    ) -> WordScores:
        """Return the same as ``KeywordSnapshot.scores``."""
        own, scores = [0.0] * len(mask), [0.0] * len(mask)
        for word in words:
            reached = [0.0] * len(mask)
            for term, strength in zip(word.terms, word.strengths, strict=True):
                for document in self.documents(term, mask):
                    count = self._terms[document][term]
                    held = COUNTS[bisect_right(COUNTS, count) - 1]
                    room = rule.k1 * (1 - rule.b + rule.b * (self.lengths[document] / rule.mean_length))
                    reached[document] = max(reached[document], strength * ((rule.k1 + 1) * held / (held + room)))
            for document in np.flatnonzero(mask).tolist():
                alone = reached[document]
                together = alone if boost is None else _with_boost(reached, document, boost)
                own[document] += _saturated(alone, word.idf, rule.saturate)
                scores[document] += _saturated(together, word.idf, rule.saturate)
        others = set(np.flatnonzero(mask if kept is None else kept).tolist()) - set(given)
        found = [*given, *(at for at in others if scores[at] > 0)]
        return WordScores(np.array(found, np.int64), np.array(own)[found], np.array(scores)[found])

    def phrase(self, phrase: list[int], document: int) -> int:
        """Return how often parts occur consecutively in a document."""
        parts, size = self.parts[document], len(phrase)
        return sum(parts[at : at + size] == phrase for at in range(len(parts) - size + 1))
