"""Opening of PostgreSQL connections: parameters, login, errors in the DSN, and a deadline that libpq lacks."""

from __future__ import annotations

import _thread
import hashlib
import hmac
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import psycopg

from caliber.backends.postgres.connecting.connection import CONNECT_TIMEOUT_MS, PgConnection, Shared
from caliber.backends.postgres.connecting.errors import (
    refused,
)
from caliber.model.deadline import earliest
from caliber.model.errors import InternalError, InvalidConfigValue, Unavailable
from caliber.model.process.interrupts import may_be_interrupted
from caliber.storage.compile.session import GRACE_S
from caliber.storage.waiting import Flag, starting

if TYPE_CHECKING:
    from caliber.config import PostgresConfig

_PARAMETERS: Final = {
    "application_name": "caliber",
    # A peer that vanished is noticed within a minute, not after the hours that systems allow.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
"""Defaults of connection parameters, which the DSN may override."""


def connect(shared: Shared, deadline: float | None = None) -> PgConnection:
    """Return a new connection that observes ``deadline``.

    Raises: Unavailable, also when the deadline passed, InvalidConfigValue for a DSN that cannot be read.
    """
    deadline = earliest(deadline)
    if not shared.dsn:  # libpq would connect to a default server
        raise InternalError("a store that was handed a pool makes no connection of its own")
    ours: dict[str, Any] = {
        **_PARAMETERS,
        "connect_timeout": CONNECT_TIMEOUT_MS // 1_000,  # libpq takes seconds, and at least 2
    }

    def dial() -> psycopg.Connection[Any]:
        in_dsn = psycopg.conninfo.conninfo_to_dict(shared.dsn)
        added = {name: value for name, value in ours.items() if name not in in_dsn}
        return psycopg.connect(shared.dsn, autocommit=True, client_encoding="UTF8", **added)

    try:
        raw = _dialled(dial, shared, deadline)
    except psycopg.OperationalError as error:
        raise refused(error, shared.store) from error
    except psycopg.ProgrammingError:
        # Its words quote the DSN: they do not travel.
        raise InvalidConfigValue(
            field=shared.setting,
            value="<redacted>",
            reason="not a valid PostgreSQL DSN; set it to env:NAME, a variable that contains one",
        ) from None
    raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # where the driver itself begins, as BEGIN here
    made = PgConnection(raw, shared)
    made.deadline = deadline
    return made


def _dialled(
    dial: Callable[[], psycopg.Connection[Any]], shared: Shared, deadline: float | None
) -> psycopg.Connection[Any]:
    """Return the result of ``dial``. Raises: Unavailable when the deadline passed before.

    Name resolution cannot be interrupted, and libpq's timeout counts in seconds. So a caller with a deadline waits for
    another thread, up to the deadline; a connection that comes too late is closed. So does the main thread: psycopg
    makes an error of its own of what a signal's handler raises in it, and leaves a connection that is half made open.
    """
    if deadline is None and not may_be_interrupted():
        return dial()
    made: list[psycopg.Connection[Any]] = []
    failed: list[BaseException] = []
    mutex = threading.Lock()
    ended = Flag()
    waits = True

    def run() -> None:
        try:
            raw = dial()
        except BaseException as error:
            failed.append(error)
        else:
            with mutex:
                made.append(raw)
                events = waits
            if not events:
                raw.close()
        ended.set()

    is_connected = False
    try:
        with starting():
            _thread.start_new_thread(run, ())  # in one step, which no signal's handler cuts in two
        ended.wait(None if deadline is None else min(max(0.0, deadline - monotonic()) + GRACE_S, threading.TIMEOUT_MAX))
        with mutex:
            waits, is_connected = False, bool(made)
    finally:
        if not is_connected:
            with mutex:
                waits = False
                unwanted = list(made)
            for raw in unwanted:  # made in the moment in which the wait was interrupted
                raw.close()
    if is_connected:
        return made[0]
    if failed:
        raise failed[0]
    raise Unavailable(
        f"{shared.store} is unavailable (timeout): the deadline passed before a connection was made", reason="timeout"
    )


def password_of(settings: PostgresConfig) -> str:
    """Return the password of the login role. Raises: MissingRequired when the secret's variable is unset."""
    if settings.login_role is None or settings.login_secret is None:
        raise InternalError("a store without a login role has no password of its own")
    secret = settings.login_secret.resolve().encode()
    return hmac.new(secret, f"caliber role {settings.login_role}".encode(), hashlib.sha256).hexdigest()


def dsn_of(settings: PostgresConfig, dsn: str | None = None) -> str:
    """Return the DSN that a store's connections are made with, or another one with the same login.

    Raises: MissingRequired, InvalidConfigValue
    """
    dsn = settings.dsn.resolve() if dsn is None else dsn
    if settings.login_role is None:
        return dsn
    try:
        return psycopg.conninfo.make_conninfo(dsn, user=settings.login_role, password=password_of(settings))
    except psycopg.ProgrammingError:
        # Its words quote the DSN: they do not travel.
        raise InvalidConfigValue(
            field="storage.dsn",
            value="<redacted>",
            reason="not a valid PostgreSQL DSN; set it to env:NAME, a variable that contains one",
        ) from None
