"""In-memory copy of one relation: column arrays and packed rows, and its snapshots at commit boundaries.

The arrays hold the columns that filters and ranking use, the packed rows the rest.

An update appends the new row and retires the old one; a delete retires. Readers hold a ``RelationSnapshot``: a length,
a live mask and the generation they belong to. Nothing they can see ever changes, except that texts may leave memory,
which reading them reports as ``EVICTED``.
"""

from __future__ import annotations

import copy
import marshal
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from caliber.kernels import KeywordIndex, KeywordSnapshot
from caliber.kernels.evaluator import NUMPY, Evaluator
from caliber.kernels.growing import ByteRows, Interner
from caliber.resident.chain import Chain
from caliber.resident.tables import PAIR, Columns, KeyTable, Layout, SegmentedColumn
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.storage.compile.codec import Row

T = TypeVar("T")
V = TypeVar("V", bound=tuple[Any, ...] | bytes)


class _Evicted:
    __slots__ = ()

    def __repr__(self) -> str:
        return "EVICTED"


EVICTED: Final = _Evicted()
"""Placeholder in a mirror for an evicted text; the store still has it."""
TEXTS_AT_ONCE: Final = 4_096
"""Texts left memory because they are many: they do not come back all at once."""

_REMEMBERED: Final = 256
"""Groups of rows, and other things worked out from a boundary, that it remembers."""
_READING_PARTS: Final = 65_536
"""Words and digests of all that readers worked out and a generation remembers; then it begins anew."""
_READING_BYTES: Final = 64  # of one: a short text, and its place in a tuple

_ROW_BYTES: Final = 8 + 8 + 16
"""Of a row's ordinal, its previous version and its tie."""

_ENTRY_BYTES: Final = 49 + 104 + 28
"""Measured on CPython 3.11 to 3.14: the dict entry of a key of some 16 bytes."""


FEW: Final = 8
"""Rows that are loaded one by one: for them, arrays of columns take longer."""


