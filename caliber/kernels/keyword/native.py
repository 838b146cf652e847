"""C-backed dictionary, postings and scoring of the keyword index, in buffers that Python owns and enlarges."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import dispatch
from caliber.kernels.growing import Growing
from caliber.kernels.keyword.query import KeywordRule, NeighbourBoost, QueryWord, WordScores
from caliber.model.errors import InvalidValue

_NONE = 0xFFFFFFFF
_SCRATCH_LEAST, _SCRATCH_KEPT = 4_096, 1 << 19
"""Documents, at 16 bytes each."""
_SEGMENTS_MAX = 65_535
"""Addresses of postings have 32 bits."""


class _Table(NamedTuple):
    """The buffers of a dictionary and the struct that points to them, which counts its words."""

    arena: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.uint64]
    slots: npt.NDArray[np.uint32]
    struct: Any


class NativeWords:
    """A dictionary of words in native arrays.

    The count is in the struct that C updates, and a larger table replaces the old one in one assignment: an interrupted
    call leaves the dictionary consistent.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._seed = secrets.randbits(64)
        arena, starts = np.empty(8 * capacity, np.uint8), np.zeros(capacity + 1, np.uint64)
        self._table = self._made(dispatch.native(), arena, starts, np.zeros(4 * capacity, np.uint32), 0)

    def __len__(self) -> int:
        return int(self._table.struct.count)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._table[:3])

    def word(self, number: int) -> bytes:
        """Return the bytes of a word."""
        table = self._table
        return table.arena[int(table.starts[number]) : int(table.starts[number + 1])].tobytes()

    def intern(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return the words of each text as numbers; see ``Vocabulary.intern``."""
        native = dispatch.native()
        count = len(texts)
        joined = b"".join(texts)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, count), out=offsets[1:])
        # A word has a byte at least, and a pair of characters needs no more than the bytes of its first.
        ids = np.empty(len(joined), np.uint32)
        id_offsets = np.zeros(count + 1, np.int64)
        buffer, done = native.ffi.from_buffer, native.ffi.new("size_t *")
        while True:
            status = native.lib.cal_words_intern(
                self._table.struct,
                buffer("uint8_t[]", joined),
                len(joined),
                buffer("int64_t[]", offsets),
                count,
                buffer("uint32_t[]", ids),
                len(ids),
                buffer("int64_t[]", id_offsets),
                done,
            )
            dispatch.check(status, offsets="texts")
            if done[0] == count:
                return ids[: id_offsets[-1]], id_offsets
            self._grow(native)

    def _made(
        self,
        native: dispatch.Native,
        arena: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        count: int,
    ) -> _Table:
        buffer = native.ffi.from_buffer
        struct = native.ffi.new(
            "cal_words *",
            [
                buffer("uint32_t[]", slots),
                len(slots),
                buffer("uint64_t[]", starts),
                buffer("uint8_t[]", arena),
                len(arena),
                len(starts) - 1,
                count,
                self._seed,
            ],
        )
        return _Table(arena, starts, slots, struct)

    def _grow(self, native: dispatch.Native) -> None:
        before, count = self._table, len(self)
        used = int(before.starts[count])
        arena = np.empty(2 * len(before.arena) + 512, np.uint8)
        arena[:used] = before.arena[:used]
        starts = np.zeros(2 * (len(before.starts) - 1) + 1, np.uint64)
        starts[: count + 1] = before.starts[: count + 1]
        larger = self._made(native, arena, starts, np.zeros(2 * len(before.slots), np.uint32), count)
        dispatch.check(native.lib.cal_words_rehash(larger.struct))
        self._table = larger


def pack_words(words: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the words of each span as bytes: seven bits a byte, lowest first, the high bit set where more follow."""
    native = dispatch.native()
    buffer = native.ffi.from_buffer
    count = len(offsets) - 1
    packed = np.empty(5 * len(words) + 5, np.uint8)
    sizes = np.zeros(count + 1, np.int64)
    status = native.lib.cal_words_pack(
        buffer("uint32_t[]", words),
        buffer("int64_t[]", offsets),
        count,
        buffer("uint8_t[]", packed),
        len(packed),
        buffer("int64_t[]", sizes),
    )
    dispatch.check(status)
    whole = packed[: sizes[-1]].tobytes()
    edges = sizes.tolist()
    return [whole[start:end] for start, end in itertools.pairwise(edges)]


class _Segments:
    """Entries in arrays that never move, and the table of their addresses."""

    __slots__ = ("arrays", "table")

    def __init__(self, native: dispatch.Native, arrays: list[npt.NDArray[np.uint32]]) -> None:
        self.arrays = arrays
        buffer = native.ffi.from_buffer
        self.table = native.ffi.new("uint32_t *[]", [buffer("uint32_t[]", array) for array in arrays])


class NativePostings:
    """Postings in native segments."""

    def __init__(self) -> None:
        self._segments: list[npt.NDArray[np.uint32]] = []
        self._used = 0
        self._first = Growing(np.uint32, fill=_NONE)
        self._chain = Growing(np.uint32, fill=_NONE)
        self._tail = Growing(np.uint32)
        self._left = Growing(np.uint16)
        self._level = Growing(np.uint8)
        self._table: _Segments | None = None

    @property
    def nbytes(self) -> int:
        terms = (self._first, self._chain, self._tail, self._left, self._level)
        return sum(array.nbytes for array in terms) + sum(segment.nbytes for segment in self._segments)

    def add(
        self,
        first: int,
        words: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        term_starts: Growing,
        term_ids: Growing,
        word_flags: Growing,
        terms: int,
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Add documents ``first``, ``first + 1``, …; return how many terms each holds, and its words' flags."""
        native = dispatch.native()
        buffer = native.ffi.from_buffer
        for column in (self._first, self._chain, self._tail, self._left, self._level):
            column.reserve(terms)
        count = len(offsets) - 1
        lengths, flags = np.zeros(count, np.uint32), np.zeros(count, np.uint8)
        counts, touched = np.zeros(max(1, terms), np.uint32), np.empty(max(1, terms), np.uint32)
        done = native.ffi.new("size_t *")
        at = 0
        while at < count:
            table = self._segment_table(native)
            struct = self._struct(native, table, terms)
            status = native.lib.cal_postings_add(
                struct,
                first + at,
                buffer("uint32_t[]", words),
                buffer("int64_t[]", offsets[at:]),
                count - at,
                buffer("uint64_t[]", term_starts.array),
                buffer("uint32_t[]", term_ids.array),
                buffer("uint8_t[]", word_flags.array),
                term_starts.length - 1,
                buffer("uint32_t[]", counts),
                buffer("uint32_t[]", touched),
                buffer("uint32_t[]", lengths[at:]),
                buffer("uint8_t[]", flags[at:]),
                done,
            )
            dispatch.check(status, overflow="documents")
            self._used = int(struct.used)
            at += int(done[0])
            if at < count:
                if len(self._segments) == _SEGMENTS_MAX:
                    raise InvalidValue(field="texts", reason="the index is full: its postings take 16 GiB")
                size = native.lib.CAL_POSTING_SEGMENT
                self._segments = [*self._segments, np.full(size, _NONE, np.uint32)]
                self._table = None
        return lengths, flags

    def _segment_table(self, native: dispatch.Native) -> _Segments:
        if self._table is None:
            self._table = _Segments(native, self._segments)
        return self._table

    def _struct(self, native: dispatch.Native, table: _Segments, terms: int) -> Any:
        buffer = native.ffi.from_buffer
        return native.ffi.new(
            "cal_postings *",
            [
                table.table,
                len(table.arrays),
                terms,
                buffer("uint32_t[]", self._first.array),
                buffer("uint32_t[]", self._chain.array),
                buffer("uint32_t[]", self._tail.array),
                buffer("uint16_t[]", self._left.array),
                buffer("uint8_t[]", self._level.array),
                self._used,
            ],
        )

    def reader(self) -> NativeReader:
        """Return the postings as they are now."""
        native = dispatch.native()
        table = self._segment_table(native)
        terms = len(self._first.array)
        keep = (table, self._first.array, self._chain.array, self._tail.array, self._left.array, self._level.array)
        return NativeReader(native, self._struct(native, table, terms), keep)


class _Scratch(threading.local):
    """Scratch space of scoring: a zero for each document, zero again afterwards. A thread keeps one of usual size."""

    documents = 0
    module: Any = None
    memory: tuple[Any, Any, Any] = (None, None, None)

    def of(self, native: dispatch.Native, documents: int) -> tuple[Any, Any, Any]:
        if documents <= self.documents and native.lib is self.module:
            return self.memory
        buffer = native.ffi.from_buffer
        size = max(documents, _SCRATCH_LEAST)
        memory = (
            buffer("double[]", np.zeros(size)),
            buffer("uint32_t[]", np.zeros(size, np.uint32)),
            buffer("uint32_t[]", np.zeros(size, np.uint32)),
        )
        if size <= _SCRATCH_KEPT:
            self.documents, self.module, self.memory = size, native.lib, memory
        return memory


_scratch = _Scratch()


class NativeReader:
    """A snapshot of postings; later additions have higher document numbers, which no caller requests."""

    __slots__ = ("_keep", "_native", "_struct")

    def __init__(self, native: dispatch.Native, struct: Any, keep: tuple[Any, ...]) -> None:
        self._native = native
        self._struct = struct
        self._keep = keep  # pointers of the struct do not keep their arrays alive

    def count(self, terms: npt.NDArray[np.uint32], mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        native = self._native
        buffer = native.ffi.from_buffer
        counts = np.zeros(len(terms), np.int64)
        status = native.lib.cal_postings_count(
            self._struct,
            buffer("uint32_t[]", terms),
            len(terms),
            len(mask),
            buffer("uint8_t[]", mask),
            buffer("int64_t[]", counts),
        )
        if status:
            dispatch.check(status, overflow="documents")
        return counts

    def documents(self, term: int, mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        native = self._native
        buffer = native.ffi.from_buffer
        room = int(self.count(np.array([term], np.uint32), mask)[0])
        found = np.empty(room, np.int64)
        count = native.ffi.new("size_t *")
        status = native.lib.cal_postings_documents(
            self._struct, term, len(mask), buffer("uint8_t[]", mask), buffer("int64_t[]", found), room, count
        )
        dispatch.check(status, overflow="documents")
        return found

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
        native = self._native
        ffi = native.ffi
        buffer = ffi.from_buffer
        count = len(mask)
        # A few numbers each: lists become memory of C faster than arrays would.
        groups: list[int] = [0]
        terms: list[Any] = []
        strengths: list[Any] = []
        idfs: list[float] = []
        for some, strong, idf in words:
            if len(some) != len(strong):
                raise InvalidValue(field="words", reason="a strength for each term")
            terms += some
            strengths += strong
            idfs.append(idf)
            groups.append(len(terms))
        # Written as far as needed: untouched pages of a large array cost nothing.
        found, own, scores = np.empty(count, np.int64), np.empty(count), np.empty(count)
        found[: len(given)] = given
        packed = ffi.new("cal_lending *")
        if boost is not None:
            packed.before, packed.after = buffer("int64_t[]", boost.before), buffer("int64_t[]", boost.after)
            packed.asks = buffer("uint8_t[]", boost.asks)
            packed.near, packed.far, packed.answer = boost.near, boost.far, boost.answer
        found_count = ffi.new("size_t *")
        status = native.lib.cal_keyword_scores(
            self._struct,
            ffi.new("int64_t[]", groups),
            ffi.new("uint32_t[]", terms),
            ffi.new("double[]", strengths),
            ffi.new("double[]", idfs),
            len(words),
            count,
            buffer("uint8_t[]", mask),
            buffer("uint8_t[]", kept),
            buffer("uint32_t[]", lengths),
            rule.k1,
            rule.b,
            rule.mean_length,
            rule.saturate,
            packed,
            *_scratch.of(native, count),
            len(given),
            buffer("int64_t[]", found),
            buffer("double[]", own),
            buffer("double[]", scores),
            found_count,
        )
        if status:
            dispatch.check(status, overflow="documents", argument="given")
        size = int(found_count[0])
        return WordScores(found[:size], own[:size], scores[:size])

    def phrase(
        self,
        packed: Sequence[bytes],
        part_starts: npt.NDArray[np.uint64],
        part_ids: npt.NDArray[np.uint32],
        words: int,
        phrase: npt.NDArray[np.uint32],
    ) -> npt.NDArray[np.uint32]:
        native = self._native
        buffer = native.ffi.from_buffer
        count = len(packed)
        matches = np.zeros(count, np.uint32)
        sizes = np.fromiter(map(len, packed), np.int64, count)
        # One buffer, and the place of each document in it: asking each for its own takes longer than reading it.
        joined = buffer("uint8_t[]", b"".join(packed))
        places = np.cumsum(sizes) - sizes + int(native.ffi.cast("intptr_t", joined))
        status = native.lib.cal_phrase_matches(
            buffer("uint8_t *[]", places.astype(np.intp)),
            buffer("int64_t[]", sizes),
            count,
            buffer("uint64_t[]", part_starts),
            buffer("uint32_t[]", part_ids),
            words,
            buffer("uint32_t[]", phrase),
            len(phrase),
            buffer("uint32_t[]", matches),
        )
        dispatch.check(status)
        return matches
