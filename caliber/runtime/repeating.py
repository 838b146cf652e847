"""What an open store does by itself: now and then follow other processes, once get ready for searches.

Source: design sections 5 and 8.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from caliber.model.errors import CaliberError


class Repeating:
    """Calls ``task`` every ``every_ms`` on a thread of its own; 0 never does."""

    def __init__(
        self, name: str, task: Callable[[], None], *, every_ms: int, failed: Callable[[str, CaliberError], None]
    ) -> None:
        self._name = name
        self._task = task
        self._interval_s = every_ms / 1000
        self._failed = failed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first call comes after the first interval."""
        if self._interval_s:
            self._thread = threading.Thread(target=self._run, name=f"caliber-{self._name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        failing = False
        while not self._stop.wait(self._interval_s):
            try:
                self._task()
                failing = False
            except CaliberError as error:
                # One report for each outage, not one for each attempt.
                if not failing and not self._stop.is_set():
                    self._failed(self._name, error)
                failing = True


class Once:
    """Calls ``task`` once, ``after_ms`` from now, on a thread of its own; 0 never does.

    ``task`` is told how to ask whether it is to end early.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[Callable[[], bool]], None],
        *,
        after_ms: int,
        failed: Callable[[str, CaliberError], None],
    ) -> None:
        self._name = name
        self._task = task
        self._after_s = after_ms / 1000
        self._failed = failed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to wait."""
        if self._after_s:
            self._thread = threading.Thread(target=self._run, name=f"caliber-{self._name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        # An Event takes no longer waits than this.
        if self._stop.wait(min(self._after_s, threading.TIMEOUT_MAX)):
            return
        try:
            self._task(self._stop.is_set)
        except CaliberError as error:
            if not self._stop.is_set():
                self._failed(self._name, error)
