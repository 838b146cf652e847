"""Background tasks of open stores: periodic ones, and ones that run once after a delay.

The threads belong to the process, not to a store: a few run the due tasks of all open stores, and one more for each
store that does not answer. Source: design sections 5 and 8.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from caliber.model.errors import CaliberError, InternalError
from caliber.storage.waiting import Condition, Event, Worker

_NAME: Final = "caliber-timer"
THREADS: Final = 4
"""Threads that run tasks while none of them hangs."""
HANGS_S: Final = 0.1
"""The time after which a running task counts as one that hangs."""


class BackgroundTask:
    """A task that waits before its first call; ``stop`` ends the wait, or waits for a running call."""

    def __init__(self, name: str, *, wait_ms: int, failed: Callable[[str, CaliberError], None]) -> None:
        self.name = name
        # A wait takes no longer times than this.
        self.wait_s = min(wait_ms / 1000, threading.TIMEOUT_MAX)
        self._failed = failed
        self._stop = Event()
        self._idle = Event()
        self._idle.set()

    def start(self) -> None:
        """Begin to wait; with a wait of 0 nothing is ever called."""
        if self.wait_s:
            _timer().put(self)

    def cancel(self) -> None:
        """Tell a call under way to end, without waiting for it."""
        self._stop.set()

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        _timer().remove(self)
        self._idle.wait(timeout=5)

    def begin(self) -> None:
        """Let a call begin, which a thread is about to make."""
        self._idle.clear()

    def turn(self) -> bool:
        """Make one call; return whether there is to be another."""
        try:
            return not self._stop.is_set() and self._call() and not self._stop.is_set()
        finally:
            self._idle.set()

    def _call(self) -> bool:
        raise NotImplementedError


class PeriodicTask(BackgroundTask):
    """Calls ``task`` every ``every_ms``, the first time after the first interval; 0 never does."""

    def __init__(
        self, name: str, task: Callable[[], None], *, every_ms: int, failed: Callable[[str, CaliberError], None]
    ) -> None:
        super().__init__(name, wait_ms=every_ms, failed=failed)
        self._task = task
        self._failing = False

    def _call(self) -> bool:
        try:
            self._task()
            self._failing = False
        except Exception as error:
            # One report for each outage, not one for each attempt; a fault of ours must not end the task unheard.
            if not self._failing and not self._stop.is_set():
                self._failed(self.name, _as_ours(error))
            self._failing = True
        return True


class DelayedTask(BackgroundTask):
    """Calls ``task`` once, ``after_ms`` from now; 0 means never.

    ``task`` receives a function that returns whether it should end early.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[Callable[[], bool]], None],
        *,
        after_ms: int,
        failed: Callable[[str, CaliberError], None],
    ) -> None:
        super().__init__(name, wait_ms=after_ms, failed=failed)
        self._task = task

    def _call(self) -> bool:
        try:
            self._task(self._stop.is_set)
        except Exception as error:
            if not self._stop.is_set():
                self._failed(self.name, _as_ours(error))
        return False


def _as_ours(error: Exception) -> CaliberError:
    if isinstance(error, CaliberError):
        return error
    ours = InternalError(f"{type(error).__name__} in the background")
    ours.__cause__ = error
    return ours


class Timer:
    """The threads that run the background tasks of all open stores of this process, each when it is due.

    One idle thread, the leader, waits for the next due task. It leaves to run the task when another thread can lead.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, BackgroundTask]] = []
        self._numbers = itertools.count()
        self._condition = Condition()
        self._threads = 0
        self._busy: dict[int, float] = {}
        """By thread, when it began its task."""
        self._led = False

    def put(self, task: BackgroundTask) -> None:
        """Run a task after its wait, and again for as long as it asks for that."""
        with self._condition:
            self._push(task)
            needed = self._threads == len(self._busy)
            self._threads += needed
        if needed:
            Worker(self._run, _NAME).start()

    def remove(self, task: BackgroundTask) -> None:
        """Do not begin a task any more."""
        with self._condition:
            remaining = [entry for entry in self._due if entry[2] is not task]
            if len(remaining) < len(self._due):
                heapq.heapify(remaining)
                self._due = remaining
                self._condition.notify_all()

    def _push(self, task: BackgroundTask) -> None:
        heapq.heappush(self._due, (time.monotonic() + task.wait_s, next(self._numbers), task))
        if self._due[0][2] is task:
            self._condition.notify_all()

    def _run(self) -> None:
        thread = threading.current_thread()
        again: BackgroundTask | None = None
        while (entry := self._take(again)) is not None:
            task, needed = entry
            if needed:
                Worker(self._run, _NAME).start()
            thread.name = f"caliber-{task.name}"
            again = task if task.turn() else None
            thread.name = _NAME

    def _take(self, again: BackgroundTask | None) -> tuple[BackgroundTask, bool] | None:
        """Wait for the next due task; return it, and whether another thread is needed to lead meanwhile.

        ``again`` is the task that the calling thread ran last, if it is to be run again. None when the calling thread
        is not needed any more.
        """
        me = threading.get_ident()
        with self._condition:
            self._busy.pop(me, None)
            if again is not None:
                self._push(again)
            self._condition.notify_all()
            while self._led:
                if self._threads > THREADS:
                    self._threads -= 1
                    return None
                self._condition.wait()
            self._led = True
            try:
                while self._due:
                    now = time.monotonic()
                    wait_s = self._due[0][0] - now
                    alone = self._threads - len(self._busy) == 1 and len(self._due) > 1
                    if wait_s <= 0 and alone and self._threads >= THREADS:
                        wait_s = max(self._busy.values()) + HANGS_S - now  # till then one of them will have finished
                    if wait_s > 0:
                        self._condition.wait(min(wait_s, threading.TIMEOUT_MAX))
                        continue
                    task = heapq.heappop(self._due)[2]
                    task.begin()
                    self._busy[me] = now
                    self._threads += alone
                    return task, alone
                self._threads -= 1
                return None
            finally:
                self._led = False
                self._condition.notify_all()


process_timers: list[Timer] = []


def _timer() -> Timer:
    if not process_timers:
        process_timers.append(Timer())
    return process_timers[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_timers.clear)  # the child does not have its threads