class Generation:
    """The memory of one relation between two compactions. Written by one thread at a time."""

    def __init__(self, layout: Layout, segment_rows: int) -> None:
        self.layout = layout
        self.segment_rows = segment_rows
        self.length = 0
        self.dead = 0
        self.evict_at = 0
        self.packed = ByteRows()
        self.texts: list[Any] = []
        self.text_bytes = 0
        self.live: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.ordinals = SegmentedColumn(np.int64, segment_rows)
        self.previous = SegmentedColumn(np.int64, segment_rows)
        self.ties = SegmentedColumn(np.uint64, segment_rows, 2)
        self.index: KeyTable | dict[bytes, int] = KeyTable(self.ties) if layout.has_tie else {}
        self.arrays = Columns(layout.dtypes, segment_rows)
        self.groups: dict[str, dict[bytes, list[int]]] = {name: {} for name, _ in layout.groups}
        self.interners = {name: Interner() for name in layout.interned}
        self._converters: dict[str, Callable[[Any], Any] | None] = {**layout.converters, **self.interners}
        self._open: Any = None
        self._held: dict[int, list[tuple[int, Callable[[int], Any]]]] = {}
        self._readings: dict[str, dict[int, Any]] = {}
        self._reading_parts = 0
        # Built at the first search.
        self.keywords: KeywordIndex | None = None
        self.chain: Chain | None = None

    # --- writing ---------------------------------------------------------------------------------

    def resident_value(self, column: str, value: Any) -> Any:
        """Return the value of a resident column for a stored value."""
        convert = self._converters[column]
        return value if convert is None else convert(value)

    def _grow_live(self, length: int) -> None:
        if length > len(self.live):
            grown = np.zeros(max(length, 2 * len(self.live), 256), np.bool_)
            grown[: len(self.live)] = self.live
            self.live = grown

    def append(self, row: Row, old: int | None = None) -> int:
        """Add a row as the newest of its key and return its number; retiring the ``old`` one is the caller's.

        None: looked up.
        """
        layout = self.layout
        number = self.length
        key = layout.key_of(row)
        at = number % self.segment_rows
        if at == 0 or not self._open:
            self._open_segments(number)
        ordinals, previous, ties, columns = self._open
        ordinals[at] = row[0]
        previous[at] = self.index.get(key, -1) if old is None else old
        if layout.has_tie:
            ties[at] = PAIR.unpack(key)
        for segment, place, convert in columns:
            value = row[place]
            segment[at] = value if convert is None else convert(value)
        self._add_texts((row,))
        self.packed.append(self._packed(row))
        for name, place in layout.groups:
            value = row[place]
            if value is not None:
                self.groups[name].setdefault(value, []).append(number)
        self._grow_live(number + 1)
        self.live[number] = True
        self.length = number + 1
        self.index[key] = number
        return number

    def _open_segments(self, number: int) -> None:
        """Look up once a segment where the next rows go, so that appending is plain assignments."""
        segment = number // self.segment_rows
        columns = [
            (self.arrays[name].segment(segment), place, self._converters[name])
            for name, place, *_ in self.layout.columns
        ]
        fixed = [column.segment(segment) for column in (self.ordinals, self.previous, self.ties)]
        self._open = (*fixed, columns)

    def _add_texts(self, rows: Sequence[Row]) -> None:
        if (place := self.layout.text_place) >= 0:
            texts = [row[place] for row in rows]
            self.texts += texts
            self.text_bytes += sum(map(len, filter(None, texts)))

    def _packed(self, row: Row) -> bytes:
        """Return a row without what columns and texts hold."""
        rest = list(row)
        for place in self.layout.gaps:
            rest[place] = None
        for place in self.layout.stored:
            rest[place] = None if rest[place] is None else True
        return marshal.dumps(rest)

    def load(self, rows: Sequence[Row]) -> None:
        """Add rows in bulk, of keys that are new."""
        layout, start, count = self.layout, self.length, len(rows)
        if count <= FEW:
            ids = [place for _, place in layout.groups] + list(layout.key_places) * layout.has_tie
            for row in rows:
                for place in ids:
                    if row[place] is not None and len(row[place]) != PAIR.size:
                        raise ValueError("no id")
                self.append(row)
            return
        self.ordinals.put_many(start, np.fromiter(map(itemgetter(0), rows), np.int64, count))
        self.previous.put_many(start, np.full(count, -1, np.int64))
        if layout.has_tie:
            joined = b"".join(map(itemgetter(layout.key_places[0]), rows))
            self.ties.put_many(start, np.frombuffer(joined, ">u8").reshape(count, 2).astype(np.uint64))
        for name, place, residence, kind, null in layout.columns:
            convert, stored = self._converters[name], [row[place] for row in rows]
            converted: Iterable[Any] = stored
            if isinstance(convert, Interner):
                converted = convert.of_all(stored)
            elif null is not None and residence is Residence.COLUMN and kind is not ColumnType.ENUM:
                converted = [null if value is None else value for value in stored]
            elif convert is not None:
                converted = map(convert, stored)
            self.arrays[name].put_many(start, np.fromiter(converted, layout.dtypes[name], count))
        self._add_texts(rows)
        self.packed.extend(map(self._packed, rows))
        if isinstance(self.index, KeyTable):
            for number, _ in self.index.extend(start, count):
                self.index[layout.key_of(rows[number - start])] = number
        else:
            self.index.update((layout.key_of(row), number) for number, row in enumerate(rows, start))
        for name, place in layout.groups:
            group = self.groups[name]
            for number, row in enumerate(rows, start):
                value = row[place]
                if value is not None:
                    if len(value) != PAIR.size:
                        raise ValueError("no id")
                    group.setdefault(value, []).append(number)
        self._grow_live(start + count)
        self.live[start : start + count] = True
        self.length = start + count
        self._open = None  # the next row may be in another segment

    def newest(self, keys: Sequence[bytes]) -> Sequence[int] | NDArray[np.int64]:
        """Return the number of the newest row of each key, or -1."""
        index = self.index
        if len(keys) <= FEW or not isinstance(index, KeyTable) or set(map(len, keys)) != {PAIR.size}:
            return [index.get(key, -1) for key in keys]
        return index.get_all(np.frombuffer(b"".join(keys), ">u8").reshape(-1, 2).astype(np.uint64))

    def retire(self, numbers: Iterable[int]) -> None:
        """Hide rows from the snapshots to come; those already out keep their own mask."""
        numbers = list(numbers)
        if not numbers:
            return
        live = self.live.copy()
        live[numbers] = False
        self.live = live
        self.dead += len(numbers)

    def evict_texts(self, wanted_bytes: int) -> int:
        """Let the oldest texts leave memory until ``wanted_bytes`` are free; return how many bytes are."""
        freed = 0
        while freed < wanted_bytes and self.evict_at < len(self.texts):
            text = self.texts[self.evict_at]
            if text is not None and text is not EVICTED:
                freed += len(text)
                self.texts[self.evict_at] = EVICTED
            self.evict_at += 1  # first: no reader keeps anything of this row from here on
            for readings in list(self._readings.values()):
                readings.pop(self.evict_at - 1, None)
        self.text_bytes -= freed
        return freed

    @property
    def column_bytes(self) -> int:
        """Bytes of everything but texts."""
        fixed = (self.layout.row_bytes + _ROW_BYTES) * self.length
        fixed += 0 if self.keywords is None else self.keywords.nbytes
        fixed += 0 if self.chain is None else self.chain.nbytes
        fixed += _READING_BYTES * self._reading_parts
        index = self.index.nbytes if isinstance(self.index, KeyTable) else _ENTRY_BYTES * len(self.index)
        return fixed + len(self.live) + self.packed.nbytes + index

    def compacted(self) -> Generation:
        """Return a new generation with the live rows only."""
        fresh = Generation(self.layout, self.segment_rows)
        numbers = np.flatnonzero(self.live[: self.length]).tolist()
        rows = [self.row(number) for number in numbers]
        evicted = [
            at for at, row in enumerate(rows) if self.layout.text_place >= 0 and row[self.layout.text_place] is EVICTED
        ]
        if evicted:
            place = self.layout.text_place
            for at in evicted:
                rows[at] = (*rows[at][:place], None, *rows[at][place + 1 :])
        fresh.load(rows)
        for at in evicted:
            fresh.texts[at] = EVICTED
        if self.keywords is not None:
            indexed = len(self.keywords)
            fresh.keywords = self.keywords.selected([number for number in numbers if number < indexed])
        return fresh

    def row(self, number: int, *, text: bool = True) -> Row:
        """Return a row as the driver stores it; what is in the store alone is EVICTED, a text not wanted None."""
        row: list[Any] = marshal.loads(self.packed[number])
        segment, at = divmod(number, self.segment_rows)
        held = self._held.get(segment) or self._held_in(segment)
        for place, item in held:  # columns that hold values unchanged supply theirs
            row[place] = item(at)
        if self.layout.has_tie:
            item = self.ties.segments[segment].item
            row[self.layout.key_places[0]] = PAIR.pack(item(at, 0), item(at, 1))
        if text and self.layout.text_place >= 0:
            row[self.layout.text_place] = self.texts[number]
        for place in self.layout.stored:
            if row[place] is not None:
                row[place] = EVICTED
        return tuple(row)

    def readings(self, what: str) -> dict[int, Any]:
        """Return a thing that readers worked out from rows, by row: a constant of each version; only to look up."""
        return self._readings.get(what, {})

    def read_once(self, what: str, rows: Sequence[int], read: Callable[[list[int]], Iterable[V]]) -> list[V]:
        """Return a value of each row that ``read`` makes once; it is kept for as long as the text is in memory."""
        known: list[V | None] = list(map(self.readings(what).get, rows))
        if None not in known:
            return cast(list[V], known)
        found = dict(zip(rows, known, strict=True))
        new = [row for row, value in found.items() if value is None]
        for row, value in zip(new, read(new) if new else (), strict=True):
            found[row] = value
            if self._reading_parts >= _READING_PARTS:
                self._readings, self._reading_parts = {}, 0
            self._reading_parts += len(value) if isinstance(value, tuple) else 2
            readings = self._readings.setdefault(what, {})
            readings[row] = value
            if row < self.evict_at:  # asked last: its text left, or is leaving meanwhile
                readings.pop(row, None)
        return [cast(V, found[row]) for row in rows]

    def strings(self) -> Iterator[str | bytes]:
        """Yield every string and text of every row, deleted ones included, and the words that were read from them."""
        for number in range(self.length):
            yield from (value for value in self.row(number) if isinstance(value, str | bytes))
        for readings in list(self._readings.values()):
            yield from (word for words in list(readings.values()) if isinstance(words, tuple) for word in words)

    def _held_in(self, segment: int) -> list[tuple[int, Callable[[int], Any]]]:
        """Look up once a segment where the values of its rows are."""
        held: list[tuple[int, Callable[[int], Any]]] = [(0, self.ordinals.segment(segment).item)]
        held.extend((place, self.arrays[name].segment(segment).item) for name, place in self.layout.held)
        self._held[segment] = held
        return held


