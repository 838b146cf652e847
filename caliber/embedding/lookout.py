"""The scan of the store for records that lack a vector: their writer is gone, or was never here.

Source: design section 4, C-245.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from caliber.embedding.reembedding import Walk
from caliber.embedding.space_provider import SpaceProvider
from caliber.engine import pacing
from caliber.storage.protocol import Store

_PAGE_ROWS = 4_096
"""Rows one look for missing vectors takes into memory; the next look finds the rest."""


class Lookout:
    """The spaces that are still to be scanned, the progress of each, and the time of the next scan."""

    def __init__(self, store: Store, kinds: tuple[str, ...], lanes: Iterable[SpaceProvider]) -> None:
        self._store = store
        self._kinds = kinds
        self._walks: dict[bytes, Walk] = {}
        self._to_walk = {lane.key for lane in lanes}
        self.at_s: float | None = None
        """When all are looked through, on the monotonic clock; None until there is a reason."""
        self._looked_s = 0.0

    def later(self) -> bool:
        """Have all looked through once others had their time to embed; return whether that was not so already."""
        if self.at_s is not None:
            return False
        self.at_s = time.monotonic() + pacing.foreign_wait_s(self._looked_s)
        return True

    def now(self) -> None:
        """Have all looked through at the next step."""
        self.at_s = time.monotonic()

    def due(self, now: float, lanes: Iterable[SpaceProvider]) -> bool:
        """Return whether the time has come, and if so have these looked through."""
        if self.at_s is None or now < self.at_s:
            return False
        self.at_s = None
        self._to_walk.update(lane.key for lane in lanes)
        return True

    def again(self, lane: SpaceProvider) -> None:
        """Have a space looked through once more, when the look under way is over."""
        self._to_walk.add(lane.key)

    def whole(self, lane: SpaceProvider, *, stored: bool) -> Generator[int, None, None]:
        """Yield how many of the first that are queued come next, until all that lacks a vector by now was among them.

        First what is queued; then, page by page, what is ``stored`` without one. What is written meanwhile is not
        waited for. Abandoned half way, the space is to be looked through again.
        """
        yield len(lane.queue)
        if not stored:
            return
        # A walk under way may have passed what lacks a vector by now.
        self._walks.pop(lane.key, None)
        self._to_walk.discard(lane.key)
        walk = Walk(self._store, lane.key, self._kinds)
        try:
            while (page := walk.page(_PAGE_ROWS)) is not None:
                queued = {item.owner for item in lane.queue.copy()}
                found = [item for item in page if item.owner not in queued and item.owner not in lane.refused]
                lane.queue.extendleft(reversed(found))
                yield len(found)
        except BaseException:
            self._to_walk.add(lane.key)
            raise

    def look(self, lane: SpaceProvider) -> int:
        """Queue a page of what lacks a vector in the store, whoever left it so; return how many rows are queued."""
        walk = self._walks.get(lane.key)
        if walk is None:
            if lane.key not in self._to_walk:
                return 0
            self._to_walk.discard(lane.key)
            self._looked_s = 0.0
            walk = self._walks[lane.key] = Walk(self._store, lane.key, self._kinds)
        while not lane.queue:
            begun = time.monotonic()
            page = walk.page(_PAGE_ROWS)
            self._looked_s += time.monotonic() - begun
            if page is None:
                del self._walks[lane.key]
                break
            lane.queue.extend(item for item in page if item.owner not in lane.refused)
        return len(lane.queue)
