"""Backfill of a new model's space beside the active one, and the switch once every record has a vector.

Each pass ends with an attempt to switch. If a record written meanwhile would lose its vector, another pass follows.
Source: docs/decisions/0078-a-new-space-beside-the-old.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caliber.config import CaliberConfig
from caliber.embedding import reembedding
from caliber.embedding.embedding_target import EmbeddingTarget, MissingVector
from caliber.embedding.reembedding import FillStatus, Lease, MakeEvent, Reembedded, Walk
from caliber.embedding.vector_index import complete_index
from caliber.engine.leases import LockService
from caliber.model.errors import CaliberError, Conflict, EmbeddingFailed
from caliber.resident.memory import ResidentMemory
from caliber.resident.snapshot import ResidentSnapshot
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

Embed = Callable[[EmbeddingTarget, Sequence[MissingVector]], int]


class Backfill:
    """The progress of one filling."""

    def __init__(self, walk: Callable[[], Walk]) -> None:
        self._new_walk = walk
        self.made = 0
        self.passes = 0
        self.failed_switches = 0
        self.rescan()

    def rescan(self) -> None:
        """Begin the next pass."""
        self.passes += 1
        self.walk = self._new_walk()


class Backfiller:
    """Fills the configured space of one tenant."""

    def __init__(
        self,
        store: Store,
        memory: ResidentMemory,
        config: CaliberConfig,
        target: EmbeddingTarget,
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
        self._target = target
        self._kinds = kinds
        self._batch = config.embedding.batch_size
        self._embed = embed
        self._write = write
        self._event = event
        locks = LockService(store, check=lambda: None, lease_ms=config.lock_timeout)
        self.lease = Lease(locks, f"reembed:{target.space.space_id}", config.lock_timeout)
        self.finished = False
        """True when nothing is left to do, as far as is known."""

    def fill(self, *, upwards: bool) -> Backfill:
        """Return a new filling, from the newest record down, or from the oldest up."""
        return Backfill(lambda: Walk(self._store, self._target.key, self._kinds, upwards=upwards))

    @property
    def is_filling(self) -> bool:
        """True while the configured space has yet to become the one in use."""
        return self._memory.snapshot.space_in_use != self._target.space.space_id

    def count(self) -> tuple[int, int]:
        """Return how many records are to have a vector, and how many lack it in the configured space."""
        return reembedding.count(self._store, self._target.key, self._kinds)

    def progress(self) -> FillStatus:
        """Return how far the configured space is."""
        total, pending = self.count()
        return FillStatus(self._target.space.name, total - pending, total, len(self._target.refused))

    def step(self, fill: Backfill, *, accept_refused: bool) -> bool:
        """Embed the next page; at the end of a pass, switch. Return whether there is more to do.

        Raises: LlmError kinds of an outage; EmbeddingFailed when too much was refused to take over.
        """
        target = self._target
        page = fill.walk.page(self._batch)
        if page is None:
            return not self._switched(fill, accept_refused=accept_refused)
        wanted = [item for item in page if item.owner not in target.refused]
        if wanted:
            fill.made += self._embed(target, wanted)
        return True

    def _switched(self, fill: Backfill, *, accept_refused: bool) -> bool:
        """Take the filled space into use; return whether nothing is left to do."""
        target = self._target
        if not self.is_filling:
            self.finished = True
            return True
        total = self.count()[0] if target.refused and not accept_refused else 0
        if total and len(target.refused) > reembedding.REFUSED_SHARE * total:
            self.finished = True
            raise EmbeddingFailed(
                reason=f"{target.space.name} refused {len(target.refused):,} of {total:,} records and stays inactive; "
                "fix the provider, or accept that with `caliber db reembed --accept-refused`"
            )
        complete_index(self._store, self._config, target.space, self._memory.snapshot.space_in_use, self._failed)
        tolerated = self._batch if fill.failed_switches >= reembedding.STRICT_ATTEMPTS else 0
        try:
            done, _ = reembedding.switch(self._write, self._event, target, self._kinds, tolerated)
        except Conflict:
            done = False  # another program changes the same spaces
        if not done:
            fill.failed_switches += 1
            fill.rescan()
            return False
        self.finished = True
        return True

    def outcome(self, made: int, before: ResidentSnapshot) -> Reembedded:
        """Return the outcome of a backfill that made ``made`` vectors."""
        target = self._target
        total, pending = self.count()
        earlier = before.spaces.get(before.space_in_use) if before.space_in_use is not None else None
        in_use = not self.is_filling
        return Reembedded(
            space=target.space.name,
            made=made,
            done=total - pending,
            total=total,
            refused=len(target.refused),
            in_use=in_use,
            switched_from=earlier.name if in_use and earlier and earlier.space_id != target.space.space_id else None,
        )
