"""Re-embedding with a new model, by a job or the caller's thread: fills its space, then makes it the active one.

Each pass ends with an attempt to switch. If a record written meanwhile would lose its vector, another pass follows.
Source: docs/decisions/0078-a-new-space-beside-the-old.md; docs/jobs.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from caliber.embedding import reembedding
from caliber.embedding.embedding_target import EmbeddingTarget, MissingVector
from caliber.embedding.reembedding import FillStatus, Reembedded, Walk, complete_index, fill_kind
from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.jobs import fixed
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue
from caliber.llm.retry import is_outage
from caliber.model.embedding import SpaceState
from caliber.model.errors import Conflict, EmbeddingFailed
from caliber.model.progress import Progress

REEMBED_PAUSE_MS: Final = 20
"""Pause between two calls of the provider in the background."""


class Backfill:
    """The progress of one filling. Units: records."""

    def __init__(self, walk: Callable[[], Walk], count: Callable[[], tuple[int, int]]) -> None:
        self._new_walk = walk
        self._count = count
        self.made = 0
        self.failed_switches = 0
        self.rescan()

    def rescan(self) -> None:
        """Begin the next pass."""
        self.walk = self._new_walk()
        self.total, pending = self._count()
        self._done_before = self.total - pending - self.made

    @property
    def done(self) -> int:
        """The number of records that have a vector."""
        return min(self.total, self._done_before + self.made)


class Backfiller:
    """Fills the configured space of one tenant."""

    def __init__(
        self,
        engine: Engine,
        target: EmbeddingTarget,
        kinds: Sequence[str],
        *,
        embed: Callable[[EmbeddingTarget, Sequence[MissingVector]], int],
        embed_waiting: Callable[[], None],
        give_way: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = engine.memory
        self._target = target
        self._kinds = kinds
        self._embed = embed
        self._embed_waiting = embed_waiting
        self._give_way = give_way
        self._jobs = engine.part(JobQueue)
        self._batch = engine.config.embedding.batch_size
        self._pause_s = REEMBED_PAUSE_MS / 1000
        self._fill: Backfill | None = None
        self._filling_behind = threading.Lock()
        self._callers = 0
        self._counting = threading.Lock()
        self._report_at_s = 0.0
        manual = engine.config.embedding.reembed == "manual"
        self._jobs.register(
            Handler(
                fill_kind(self._target.space),
                self.run,
                priority=IDLE,
                idle=lambda: manual or bool(self._callers),
                outlasts=is_outage,
            )
        )

    @property
    def is_filling(self) -> bool:
        """True until the configured space is the active one."""
        return self._memory.snapshot.space_in_use != self._target.space.space_id

    @property
    def _is_open(self) -> bool:
        """False once another program retired or dropped the configured space."""
        space = self._memory.snapshot.spaces.get(self._target.space.space_id)
        return space is not None and space.state is not SpaceState.RETIRED

    def count(self) -> tuple[int, int]:
        """Return how many records are to have a vector, and how many lack it in the configured space."""
        return reembedding.count(self._store, self._target.key, self._kinds)

    def progress(self) -> FillStatus:
        """Return how far the configured space is."""
        total, pending = self.count()
        return FillStatus(self._target.space.name, total - pending, total, len(self._target.refused))

    # --- in the background -----------------------------------------------------------------------

    def run(self, claim: Claim) -> int:
        """Fill the space from the newest record down, for a while; return how many vectors were made.

        Raises: LlmError kinds of an outage; EmbeddingFailed when too much was refused to take over; Superseded.
        """
        with self._filling_behind:
            fill, self._fill = self._fill or self._new_fill(upwards=False), None
            before, until = fill.made, time.monotonic() + pacing.SLICE_S
            while self.is_filling and self._is_open:
                if self._callers or claim.stopping or time.monotonic() > until:
                    claim.interrupt()
                    break
                self._give_way(lambda: claim.stopping)
                if not self._step(fill, claim, accept_refused=False):
                    break
                self._rest(claim)
            self._fill = fill
            return fill.made - before

    def _rest(self, claim: Claim) -> None:
        until = time.monotonic() + self._pause_s
        while (left := until - time.monotonic()) > 0 and not claim.stopping:
            time.sleep(min(left, pacing.REST_MAX_S))

    # --- in the caller's thread ------------------------------------------------------------------

    def reembed(self, progress: Progress, *, accept_refused: bool) -> Reembedded:
        """Fill the space from the oldest record up, until no vector is missing, and make it the active one.

        The caller has the job, or works beside another process that has it: the two meet, and repeat little.

        Raises: as ``run``, and Unavailable when closed meanwhile; finished work stays.
        """
        space = self._target.space
        before = self._memory.snapshot
        with self._counting:
            self._callers += 1
        try:
            with self._filling_behind:
                pass  # a background step of this process ends first, and its job is given back
            self._target.refused.clear()
            self._jobs.write(lambda uow: fixed.renew(self._jobs, uow, fill_kind(space), space.space_id))
            with self._jobs.holding(space.space_id) as claim:
                fill = self._new_fill(upwards=True)
                more = True
                while more:
                    self._embed_waiting()
                    try:
                        more = self._step(fill, claim, accept_refused=accept_refused)
                    except Superseded:
                        claim = None  # another caller ended the job, or a person did; this caller still waits
                    progress(space.name, fill.done, fill.total)
        finally:
            with self._counting:
                self._callers -= 1
        total, pending = self.count()
        earlier = before.spaces.get(before.space_in_use) if before.space_in_use is not None else None
        in_use = not self.is_filling
        return Reembedded(
            space=space.name,
            made=fill.made,
            done=total - pending,
            total=total,
            refused=len(self._target.refused),
            in_use=in_use,
            switched_from=earlier.name if in_use and earlier and earlier.space_id != space.space_id else None,
        )

    # --- steps -----------------------------------------------------------------------------------

    def _new_fill(self, *, upwards: bool) -> Backfill:
        return Backfill(lambda: Walk(self._store, self._target.key, self._kinds, upwards=upwards), self.count)

    def _step(self, fill: Backfill, claim: Claim | None, *, accept_refused: bool) -> bool:
        """Embed the next page; at the end of a pass, switch. Return whether there is more to do."""
        target = self._target
        self._report(fill, claim, now=False)
        page = fill.walk.page(self._batch)
        if page is None:
            self._report(fill, claim, now=True)
            return not self._switched(fill, claim, accept_refused=accept_refused)
        wanted = [item for item in page if item.owner not in target.refused]
        if wanted:
            fill.made += self._embed(target, wanted)
        return True

    def _report(self, fill: Backfill, claim: Claim | None, *, now: bool) -> None:
        if claim is not None and (now or time.monotonic() >= self._report_at_s):
            self._report_at_s = time.monotonic() + pacing.REPORT_S
            claim.report(fill.done, fill.total)

    def _switched(self, fill: Backfill, claim: Claim | None, *, accept_refused: bool) -> bool:
        """Take the filled space into use; return whether nothing is left to do."""
        target = self._target
        if not self.is_filling:
            return True
        total = self.count()[0] if target.refused and not accept_refused else 0
        if total and len(target.refused) > reembedding.REFUSED_SHARE * total:
            raise EmbeddingFailed(
                reason=f"{target.space.name} refused {len(target.refused):,} of {total:,} records and stays inactive; "
                "fix the provider, or accept that with `caliber db reembed --accept-refused`"
            )
        complete_index(self._engine, target.space)
        tolerated = self._batch if fill.failed_switches >= reembedding.STRICT_ATTEMPTS else 0
        try:
            done = reembedding.switch(self._engine, target, self._kinds, tolerated, claim)
        except Conflict:
            done = False  # another program changes the same spaces
        if not done:
            fill.failed_switches += 1
            fill.rescan()
        return done
