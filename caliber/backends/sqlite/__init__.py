"""SQLite through apsw: one file, one writer, many readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from caliber.backends.sqlite.store import SqliteStore, create, migrate

if TYPE_CHECKING:
    from caliber.config import CaliberConfig

__all__ = ["SqliteStore", "create", "migrate", "open_store"]


def open_store(config: CaliberConfig, *, clock_us: Callable[[], int]) -> SqliteStore:
    """Open an existing store; refuse one that does not exist or has another schema version."""
    return SqliteStore(config, clock_us=clock_us)
