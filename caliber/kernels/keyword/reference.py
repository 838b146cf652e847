"""Reference implementation in Python of the keyword kernels (words, postings, BM25), and their data types.

The results of this module are the correct ones, by definition.

Source: csrc/include/caliber.h, "keywords".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels.growing import Growing
from caliber.kernels.keyword.unicode_words import ENDS, KINDS, STARTS
from caliber.model.errors import InvalidValue

DOCUMENTS_MAX = 2**28 - 1
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256)

_NONE, _WORD, _DENSE = 0, 1, 2
_WORD_BYTES = 256
_JOINERS = frozenset("'.-/\\:@+#&’")
_INVALID = (-1, 1)  # a byte that is not UTF-8: no character, one byte


def kind_of(code: int) -> int:
    """Return whether a code point is part of a word (1), of a script without spaces (2), or neither (0)."""
    at = bisect_right(STARTS, code) - 1
    return KINDS[at] if at >= 0 and code <= ENDS[at] else _NONE


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


class QueryWord(NamedTuple):
    """One word of a query: the terms that stand for it, how strongly each does, and how rare the word itself is."""

    terms: Sequence[int] | npt.NDArray[np.int64]
    strengths: Sequence[float] | npt.NDArray[np.float64]
    idf: float


class KeywordRule(NamedTuple):
    """The constants of BM25, and of the saturation of a word's sum in units of its idf (0: none)."""

    k1: float
    b: float
    mean_length: float
    saturate: float


class NeighbourBoost(NamedTuple):
    """The neighbours of each document, and the shares of their scores that it adds.

    Shapes:  before, after int64[n], -1 or >= n for none; asks uint8[n]
    """

    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    asks: npt.NDArray[np.uint8]
    near: float
    far: float
    answer: float


class WordScores(NamedTuple):
    """The result of a keyword search: documents, each with its own score and the score with neighbours.

    Shapes:  int64[m], f64[m], f64[m]
    """

    documents: npt.NDArray[np.int64]
    own: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]


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


class Words:
    """A dictionary of words."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._words: list[bytes] = []

    def __len__(self) -> int:
        return len(self._words)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._words)) + 150 * len(self._words)

    def word(self, number: int) -> bytes:
        return self._words[number]

    def intern(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        numbers: list[int] = []
        offsets = [0]
        for text in texts:
            for word in words_of(text):
                if word not in self._numbers:
                    self._numbers[word] = len(self._words)
                    self._words.append(word)
                numbers.append(self._numbers[word])
            offsets.append(len(numbers))
        return np.array(numbers, np.uint32), np.array(offsets, np.int64)


def frequency_of(count: int) -> int:
    """Return a count rounded down to the nearest frequency that the index keeps."""
    return COUNTS[bisect_right(COUNTS, count) - 1]


class Postings:
    """The documents that contain each term, with frequencies."""

    def __init__(self) -> None:
        self._lists: dict[int, list[tuple[int, int]]] = {}

    @property
    def nbytes(self) -> int:
        return sum(100 + 100 * len(entries) for entries in self._lists.values())

    def add(
        self,
        first: int,
        words: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        term_starts: Growing,
        term_ids: Growing,
        word_flags: Growing,
        _terms: int,
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        starts, ids = term_starts.array.tolist(), term_ids.array.tolist()
        lengths, flags = [], []
        for at in range(len(offsets) - 1):
            numbers = words[offsets[at] : offsets[at + 1]].tolist()
            held = Counter(term for word in numbers for term in ids[starts[word] : starts[word + 1]])
            for term, count in held.items():
                self._lists.setdefault(term, []).append((first + at, frequency_of(count)))
            lengths.append(held.total())
            flags.append(int(np.bitwise_or.reduce(word_flags.array[numbers], initial=0)) if numbers else 0)
        return np.array(lengths, np.uint32), np.array(flags, np.uint8)

    def reader(self) -> IndexReader:
        return IndexReader(self._lists)


class IndexReader:
    """Postings; only documents within a mask count."""

    def __init__(self, lists: dict[int, list[tuple[int, int]]]) -> None:
        self._lists = lists

    def _entries(self, term: int, mask: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
        entries = self._lists.get(term, ())
        return [(document, held) for document, held in entries if document < len(mask) and mask[document]]

    def count(self, terms: npt.NDArray[np.uint32], mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.array([len(self._entries(term, mask)) for term in terms.tolist()], np.int64)

    def documents(self, term: int, mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return np.array([document for document, _ in self._entries(term, mask)], np.int64)

    def scores(
        self,
        words: Sequence[QueryWord],
        mask: npt.NDArray[np.uint8],
        kept: npt.NDArray[np.uint8],
        lengths: npt.NDArray[np.uint32],
        rule: KeywordRule,
        boost: NeighbourBoost | None,
        given: npt.NDArray[np.int64],
    ) -> WordScores:
        sizes = lengths.tolist()
        own, scores = [0.0] * len(mask), [0.0] * len(mask)
        for word in words:
            reached = [0.0] * len(mask)
            for term, strength in zip(list(word.terms), list(word.strengths), strict=True):
                for document, held in self._entries(term, mask):
                    room = rule.k1 * (1 - rule.b + rule.b * (sizes[document] / rule.mean_length))
                    reached[document] = max(reached[document], strength * ((rule.k1 + 1) * held / (held + room)))
            for document in np.flatnonzero(mask).tolist():
                alone = reached[document]
                together = alone if boost is None else _with_boost(reached, document, boost)
                own[document] += _saturated(alone, word.idf, rule.saturate)
                scores[document] += _saturated(together, word.idf, rule.saturate)
        wanted = given.tolist()
        known = set(wanted)
        if len(known) < len(wanted) or not known <= set(range(len(mask))):
            raise InvalidValue(field="given", reason="outside its range")
        wanted += [at for at in np.flatnonzero(kept[: len(mask)]).tolist() if scores[at] > 0 and at not in known]
        return WordScores(
            np.array(wanted, np.int64),
            np.array([own[at] for at in wanted], np.float64),
            np.array([scores[at] for at in wanted], np.float64),
        )

    def phrase(
        self,
        packed: Sequence[bytes],
        part_starts: npt.NDArray[np.uint64],
        part_ids: npt.NDArray[np.uint32],
        _words: int,
        phrase: npt.NDArray[np.uint32],
    ) -> npt.NDArray[np.uint32]:
        starts, ids, phrase_ids = part_starts.tolist(), part_ids.tolist(), phrase.tolist()
        out = []
        for item in packed:
            parts = [part for word in unpack(item) for part in ids[starts[word] : starts[word + 1]]]
            places = range(len(parts) - len(phrase_ids) + 1)
            out.append(sum(parts[at : at + len(phrase_ids)] == phrase_ids for at in places))
        return np.array(out, np.uint32)


def pack(words: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the words of each span as bytes: seven bits a byte, lowest first, the high bit set where more follow."""
    return [_pack(words[offsets[at] : offsets[at + 1]].tolist()) for at in range(len(offsets) - 1)]


def _pack(words: Sequence[int]) -> bytes:
    out = bytearray()
    for word in words:
        while word >= 0x80:
            out.append(word & 0x7F | 0x80)
            word >>= 7
        out.append(word)
    return bytes(out)


def unpack(packed: bytes) -> list[int]:
    """Return the words that ``pack`` made into bytes."""
    out, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            out.append(value)
            value, shift = 0, 0
    return out
