"""Retry of table-lock statements with short lock timeouts, so that other writers never wait long."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model.errors import Conflict, Unavailable

T = TypeVar("T")

Transaction = Callable[[int], AbstractContextManager[PgConnection]]
"""Lends a connection in a transaction with the given lock timeout. Units: ms"""

TURN_MS: Final = 200
"""How long one attempt waits for a table lock: later writers queue behind it."""
_PAUSE_S: Final = 0.05
_RACES_MAX: Final = 10


def with_lock_retry(transaction: Transaction, work: Callable[[PgConnection], T], lock_timeout_ms: int) -> T:
    """Run work in its own transaction, and retry while others hold its locks; 0 ms: without limit.

    Raises: Unavailable, reason ``locked``, and whatever ``work`` raises
    """
    until = time.monotonic() + lock_timeout_ms / 1_000 if lock_timeout_ms else float("inf")
    races = 0
    while True:
        try:
            with transaction(TURN_MS) as connection:
                return work(connection)
        except Conflict:  # a deadlock, or a concurrent creation of the same object
            races += 1
            if races > _RACES_MAX or time.monotonic() >= until:
                raise
        except Unavailable as error:
            if error.context.get("reason") != "locked" or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)
