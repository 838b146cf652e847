"""Class ``Engine``: one open tenant with its store, resident memory, event bus and background workers.

``Caliber`` handles (one per principal) share an engine. The subsystems take it; it knows none of them: they register
their parts with it, find them by type, and their workers follow its commits.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.engine.background import DelayedTask, PeriodicTask
from caliber.engine.deferred_reads import EventLog, FromRead
from caliber.engine.providers import Providers
from caliber.engine.refusals import estimator_of, refusals
from caliber.engine.write_behind import Entry, WriteBehind
from caliber.events import event_log
from caliber.events.bus import EventBus, RemoteEvents
from caliber.kernels import estimate_tokens, uuid7
from caliber.kernels.evaluator import open_evaluator
from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model import arguments
from caliber.model.deadline import check, unbounded
from caliber.model.errors import (
    CaliberError,
    InvalidConfigValue,
    ProviderNotConfigured,
    Unavailable,
    error_fields,
)
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.joining import JOINED, joined_in, refuse_inside
from caliber.model.process.interpreter import log
from caliber.model.process.interrupts import let_through
from caliber.model.references import EntityType, EventId
from caliber.model.storage import ConfigDocument, ReadConsistency
from caliber.model.time import Clock, from_us
from caliber.resident.memory import ResidentMemory
from caliber.resident.snapshot import FRAME, ResidentSnapshot
from caliber.schema.relations import CONFIG_DOCUMENT
from caliber.storage import waiting
from caliber.storage.compile.session import StatementSession
from caliber.storage.maintain.maintenance import MOVED
from caliber.storage.protocol import ConnectionPool, Store
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Engine] = []
"""Engines that a child process inherited: kept for ever, so that nothing of theirs is closed in the child."""


class Follower(Protocol):
    """A worker of a room above: it follows the commits of a tenant, and is drained and closed with it."""

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Take note of a commit of ours."""
        ...

    def changed_elsewhere(self) -> None:
        """Take note that other processes' commits are in memory now."""
        ...

    def loaded(self) -> None:
        """Look through the store: commits may have been missed."""
        ...

    def drain(self) -> None:
        """Return once everything that waits is done."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Engine:
    """The open tenant that handles share. ``start`` begins to follow other processes, once all parts are in."""

    def __init__(
        self,
        config: CaliberConfig,
        *,
        clock: Clock,
        embedding_provider: EmbeddingProvider | None = None,
        previous_embedding_provider: EmbeddingProvider | None = None,
        summarization_provider: SummarizationProvider | None = None,
        connection_pool: ConnectionPool | None = None,
        reading: Sequence[Callable[[Store, StatementSession, int], None]] = (),
    ) -> None:
        """``reading`` are functions of rooms above that read in the session which loads memory, given the erasures."""
        waiting.apart(lambda: importlib.import_module("numpy.ma"))  # NumPy would, within some call
        self.config = config
        self.clock = clock
        self.estimator = estimator_of(config)
        self.state = "open"
        """``open``, ``closed`` or ``forked``."""
        self._moved: Unavailable | None = None
        self.unrecorded_errors = 0
        self._closing = threading.RLock()
        self._released = False
        self._stopped = waiting.Flag()
        self._parts: dict[type[Any], Any] = {}
        self._followers: list[Follower] = []
        self._background: list[PeriodicTask | DelayedTask] = []
        self.summarization: SummarizationProvider | None = None
        self.log = EventLog()
        self.store = backend(config.storage.adapter).open_store(
            config, clock_us=clock.now_us, connection_pool=connection_pool
        )
        self.providers = Providers(
            config,
            self._stopped,
            count_text=self.count_text,
            embedding=embedding_provider,
            previous=previous_embedding_provider,
            summarization=summarization_provider,
        )
        try:
            resident = config.resident
            for refusal in refusals(config):
                raise refusal
            self.evaluator = open_evaluator(resident.evaluator, config.cache_path)
            with self.store.first_read() as session:
                self.memory = ResidentMemory(
                    self.store,
                    resident_bytes=resident.resident_bytes,
                    evaluator=self.evaluator,
                    relations=FRAME if config.search.mode == "backend" else None,
                    session=session,
                )
                for read in reading:
                    read(self.store, session, self.memory.erasures)
                has_config = session.run(self.store.plans[CONFIG_DOCUMENT.name].get, (config.hash,))
            self.store.follow(self.memory)
            self.memory.on_failure = self.record_error
            self.bus = EventBus(lambda event, error: self.record_error(f"subscriber of {event.event_type}", error))
            self.behind = WriteBehind(
                self.store,
                flush_interval_ms=config.write_behind.flush_interval_ms,
                failed=self.record_error,
            )
            if not has_config:
                text = config.canonical_json()  # computes the hash as well
                document = ConfigDocument(config.hash, "config", text, from_us(clock.now_us()))
                self.store.write(lambda uow: uow.insert_new(CONFIG_DOCUMENT, document))
            for problem in () if self.evaluator.code is None else self.evaluator.code.problems:
                # Compiled code is kept out of the cache: only opening gets slower.
                error = InvalidConfigValue(field="cache_dir", value=config.cache_dir, reason=problem)
                self.record_error("evaluator", error)
            self.memory.on_commit = self._committed
            self.memory.on_missed = self._missed
        except BaseException:
            self.abandon()
            raise

    def start(self) -> None:
        """Begin to follow other processes."""
        self.repeat("feed", self.follow_feed, self.config.resident.feed_poll_ms)
        self.store.listen(RemoteEvents(self.follow_feed, self.bus, self.event, self.record_error))
        _engines.add(self)

    def _stop_background(self) -> None:
        for task in self._background:
            task.cancel()  # all at once: none goes on while another is waited for
        for task in self._background:
            task.stop()

    def abandon(self) -> None:
        """Release what a failed opening had started, including its threads."""
        self.state = "closed"
        self._stop_background()
        self._close_followers()
        behind: WriteBehind | None = getattr(self, "behind", None)
        if behind is not None:
            with contextlib.suppress(CaliberError):  # the caller gets the error that made the opening fail
                behind.close(self.config.write_behind.shutdown_ms)
        self.store.close()

    # --- parts of the rooms above ------------------------------------------------------------------

    def add(self, part: object) -> None:
        """Register a subsystem's part; services find it by its type."""
        self._parts[type(part)] = part

    def part(self, kind: type[T]) -> T:
        """Return the one part of its type in this tenant; a service asks for it once, when it is made."""
        part: T = self._parts[kind]
        return part

    def find_part(self, kind: type[T]) -> T | None:
        """As ``part``, of a part that not every tenant has; None without it."""
        return self._parts.get(kind)

    def follow(self, worker: Follower) -> None:
        """Have a worker follow the tenant's commits; it is drained and closed with the tenant."""
        self._followers.append(worker)

    def _close_followers(self) -> None:
        self.providers.close()  # first, so that no worker waits for an answer
        for worker in reversed(self._followers):
            worker.close()

    def repeat(self, name: str, task: Callable[[], None], every_ms: int) -> None:
        """Run ``task`` every ``every_ms`` until the handle is closed; 0 never runs it."""
        self._begin(PeriodicTask(name, task, every_ms=every_ms, failed=self.record_error))

    def later(self, name: str, task: Callable[[Callable[[], bool]], None], after_ms: int) -> None:
        """Run ``task`` once, ``after_ms`` from now; 0 never runs it. It can ask whether it is to end early."""
        self._begin(DelayedTask(name, task, after_ms=after_ms, failed=self.record_error))

    def _begin(self, task: PeriodicTask | DelayedTask) -> None:
        self._background.append(task)
        task.start()

    def follow_feed(self) -> None:
        """Bring other processes' commits into memory."""
        if self._has_news():
            self._catch_up()

    def _has_news(self) -> bool:
        if JOINED.get() is not None and joined_in(self.store) is not None:
            return False  # the writer's own connection, which would be asked, is that of the transaction
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
        for worker in self._followers:
            worker.changed_elsewhere()

    # --- counting --------------------------------------------------------------------------------

    def count_text(self, text: str) -> int:
        """Return the tokens of a text under the configured estimator."""
        return estimate_tokens(text, estimator=self.estimator)

    # --- state -----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise Unavailable when the handle was closed, or belongs to the parent of this process."""
        if self.state != "open":
            advice = {
                "closed": "the handle is closed; open the store again",
                "forked": "the handle was opened before fork(); open the store again in this process",
            }[self.state]
            raise Unavailable(advice, reason=self.state, retryable=False)
        if self._moved is not None:
            raise Unavailable(self._moved.message, reason=MOVED[0], retryable=False)

    @property
    def summarizer(self) -> SummarizationProvider:
        """The summarization provider. Raises: ProviderNotConfigured."""
        if self.summarization is None:
            raise ProviderNotConfigured(capability="summarization")
        return self.summarization

    def snapshot(self, consistency: ReadConsistency | str | None = None) -> ResidentSnapshot:
        """Return the resident snapshot to read from; ``latest`` first looks for other processes' commits."""
        if self.state != "open" or self._moved is not None:  # asked here: every read comes by
            self.check_open()
        wanted = self.config.resident.read_consistency
        if consistency is not None:
            wanted = arguments.as_enum(consistency, ReadConsistency, "consistency")
        if wanted is ReadConsistency.LATEST:
            if self._has_news():
                self._catch_up()
            else:
                self.memory.settle()  # another thread may have read the news, and be about to apply them
        return self.memory.snapshot if self.memory.waiting else self.memory.published

    # --- reading and writing ---------------------------------------------------------------------

    def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run ``work``, which only reads, on what is committed, or in the transaction of this context."""
        if JOINED.get() is not None and (joined := joined_in(self.store)) is not None:
            result: T = joined.run(work)
            return result
        store, now_us = self.store, self.clock.now_us()
        with store.read() as session:
            plans, statements = store.plans, store.statements
            return work(UnitOfWork(session, plans, statements, now_us, keep_content=False, catalog=store.catalog))

    def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run ``work`` in one transaction; events it emitted are published once it is durable."""
        self.check_open()
        check("the write was prepared; this transaction wrote nothing")
        if JOINED.get() is not None and (joined := joined_in(self.store)) is not None:
            result: T = joined.run(work)
            return result
        units: list[UnitOfWork] = []
        erased = self.memory.erasures

        def run(uow: UnitOfWork) -> T:
            units[:] = (uow,)  # work that lost a race is done again
            return work(uow)

        try:
            result = self.store.write(run)
        except Unavailable as error:
            self._notice(error)
            raise
        self.publish_all(units[0], erased)
        return result

    def after_commit(self, work: Callable[[], None]) -> None:
        """Do work that follows a write right after its commit: now, or where a transaction goes on, after that."""
        if JOINED.get() is not None and (joined := joined_in(self.store)) is not None:
            joined.after.append(work)
        else:
            work()

    def publish_all(self, unit: UnitOfWork, erased: int) -> None:
        """Publish the events of a transaction that is durable; ``erased`` as in ``publish``."""
        for event in unit.events:
            try:
                self.publish(event, erased)
            except Unavailable:  # closed meanwhile, or its log is full: the write stands all the same
                self.unrecorded_errors += 1
                self.bus.publish(event)

    def publish(self, event: Event, erased: int) -> None:
        """Notify subscribers, and queue a trace event for the log; audit events are in the log already.

        ``erased`` is the number of erasures when the call that it is of began.
        """
        if event.family is not EventFamily.AUDIT and self.config.write_behind.trace_enabled:
            self.behind.put((self.log, None, (erased, event)))
        if not self.bus.idle:
            self.bus.publish(event)

    def publish_later(self, build: Callable[[], Event], erased: int, also: tuple[Entry, ...] = ()) -> None:
        """As ``publish`` for a trace event of a read; without listeners it is made by the thread that writes it.

        ``also`` are other entries that the read leaves behind.
        """
        idle = self.bus.idle  # asked once: a listener that comes meanwhile gets what is published after it
        if idle and self.config.write_behind.trace_enabled:
            also = (*also, (self.log, None, (erased, build)))
        if also:
            self.behind.put(*also)
        if not idle:
            self.publish(build(), erased)

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

    def audit(self, uow: UnitOfWork, event_type: EventType | str, **fields: Any) -> None:
        """Write an audit event in a transaction, published after the commit; ``fields`` are those of ``event``."""
        event_log.audit(uow, self.event(event_type, family=EventFamily.AUDIT, at_us=uow.now_us, **fields))

    def trace(self, uow: UnitOfWork, event_type: EventType | str, **fields: Any) -> Event:
        """Write a trace event in the very transaction that it is about, published after the commit, as ``audit``."""
        event = self.event(event_type, at_us=uow.now_us, **fields)
        event_log.log(uow, event, self.bus.publish)
        return event

    def emit(self, uow: UnitOfWork, event_type: EventType | str, **fields: Any) -> None:
        """Have a trace event written behind the commit of a transaction; ``fields`` are those of ``event``."""
        uow.emit(self.event(event_type, at_us=uow.now_us, **fields))

    def _committed(self, changes: Sequence[RowChange]) -> None:
        for worker in self._followers:
            worker.committed(changes)

    def _missed(self) -> None:
        """Make the workers rescan the store: an interrupted thread may not have notified them of its commit."""
        for worker in self._followers:
            worker.loaded()

    # --- failures behind the caller's back: recorded, never silent --------------------------------

    def record_error(self, where: str, error: BaseException, erased: int | None = None) -> None:
        """Log an error that no caller receives, or receives in other words.

        ``erased`` is the number of erasures before the records were read that the error may quote.
        """
        log("engine", "warning", "%s failed: %s", where, error_fields(error)["error"])
        if self.state != "open":
            return
        try:
            event = self.event(EventType.ERROR, payload={"where": where, **error_fields(error)})
            self.record(event if erased is None else (erased, event))
        except Exception as failure:  # a clock that cannot be read ends neither the thread nor the call that failed
            let_through(failure)
            self.unrecorded_errors += 1

    def record(self, event: Event | FromRead) -> None:
        """Queue an event for the log without ever waiting."""
        if not self.behind.offer((self.log, None, event)):
            # The log itself is full or closed, and its own callers get that error; here it can only be counted.
            self.unrecorded_errors += 1

    # --- ending ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once everything behind is done: vectors and summaries made, counts, events and windows on disk."""
        self.check_open()
        refuse_inside("flush waits for what is done behind", self.store)
        with contextlib.ExitStack() as stack:  # a provider that fails does not keep the others from being drained
            stack.callback(self.behind.flush)
            for worker in reversed(self._followers):
                stack.callback(worker.drain)

    def close(self) -> None:
        """Drain the queues within ``shutdown_ms`` and release everything; closing twice is harmless.

        If interrupted (Ctrl-C, a time limit), it continues when it is called again.
        """
        refuse_inside("close waits for all that is written", self.store)
        with self._closing, unbounded():
            if self._released or self.state == "forked":
                return
            # This comes first: calls of other threads would keep the queues from running dry.
            self.state = "closed"
            self._stopped.set()
            self._stop_background()
            self._close_followers()
            try:
                self._close_behind()
            except Exception as error:
                let_through(error)
                self._release()
                raise
            self._release()

    def _release(self) -> None:
        failure: Exception | None = None
        try:
            self.store.close()
        except Exception as error:
            let_through(error)
            failure = error
        _engines.discard(self)
        self._released = True
        if failure is not None:
            raise failure

    def _close_behind(self) -> None:
        """Drain the write-behind queue; where the tenant has moved away, nothing accepts the entries any more."""
        try:
            self.behind.close(0 if self._moved is not None else self.config.write_behind.shutdown_ms)
        except Unavailable as error:
            cause = error.__cause__
            if self._moved is None and not (isinstance(cause, Unavailable) and cause.context["reason"] == MOVED[0]):
                raise

    def forked(self) -> None:
        """Take note that this process is a child of the one that opened the store."""
        if not self._released:  # also where its closing was interrupted, or is under way in another thread
            self.state = "forked"
            self._closing = threading.RLock()


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
