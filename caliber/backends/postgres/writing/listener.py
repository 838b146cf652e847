"""LISTEN connection that wakes this process at other processes' commits and receives their events.

It is a direct connection, since a transaction pool cannot LISTEN. Resident memory gets its changes from the feed; a
notification only tells it to poll. So nothing is lost while the connection is down: the follower polls as it would
without it, and polls again as soon as it is back. Events travel in the notification itself, which PostgreSQL does not
keep for absent listeners: after an outage ``on_gap`` reports that some may have been missed.

Source: design, section 5; docs/decisions/0099.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
from typing import Final

import psycopg
from psycopg.pq import ConnStatus

from caliber.backends.postgres.connecting.connection import CONNECT_TIMEOUT_MS, PgConnection, Shared
from caliber.backends.postgres.connecting.dialling import connect
from caliber.backends.postgres.connecting.errors import lost
from caliber.backends.postgres.writing.notify import head_of, read
from caliber.model.errors import CaliberError, InvalidConfigValue, Unavailable
from caliber.model.events import Event
from caliber.model.process.interrupts import suppress
from caliber.storage import waiting
from caliber.storage.compile.spelling import quote
from caliber.storage.protocol import RemoteEventListener

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
_PLACE: Final = (
    "SELECT (pg_control_system()).system_identifier::text || '/' || current_database(), pg_backend_pid()::text"
)


def place_of(connection: PgConnection) -> str:
    """Return the identity of a connection's database, also after the server was restarted."""
    return str(connection.command(_PLACE)[0][0])


class Listener:
    """Thread that reports the commits of other processes to a handler."""

    def __init__(
        self,
        shared: Shared,
        *,
        store_name: str,
        place: str,
        handler: RemoteEventListener,
    ) -> None:
        assert shared.channel is not None
        self._shared = shared
        self._channel = shared.channel
        self._own = head_of(store_name).encode()
        self._place = place
        self._handler = handler
        self._last: Event | None = None
        self._stop = waiting.Flag()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="caliber-listener", daemon=True)
        self._connection: PgConnection | None = None
        self.listening = False
        self.notifications = 0
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
            self._down(error)  # for the time being: the thread keeps trying
        try:
            with waiting.starting():
                self._thread.start()
        except Unavailable:
            self._close()
            raise

    def stop(self) -> None:
        """End, and wait for a call under way."""
        self._stop.set()
        with suppress(OSError):
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
                    away = self.fault or "not connected"
                    self._open()
                    self._look()  # for notifications sent while the connection was down
                    self._missed(away)
                wait_s = _FIRST_WAIT_S
                self._listen(self._connection)
            except CaliberError as error:
                self._down(error)
                self._stop.wait(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  (spreads attempts; no secret)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, connection: PgConnection | None) -> None:
        """Wait for notifications until stopped. Raises: Unavailable when the connection breaks."""
        assert connection is not None
        pg = connection.pg
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(pg.socket, selectors.EVENT_READ)
            while not self._stop.is_set():
                others, events = self._told(connection)
                if others:
                    self._look()
                    self._pass_on(events)
                    continue  # more may have come meanwhile
                if pg.status != ConnStatus.OK:
                    raise lost(self._shared.store)
                selector.select()

    def _told(self, connection: PgConnection) -> tuple[bool, list[Event]]:
        """Return whether another process has committed since the last call, and its events."""
        others = False
        events: list[Event] = []
        broken: psycopg.Error | None = None
        try:
            connection.pg.consume_input()
        except psycopg.Error as error:
            broken = error  # earlier notifications that are still queued here
        while notified := connection.pg.notifies():
            if not notified.extra.startswith(self._own):
                others = True
                events += read(notified.extra.decode("utf-8", "replace")).events
        if broken is not None and not others:
            raise lost(self._shared.store, broken) from broken
        return others, events

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            if self._stop.is_set():
                return
            self._handler.on_event(event)
            self._last = event

    def _missed(self, reason: str) -> None:
        if not self._stop.is_set():
            self._handler.on_gap(reason, self._last)

    def _look(self) -> None:
        self.notifications += 1
        try:
            self._handler.on_change()
        except Exception as error:  # the poller meets it too; here it must not end the listening
            if not self._stop.is_set():
                self._handler.on_failure("feed", error)

    # --- the connection --------------------------------------------------------------------------

    def _open(self) -> None:
        connection = self._connection = connect(self._shared)
        connection.silence_ms = CONNECT_TIMEOUT_MS  # of a server that just let us in
        place, pid = connection.command(_PLACE)[0]
        if int(pid) != connection.pg.backend_pid:
            raise _wrong("it leads to a connection pool: LISTEN needs a direct connection to the server")
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
            self._handler.on_failure("listener", error)

    def _close(self) -> None:
        self.listening = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _wrong(reason: str) -> InvalidConfigValue:
    return InvalidConfigValue(field="storage.feed_dsn", value="<redacted>", reason=reason)
