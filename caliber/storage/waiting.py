"""Signal-safe threading: events, conditions, semaphores, threads, context managers that survive interrupts.

A signal's handler runs in the main thread, between two bytecodes, and may raise (Ctrl-C, ``sys.exit``, a time limit).
The standard library's ``Event``, ``Condition``, ``Semaphore`` and ``Queue`` take their locks in functions written in
Python: an exception raised there leaves the lock taken for ever. So does one that is raised while ``Thread.start``
waits for the new thread. A lock that is entered by ``with`` itself is safe: nothing runs between its taking and the
block. The classes here use such locks, or the holder records a lock in one step and releases it by name, so that
releasing it twice does no harm.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import operator
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def may_be_interrupted() -> bool:
    """Return whether handlers of signals run in the calling thread."""
    return threading.get_ident() == threading.main_thread().ident


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised an error, which belongs to the caller alone."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return True
    if not may_be_interrupted():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    called = getattr(type(handler), "__call__", None)  # noqa: B004  (which code it is, not whether)
    return getattr(handler, "__code__", None) or getattr(called, "__code__", None)


def apart(work: Callable[[], T]) -> T:
    """Return the result of ``work``, or raise its error; for the main thread another thread runs it.

    For work that an exception of a signal handler must not cut short: an interrupted import leaves Python's import lock
    taken, and no thread ever imports again. If the caller is interrupted here, ``work`` still completes.
    """
    if not may_be_interrupted():
        return work()
    done = threading.Lock()
    done.acquire()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]


class Condition(_thread.RLock):  # type: ignore[misc]
    """As ``threading.Condition`` with its own lock, for waits that are not nested."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: list[_thread.LockType] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification, or until ``timeout`` seconds passed; return whether it was notified."""
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        # Takes the lock unless this thread has it, all in one call of C: however many signals come, no handler runs
        # between its steps. Unlike ``acquire``, ``_acquire_restore`` is not interrupted while it waits.
        is_missing = map(operator.not_, iter(self._is_owned, True))  # type: ignore[attr-defined]
        owner = itertools.repeat((1, threading.get_ident()))
        take_again = map(self._acquire_restore, itertools.compress(owner, is_missing))  # type: ignore[attr-defined]
        try:
            self.release()
            return gate.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        finally:
            try:
                deque(take_again, 0)
            finally:
                deque(take_again, 0)
                with contextlib.suppress(ValueError):
                    self._gates.remove(gate)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``condition`` holds; return whether it does."""
        until = None if timeout is None else time.monotonic() + timeout
        while not condition():
            remaining = None if until is None else until - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            self.wait(remaining)
        return True

    def notify_all(self) -> None:
        """Wake all waiting threads; repeating it is harmless."""
        for gate in self._gates:
            if gate.locked():
                gate.release()


class Event:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._flag = False

    def is_set(self) -> bool:
        """Return whether it happened."""
        return self._flag

    def set(self) -> None:
        """Set the event, and wake the waiting threads."""
        self._flag = True
        with self._condition:
            self._condition.notify_all()

    def clear(self) -> None:
        """Let it not have happened."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens, or until ``timeout`` seconds passed; return whether it did."""
        with self._condition:
            return self._condition.wait_for(self.is_set, timeout)


class Places:
    """A semaphore whose places are taken under the name of their holder: an interrupt loses none."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._closed = False
        self._condition = Condition()
        self.holders: set[object] = set()

    @property
    def free(self) -> int:
        """The number of free places."""
        return self._size - len(self.holders)

    def take(self, holder: object, timeout: float | None = None) -> bool:
        """Take a place once there is one; return whether there was in time. Interrupted, it may be taken or not."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._closed or self.free > 0, timeout):
                return False
            self.holders.add(holder)
            return True

    def close(self) -> None:
        """Wake all waiting threads for good: a thread that takes a place from now on checks whether it is of use."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def leave(self, holder: object) -> None:
        """Give a place back, if it was taken; again does no harm."""
        with self._condition:
            self._condition.notify_all()
            self.holders.discard(holder)


class Worker:
    """A thread that starts when it is first needed: once, and completely, whatever interrupts its callers."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self.name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Not ``Thread.join``: interrupted, it takes a thread that runs for one that has ended (bpo-45274).
        self._ended = Event()

    def start(self) -> None:
        """Let it begin, unless it has."""
        if self._thread is None:
            begun = threading.Lock()
            begun.acquire()
            # Another thread starts it: there no handler runs.
            _thread.start_new_thread(self._begin, (begun,))
            begun.acquire()

    def _begin(self, begun: _thread.LockType) -> None:
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._whole, name=self.name, daemon=True)
                    thread.start()
                    self._thread = thread
        finally:
            begun.release()

    def _whole(self) -> None:
        try:
            self._run()
        finally:
            self._ended.set()

    @property
    def begun(self) -> bool:
        """True once it was needed."""
        return self._thread is not None

    @property
    def alive(self) -> bool:
        """True while it is running."""
        return self._thread is not None and not self._ended.is_set()

    def join(self, timeout: float) -> None:
        """Wait for its end, if it ever began."""
        if self._thread is not None:
            self._ended.wait(timeout)


class _Managed(contextlib._GeneratorContextManager[T]):
    def __enter__(self) -> T:
        try:
            return super().__enter__()
        except BaseException:
            self.gen.close()  # at its ``yield``, when the interrupt came after that
            raise

    def __exit__(self, *error: Any) -> bool | None:
        try:
            return super().__exit__(*error)
        finally:
            self.gen.close()


def managed(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As ``contextlib.contextmanager``: resources held at the ``yield`` are released at once when interrupted."""

    @functools.wraps(function)
    def managing(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Managed(function, args, kwargs)  # type: ignore[arg-type]

    return managing
