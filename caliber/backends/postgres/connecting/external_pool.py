"""Adapter for a psycopg pool that the caller supplies: takes a connection per transaction, returns it unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.postgres.connecting.pool import BasePool
from caliber.model.deadline import earliest
from caliber.model.errors import CaliberError, DTypeError, InvalidValue, Unavailable
from caliber.model.process.interrupts import managed
from caliber.storage.protocol import ConnectionPool

_TRIES: Final = 100
"""Dead connections that are handed back before it is the pool that counts as out of order."""
_OURS: Final[dict[str, Any]] = {
    "autocommit": True,
    "isolation_level": psycopg.IsolationLevel.READ_COMMITTED,
    "read_only": None,
    "deferrable": None,
    "row_factory": tuple_row,
    "cursor_factory": psycopg.Cursor,
    "prepare_threshold": None,
}
"""How the driver itself is to behave where it is used directly; put back before others use the connection."""


class ExternalPool(BasePool):
    """Lends connections of the caller's pool, in the state that this package expects. As ``Pool``."""

    def __init__(
        self,
        lender: ConnectionPool,
        wrap: Callable[[psycopg.Connection[Any], float | None], PgConnection],
        *,
        timeout_ms: int,
    ) -> None:
        super().__init__()
        self._lender = lender
        self._wrap = wrap
        self._timeout_s = timeout_ms / 1_000
        self._known: dict[psycopg.Connection[Any], PgConnection] = {}

    @managed
    def connection(self, *, deadline: float | None = None, ask: bool = False) -> Iterator[PgConnection]:
        """Lend a connection, in no transaction. Raises: Unavailable when the pool lends none in time."""
        connection = self._take(deadline, ask)
        try:
            yield connection
        finally:
            self._give_back(connection)

    @managed
    def extra(self, *, deadline: float | None = None) -> Iterator[PgConnection]:
        """Lend a connection that the driver itself may be used on."""
        connection = self._take(deadline, True)
        raw = connection.raw
        try:
            before = {name: getattr(raw, name) for name in _OURS}
            _set(raw, _OURS)
            try:
                yield connection
            finally:
                if not raw.closed and connection.pg.transaction_status == TransactionStatus.IDLE:
                    connection.rest()
                    _set(raw, before)
                else:
                    raw.close()
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Take no more connections; the pool itself is its maker's."""
        self._closed = True
        self._known.clear()

    def _take(self, deadline: float | None, ask: bool) -> PgConnection:
        until = time.monotonic() + self._timeout_s
        deadline = earliest(deadline)
        if deadline is not None:
            until = min(until, deadline)
        for _ in range(_TRIES):
            self.check_open()
            raw = self._ask_lender(until)
            try:
                connection = self._known_one(raw, deadline)
            except Unavailable:
                if not raw.closed:
                    raise
                self._doubt()
                continue
            connection.deadline = deadline
            try:
                idle = connection.pg.transaction_status == TransactionStatus.IDLE
                connection.work()
                ask = ask or time.monotonic() < self._doubted_until
                if idle and not connection.is_dead() and (not ask or connection.answers()):
                    return connection
            except psycopg.Error:
                pass  # it is not usable: the pool replaces connections that are returned closed
            except BaseException:
                self._give_back(connection)
                raise
            self._doubt()
            connection.close()
            self._lender.putconn(connection.raw)
            if deadline is not None and time.monotonic() >= deadline:
                raise Unavailable("the deadline passed before the server answered; nothing was asked", reason="timeout")
        raise Unavailable("connection_pool returned only dead connections; try again", reason="connection lost")

    def _ask_lender(self, until: float) -> psycopg.Connection[Any]:
        try:
            raw = self._lender.getconn(max(0.001, until - time.monotonic()))
        except psycopg.Error as error:
            if getattr(self._lender, "closed", False):
                raise Unavailable(
                    "connection_pool is closed; open it, or pass another pool",
                    reason="closed",
                    retryable=False,
                ) from error
            raise Unavailable(
                "connection_pool returned no connection in time: all are in use, or the server is unreachable; try"
                " again, or make the pool larger",
                reason="out of connections",
            ) from error
        if not isinstance(raw, psycopg.Connection):
            raise DTypeError(field="connection_pool", expected="a pool of psycopg.Connection", got=type(raw).__name__)
        return raw

    def _known_one(self, raw: psycopg.Connection[Any], deadline: float | None) -> PgConnection:
        wrapper = self._known.get(raw)
        if wrapper is not None:
            return wrapper
        for closed in [other for other in list(self._known) if other.closed]:
            self._known.pop(closed, None)
        try:
            if raw.pgconn.parameter_status(b"client_encoding") != b"UTF8" and not raw.closed:
                raise InvalidValue(
                    field="connection_pool", reason="its connections must be made with client_encoding=UTF8"
                )
            self._known[raw] = made = self._wrap(raw, deadline)
        except BaseException:
            self._lender.putconn(raw)
            raise
        self.made += 1
        return made

    def _give_back(self, connection: PgConnection) -> None:
        try:
            if not connection.closed:
                connection.reset()
                connection.rest()
        except (CaliberError, psycopg.Error):
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            if connection.broken:
                connection.close()
                self._doubt()
            self._lender.putconn(connection.raw)


def _set(raw: psycopg.Connection[Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(raw, name, value)
