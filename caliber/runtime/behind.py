"""The write-behind queue: what a read leaves behind reaches the disk a little later, in batches.

Usage counts, trace events and persisted windows go through here; knowledge, turns, artifacts, locks and audit
records never do. The queue is bounded: when it is full, the reader waits for the writer. While the store cannot be
written, all is kept and tried again; ``flush`` and ``close`` say so, and readers hear once there is no room left. One
entry that cannot be written is set aside and recorded as an error once: it stops nothing else.

Source: O-10, O-12, design section 4.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from caliber.model.entities import Event, StoredWindow
from caliber.model.enums import EventType
from caliber.model.errors import (
    CaliberError,
    InternalError,
    SchemaMismatch,
    StorageError,
    TransactionFailed,
    Unavailable,
    ValidationError,
)
from caliber.runtime.policies.one_shots import Claim, OneShots, spend
from caliber.schema.relations import CONTEXT_WINDOW, EVENT, TRAJECTORY, USAGE
from caliber.storage.protocol import Store
from caliber.storage.unit_of_work import UnitOfWork
from caliber.storage.waiting import Condition, Worker

_RETRY_S = 0.05
_BATCH = 512


_OF_THE_STORE: Final = (Unavailable, SchemaMismatch, TransactionFailed)
_OF_AN_ENTRY: Final = (StorageError, ValidationError, ValueError, TypeError, ArithmeticError)
"""What is raised for a value that is none, too large, or against a rule of the schema."""

Owners = Callable[[], Iterable[tuple[str, uuid.UUID]]]


@dataclass(slots=True)
class _Batch:
    """Entries that are written together."""

    events: list[Event | Callable[[], Event]] = field(default_factory=list)
    windows: dict[uuid.UUID, Callable[[], StoredWindow]] = field(default_factory=dict)
    usage: dict[uuid.UUID, tuple[str, int, int]] = field(default_factory=dict)
    used_in: list[tuple[Owners, int]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.windows) + len(self.usage) + len(self.used_in) + len(self.claims)

    @property
    def tells_an_error(self) -> bool:
        return any(isinstance(event, Event) and event.event_type == EventType.ERROR for event in self.events)

    def used(self, owner_type: str, owner: uuid.UUID, times: int, at_us: int) -> None:
        _, count, last_us = self.usage.get(owner, (owner_type, 0, at_us))
        self.usage[owner] = (owner_type, count + times, max(at_us, last_us))

    def make(self) -> None:
        """Make the events that were left to be made, and count what windows used: once, however often it is tried."""
        self.events[:] = [event if isinstance(event, Event) else event() for event in self.events]
        while self.used_in:
            owners, at_us = self.used_in[-1]
            for kind, owner in list(owners()):
                self.used(kind, owner, 1, at_us)
            self.used_in.pop()

    def entries(self) -> list[_Batch]:
        """Return each entry as a batch of its own."""
        return [
            *(_Batch(events=[event]) for event in self.events),
            *(_Batch(windows={key: build}) for key, build in self.windows.items()),
            *(_Batch(usage={owner: counted}) for owner, counted in self.usage.items()),
            *(_Batch(used_in=[used]) for used in self.used_in),
            *(_Batch(claims=[claim]) for claim in self.claims),
        ]

    def add(self, other: _Batch) -> None:
        """Put the entries of another batch behind those of this one."""
        self.events += other.events
        self.windows |= other.windows
        self.used_in += other.used_in
        self.claims += other.claims
        for owner, (kind, count, at_us) in other.usage.items():
            self.used(kind, owner, count, at_us)


class WriteBehind:
    """A bounded queue and the thread that empties it.

    ``failed`` hears of each entry that was set aside.
    """

    def __init__(
        self,
        store: Store,
        one_shots: OneShots,
        *,
        queue_max: int,
        flush_interval_ms: int,
        failed: Callable[[str, CaliberError], None],
    ) -> None:
        self._failed = failed
        self._store = store
        self._one_shots = one_shots
        self._queue_max = queue_max
        self._interval_s = flush_interval_ms / 1000
        self._batch = min(_BATCH, queue_max)
        self._condition = Condition()
        self._queue = _Batch()
        self._writing = _Batch()
        self._busy = False
        self._stop = False
        self._urgent = False
        self._failure: CaliberError | None = None
        self._attempts = 0
        self._taken = 0  # batches
        self._kept = 0  # the newest of them that is on disk, and with it all that was queued before it was taken
        self._asleep = False  # whether the thread waits for the first entry
        self._worker = Worker(self._run, "caliber-behind")
        self.windows_written = 0
        self.window_bytes = 0
        self.set_aside = 0
        """Entries that could not be written, and were given up."""

    # --- putting in ------------------------------------------------------------------------------

    def event(self, event: Event | Callable[[], Event]) -> None:
        """Queue an event, or what makes it: a reader on its way leaves that to the thread that writes."""
        with self._condition:
            before = self._make_room()
            self._queue.events.append(event)
            self._wake(before)

    def offer(self, event: Event) -> bool:
        """Queue an event if there is room, without ever waiting; return whether it was taken.

        For failures, which are recorded on threads that may hold the writer: waiting there would wait for itself.
        """
        with self._condition:
            before = len(self._queue)
            if self._stop or before >= self._queue_max:
                return False
            self._queue.events.append(event)
            self._wake(before)
            return True

    def window(self, window_id: uuid.UUID, build: Callable[[], StoredWindow], claim: Claim) -> None:
        """Queue a window, and the removal of what it took; ``pending_window`` finds it at once.

        It is packed by the thread that writes it.
        """
        with self._condition:
            before = self._make_room()
            self._queue.windows[window_id] = build
            if claim.rows:
                self._queue.claims.append(claim)
            self._wake(before)

    def used(self, owner_type: str, owners: Sequence[uuid.UUID], now_us: int) -> None:
        """Count one access of each owner; equal owners are counted together."""
        with self._condition:
            before = self._make_room()
            for owner in owners:
                self._queue.used(owner_type, owner, 1, now_us)
            self._wake(before)

    def used_in(self, owners: Owners, now_us: int) -> None:
        """Count one access of each (kind, owner) that ``owners`` names when the thread that writes asks it."""
        with self._condition:
            before = self._make_room()
            self._queue.used_in.append((owners, now_us))
            self._wake(before)

    def spent(self, claim: Claim) -> None:
        """Queue the removal of what a window took that is kept nowhere."""
        with self._condition:
            before = self._make_room()
            self._queue.claims.append(claim)
            self._wake(before)

    def pending_window(self, window_id: uuid.UUID) -> StoredWindow | None:
        """Return a window that may not be on disk yet."""
        with self._condition:
            build = self._queue.windows.get(window_id) or self._writing.windows.get(window_id)
        return None if build is None else build()

    def _make_room(self) -> int:
        """Wait until there is room; return how many entries wait.

        What fails is tried again and kept meanwhile; only when there is no room left for more does the reader hear.
        """
        if self._stop:
            raise Unavailable("the handle is closed", reason="closed", retryable=False)
        while (size := len(self._queue)) >= self._queue_max:
            # The reader waits: losing what it leaves behind is worse than being slow.
            self._urgent = True
            self._condition.notify_all()
            self._condition.wait(0.1)
            self._raise_failure()
        return size

    def _wake(self, before: int) -> None:
        self._worker.start()
        # The thread sleeps on an empty queue, or until a batch is full: in between it is left alone, so that
        # readers do not hand the interpreter to it at every call.
        if self._asleep or before < self._batch <= len(self._queue):
            self._condition.notify_all()

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            raise Unavailable(
                f"what reads leave behind could not be written: {failure.message}",
                reason="write-behind",
                retryable=failure.retryable,
            ) from failure

    # --- writing out -----------------------------------------------------------------------------

    def flush(self, timeout_ms: int | None = None) -> None:
        """Return once everything queued before this call is on disk, whatever others go on queueing.

        Raises: Unavailable when writing failed, or when ``timeout_ms`` passed.
        """
        self._drain(timeout_ms, to_the_end=False)

    def _drain(self, timeout_ms: int | None, *, to_the_end: bool) -> None:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._condition:
            attempts = self._attempts
            wanted = self._taken + 1 if len(self._queue) else self._taken
            while self._kept < wanted or (to_the_end and (len(self._queue) or self._busy)):
                if self._taken < wanted or to_the_end or not self._busy:
                    self._urgent = True
                    self._condition.notify_all()
                if self._stop and not self._worker.alive:
                    self._raise_failure()
                    raise Unavailable("the handle is closed", reason="closed", retryable=False)
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    self._raise_failure()
                    raise Unavailable(f"{len(self._queue)} entries are still waiting to be written", reason="timeout")
                self._condition.wait(0.2 if left is None else min(0.2, left))
                if until is None and self._attempts > attempts + 1:
                    self._raise_failure()  # tried again since this call began, and failed again

    def close(self, timeout_ms: int) -> None:
        """Write out what is queued, within ``timeout_ms``, and stop."""
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
            return len(self._queue)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not len(self._queue) and not self._stop:
                    self._asleep = True
                    self._condition.wait()
                self._asleep = False
                if not len(self._queue):
                    return
                if not self._urgent and not self._stop:
                    # Company makes batches; a flush, a full queue or the end does not wait for it.
                    self._condition.wait_for(
                        lambda: self._urgent or self._stop or len(self._queue) >= self._batch,
                        self._interval_s,
                    )
                self._writing, self._queue = self._queue, _Batch()
                self._busy = True
                self._taken += 1
                self._urgent = False
                self._condition.notify_all()
            left, failure = self._write(self._writing)
            with self._condition:
                self._attempts += 1
                self._failure = failure
                if failure is None:
                    self._kept = self._taken
                else:
                    # Nothing is lost by a failure: it goes back to the front and is tried again.
                    left.add(self._queue)
                    self._queue = left
                self._writing = _Batch()
                self._busy = False
                self._condition.notify_all()
                if failure is not None:
                    if self._stop:
                        return
                    self._condition.wait(_RETRY_S)

    def _write(self, batch: _Batch) -> tuple[_Batch, CaliberError | None]:
        """Write a batch; return what of it is still to be written, and why.

        Where it is not the store that fails, each entry is written alone, and those that cannot be are set aside.
        """
        failure = self._written(batch)
        if failure is None:
            return _Batch(), None
        if _of_the_store(failure):
            return batch, failure
        left = batch.entries()
        while left:
            failure = self._written(left[0])
            if failure is not None and _of_the_store(failure):
                rest = _Batch()
                for entry in left:
                    rest.add(entry)
                return rest, failure
            if failure is not None:
                self._put_aside(left[0], failure)
            left.pop(0)
        return _Batch(), None

    def _put_aside(self, entry: _Batch, failure: CaliberError) -> None:
        self.set_aside += 1
        if not entry.tells_an_error:  # an error that cannot be recorded is not recorded as another
            with contextlib.suppress(Exception):  # it is counted; a clock that cannot be read must not end the thread
                self._failed("write-behind: an entry was set aside", failure)

    def _written(self, batch: _Batch) -> CaliberError | None:
        """Write a batch in one transaction; return what failed."""

        def work(uow: UnitOfWork) -> None:
            # A window goes with its trajectory, also when that was deleted before the window reached the disk.
            trajectories = {window.trajectory_id.bytes for window in windows}
            alive = {key for key in trajectories if uow.find(TRAJECTORY, key) is not None}
            for window in windows:
                if window.trajectory_id.bytes in alive:
                    uow.insert_new(CONTEXT_WINDOW, window)
            for claim in batch.claims:
                spend(uow, claim)
            for event in batch.events:
                uow.insert_new(EVENT, event)
            for owner, (kind, count, at) in batch.usage.items():
                uow.change(USAGE, "usage.bump", kind, owner.bytes, count, at)

        try:
            batch.make()
            windows = [build() for build in batch.windows.values()]
            self._store.write(work)
        except CaliberError as error:
            return error
        except Exception as error:
            # Whatever it was, the thread goes on and who waits for it hears of it.
            failure = InternalError(f"what reads leave behind could not be made: {type(error).__name__}")
            failure.__cause__ = error
            return failure
        for claim in batch.claims:
            self._one_shots.settled(claim)
        self.windows_written += len(windows)
        self.window_bytes += sum(len(window.record) for window in windows)
        return None


def _of_the_store(failure: CaliberError) -> bool:
    """Return whether it may be that nothing can be written, rather than one entry; only then does trying again help."""
    cause = failure.__cause__ if isinstance(failure, InternalError) else failure
    damaged = failure.context.get("reason") == "corrupt"
    return failure.retryable or damaged or isinstance(cause, _OF_THE_STORE) or not isinstance(cause, _OF_AN_ENTRY)
