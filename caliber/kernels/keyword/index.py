"""Append-only inverted index in memory: dictionary, postings, phrase lookup and BM25 scoring.

A text is cut into words by one scan (rules: csrc/include/caliber.h). The caller supplies the analysis of a word, its
parts and terms, once per distinct word; postings are kept by term. Readers hold a ``KeywordSnapshot`` while one thread
adds documents.

Source: M §1.3; Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009); design sections 5
and 6.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.growing import ByteRows, Growing
from caliber.kernels.keyword.native import NativePostings, NativeReader, NativeWords, pack_words
from caliber.kernels.keyword.query import KeywordRule, NeighbourBoost, QueryWord, WordScores
from caliber.model.deadline import deadline_passed, remaining_s
from caliber.model.errors import DTypeError, InvalidValue

__all__ = [
    "PHRASE_MAX",
    "Analysis",
    "KeywordIndex",
    "KeywordRule",
    "KeywordSnapshot",
    "NeighbourBoost",
    "QueryWord",
    "Vocabulary",
    "WordScores",
    "words_of",
]

PHRASE_MAX = 32
"""Parts of the longest phrase."""
DOCUMENTS_MAX = 2**28 - 1

_NUMBER_MAX = 2**32 - 1
_NOTHING = np.zeros(0, np.int64)
_BATCH_DOCUMENTS = 4096
_SCANNED = 4096
"""Size at which a dictionary used for scanning only is cleared."""
_LEARNED = 1024
"""Words that are learned while others wait."""
_BATCH_BYTES = 1 << 18
"""Text scanned in one call: bounds the memory reserved for new words."""


class Analysis(NamedTuple):
    """The analysis of a word: its parts in a row, for phrases, and the terms it is found by.

    ``flags`` are eight bits of the caller's; a document has those of all its words.
    """

    parts: tuple[str, ...]
    terms: tuple[str, ...]
    flags: int = 0


class Vocabulary:
    """Every distinct word of one store, and its analysis by ``analyze``. Shared by its indexes.

    ``analyze`` gets each distinct word once, as written.
    """

    def __init__(self, analyze: Callable[[str], Analysis]) -> None:
        self._analyze = analyze
        self.lock = threading.RLock()
        self._words = NativeWords()
        self.terms: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self._term_texts: list[str] = []
        self._part_texts: list[str] = []
        self._sorted_parts: list[str] = []
        self.terms_of_part: dict[int, tuple[int, ...]] = {}
        self._ways: dict[int, int] = {}  # to hold a term: parts that stand for it, and words that do as a whole
        self.term_starts, self.term_ids = Growing(np.uint64), Growing(np.uint32)
        self.part_starts, self.part_ids = Growing(np.uint64), Growing(np.uint32)
        self.word_flags = Growing(np.uint8)
        self.term_starts.append(0)
        self.part_starts.append(0)
        self._text_bytes = 0

    def __len__(self) -> int:
        return len(self._words)

    def intern(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return the words of each text as numbers, span i at ``offsets[i] : offsets[i + 1]``; new words are analysed.

        Shapes:  n texts -> words uint32[w], offsets int64[n + 1] Raises:  Unavailable when the time of the call is up;
        what was learned until then is kept
        """
        with self.lock:
            words, offsets = self._words.intern(texts)
            count = len(self._words)
        while self._learn_some(count):
            if remaining_s() == 0:
                raise deadline_passed("words were learned")
        return words, offsets

    def _learn_some(self, until: int) -> bool:
        """Analyse words up to ``until``, in a batch that other threads can wait for; return whether more remain."""
        with self.lock:
            # From the last completely analysed word on: an interrupted call left words without an analysis.
            learned = self.word_flags.length
            end = min(until, learned + _LEARNED)
            if learned < end:
                self._learn([self._words.word(number).decode("utf-8") for number in range(learned, end)])
            return end < until

    def word(self, number: int) -> str:
        """Return a word as written."""
        return self._words.word(number).decode("utf-8")

    def spellings(self, texts: Sequence[bytes]) -> list[tuple[str, ...]]:
        """Return the parts of the words of each text, in order."""
        with self.lock:
            words, offsets = self.intern(texts)
            starts = self.part_starts.array.astype(np.int64)
            first = starts[words]
            counts = starts[words.astype(np.int64) + 1] - first
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            at = np.arange(ends[-1]) + np.repeat(first - ends[:-1], counts)
            parts = [self._part_texts[number] for number in self.part_ids.array[at].tolist()]
        bounds = ends[offsets].tolist()
        return [tuple(parts[start:stop]) for start, stop in pairwise(bounds)]

    def _learn(self, words: Sequence[str]) -> None:
        """Take in the words that come next; none of them is known before all are."""
        learned = self.word_flags.length
        self.part_starts.length = self.term_starts.length = learned + 1
        self.part_ids.length = int(self.part_starts.array[learned])
        self.term_ids.length = int(self.term_starts.array[learned])
        part_ids: list[int] = []
        term_ids: list[int] = []
        part_ends, term_ends, flags = [], [], []
        for word in words:
            analysis = self._analyze(word)
            parts = [self._number(self.parts, self._part_texts, part) for part in analysis.parts]
            terms = [self._number(self.terms, self._term_texts, term) for term in dict.fromkeys(analysis.terms)]
            for part, text in zip(parts, analysis.parts, strict=True):
                if part not in self.terms_of_part:
                    alone = analysis if len(parts) == 1 else self._analyze(text)
                    numbers = [self._number(self.terms, self._term_texts, term) for term in alone.terms]
                    self.terms_of_part[part] = tuple(dict.fromkeys(numbers))
                    self._count_ways(self.terms_of_part[part])
            # Counted twice for a word that is learned again: then a text is read that need not be.
            by_part = {term for part in parts for term in self.terms_of_part[part]}
            self._count_ways([term for term in terms if term not in by_part])
            part_ids += parts
            term_ids += terms
            part_ends.append(self.part_ids.length + len(part_ids))
            term_ends.append(self.term_ids.length + len(term_ids))
            flags.append(analysis.flags)
        self.part_ids.extend(part_ids)
        self.part_starts.extend(part_ends)
        self.term_ids.extend(term_ids)
        self.term_starts.extend(term_ends)
        self.word_flags.extend(flags)  # last: now the words are known

    def _count_ways(self, terms: Sequence[int]) -> None:
        for term in terms:
            self._ways[term] = self._ways.get(term, 0) + 1

    def term_texts(self, start: int, stop: int) -> list[str]:
        """Return the terms numbered from ``start`` up to ``stop``."""
        return self._term_texts[start:stop]

    def part_texts(self, start: int, stop: int) -> list[str]:
        """Return the parts numbered from ``start`` up to ``stop``."""
        return self._part_texts[start:stop]

    def terms_beginning(self, beginning: str) -> dict[int, tuple[int, ...]]:
        """Return the terms of the parts that begin with a text, in the order of their letters.

        With each come the parts that begin so, if a document may hold the term without one of them; else none.
        """
        with self.lock:
            if len(self._sorted_parts) != len(self._part_texts):
                self._sorted_parts = sorted(self._part_texts)
            parts = self._sorted_parts
        start = bisect_left(parts, beginning)
        stop = bisect_right(parts, beginning, lo=start, key=lambda part: part[: len(beginning)])
        found: dict[int, list[int]] = {}
        for number in (self.parts[part] for part in parts[start:stop]):
            for term in self.terms_of_part.get(number, ()):
                found.setdefault(term, []).append(number)
        return {
            term: () if len(found[term]) == self._ways.get(term) else tuple(found[term])
            for term in sorted(found, key=self._term_texts.__getitem__)
        }

    def is_sole_spelling(self, part: int) -> bool:
        """Return whether every document that holds the term of a part holds the part."""
        terms = self.terms_of_part.get(part, ())
        return len(terms) == 1 and self._ways.get(terms[0]) == 1

    def _number(self, numbers: dict[str, int], texts: list[str], text: str) -> int:
        number = numbers.get(text)
        if number is None:
            number = len(numbers)
            del texts[number:]  # of a call that was interrupted here
            texts.append(text)
            numbers[text] = number
            self._text_bytes += len(text) + 150  # the entry, its key and its value
        return number

    @property
    def nbytes(self) -> int:
        """Bytes of the dictionary, texts of parts and terms included."""
        arrays = (self.term_starts, self.term_ids, self.part_starts, self.part_ids, self.word_flags)
        return self._words.nbytes + self._text_bytes + sum(array.nbytes for array in arrays) + 100 * len(self._ways)


