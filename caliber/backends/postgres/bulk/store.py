"""Entry point of PostgreSQL's bulk load and read: implements ``BulkStore`` on dedicated connections."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from caliber.backends.postgres.bulk.loading import load
from caliber.backends.postgres.bulk.reading import read
from caliber.backends.postgres.bulk.target import Connection, Target
from caliber.backends.postgres.connecting.connection import PgConnection, Shared
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.statements import irregular
from caliber.model.errors import CaliberError
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.spelling import quote


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
        with self.connection() as connection:
            yield from read(connection, self.target(), relation, batch_rows)

    def target(self) -> Target:
        """Return the target of the rows, and the writer named in change records."""
        # The load has no writer's id, so that our own memory treats its changes as foreign, and reads them.
        sequence = "{}.{}".format(quote(self._dialect.schema), quote("{}_ordinal_seq"))
        return Target(
            self._dialect.schema,
            self._dialect.table,
            sequence.format,
            irregular(self._dialect).__getitem__,
            os.urandom(16),
            from_us(self._clock_us()),
            functools.partial(translate_driver, store=self._shared.store),
            self._lock_timeout_ms,
            self._shared.channel,
        )

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
