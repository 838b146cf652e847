"""Types ``Connection`` and ``Target`` of PostgreSQL's bulk load and read, and the limits of their transactions."""

from __future__ import annotations

import os
from typing import Any

import psycopg

from caliber.backends.postgres.connecting.connection import Shared
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.statements import irregular
from caliber.model.errors import CaliberError
from caliber.model.time import from_us
from caliber.storage.compile.spelling import quote
from caliber.storage.migrate.migrations import check_needed

Connection = psycopg.Connection[Any]


class Target:
    """The schema of one load, and the writer and instant of its change records."""

    def __init__(self, shared: Shared, dialect: PostgresDialect, lock_timeout_ms: int, now_us: int) -> None:
        self._store = shared.store
        self._schema = dialect.schema
        self.channel = shared.channel
        self.table = dialect.table
        self.statements = irregular(dialect)
        self.lock_timeout_ms = lock_timeout_ms
        self.now = from_us(now_us)
        self.writer = os.urandom(16)  # no handle's id, so that our own memory reads the changes as it does foreign ones

    def sequence(self, relation: str) -> str:
        """Return the name of the sequence of a relation's ordinals, as a text that is cast to ``regclass``."""
        return f"{quote(self._schema)}.{quote(f'{relation}_ordinal_seq')}"

    def translate(self, error: psycopg.Error) -> CaliberError:
        """Return the error of ours for one of the driver's."""
        return translate_driver(error, self._store)


def limit(connection: Connection, target: Target, needs: str) -> None:
    """Set the limits of the transaction, for it alone: a pool may lend the connection to others afterwards.

    Raises: SchemaMismatch when the store was migrated beyond what this version may use; ``needs`` is the column of it.
    """
    needed = connection.execute(
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', %s, true),"
        f" set_config('synchronous_commit', 'on', true), (SELECT max({needs}) FROM {target.table('schema_migration')})",
        (str(target.lock_timeout_ms),),
    ).fetchone()
    check_needed("the store", 0 if needed is None else needed[3] or 0)
