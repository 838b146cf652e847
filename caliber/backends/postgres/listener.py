"""Hearing at once that others wrote: LISTEN on a direct connection, which a pool in transaction mode cannot give.

What is heard is only that there is something to look for; what it is comes from the feed. So nothing is lost while
the connection is down: the follower polls as without it, and looks again as soon as it is back.

Source: design, section 5; docs/decisions/0099.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.pq import ConnStatus

from caliber.backends.postgres.connection import PgConnection, Shared, connect
from caliber.backends.postgres.errors import lost
from caliber.model.errors import CaliberError, InvalidConfigValue
from caliber.storage.plan import quote

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
_PLACE: Final = (
    "SELECT (pg_control_system()).system_identifier::text || '/' || current_database(), pg_backend_pid()::text"
)


def channel_of(schema: str) -> str:
    """Return what commits of a tenant are told on: a name is at most 63 bytes, as a schema's may be already."""
    return "caliber_" + hashlib.sha256(schema.encode()).hexdigest()[:32]


def place_of(connection: PgConnection) -> str:
    """Return which database a connection leads to, also after the server was restarted."""
    return str(connection.command(_PLACE)[0][0])


class Listener:
    """Calls ``heard`` on a thread of its own, soon after somebody else committed."""

    def __init__(
        self,
        shared: Shared,
        *,
        own: str,
        place: str,
        heard: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        assert shared.channel is not None
        self._shared = shared
        self._channel = shared.channel
        self._own = own
        self._place = place
        self._call = heard
        self._failed = failed
        self._stop = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="caliber-listener", daemon=True)
        self._connection: PgConnection | None = None
        self.listening = False
        self.heard = 0
        self.connections = 0
        self.fault: str | None = None

    def start(self) -> None:
        """Connect and begin. Raises: InvalidConfigValue when ``feed_dsn`` leads elsewhere, or to a pool."""
        try:
            self._open()
        except InvalidConfigValue:
            self._close()
            raise
        except CaliberError as error:
            self._down(error)  # for the time being: the thread goes on trying
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._close()
        self._woken.close()
        self._waker.close()

    # --- on its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._stop.is_set():
            try:
                if self._connection is None:
                    self._open()
                    self._look()  # for what was told while nobody listened
                wait_s = _FIRST_WAIT_S
                self._listen(self._connection)
            except CaliberError as error:
                self._down(error)
                self._stop.wait(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  (spreads attempts; no secret)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, connection: PgConnection | None) -> None:
        """Wait and call until told to stop. Raises: Unavailable when the connection breaks."""
        assert connection is not None
        pg = connection.pg
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(pg.socket, selectors.EVENT_READ)
            while not self._stop.is_set():
                if self._told(connection):
                    self._look()
                    continue  # more may have come meanwhile
                if pg.status != ConnStatus.OK:
                    raise lost(self._shared.store)
                selector.select()

    def _told(self, connection: PgConnection) -> bool:
        """Return whether somebody else has told of a commit since the last question."""
        others = False
        try:
            connection.pg.consume_input()
            while told := connection.pg.notifies():
                others |= told.extra.decode("ascii", "replace") != self._own
        except psycopg.Error as error:
            raise lost(self._shared.store, error) from error
        return others

    def _look(self) -> None:
        self.heard += 1
        try:
            self._call()
        except Exception as error:  # the poller meets it too; here it must not end the listening
            if not self._stop.is_set():
                self._failed("feed", error)

    # --- the connection --------------------------------------------------------------------------

    def _open(self) -> None:
        connection = self._connection = connect(self._shared)
        place, pid = connection.command(_PLACE)[0]
        if int(pid) != connection.pg.backend_pid:
            raise _wrong("it leads to a pool of connections: LISTEN needs a direct connection to the server")
        if place != self._place:
            raise _wrong("it leads to another database than storage.dsn")
        connection.command(f"LISTEN {quote(self._channel)}")
        self.listening = True
        self.connections += 1
        self.fault = None

    def _down(self, error: CaliberError) -> None:
        first = self.fault is None
        self.listening = False
        self.fault = str(error.context.get("reason", error.kind))
        self._close()
        if first and not self._stop.is_set():  # one report an outage
            self._failed("listener", error)

    def _close(self) -> None:
        self.listening = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _wrong(reason: str) -> InvalidConfigValue:
    return InvalidConfigValue(field="storage.feed_dsn", value="<redacted>", reason=reason)
