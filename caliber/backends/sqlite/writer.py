"""SQLite writer: runs one write transaction at a time, with optional group commit.

At durability ``commit`` each unit of work is its own transaction; at ``group`` waiting writers share one transaction
and its sync to disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import apsw

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.connecting.forks import GONE, REPLACED
from caliber.backends.sqlite.schema import begin_read, check_allowed
from caliber.backends.sqlite.searching.full_text import FullTextWriter
from caliber.model.deadline import unbounded
from caliber.model.errors import CaliberError, Conflict, Unavailable
from caliber.model.process.interrupts import let_through
from caliber.model.storage import Durability
from caliber.schema.catalog import Catalog
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import store_closed
from caliber.storage.protocol import Follower
from caliber.storage.sql.full_text import may_be_indexed
from caliber.storage.write.changes import pack_changes
from caliber.storage.write.group import Batch, GroupWriter, Request, copy_for, finish
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")
_NEWEST: Final = Plan("change.newest", "SELECT coalesce(max(sequence), 0) FROM change", (), ("sequence",))
"""The number of the newest change record; asked alone, SQLite looks it up at the end of the key."""


class SqliteWriter(GroupWriter):
    """Runs pieces of work in write transactions, one transaction at a time."""

    def __init__(
        self,
        connection: SqliteConnection,
        plans: dict[str, RelationPlans],
        statements: dict[str, Plan],
        catalog: Catalog,
        *,
        store: str,
        durability: Durability,
        keep_content: bool,
        busy_timeout_ms: int,
        clock_us: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._store = store
        self._plans = plans
        self._statements = statements
        self._catalog = catalog
        super().__init__(grouped=durability is Durability.GROUP)
        self._keep_content = keep_content
        self._busy_timeout_ms = busy_timeout_ms
        self._clock_us = clock_us
        self.follower: Follower | None = None
        self.full_text = FullTextWriter(may_be_indexed(catalog))
        self.identity = os.urandom(16)
        self.commits = 0
        self._limited = False

    def _check_usable(self) -> None:
        if self._connection.closed:
            raise store_closed()

    def _made_ready(self) -> None:
        if self._connection.closed:
            return
        if self._limited:
            self._connection.set_busy_timeout(self._busy_timeout_ms)
            self._limited = False
        if self._connection.in_transaction:
            self._give_back()  # of a thread that was interrupted during its rollback

    def bulk(self, work: Callable[[SqliteConnection, Callable[[Sequence[RowChange]], object]], T]) -> T:
        """Run ``work`` in its own transaction; it receives the writer of change records, and buffers no rows itself.

        Memory follows afterwards, as it follows other processes: rows of a load are too many to be handed over.
        """
        with self.exclusive():
            connection = self._connection
            if connection.closed:
                raise store_closed()
            try:
                connection.command("BEGIN IMMEDIATE")
                check_allowed(self._connection, self._store, "min_writer_version")
                result = work(connection, lambda rows: self.full_text.written(connection, self._record(rows), rows))
                connection.commit()
            except BaseException:
                self._give_back()
                raise
            self.commits += 1
            if self.follower is not None:
                self._catch_up(self.follower)
        return result

    def _transaction(self, batch: Batch, leader: Request, deadline: float | None) -> None:
        try:
            self._together(batch, leader, deadline)
        except BaseException as error:
            if batch.ending and self.follower is not None:
                self.follower.missed(error)  # it may be committed, and memory may not have it
            self._made_ready()
            raise

    def _together(self, batch: Batch, leader: Request, deadline: float | None) -> None:
        connection = self._connection
        limited = deadline is not None
        begun = False
        sequence, others = 0, True
        changes: list[RowChange] = []
        try:
            if limited:
                self._limited = True
                remaining_ms = max(1, int((deadline - time.monotonic()) * 1000))  # type: ignore[operator]
                connection.set_busy_timeout(min(self._busy_timeout_ms, remaining_ms))
            connection.command("BEGIN IMMEDIATE")
            begun = True
            self._work(batch)
            succeeded = [request for request in batch.requests if request.error is None and not request.alone]
            changes = [change for request in succeeded if request.unit for change in request.unit.changes]
            sequence = self._record(changes)
            others = self._others_wrote(sequence)
            if others:  # and may have migrated the store
                check_allowed(self._connection, self._store, "min_writer_version")
            if sequence:
                self.full_text.written(connection, sequence, changes)
            batch.ending = True
            connection.commit()
            batch.committed = True
        except BaseException as error:
            if batch.ending and self._stands(error):
                batch.committed = True
                leader.error = error  # interrupted as COMMIT was done: that concerns this thread alone
            else:
                self._failed(batch, leader, error, hurried=limited and not begun)
                return
        finally:
            if limited:
                connection.set_busy_timeout(self._busy_timeout_ms)
                self._limited = False
        self.commits += 1
        if self.follower is not None:
            with unbounded():
                self._tell(self.follower, sequence, changes, others)

    def _stands(self, error: BaseException) -> bool:
        """Return whether a transaction was committed although its COMMIT ended with ``error``."""
        refused = isinstance(error, CaliberError) and isinstance(error.__cause__, apsw.Error)
        nameless = isinstance(error, Unavailable) and error.context.get("reason") in (GONE, REPLACED)
        if refused or nameless or isinstance(error.__context__, apsw.Error):
            return False
        return not self._connection.in_transaction

    def _failed(self, batch: Batch, leader: Request, error: BaseException, *, hurried: bool) -> None:
        """Roll back, and record the outcome of each request; a request without one goes back in line."""
        batch.ending = False
        self._give_back()
        # The hurry of one request must not affect the others: they go back in line, in their order.
        failed = [leader] if hurried else batch.requests
        for request in batch.requests:
            if request not in failed:
                request.error = None
            elif not request.alone:
                request.error = request.error or (error if request is leader else copy_for(error))
                request.done = True
        self._after_conflicts(failed)

    def _others_wrote(self, sequence: int) -> bool:
        """Return whether others have recorded changes that the follower has not; inside our transaction.

        They show as a gap before the number of our record, or as a newer one than ours where we recorded nothing.
        """
        if self.follower is None:
            return True
        newest = sequence - 1 if sequence else self._connection.run(_NEWEST, ())[0][0]
        return bool(newest != self.follower.sequence)

    def _tell(self, follower: Follower, sequence: int, changes: list[RowChange], others: bool) -> None:
        """Pass a commit of ours to the follower, after the earlier commits of others."""
        if others or (sequence and sequence != follower.sequence + 1):
            self._catch_up(follower)
        if sequence:
            follower.committed(sequence, changes)

    def _after_conflicts(self, batch: list[Request]) -> None:
        """Apply the other process's changes before trying again after a lost race."""
        if self.follower is not None and any(isinstance(request.error, Conflict) for request in batch):
            with unbounded():
                self._catch_up(self.follower)

    def _catch_up(self, follower: Follower) -> None:
        """Follow earlier commits of other processes: a gap before the number of our commit reveals them.

        In a separate transaction: inside ours the follower would also see our rows, which may still be rolled back.
        """
        try:
            begin_read(self._connection, self._store)
            follower.follow(self._connection)
        except Exception as error:
            let_through(error)
            follower.lost(error)  # our own commit is done, whether or not following the others succeeded
        finally:
            self._roll_back()

    def _work(self, batch: Batch) -> None:
        """Run each request; one that fails among others is undone alone, and keeps its error."""
        connection = self._connection
        if len(batch.requests) == 1:
            request = batch.requests[0]
            request.unit = self._unit()
            request.result = finish(request.unit, request.work(request.unit))
            return
        for request in batch.requests:
            connection.command("SAVEPOINT work")
            unit = self._unit()
            try:
                request.result = finish(unit, request.work(unit))
            except BaseException as error:
                if not connection.in_transaction:
                    raise  # SQLite itself rolled back the whole transaction (disk full, I/O): no request succeeded
                connection.command("ROLLBACK TO work")
                connection.command("RELEASE work")
                if isinstance(error, CaliberError) or request is batch.requests[0]:
                    request.error = error
                else:
                    request.alone = True  # on its own thread: every error raised there is its own
                continue
            connection.command("RELEASE work")
            request.unit = unit

    def _unit(self) -> UnitOfWork:
        return UnitOfWork(
            self._connection, self._plans, self._statements, self._clock_us(), self._keep_content, self._catalog
        )

    def _record(self, changes: Sequence[RowChange]) -> int:
        if not changes:
            return 0
        plans = self._plans
        entries = [
            (relation.code, operation, row[0], row[plans[relation.name].codec.version_place])
            for relation, operation, row in changes
        ]
        rows: list[Row] = self._connection.run(
            self._statements["change.insert"], (self.identity, pack_changes(entries), self._clock_us())
        )
        sequence: int = rows[0][0]
        return sequence

    def _give_back(self) -> None:
        """Roll back a transaction. Another process may use the number of its change record now."""
        self.full_text.forget()
        self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.command("ROLLBACK")
