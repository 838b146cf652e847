"""Bulk load into SQLite by prepared inserts in one transaction, and bulk read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.connecting.errors import translate
from caliber.backends.sqlite.dialect import DIALECT
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.model.errors import CaliberError, Conflict, InvalidRow, Unavailable
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk import arrow
from caliber.storage.bulk.columns import rows_of
from caliber.storage.bulk.integrity import questions
from caliber.storage.bulk.load import ChangeRecords, Tally, row_of_loaded
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.codec import Row
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import quote
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
    _check(connection, relation, last, tally)
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


def _check(connection: SqliteConnection, relation: Relation, last: int, tally: Tally) -> None:
    if not relation.ordinal:
        return
    for question in questions(relation, quote, DIALECT.placeholder(1)):
        wrong = connection.run(Plan("bulk.check", question.sql, ("ordinal",), ("ordinal",)), (last,))[0][0]
        if wrong is not None:
            table = quote(relation.name)
            counting = f"SELECT count(*) FROM {table} WHERE ordinal > ?1 AND ordinal < ?2"
            number = connection.run(Plan("bulk.number", counting, ("last", "ordinal"), ("count",)), (last, wrong))[0][0]
            row = row_of_loaded(number, tally.skipped_rows)
            raise InvalidRow(row=row, field=question.field, reason=question.reason)


def read(session: StatementSession, plans: RelationPlans, batch_rows: int) -> Iterator[Any]:
    """Yield the rows that a session sees as record batches."""
    for rows in pages(session, plans, batch_rows):
        yield arrow.batch_from_rows(plans.relation, rows)
