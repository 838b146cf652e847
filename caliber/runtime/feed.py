"""The poller that brings other processes' commits into memory. Source: design section 5."""

from __future__ import annotations

import threading
from collections.abc import Callable

from caliber.model.errors import CaliberError
from caliber.storage.protocol import Store


class FeedPoller:
    """Asks every ``poll_ms`` whether somebody else committed; 0 never asks (writes and ``latest`` still do)."""

    def __init__(self, store: Store, *, poll_ms: int, failed: Callable[[CaliberError], None]) -> None:
        self._store = store
        self._interval_s = poll_ms / 1000
        self._failed = failed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin polling."""
        if self._interval_s:
            self._thread = threading.Thread(target=self._run, name="caliber-feed", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End polling and wait for the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        failing = False
        while not self._stop.wait(self._interval_s):
            try:
                if self._store.changed_elsewhere():
                    self._store.catch_up()
                failing = False
            except CaliberError as error:
                # One report for each outage, not one for each poll.
                if not failing and not self._stop.is_set():
                    self._failed(error)
                failing = True
