"""PostgreSQL and psycopg errors: translation to CALIBER's, by SQLSTATE, and tests whether a retry may succeed.

The driver's error stays as ``__cause__`` with its primary message alone: details and connection errors name keys,
values, hosts and users.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from caliber.model.errors import (
    CaliberError,
    Conflict,
    InvalidStateTransition,
    SchemaMismatch,
    StorageError,
    TransactionFailed,
    Unavailable,
)
from caliber.storage.maintain.maintenance import MOVED, MOVING

_UNAVAILABLE: Final[dict[str, tuple[str, bool, str]]] = {
    "53100": (
        "disk full",
        True,
        "the server's disk is full: free space there, try again; this transaction wrote nothing",
    ),
    "53200": ("out of memory", True, "the server has no memory left"),
    "53300": (
        "out of connections",
        True,
        "the server takes no more connections: raise its max_connections, lower storage.pool_max, or use PgBouncer",
    ),
    "53400": (
        "limit reached",
        False,
        "a limit of the server was reached, such as temp_file_limit: raise it; this transaction wrote nothing",
    ),
    "55P03": ("locked", True, "another transaction holds what is needed; try again, or raise storage.lock_timeout_ms"),
    "57014": ("timeout", True, "the statement took longer than allowed; this transaction wrote nothing"),
    "25P03": (
        "timeout",
        True,
        "the transaction idled longer than the server allows; this transaction wrote nothing",
    ),
    "25P04": ("timeout", True, "the transaction took longer than the server allows; this transaction wrote nothing"),
    "25006": ("read-only", True, "the server is read-only, as a standby is; connect to the primary"),
    "26000": (
        "prepared statement lost",
        True,
        "a pool in front of the server mixes its connections up: set storage.prepared_max = 0",
    ),
    "28P01": ("wrong password", False, "the server refused the password; check the variable that storage.dsn names"),
    "28000": ("not let in", False, "the server does not let this user in; check the variable that storage.dsn names"),
    "3D000": ("no such database", False, "the database does not exist; create it, or correct the DSN"),
    "42501": ("missing rights", False, "the database user lacks a right; grant it on the schema and its tables"),
    "57P01": ("connection lost", True, "the server ended the connection; try again"),
    "57P02": ("connection lost", True, "the server crashed and is recovering; try again"),
    "57P03": ("starting", True, "the server is starting or stopping; try again"),
    "CBM01": MOVING,
    "CBM02": MOVED,
    "57P05": ("connection lost", True, "the connection was idle for longer than the server allows; try again"),
}
_RACES: Final = frozenset(("40001", "40P01", "23505", "23503"))
"""Serialization failure, deadlock, and key conflicts with a concurrent writer: worth a retry."""
_STALE_PLANS: Final = frozenset(("26000", "0A000"))
"""A prepared statement is missing, or its result type changed in a migration."""


class StatementError(Exception):
    """The server's error for one statement, internal to this room: ``translate`` turns it into a CALIBER error."""

    def __init__(self, state: str, primary: str, constraint: str | None) -> None:
        super().__init__(state)
        self.state = state
        self.primary = primary
        self.constraint = constraint


def statement_error(result: PGresult) -> StatementError:
    """Return the error of a failed result, without the parts that quote values."""

    def field(which: DiagnosticField) -> str:
        raw = result.error_field(which)
        return "" if raw is None else raw.decode("utf-8", "replace")

    return StatementError(
        field(DiagnosticField.SQLSTATE),
        field(DiagnosticField.MESSAGE_PRIMARY),
        field(DiagnosticField.CONSTRAINT_NAME) or None,
    )


def translate(error: StatementError, store: str) -> CaliberError:
    """Return CALIBER's error for an error of the server; it never contains row values."""
    translated = _translated(error, store)
    try:
        kind = errors.lookup(error.state)
    except KeyError:
        kind = psycopg.DatabaseError
    translated.__cause__ = kind(error.primary)
    return translated


def takes_no_writes(store: str) -> CaliberError:
    """Return the error of a server that only reads."""
    return translate(StatementError("25006", "read-only", None), store)


