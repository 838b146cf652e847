"""Entry point of PostgreSQL's bulk load and read: implements ``BulkStore`` on dedicated connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from caliber.backends.postgres.bulk.copying import Connection, Target, limit, read
from caliber.backends.postgres.bulk.loading import load
from caliber.backends.postgres.connecting.connection import PgConnection, Shared
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.model.errors import CaliberError
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting


class PostgresBulk:
    """Loads and reads relations; every call uses dedicated connections."""

    def __init__(
        self,
        shared: Shared,
        lend: Callable[[], AbstractContextManager[PgConnection]],
        dialect: PostgresDialect,
        lock_timeout_ms: int,
        clock_us: Callable[[], int],
        full_text: Callable[[PgConnection, Relation, Sequence[int]], None],
    ) -> None:
        self._full_text = full_text
        self._lend = lend
        self._shared = shared
        self._dialect = dialect
        self._lock_timeout_ms = lock_timeout_ms
        self._clock_us = clock_us

    def load(
        self, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting, progress: Progress
    ) -> BulkReport:
        """See ``BulkStore.bulk_load``; no statement timeout bounds a load, whose duration depends on its size."""
        with self._working() as connection, self.connection() as numbers:

            def index(ordinals: Sequence[int]) -> None:
                connection.work()
                try:
                    self._full_text(connection, relation, ordinals)
                finally:
                    connection.rest()

            return load(connection.raw, numbers, self.target(), relation, batches, on_existing, progress, index)

    def read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        """See ``BulkStore.bulk_read``."""
        with self.connection() as connection, connection.transaction():
            limit(connection, self.target(), "min_reader_version")
            yield from read(connection, self._dialect.table, relation, batch_rows)

    def target(self) -> Target:
        """Return the target of one load."""
        return Target(self._shared, self._dialect, self._lock_timeout_ms, self._clock_us())

    @managed
    def connection(self) -> Iterator[Connection]:
        """Lend a dedicated connection, outside pipeline mode; the driver's errors are translated."""
        with self._working() as lent:
            yield lent.raw

    @managed
    def _working(self) -> Iterator[PgConnection]:
        failed: CaliberError
        with self._lend() as lent:
            try:
                lent.rest()  # no COPY while it works
                yield lent
            except psycopg.Error as error:
                failed = translate_driver(error, self._shared.store)
            else:
                return
        raise failed
