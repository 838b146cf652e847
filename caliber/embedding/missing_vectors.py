"""Scan for records without a vector, left by a writer that died or that ran in another process.

Source: design section 4, C-245.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from caliber.embedding.embedding_target import EmbeddingTarget
from caliber.embedding.reembedding import Walk
from caliber.engine import pacing
from caliber.storage.protocol import Store

_PAGE_ROWS = 4_096
"""Rows one look for missing vectors takes into memory; the next look finds the rest."""


class MissingVectorScan:
    """The spaces that are still to be scanned, the progress of each, and the time of the next scan."""

    def __init__(self, store: Store, kinds: tuple[str, ...], targets: Iterable[EmbeddingTarget]) -> None:
        self._store = store
        self._kinds = kinds
        self._walks: dict[bytes, Walk] = {}
        self._to_walk = {target.key for target in targets}
        self.at_s: float | None = None
        """The time of the next scan, on the monotonic clock; None: no scan is due."""
        self._looked_s = 0.0

    def later(self) -> bool:
        """Schedule a scan once other processes had time to embed; return whether none was scheduled."""
        if self.at_s is not None:
            return False
        self.at_s = time.monotonic() + pacing.foreign_wait_s(self._looked_s)
        return True

    def now(self) -> None:
        """Schedule a scan for the next step."""
        self.at_s = time.monotonic()

    def due(self, now: float, targets: Iterable[EmbeddingTarget]) -> bool:
        """Return whether a scan is due, and if so begin it for ``targets``."""
        if self.at_s is None or now < self.at_s:
            return False
        self.at_s = None
        self._to_walk.update(target.key for target in targets)
        return True

    def skip(self) -> None:
        """Leave out the first scan: every record has its vectors."""
        self._to_walk.clear()

    def rescan(self, target: EmbeddingTarget) -> None:
        """Have a space looked through once more, when the look under way is over."""
        self._to_walk.add(target.key)

    def whole(self, target: EmbeddingTarget, *, stored: bool) -> Generator[int, None, None]:
        """Yield the sizes of the next batches of the queue, until every record that lacks a vector now was among them.

        First the queued records; then, page by page, the ``stored`` ones without a vector. Later writes are not waited
        for. If abandoned half way, the space must be scanned again.
        """
        yield len(target.queue)
        if not stored:
            return
        # A running scan may have passed records that lack a vector now.
        self._walks.pop(target.key, None)
        self._to_walk.discard(target.key)
        walk = Walk(self._store, target.key, self._kinds)
        try:
            while (page := walk.page(_PAGE_ROWS)) is not None:
                queued = {item.owner for item in target.queue.copy()}
                found = [item for item in page if item.owner not in queued and item.owner not in target.refused]
                target.queue.extendleft(reversed(found))
                yield len(found)
        except BaseException:
            self._to_walk.add(target.key)
            raise

    def look(self, target: EmbeddingTarget) -> int:
        """Queue a page of the stored records without a vector, whatever the cause; return the number of rows queued."""
        walk = self._walks.get(target.key)
        if walk is None:
            if target.key not in self._to_walk:
                return 0
            self._to_walk.discard(target.key)
            self._looked_s = 0.0
            walk = self._walks[target.key] = Walk(self._store, target.key, self._kinds)
        while not target.queue:
            begun = time.monotonic()
            page = walk.page(_PAGE_ROWS)
            self._looked_s += time.monotonic() - begun
            if page is None:
                del self._walks[target.key]
                break
            target.queue.extend(item for item in page if item.owner not in target.refused)
        return len(target.queue)
