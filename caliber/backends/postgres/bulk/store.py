"""Bulk load and read of PostgreSQL on dedicated connections: record batches go into a table by binary COPY.

``on_existing="error"`` copies straight into the table. ``"skip"`` copies into a temporary table and inserts from there,
so that existing rows can be skipped and named. Either is one transaction on its own connection.

Source: design sections 3 and 4; C-195, K-106; docs/decisions/0101.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any, Final

import psycopg
from psycopg import RawCursor

from caliber.backends.postgres.bulk.copying import Connection, Target, copy_in, for_server, limit, pieces_of, read
from caliber.backends.postgres.connecting.connection import PgConnection, Shared
from caliber.backends.postgres.connecting.errors import translate_driver
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.kernels.copy.rows import CopyRows
from caliber.model.errors import CaliberError, Conflict, InvalidRow
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk.checks import questions
from caliber.storage.bulk.columns import folded_ids, numbers_of, ordinal_column
from caliber.storage.bulk.load import KEYS_A_RECORD, Tally, ahead
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.write.changes import pack_upserts
from caliber.storage.write.consequences import LOWERS


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
        self,
        relation: Relation,
        batches: Iterable[Batch],
        on_existing: OnExisting,
        progress: Progress,
        owners: Sequence[Relation],
    ) -> BulkReport:
        """See ``BulkStore.bulk_load``; no statement timeout bounds a load, whose duration depends on its size."""
        with self._working() as connection, self.connection() as numbers:

            def index(ordinals: Sequence[int]) -> None:
                connection.work()
                try:
                    self._full_text(connection, relation, ordinals)
                finally:
                    connection.rest()

            return load(connection.raw, numbers, self.target(owners), relation, batches, on_existing, progress, index)

    def read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        """See ``BulkStore.bulk_read``."""
        with self.connection() as connection, connection.transaction():
            limit(connection, self.target(), "min_reader_version")
            yield from read(connection, self._dialect.table, relation, batch_rows)

    def target(self, owners: Sequence[Relation] = ()) -> Target:
        """Return the target of one load."""
        return Target(self._shared, self._dialect, self._lock_timeout_ms, self._clock_us(), owners)

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


_RECORDS_AT_ONCE: Final = 200
_STAGING: Final = "caliber_load"
_STAGING_BUFFERS: Final = "64MB"
_LINE: Final = re.compile(r"COPY [^,]+, line (\d+)(?:, column (\w+))?")


def load(
    connection: Connection,
    numbers: Connection,
    target: Target,
    relation: Relation,
    batches: Iterable[Batch],
    on_existing: OnExisting,
    progress: Progress,
    index: Callable[[Sequence[int]], None],
) -> BulkReport:
    """Write batches in one transaction of ``connection``; ``numbers`` hands out ordinals meanwhile.

    ``index`` is given the ordinals of the rows written, before the transaction ends.

    Raises: InvalidRow, Conflict, Unavailable, and whatever ``batches`` raises; then nothing was written
    """
    work = _Direct if on_existing is OnExisting.ERROR else _Staged
    loading = work(connection, numbers, target, relation, progress)
    try:
        with connection.transaction():
            limit(connection, target, "min_writer_version")
            loading.run(batches)
            index(loading.written)
            loading.lower_labels()  # last: it locks them
            return loading.tally.report(relation, loading.records)
    except psycopg.Error as error:
        found = loading.explained(error)
        cause = target.translate(error).__cause__
    # Out here: the driver's own error, which quotes keys, does not travel along.
    raise found from cause


class _Loading:
    """The shared part of both ways of loading: ordinals, the stream, change records, questions at the end."""

    def __init__(
        self, connection: Connection, numbers: Connection, target: Target, relation: Relation, progress: Progress
    ) -> None:
        self.connection = connection
        self.numbers = numbers
        self.target = target
        self.relation = relation
        self.tally = Tally(relation, progress)
        self.records = 0
        self.last = 0
        """The ordinal before those of the load."""
        # Eight bytes of every row sent, so that a row can be named whatever the server's message is.
        self.ordinals = array("q")
        self.written: Sequence[int] = ()
        self.versions = array("q")
        self.references: dict[str, array[int]] = {key.column: array("Q") for key in relation.foreign_keys}

    def run(self, batches: Iterable[Batch]) -> None:
        raise NotImplementedError

    def columns(self) -> str:
        names = [quote(column.name) for column in self.relation.columns]
        return ", ".join([quote("ordinal"), *names] if self.relation.ordinal else names)

    def last_ordinal(self) -> int:
        if not self.relation.ordinal:
            return 0
        table = self.target.table(self.relation.name)
        return self._one(f"SELECT coalesce(max({quote('ordinal')}), 0) FROM {table}")  # type: ignore[no-any-return]

    def stream(self, into: str, batches: Iterable[Batch], numbered: bool, sent: Callable[[Batch], None]) -> None:
        """Copy batches into a table; ``numbered`` puts each row's number before it."""
        made = (self._made(batch, numbered) for batch in batches)
        with closing(ahead(made)) as coming:
            copy_in(self.connection, into, self._pieces(coming, sent))

    def _pieces(self, coming: Iterable[tuple[Batch, CopyRows]], sent: Callable[[Batch], None]) -> Iterator[memoryview]:
        for batch, rows in coming:
            try:
                yield from pieces_of(rows)
            except InvalidRow as error:
                raise InvalidRow(row=batch.first_row + error.row, field=error.field, reason=error.reason) from error
            sent(batch)

    def _made(self, batch: Batch, numbered: bool) -> tuple[Batch, CopyRows]:
        """Return a batch as it is sent; called by the thread that is a batch ahead."""
        columns_in_batch = batch.columns
        columns = [for_server(columns_in_batch[each.name], each, batch.rows) for each in self.relation.columns]
        if numbered:
            columns.insert(0, ordinal_column("row", range(batch.first_row, batch.first_row + batch.rows)))
        if self.relation.ordinal:
            columns.insert(0, ordinal_column("ordinal", self._new_ordinals(batch)))
        return batch, CopyRows(columns, batch.rows)

    def _new_ordinals(self, batch: Batch) -> Sequence[int]:
        new = next_ordinals(self.numbers, self.target.sequence(self.relation.name), batch.rows)
        self.ordinals.extend(new)
        if self.relation.has("version"):
            self.versions.extend(numbers_of(batch.columns["version"], batch.rows))
        for key, numbers in self.references.items():
            numbers.frombytes(folded_ids(batch.columns[key], batch.rows).tobytes())
        return new

    def record(self, ordinals: Sequence[int], versions: Sequence[int]) -> None:
        """Write change records of a thousand keys each, many to a round trip."""
        self.written = ordinals
        if self.relation.mirrored:
            self._record(self.relation.code, ordinals, versions)

    def lower_labels(self) -> None:
        """Trust the owners of loaded rows no more than these, where their labels are the least of them."""
        floor = LOWERS.get(self.relation.name)
        if floor is None or not self.written:
            return
        with RawCursor(self.connection) as cursor:
            rows = cursor.execute(self.target.statements[floor.lower_loaded].sql, (self.last,)).fetchall()
        place = codec_of(floor.owner).version_place
        if rows:
            self._record(floor.owner.code, [row[0] for row in rows], [row[place] for row in rows])

    def _record(self, code: int, ordinals: Sequence[int], versions: Sequence[int]) -> None:
        text = (
            f"INSERT INTO {self.target.table('change')} (writer, entries, created_at)"
            " SELECT $1, entries, $3 FROM unnest($2::bytea[]) AS entries"
        )
        packed = [
            pack_upserts(code, ordinals[start : start + KEYS_A_RECORD], versions[start : start + KEYS_A_RECORD])
            for start in range(0, len(ordinals), KEYS_A_RECORD)
        ]
        with RawCursor(self.connection) as cursor:
            for start in range(0, len(packed), _RECORDS_AT_ONCE):
                some = packed[start : start + _RECORDS_AT_ONCE]
                cursor.execute(text, (self.target.writer, some, self.target.now))
            if packed and self.target.channel is not None:
                cursor.execute("SELECT pg_notify($1, $2)", (self.target.channel, self.target.writer.hex()))
        self.records += len(packed)

    def ask(self) -> None:
        """Raise InvalidRow if a loaded row does not go with others."""
        if not self.relation.ordinal:
            return
        # References it checks by itself.
        for question in questions(self.relation, self.target.table, "$1", self.target.owners, references=False):
            wrong = self._one(question.sql, self.last)
            row = -1 if wrong is None else bisect_left(self.ordinals, wrong)
            if wrong is not None and row < len(self.ordinals) and self.ordinals[row] == wrong:
                raise InvalidRow(row=row, field=question.field, reason=question.reason)

    def _one(self, text: str, *parameters: Any) -> Any:
        with RawCursor(self.connection) as cursor:
            found = cursor.execute(text, parameters).fetchone()
        return None if found is None else found[0]

    # --- errors ----------------------------------------------------------------------------------

    def explained(self, error: psycopg.Error) -> CaliberError:
        """Return the error of ours for one of the server's, with the row it is about where that is known."""
        state, context = error.sqlstate or "", error.diag.context or ""
        place = _LINE.search(context)
        row = int(place[1]) - 1 if place is not None else None
        if state == "23505" and row is not None:
            fields = _fields_of(self.relation, error.diag.constraint_name or "")
            reason = "such a row exists already; on_existing='skip' skips it"
            return Conflict(
                f"row {row}, {fields}: {reason}", entity_type="row", id=str(row), reason=reason, row=row, field=fields
            )
        if state == "23503":
            return self._dangling(error)
        if state[:2] in ("22", "23") and row is not None:
            assert place is not None
            field = place[2] or _fields_of(self.relation, error.diag.constraint_name or "")
            return InvalidRow(row=row, field=field, reason="the database refuses the value")
        return self.target.translate(error)

    def _dangling(self, error: psycopg.Error) -> CaliberError:
        """Return the row whose reference dangles: the server names only the key."""
        for key in self.relation.foreign_keys:
            named = re.search(rf"\({re.escape(key.column)}\)=\(([0-9a-f-]{{36}})\)", error.diag.message_detail or "")
            if named is None:
                continue
            raw = bytes.fromhex(named[1].replace("-", ""))
            folded = int.from_bytes(raw[:8], "little") ^ int.from_bytes(raw[8:], "little")
            rows = self.references[key.column]
            if folded in rows:
                return InvalidRow(row=rows.index(folded), field=key.column, reason=f"refers to no {key.relation}")
        return self.target.translate(error)


