"""Commit sequencer of one process: releases threads in ticket order, so dependent commits reach memory in order.

A ticket is taken right before COMMIT is sent: a transaction that depends on another can only have taken its ticket
after that COMMIT was done.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from caliber.storage.compile.session import GRACE_S


class Ticket:
    """The place of one transaction in the commit order."""

    __slots__ = ("wakeup",)

    def __init__(self) -> None:
        self.wakeup = threading.Lock()
        self.wakeup.acquire()


class CommitSequencer:
    """Releases threads in the order in which they took their tickets."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: deque[Ticket] = deque()

    def take(self, ticket: Ticket) -> None:
        """Queue behind all waiting tickets. If interrupted, it may be queued or not: it must leave in any case."""
        with self._mutex:
            self._line.append(ticket)

    def wait(self, ticket: Ticket, until: float | None = None) -> bool:
        """Return once all earlier tickets have left, or False if they had not by ``until`` and a moment."""
        while True:
            with self._mutex:
                if self._line[0] is ticket:
                    return True
            patience_s = -1.0 if until is None else max(0.0, until - time.monotonic()) + GRACE_S
            if not ticket.wakeup.acquire(timeout=min(patience_s, threading.TIMEOUT_MAX)):
                return False

    def leave(self, ticket: Ticket) -> None:
        """Release the next ticket; harmless for one that never queued, or left before, and possible out of turn."""
        with self._mutex:
            if ticket in self._line:
                self._line.remove(ticket)
            if self._line and self._line[0].wakeup.locked():
                self._line[0].wakeup.release()
