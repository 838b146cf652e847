"""Tables of the tenant directory in a PostgreSQL schema: creates and checks them, runs transactions on them."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from caliber.backends.postgres.connecting.connection import PgConnection, Shared
from caliber.backends.postgres.connecting.dialling import connect
from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.postgres.schema import check_server
from caliber.backends.postgres.statements import ADVISORY_CLASS
from caliber.model.errors import SchemaMismatch, Unavailable
from caliber.schema.relations import DIRECTORY, SCHEMA_MIGRATION, TENANT
from caliber.storage.compile.plan import RelationPlans, compile_relation
from caliber.storage.compile.spelling import quote
from caliber.storage.migrate.migrations import DIRECTORY_VERSION, baseline_of, check_versions
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.config.tenancy import PostgresDirectory

T = TypeVar("T")

STATEMENT_TIMEOUT_MS: Final = 30_000
LOCK_TIMEOUT_MS: Final = 5_000


@functools.lru_cache(maxsize=16)
def _plans_of(schema: str) -> dict[str, RelationPlans]:
    dialect = dialect_of(schema, "public")  # it has no vectors
    return {relation.name: compile_relation(relation, dialect) for relation in DIRECTORY}


class PostgresRecords:
    """See ``DirectoryStore``. A broken connection is reopened with the next transaction."""

    def __init__(self, settings: PostgresDirectory, *, create: bool, clock_us: Callable[[], int]) -> None:
        self._schema = settings.schema_name
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self.limits = STATEMENT_TIMEOUT_MS, LOCK_TIMEOUT_MS
        self.plans = _plans_of(self._schema)
        self._shared = Shared(
            store=f"the directory of tenants in PostgreSQL schema {self._schema}",
            dsn=settings.dsn.resolve(),
            prefix=f"caliber_{os.getpid()}_{time.monotonic_ns()}_".encode(),
            prepared_max=0,  # asked rarely, and perhaps through a pool that cannot
            qualifier=f"{quote(self._schema)}.",
        )
        self.connection = connect(self._shared)
        try:
            check_server(self.connection, self._shared.store)
            if create:
                self.work(self._baseline)
            self.work(self._check)
        except BaseException:
            self.connection.close()
            raise

    def _tables(self) -> dict[str, str | None]:
        rows = self.connection.command(
            "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class AS c JOIN pg_namespace AS n"
            f" ON n.oid = c.relnamespace WHERE n.nspname = '{self._schema}' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
        )
        return {str(name): comment for name, comment in rows}

    def _baseline(self, _: UnitOfWork) -> None:
        connection = self.connection
        connection.command(f"SELECT pg_advisory_xact_lock({ADVISORY_CLASS}, hashtext('{self._schema}'))")
        if self._tables():
            return
        if not connection.command(f"SELECT 1 FROM pg_namespace WHERE nspname = '{self._schema}'"):
            connection.command(f"CREATE SCHEMA {quote(self._schema)}")
        for plans in self.plans.values():
            for statement in plans.create:
                connection.command(statement)
        row = baseline_of(bytes(32), self._clock_us(), version=DIRECTORY_VERSION)
        plans = self.plans[SCHEMA_MIGRATION.name]
        connection.run(plans.insert, plans.codec.encode(row))

    def _check(self, _: UnitOfWork) -> None:
        tables = self._tables()
        if not tables:
            raise Unavailable(
                f"{self._shared.store} is not there; create a tenant, or check tenancy.directory",
                reason="missing",
                retryable=False,
            )
        if tables.get(TENANT.name) != TENANT.comment:
            raise SchemaMismatch(
                store=self._shared.store, reason="the schema is no directory of tenants; choose another name"
            )
        plans = self.plans[SCHEMA_MIGRATION.name]
        rows = self.connection.run(plans.lists["list_all"], ())
        check_versions(self._shared.store, [plans.codec.decode(row) for row in rows], version=DIRECTORY_VERSION)

    def read(self, work: Callable[[UnitOfWork], T]) -> T:
        return self.work(work)

    def work(self, work: Callable[[UnitOfWork], T]) -> T:
        with self._lock:
            connection = self._usable()
            try:
                connection.command("BEGIN")
                statement_ms, lock_ms = self.limits
                connection.command(
                    f"SELECT set_config('statement_timeout', '{statement_ms}', true),"
                    f" set_config('lock_timeout', '{lock_ms}', true), set_config('synchronous_commit', 'on', true)"
                )
                result = work(UnitOfWork(connection, self.plans, {}, self._clock_us(), False))
                connection.command("COMMIT")
            finally:
                connection.reset()
            return result

    def _usable(self) -> PgConnection:
        if self.connection.closed or self.connection.broken or self.connection.is_dead():
            self.connection.close()
            self.connection = connect(self._shared)
        return self.connection

    def close(self) -> None:
        with self._lock:
            self.connection.close()
