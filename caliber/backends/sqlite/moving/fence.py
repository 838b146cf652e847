"""Write fence of a SQLite file whose tenant moves: triggers that refuse every write, by any program.

They are created in a write transaction, which is exclusive: earlier writes are in the file, later ones are refused.
Source: docs/decisions/0131.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.schema import PLANS
from caliber.schema.catalog import Catalog
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.maintenance import FenceState
from caliber.storage.stored_memories import catalog_of

_TOKEN: Final = re.compile(r"/\* ([0-9a-f-]+) \*/")
_PREFIX: Final = "caliber_fence_"
_STANDING: Final = f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name GLOB '{_PREFIX}*'"


def _triggers(state: FenceState, token: str, catalog: Catalog) -> Iterator[str]:
    for relation in catalog.relations:
        for event in ("INSERT", "UPDATE", "DELETE"):
            name = quote(f"{_PREFIX}{relation.name}_{event.lower()}")
            yield (
                f"CREATE TRIGGER {name} BEFORE {event} ON {quote(relation.name)} BEGIN"
                f" SELECT /* {token} */ RAISE(ABORT, 'caliber: {state.value}'); END"
            )


def fence(connection: SqliteConnection, state: FenceState, token: str) -> None:
    """Refuse all writes; inside the caller's write transaction."""
    _drop(connection)
    for statement in _triggers(state, token, catalog_of(connection, PLANS)):
        connection.command(statement)


def lift(connection: SqliteConnection, token: str | None) -> None:
    """Let writes in again, unless the fence is another attempt's; inside the caller's write transaction."""
    standing = token_of(connection)
    if standing is not None and token in (None, standing):
        _drop(connection)


def _drop(connection: SqliteConnection) -> None:
    for name, _ in connection.command(_STANDING):
        connection.command(f"DROP TRIGGER {quote(name)}")


def token_of(connection: SqliteConnection) -> str | None:
    """Return the token of the fence that stands."""
    rows = connection.command(f"{_STANDING} LIMIT 1")
    found = _TOKEN.search(rows[0][1]) if rows else None
    return None if found is None else found[1]


def state_of(connection: SqliteConnection) -> FenceState | None:
    """Return the state of the fence that stands."""
    rows = connection.command(f"{_STANDING} LIMIT 1")
    return next((state for state in FenceState if rows and f"'caliber: {state.value}'" in rows[0][1]), None)


def has_moved(connection: SqliteConnection) -> bool:
    """Return whether the tenant in this file is somewhere else now."""
    return state_of(connection) is FenceState.MOVED
