"""Tables of the tenant directory in a SQLite file: creates and checks them, runs transactions on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection, check_version
from caliber.backends.sqlite.dialect import DIALECT
from caliber.model.errors import SchemaMismatch, Unavailable
from caliber.schema.relations import DIRECTORY, SCHEMA_MIGRATION
from caliber.storage.compile.plan import RelationPlans, compile_relation
from caliber.storage.compile.session import Counter
from caliber.storage.migrate.migrations import DIRECTORY_VERSION, baseline_of, check_versions
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.config.tenancy import SqliteDirectory

T = TypeVar("T")

APPLICATION_ID: Final = 0x43414C44
BUSY_TIMEOUT_MS: Final = 5_000
"""Longest wait for another process's write lock."""
"""``CALD``: a directory is not a tenant's store."""
_PLANS: dict[str, RelationPlans] = {relation.name: compile_relation(relation, DIALECT) for relation in DIRECTORY}


class SqliteRecords:
    """See ``DirectoryStore``."""

    def __init__(self, settings: SqliteDirectory, *, create: bool, clock_us: Callable[[], int]) -> None:
        check_version()
        self.plans = _PLANS
        self._clock_us = clock_us
        self._lock = threading.Lock()
        path = settings.resolve_path()
        self._shown = f"the directory of tenants {path}"
        file = Path(path)
        if not create and not file.exists():
            raise Unavailable(
                f"{self._shown} is not there; create a tenant, or check tenancy.directory.path",
                reason="missing",
                retryable=False,
            )
        options = OpenOptions(path, BUSY_TIMEOUT_MS, 1_024, 1_000, 32, BUSY_TIMEOUT_MS)
        self._connection = SqliteConnection(options, Counter(), memory_name="", create=create)
        try:
            if create:
                self._connection.command("PRAGMA journal_mode = WAL")
                self.work(self._baseline)
            self.work(self._check)
        except BaseException:
            self._connection.close()
            raise

    def _baseline(self, _: UnitOfWork) -> None:
        connection = self._connection
        if connection.command("SELECT 1 FROM sqlite_schema LIMIT 1"):
            return
        for plans in _PLANS.values():
            for statement in plans.create:
                connection.command(statement)
        row = baseline_of(bytes(32), self._clock_us(), version=DIRECTORY_VERSION)
        plans = _PLANS[SCHEMA_MIGRATION.name]
        connection.run(plans.insert, plans.codec.encode(row))
        connection.command(f"PRAGMA application_id = {APPLICATION_ID}")

    def _check(self, _: UnitOfWork) -> None:
        if self._connection.pragma("application_id") != APPLICATION_ID:
            raise SchemaMismatch(store=self._shown, reason="the file is no directory of tenants; choose another path")
        plans = _PLANS[SCHEMA_MIGRATION.name]
        rows = self._connection.run(plans.lists["list_all"], ())
        check_versions(self._shown, [plans.codec.decode(row) for row in rows], version=DIRECTORY_VERSION)

    def read(self, work: Callable[[UnitOfWork], T]) -> T:
        with self._lock:
            return work(self._unit())

    def work(self, work: Callable[[UnitOfWork], T]) -> T:
        with self._lock, self._connection.transaction():
            return work(self._unit())

    def _unit(self) -> UnitOfWork:
        return UnitOfWork(self._connection, _PLANS, {}, self._clock_us(), False)

    def close(self) -> None:
        with self._lock:
            if not self._connection.closed:
                self._connection.close()
