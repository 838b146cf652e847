"""Arrays that grow at their end by doubling. A reader keeps the array it took: what it holds never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        """Have room for ``length`` elements in all; what is new holds ``fill``."""
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
