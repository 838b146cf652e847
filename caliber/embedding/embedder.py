"""Embedder of one tenant: computes the vectors of new records, before the commit or behind it by a worker.

A missing vector is a missing row, so a crash loses no work. While the space of a new model is filled, records get
vectors in it and in the active space, as far as both have a provider here. Source: design section 4, C-245 to C-248,
C-291, K-042, K-101.
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from caliber.embedding.backfill import Backfiller, EmbeddedKinds, MissingVectorScan
from caliber.embedding.embedding_target import (
    EmbeddingTarget,
    MissingVector,
    Rows,
    Vector,
    Vectors,
    as_failure,
    retired_elsewhere,
    says_something,
)
from caliber.engine import pacing
from caliber.engine.background import BackgroundTask
from caliber.engine.engine import Engine
from caliber.llm.embedding import Embedded
from caliber.llm.protocols import EmbeddingProvider
from caliber.llm.retry import is_outage
from caliber.model.embedding import EmbeddingSpace, SpaceState
from caliber.model.errors import CaliberError, Unavailable
from caliber.model.process.interrupts import let_through
from caliber.schema.relations import EMBEDDING
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.session import store_closed
from caliber.storage.waiting import Flag
from caliber.storage.write.changes import UPSERT
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork

_OWNER = codec_of(EMBEDDING).index("owner_id")
_SPACE = codec_of(EMBEDDING).index("space_id")

IDLE_MS: Final = 500
"""Wait after a failure; each further failure doubles it, up to ``llm_retry_config.max_backoff``."""
_QUEUE_MAX = 65_536
"""Maximum number of queued records with their texts in memory; further ones are found in the store."""

_FILL_EVERY = 8
"""While records keep coming, how many of their batches there are to one of a space that is being filled."""


class Embedder:
    """Gives the records of a tenant their vectors.

    ``configured`` embeds with the model of the configuration; ``previous`` with the one before, as long as its space is
    the one that is searched.
    """

    def __init__(self, engine: Engine, configured: EmbeddingTarget, previous: EmbeddingTarget | None) -> None:
        config = engine.config
        self._engine = engine
        self._store = engine.store
        self._memory = engine.memory
        self.configured = configured
        self.targets: tuple[EmbeddingTarget, ...] = (configured,) if previous is None else (configured, previous)
        """The configured provider, then, while its space is searched, the one before."""
        self._batch = config.embedding.batch_size
        self._idle_s = IDLE_MS / 1000
        self._longest_idle_s = max(self._idle_s, config.llm_retry_config.max_backoff / 1000)
        self._kinds = EmbeddedKinds(engine.store.catalog, config)
        self.backfiller = Backfiller(
            engine, configured, self.embedded,
            embed=self.embed_apart, embed_waiting=self.embed_waiting, give_way=self.serve_first,
        )  # fmt: skip
        self._missing_scan = MissingVectorScan(engine.store, self._kinds.wanted, self.targets)
        self._batches = 0
        self._draining = threading.Lock()
        self._stopped = Flag()
        self._worker = _Turns(self._turn, self.failed)

    def failed(self, kind: str, error: CaliberError, erased: int | None = None) -> None:
        """Record an error that no caller receives; ``erased`` as ``Engine.record_error``."""
        self._engine.record_error(f"embedding {kind}", error, erased)

    @property
    def provider(self) -> EmbeddingProvider:
        """The configured provider."""
        return self.configured.provider

    @property
    def space(self) -> EmbeddingSpace:
        """The space of the configured provider, which may not be the one that is searched yet."""
        return self.configured.space

    def query(self, text: str) -> Vector:
        """Return the vector of a text in the configured space. Raises: as ``EmbeddingTarget.query``."""
        return self.configured.query(text)

    # --- which space -----------------------------------------------------------------------------

    def answering(self, space_id: uuid.UUID | None) -> EmbeddingTarget | None:
        """Return the target that embeds the queries of a space, or None without a provider for it."""
        for target in self.targets:
            if target.space.space_id == space_id:
                return target
        return None

    def _review(self) -> None:
        """Drop spaces that another program retired, or that are no longer searched."""
        snapshot = self._memory.snapshot
        kept = []
        for target in self.targets:
            space = snapshot.spaces.get(target.space.space_id)
            if space is None or space.state is SpaceState.RETIRED:
                if target is self.configured:
                    self.failed("worker", retired_elsewhere(target))
                continue
            if target is self.configured or snapshot.space_in_use == space.space_id:
                kept.append(target)
        if len(kept) != len(self.targets):
            self.targets = tuple(kept)

    def _is_filling(self, target: EmbeddingTarget) -> bool:
        """Return whether a space is still to become the active one."""
        return target is self.configured and self.backfiller.is_filling

    # --- now -------------------------------------------------------------------------------------

    def prepare(self, kind: str, texts: Sequence[str], *, apart: bool = False) -> list[Vectors | None]:
        """Return the vectors to commit with each record; None where it gets none now, as this kind is embedded behind.

        White space has no meaning to embed: it is stored without a vector. With ``apart`` texts were found, not given:
        one that has no vector does not cost the others theirs.

        Raises: LlmError kinds, apart only those of an outage; the caller then stores nothing.
        """
        targets = self.targets
        if not self._kinds.commits(kind) or not texts or not targets:
            return [None] * len(texts)
        # The last one is the active space: a record that it cannot embed is not stored.
        erased, out = self._memory.erasures, list[Vectors]([] for _ in texts)
        for target in reversed(targets):
            try:
                results = self._each(target, kind, texts) if apart else target.whole(kind, texts)
            except CaliberError as error:
                if target is targets[-1]:
                    raise
                self.failed(kind, error, erased)  # the vectors that are not searched yet follow behind
                continue
            for prepared, rows in zip(out, results, strict=True):
                if rows is not None:
                    prepared.append((target, rows))
        return [prepared or None for prepared in out]

    def _each(self, target: EmbeddingTarget, kind: str, texts: Sequence[str]) -> list[Rows | None]:
        out: list[Rows | None] = []
        erased = self._memory.erasures
        for result in target.embedded(kind, texts, apart=True):
            if isinstance(result, CaliberError):
                if result.retryable:
                    raise result
                self.failed(kind, result, erased)
            out.append(result.rows if isinstance(result, Embedded) else None)
        return out

    def discard(self, hashes: Sequence[bytes]) -> None:
        """Forget cached vectors of given contents."""
        for target in self.targets:
            target.discard(hashes)

    # --- behind ----------------------------------------------------------------------------------

    @property
    def embedded(self) -> tuple[str, ...]:
        """The kinds of records that are to have vectors."""
        return self._kinds.wanted

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Queue rows of this process that lack a vector; called after each commit, hence fast."""
        found = False
        # Memory applies these changes only when a reader comes: until then it still shows a dropped vector.
        vectors = {
            (change.row[_SPACE], change.row[_OWNER]): change.operation
            for change in changes
            if change.relation is EMBEDDING
        }
        for change in changes:
            kind = change.relation.name
            owner = self._kinds.owner_of(kind, change.row) if change.operation == UPSERT else None
            if owner is None:
                continue
            text: str | None = None
            for target in self.targets:
                operation = vectors.get((target.key, owner))
                if operation == UPSERT:
                    continue
                if text is None:
                    text = self._kinds.text_of(kind, change.row)
                    if not says_something(text):
                        break
                if operation is not None or not self._has_vector(kind, target.space.space_id, owner):
                    target.refused.discard(owner)
                    self._enqueue(target, MissingVector(kind, owner, text))
                    found = True
        if found:
            self._wake()

    def _has_vector(self, kind: str, space_id: uuid.UUID, owner: bytes) -> bool:
        if self._engine.config.search.mode != "backend":
            return self._memory.has_vector(kind, space_id, owner)
        with self._store.read() as session:
            return bool(session.run(self._store.plans[EMBEDDING.name].get, (space_id.bytes, owner, 0)))

    def _enqueue(self, target: EmbeddingTarget, item: MissingVector) -> None:
        if len(target.queue) < _QUEUE_MAX:
            target.queue.append(item)
        else:
            self._missing_scan.rescan(target)

    def changed_elsewhere(self) -> None:
        """Note a commit of another program: its records without a vector are searched for after a while."""
        if self._missing_scan.later():
            self._wake()

    def loaded(self) -> None:
        """Note that many rows were written at once: records without a vector are searched for now."""
        self._missing_scan.now()
        self._wake()

    def start(self) -> None:
        """Embed what has no vector yet, if there may be any. Raises: Unavailable when the system refuses a thread."""
        (first, *others), memory = self.targets, self._memory
        if others or self._is_filling(first) or memory.may_lack_vectors(self.embedded, first.space.space_id):
            self._worker.wake_up()
        else:
            self._missing_scan.skip()

    def _wake(self) -> None:
        with contextlib.suppress(Unavailable):  # any other task's thread serves it, and a missing vector is found again
            self._worker.wake_up()

    def _embed_queued(self, target: EmbeddingTarget) -> int:
        """Embed one batch of committed records; return the number of rows handled.

        Raises: LlmError kinds of an outage; the remaining records are queued again.
        """
        batch: list[MissingVector] = []
        try:
            while target.queue and len(batch) < self._batch:
                batch.append(target.queue.popleft())
                target.asking = batch
            if batch:
                self._embed(target, batch)
        except BaseException as error:
            if not isinstance(error, CaliberError):
                # Interrupted, perhaps, with records that are in no queue: the store shows which lack a vector.
                target.asking = ()
                self._missing_scan.rescan(target)
            raise
        self._batches += bool(batch)
        return len(batch)

    def _embed(self, target: EmbeddingTarget, batch: Sequence[MissingVector]) -> None:
        """Store the vectors of a batch. Raises: LlmError kinds of an outage; the remaining records are queued."""
        left: Sequence[MissingVector] = batch
        erased = self._memory.erasures
        try:
            _, left, outage = self._embedded(target, batch)
        finally:
            if self._memory.erasures == erased:
                target.queue.extendleft(reversed(left))
            else:  # texts may be forgotten: those that are still stored are looked for
                self._missing_scan.now()
            target.asking = ()
        if outage is not None:
            raise outage

    def embed_apart(self, target: EmbeddingTarget, batch: Sequence[MissingVector]) -> int:
        """Store the vectors of unqueued records; return their number. Raises: LlmError kinds of an outage."""
        made, _, outage = self._embedded(target, batch)
        if outage is not None:
            raise outage
        return made

    def _embedded(
        self, target: EmbeddingTarget, batch: Sequence[MissingVector]
    ) -> tuple[int, list[MissingVector], CaliberError | None]:
        """Store the vectors of a batch; return their number, the records that an outage left, and the outage."""
        results = target.embedded("records", [item.text for item in batch], apart=True)
        ready: list[tuple[MissingVector, Rows]] = []
        left: list[MissingVector] = []
        outage: CaliberError | None = None
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Embedded):
                ready.append((item, result.rows))
            elif result is not None and is_outage(result):
                left.append(item)
                outage = outage or result
            elif result is not None:
                target.refused.add(item.owner)
                erased = self._memory.erasures
                if self._kinds.is_stored(self._store, item):  # the error may quote the text
                    self.failed(item.kind, result, erased)

        def work(uow: UnitOfWork) -> int:
            if not target.is_open(uow):
                return 0
            uow.lock_reads()  # a deletion comes before us, or after: no vector of a deleted record is left
            in_order = sorted(ready, key=lambda made: made[0].owner)
            return sum(self._kinds.still_says(uow, item) and target.add(uow, item, rows) for item, rows in in_order)

        # In a separate transaction: holding the record's lock it must not wait for a task whose deletion waits for the
        # record.
        return (self._store.write(work, exclusive=True) if ready else 0), left, outage

    def forget_texts(self) -> None:
        """Drop the texts that wait for vectors, and find those that are still stored."""
        for target in self.targets:
            target.clear()
            target.queue.clear()
        self.loaded()

    def waiting(self, sees: Callable[[bytes], bool] | None = None) -> int:
        """Return the number of records of this process that wait for a vector; as ``EmbeddingTarget.waiting``."""
        return max(map(operator.methodcaller("waiting", sees), self.targets), default=0)

    def drain(self) -> None:
        """Embed all records that lack a vector now; later writes are not waited for. A space being filled embeds its
        queue.

        Raises: LlmError kinds of an outage of the space that is searched.
        """
        with self._draining:
            self._review()
            targets = self.targets
            for target in targets:
                searched = not self._is_filling(target)
                try:
                    with contextlib.closing(self._missing_scan.whole(target, stored=searched)) as counts:
                        for count in counts:
                            while count > 0 and (done := self._embed_queued(target)):
                                count -= done
                except CaliberError:
                    if searched or len(targets) == 1:
                        raise

    def close(self) -> None:
        """Stop the worker; pending records are found again at the next open."""
        self._stopped.set()
        self._worker.stop()

    def _turn(self) -> tuple[float | None, bool]:
        """Do the next piece of work; return when to go on (seconds; None: when woken), and whether a wake comes first.

        Between two batches the worker rests, whoever wakes it: the requests of other writers can gather meanwhile.
        """
        begun = time.monotonic()
        try:
            wait_s = self._step()
        except Exception as error:
            # An error of the store, perhaps; those of a provider belong to its target. The worker continues.
            if self._stopped.is_set():
                return None, True
            self.failed("worker", as_failure(error))
            wait_s = self._longest_idle_s
        if wait_s is None or wait_s > 0:
            return wait_s, True
        rests = self.waiting() < self._batch
        return (min(pacing.REST_PARTS * (time.monotonic() - begun), pacing.REST_MAX_S) if rests else 0.0), False

    def _step(self) -> float | None:
        """Do the next piece of work; return how long to wait then, None until woken. Units: seconds."""
        with self._draining:
            self._review()
            now = time.monotonic()
            self._missing_scan.due(now, self.targets)
            waits = [] if self._missing_scan.at_s is None else [self._missing_scan.at_s - now]
            busy = False
            for target in self.targets:
                if target.not_before_s > now:
                    waits.append(target.not_before_s - now)
                elif self._attempt(target, self._serve):
                    busy = True
                elif target.not_before_s > now:
                    waits.append(target.not_before_s - now)
            if busy:
                return 0.0
            return min(waits) if waits else None

    def _serve(self, target: EmbeddingTarget) -> bool:
        """Embed a batch of the records that wait for a space; return whether there were any."""
        if self._embed_queued(target):
            return True
        return not self._is_filling(target) and bool(self._missing_scan.look(target))

    def _attempt(self, target: EmbeddingTarget, work: Callable[[EmbeddingTarget], bool]) -> bool:
        """Return the result of ``work``, False if it did nothing; an outage is reported once and retried ever later."""
        erased = self._memory.erasures
        try:
            done = work(target)
        except Exception as error:
            let_through(error)
            if self._stopped.is_set():
                return False
            if not target.failures:
                self.failed("worker", as_failure(error), erased)
            # Each time twice as long: a service that is down for hours, or refuses its key, is not asked all day.
            wait_s = min(self._idle_s * 2.0 ** min(target.failures, 32), self._longest_idle_s)
            target.not_before_s = time.monotonic() + wait_s
            target.failures += 1
            return False
        target.failures = 0
        return done

    # --- another model ---------------------------------------------------------------------------

    def serve_first(self, cancelled: Callable[[], bool]) -> None:
        """Wait while records of ours come first: a batch of a filling goes after some of theirs."""
        until = self._batches + _FILL_EVERY
        while not cancelled() and self._batches < until:
            now = time.monotonic()
            if not any(target.queue and target.not_before_s <= now for target in self.targets):
                return
            self._stopped.wait(pacing.REST_MAX_S)

    def embed_waiting(self) -> None:
        """Embed a batch of the waiting records of each space.

        Raises: LlmError kinds of an outage of the configured provider; Conflict when its space was retired; Unavailable
            when closed.
        """
        target = self.configured
        with self._draining:
            if self._stopped.is_set():
                raise store_closed()
            self._review()
            if target not in self.targets:
                raise retired_elsewhere(target)
            # The new space first: at the switch, nothing may have a vector in the old one alone.
            self._embed_queued(target)
            for other in self.targets:
                if other is not target and other.not_before_s <= time.monotonic():
                    self._attempt(other, lambda each: self._embed_queued(each) > 0)


class _Turns(BackgroundTask):
    """The turns of an embedder on the threads that all stores share: when it is woken, and when it asked for more."""

    def __init__(
        self, turn: Callable[[], tuple[float | None, bool]], failed: Callable[[str, CaliberError], None]
    ) -> None:
        super().__init__("embed", failed=failed)
        self._turn = turn
        self._due_s = math.inf
        self._woken = False
        self._resting = False

    def wake_up(self) -> None:
        """Have a turn soon; one that is due already is enough."""
        if not self._woken:
            self._woken = True  # refused a thread, it is kept by the timer
            self.wake()

    def next_s(self) -> float:
        """Return when the next turn is due."""
        return 0.0 if self._woken and not self._resting else self._due_s

    def _call(self) -> bool:
        self._woken = False
        wait_s, wakes = self._turn()
        self._due_s = math.inf if wait_s is None else time.monotonic() + wait_s
        self._resting = not wakes
        return True
