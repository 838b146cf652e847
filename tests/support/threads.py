"""Threads of tests: calls that are made at once, and a system that refuses new threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_TOO_BIG = 1 << 47
"""A stack that fits into no process: the system refuses a thread with it, as it does without memory or processes."""


def begin(call: Callable[..., T], *arguments: object) -> Future[T]:
    """Make a call in a thread of its own, and return its result to come."""
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(call(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def at_once(calls: Sequence[Callable[[], T]], seconds: float = 300) -> list[T]:
    """Make calls side by side, and return the results. Raises: the error of the first that failed."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        together.wait()
        return call()

    results = [begin(run, call) for call in calls]
    concurrent.futures.wait(results, seconds)
    return [result.result(0) for result in results]


@contextlib.contextmanager
def no_new_threads() -> Iterator[None]:
    """Have the system refuse every new thread of this process for as long as the block takes."""
    before = threading.stack_size(_TOO_BIG)
    try:
        yield
    finally:
        threading.stack_size(before)
