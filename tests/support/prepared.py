"""New SQLite stores that tests make: copies of one that was made before, instead of 150 statements each.

In ``make test`` alone: ``make prove`` creates each store as callers do. ``REAL`` are the rooms that prove creation
itself, and processes that tests start do so anyway.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import apsw
import pytest

from support.tiers import tier

REAL = ("backends", "crash", "golden", "schema", "storage")

_lock = threading.Lock()
_room = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _room
    _room = item.path.parent.name


@pytest.fixture(scope="session", autouse=True)
def _copied_stores() -> None:
    if tier() == "daily":
        from caliber.backends.sqlite import schema, store

        schema.baseline = store.baseline = functools.partial(_baseline, schema.baseline)  # type: ignore[attr-defined]


def _baseline(real: Any, connection: Any, now_us: int, declared: Sequence[Any]) -> bool:
    """Be ``caliber.backends.sqlite.schema.baseline``."""
    from caliber.backends.sqlite.schema import PLANS, SCHEMA_MIGRATION, baseline_of, checksum_of

    if declared or _room in REAL or type(connection.raw) is not apsw.Connection:
        made: bool = real(connection, now_us, declared)
        return made
    statements = [statement for plans in PLANS.values() for statement in plans.create]
    with _lock, connection.turn():
        if connection.raw.execute("SELECT count(*) FROM sqlite_schema").fetchall() != [(0,)]:
            return False  # another thread was first
        with connection.raw.backup("main", _image(real), "main") as copy:
            copy.step(-1)
        plans = PLANS[SCHEMA_MIGRATION.name]
        row = plans.codec.encode(baseline_of(checksum_of(statements), now_us))
        connection.raw.execute("BEGIN; DELETE FROM schema_migration")
        connection.raw.execute(plans.insert.sql, row)
        connection.raw.execute("COMMIT")
    return True


@functools.cache
def _image(real: Any) -> apsw.Connection:
    """Return an empty store in memory, which nothing ever writes to."""
    from caliber.backends.sqlite.connecting.connection import SqliteConnection
    from caliber.backends.sqlite.schema import options_of
    from caliber.storage.compile.session import Counter
    from support.configs import config

    connection = SqliteConnection(options_of(config(":memory:")), Counter(), memory_name="image", create=True)
    real(connection, 0, ())
    return connection.raw  # type: ignore[no-any-return]
