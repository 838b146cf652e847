"""First conversation turn of a window: old turns are dropped in blocks, so that the prompt prefix stays cacheable.

Windows begin at the same turn for as long as the next block fits, so a provider's prefix cache stays valid.

Source: design section 5 (Prompt caches), O-8, docs/decisions/0017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive turns, and the length of the newest of them together.

    Shapes: ``int64[n]``. Units: ``begins`` is the number of the first turn of each turn's group; ``total[i]`` is the
    length of all turns whose group does not begin before that of turn ``i``.
    """

    numbers: NDArray[np.int64]
    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    totals: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64], groups: NDArray[np.int64], cost: NDArray[np.int64]) -> Run:
        """Return the run of some turns, of which those of one group stay together."""
        begins = numbers.copy()
        grouped = groups >= 0
        if grouped.any():
            _, first, of = np.unique(groups[grouped], return_index=True, return_inverse=True)
            begins[grouped] = numbers[grouped][first][of]
        order = np.argsort(begins, kind="stable")
        sums = np.cumsum(cost[order][::-1])[::-1]
        starts, first = np.unique(begins[order], return_index=True)
        return cls(numbers, begins, starts, sums[first])

    def cost_from(self, start: int) -> int:
        """Return the cost of the turns whose groups begin at ``start`` or later."""
        at = int(np.searchsorted(self.starts, start))
        return int(self.totals[at]) if at < len(self.starts) else 0

    def earliest(self, capacity: int, least: int | None = None) -> int | None:
        """Return the earliest number from which all turns fit a length, not before ``least``; None if none does."""
        first = 0 if least is None else int(np.searchsorted(self.starts, least))
        fitting = np.flatnonzero(self.totals[first:] <= capacity)
        return int(self.starts[first + fitting[0]]) if len(fitting) else None


def block_start(run: Run, earliest: int, latest: int | None, *, block_turns: int, most: int) -> int:
    """Return the number at which the window's turns begin: a multiple of a block at ``earliest`` or later.

    A block is halved while it would push out a turn from ``latest`` on, or is longer than ``most``. Both are the same
    for every ``earliest`` inside of it, so the beginning stays until it must go. Where all fits nothing has to leave.
    """
    if not len(run.starts) or earliest <= int(run.starts[0]):
        return earliest
    newest = int(run.starts[-1]) if latest is None else latest
    block = block_turns
    while block > 1:
        start = -(-earliest // block) * block
        if start <= newest and run.cost_from(start - block) - run.cost_from(start) <= most:
            return start
        block //= 2
    return earliest