class KeywordIndex:
    """Documents numbered from 0, and which terms they hold. Written by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.dictionary = vocabulary
        self._postings = NativePostings()
        self._lengths, self._flags = Growing(np.uint32), Growing(np.uint8)
        self._packed = ByteRows()

    def __len__(self) -> int:
        return self._lengths.length

    def append(self, texts: Sequence[bytes], flags: Sequence[int] | None = None) -> None:
        """Add documents, with flags besides those of their words.

        Raises:  DTypeError, InvalidValue beyond 2^28 - 1 documents
        """
        if flags is not None and len(flags) != len(texts):
            raise InvalidValue(field="flags", reason="one for each text")
        at = 0
        while at < len(texts):
            size, end = 0, at
            while end < len(texts) and (end == at or size < _BATCH_BYTES):
                if not isinstance(texts[end], bytes):
                    raise DTypeError(field="texts", expected="bytes", got=type(texts[end]).__name__)
                size += len(texts[end])
                end += 1
            words, offsets = self.dictionary.intern(texts[at:end])
            document_flags = None if flags is None else np.array(flags[at:end], np.uint8)
            with self.dictionary.lock:  # a snapshot is taken between two batches
                self._add(words, offsets, document_flags)
            at = end

    def selected(self, documents: Sequence[int]) -> KeywordIndex:
        """Return a new index of some documents, renumbered in the order given; their texts are not needed."""
        fresh = KeywordIndex(self.dictionary)
        for start in range(0, len(documents), _BATCH_DOCUMENTS):
            chosen = documents[start : start + _BATCH_DOCUMENTS]
            fresh._add(*_unpacked([self._packed[at] for at in chosen]), self._flags.array[list(chosen)])
        return fresh

    def _add(
        self,
        words: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        own_flags: npt.NDArray[np.uint8] | None,
    ) -> None:
        first, count = self._lengths.length, len(offsets) - 1
        if first + count >= DOCUMENTS_MAX:
            raise InvalidValue(field="texts", reason=f"an index holds at most {DOCUMENTS_MAX} texts")
        vocabulary = self.dictionary
        lengths, flags = self._postings.add(
            first,
            words,
            offsets,
            vocabulary.term_starts,
            vocabulary.term_ids,
            vocabulary.word_flags,
            len(vocabulary.terms),
        )
        self._packed.extend(pack_words(words, offsets))
        self._flags.extend(flags if own_flags is None else flags | own_flags)
        # Last: a reader's number of documents comes from here.
        self._lengths.extend(lengths)

    def snapshot(self) -> KeywordSnapshot:
        """Return the index as it is now."""
        return KeywordSnapshot(self)

    @property
    def nbytes(self) -> int:
        """Bytes of postings, lengths and words, without the vocabulary."""
        return self._postings.nbytes + self._lengths.nbytes + self._flags.nbytes + self._packed.nbytes

    def reader(self) -> NativeReader:
        """Return a snapshot of the postings; later additions are not visible in it."""
        return self._postings.reader()

    def packed(self, documents: Sequence[int]) -> list[bytes]:
        """Return the words of documents."""
        return self._packed.take(documents)

    def flags(self) -> npt.NDArray[np.uint8]:
        """Return the flags of each document's words."""
        return self._flags.array[: self._lengths.length]

    def lengths(self) -> npt.NDArray[np.uint32]:
        """Return how many terms each document holds."""
        return self._lengths.array[: self._lengths.length]


