"""Columns of a mirror, and hash tables from a record's ordinal or id to its row number: a few bytes per row.

A dictionary takes nearly 200 bytes a row, for objects that repeat what the columns hold. Slots hold row numbers; the
column at that row decides whether a slot is the key's. One thread writes. Other threads may look up meanwhile: a slot
is written after its row, and a larger table replaces the old one in one assignment.

Source: Knuth, The Art of Computer Programming, 6.4 (linear probing); design, section 5.
"""

from __future__ import annotations

import functools
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from caliber.schema.relation import ColumnType, Relation, Residence
from caliber.storage.compile.codec import Row, codec_of, damaged

_FEW = 1_024


class SegmentedColumn:
    """One column of a mirror. Shapes: ``[n]``, or ``[n, width]``."""

    def __init__(self, dtype: DTypeLike, segment_rows: int, width: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._rows = segment_rows
        self._width = width
        self.segments: list[NDArray[Any]] = []

    def segment(self, number: int) -> NDArray[Any]:
        """Return one segment, created on first use."""
        while len(self.segments) <= number:
            shape = (self._rows, self._width) if self._width else (self._rows,)
            # Untouched pages of a fresh segment cost address space, not memory.
            self.segments.append(np.empty(shape, self._dtype))
        return self.segments[number]

    def put(self, row: int, value: Any) -> None:
        """Write the value of a row that no reader can see yet."""
        self.segment(row // self._rows)[row % self._rows] = value

    def put_many(self, start: int, values: NDArray[Any]) -> None:
        """Write the values of rows that no reader can see yet."""
        if not self.segments and len(values) <= self._rows and not self._width:  # a small mirror that is loaded
            self.segments.append(np.empty(self._rows, self._dtype))
            self.segments[0][: len(values)] = values
            return
        done = 0
        while done < len(values):
            row = start + done
            at = row % self._rows
            count = min(self._rows - at, len(values) - done)
            self.segment(row // self._rows)[at : at + count] = values[done : done + count]
            done += count

    def at(self, row: int) -> Any:
        """Return the value of one row."""
        return self.segments[row // self._rows][row % self._rows]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of rows in any order. Shapes: rows ``[m]`` -> ``[m]``, or ``[m, width]``."""
        if len(self.segments) == 1:
            only: NDArray[Any] = self.segments[0][rows]
            return only
        out = np.empty((len(rows), self._width) if self._width else len(rows), self._dtype)
        segment_of = rows // self._rows
        # For the few rows of a commit a set is faster.
        numbers = set(segment_of.tolist()) if len(rows) <= _FEW else np.unique(segment_of).tolist()
        for number in numbers:
            chosen = segment_of == number
            out[chosen] = self.segments[number][rows[chosen] % self._rows]
        return out

    def view(self, length: int) -> NDArray[Any]:
        """Return the first ``length`` rows; without a copy while they fit one segment."""
        if length <= self._rows:
            view = self.segment(0)[:length]
        else:
            full, rest = divmod(length, self._rows)
            parts = self.segments[:full] + ([self.segments[full][:rest]] if rest else [])
            view = np.concatenate(parts)
        view.flags.writeable = False
        return view

    def nbytes(self, length: int) -> int:
        """Return the bytes that ``length`` rows take."""
        return length * self._dtype.itemsize * (self._width or 1)


class Columns(dict[str, SegmentedColumn]):
    """The columns of a mirror by name; each is made when it is first needed, since most mirrors stay empty."""

    def __init__(self, dtypes: Mapping[str, np.dtype[Any]], segment_rows: int) -> None:
        super().__init__()
        self._dtypes = dtypes
        self._rows = segment_rows

    def __missing__(self, name: str) -> SegmentedColumn:
        # In one step of the interpreter: a reader and the writer may need it at once.
        return self.setdefault(name, SegmentedColumn(self._dtypes[name], self._rows))


PAIR: Final = struct.Struct(">QQ")
NO_ID: Final = "a stored reference is damaged: it is no id"
HASH_BITS: Final = 64
HASH_MASK: Final = (1 << HASH_BITS) - 1
_LEAST_BITS: Final = 6
_FREE: Final = -1
# Ids come from outside, and must not be made to collide.
HASH_HIGH: Final = secrets.randbits(HASH_BITS) | 1
HASH_LOW: Final = secrets.randbits(HASH_BITS) | 1
_EMPTY: Final[NDArray[np.int32]] = np.full(1 << _LEAST_BITS, _FREE, np.int32)
"""The table of all that hold nothing yet, as most tables of most stores. Never written."""
_EMPTY.flags.writeable = False


class OrdinalTable:
    """Rows by a column of whole numbers."""

    def __init__(self, keys: SegmentedColumn) -> None:
        self._keys = keys
        self._used = 0
        self._shift = HASH_BITS - _LEAST_BITS
        self.table = _EMPTY

    def __len__(self) -> int:
        return self._used

    def get(self, key: Any, default: int = -1) -> int:
        """Return the row of a key."""
        table = self.table
        slot = self._slot(table, *self._parts(key))
        row = table.item(slot)
        return default if row < 0 else row

    def __setitem__(self, key: Any, row: int) -> None:
        """Let a key stand for a row that holds it."""
        slot = self._slot(self.table, *self._parts(key))
        if self.table.item(slot) < 0:
            if self._is_full(1):
                self._grow(1)
                slot = self._slot(self.table, *self._parts(key))
            self._used += 1
        self.table[slot] = row

    def rows(self) -> Iterator[int]:
        """Return the row of each key there is."""
        return iter(self.table[self.table >= 0].tolist())

    def extend(self, start: int, count: int) -> list[tuple[int, int]]:
        """Add the keys of rows from ``start``; return each row whose key another row stands for, and that row."""
        if self._is_full(count):
            self._grow(count)
        return self._insert(np.arange(start, start + count, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def _is_full(self, more: int) -> bool:
        return self.table is _EMPTY or 3 * (self._used + more) > 2 * len(self.table)

    def _grow(self, more: int) -> None:
        # In a separate table: readers use the old one until this is complete.
        larger = type(self)(self._keys)
        bits = max(_LEAST_BITS, (3 * (self._used + more) // 2).bit_length())
        larger._shift, larger.table = HASH_BITS - bits, np.full(1 << bits, _FREE, np.int32)
        larger._insert(self.table[self.table >= 0].astype(np.int64))
        self._shift, self.table = larger._shift, larger.table

    def _insert(self, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        table, last = self.table, len(self.table) - 1
        keys = self._keys_at(rows)
        slots = self._home(keys)
        taken: list[tuple[int, int]] = []
        while len(rows):
            free = table[slots] < 0
            table[slots[free]] = rows[free]
            found = table[slots]
            is_own = found == rows
            self._used += int(np.count_nonzero(is_own))
            other = np.flatnonzero(~is_own)
            if not len(other):
                break
            same = self._same(keys[other], self._keys_at(found[other].astype(np.int64)))
            taken.extend(zip(rows[other[same]].tolist(), found[other[same]].tolist(), strict=True))
            pending = other[~same]
            rows, keys, slots = rows[pending], keys[pending], (slots[pending] + 1) & last
        return sorted(taken)

    def _slot(self, table: NDArray[np.int32], high: int, low: int) -> int:
        last = len(table) - 1
        slot = ((high * HASH_HIGH + low * HASH_LOW) & HASH_MASK) >> (HASH_BITS + 1 - len(table).bit_length())
        while (row := table.item(slot)) >= 0 and not self._is(row, high, low):
            slot = (slot + 1) & last
        return slot

    def _keys_at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self._keys.take(rows)

    # Methods that depend on the kind of key.

    def _parts(self, key: Any) -> tuple[int, int]:
        return 0, key

    def _is(self, row: int, high: int, low: int) -> bool:
        return (high, self._keys.at(row)) == (0, low)

    def _home(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        mixed: NDArray[np.uint64] = np.multiply(keys.astype(np.uint64), np.uint64(HASH_LOW))
        return (mixed >> np.uint64(self._shift)).astype(np.int64)

    def _same(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = one == other
        return found


class KeyTable(OrdinalTable):
    """Rows by a column of ids, as big-endian pairs of 64 bits; looked up by 16 bytes."""

    __slots__ = ()

    def get(self, key: Any, default: int = -1) -> int:
        """Return the row of a key."""
        try:
            high, low = pair = [*PAIR.unpack(key)]
        except struct.error:
            raise damaged(NO_ID) from None
        mixed = (high * HASH_HIGH + low * HASH_LOW) & HASH_MASK
        # As above, without a call for each step.
        table = self.table
        last = len(table) - 1
        slot = mixed >> (HASH_BITS - last.bit_length())
        while (row := table.item(slot)) >= 0:
            if self._keys.at(row).tolist() == pair:
                return row
            slot = (slot + 1) & last
        return default

    def get_all(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row of each key, -1 for a key without one. Shapes: ``[m, 2]`` -> ``[m]``."""
        table = self.table
        last = len(table) - 1
        out = np.full(len(keys), _FREE, np.int64)
        mixed = keys[:, 0] * np.uint64(HASH_HIGH) + keys[:, 1] * np.uint64(HASH_LOW)
        slots = (mixed >> np.uint64(HASH_BITS - last.bit_length())).astype(np.int64)
        left = np.arange(len(keys))
        while len(left):
            rows = table[slots].astype(np.int64)
            used = rows >= 0
            left, slots, rows = left[used], slots[used], rows[used]
            own = self._same(keys[left], self._keys_at(rows))
            out[left[own]] = rows[own]
            left, slots = left[~own], (slots[~own] + 1) & last
        return out

    def _parts(self, key: Any) -> tuple[int, int]:
        high, low = PAIR.unpack(key)
        return high, low

    def _is(self, row: int, high: int, low: int) -> bool:
        found: bool = self._keys.at(row).tolist() == [high, low]
        return found

    def _home(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        pairs: NDArray[np.uint64] = keys
        mixed: NDArray[np.uint64] = pairs[:, 0] * np.uint64(HASH_HIGH) + pairs[:, 1] * np.uint64(HASH_LOW)
        return (mixed >> np.uint64(self._shift)).astype(np.int64)

    def _same(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (one == other).all(axis=1)
        return found


_DTYPES = {
    ColumnType.INT: np.int64,
    ColumnType.INSTANT: np.int64,
    ColumnType.FLOAT: np.float64,
    ColumnType.BOOL: np.uint8,
    ColumnType.ENUM: np.int8,
}


class Layout:
    """Places of columns in rows, and their types in memory."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.codec = codec_of(relation)
        self.key_places = tuple(self.codec.index(name) for name in relation.key)
        self.version_place = self.codec.index("version")
        texts = [column.name for column in relation.columns if column.residence is Residence.TEXT]
        self.text_place = self.codec.index(texts[0]) if texts else -1
        self.stored = [self.codec.index(each.name) for each in relation.columns if each.residence is Residence.STORED]
        self.absent = (*([self.text_place] if texts else ()), *self.stored)
        """Places whose values may be in the store alone."""
        self.columns: list[tuple[str, int, Residence, ColumnType, Any]] = []
        self.enum_codes: dict[str, dict[str, int]] = {}
        for column in relation.columns:
            if column.residence in (Residence.COLUMN, Residence.FLAG, Residence.INTERNED):
                place = self.codec.index(column.name)
                self.columns.append((column.name, place, column.residence, column.type, column.resident_null))
                if column.enum is not None:
                    self.enum_codes[column.name] = {member.value: code for code, member in enumerate(column.enum)}
        self.dtypes = {name: np.dtype(self.dtype_of(residence, kind)) for name, _, residence, kind, _ in self.columns}
        self.row_bytes: int = sum(dtype.itemsize for dtype in self.dtypes.values())
        """Bytes of a row in its columns."""
        self.interned = tuple(name for name, _, residence, *_ in self.columns if residence is Residence.INTERNED)
        self.converters = {
            name: self._converter(name, residence, kind, null) for name, _, residence, kind, null in self.columns
        }
        """From a stored value to the array's; None where they are the same, or the mirror has one of its own."""
        self.groups = tuple((name, self.codec.index(name)) for name in relation.resident.groups)
        # Values that columns hold unchanged are left out of the packed row; an instant takes 13 bytes there.
        self.held = tuple(
            (name, place)
            for name, place, residence, kind, null in self.columns
            if residence is Residence.COLUMN and kind is ColumnType.INSTANT and null is None
        )
        self.has_tie = len(relation.key) == 1 and relation.column(relation.key[0]).type is ColumnType.UUID
        self.residences = {column.name: column.residence for column in relation.columns}
        """How a column is queried: a key of one id is looked up, wherever it is stored."""
        if self.has_tie:
            self.residences[relation.key[0]] = Residence.COLUMN
        # The flags of records that are no part of the sequence any more, where records follow each other.
        self.withdrawn = () if relation.neighbours is None else relation.active
        places = {0, self.text_place, *(place for _, place in self.held), *(self.key_places if self.has_tie else ())}
        self.gaps = tuple(places - {-1})
        """Places that a packed row leaves empty."""

    def _converter(self, name: str, residence: Residence, kind: ColumnType, null: Any) -> Callable[[Any], Any] | None:
        if residence is Residence.FLAG:
            return lambda value: value is not None
        if residence is Residence.INTERNED:
            return None
        if kind is ColumnType.ENUM:
            codes: dict[Any, Any] = self.enum_codes[name] | ({} if null is None else {None: null})
            return codes.__getitem__
        if null is not None:
            return lambda value: null if value is None else value
        return None

    def key_of(self, row: Row) -> bytes:
        """Return the bytes a row is looked up by."""
        if len(self.key_places) == 1:
            key: bytes = row[self.key_places[0]]
            return key
        return b"\x00".join(
            part if isinstance(part, bytes) else str(part).encode() for part in (row[p] for p in self.key_places)
        )

    def dtype_of(self, residence: Residence, kind: ColumnType) -> Any:
        if residence is Residence.FLAG:
            return np.uint8
        if residence is Residence.INTERNED:
            return np.int32
        return _DTYPES[kind]


layout_of = functools.cache(Layout)
"""The layout of a relation, which all stores share."""
