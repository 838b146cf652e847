"""One open tenant: its store, its resident memory and everything that works behind calls.

``Caliber`` handles (one a principal) share an engine. Here is what they have in common: opening, writing with
events, waiting for other processes' commits, flushing, closing, and what happens at fork and at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from caliber.agents.locks import LockService
from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.context import estimator_of
from caliber.events.bus import EventBus
from caliber.kernels import estimate_tokens, uuid7
from caliber.kernels.evaluator import open_evaluator
from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model import arguments
from caliber.model.deadline import deadline_passed, remaining_s, within
from caliber.model.entities import ConfigDocument, EmbeddingSpace, Event
from caliber.model.enums import DistanceMetric, EntityType, EventFamily, EventType, ReadConsistency
from caliber.model.errors import (
    CaliberError,
    InvalidConfigValue,
    ProviderNotConfigured,
    StorageError,
    Unavailable,
)
from caliber.model.ids import EventId
from caliber.model.time import Clock, from_us
from caliber.resident.frame import FRAME
from caliber.resident.memory import ResidentMemory, ResidentSnapshot
from caliber.runtime.behind import WriteBehind
from caliber.runtime.embedding.embedder import Embedder
from caliber.runtime.embedding.reembedding import enter_space
from caliber.runtime.embedding.space_provider import Vectors
from caliber.runtime.embedding.vector_index import open_index
from caliber.runtime.full_text import open_stored_search
from caliber.runtime.hearing import Hearing
from caliber.runtime.policies.one_shots import OneShots
from caliber.runtime.providers import Providers
from caliber.runtime.records.filters import Filters
from caliber.runtime.repeating import Once, Repeating
from caliber.runtime.stored_records import StoredRecords
from caliber.runtime.summaries.summarizer import TurnSummarizer, open_summarizer
from caliber.runtime.support import refusals
from caliber.schema.memories import OF_RELATION, BuiltIn
from caliber.schema.relations import CONFIG_DOCUMENT, EMBEDDING
from caliber.search.filters import kinds_of
from caliber.search.searcher import Searcher
from caliber.storage import fork_imports, waiting
from caliber.storage.moved import MOVED
from caliber.storage.protocol import ConnectionPool
from caliber.storage.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Engine] = []
"""Engines that a child process inherited: kept for ever, so that nothing of theirs is closed in the child."""

fork_imports.register()


class Engine:
    """What the handles of one open tenant share."""

    def __init__(
        self,
        config: CaliberConfig,
        *,
        clock: Clock,
        embedding_provider: EmbeddingProvider | None,
        previous_embedding_provider: EmbeddingProvider | None,
        summarization_provider: SummarizationProvider | None,
        connection_pool: ConnectionPool | None = None,
    ) -> None:
        waiting.apart(lambda: importlib.import_module("numpy.ma"))  # NumPy would, within some call
        self.config = config
        self.clock = clock
        self.estimator = estimator_of(config)
        self._state = "open"
        self._moved: Unavailable | None = None
        self.unrecorded_errors = 0
        self._closing = threading.RLock()
        self._released = False
        self._stopped = waiting.Event()
        self.store = backend(config.storage.adapter).open_store(
            config, clock_us=clock.now_us, connection_pool=connection_pool
        )
        self._providers = Providers(
            config,
            self.store,
            self._stopped,
            clock_us=clock.now_us,
            count_text=self.count_text,
            truncated=self._embedding_truncated,
        )
        self.embedder: Embedder | None = None
        self.turn_summaries: TurnSummarizer | None = None
        self._repeating: list[Repeating | Once] = []
        try:
            resident = config.resident
            for refusal in refusals(config):
                raise refusal
            self.evaluator = open_evaluator(resident.evaluator, config.cache_path)
            self.memory = ResidentMemory(
                self.store,
                segment_rows=resident.segment_rows,
                resident_bytes=resident.resident_bytes,
                compact_dead_ratio=resident.compact_dead_ratio,
                evaluator=self.evaluator,
                relations=FRAME if config.search.mode == "backend" else None,
            )
            self.store.follow(self.memory)
            self.kinds = kinds_of(self.store.catalog)
            self.searcher = Searcher(self.memory, config.search, tuple(self.kinds.values()))
            self.filters = Filters(self._fields_of)
            self.stored_search = open_stored_search(self.store, self.memory, config)
            self.records = None
            if self.stored_search is not None:
                self.records = StoredRecords(self.store, self.stored_search, self.memory, config)
            self.memory.on_failure = self.record_error
            self.bus = EventBus(self._subscriber_failed)
            self.one_shots = OneShots(self.memory)
            self.behind = WriteBehind(
                self.store,
                self.one_shots,
                queue_max=config.write_behind.queue_max,
                flush_interval_ms=config.write_behind.flush_interval_ms,
                failed=self.record_error,
            )
            self._keep_config()
            self._record_evaluator()
            self._open_providers(embedding_provider, previous_embedding_provider, summarization_provider)
            self.locks = LockService(self.store, check=self.check_open, lease_ms=config.lock_timeout)
            if resident.verify_on_open:
                differences = self.memory.verify()
                if differences:
                    raise StorageError(
                        f"memory and store differ in {len(differences)} places", reason=str(differences[0])
                    )
            self.repeat("feed", self._follow, resident.feed_poll_ms)
            self.store.listen(Hearing(self._follow, self.bus, self.event, self.record_error))
            if self.stored_search is None:
                once = Once("warming", self._warm, after_ms=resident.warm_after_ms, failed=self.record_error)
                self._repeating.append(once)
                once.start()
        except BaseException:
            self._abandon()
            raise
        _engines.add(self)

    def _fields_of(self, kind: str) -> BuiltIn:
        return OF_RELATION.get(kind) or self.store.catalog.memory_of(kind) or OF_RELATION[kind]

    def _abandon(self) -> None:
        """Release what an opening that failed had begun: threads too, whose owner nobody will ever hold."""
        self._state = "closed"
        for repeating in self._repeating:
            repeating.stop()
        self._close_providers()
        behind: WriteBehind | None = getattr(self, "behind", None)
        if behind is not None:
            with contextlib.suppress(CaliberError):  # what made the opening fail is what the caller hears
                behind.close(self.config.write_behind.shutdown_ms)
        self.store.close()

    def _open_providers(
        self,
        embedding_provider: EmbeddingProvider | None,
        previous_embedding_provider: EmbeddingProvider | None,
        summarization_provider: SummarizationProvider | None,
    ) -> None:
        provider, durable = self._providers.embedding(embedding_provider)
        if provider is not None:
            self._open_embedder(provider, durable, previous_embedding_provider)
        self._summarizer = self._providers.summarization(summarization_provider, provider)
        self.turn_summaries = open_summarizer(
            self.store,
            self.memory,
            self.config,
            self._summarizer,
            is_resident=self.stored_search is None,
            count_text=self.count_text,
            failed=lambda error: self.record_error("summarizing turns", error),
        )
        self.memory.on_commit = self._committed
        self.memory.on_missed = self._missed

    def _has_vector(self, _: str, space_id: uuid.UUID, owner: bytes) -> bool:
        """Ask the store whether a record has a vector, where vectors are not in memory."""
        with self.store.read() as session:
            return bool(session.run(self.store.plans[EMBEDDING.name].get, (space_id.bytes, owner, 0)))

    def _open_embedder(self, provider: EmbeddingProvider, durable: bool, previous: EmbeddingProvider | None) -> None:
        """Embed with ``provider``, and with the previous one while its space is the one that is searched."""
        config = self.config
        metric = config.vector.distance_metric if config.vector is not None else DistanceMetric.COSINE
        space = enter_space(self.store, self.write, self.event, provider, metric)
        open_index(self.store, config, self.memory.snapshot.space_in_use, self._embedding_failed)
        lane = self._providers.lane(provider, space, durable=durable)
        snapshot = self.memory.snapshot
        in_use = None if snapshot.space_in_use is None else snapshot.spaces[snapshot.space_in_use]
        earlier = self._providers.earlier_lane(previous, in_use, space)
        self.embedder = Embedder(
            self.store,
            self.memory,
            config,
            lane,
            earlier,
            write=self.write,
            event=self.event,
            failed=self._embedding_failed,
            has_vector=self.memory.has_vector if self.stored_search is None else self._has_vector,
        )
        if self.embedder.has_work:
            self.embedder.start()

    def vectors(self, kind: str, texts: Sequence[str], *, apart: bool = False) -> list[Vectors | None]:
        """Return the vectors to commit with records, if they get any now. Raises: as ``Embedder.prepare``."""
        return [None] * len(texts) if self.embedder is None else self.embedder.prepare(kind, texts, apart=apart)

    def vector(self, kind: str, text: str) -> Vectors | None:
        """As ``vectors``, of one record."""
        return self.vectors(kind, [text])[0]

    def _record_evaluator(self) -> None:
        """Put into the event log what kept compiled code from being kept: opening is slower, and nothing else."""
        for problem in () if self.evaluator.code is None else self.evaluator.code.problems:
            error = InvalidConfigValue(field="cache_dir", value=self.config.cache_dir, reason=problem)
            self.record_error("evaluator", error)

    def _close_providers(self) -> None:
        self._providers.close()  # first, so that the worker does not wait for an answer
        for worker in (self.turn_summaries, self.embedder):
            if worker is not None:
                worker.close()

    def _keep_config(self) -> None:
        document = ConfigDocument(
            self.config.hash, "config", self.config.canonical_json(), from_us(self.clock.now_us())
        )
        self.store.write(lambda uow: uow.insert_new(CONFIG_DOCUMENT, document))

    def repeat(self, name: str, task: Callable[[], None], every_ms: int) -> None:
        """Run ``task`` every ``every_ms`` until the handle is closed; 0 never runs it."""
        repeating = Repeating(name, task, every_ms=every_ms, failed=self.record_error)
        self._repeating.append(repeating)
        repeating.start()

    def _warm(self, stopped: Callable[[], bool]) -> None:
        """Make what the first search would have to make: it need not wait for it then."""
        self.searcher.warm(self.memory.snapshot, stopped)

    def _follow(self) -> None:
        """Bring other processes' commits into memory."""
        if self._has_news():
            self._catch_up()

    def _has_news(self) -> bool:
        try:
            return self.store.changed_elsewhere()
        except Unavailable as error:
            self._notice(error)
            raise

    def _notice(self, error: Unavailable) -> None:
        """Take note when the tenant turns out to have moved: from then on nothing is read here either."""
        if error.context.get("reason") == MOVED[0]:
            self._moved = error

    def _catch_up(self) -> None:
        self.store.catch_up()
        for worker in (self.embedder, self.turn_summaries):
            if worker is not None:
                worker.changed_elsewhere()

    # --- counting --------------------------------------------------------------------------------

    def count_text(self, text: str) -> int:
        """Return the tokens of a text under the configured estimator."""
        return estimate_tokens(text, estimator=self.estimator)

    def count_bytes(self, raw: bytes) -> int:
        """Return the tokens of content under the configured estimator."""
        return self.estimator.tokens_of_bytes(raw)

    # --- state -----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise Unavailable when the handle was closed, or belongs to the parent of this process."""
        if self._state != "open":
            advice = {
                "closed": "the handle is closed; open the store again",
                "forked": "the handle was opened before fork(); open the store again in this process",
            }[self._state]
            raise Unavailable(advice, reason=self._state, retryable=False)
        if self._moved is not None:
            raise Unavailable(self._moved.message, reason=MOVED[0], retryable=False)

    @property
    def state(self) -> str:
        """``open``, ``closed`` or ``forked``."""
        return self._state

    @property
    def summarizer(self) -> SummarizationProvider:
        """The summarization provider. Raises: ProviderNotConfigured."""
        if self._summarizer is None:
            raise ProviderNotConfigured(capability="summarization")
        return self._summarizer

    def snapshot(self, consistency: ReadConsistency | str | None = None) -> ResidentSnapshot:
        """Return the resident snapshot to read from; ``latest`` first looks for other processes' commits."""
        self.check_open()
        wanted = self.config.resident.read_consistency
        if consistency is not None:
            wanted = arguments.as_enum(consistency, ReadConsistency, "consistency")
        if wanted is ReadConsistency.LATEST:
            if self._has_news():
                self._catch_up()
            else:
                self.memory.settle()  # another thread may have read the news, and be about to apply them
        return self.memory.snapshot

    def searched(self, snapshot: ResidentSnapshot) -> EmbeddingSpace | None:
        """Return the embedding space that is searched at a boundary; None without an embedding provider."""
        if self.embedder is None or snapshot.space_in_use is None:
            return None
        return snapshot.spaces[snapshot.space_in_use]

    def around(
        self,
        snapshot: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        scopes: Iterable[uuid.UUID],
        things: Sequence[tuple[str, str]] = (),
    ) -> ResidentSnapshot:
        """Return a snapshot that holds what a call about a trajectory needs: the given one, while memory holds all."""
        return snapshot if self.records is None else self.records.around(snapshot, trajectory_id, scopes, things)

    # --- writing ---------------------------------------------------------------------------------

    def within(self, deadline_ms: int | None) -> AbstractContextManager[None]:
        """Bound all of a call, what it asks of providers and what it writes, to ``deadline_ms``."""
        return within(None if deadline_ms is None else arguments.as_whole(deadline_ms, "deadline_ms") / 1_000)

    def write(self, work: Callable[[UnitOfWork], T], *, deadline_ms: int | None = None) -> T:
        """Run ``work`` in one transaction; events it emitted are published once it is durable."""
        self.check_open()
        if deadline_ms is not None:
            arguments.as_whole(deadline_ms, "deadline_ms")
        left = remaining_s()
        if left is not None:
            if not left and deadline_ms != 0:  # 0 asks to write now or not at all
                raise deadline_passed("the write was prepared; nothing was written")
            left_ms = int(left * 1_000)
            deadline_ms = left_ms if deadline_ms is None else min(deadline_ms, left_ms)
        units: list[UnitOfWork] = []

        def run(uow: UnitOfWork) -> T:
            units[:] = (uow,)  # work that lost a race is done again
            return work(uow)

        try:
            result = self.store.write(run, deadline_ms=deadline_ms)
        except Unavailable as error:
            self._notice(error)
            raise
        for event in units[0].events:
            try:
                self.publish(event)
            except Unavailable:  # closed meanwhile, or its log is full: the write stands all the same
                self.unrecorded_errors += 1
                self.bus.publish(event)
        return result

    def publish(self, event: Event) -> None:
        """Tell subscribers, and queue a trace event for the log; audit events are in the log already."""
        if event.family is not EventFamily.AUDIT and self.config.write_behind.trace_enabled:
            self.behind.event(event)
        if not self.bus.idle:
            self.bus.publish(event)

    def publish_later(self, build: Callable[[], Event]) -> None:
        """As ``publish`` for a trace event of a read; without listeners it is made by the thread that writes it."""
        if not self.bus.idle:
            self.publish(build())
        elif self.config.write_behind.trace_enabled:
            self.behind.event(build)

    def event(
        self,
        event_type: EventType | str,
        *,
        principal: str | None = None,
        trajectory_id: uuid.UUID | None = None,
        scope_id: uuid.UUID | None = None,
        subject: tuple[EntityType | str, uuid.UUID] | None = None,
        payload: dict[str, Any] | None = None,
        duration_ms: int | None = None,
        family: EventFamily = EventFamily.TRACE,
        at_us: int | None = None,
    ) -> Event:
        """Return a new event."""
        return Event(
            event_id=EventId(uuid7()),
            family=family,
            event_type=str(event_type),
            created_at=from_us(self.clock.now_us() if at_us is None else at_us),
            trajectory_id=trajectory_id,  # type: ignore[arg-type]
            scope_id=scope_id,  # type: ignore[arg-type]
            subject_type=None if subject is None else subject[0],
            subject_id=None if subject is None else subject[1],
            principal=principal,
            payload=payload or {},
            duration_ms=duration_ms,
        )

    def _committed(self, changes: Sequence[RowChange]) -> None:
        if self.embedder is not None:
            self.embedder.committed(changes)
        if self.turn_summaries is not None:
            self.turn_summaries.committed(changes)

    def _missed(self) -> None:
        """Have those look through the store who may not have heard of a commit of ours: somebody was interrupted."""
        for worker in (self.embedder, self.turn_summaries):
            if worker is not None:
                worker.loaded()

    # --- failures behind the caller's back: recorded, never silent --------------------------------

    def record_error(self, where: str, error: BaseException) -> None:
        """Log what went wrong where no caller is told, or is told in other words."""
        if self._state != "open":
            return
        kind = error.kind if isinstance(error, CaliberError) else type(error).__name__
        message = str(error)[:500].encode("utf-8", "backslashreplace").decode()  # it may quote what is no text
        event = self.event(EventType.ERROR, payload={"where": where, "error": kind, "message": message})
        if not self.behind.offer(event):
            # The log itself is full or closed, which its own callers are told; here only the count can be kept.
            self.unrecorded_errors += 1

    def _subscriber_failed(self, event: Event, error: Exception) -> None:
        self.record_error(f"subscriber of {event.event_type}", error)

    def _embedding_failed(self, kind: str, error: CaliberError) -> None:
        self.record_error(f"embedding {kind}", error)

    def _embedding_truncated(self, kind: str, texts: int, tokens: int) -> None:
        """Record that texts were embedded without their ends; ``tokens`` is the length of the longest."""
        payload = {"kind": kind, "texts": texts, "longest_tokens": tokens}
        if not self.behind.offer(self.event(EventType.EMBED_TRUNCATE, payload=payload)):
            self.unrecorded_errors += 1

    # --- ending ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once everything behind is done: vectors and summaries made, counts, events and windows on disk."""
        self.check_open()
        with contextlib.ExitStack() as stack:  # a provider that fails does not keep the others from being drained
            stack.callback(self.behind.flush)
            for worker in (self.turn_summaries, self.embedder):
                if worker is not None:
                    stack.callback(worker.drain)

    def close(self) -> None:
        """Drain what is queued within ``shutdown_ms`` and release everything; closing twice changes nothing.

        Interrupted (Ctrl-C, a time limit), it goes on where it was when it is called again.
        """
        with self._closing:
            if self._released or self._state == "forked":
                return
            # First of all: calls of other threads would keep what is drained from ever running dry.
            self._state = "closed"
            self._stopped.set()
            for repeating in self._repeating:
                repeating.stop()
            self._close_providers()
            try:
                self._close_behind()
            except Exception as error:
                if not waiting.is_of_handler(error):
                    self._release()
                raise
            self._release()

    def _release(self) -> None:
        try:
            self.store.close()
        except Exception as error:
            if waiting.is_of_handler(error):
                raise
            _engines.discard(self)
            self._released = True
            raise
        _engines.discard(self)
        self._released = True

    def _close_behind(self) -> None:
        """Drain what reads left behind; where the tenant has moved away, nobody takes it any more."""
        try:
            self.behind.close(0 if self._moved is not None else self.config.write_behind.shutdown_ms)
        except Unavailable as error:
            cause = error.__cause__
            if self._moved is None and not (isinstance(cause, Unavailable) and cause.context["reason"] == MOVED[0]):
                raise

    def forked(self) -> None:
        """Take note that this process is a child of the one that opened the store."""
        if self._state == "open":
            self._state = "forked"


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.forked()
        _inherited.append(engine)
    _engines.clear()


def _at_exit() -> None:
    with contextlib.ExitStack() as stack:  # one that fails to close does not keep the others from draining
        for engine in list(_engines):
            stack.callback(engine.close)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
