"""Background tasks of open stores: periodic ones, and ones that run once after a delay.

The threads belong to the process, not to a store: a few run the due tasks of all open stores, and one more for each
store that does not answer. Source: design sections 5 and 8.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from caliber.engine.worker import Worker
from caliber.model.errors import CaliberError, InternalError, Unavailable
from caliber.storage.waiting import Condition, Flag

_NAME: Final = "caliber-timer"
THREADS: Final = 4
"""Threads that run tasks while none of them hangs."""
HANGS_S: Final = 0.1
"""The time after which a running task counts as one that hangs."""
STOP_S: Final = 5.0
"""The longest wait for calls under way when a task is stopped."""


class BackgroundTask:
    """A task that the threads of the process call when it is due; ``stop`` ends that, and waits for a running call."""

    _repeats = True
    """Whether it is called again after a failure."""

    def __init__(self, name: str, *, failed: Callable[[str, CaliberError], None]) -> None:
        self.name = name
        self._failed = failed
        self._failing = False
        self.stopped = False
        """Whether it is not to be called any more."""
        self._idle = Flag()
        self._idle.set()

    def next_s(self) -> float:
        """Return when it is due next, on the monotonic clock; infinity until it is woken. The timer holds its lock."""
        raise NotImplementedError

    def wake(self) -> None:
        """Have it called when it is due, which is earlier than before; begin with it, the first time.

        Raises: Unavailable (``out of threads``) when no thread of the timer runs, and none can be started: then it
            waits until another task is woken
        """
        _timer().put(self)

    def cancel(self) -> None:
        """Tell a call under way to end, without waiting for it."""
        self.stopped = True

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self.stopped = True
        _timer().remove(self)
        self._idle.wait(timeout=STOP_S)

    def begin(self) -> None:
        """Let a call begin, which a thread is about to make."""
        self._idle.clear()

    def turn(self) -> bool:
        """Make one call; return whether there is to be another."""
        try:
            again = not self.stopped and self._call()
            self._failing = False
        except Exception as error:
            # One report for each outage, not one for each call; a fault of ours must not end the task unheard.
            again = self._repeats
            if not self._failing and not self.stopped:
                self._failed(self.name, _as_ours(error))
            self._failing = True
        finally:
            self._idle.set()
        return again and not self.stopped

    def report(self, error: CaliberError) -> None:
        """Report an error of the threads themselves."""
        self._failed(self.name, error)

    def _call(self) -> bool:
        """Make one call, which may fail; return whether there is to be another."""
        raise NotImplementedError


class _WaitingTask(BackgroundTask):
    """A task that waits before each call."""

    def __init__(self, name: str, *, wait_ms: int, failed: Callable[[str, CaliberError], None]) -> None:
        super().__init__(name, failed=failed)
        self._wait_s = wait_ms / 1000

    def start(self) -> None:
        """Begin to wait; with a wait of 0 nothing is ever called. Raises: as ``wake``, and nothing has begun."""
        if self._wait_s:
            try:
                self.wake()
            except BaseException:
                self.stop()
                raise

    def next_s(self) -> float:
        """Return when it is due, if it begins to wait now."""
        return time.monotonic() + self._wait_s


class PeriodicTask(_WaitingTask):
    """Calls ``task`` every ``every_ms``, the first time after the first interval; 0 never does."""

    def __init__(
        self, name: str, task: Callable[[], None], *, every_ms: int, failed: Callable[[str, CaliberError], None]
    ) -> None:
        super().__init__(name, wait_ms=every_ms, failed=failed)
        self._task = task

    def _call(self) -> bool:
        self._task()
        return True


class DelayedTask(_WaitingTask):
    """Calls ``task`` once, ``after_ms`` from now; 0 means never.

    ``task`` receives a function that returns whether it should end early.
    """

    _repeats = False

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
        self._task(lambda: self.stopped)
        return False


def _as_ours(error: Exception) -> CaliberError:
    if isinstance(error, CaliberError):
        return error
    ours = InternalError(f"{type(error).__name__} in the background")
    ours.__cause__ = error
    return ours


@dataclass(order=True, slots=True)
class _Entry:
    due_s: float
    number: int
    task: BackgroundTask | None = field(compare=False)
    """None once it was cancelled."""


class Timer:
    """The threads that run the background tasks of all open stores of this process, each when it is due.

    One idle thread, the leader, waits for the next due task. It leaves to run the task when another thread can lead.
    When the system refuses that other thread, the tasks wait until one of the running ones has ended.
    """

    def __init__(self) -> None:
        self._due: list[_Entry] = []
        self._entries: dict[BackgroundTask, _Entry] = {}
        """Of each task that waits, its one entry in the heap that is not cancelled."""
        self._numbers = itertools.count()
        self._condition = Condition()
        self._threads: set[Worker] = set()
        self._starting: set[Worker] = set()
        """Those that are to be started; also after an interrupt."""
        self._busy: dict[int, tuple[float, BackgroundTask]] = {}
        """By thread, its task, and when it began it."""
        self._running: set[BackgroundTask] = set()
        self._led = False
        self._all_hang = False
        """True while the leader waits for one of the busy threads, to lead in its place."""
        self._refused = False

    def put(self, task: BackgroundTask) -> None:
        """Run a task when it is due, and again for as long as it asks for that; again does no harm.

        Raises: Unavailable (``out of threads``) when no thread runs, and none can be started. The task is kept: the
            first thread that can be started later, for any task, runs it too.
        """
        with self._condition:
            if task not in self._running:  # that one is put back after its turn
                self._push(task)
            # A task that runs alone needs no other thread.
            missing = self._entries and (self._starting or len(self._threads) == len(self._busy))
            error = self._have_leader() if missing else None
            if error is not None and not self._threads:
                raise error
        if error is not None or self._refused:
            self._report(task, error)

    def remove(self, task: BackgroundTask) -> None:
        """Do not begin a task any more."""
        with self._condition:
            self._cancel(task)
            self._condition.notify_all()

    def _push(self, task: BackgroundTask) -> None:
        if task.stopped:
            return
        self._cancel(task)
        due_s = task.next_s()
        if due_s == math.inf:
            return  # it needs no thread until it is woken
        entry = _Entry(due_s, next(self._numbers), task)
        self._entries[task] = entry
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._condition.notify_all()

    def _cancel(self, task: BackgroundTask) -> None:
        entry = self._entries.pop(task, None)
        if entry is None:
            return
        entry.task = None
        if len(self._due) > 2 * len(self._entries) + 64:  # else cancelled entries would outnumber the others
            self._due = list(self._entries.values())
            heapq.heapify(self._due)

    def _have_leader(self) -> Unavailable | None:
        """Start a thread when all are busy; return the error when the system refuses it. The caller has the lock."""
        if len(self._threads) == len(self._busy):
            made = Worker(lambda: self._run(made), _NAME)
            self._starting.add(made)
            self._threads.add(made)
        for worker in list(self._starting):
            try:
                worker.start()  # nothing if it was interrupted after that
            except Unavailable as error:
                self._threads.discard(worker)
                return error
            finally:
                if worker.begun or worker not in self._threads:
                    self._starting.discard(worker)
        return None

    def _report(self, task: BackgroundTask, error: CaliberError | None) -> None:
        if error is not None and not self._refused:  # one report for each outage
            task.report(error)
        self._refused = error is not None

    def _run(self, me: Worker) -> None:
        thread = threading.current_thread()
        again: BackgroundTask | None = None
        try:
            while (entry := self._take(me, again)) is not None:
                task, error = entry
                again = task  # also if its call ends this thread
                self._report(task, error)
                thread.name = f"caliber-{task.name}"
                again = task if task.turn() else None
                thread.name = _NAME
        except BaseException:
            # As of ``sys.exit`` in a provider: this thread ends, and its tasks go on.
            self._replace(me, again)
            raise

    def _replace(self, me: Worker, again: BackgroundTask | None) -> None:
        """Have another thread take the place of the calling one, which ends."""
        with self._condition:
            self._free(again)
            self._threads.discard(me)
            if self._entries:
                self._have_leader()  # refused: the next task that is woken tries again
            self._condition.notify_all()

    def _free(self, again: BackgroundTask | None) -> None:
        """Take note that the calling thread has no task any more; ``again`` is to be run again."""
        busy = self._busy.pop(threading.get_ident(), None)
        if busy is not None:
            self._running.discard(busy[1])
        if again is not None:
            self._push(again)

    def _take(self, me: Worker, again: BackgroundTask | None) -> tuple[BackgroundTask, Unavailable | None] | None:
        """Wait for the next due task; return it, and the error when no other thread could be started to lead meanwhile.

        ``again`` is the task that the calling thread ran last, if it is to be run again. None when the calling thread
        is not needed any more.
        """
        ident = threading.get_ident()
        with self._condition:
            self._free(again)
            if self._all_hang:
                self._condition.notify_all()  # the leader waits for a thread that can lead
            while self._led:
                if len(self._threads) > THREADS:
                    self._threads.discard(me)
                    return None
                self._condition.wait()
            self._led = True
            try:
                while self._entries:
                    entry = self._due[0]
                    if entry.task is None:
                        heapq.heappop(self._due)
                        continue
                    now = time.monotonic()
                    wait_s = entry.due_s - now
                    alone = len(self._threads) - len(self._starting) - len(self._busy) == 1 and len(self._entries) > 1
                    if wait_s <= 0 and alone and len(self._threads) >= THREADS:
                        # till then one of them will have finished
                        wait_s = max(begun for begun, _ in self._busy.values()) + HANGS_S - now
                        self._all_hang = wait_s > 0
                    if wait_s > 0:
                        self._condition.wait(min(wait_s, threading.TIMEOUT_MAX))
                        self._all_hang = False
                        continue
                    task = entry.task
                    self._cancel(task)
                    task.begin()
                    self._busy[ident] = (now, task)
                    self._running.add(task)
                    return task, self._have_leader() if alone else None
                self._threads.discard(me)
                return None
            finally:
                self._led = False
                self._condition.notify_one()


process_timers: list[Timer] = []


def _timer() -> Timer:
    if not process_timers:
        process_timers.append(Timer())
    return process_timers[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_timers.clear)  # the child does not have its threads
