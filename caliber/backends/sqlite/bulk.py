"""Bulk load into SQLite by prepared inserts in one transaction, bulk read page by page, and snapshots of a store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.schema import PLANS
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.dump.dumped_relations import BATCH_BYTES, BATCH_ROWS, columns_of
from caliber.model.errors import CaliberError, Conflict, InvalidRow, Unavailable
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk import arrow
from caliber.storage.bulk.checks import questions
from caliber.storage.bulk.columns import rows_of
from caliber.storage.bulk.load import ChangeRecords, Tally, row_of_loaded
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.codec import Row
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import Plan, RelationPlans, compile_relation
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote, quote_all
from caliber.storage.stored_memories import catalog_of
from caliber.storage.write.changes import UPSERT
from caliber.storage.write.consequences import LOWERS
from caliber.storage.write.unit_of_work import RowChange


def load(
    connection: SqliteConnection,
    plans: RelationPlans,
    batches: Iterable[Batch],
    on_existing: OnExisting,
    progress: Progress,
    record: Callable[[Sequence[RowChange]], object],
    owners: Sequence[Relation],
) -> BulkReport:
    """Write batches inside the caller's transaction; ``record`` writes a change record.

    Raises: Conflict for a row that is there already, unless such are skipped; InvalidRow for one that refers to nothing
    """
    relation = plans.relation
    last = _last_ordinal(connection, relation)
    # References may point forward, to rows of the same load; they are checked at its end, where a row can be named.
    connection.command("PRAGMA defer_foreign_keys = ON")
    records = ChangeRecords(record)
    plan = plans.insert if on_existing is OnExisting.ERROR else plans.insert_or_ignore
    sql = plan.sql if relation.ordinal else f"{plan.sql} RETURNING 1"
    tally = Tally(relation, progress)
    for batch in batches:
        written, changes = _insert(connection, sql, relation, batch)
        records.add(changes)
        tally.add(batch, written)
    floor = LOWERS.get(relation.name)
    if floor is not None:
        lowered = connection.run(STATEMENTS[floor.lower_loaded], (last,))
        records.add(RowChange(floor.owner, UPSERT, row) for row in lowered)
    records.finish()
    _check(connection, relation, last, tally, owners)
    return tally.report(relation, records.count)


def _last_ordinal(connection: SqliteConnection, relation: Relation) -> int:
    if not relation.ordinal:
        return 0
    table = quote(relation.name)
    found: int = connection.command(f"SELECT coalesce(max({quote('ordinal')}), 0) FROM {table}")[0][0]
    return found


def _insert(
    connection: SqliteConnection, sql: str, relation: Relation, batch: Batch
) -> tuple[list[int], list[RowChange]]:
    """Insert the rows of a batch; return the places of those written, and the changes for mirrors."""
    at = -1
    current: Row = ()
    written: list[int] = []
    changes: list[RowChange] = []

    def counted() -> Iterator[Row]:
        nonlocal at, current
        for current in rows_of(relation, batch.columns, batch.rows):
            at += 1
            yield current

    try:
        # The next row is requested only when this one is done, so `at` is the row of the present result or error.
        with connection.turn():
            for (ordinal,) in connection.raw.executemany(sql, counted()):
                written.append(at)
                if relation.mirrored:
                    changes.append(RowChange(relation, UPSERT, (ordinal, *current[1:])))
    except apsw.ConstraintError as error:
        raise _named(translate(error, relation.name), batch.first_row + at) from error
    except apsw.Error as error:
        raise translate(error, relation.name) from error
    return written, changes


def _named(error: CaliberError, row: int) -> CaliberError:
    """Return an error about a rule of the schema, with the row that broke it."""
    reason = error.context.get("reason", "")
    columns = ", ".join(part.rpartition(".")[2] for part in reason.rpartition(": ")[2].split(", "))
    if isinstance(error, Unavailable):
        return error  # no row's fault
    if isinstance(error, Conflict):
        return Conflict(
            f"row {row}, {columns}: such a row exists already; on_existing='skip' skips it",
            entity_type="row",
            id=str(row),
            reason=reason,
            row=row,
            field=columns,
        )
    return InvalidRow(row=row, field=columns, reason=f"breaks a rule of the schema ({reason})")


def _check(
    connection: SqliteConnection, relation: Relation, last: int, tally: Tally, owners: Sequence[Relation]
) -> None:
    if not relation.ordinal:
        return
    for question in questions(relation, quote, DIALECT.placeholder(1), owners):
        wrong = connection.run(Plan("bulk.check", question.sql, ("ordinal",), ("ordinal",)), (last,))[0][0]
        if wrong is not None:
            table = quote(relation.name)
            counting = f"SELECT count(*) FROM {table} WHERE ordinal > ?1 AND ordinal < ?2"
            number = connection.run(Plan("bulk.number", counting, ("last", "ordinal"), ("count",)), (last, wrong))[0][0]
            row = row_of_loaded(number, tally.skipped_rows)
            raise InvalidRow(row=row, field=question.field, reason=question.reason)


@functools.lru_cache(maxsize=256)
def _insert_of(relation: Relation) -> str:
    return compile_relation(relation, DIALECT).insert.sql


def insert_batch(connection: SqliteConnection, relation: Relation, batch: Any) -> None:
    """Write a record batch of a relation of ``dump_relations`` as it is. Raises: apsw.Error."""
    columns = columns_of(relation.columns, batch, 0)
    with connection.turn():
        connection.raw.executemany(_insert_of(relation), rows_of(relation, columns, batch.num_rows)).fetchall()


def read(session: StatementSession, plans: RelationPlans, batch_rows: int) -> Iterator[Any]:
    """Yield the rows that a session sees as record batches."""
    for rows in pages(session, plans, batch_rows):
        yield arrow.batch_from_rows(plans.relation, rows)


class SqliteSnapshot:
    """See ``caliber.storage.maintain.maintenance.StoreSnapshot``."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self.epoch = str(connection.command("SELECT coalesce(min(epoch), '') FROM schema_migration")[0][0])
        self.sequence = int(connection.command("SELECT coalesce(max(sequence), 0) FROM change")[0][0])
        self.catalog = catalog_of(connection, PLANS)

    def ordinals(self) -> dict[str, int]:
        return last_ordinals(self._connection)

    def count(self, relation: Relation) -> int:
        return int(self._connection.command(f"SELECT count(*) FROM {quote(relation.name)}")[0][0])

    def read(self, relation: Relation, where: str = "") -> Iterator[Any]:
        """Yield record batches of the rows, or of those that meet a condition (``WHERE`` included)."""
        names = quote_all(column.name for column in relation.columns)
        order = quote_all(relation.key)
        rows: list[Row] = []
        size = 0
        text = f"SELECT {names} FROM {quote(relation.name)} {where} ORDER BY {order}"
        for row in self._connection.rows_of(text, relation.name):
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
                yield arrow.batch_from_rows(relation, rows)
                rows, size = [], 0
        if rows:
            yield arrow.batch_from_rows(relation, rows)


def last_ordinals(connection: SqliteConnection) -> dict[str, int]:
    """Return the last ordinal that was given out, by relation."""
    return dict(connection.command("SELECT name, seq FROM sqlite_sequence"))
