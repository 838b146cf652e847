"""Cancellation of running PostgreSQL statements, requested on a second connection, without awaiting the answer."""

from __future__ import annotations

import _thread
import selectors
from time import monotonic

import psycopg
from psycopg.pq import PollingStatus
from psycopg.pq.abc import PGcancelConn, PGconn

from caliber.model.process.interrupts import suppress


def cancel_soon(pg: PGconn, patience_s: float) -> None:
    """Ask the server to cancel a connection's statement, without waiting for the answer.

    It needs a second connection, which may be as silent as the first. libpq before version 17 can only block on it, and
    its caller would hold the interpreter lock meanwhile: there the server notices when it next sends data, or by
    ``statement_timeout_ms``, that the client is gone.
    """
    if not psycopg.capabilities.has_cancel_safe():
        return
    with suppress(psycopg.Error, RuntimeError):  # no thread can be started while the interpreter shuts down
        cancelling = pg.cancel_conn()  # holds all it needs: ``pg`` may be closed at once
        _thread.start_new_thread(_cancel, (cancelling, patience_s))


def _cancel(cancelling: PGcancelConn, patience_s: float) -> None:
    until = monotonic() + patience_s
    try:
        cancelling.start()
        while (status := cancelling.poll()) in (PollingStatus.READING, PollingStatus.WRITING):
            left_s = until - monotonic()
            if left_s <= 0:
                return
            with selectors.DefaultSelector() as selector:
                event = selectors.EVENT_READ if status == PollingStatus.READING else selectors.EVENT_WRITE
                selector.register(cancelling.socket, event)
                selector.select(left_s)
    except (psycopg.Error, OSError, ValueError):
        pass  # the cancelled connection has been given up in any case
    finally:
        cancelling.finish()
