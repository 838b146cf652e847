"""PostgreSQL backend through psycopg 3, one schema per tenant. Importing the package loads no driver."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from caliber.model.errors import ExtraNotInstalled, InvalidValue
from caliber.model.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from caliber.backends.postgres.directory import PostgresRecords
    from caliber.backends.postgres.moving.replica import PostgresReplica
    from caliber.backends.postgres.store import PostgresStore
    from caliber.config import CaliberConfig
    from caliber.config.storage import PostgresConfig
    from caliber.config.tenancy import PostgresDirectory
    from caliber.dump.archive import Archive
    from caliber.storage.migrate.memory_steps import MigrationPlan
    from caliber.storage.protocol import ConnectionPool

__all__ = [
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


def _require_driver() -> None:
    if importlib.util.find_spec("psycopg") is None:
        raise ExtraNotInstalled(feature="storage.adapter = postgres", extra="postgres")


def create(config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None:
    """Create the store's schema. Raises: Conflict, SchemaMismatch, Unavailable, ExtraNotInstalled."""
    _require_driver()
    from caliber.backends.postgres import store

    store.create(config, exist_ok=exist_ok, clock_us=clock_us)


def migrate(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> list[int]:
    """Apply every missing schema version and every step of memories; return the versions applied."""
    _require_driver()
    from caliber.backends.postgres import store

    return store.migrate(config, clock_us=clock_us, drop=drop)


def plan_migration(config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> MigrationPlan:
    """Return the steps that ``migrate`` would run."""
    _require_driver()
    from caliber.backends.postgres import store

    return store.plan_migration(config, clock_us=clock_us, drop=drop)


def restore(
    config: CaliberConfig, source: Archive | Path, *, replace: bool, clock_us: Callable[[], int], progress: Progress
) -> str:
    """Replace the tenant's records with an archive's; return its new epoch. Raises: see ``restoring``."""
    _require_driver()
    from caliber.backends.postgres import store
    from caliber.backends.postgres.maintaining import restoring
    from caliber.dump.archive import Archive

    settings: Any = config.storage
    if not isinstance(source, Archive):
        raise InvalidValue(
            field=str(source),
            reason="is a file of SQLite; name it as storage.path, and back that store up as *.zip, which restores here",
        )
    return restoring.restore(
        store.shared_of(config),
        settings.schema_name,
        source,
        replace=replace,
        lock_timeout_ms=settings.lock_timeout_ms,
        clock_us=clock_us,
        progress=progress,
    )


def open_store(
    config: CaliberConfig, *, clock_us: Callable[[], int], connection_pool: ConnectionPool | None = None
) -> PostgresStore:
    """Open an existing store; refuse one that does not exist or has another schema version."""
    _require_driver()
    from caliber.backends.postgres import store

    return store.PostgresStore(config, clock_us=clock_us, connection_pool=connection_pool)


def open_records(settings: PostgresDirectory, *, create: bool, clock_us: Callable[[], int]) -> PostgresRecords:
    """Open the directory of tenants; with ``create``, make it first if it is missing."""
    _require_driver()
    from caliber.backends.postgres.directory import PostgresRecords

    return PostgresRecords(settings, create=create, clock_us=clock_us)


def open_replica(settings: PostgresConfig, *, clock_us: Callable[[], int]) -> PostgresReplica:
    """Return one side of a move."""
    _require_driver()
    from caliber.backends.postgres.moving.replica import PostgresReplica

    return PostgresReplica(settings, clock_us=clock_us)


def create_role(settings: PostgresConfig) -> None:
    """Make the login role of a store and an empty schema that it owns, as the user of the DSN."""
    _require_driver()
    from caliber.backends.postgres.roles import create_role as make

    make(settings)


def drop_role(settings: PostgresConfig) -> None:
    """Remove the login role of a store whose schema has been dropped, as the user of the DSN."""
    _require_driver()
    from caliber.backends.postgres.roles import drop_role as remove

    remove(settings)
