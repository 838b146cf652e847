"""Write-behind queue: rows caused by reads (usage counts, traces, windows) are written in batches by a thread.

The queue knows no kind of write: each kind is an object of its own subsystem. Knowledge, turns, artifacts, locks and
audit records never pass through here. The queue is bounded: when it is full, the reader waits for the writer. While the
store cannot be written, all entries are kept and retried; ``flush`` and ``close`` report the failure, and readers get
an error once the queue is full. An entry that alone cannot be written is set aside and recorded as an error once; it
does not block the others.

Source: O-10, O-12, design section 4.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from caliber.engine.worker import Worker
from caliber.model.deadline import deadline_passed, earliest, remaining_s
from caliber.model.errors import (
    CaliberError,
    InternalError,
    SchemaMismatch,
    StorageError,
    TransactionFailed,
    Unavailable,
    ValidationError,
)
from caliber.model.joining import refuse_inside
from caliber.model.process.interrupts import let_through
from caliber.storage.protocol import Store
from caliber.storage.waiting import Condition
from caliber.storage.write.unit_of_work import UnitOfWork

_RETRY_S = 0.05
_IDLE_S = 1.0
"""The time after which a thread with nothing to write ends."""
QUEUE_MAX: Final = 4_096
"""Entries that may wait; a full queue slows the reader."""
_BATCH = 512


_OF_THE_STORE: Final = (Unavailable, SchemaMismatch, TransactionFailed)
_OF_AN_ENTRY: Final = (StorageError, ValidationError, ValueError, TypeError, ArithmeticError)
"""Errors of an invalid value: wrong type, too large, or against a rule of the schema."""


class Deferred:
    """One kind of deferred writes of one tenant. The queue keeps their items as they are given."""

    rank = 0
    """Its place in a transaction: kinds are written by rising rank."""

    def merge(self, old: Any, new: Any) -> Any:  # noqa: ARG002
        """Return the item that stands for two of one key."""
        return new

    def make(self, items: dict[Hashable, Any]) -> None:
        """Build in place the rows that readers deferred; the writing thread calls it before each attempt to write."""

    def write(self, uow: UnitOfWork, items: Iterable[Any]) -> None:
        """Write items in a transaction that they share with other kinds."""
        raise NotImplementedError

    def written(self, items: Iterable[Any]) -> None:
        """Take note that items are on disk."""

    def reports(self, item: Any) -> bool:  # noqa: ARG002
        """Return whether an item that cannot be written is recorded as an error."""
        return True


Entry = tuple[Deferred, Hashable, Any]
"""A kind, a key or None, and an item. Items of one kind and key are merged; None merges with nothing."""


class _Alone:
    """The key of an item without one."""

    __slots__ = ()


@dataclass(slots=True)
class _Batch:
    """Entries that are written together: items by key, by kind."""

    kinds: dict[Deferred, dict[Hashable, Any]] = field(default_factory=dict)
    size: int = 0

    def put(self, entries: Iterable[Entry]) -> None:
        for kind, key, item in entries:
            items = self.kinds.get(kind)
            if items is None:
                items = self.kinds[kind] = {}
            if key is None:
                items[_Alone()] = item
                self.size += 1
            elif key in items:
                items[key] = kind.merge(items[key], item)
            else:
                items[key] = item
                self.size += 1

    def entries(self) -> list[Entry]:
        """Return each entry."""
        return [(kind, key, item) for kind, items in self.kinds.items() for key, item in items.items()]


class WriteBehind:
    """A bounded queue and the thread that empties it.

    ``failed`` is called with each entry that was set aside.
    """

    def __init__(
        self,
        store: Store,
        *,
        flush_interval_ms: int,
        failed: Callable[[str, CaliberError], None],
    ) -> None:
        self._failed = failed
        self._store = store
        self._queue_max = QUEUE_MAX
        self._interval_s = flush_interval_ms / 1000
        self._batch = min(_BATCH, QUEUE_MAX)
        self._condition = Condition()
        self._queue = _Batch()
        self._noted: deque[Entry] = deque()  # queued without the lock
        self._writing = _Batch()
        self.busy = False
        self._stop = False
        self._urgent = False
        self._failure: CaliberError | None = None
        self._attempts = 0
        self._taken = 0  # batches
        self._kept = 0  # the newest of them that is on disk, and with it all that was queued before it was taken
        self._asleep = True  # whether the thread waits for the first entry, or there is none
        self._worker = Worker(self._run, "caliber-behind")
        self._started = False
        self.set_aside = 0
        """Entries that could not be written, and were given up."""

    # --- putting in ------------------------------------------------------------------------------

    def put(self, *entries: Entry) -> None:
        """Queue entries, all in one transaction unless one of them cannot be written.

        Without a lock, unless the thread is to be woken, or a batch waits.
        """
        stopped = self._stop
        if stopped or self._queue.size + len(self._noted) >= self._batch:
            with self._condition:
                before = self._make_room()
                # What merges is merged at once: one record that is read again and again stays one entry.
                self._queue.put(entry for entry in entries if entry[1] is not None)
                self._noted.extend([entry for entry in entries if entry[1] is None])
                self._wake(before)
            return
        self._noted.extend(entries)  # in one step: a batch takes all of them, or none
        if self._asleep:  # asked afterwards, as the thread first sleeps and then looks
            with self._condition:
                if self._stop and not self._worker.alive:  # stopped meanwhile
                    self._noted.clear()
                    raise _closed()
                self._wake(0)

    def offer(self, *entries: Entry) -> bool:
        """Queue entries if there is room, without ever waiting; return whether they were taken.

        For failures, which are recorded on threads that may hold the writer: waiting there would wait for itself.
        """
        with self._condition:
            before = self._size()
            if self._stop or before >= self._queue_max:
                return False
            self._queue.put(entries)
            self._wake(before)
            return True

    def find(self, kind: Deferred, key: Hashable) -> Any | None:
        """Return the item under a key that may not be on disk yet, or None."""
        with self._condition:
            for of, under, item in reversed(list(self._noted)):
                if of is kind and under == key:
                    return item
            for batch in (self._queue, self._writing):
                items = batch.kinds.get(kind)
                if items is not None and key in items:
                    return items[key]
        return None

    def _size(self) -> int:
        """Return the number of queued entries."""
        return self._queue.size + len(self._noted)

    def _make_room(self) -> int:
        """Wait until there is room; return the number of queued entries.

        A failed write is retried and its entries are kept; the reader gets the error only when the queue is full.
        """
        if self._stop:
            raise _closed()
        while (size := self._size()) >= self._queue_max:
            # The reader waits: losing its entries would be worse than being slow. Their writer may wait for it.
            refuse_inside("what reads leave behind is too much to keep until its end", self._store)
            self._start()
            self._urgent = True
            self._condition.notify_all()
            left_s = remaining_s()
            if left_s == 0.0:
                raise deadline_passed("what reads leave behind was being written, and the queue was full")
            self._condition.wait(0.1 if left_s is None else min(0.1, left_s))
            self._raise_failure()
        return size

    def _wake(self, before: int) -> None:
        if not self._started:
            with contextlib.suppress(Unavailable):  # refused by the system: the next entry tries again, or a full queue
                self._start()
        # The thread sleeps on an empty queue, or until a batch is full: in between it is left alone, so that
        # readers do not hand the interpreter to it at every call.
        if self._asleep or before < self._batch <= self._size():
            self._condition.notify_all()
            self._asleep = not self._started  # woken once, however long it waits for the interpreter

    def _start(self) -> None:
        self._worker.start()
        self._started = True

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            raise Unavailable(
                f"write-behind failed: {failure.message}",
                reason="write-behind",
                retryable=failure.retryable,
            ) from failure

    # --- writing out -----------------------------------------------------------------------------

    def flush(self, timeout_ms: int | None = None) -> None:
        """Return once everything queued before this call is on disk; later entries do not prolong the wait.

        Raises: Unavailable when writing failed, or when ``timeout_ms`` or the deadline of the call passed.
        """
        refuse_inside("a call in it waits for what is written behind", self._store)
        self._drain(timeout_ms, to_the_end=False)

    def _drain(self, timeout_ms: int | None, *, to_the_end: bool) -> None:
        until = earliest(None if timeout_ms is None else time.monotonic() + timeout_ms / 1000)
        with self._condition:
            attempts = self._attempts
            target = self._taken + 1 if self._size() else self._taken
            while self._kept < target or (to_the_end and (self._size() or self.busy)):
                if self._taken < target or to_the_end or not self.busy:
                    self._urgent = True
                    self._condition.notify_all()
                if self._stop and not self._worker.alive:
                    self._raise_failure()
                    raise _closed()
                refused = None
                try:
                    self._start()
                except Unavailable as error:
                    refused = error
                remaining = None if until is None else until - time.monotonic()
                if refused is not None and (remaining is None or remaining <= 0):
                    raise refused
                if remaining is not None and remaining <= 0:
                    self._raise_failure()
                    size = self._size()
                    raise Unavailable(f"{size} entries are still waiting to be written", reason="timeout")
                self._condition.wait(0.2 if remaining is None else min(0.2, remaining))
                if until is None and self._attempts > attempts + 1:
                    self._raise_failure()  # tried again since this call began, and failed again

    def close(self, timeout_ms: int) -> None:
        """Write out the queue, within ``timeout_ms``, and stop."""
        try:
            self._drain(timeout_ms, to_the_end=True)
        finally:
            with self._condition:
                self._stop = True
                self._condition.notify_all()
            self._worker.join(max(timeout_ms / 1000, 0.1))

    def waiting(self) -> int:
        """Return how many entries wait."""
        with self._condition:
            return self._size()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._asleep = True
                self._condition.wait_for(lambda: self._size() > 0 or self._stop, _IDLE_S)
                if not self._size():
                    # The next entry starts another thread: an idle store has none.
                    self._worker, self._started = Worker(self._run, self._worker.name), False
                    return
                self._asleep = False
                if not self._urgent and not self._stop:
                    # Company makes batches; a flush, a full queue or the end does not wait for it.
                    self._condition.wait_for(
                        lambda: self._urgent or self._stop or self._size() >= self._batch,
                        self._interval_s,
                    )
                self._writing, self._queue = self._queue, _Batch()
                self._writing.put(self._noted.popleft() for _ in range(len(self._noted)))
                self.busy = True
                self._taken += 1
                self._urgent = False
                self._condition.notify_all()
            remaining, failure = self._write(self._writing)
            with self._condition:
                self._attempts += 1
                self._failure = failure
                if failure is None:
                    self._kept = self._taken
                else:
                    # Nothing is lost by a failure: it goes back to the front and is tried again.
                    remaining.put(self._queue.entries())
                    self._queue = remaining
                self._writing = _Batch()
                self.busy = False
                self._condition.notify_all()
                if failure is not None:
                    if self._stop:
                        self._asleep = True  # who queues anything from here on is told
                        return
                    self._condition.wait(_RETRY_S)

    def _write(self, batch: _Batch) -> tuple[_Batch, CaliberError | None]:
        """Write a batch; return the entries still to be written, and the failure.

        If the store itself did not fail, each entry is written alone, and the ones that fail are set aside.
        """
        failure = self._written(batch)
        if failure is None:
            return _Batch(), None
        if _of_the_store(failure):
            return batch, failure
        remaining = batch.entries()
        while remaining:
            entry = _Batch()
            entry.put(remaining[:1])
            failure = self._written(entry)
            if failure is not None and _of_the_store(failure):
                rest = _Batch()
                rest.put(entry.entries())
                rest.put(remaining[1:])
                return rest, failure
            if failure is not None:
                self.set_aside += 1
                kind, _, item = remaining[0]
                if kind.reports(item):
                    self._failed("write-behind: an entry was set aside", failure)
            remaining.pop(0)
        return _Batch(), None

    def _written(self, batch: _Batch) -> CaliberError | None:
        """Write a batch in one transaction; return the failure."""

        def work(uow: UnitOfWork) -> None:
            # In one order: writers of other processes wait for the same rows.
            for kind in sorted(batch.kinds, key=attrgetter("rank")):
                kind.write(uow, batch.kinds[kind].values())

        try:
            for kind, items in batch.kinds.items():
                kind.make(items)
            batch.size = sum(map(len, batch.kinds.values()))
            self._store.write(work)
        except CaliberError as error:
            return error
        except Exception as error:
            let_through(error)
            # Whatever the error is, the thread goes on, and the callers of ``flush`` get it.
            failure = InternalError(
                f"write-behind failed: the writes after a read could not be made: {type(error).__name__}"
            )
            failure.__cause__ = error
            return failure
        for kind, items in batch.kinds.items():
            kind.written(items.values())
        return None


def _closed() -> Unavailable:
    return Unavailable("the handle is closed", reason="closed", retryable=False)


def _of_the_store(failure: CaliberError) -> bool:
    """Return whether it may be that nothing can be written, rather than one entry; only then does trying again help."""
    if failure.context.get("field") == "clock":  # raised to the writing thread; a later attempt may report another one
        return True
    cause = failure.__cause__ if isinstance(failure, InternalError) else failure
    damaged = failure.context.get("reason") == "corrupt"
    return failure.retryable or damaged or isinstance(cause, _OF_THE_STORE) or not isinstance(cause, _OF_AN_ENTRY)
