"""Neighbour lookup among turns: the previous and next turn of each turn in its scope.

The reader that first needs it builds it, and it grows with the mirror. A changed turn takes the place of its older
version; readers of an older boundary walk back to the row they know. A turn that was deleted or rolled back
leaves the chain: the turns before and after it become neighbours, before and after a compaction or a reopening alike.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from caliber.model.process.forks import renew_in_child
from caliber.resident.chain import NOBODY, Chain
from caliber.resident.mirror import RelationSnapshot

LOCK = threading.Lock()  # held for microseconds, by the first reader of a new boundary
renew_in_child(globals(), "LOCK")


class Neighbours:
    """Before and after, as one boundary sees it."""

    __slots__ = ("_after", "_before", "_moved", "_snapshot")

    def __init__(self, snapshot: RelationSnapshot, chain: Chain) -> None:
        self._snapshot = snapshot
        self._before, self._after = chain.before.array, chain.after.array
        self._moved = chain.moved

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row before each of ``rows``, -1 if there is none."""
        return self._walked(self._before, rows)

    def after(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row after each of ``rows``, -1 if there is none."""
        return self._walked(self._after, rows)

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return before and after of every row; rows beyond the snapshot's length count as none."""
        length = self._snapshot.length
        if not self._moved and self._snapshot.standing_mask.all():
            return self._before[:length], self._after[:length]
        rows = np.arange(length)
        return self._walked(self._before, rows), self._walked(self._after, rows)

    def _walked(self, column: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next row of each that lives at this boundary."""
        snapshot = self._snapshot
        found = np.where(rows >= 0, column[rows], NOBODY)
        while True:
            for at in np.flatnonzero(found >= snapshot.length).tolist():
                found[at] = self._known(column, int(found[at]))
            gone = np.flatnonzero(found >= 0)
            gone = gone[~snapshot.standing_mask[found[gone]]]
            if not len(gone):
                return found
            found[gone] = column[found[gone]]

    def _known(self, column: NDArray[np.int64], number: int) -> int:
        """Return the version of a later row that stood here at this boundary, or else of the next row on."""
        while number >= self._snapshot.length:
            earlier = self._snapshot.current(number)
            number = earlier if earlier >= 0 else int(column[number])
        return number


def neighbours(snapshot: RelationSnapshot, column: str) -> Neighbours:
    """Return the neighbours of each turn among those with equal ``column``, in the order of the conversation."""
    generation = snapshot.generation
    with LOCK:
        chain = generation.chain
        if chain is None:
            chain = generation.chain = Chain()
        start = chain.length
        if start < snapshot.length:
            codes, places = snapshot.column(column)[start:], snapshot.column("turn_number")[start:]
            try:
                chain.extend(codes, places, generation.previous.view(snapshot.length)[start:])
            except BaseException:
                generation.chain = None  # an interrupt, perhaps: half of the rows may be linked; the chain is rebuilt
                raise
        return Neighbours(snapshot, chain)
