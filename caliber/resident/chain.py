"""Doubly linked list of rows within a scope: each row has a predecessor and a successor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.growing import Growing

NOBODY = -1


class Chain:
    """Rows before and after each row of one generation. Written by one thread at a time.

    A newer version of a row takes its place. A deleted row stays linked, for readers of older boundaries: other readers
    skip it.
    """

    def __init__(self) -> None:
        self.before = Growing(np.int64, fill=NOBODY)
        self.after = Growing(np.int64, fill=NOBODY)
        self.codes = Growing(np.int64, fill=NOBODY)
        self.places = Growing(np.int64, fill=NOBODY)
        self.last: dict[int, int] = {}
        self.length = 0
        self.moved = False  # whether a row has ever come anywhere but to the end of its stretch

    def extend(self, codes: NDArray[Any], places: NDArray[np.int64], replaced: NDArray[np.int64]) -> None:
        """Add the rows that come next: their stretch, their place in it, and the older version of each or -1."""
        start, end = self.length, self.length + len(codes)
        for column in (self.before, self.after, self.codes, self.places):
            column.reserve(end)
        self.codes.array[start:end] = codes
        self.places.array[start:end] = places
        if start == 0 and (replaced < 0).all():
            self._load(codes, places)
        else:
            forked = False
            for row, code, old in zip(range(start, end), codes.tolist(), replaced.tolist(), strict=True):
                earlier = self.last.get(code, NOBODY)
                is_last = earlier < 0 or self.places.array[earlier] < self.places.array[row]
                if not forked and (self._replaces(row, code, old) or not is_last):
                    # Readers of an older boundary keep reading the earlier links.
                    self.before.array, self.after.array = self.before.array.copy(), self.after.array.copy()
                    forked = self.moved = True
                self._add(row, code, old)
        self.length = end

    def _replaces(self, row: int, code: int, old: int) -> bool:
        return old >= 0 and bool(self.codes.array[old] == code and self.places.array[old] == self.places.array[row])

    def _load(self, codes: NDArray[Any], places: NDArray[np.int64]) -> None:
        order = np.lexsort((places, codes))
        same = codes[order[1:]] == codes[order[:-1]]
        earlier, later = order[:-1][same], order[1:][same]
        self.before.array[later] = earlier
        self.after.array[earlier] = later
        ends = order[np.concatenate((np.flatnonzero(~same), [len(order) - 1]))]
        self.last = dict(zip(codes[ends].tolist(), ends.tolist(), strict=True))

    def _add(self, row: int, code: int, old: int) -> None:
        before, after, places = self.before.array, self.after.array, self.places.array
        if self._replaces(row, code, old):
            earlier, later = int(before[old]), int(after[old])
        else:
            earlier, later = self.last.get(code, NOBODY), NOBODY
            # Commits of another process may come to be known in another order than they were made in.
            while earlier >= 0 and places[earlier] > places[row]:
                earlier, later = int(before[earlier]), earlier
        before[row], after[row] = earlier, later
        if earlier >= 0:
            after[earlier] = row
        if later >= 0:
            before[later] = row
        else:
            self.last[code] = row

    @property
    def nbytes(self) -> int:
        columns = (self.before, self.after, self.codes, self.places)
        return sum(column.nbytes for column in columns) + 100 * len(self.last)