class RelationSnapshot:
    """One relation as it was at one commit boundary. Safe to read from any thread while others write."""

    def __init__(self, generation: Generation, evaluator: Evaluator = NUMPY) -> None:
        self.generation = generation
        self.evaluator = evaluator  # how loops over its columns run
        self.layout = generation.layout
        self.relation: Relation = generation.layout.relation  # kept: a window asks for it a hundred times
        self.length = generation.length
        self.live_mask = generation.live[: generation.length]
        self.dead = generation.dead  # with the length it orders two boundaries
        self.partial = False  # whether live rows are hidden: caches of a generation must not see it
        self._cache: dict[str, NDArray[Any]] = {}
        self._remembered: dict[Hashable, Any] = {}
        self.keywords: KeywordSnapshot | None = None  # built at the first keyword search

    def count(self) -> int:
        """Return how many live rows there are."""
        return int(np.count_nonzero(self.live_mask))

    def column(self, name: str) -> NDArray[Any]:
        """Return a resident column over all rows, dead ones included. Shapes: ``[length]``."""
        cached = self._cache.get(name)
        if cached is None:
            source = self.generation.ordinals if name == "ordinal" else self.generation.arrays[name]
            cached = self._cache[name] = source.view(self.length)
        return cached

    def ties(self) -> NDArray[np.uint64]:
        """Return ids as big-endian pairs, in whose order equal scores are broken. Shapes: ``[length, 2]``."""
        cached = self._cache.get("\x00ties")
        if cached is None:
            cached = self._cache["\x00ties"] = self.generation.ties.view(self.length)
        return cached

    def interned(self, name: str) -> list[Any]:
        """Return the distinct values of an interned column; codes index it."""
        return self.generation.interners[name].values

    def interned_codes(self, name: str) -> Mapping[Any, int]:
        """Return the codes of the values, as stored, of an interned column.

        A writer may append while this is read: some may be codes that no row of this boundary has.
        """
        return self.generation.interners[name].codes

    def in_order(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """Return the distinct values, but None, of an interned column in order, and their codes; only to look up."""
        return self.generation.interners[name].in_order()

    def enum_code(self, name: str, value: str) -> int:
        """Return the code that stands for an enum's value in its column."""
        return self.layout.enum_codes[name][value]

    def find(self, key: bytes) -> int:
        """Return the row number of a key at this boundary, or -1."""
        number = self.generation.index.get(key, -1)
        while number >= self.length:
            number = int(self.generation.previous.at(number))
        if number >= 0 and self.live_mask[number]:
            return number
        return -1

    def find_all(self, keys: Sequence[bytes]) -> list[int]:
        """Return the row number of each key at this boundary, or -1; at once, of a relation whose keys are ids."""
        if not self.length or not isinstance(self.generation.index, KeyTable):
            return [self.find(key) for key in keys]
        pairs = np.frombuffer(b"".join(keys), ">u8").reshape(-1, 2).astype(np.uint64)
        found: list[int] = self.find_ids(pairs).tolist()
        return found

    def find_ids(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row number of each id at this boundary, or -1. Shapes: ids ``[n, 2]``, as of ``ties``."""
        index = self.generation.index
        if not self.length or not isinstance(index, KeyTable):
            return np.full(len(ids), -1, np.int64)
        numbers = index.get_all(ids).astype(np.int64)
        for place in np.flatnonzero(numbers >= self.length).tolist():
            numbers[place] = self.current(int(numbers[place]))
        numbers[~self.live_mask[numbers]] = -1
        return numbers

    def current(self, number: int) -> int:
        """Return the row that stood for row ``number``'s key at this boundary, or -1."""
        while number >= self.length:
            number = int(self.generation.previous.at(number))
        return number

    def group(self, name: str, key: bytes) -> NDArray[np.int64]:
        """Return the live rows whose column ``name`` is ``key``, in the order they were written; read-only.

        Of records that follow each other, those in use: a turn that was rolled back is no part of the conversation.
        """
        cached: NDArray[np.int64] | None = self._remembered.get((name, key))
        if cached is not None:
            return cached
        rows = np.array(self.generation.groups[name].get(key, ()), np.int64)
        rows = rows[rows < self.length]
        rows = rows[self.standing_mask[rows]]
        rows.flags.writeable = False
        return self._remember((name, key), rows)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a value that ``make`` works out from this boundary the first time it is asked."""
        cached: T | None = self._remembered.get(key)
        return self._remember(key, make()) if cached is None else cached

    def _remember(self, key: Hashable, value: T) -> T:
        # A boundary is read for a few tasks at a time: windows of one ask again and again.
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = value
        return value

    @property
    def standing_mask(self) -> NDArray[np.bool_]:
        """The live rows; of records that follow each other, those of them that are in use."""
        if not self.layout.withdrawn:
            return self.live_mask
        cached = self._cache.get("\x00standing")
        if cached is None:
            cached = self.live_mask
            for name in self.layout.withdrawn:
                cached = cached & (self.column(name) == 0)
            self._cache["\x00standing"] = cached
        return cached

    def among(self, mask: NDArray[np.bool_] | None, columns: Mapping[str, NDArray[Any]]) -> RelationSnapshot:
        """Return the same boundary with the live rows in a mask alone, None for all, and other values of columns."""
        part = copy.copy(self)
        part.live_mask, part.partial = self.live_mask if mask is None else self.live_mask & mask, True
        part._remembered, part._cache = {}, dict(columns)
        return part

    def rows(self) -> NDArray[np.int64]:
        """Return the numbers of all live rows."""
        return np.flatnonzero(self.live_mask)

    def row(self, number: int) -> Row:
        """Return one row as the driver stores it; an evicted text is EVICTED."""
        return self.generation.row(number)

    def packed(self, number: int) -> Row:
        """Return one row with None in place of its text: cheaper, when the text is not needed."""
        return self.generation.row(number, text=False)

    def packed_values(self, column: str, numbers: Sequence[int], needle: bytes = b"") -> list[Any]:
        """Return the values of rows in a packed column, as the driver stores them; None for rows without a needle."""
        place, rows = self.layout.codec.index(column), self.generation.packed.take(numbers)
        return [marshal.loads(row)[place] if needle in row else None for row in rows]

    def stored(self, column: Column, numbers: Sequence[int]) -> list[Any]:
        """Return the values of rows in a column that is not that of texts, as the driver stores them."""
        name = column.name
        if self.layout.has_tie and name == self.relation.key[0]:
            keys = self.ties()[numbers].astype(">u8").tobytes()
            return [keys[at : at + 16] for at in range(0, len(keys), 16)]
        if column.residence is Residence.INTERNED:
            values = self.interned(name)
            return [values[code] for code in self.column(name)[numbers].tolist()]
        if column.residence is Residence.COLUMN and column.enum is None:
            whole: list[Any] = self.column(name)[numbers].tolist()
            null = column.resident_null
            return whole if null is None else [None if value == null else value for value in whole]
        return self.packed_values(name, numbers)

    def packed_rows(self, columns: Sequence[str], numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the values of rows in several packed columns, as the driver stores them."""
        pick = itemgetter(*map(self.layout.codec.index, columns))
        return [pick(marshal.loads(row)) for row in self.generation.packed.take(numbers)]

    def text(self, number: int) -> Any:
        """Return the text of a row: bytes, str, None or EVICTED."""
        return self.generation.texts[number]

    def entity_id(self, number: int) -> uuid.UUID:
        """Return the id of a row."""
        high, low = self.generation.ties.at(number)
        return uuid.UUID(int=(int(high) << 64) | int(low))

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[bytes]:
        """Return the ids of rows as bytes."""
        raw = self.ties().take(numbers, axis=0).astype(">u8").tobytes()
        return [raw[at : at + PAIR.size] for at in range(0, len(raw), PAIR.size)]

    def entity_ids(self, numbers: Sequence[int]) -> list[uuid.UUID]:
        """Return the ids of rows; several times cheaper than ``UUID(int=...)`` of each."""
        made = list(map(object.__new__, [uuid.UUID] * len(numbers)))
        for value, (high, low) in zip(made, self.ties().take(numbers, axis=0).tolist(), strict=True):
            object.__setattr__(value, "int", high << 64 | low)
            object.__setattr__(value, "is_safe", uuid.SafeUUID.unknown)
        return made
