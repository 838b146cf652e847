"""Exceptions of signal handlers: how to tell them from errors of the work, let them through, and leave nothing held.

A handler runs in the main thread, between two bytecodes, and may raise anything (Ctrl-C, ``sys.exit``, a time limit's
``TimeoutError``). Such an exception belongs to the caller alone. So a clause that translates or drops an error that a
handler may raise too (``Exception``, ``OSError``, ``RuntimeError``) first calls ``let_through``.

It may be raised at the first step of an ``__exit__`` in Python, before any ``try``. The frame of that step would keep
the generator of ``contextlib.contextmanager`` until somebody drops the error: another thread, which cannot give back a
lock, or nobody. ``managed`` closes it at once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import signal
import threading
import weakref
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


def let_through(error: BaseException) -> None:
    """Raise an error, or the cause that a library gave it, if a signal's handler raised that; else do nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if is_of_handler(seen):
            raise seen
        seen = seen.__cause__ if may_be_interrupted() else None


class suppress(contextlib.suppress):  # noqa: N801  (as the class of the standard library)
    """As ``contextlib.suppress``, but for what a signal's handler raised."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return super().__exit__(kind, error, trace) and not is_of_handler(error)


def _code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    called = getattr(type(handler), "__call__", None)  # noqa: B004  (which code it is, not whether)
    return getattr(handler, "__code__", None) or getattr(called, "__code__", None)


class _Held:
    """The owner of a generator."""

    __slots__ = ("__weakref__", "gen")
    gen: Any


def _leave(held: Any, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool | None:
    """Complete a generator after its block; ``held`` is weak, so that no frame of an error keeps the generator."""
    try:
        if kind is not None:
            return contextlib._GeneratorContextManager.__exit__(held, kind, error, trace)
        if next(held.gen, held) is not held:
            raise RuntimeError("generator didn't stop")
        return None
    finally:
        held.gen.close()


class _Step(property):
    """A property, looked up in C, with the function that begins or ends a block. ``ExitStack`` calls the property."""

    def __call__(self, manager: _Managed, *error: Any) -> Any:
        return self.__get__(manager)(*error)


class _Managed:
    __slots__ = ("enter", "leave")
    enter: Callable[[], Any]
    leave: functools.partial[bool | None]

    # A ``with`` statement keeps the second value while its block runs, and nothing else of the manager. If an interrupt
    # ends that call at its first step, the statement drops it: the generator is closed at once, by the same thread.
    __enter__ = _Step(operator.attrgetter("enter"))
    __exit__ = _Step(operator.attrgetter("leave"))


def _refuse() -> None:
    raise RuntimeError("generator didn't yield")


_NEVER_YIELDED = iter(_refuse, ...)
"""The error of a generator that yields nothing. It is raised from C: nothing else of Python runs as a block begins."""


def managed(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As ``contextlib.contextmanager``, but nothing that is held at the ``yield`` outlives an interrupted block."""

    @functools.wraps(function)
    def managing(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        manager, held = _Managed(), _Held()
        held.gen = function(*args, **kwargs)
        manager.enter = itertools.chain(held.gen, _NEVER_YIELDED).__next__
        manager.leave = functools.partial(_leave, weakref.proxy(held))
        manager.leave.held = held  # type: ignore[attr-defined]
        return manager

    return managing
