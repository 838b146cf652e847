"""Growable NumPy arrays (``Growing``), rows of bytes (``ByteRows``) and codes of values (``Interner``).

A reader's view stays unchanged. Arrays double in capacity on append. Rows of bytes have any length, and lie in blocks:
there is no object per row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt


class Growing:
    """One array with room for more. Written by one thread at a time."""

    __slots__ = ("array", "fill", "length")

    def __init__(self, dtype: npt.DTypeLike, *, fill: int = 0, capacity: int = 256) -> None:
        self.fill = fill
        self.length = 0
        self.array: npt.NDArray[Any] = np.full(capacity, fill, dtype)

    def reserve(self, length: int) -> None:
        """Have room for ``length`` elements in all; new elements hold ``fill``."""
        have = len(self.array)
        if length > have:
            grown = np.full(max(length, 2 * have), self.fill, self.array.dtype)
            grown[:have] = self.array
            self.array = grown

    def extend(self, values: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add values at the end."""
        end = self.length + len(values)
        self.reserve(end)
        self.array[self.length : end] = values
        self.length = end

    def append(self, value: int) -> None:
        """Add one value at the end."""
        self.reserve(self.length + 1)
        self.array[self.length] = value
        self.length += 1

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


class ByteRows:
    """Rows of bytes one after another in blocks: no object a row. Written by one thread at a time."""

    __slots__ = ("_blocks", "_ends", "_length", "_rows", "open")

    def __init__(self, block_rows: int = 256) -> None:
        self._rows = block_rows
        self._length = 0
        self.open = bytearray()
        self._blocks: list[bytes | bytearray] = []
        self._ends: list[array[int]] = []

    def __len__(self) -> int:
        return self._length

    def append(self, row: bytes) -> None:
        """Add a row at the end."""
        if self._length % self._rows == 0:
            if self._blocks:
                self._blocks[-1] = bytes(self.open)  # without the room it had to grow
            self.open = bytearray()
            self._blocks.append(self.open)
            self._ends.append(array("I"))
        ends = self._ends[-1]
        # Overwrites the rest of an interrupted append.
        self.open[ends[-1] if ends else 0 :] = row
        ends.append(len(self.open))
        self._length += 1

    def extend(self, rows: Iterable[bytes]) -> None:
        """Add rows at the end, whole blocks at once."""
        rows, at = list(rows), 0
        while at < len(rows):
            self.append(rows[at])
            # The rest of the block that this row is in.
            more = rows[at + 1 : at + 1 + -self._length % self._rows]
            self.open += b"".join(more)
            ends = self._ends[-1]
            ends.extend(islice(accumulate(map(len, more), initial=ends[-1]), 1, None))
            self._length += len(more)
            at += 1 + len(more)

    def __getitem__(self, number: int) -> bytes:
        block, at = divmod(number, self._rows)
        ends = self._ends[block]
        # Sliced, not viewed: a block that is looked into could not grow.
        return bytes(self._blocks[block][ends[at - 1] if at else 0 : ends[at]])

    def take(self, numbers: Iterable[int]) -> list[bytes]:
        """Return some rows in one call: a phrase search reads thousands."""
        rows, blocks, ends = self._rows, self._blocks, self._ends
        out = []
        for number in numbers:
            block, at = divmod(number, rows)
            edges = ends[block]
            out.append(bytes(blocks[block][edges[at - 1] if at else 0 : edges[at]]))
        return out

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(self._length))

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._blocks)) + sum(ends.itemsize * len(ends) for ends in self._ends)


_FEW: Final = 16
"""New values that are put in their places one by one, not sorted with all others."""


class Interner:
    """Gives each distinct value a code; ``values`` is the list that codes index."""

    __slots__ = ("_in_order", "codes", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.codes: dict[Any, int] = {}
        self._in_order: tuple[int, list[Any], npt.NDArray[np.int64]] = (0, [], np.empty(0, np.int64))

    def __call__(self, value: Any) -> int:
        code = self.codes.get(value)
        if code is None:
            code = len(self.values)
            self.values.append(value)
            self.codes[value] = code
        return code

    def in_order(self) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """Return the values but None in order, and the code of each; only to look up. Kept until there are more.

        Shapes:  int64[values]
        """
        counted, values, codes = self._in_order
        count = len(self.values)
        if counted < count:
            new = [code for code in range(counted, count) if self.values[code] is not None]
            if len(new) > _FEW:
                order = sorted([*codes.tolist(), *new], key=self.values.__getitem__)
                values, codes = [self.values[code] for code in order], np.array(order, np.int64)
            else:
                values = values.copy()  # others look things up in the old one
                for code in new:
                    at = bisect_left(values, self.values[code])
                    values.insert(at, self.values[code])
                    codes = np.insert(codes, at, code)
            self._in_order = (count, values, codes)
        return values, codes

    def of_all(self, values: Sequence[Any]) -> Iterator[int]:
        """Return the code of each value."""
        for value in dict.fromkeys(values):
            self(value)
        return map(self.codes.__getitem__, values)
