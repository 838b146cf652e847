"""Order and outcome of commits: releases threads in ticket order, and asks for a COMMIT whose answer was lost.

Dependent commits reach memory in order: a ticket is taken right before COMMIT is sent, so a transaction that depends on
another can only have taken its ticket after that COMMIT was done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from caliber.backends.postgres.connecting.external_pool import ExternalPool
from caliber.backends.postgres.connecting.pool import Pool
from caliber.model.deadline import earliest
from caliber.model.errors import StorageError, Unavailable
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import GRACE_S


class Ticket:
    """The place of one transaction in the commit order."""

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


_OUTCOME_WAIT_S: Final = 10.0
"""How long the outcome of an interrupted COMMIT is queried: a server takes about as long to restart."""
UNKNOWN_OUTCOME: Final = (
    "the connection broke while a transaction was being committed, and the server cannot be asked whether it was: look"
    " before you write it again, or write with an idempotency_key"
)


def was_committed(
    pool: Pool | ExternalPool, plans: Mapping[str, Plan], xid: int, record: tuple[Any, ...] | None
) -> bool | None:
    """Return whether a transaction was committed; None if unknown, or not known within the call's deadline.

    A server that crashed before it had written anything of a transaction to disk gives the same number to another one
    afterwards. So a number that was committed proves something only together with our change record.
    """
    until = time.monotonic() + _OUTCOME_WAIT_S
    deadline = earliest(None)
    if deadline is not None:
        until = min(until, max(deadline, time.monotonic()) + GRACE_S)
    while time.monotonic() < until:
        try:
            with pool.extra(deadline=until - GRACE_S) as connection:
                status = connection.run(plans["session.outcome"], (str(xid),))[0][0]
                if status == "committed" and record is not None:
                    writer, _, created_at = record
                    return bool(connection.run(plans["session.recorded"], (str(xid), writer, created_at))[0][0])
        except Unavailable:
            status = "unknown"
        except StorageError:
            return False  # a number still to be given out: ours was forgotten
        if status == "aborted":
            return False
        if status == "committed":
            return None
        time.sleep(0.05)
    return None
