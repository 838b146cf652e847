"""Hash tables from a record's ordinal or id to its row number: open addressing, a few bytes per row.

A dictionary takes nearly 200 bytes a row, for objects that repeat what the columns hold. Slots hold row numbers; the
column at that row decides whether a slot is the key's. One thread writes. Other threads may look up meanwhile: a slot
is written after its row, and a larger table replaces the old one in one assignment.

Source: Knuth, The Art of Computer Programming, 6.4 (linear probing); design, section 5.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.resident.columns import SegmentedColumn
from caliber.storage.compile.damage import damaged

_PAIR: Final = struct.Struct(">QQ")
HASH_BITS: Final = 64
_ALL: Final = (1 << HASH_BITS) - 1
_LEAST_BITS: Final = 6
_FREE: Final = -1
# Ids come from outside, and must not be made to collide.
_HIGH: Final = secrets.randbits(HASH_BITS) | 1
_LOW: Final = secrets.randbits(HASH_BITS) | 1
_EMPTY: Final[NDArray[np.int32]] = np.full(1 << _LEAST_BITS, _FREE, np.int32)
"""The table of all that hold nothing yet, as most tables of most stores. Never written."""
_EMPTY.flags.writeable = False


class OrdinalTable:
    """Rows by a column of whole numbers."""

    __slots__ = ("_keys", "_shift", "_used", "table")

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
        slot = ((high * _HIGH + low * _LOW) & _ALL) >> (HASH_BITS + 1 - len(table).bit_length())
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
        mixed: NDArray[np.uint64] = np.multiply(keys.astype(np.uint64), np.uint64(_LOW))
        return (mixed >> np.uint64(self._shift)).astype(np.int64)

    def _same(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = one == other
        return found


def spread(key: bytes) -> tuple[list[int], int]:
    """Return an id as a pair, and its hash, whose first bits are its slot in a table. Raises: StorageError."""
    try:
        high, low = pair = _PAIR.unpack(key)
    except struct.error:
        raise damaged("a stored reference is damaged: it is no id") from None
    return list(pair), (high * _HIGH + low * _LOW) & _ALL


class KeyTable(OrdinalTable):
    """Rows by a column of ids, as big-endian pairs of 64 bits; looked up by 16 bytes."""

    __slots__ = ()

    def get(self, key: Any, default: int = -1) -> int:
        """Return the row of a key."""
        pair, mixed = spread(key)
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
        mixed = keys[:, 0] * np.uint64(_HIGH) + keys[:, 1] * np.uint64(_LOW)
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
        high, low = _PAIR.unpack(key)
        return high, low

    def _is(self, row: int, high: int, low: int) -> bool:
        found: bool = self._keys.at(row).tolist() == [high, low]
        return found

    def _home(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        pairs: NDArray[np.uint64] = keys
        mixed: NDArray[np.uint64] = pairs[:, 0] * np.uint64(_HIGH) + pairs[:, 1] * np.uint64(_LOW)
        return (mixed >> np.uint64(self._shift)).astype(np.int64)

    def _same(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (one == other).all(axis=1)
        return found
