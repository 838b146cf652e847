"""Re-embedding with a new model, by a job or the caller's thread: fills its space, then makes it the active one.

Each pass ends with an attempt to switch. If a record written meanwhile would lose its vector, another pass follows.
A scan finds records without a vector, left by a writer that died or is elsewhere.

Source: design section 4, C-245; docs/decisions/0078-a-new-space-beside-the-old.md; docs/jobs.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from caliber.config import CaliberConfig
from caliber.embedding import reembedding
from caliber.embedding.embedding_target import EmbeddingTarget, MissingVector, says_something
from caliber.embedding.reembedding import FillStatus, Reembedded, Walk, complete_index, fill_kind
from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.jobs import fixed
from caliber.jobs.claims import Claim, Superseded
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue
from caliber.llm.retry import is_outage
from caliber.model.embedding import EmbedMode, SpaceState
from caliber.model.errors import Conflict, EmbeddingFailed
from caliber.model.progress import Progress
from caliber.resident.documents import document_of
from caliber.schema.catalog import Catalog
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

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


class EmbeddedKinds:
    """The embedded kinds of one store: built-in ones, and declared memories with an embedding."""

    def __init__(self, catalog: Catalog, config: CaliberConfig) -> None:
        settings = config.embedding
        self._relations = catalog.by_name
        self._texts = {
            relation.name: relation.text.embedded
            for relation in catalog.relations
            if relation.text is not None and relation.text.embedded is not None
        }
        names = {memory.relation.name: name for name, memory in catalog.memories.items()}
        self.modes = {kind: settings.mode_of(names.get(kind, kind)) for kind in self._texts}
        self.wanted = tuple([kind for kind in self._texts if self.modes[kind] is not EmbedMode.OFF])
        """The kinds that get vectors. With mode ``commit`` too the worker embeds records without one: those of an
        earlier model, or changed since."""
        self._places = {kind: self._place(kind) for kind in self.all}

    @property
    def all(self) -> tuple[str, ...]:
        """Every kind that can have vectors."""
        return tuple(self._texts)

    def commits(self, kind: str) -> bool:
        """Return whether vectors are committed with their records."""
        return self.modes.get(kind) is EmbedMode.COMMIT

    def _place(self, kind: str) -> tuple[int, int]:
        relation = self._relations[kind]
        codec = codec_of(relation)
        return codec.index(relation.key[0]), codec.index(self._texts[kind])

    def owner_of(self, kind: str, row: Row) -> bytes | None:
        """Return the key of a row that is to have vectors; None for another."""
        if self.modes.get(kind, EmbedMode.OFF) is EmbedMode.OFF:
            return None
        key: bytes = row[self._places[kind][0]]
        return key

    def text_of(self, kind: str, row: Row) -> str:
        """Return the text of a row that is embedded."""
        content = row[self._places[kind][1]]
        if content is None:
            return ""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        if not says_something(text):
            return text
        # The text that is indexed for keywords, too: a record has one text.
        return document_of(self._relations[kind], row, text).decode("utf-8", "surrogatepass")

    def still_says(self, uow: UnitOfWork, item: MissingVector) -> bool:
        """Return whether a record is still there with the content its vector was made from."""
        relation = self._relations[item.kind]
        entity = uow.find(relation, item.owner)
        return entity is not None and self.text_of(item.kind, codec_of(relation).encode(entity)) == item.text

    def is_stored(self, store: Store, item: MissingVector) -> bool:
        """Return the same as ``still_says``, outside of a transaction."""
        plans = store.plans[item.kind]
        with store.read() as session:
            found = [plans.codec.encode(plans.codec.decode(row)) for row in session.run(plans.get, (item.owner,))]
        return any(self.text_of(item.kind, row) == item.text for row in found)
