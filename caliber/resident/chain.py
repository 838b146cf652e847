"""Rows of a stretch in the order they were written, each linked to the one before and the one after."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.growing import Growing

NOBODY = -1


class Chain:
    """Rows before and after each row of one generation. Written by one thread at a time."""

    __slots__ = ("after", "before", "last", "length", "moved")

    def __init__(self) -> None:
        self.before = Growing(np.int64, fill=NOBODY)
        self.after = Growing(np.int64, fill=NOBODY)
        self.last: dict[int, int] = {}
        self.length = 0
        self.moved = False  # whether a row has ever taken the place of another

    def extend(self, codes: NDArray[Any], replaced: NDArray[np.int64]) -> None:
        """Add the rows that come next: the stretch each belongs to, and the older version of it or -1."""
        start, end = self.length, self.length + len(codes)
        self.before.reserve(end)
        self.after.reserve(end)
        if start == 0 and (replaced < 0).all():
            self._load(codes)
        else:
            for row, code, old in zip(range(start, end), codes.tolist(), replaced.tolist(), strict=True):
                self._add(row, code, old)
        self.length = end

    def _load(self, codes: NDArray[Any]) -> None:
        order = np.argsort(codes, kind="stable")
        same = codes[order[1:]] == codes[order[:-1]]
        earlier, later = order[:-1][same], order[1:][same]
        self.before.array[later] = earlier
        self.after.array[earlier] = later
        ends = order[np.concatenate((np.flatnonzero(~same), [len(order) - 1]))]
        self.last = dict(zip(codes[ends].tolist(), ends.tolist(), strict=True))

    def _add(self, row: int, code: int, old: int) -> None:
        before, after = self.before.array, self.after.array
        if old < 0:
            earlier = self.last.get(code, NOBODY)
            later = NOBODY
        else:
            earlier, later = int(before[old]), int(after[old])
            self.moved = True
        before[row], after[row] = earlier, later
        if earlier >= 0:
            after[earlier] = row
        if later >= 0:
            before[later] = row
        else:
            self.last[code] = row

    @property
    def nbytes(self) -> int:
        return self.before.nbytes + self.after.nbytes + 100 * len(self.last)
