"""Background threads of an open store: periodic tasks, and tasks that run once after a delay.

Source: design sections 5 and 8.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from caliber.model.errors import CaliberError, InternalError
from caliber.storage.waiting import Event, Worker


class BackgroundThread:
    """A thread that waits before its first call; ``stop`` ends the wait, or waits for a running call."""

    def __init__(self, name: str, *, wait_ms: int, failed: Callable[[str, CaliberError], None]) -> None:
        self._name = name
        # An Event takes no longer waits than this.
        self._wait_s = min(wait_ms / 1000, threading.TIMEOUT_MAX)
        self._failed = failed
        self._stop = Event()
        self._worker = Worker(self._run, f"caliber-{name}")

    def start(self) -> None:
        """Begin to wait; with a wait of 0 nothing is ever called."""
        if self._wait_s:
            self._worker.start()

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        self._worker.join(timeout=5)

    def _run(self) -> None:
        raise NotImplementedError


class PeriodicTask(BackgroundThread):
    """Calls ``task`` every ``every_ms``, the first time after the first interval; 0 never does."""

    def __init__(
        self, name: str, task: Callable[[], None], *, every_ms: int, failed: Callable[[str, CaliberError], None]
    ) -> None:
        super().__init__(name, wait_ms=every_ms, failed=failed)
        self._task = task

    def _run(self) -> None:
        failing = False
        while not self._stop.wait(self._wait_s):
            try:
                self._task()
                failing = False
            except Exception as error:
                # One report for each outage, not one for each attempt; a fault of ours must not end the thread unheard.
                if not failing and not self._stop.is_set():
                    self._failed(self._name, _as_ours(error))
                failing = True


class DelayedTask(BackgroundThread):
    """Calls ``task`` once, ``after_ms`` from now; 0 means never.

    ``task`` receives a function that returns whether it should end early.
    """

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

    def _run(self) -> None:
        if self._stop.wait(self._wait_s):
            return
        try:
            self._task(self._stop.is_set)
        except Exception as error:
            if not self._stop.is_set():
                self._failed(self._name, _as_ours(error))


def _as_ours(error: Exception) -> CaliberError:
    if isinstance(error, CaliberError):
        return error
    ours = InternalError(f"{type(error).__name__} in the background")
    ours.__cause__ = error
    return ours
