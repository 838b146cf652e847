"""Signal-safe threading: events, conditions, semaphores that survive interrupts.

A signal's handler runs in the main thread, between two bytecodes, and may raise (Ctrl-C, ``sys.exit``). The standard
library takes the locks of ``Flag`` and ``Condition`` in Python: raised there, it leaves them taken for ever. A lock
entered by ``with`` itself is safe; or the holder records it in one step and releases it by name, twice if need be.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn, ParamSpec, TypeVar

from caliber.model.deadline import deadline_passed, remaining_s
from caliber.model.errors import Unavailable
from caliber.model.process.interrupts import let_through, managed, may_be_interrupted
from caliber.storage.compile.session import GRACE_S

P = ParamSpec("P")
T = TypeVar("T")


class DeadlineLock(_thread.RLock):  # type: ignore[misc]
    """A lock that is waited for within the deadline of the call, in which ``holder`` names its owner. Not reentrant.

    Handlers of signals run between steps of Python alone. The lock is taken by the last step before the block, and is
    given back by C code: no step of Python lies between the block and that.
    """

    def __init__(self, holder: str) -> None:
        self._holder = holder

    def __enter__(self) -> bool:  # type: ignore[override]
        remaining = remaining_s()
        patience = -1 if remaining is None else min(remaining + GRACE_S, threading.TIMEOUT_MAX)
        try:
            return self.acquire(timeout=patience) or self._refuse()
        except BaseException:  # interrupted before it was taken, or just after
            try:
                self.release()
            except RuntimeError as error:
                let_through(error)
            raise

    def _refuse(self) -> NoReturn:
        raise deadline_passed(self._holder)


@managed
def starting() -> Iterator[None]:
    """Start a thread in the block. Raises: Unavailable (``out of threads``) when the system refuses it."""
    try:
        yield
    except RuntimeError as error:
        let_through(error)
        raise Unavailable("the system refuses another thread", reason="out of threads") from error


def apart(work: Callable[[], T]) -> T:
    """Return the result of ``work``, or raise its error; for the main thread another thread runs it.

    For work that no signal handler may cut short, as imports; if the caller is interrupted, ``work`` still completes.
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

    with starting():
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

    def notify_one(self) -> None:
        """Wake the thread that has waited longest, unless it has been woken."""
        for gate in self._gates:
            if gate.locked():
                gate.release()
                return

    def notify_all(self) -> None:
        """Wake all waiting threads; repeating it is harmless."""
        for gate in self._gates:
            if gate.locked():
                gate.release()


class Flag:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._flag = False

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._flag

    def set(self) -> None:
        """Set the flag, and wake the waiting threads."""
        self._flag = True
        with self._condition:
            self._condition.notify_all()

    def clear(self) -> None:
        """Clear the flag: ``wait`` waits again."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, or until ``timeout`` seconds passed; return whether it is set."""
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
