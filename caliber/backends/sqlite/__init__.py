"""SQLite through apsw: one file, one writer, many readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from caliber.backends.sqlite.store import SqliteStore, create, migrate
from caliber.model.errors import IncompatibleOptions

if TYPE_CHECKING:
    from caliber.config import CaliberConfig
    from caliber.storage.protocol import ConnectionPool

__all__ = ["SqliteStore", "create", "migrate", "open_store"]


def open_store(
    config: CaliberConfig, *, clock_us: Callable[[], int], connection_pool: ConnectionPool | None = None
) -> SqliteStore:
    """Open an existing store; refuse one that does not exist or has another schema version."""
    if connection_pool is not None:
        raise IncompatibleOptions(
            option_a="connection_pool",
            option_b="storage.adapter = sqlite",
            reason="a file takes no connections from it",
        )
    return SqliteStore(config, clock_us=clock_us)