def _translated(error: StatementError, store: str) -> CaliberError:
    state = error.state
    rule = _UNAVAILABLE.get(state)
    if rule is not None:
        reason, retryable, advice = rule
        return Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
    if state == "23505":
        return Conflict(
            entity_type="row", id="", reason=f"UNIQUE rule {error.constraint} was broken: such a row exists already"
        )
    if state.startswith("23"):
        return StorageError(
            f"a rule of the schema was broken: {_rule(error)}", reason=error.constraint or _CLASSES.get(state, state)
        )
    if state in ("40001", "40P01"):
        return Conflict(entity_type="transaction", id="", reason="another writer was first", retryable=True)
    if state in ("42P01", "3F000", "42703"):
        return SchemaMismatch(store=store, reason=_MISSING)
    if state.startswith("08"):
        return lost(store)
    if state.startswith("22"):
        return StorageError("a value does not fit its column", reason="type")
    if state.startswith("53"):
        return Unavailable(f"{store} is unavailable (out of resources): try again", reason="out of resources")
    if state.startswith("54"):
        return StorageError("a value is larger than the database allows", reason="too big")
    if state in ("XX001", "XX002"):
        return StorageError(f"{store} is damaged; restore a backup", reason="corrupt")
    return TransactionFailed(reason=f"SQLSTATE {state}")


_MISSING: Final = "a table or column is missing; run `caliber db migrate`, or upgrade the package caliber-memory"
_CLASSES: Final = {"23502": "NOT NULL", "23503": "FOREIGN KEY", "23514": "CHECK"}


def _rule(error: StatementError) -> str:
    kind = _CLASSES.get(error.state, "constraint")
    return f"{kind} {error.constraint}" if error.constraint else kind


def translate_driver(error: psycopg.Error, store: str) -> CaliberError:
    """Return an error of the driver, used directly, as one of ours."""
    if error.sqlstate is None:
        return lost(store, error)
    return translate(
        StatementError(error.sqlstate, error.diag.message_primary or "", error.diag.constraint_name), store
    )


def lost(store: str, cause: BaseException | None = None) -> Unavailable:
    """Return the error of a connection that went away."""
    error = Unavailable(
        f"{store} is unavailable (connection lost): the connection to the server broke; try again",
        reason="connection lost",
    )
    error.__cause__ = cause
    return error


def refused(error: psycopg.OperationalError, store: str) -> Unavailable:
    """Return the error of a connection that could not be made; the driver's words may name host and user."""
    # libpq gives no SQLSTATE of a connection that failed, only the server's words.
    state = error.sqlstate or next((state for words, state in _WORDS if words in str(error)), "")
    rule = _UNAVAILABLE.get(state)
    if rule is None:
        rule = ("cannot connect", True, "no server answers there; start it, or correct the variable of storage.dsn")
    reason, retryable, advice = rule
    translated = Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
    translated.__cause__ = error
    return translated


_WORDS: Final = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("authentication failed", "28000"),
    ("permission denied for database", "42501"),
    ("too many clients", "53300"),
    ("too many connections", "53300"),
    ("remaining connection slots", "53300"),
    ('role "', "28000"),  # does not exist, or may not log in
    ("does not exist", "3D000"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("not yet accepting connections", "57P03"),
    ("recovery mode", "57P03"),
)


def may_pass(error: CaliberError) -> bool:
    """Return whether the same work may end otherwise if it is done again: it lost a race, or its connection."""
    if isinstance(error, Conflict | InvalidStateTransition):
        return True  # it may have read one row before another's commit, and one after it
    if isinstance(error, Unavailable) and error.context.get("reason") == "connection lost":
        return True  # before its COMMIT: nothing stands
    state = getattr(error.__cause__, "sqlstate", None)
    return state in _RACES or state in _STALE_PLANS


def is_tried_once(error: CaliberError) -> bool:
    """Return whether one retry is enough: a state or key of another, or a server that closes every connection."""
    if isinstance(error, Conflict | InvalidStateTransition) and not error.retryable:
        return True
    return isinstance(error, Unavailable) or getattr(error.__cause__, "sqlstate", None) in ("23505", "23503")


def is_taken(error: StatementError) -> bool:
    """Return whether there is a row already under a primary key, which an ordinal is where there are some."""
    return error.state == "23505" and (error.constraint or "").endswith("_pkey")


def has_gone(error: StatementError) -> bool:
    """Return whether the server does not know a prepared statement any more."""
    return error.state == "26000"


def is_stale_plan(error: StatementError) -> bool:
    """Return whether a statement has to be prepared again."""
    return error.state in _STALE_PLANS
