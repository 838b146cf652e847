"""A thread that starts when it is first needed, whatever interrupts its callers.

An exception that a signal's handler raises while ``Thread.start`` waits for the new thread leaves its lock taken.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

from caliber.model.process.interrupts import let_through
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
                    thread = threading.Thread(target=self._whole, name=self.name, daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError as error:
            let_through(error)
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
