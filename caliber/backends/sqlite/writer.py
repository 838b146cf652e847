"""The one writer of a SQLite store.

At durability ``commit`` each piece of work is its own transaction; at ``group`` writers share one and its sync to disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from caliber.backends.sqlite.connection import SqliteConnection
from caliber.backends.sqlite.full_text import FullTextWriter
from caliber.model.enums import Durability
from caliber.model.errors import CaliberError, Conflict, Unavailable
from caliber.storage.changes import pack_changes
from caliber.storage.codec import Row
from caliber.storage.group import GroupWriter, Request, copy_for
from caliber.storage.plan import Plan, RelationPlans
from caliber.storage.protocol import Follower
from caliber.storage.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")


class SqliteWriter(GroupWriter):
    """Runs pieces of work in write transactions, one transaction at a time."""

    def __init__(
        self,
        connection: SqliteConnection,
        plans: dict[str, RelationPlans],
        statements: dict[str, Plan],
        *,
        durability: Durability,
        keep_content: bool,
        group_max_batch: int,
        group_wait_us: int,
        busy_timeout_ms: int,
        clock_us: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._plans = plans
        self._statements = statements
        super().__init__(grouped=durability is Durability.GROUP, max_batch=group_max_batch, wait_us=group_wait_us)
        self._keep_content = keep_content
        self._busy_timeout_ms = busy_timeout_ms
        self._clock_us = clock_us
        self.follower: Follower | None = None
        self.full_text = FullTextWriter()
        self.identity = os.urandom(16)
        self.commits = 0

    def _check_usable(self) -> None:
        if self._connection.closed:
            raise Unavailable("the store was closed; open it again", reason="closed", retryable=False)

    def bulk(self, work: Callable[[SqliteConnection, Callable[[Sequence[RowChange]], object]], T]) -> T:
        """Run ``work`` in a transaction of its own; it gets what writes a change record, and holds no rows itself.

        Memory follows afterwards, as it follows other processes: rows of a load are too many to be handed over.
        """
        with self._lock:
            connection = self._connection
            if connection.closed:
                raise Unavailable("the store was closed; open it again", reason="closed", retryable=False)
            try:
                connection.command("BEGIN IMMEDIATE")
                result = work(connection, self._record_of_load)
                connection.command("COMMIT")
            except BaseException:
                self._give_back()
                raise
            self.commits += 1
            if self.follower is not None:
                self._catch_up(self.follower)
        return result

    def _record_of_load(self, changes: Sequence[RowChange]) -> None:
        self.full_text.written(self._connection, self._record(changes), changes)

    def _transaction(self, batch: list[Request], own: Request, deadline: float | None) -> None:
        connection = self._connection
        limited = deadline is not None
        begun = False
        try:
            if limited:
                left = max(1, int((deadline - time.monotonic()) * 1000))  # type: ignore[operator]
                connection.raw.set_busy_timeout(min(self._busy_timeout_ms, left))
            connection.command("BEGIN IMMEDIATE")
            begun = True
            succeeded = self._work(batch)
            changes = [change for request in succeeded if request.unit for change in request.unit.changes]
            sequence = self._record(changes)
            if sequence:
                self.full_text.written(connection, sequence, changes)
            connection.command("COMMIT")
        except BaseException as error:
            self._give_back()
            if limited and not begun:
                # Our hurry is nobody else's: they go back in line, in their order.
                self._waiting.extendleft(request for request in reversed(batch) if request is not own)
                batch = [own]
            for request in batch:
                request.done = True
                request.error = request.error or (error if request is own else copy_for(error))
            self._after_conflicts(batch)
            if not isinstance(error, CaliberError):
                raise
            return
        finally:
            if limited:
                connection.raw.set_busy_timeout(self._busy_timeout_ms)
        self.commits += 1
        for request in batch:
            request.done = True
        if self.follower is not None:
            # A gap before our number, or no number at all: others may have committed, and a write sees their news.
            if sequence != self.follower.sequence + 1:
                self._catch_up(self.follower)
            if sequence:
                self.follower.committed(sequence, changes)
        for request in succeeded:
            assert request.unit is not None
            for after in request.unit.on_commit:
                after()

    def _after_conflicts(self, batch: list[Request]) -> None:
        """Who lost against another process has its news before trying again."""
        if self.follower is not None and any(isinstance(request.error, Conflict) for request in batch):
            self._catch_up(self.follower)

    def _catch_up(self, follower: Follower) -> None:
        """Follow what other processes committed before our commit: the gap before its number shows that they did.

        In a transaction of its own: inside ours the follower would also see our rows, which may still be rolled back.
        """
        try:
            self._connection.command("BEGIN")
            follower.follow(self._connection)
        except Exception as error:
            follower.lost(error)  # our own commit stands, whatever became of following the others
        finally:
            self._roll_back()

    def _work(self, batch: list[Request]) -> list[Request]:
        """Run each request; return those whose changes stand."""
        connection = self._connection
        if len(batch) == 1:
            request = batch[0]
            unit = self._unit()
            request.result = request.work(unit)
            request.unit = unit
            return batch
        succeeded = []
        for request in batch:
            connection.command("SAVEPOINT work")
            unit = self._unit()
            try:
                request.result = request.work(unit)
            except Exception as error:
                if not connection.in_transaction:
                    raise  # SQLite itself gave up the whole transaction (disk full, I/O): nobody's work stands
                connection.command("ROLLBACK TO work")
                connection.command("RELEASE work")
                request.error = error
                continue
            connection.command("RELEASE work")
            request.unit = unit
            succeeded.append(request)
        return succeeded

    def _unit(self) -> UnitOfWork:
        return UnitOfWork(self._connection, self._plans, self._statements, self._clock_us(), self._keep_content)

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
        """Undo what a transaction wrote. Another process may get the number of its change record now."""
        self.full_text.forget()
        self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.command("ROLLBACK")
