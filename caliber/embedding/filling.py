"""Filling the space of a new model beside the one that is searched, and taking it into use when nothing lacks a vector.

At the end of a pass over all that lacks a vector the switch is tried; if a record would lose its vector by that, as it
was written meanwhile, another pass follows.
Source: docs/decisions/0078-a-new-space-beside-the-old.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caliber.config import CaliberConfig
from caliber.embedding import reembedding
from caliber.embedding.reembedding import FillStatus, Lease, MakeEvent, Reembedded, Walk
from caliber.embedding.space_provider import Lacking, SpaceProvider
from caliber.embedding.vector_index import complete_index
from caliber.engine.leases import LockService
from caliber.model.errors import CaliberError, Conflict, EmbeddingFailed
from caliber.resident.memory import ResidentMemory
from caliber.resident.snapshot import ResidentSnapshot
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

Embed = Callable[[SpaceProvider, Sequence[Lacking]], int]


class Fill:
    """The progress of one filling."""

    def __init__(self, walk: Callable[[], Walk]) -> None:
        self._new_walk = walk
        self.made = 0
        self.passes = 0
        self.failed_switches = 0
        self.again()

    def again(self) -> None:
        """Begin the next pass."""
        self.passes += 1
        self.walk = self._new_walk()


class Filler:
    """Fills the configured space of one tenant."""

    def __init__(
        self,
        store: Store,
        memory: ResidentMemory,
        config: CaliberConfig,
        lane: SpaceProvider,
        kinds: Sequence[str],
        *,
        embed: Embed,
        write: Callable[[Callable[[UnitOfWork], Any]], Any],
        event: MakeEvent,
        failed: Callable[[str, CaliberError], None],
    ) -> None:
        self._store = store
        self._memory = memory
        self._config = config
        self._failed = failed
        self._lane = lane
        self._kinds = kinds
        self._batch = config.embedding.batch_size
        self._embed = embed
        self._write = write
        self._event = event
        locks = LockService(store, check=lambda: None, lease_ms=config.lock_timeout)
        self.lease = Lease(locks, f"reembed:{lane.space.space_id}", config.lock_timeout)
        self.finished = False
        """True when nothing is left to do, as far as is known."""

    def fill(self, *, upwards: bool) -> Fill:
        """Return a new filling, from the newest record down, or from the oldest up."""
        return Fill(lambda: Walk(self._store, self._lane.key, self._kinds, upwards=upwards))

    @property
    def is_filling(self) -> bool:
        """True while the configured space has yet to become the one in use."""
        return self._memory.snapshot.space_in_use != self._lane.space.space_id

    def count(self) -> tuple[int, int]:
        """Return how many records are to have a vector, and how many lack it in the configured space."""
        return reembedding.count(self._store, self._lane.key, self._kinds)

    def progress(self) -> FillStatus:
        """Return how far the configured space is."""
        total, pending = self.count()
        return FillStatus(self._lane.space.name, total - pending, total, len(self._lane.refused))

    def step(self, fill: Fill, *, accept_refused: bool) -> bool:
        """Embed the next page; at the end of a pass, switch. Return whether there is more to do.

        Raises: LlmError kinds of an outage; EmbeddingFailed when too much was refused to take over.
        """
        lane = self._lane
        page = fill.walk.page(self._batch)
        if page is None:
            return not self._switched(fill, accept_refused=accept_refused)
        wanted = [item for item in page if item.owner not in lane.refused]
        if wanted:
            fill.made += self._embed(lane, wanted)
        return True

    def _switched(self, fill: Fill, *, accept_refused: bool) -> bool:
        """Take the filled space into use; return whether nothing is left to do."""
        lane = self._lane
        if not self.is_filling:
            self.finished = True
            return True
        total = self.count()[0] if lane.refused and not accept_refused else 0
        if total and len(lane.refused) > reembedding.REFUSED_SHARE * total:
            self.finished = True
            raise EmbeddingFailed(
                reason=f"{lane.space.name} refused {len(lane.refused):,} of {total:,} records, so it is not taken into "
                "use; mend it, or accept that with `caliber db reembed --accept-refused`"
            )
        complete_index(self._store, self._config, lane.space, self._memory.snapshot.space_in_use, self._failed)
        tolerated = self._batch if fill.failed_switches >= reembedding.STRICT_ATTEMPTS else 0
        try:
            done, _ = reembedding.switch(self._write, self._event, lane, self._kinds, tolerated)
        except Conflict:
            done = False  # another program changes the same spaces
        if not done:
            fill.failed_switches += 1
            fill.again()
            return False
        self.finished = True
        return True

    def came_of(self, made: int, before: ResidentSnapshot) -> Reembedded:
        """Return what a filling that made ``made`` vectors came to."""
        lane = self._lane
        total, pending = self.count()
        earlier = before.spaces.get(before.space_in_use) if before.space_in_use is not None else None
        in_use = not self.is_filling
        return Reembedded(
            space=lane.space.name,
            made=made,
            done=total - pending,
            total=total,
            refused=len(lane.refused),
            in_use=in_use,
            switched_from=earlier.name if in_use and earlier and earlier.space_id != lane.space.space_id else None,
        )
