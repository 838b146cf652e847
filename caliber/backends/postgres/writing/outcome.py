"""Check with the server whether a transaction was committed, after the answer to COMMIT was lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from caliber.backends.postgres.connecting.external_pool import ExternalPool
from caliber.backends.postgres.connecting.pool import Pool
from caliber.model.deadline import earliest
from caliber.model.errors import StorageError, Unavailable
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import GRACE_S

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
