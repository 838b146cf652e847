"""Waits of tests for other processes, databases and threads that signal no event: the one place that sleeps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

from support.threads import begin

T = TypeVar("T")


def until(condition: Callable[[], T], why: str = "it did not happen in time", seconds: float = 30) -> T:
    """Return the first true result of ``condition``. Raises: AssertionError with ``why`` after ``seconds``."""
    found = holds_within(condition, seconds)
    assert found, why
    return found


def holds_within(condition: Callable[[], T], seconds: float) -> T:
    """Return the first true result of ``condition``, or its last one after ``seconds``."""
    limit = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < limit:
        time.sleep(0.001)
    return found


def let_run(seconds: float) -> None:
    """Give a process that was started the time to get somewhere, before it is killed."""
    time.sleep(seconds)


def exit_code(child: int, seconds: float = 60) -> int:
    """Return the exit code of a forked child. Raises: AssertionError, after killing it, for one that hangs."""
    status: list[int] = []
    waiter = begin(lambda: status.append(os.waitpid(child, 0)[1]))
    waiter.result(seconds)
    hangs = not status
    if hangs:
        os.kill(child, signal.SIGKILL)
        waiter.result()
    assert not hangs, "the child hangs"
    return os.waitstatus_to_exitcode(status[0])
