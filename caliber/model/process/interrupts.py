"""Exceptions of signal handlers: how to tell them from errors of the work, and to let them through.

A handler runs in the main thread, between two bytecodes, and may raise anything (Ctrl-C, ``sys.exit``, a time limit's
``TimeoutError``). Such an exception belongs to the caller alone. So a clause that translates or drops an error that a
handler may raise too (``Exception``, ``OSError``, ``RuntimeError``) first calls ``let_through``.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from typing import Any


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