class KeywordSnapshot:
    """An index as it was once; safe to read from any thread while the index grows."""

    __slots__ = (
        "_flagged",
        "_index",
        "_part_ids",
        "_part_starts",
        "_reader",
        "_words",
        "dictionary",
        "flags",
        "length",
        "lengths",
    )

    def __init__(self, index: KeywordIndex) -> None:
        self.dictionary = vocabulary = index.dictionary
        with vocabulary.lock:
            self.lengths, self.flags = index.lengths(), index.flags()
            self.length = len(self.lengths)
            self._index = index
            self._flagged: dict[int, npt.NDArray[np.uint8]] = {}
            self._reader = index.reader()
            self._words = len(vocabulary)
            self._part_starts, self._part_ids = vocabulary.part_starts.array, vocabulary.part_ids.array

    def flagged(self, flag: int) -> npt.NDArray[np.uint8]:
        """Return a nonzero flag for each document that has it. Shapes: ``uint8[length]``."""
        found = self._flagged.get(flag)
        if found is None:
            found = self._flagged[flag] = self.flags & np.uint8(flag)
        return found

    def counts(self, terms: Sequence[int] | npt.NDArray[np.int64], mask: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return how many documents in ``mask`` contain each term.

        Shapes:  mask bool or uint8[n], n <= length: later documents do not count -> int64[terms] Raises:  DTypeError,
        ShapeError, InvalidValue
        """
        flags = self._mask(mask)
        return self._reader.count(_numbers(terms, "terms"), flags)

    def documents(self, term: int, mask: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the documents in ``mask`` that contain a term, ascending."""
        flags = self._mask(mask)
        checks.whole(term, field="term", high=_NUMBER_MAX)
        return self._reader.documents(term, flags)

    def scores(
        self,
        words: Sequence[QueryWord],
        mask: npt.NDArray[Any],
        rule: KeywordRule,
        boost: NeighbourBoost | None = None,
        *,
        kept: npt.NDArray[Any] | None = None,
        given: npt.NDArray[np.int64] | None = None,
    ) -> WordScores:
        """Return the documents that match words, and their scores: without and with the boost by neighbours.

        Found is what both masks let through and has a score above 0; what ``kept`` leaves out still lends. ``given``
        documents, different ones, come first whatever their score, the others in no particular order. The formula, and
        the order of its operations, is in csrc/include/caliber.h, ``cal_keyword_scores``. A term's count in a document
        is, above 8, rounded down to 10, 12, 16, 24, 32, 64, 128 or 256.

        Shapes:  mask, kept bool or uint8[n], n <= length; given int64[g] -> int64[m], f64[m], f64[m] Raises:
        DTypeError, ShapeError, InvalidValue
        """
        flags = self._mask(mask)
        keep = flags if kept is None or kept is mask else checks.flags(kept, len(flags), field="kept")
        if not (rule.mean_length > 0 and rule.k1 >= 0 and 0 <= rule.b <= 1 and rule.saturate >= 0):
            raise InvalidValue(field="rule", reason="needs mean_length > 0, k1 >= 0, b in [0, 1] and saturate >= 0")
        if boost is not None:
            checks.at_least(boost.before, checks.I64, len(flags), field="boost.before")
            checks.at_least(boost.after, checks.I64, len(flags), field="boost.after")
            checks.at_least(boost.asks, checks.U8, len(flags), field="boost.asks")
        first = _NOTHING if given is None else checks.view(given, checks.I64, 1, field="given")
        if len(first) > len(flags):
            raise InvalidValue(field="given", reason="exceeds the number of documents")
        return self._reader.scores(words, flags, keep, self.lengths, rule, boost, first)

    def phrase(self, parts: Sequence[int], documents: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Return how often the parts occur consecutively in each of ``documents``.

        Shapes:  1 to ``PHRASE_MAX`` parts; documents int64[m] -> uint32[m] Raises:  DTypeError, ShapeError,
        InvalidValue
        """
        if not 1 <= len(parts) <= PHRASE_MAX:
            raise InvalidValue(field="parts", reason=f"a phrase has 1 to {PHRASE_MAX} parts")
        numbers = checks.row_ids(documents, self.length, field="documents")
        packed = self._index.packed(numbers.tolist())
        return self._reader.phrase(packed, self._part_starts, self._part_ids, self._words, _numbers(parts, "parts"))

    def words(self, documents: Sequence[int]) -> list[list[int]]:
        """Return the numbers of the words of some documents, in the order of their texts."""
        numbers, edges = _unpacked(self._index.packed(documents))
        words = numbers.tolist()
        return [words[start:end] for start, end in pairwise(edges.tolist())]

    def _mask(self, mask: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        length = len(mask) if getattr(mask, "ndim", 0) == 1 else self.length
        if length > self.length:
            raise InvalidValue(field="mask", reason=f"the index holds {self.length} documents")
        return checks.flags(mask, length, field="mask")


def _numbers(values: Sequence[int] | npt.NDArray[np.int64], field: str) -> npt.NDArray[np.uint32]:
    """Return numbers of terms or parts as C wants them. Raises: InvalidValue."""
    if type(values) is list and values and min(values) >= 0 and max(values) <= _NUMBER_MAX:
        return np.array(values, np.uint32)
    wide = np.asarray(values, np.int64)
    # As unsigned numbers, negative values are the largest of all: one pass checks both bounds.
    if len(wide) and int(wide.view(np.uint64).max()) > _NUMBER_MAX:
        raise InvalidValue(field=field, reason=f"a number is outside [0, {_NUMBER_MAX}]")
    return wide.astype(np.uint32)


def _unpacked(packed: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the words and offsets that ``pack_words`` packed into bytes."""
    data = np.frombuffer(b"".join(packed), np.uint8)
    edges = np.zeros(len(packed) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, packed), np.int64, len(packed)), out=edges[1:])
    last = data < 0x80
    before = np.concatenate(([0], np.cumsum(last)))  # words that end before each byte
    starts = np.flatnonzero(np.concatenate(([True], last[:-1]))) if len(data) else np.zeros(0, np.int64)
    place = np.arange(len(data)) - starts[before[:-1]]
    values = (data & 0x7F).astype(np.uint32) << (7 * place).astype(np.uint32)
    words = np.add.reduceat(values, starts) if len(data) else np.zeros(0, np.uint32)
    return words.astype(np.uint32), before[edges].astype(np.int64)


class _Scanner(threading.local):
    """A dictionary of one thread, for texts that are only cut into words."""

    module: Any = None
    words: NativeWords
    texts: list[bytes]

    def of(self, text: bytes) -> list[bytes]:
        module = dispatch.native().lib
        if module is not self.module or len(self.texts) > _SCANNED:
            self.words, self.texts, self.module = NativeWords(), [], module
        numbers, _ = self.words.intern([text])
        words, texts = self.words, self.texts
        texts.extend(words.word(number) for number in range(len(texts), len(words)))
        return [texts[number] for number in numbers.tolist()]


_scanner = _Scanner()


def words_of(text: bytes) -> list[bytes]:
    """Return the words of a text, in their order, as an index would find them."""
    return _scanner.of(text)
