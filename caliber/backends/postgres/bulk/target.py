"""Types ``Connection`` and ``Target`` of PostgreSQL's bulk load and read, and the limits of their transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg

from caliber.model.errors import CaliberError
from caliber.model.lazy_dataclass import dataclass
from caliber.storage.compile.plan import Plan
from caliber.storage.migrate.migrations import check_needed

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The schema to load into, its names, and the writer named in change records."""

    schema: str
    table: Callable[[str], str]
    """The name of a relation's table, as statements have it."""
    sequence: Callable[[str], str]
    """The name of the sequence of a relation's ordinals, as a text that is cast to ``regclass``."""
    statement: Callable[[str], Plan]
    """An irregular statement by its name."""
    writer: bytes
    now: datetime
    translate: Callable[[psycopg.Error], CaliberError]
    lock_timeout_ms: int
    channel: str | None = None


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
