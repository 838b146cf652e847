"""Old turns leave a window in blocks, at turn numbers that do not depend on the window before.

So a window's turns begin at the same turn for as long as the next block fits, and a provider's cache of the prompt's
prefix stays good. Source: design section 5 (Prompt caches), O-8, docs/decisions/0017.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TurnBlock:
    """The turns that stay. Shapes: ``bool[n]``, chronological. Units: cost as given, a separator with each turn."""

    included: NDArray[np.bool_]
    split: NDArray[np.bool_]
    first_turn: int
    cost: int


def evict_in_blocks(
    numbers: NDArray[np.int64],
    groups: NDArray[np.int64],
    cost: NDArray[np.int64],
    *,
    capacity: int,
    separator: int,
    block_turns: int,
) -> TurnBlock | None:
    """Return the longest run of newest turns that fits and begins at a block, or None when the newest does not fit.

    A block that would push out the newest turn is halved until it does not. Groups stay whole: one that begins
    before the block is left out (``split`` marks those of its turns that come after).
    Shapes: numbers, groups, cost ``int64[n]``, in chronological order.
    """
    with_separator = cost + separator
    from_here = np.cumsum(with_separator[::-1])[::-1]
    count = len(numbers)
    nothing = np.zeros(count, np.bool_)
    if from_here[0] <= capacity:
        return TurnBlock(np.ones(count, np.bool_), nothing, int(numbers[0]), int(from_here[0]))
    begins = numbers.copy()
    grouped = groups >= 0
    if grouped.any():
        # Each member begins where its group does.
        _, first, of = np.unique(groups[grouped], return_index=True, return_inverse=True)
        begins[grouped] = numbers[grouped][first][of]
    fitting = count - int(np.searchsorted(from_here[::-1], capacity, side="right"))
    if fitting >= count or numbers[fitting] > begins[-1]:
        return None
    earliest, newest = int(numbers[fitting]), int(begins[-1])
    block = block_turns
    while (start := -(-earliest // block) * block) > newest:
        block //= 2
    included = begins >= start
    return TurnBlock(included, (numbers >= start) & ~included, start, int(with_separator[included].sum()))
