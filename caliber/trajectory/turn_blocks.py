"""Fixed-size blocks of turns that are summarized together: those without a summary, and outdated summaries.

Block b of size n holds the turns of a scope that are numbered b * n to (b + 1) * n - 1 in their trajectory. Results of
tools that follow directly on the turn that called them belong to the block of that turn, so that a block ends after the
results of its last calls. A block is complete once its trajectory has a turn beyond those numbers, and no more results
can follow on its last turn.

Source: docs/decisions/0192.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass


class Block(NamedTuple):
    """The numbers of the first and the last turn of a block, or of the part of a block that has no summary."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Outline:
    """The turns of one scope, in the order of their numbers, without their texts.

    ``results`` are turns of role tool, ``calls`` turns that call tools; ``summaries`` holds the first number, the last
    number and the count of source turns of each summary; ``next_number`` is that of the next turn of the trajectory.
    Shapes: ``numbers`` int64[n], ``results`` and ``calls`` bool[n], ``summaries`` int64[m, 3].
    """

    numbers: NDArray[np.int64]
    results: NDArray[np.bool_]
    calls: NDArray[np.bool_]
    summaries: NDArray[np.int64]
    next_number: int


class Missing(NamedTuple):
    """Complete blocks without a summary; ``waits`` if one more may only wait for results of its last calls."""

    blocks: list[Block]
    waits: bool


def callers(numbers: NDArray[np.int64], results: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Return the places of the turns of which it matters whether they call tools.

    These are the turns before results that stand in a later block by their numbers, and the last turn before the end.
    """
    count = len(numbers)
    if not count:
        return np.empty(0, np.int64)
    before = _callers(results)
    own = numbers // size
    matters = results & (before >= 0) & (own != own[before])
    matters[-1] = before[-1] >= 0
    return np.unique(before[matters])


def missing(outline: Outline, size: int) -> Missing:
    """Return the complete blocks that have no summary, as far as they have none."""
    numbers = outline.numbers
    count = len(numbers)
    if not count:
        return Missing([], False)
    anchors = _anchors(outline)
    blocks = numbers[anchors] // size
    wanted = ~_covered(outline) & ((blocks + 1) * size < outline.next_number)
    if not wanted.any():
        return Missing([], False)
    begins = wanted.copy()
    begins[1:] &= ~wanted[:-1] | (blocks[1:] != blocks[:-1])
    ends = wanted.copy()
    ends[:-1] &= ~wanted[1:] | begins[1:]
    found: list[Block] = []
    waits = False
    for first, last in zip(np.flatnonzero(begins).tolist(), np.flatnonzero(ends).tolist(), strict=True):
        if last == count - 1 and outline.calls[anchors[last]]:
            waits = True
        else:
            found.append(Block(int(numbers[first]), int(numbers[last])))
    return Missing(found, waits)


def outdated(outline: Outline) -> list[Block]:
    """Return the ranges of summaries that were not made of all turns in them, and only of these."""
    first, last, sources = outline.summaries.T
    turns = np.searchsorted(outline.numbers, last, "right") - np.searchsorted(outline.numbers, first, "left")
    return [Block(int(first[at]), int(last[at])) for at in np.flatnonzero(turns != sources).tolist()]


def _callers(results: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each turn the place of the last turn up to it that is no result, or -1."""
    return np.maximum.accumulate(np.where(results, -1, np.arange(len(results))))


def _anchors(outline: Outline) -> NDArray[np.int64]:
    """Return for each turn the place of the turn that decides its block: itself, or for results the one that called."""
    before = _callers(outline.results)
    follows = outline.results & (before >= 0) & outline.calls[before]
    return np.where(follows, before, np.arange(len(before)))


def _covered(outline: Outline) -> NDArray[np.bool_]:
    first, last, _ = outline.summaries.T
    steps = np.zeros(len(outline.numbers) + 1, np.int64)
    np.add.at(steps, np.searchsorted(outline.numbers, first, "left"), 1)
    np.add.at(steps, np.searchsorted(outline.numbers, last, "right"), -1)
    return np.cumsum(steps[:-1]) > 0
