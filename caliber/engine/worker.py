"""A thread that starts when it is first needed, whatever interrupts its callers.

An exception that a signal's handler raises while ``Thread.start`` waits for the new thread leaves its lock taken.

It also has ``os.fork`` wait until other threads have finished importing modules. A child that is forked while another
thread imports a module inherits the lock of that module, whose holder does not exist in the child: an import of the
module there would wait for ever. CPython guards its table of modules only.
"""

from __future__ import annotations

import _imp
import _thread
import os
import threading
import time
from collections.abc import Callable
from importlib import _bootstrap
from typing import Final

from caliber.model.process.interrupts import let_through, suppress
from caliber.storage.waiting import Flag, starting


class Worker:
    """A thread that starts when it is first needed: once, and completely, whatever interrupts its callers.

    Refused by the system, it is started by the next call.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self.name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Not ``Thread.join``: interrupted, it takes a thread that runs for one that has ended (bpo-45274).
        self._ended = Flag()

    def start(self) -> None:
        """Let it begin, unless it has. Raises: Unavailable (``out of threads``) when the system refuses a thread."""
        if self._thread is None:
            begun = threading.Lock()
            begun.acquire()
            refused: list[RuntimeError] = []
            with starting():
                # Another thread starts it: there no handler runs.
                _thread.start_new_thread(self._begin, (begun, refused))
                begun.acquire()
                if refused:
                    raise refused[0]

    def _begin(self, begun: _thread.LockType, refused: list[RuntimeError]) -> None:
        try:
            with self._lock:
                if self._thread is None:
                    # Set first: who closes what it uses, just as it starts, has to know of it.
                    self._thread = threading.Thread(target=self._whole, name=self.name, daemon=True)
                    self._thread.start()
        except RuntimeError as error:
            let_through(error)
            self._thread = None
            refused.append(error)
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


_LONGEST_S: Final = 2.0
"""How long a fork waits: a program that never ends within an import must be able to fork."""


def _are_under_way() -> bool:
    thread_id = threading.get_ident()
    locks = [reference() for reference in list(getattr(_bootstrap, "_module_locks", {}).values())]
    return any(lock is not None and getattr(lock, "owner", thread_id) != thread_id for lock in locks)


def _before() -> None:
    """Wait for the imports of other threads, and let none begin until the fork is over."""
    until = time.monotonic() + _LONGEST_S
    while True:
        _imp.acquire_lock()
        if not _are_under_way() or time.monotonic() > until:
            return
        _imp.release_lock()
        time.sleep(0.001)


def _after() -> None:
    with suppress(RuntimeError):
        while True:  # as often as ``_before`` has taken it: it may have been interrupted
            _imp.release_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
