"""SQLite backend through apsw: one file per store, one writer, many readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from caliber.backends.sqlite.schema import create, migrate, plan_migration
from caliber.backends.sqlite.store import SqliteStore
from caliber.model.errors import IncompatibleOptions
from caliber.model.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from caliber.backends.sqlite.directory import SqliteRecords
    from caliber.backends.sqlite.moving.replica import SqliteReplica
    from caliber.config import CaliberConfig
    from caliber.config.storage import StorageConfig
    from caliber.config.tenancy import SqliteDirectory
    from caliber.dump.archive import Archive
    from caliber.storage.protocol import ConnectionPool

__all__ = [
    "SqliteStore",
    "create",
    "create_role",
    "drop_role",
    "migrate",
    "open_records",
    "open_replica",
    "open_store",
    "plan_migration",
    "restore",
]


def restore(
    config: CaliberConfig, source: Archive | Path, *, replace: bool, clock_us: Callable[[], int], progress: Progress
) -> str:
    """Replace the store with a backup; return its new epoch. Raises: see ``restoring``."""
    from caliber.backends.sqlite.maintaining.restoring import restore as restore_store
    from caliber.backends.sqlite.schema import options_of

    return restore_store(options_of(config), source, replace=replace, clock_us=clock_us, progress=progress)


def open_store(
    config: CaliberConfig, *, clock_us: Callable[[], int], connection_pool: ConnectionPool | None = None
) -> SqliteStore:
    """Open an existing store; refuse one that does not exist or has another schema version."""
    if connection_pool is not None:
        raise IncompatibleOptions(
            option_a="connection_pool",
            option_b="storage.adapter = sqlite",
            reason="a SQLite file uses no connection pool",
        )
    return SqliteStore(config, clock_us=clock_us)


def open_records(settings: SqliteDirectory, *, create: bool, clock_us: Callable[[], int]) -> SqliteRecords:
    """Open the directory of tenants; with ``create``, make it first if it is missing."""
    from caliber.backends.sqlite.directory import SqliteRecords

    return SqliteRecords(settings, create=create, clock_us=clock_us)


def open_replica(settings: StorageConfig, *, clock_us: Callable[[], int]) -> SqliteReplica:
    """Return one side of a move."""
    from caliber.backends.sqlite.moving.replica import SqliteReplica

    return SqliteReplica(settings, clock_us=clock_us)


def create_role(settings: StorageConfig) -> None:
    """Do nothing: files have no logins."""


def drop_role(settings: StorageConfig) -> None:
    """Do nothing: files have no logins."""
