"""The write-behind queue: what a read leaves behind reaches the disk a little later, in batches.

Usage counts, trace events and persisted windows go through here; knowledge, turns, artifacts, locks and audit
records never do. The queue is bounded: when it is full, the reader waits for the writer. What fails is kept and tried
again; it is reported by ``flush`` and ``close``, and to readers once there is no room left.

Source: O-10, O-12, design section 4.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from caliber.model.entities import Event, StoredWindow
from caliber.model.errors import CaliberError, InternalError, Unavailable
from caliber.runtime.policies.one_shots import Claim, OneShots, spend
from caliber.schema.relations import CONTEXT_WINDOW, EVENT, TRAJECTORY, USAGE
from caliber.storage.protocol import Store
from caliber.storage.unit_of_work import UnitOfWork

_RETRY_S = 0.05
_BATCH = 512


class WriteBehind:
    """A bounded queue and the thread that empties it."""

    def __init__(self, store: Store, one_shots: OneShots, *, queue_max: int, flush_interval_ms: int) -> None:
        self._store = store
        self._one_shots = one_shots
        self._queue_max = queue_max
        self._interval_s = flush_interval_ms / 1000
        self._batch = min(_BATCH, queue_max)
        self._condition = threading.Condition()
        self._events: list[Event | Callable[[], Event]] = []
        self._windows: dict[uuid.UUID, Callable[[], StoredWindow]] = {}
        self._usage: dict[uuid.UUID, tuple[str, int, int]] = {}
        self._claims: list[Claim] = []
        self._used_in: list[tuple[Callable[[], Iterable[tuple[str, uuid.UUID]]], int]] = []
        self._writing: dict[uuid.UUID, Callable[[], StoredWindow]] = {}
        self._busy = False
        self._stop = False
        self._urgent = False
        self._failure: CaliberError | None = None
        self._attempts = 0
        self._taken = 0  # batches
        self._kept = 0  # the newest of them that is on disk, and with it all that was queued before it was taken
        self._thread: threading.Thread | None = None
        self.windows_written = 0
        self.window_bytes = 0

    # --- putting in ------------------------------------------------------------------------------

    def event(self, event: Event | Callable[[], Event]) -> None:
        """Queue an event, or what makes it: a reader on its way leaves that to the thread that writes."""
        with self._condition:
            before = self._make_room()
            self._events.append(event)
            self._wake(before)

    def offer(self, event: Event) -> bool:
        """Queue an event if there is room, without ever waiting; return whether it was taken.

        For failures, which are recorded on threads that may hold the writer: waiting there would wait for itself.
        """
        with self._condition:
            before = self._size()
            if self._stop or before >= self._queue_max:
                return False
            self._events.append(event)
            self._wake(before)
            return True

    def window(self, window_id: uuid.UUID, build: Callable[[], StoredWindow], claim: Claim) -> None:
        """Queue a window, and the removal of what it took; ``pending_window`` finds it at once.

        It is packed by the thread that writes it.
        """
        with self._condition:
            before = self._make_room()
            self._windows[window_id] = build
            if claim.rows:
                self._claims.append(claim)
            self._wake(before)

    def used(self, owner_type: str, owners: Sequence[uuid.UUID], now_us: int) -> None:
        """Count one access of each owner; equal owners are counted together."""
        with self._condition:
            before = self._make_room()
            for owner in owners:
                _, count, _ = self._usage.get(owner, (owner_type, 0, 0))
                self._usage[owner] = (owner_type, count + 1, now_us)
            self._wake(before)

    def used_in(self, owners: Callable[[], Iterable[tuple[str, uuid.UUID]]], now_us: int) -> None:
        """Count one access of each (kind, owner) that ``owners`` names when the thread that writes asks it."""
        with self._condition:
            before = self._make_room()
            self._used_in.append((owners, now_us))
            self._wake(before)

    def spent(self, claim: Claim) -> None:
        """Queue the removal of what a window took that is kept nowhere."""
        with self._condition:
            before = self._make_room()
            self._claims.append(claim)
            self._wake(before)

    def pending_window(self, window_id: uuid.UUID) -> StoredWindow | None:
        """Return a window that may not be on disk yet."""
        with self._condition:
            build = self._windows.get(window_id) or self._writing.get(window_id)
        return None if build is None else build()

    def _make_room(self) -> int:
        """Wait until there is room; return how many entries wait.

        What fails is tried again and kept meanwhile; only when there is no room left for more does the reader hear.
        """
        if self._stop:
            raise Unavailable("the handle is closed", reason="closed", retryable=False)
        while (size := self._size()) >= self._queue_max:
            # The reader waits: losing what it leaves behind is worse than being slow.
            self._urgent = True
            self._condition.notify_all()
            self._condition.wait(0.1)
            self._raise_failure()
        return size

    def _size(self) -> int:
        return len(self._events) + len(self._windows) + len(self._usage) + len(self._used_in) + len(self._claims)

    def _wake(self, before: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="caliber-behind", daemon=True)
            self._thread.start()
        # The thread sleeps on an empty queue, or until a batch is full: in between it is left alone, so that
        # readers do not hand the interpreter to it at every call.
        if not before or before < self._batch <= self._size():
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
            wanted = self._taken + 1 if self._size() else self._taken
            while self._kept < wanted or (to_the_end and (self._size() or self._busy)):
                if self._taken < wanted or to_the_end or not self._busy:
                    self._urgent = True
                    self._condition.notify_all()
                if self._stop and not (self._thread is not None and self._thread.is_alive()):
                    self._raise_failure()
                    raise Unavailable("the handle is closed", reason="closed", retryable=False)
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    self._raise_failure()
                    raise Unavailable(f"{self._size()} entries are still waiting to be written", reason="timeout")
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
            if self._thread is not None:
                self._thread.join(max(timeout_ms / 1000, 0.1))

    def waiting(self) -> int:
        """Return how many entries wait."""
        with self._condition:
            return self._size()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._size() and not self._stop:
                    self._condition.wait()
                if not self._size():
                    return
                if not self._urgent and not self._stop:
                    # Company makes batches; a flush, a full queue or the end does not wait for it.
                    self._condition.wait_for(
                        lambda: self._urgent or self._stop or self._size() >= self._batch,
                        self._interval_s,
                    )
                events, self._events = self._events, []
                usage, self._usage = self._usage, {}
                used_in, self._used_in = self._used_in, []
                claims, self._claims = self._claims, []
                self._writing, self._windows = self._windows, {}
                self._busy = True
                self._taken += 1
                self._urgent = False
                self._condition.notify_all()
            failure: CaliberError | None
            try:
                while used_in:
                    owners, at_us = used_in[-1]
                    for kind, owner in list(owners()):
                        _, count, last_us = usage.get(owner, (kind, 0, at_us))
                        usage[owner] = (kind, count + 1, max(at_us, last_us))
                    used_in.pop()  # counted: what is left of them goes back when this fails
                failure = self._write(events, [build() for build in self._writing.values()], usage, claims)
            except Exception as error:
                # Whatever it was, the thread goes on and who waits for it hears of it.
                failure = InternalError(f"what reads leave behind could not be made: {type(error).__name__}")
                failure.__cause__ = error
            with self._condition:
                self._attempts += 1
                self._failure = failure
                if failure is None:
                    self._kept = self._taken
                else:
                    # Nothing is lost by a failure: it goes back to the front and is tried again.
                    self._events = events + self._events
                    self._claims = claims + self._claims
                    self._used_in = used_in + self._used_in
                    self._windows = {**self._writing, **self._windows}
                    for owner, (kind, count, at) in usage.items():
                        _, more, later = self._usage.get(owner, (kind, 0, at))
                        self._usage[owner] = (kind, count + more, max(at, later))
                self._writing = {}
                self._busy = False
                self._condition.notify_all()
                if failure is not None:
                    if self._stop:
                        return
                    self._condition.wait(_RETRY_S)

    def _write(
        self,
        pending: list[Event | Callable[[], Event]],
        windows: list[StoredWindow],
        usage: dict[uuid.UUID, tuple[str, int, int]],
        claims: list[Claim],
    ) -> CaliberError | None:
        # Made once, also when writing has to be tried again.
        pending[:] = [event if isinstance(event, Event) else event() for event in pending]
        events = [event for event in pending if isinstance(event, Event)]

        def work(uow: UnitOfWork) -> None:
            # A window goes with its trajectory, also when that was deleted before the window reached the disk.
            trajectories = {window.trajectory_id.bytes for window in windows}
            alive = {key for key in trajectories if uow.find(TRAJECTORY, key) is not None}
            for window in windows:
                if window.trajectory_id.bytes in alive:
                    uow.insert_new(CONTEXT_WINDOW, window)
            for claim in claims:
                spend(uow, claim)
            for event in events:
                uow.insert_new(EVENT, event)
            for owner, (kind, count, at) in usage.items():
                uow.change(USAGE, "usage.bump", kind, owner.bytes, count, at)

        try:
            self._store.write(work)
        except CaliberError as error:
            return error
        for claim in claims:
            self._one_shots.settled(claim)
        self.windows_written += len(windows)
        self.window_bytes += sum(len(window.record) for window in windows)
        return None
