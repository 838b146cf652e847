"""Append-only arrays in fixed-size segments that never move, so that readers need no lock.

A reader that knows a length may read everything below it while a writer appends above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FEW = 1_024


class SegmentedColumn:
    """One column of a mirror. Shapes: ``[n]``, or ``[n, width]``."""

    __slots__ = ("_dtype", "_rows", "_width", "segments")

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