def next_ordinals(connection: Connection, sequence: str, count: int) -> Sequence[int]:
    """Return reserved numbers, ascending."""
    with RawCursor(connection) as cursor:
        row = cursor.execute(
            "SELECT min(n), CASE WHEN max(n) - min(n) < count(*) THEN NULL ELSE array_agg(n ORDER BY n) END"
            " FROM (SELECT nextval($1::regclass) AS n FROM generate_series(1, $2)) AS numbers",
            (sequence, count),
        ).fetchone()
    assert row is not None
    first, apart = row
    return range(first or 0, (first or 0) + count) if apart is None else array("q", apart)


class _Direct(_Loading):
    """Copies straight into the table; the first existing row fails the load."""

    def run(self, batches: Iterable[Batch]) -> None:
        self.last = self.last_ordinal()
        into = f"{self.target.table(self.relation.name)} ({self.columns()})"
        self.stream(into, batches, False, lambda batch: self.tally.add(batch, range(batch.rows)))
        self.record(self.ordinals, self.versions)
        self.ask()


class _Staged(_Loading):
    """Copies into a temporary table first, then inserts the rows that do not exist yet."""

    def run(self, batches: Iterable[Batch]) -> None:
        self.last = self.last_ordinal()
        # In a session that has used temporary tables before, as a pool may lend it, their number is settled.
        with suppress(psycopg.Error), self.connection.transaction():
            self.connection.execute(f"SET LOCAL temp_buffers = '{_STAGING_BUFFERS}'")
        table = self.target.table(self.relation.name)
        ordinal = f"{quote('ordinal')}, " if self.relation.ordinal else ""
        names = ", ".join(quote(column.name) for column in self.relation.columns)
        self.connection.execute(
            f"CREATE TEMP TABLE {_STAGING} ON COMMIT DROP AS"
            f" SELECT {ordinal}0::bigint AS {quote('row')}, {names} FROM {table} WITH NO DATA"
        )
        into = f"{_STAGING} ({ordinal}{quote('row')}, {names})"
        rows: list[Batch] = []
        self.stream(into, batches, True, lambda batch: rows.append(Batch(batch.first_row, batch.rows, {})))
        written = self._insert(table, names)
        for batch in rows:
            start, end = bisect_left(written, batch.first_row), bisect_left(written, batch.first_row + batch.rows)
            self.tally.add(batch, [row - batch.first_row for row in written[start:end]])
        self.ask()

    def _insert(self, table: str, names: str) -> Sequence[int]:
        """Insert the rows that do not exist yet; return the numbers of the rows written.

        A temporary table is scanned in the order it was filled in, by one process: of equal rows the first is written.
        Sorting would cost as much as all the rest.
        """
        if not self.relation.ordinal:
            return self._insert_by_key(table, names)
        ordinal = quote("ordinal")
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                f"INSERT INTO {table} ({ordinal}, {names}) SELECT {ordinal}, {names} FROM {_STAGING}"
                f" ON CONFLICT DO NOTHING RETURNING {ordinal}"
            )
            found = sorted(row[0] for row in cursor)
        places = array("q", [bisect_left(self.ordinals, each) for each in found])
        if self.relation.has("version"):
            self.record(found, [self.versions[place] for place in places])
        return places

    def _insert_by_key(self, table: str, names: str) -> Sequence[int]:
        keys = quote_all(self.relation.key)
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                f"WITH written AS (INSERT INTO {table} ({names}) SELECT {names} FROM {_STAGING}"
                f" ON CONFLICT DO NOTHING RETURNING {keys})"
                f" SELECT min({quote('row')}) FROM {_STAGING} JOIN written USING ({keys}) GROUP BY {keys}"
            )
            return array("q", sorted(row[0] for row in cursor))


def _fields_of(relation: Relation, constraint: str) -> str:
    """Return the columns that a constraint's name stands for."""
    for unique in relation.uniques:
        if constraint == f"uq_{relation.name}_{'_'.join(unique.columns)}"[:63]:
            return ", ".join(unique.columns)
    if constraint.startswith(f"{relation.name}_{'_'.join(relation.key)}_") or constraint.endswith("_pkey"):
        return ", ".join(relation.key)
    return constraint
