"""Write fence of a PostgreSQL schema whose tenant moves: triggers that refuse every write, by any program.

Write transactions begin by reading ``text_state``. The fence locks that table alone: it has then waited for all of them
and holds up the next ones before they hold any lock, so no deadlock is possible. Source: docs/decisions/0131.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import psycopg

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.memories import catalog_in
from caliber.backends.postgres.statements import ADVISORY_CLASS, FENCE, MOVED
from caliber.backends.postgres.writing.notify import channel_of
from caliber.model.errors import Unavailable
from caliber.schema.relations import MEMORY_TYPE
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.moved import FenceState

CODES: Final = {FenceState.MOVING: "CBM01", FenceState.MOVED: "CBM02"}
"""CALIBER's own SQLSTATEs; ``errors`` maps them to exceptions."""
REMOVING_MS: Final = 2_000
"""How long triggers that refuse nothing are tried to be removed."""
_PATIENCE_MS: Final = 300
"""How long this lock request blocks others, while it waits itself, before it steps back."""
_PAUSE_S: Final = 0.2
GATE: Final = "text_state"
"""The table that write transactions read as they begin."""
_AGAIN: Final = frozenset({"55P03", "40P01"})

Connection = psycopg.Connection[tuple[object, ...]]


def fence(connection: Connection, dialect: PostgresDialect, state: FenceState, token: str, wait_ms: int) -> None:
    """Refuse all writes from now on. Raises: Unavailable when writes under way do not end in time."""

    def work() -> None:
        table = dialect.table
        connection.execute(f"LOCK TABLE {table(GATE)} IN ACCESS EXCLUSIVE MODE".encode())
        _alone(connection, dialect)
        name = table(FENCE)
        body = f"BEGIN RAISE EXCEPTION 'caliber: {state.value}' USING ERRCODE = '{CODES[state]}'; END"
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $fence$ {body} $fence$".encode()
        )
        connection.execute(f"COMMENT ON FUNCTION {name}() IS '{token}'".encode())
        if state is FenceState.MOVED:
            moved = f"{table(MOVED)}() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
            connection.execute(f"CREATE OR REPLACE FUNCTION {moved}".encode())
            connection.execute(b"SELECT pg_notify(%s, %s)", (channel_of(dialect.schema), token))
        else:
            connection.execute(f"DROP FUNCTION IF EXISTS {table(MOVED)}()".encode())
        events = "INSERT OR UPDATE OR DELETE OR TRUNCATE"
        for relation in catalog_in(connection, table(MEMORY_TYPE.name)).relations:
            connection.execute(
                f"CREATE OR REPLACE TRIGGER {quote(FENCE)} BEFORE {events} ON {table(relation.name)}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()".encode()
            )

    _patiently(connection, work, wait_ms)


def lift(connection: Connection, dialect: PostgresDialect, token: str | None) -> None:
    """Let writes in again, unless the fence is another attempt's."""
    name = dialect.table(FENCE)
    with connection.transaction():
        _alone(connection, dialect)
        standing = token_of(connection, dialect)
        if standing is None or token not in (None, standing):
            return
        # At once, whatever reads the tables meanwhile: the triggers remain, but refuse nothing.
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'".encode()
        )
        connection.execute(f"COMMENT ON FUNCTION {name}() IS NULL".encode())
        connection.execute(f"DROP FUNCTION IF EXISTS {dialect.table(MOVED)}()".encode())

    def work() -> None:
        connection.execute(f"LOCK TABLE {dialect.table(GATE)} IN ACCESS EXCLUSIVE MODE".encode())
        _alone(connection, dialect)
        if token_of(connection, dialect) is None:  # no other fence was put up
            connection.execute(f"DROP FUNCTION IF EXISTS {name}() CASCADE".encode())

    with contextlib.suppress(Unavailable):  # they only cost a little, and the next fence uses them
        _patiently(connection, work, REMOVING_MS)


def _alone(connection: Connection, dialect: PostgresDialect) -> None:
    connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_CLASS, dialect.schema))


def token_of(connection: Connection, dialect: PostgresDialect) -> str | None:
    """Return the token of the fence that stands."""
    row = connection.execute(
        b"SELECT obj_description(p.oid, 'pg_proc') FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        b" WHERE n.nspname = %s AND p.proname = %s",
        (dialect.schema, FENCE),
    ).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def _patiently(connection: Connection, work: Callable[[], None], wait_ms: int) -> None:
    """Run ``work`` in a transaction that never holds others up for long."""
    until = time.monotonic() + wait_ms / 1_000
    while True:
        left_ms = max(1, int((until - time.monotonic()) * 1_000))
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {min(_PATIENCE_MS, left_ms)}".encode())
                connection.execute(b"SET LOCAL statement_timeout = 0")
                connection.execute(b"SET LOCAL synchronous_commit = on")
                work()
        except psycopg.Error as error:
            if error.sqlstate not in _AGAIN or time.monotonic() >= until:
                if error.sqlstate in _AGAIN:
                    raise Unavailable(
                        "a transaction that writes the tenant did not end in time: try again, or raise"
                        " tenancy.fence_ms",
                        reason="busy",
                    ) from error
                raise
        else:
            return
        time.sleep(_PAUSE_S)
