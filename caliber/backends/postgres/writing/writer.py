"""PostgreSQL writer: runs concurrent write transactions, with group commit and a retry after a lost race.

At durability ``group`` waiting writers share a transaction, whose statements travel together.

A transaction is READ COMMITTED. It is protected by versions (a conditional update that finds another version starts the
work again), unique keys, row locks, and ``UnitOfWork.serialize`` for rules about rows that do not exist yet.
"""

from __future__ import annotations

import os
import random
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from caliber.backends.postgres.connecting.connection import BEGIN, COMMIT, Command, PgConnection
from caliber.backends.postgres.connecting.errors import is_tried_once, may_pass
from caliber.backends.postgres.connecting.external_pool import ExternalPool
from caliber.backends.postgres.connecting.pool import Pool
from caliber.backends.postgres.searching.full_text import FullTextWriter
from caliber.backends.postgres.writing.feed import SnapshotFeed
from caliber.backends.postgres.writing.notify import CommitNotifier
from caliber.backends.postgres.writing.order import UNKNOWN_OUTCOME, CommitSequencer, Ticket, was_committed
from caliber.model.deadline import at_least, deadline_passed, earliest
from caliber.model.errors import CaliberError, Conflict, TransactionFailed, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from caliber.model.storage import Durability
from caliber.schema.catalog import Catalog
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan, RelationPlans
from caliber.storage.compile.session import GRACE_S
from caliber.storage.protocol import Follower
from caliber.storage.write.changes import UPSERT, pack_changes
from caliber.storage.write.group import Batch, GroupWriter, Pipelined, Request, copy_for, result_of, started
from caliber.storage.write.unit_of_work import Query, RowChange, UnitOfWork

T = TypeVar("T")

_FOLLOWING_S: Final = GRACE_S / 2
"""Minimum time to follow others after a commit, whatever remains of the deadline."""
_BACKOFF_S: Final = 0.002
_SHARED_LOCK_MS: Final = 50
"""Row lock timeout in a shared transaction: a request that needs longer runs alone."""
_FAILED_REQUESTS_MAX: Final = 2
"""How often a shared transaction is retried without the failed request, before each request runs alone."""
_LEAST_MS: Final = 50
"""Minimum statement timeout, even past the deadline: it bounds waiting, and a statement that does not wait may finish.
"""


def _waiting_for_rows(work: Callable[[UnitOfWork], T]) -> Callable[[UnitOfWork], T]:
    """Return work that lost a race once, and now locks the rows it reads."""

    def again(uow: UnitOfWork) -> T:
        uow.lock_reads()
        return work(uow)

    return again


def _timed_out(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and error.context.get("reason") == "timeout"


class _Changes(list[RowChange]):
    """The changes of one unit of work, which are added to those of its transaction as they are made."""

    def __init__(self, together: list[RowChange]) -> None:
        super().__init__()
        self._together = together

    def append(self, change: RowChange) -> None:
        super().append(change)
        self._together.append(change)

    def extend(self, changes: Iterable[RowChange]) -> None:
        made = list(changes)
        super().extend(made)
        self._together.extend(made)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a transaction, in milliseconds; 0 is no limit."""

    statement_timeout_ms: int
    lock_timeout_ms: int

    def within(self, deadline: float | None) -> tuple[str, str]:
        """Return both limits in PostgreSQL's form, no longer than the time until ``deadline``."""
        if deadline is None:
            return str(self.statement_timeout_ms), str(self.lock_timeout_ms)
        remaining_ms = max(1, int((deadline - time.monotonic()) * 1_000))
        running = max(remaining_ms, _LEAST_MS)
        return str(min(self.statement_timeout_ms or running, running)), str(
            min(self.lock_timeout_ms or remaining_ms, remaining_ms)
        )

    def shared(self) -> tuple[str, str]:
        """Return both limits for a transaction of several writers: one's hurry is not its companions'."""
        return str(self.statement_timeout_ms), str(min(self.lock_timeout_ms or _SHARED_LOCK_MS, _SHARED_LOCK_MS))


class _Step:
    """A unit of work that runs in steps."""

    def __init__(self, request: Request, unit: UnitOfWork, steps: Pipelined[Any]) -> None:
        self.request = request
        self.unit = unit
        self._steps = steps

    def resume(self, rows: list[list[Row]] | None) -> tuple[Query, ...] | None:
        """Return the next queries, or None at the end."""
        try:
            return next(self._steps) if rows is None else self._steps.send(rows)
        except StopIteration as end:
            self.request.result = end.value
            return None


class PostgresWriter(GroupWriter):
    """Runs pieces of work in write transactions."""

    _may_fall_silent = True

    def __init__(
        self,
        pool: Pool | ExternalPool,
        plans: dict[str, RelationPlans],
        statements: dict[str, Plan],
        own: dict[str, Plan],
        feed: SnapshotFeed,
        catalog: Catalog,
        *,
        identity: bytes,
        limits: Limits,
        retries: int,
        durability: Durability,
        keep_content: bool,
        catch_up: Callable[[], None],
        clock_us: Callable[[], int],
        full_text: FullTextWriter,
        notifier: CommitNotifier | None,
    ) -> None:
        super().__init__(grouped=durability is Durability.GROUP)
        self._pool = pool
        self._plans = plans
        self._catalog = catalog
        self._statements = statements
        self._own = own
        self._feed = feed
        self._identity = identity
        self._limits = limits
        self._retries = retries
        self._keep_content = keep_content
        self._catch_up = catch_up
        self._clock_us = clock_us
        self.full_text = full_text
        self._notifier = notifier
        self._order = CommitSequencer()
        self._random = random.Random(os.urandom(8))  # noqa: S311  (spreads retries; no secret)
        self.follower: Follower | None = None
        self.commits = 0
        self.retried = 0

    def write(self, work: Callable[[UnitOfWork], T], *, exclusive: bool = False) -> T:
        deadline = earliest(None)
        attempt = 0
        doing = work
        while True:
            try:
                if self._grouped and not exclusive and not attempt:
                    return super().write(doing)
                request = Request(doing, deadline=deadline)
                self.write_alone(request, deadline)
                return result_of(request)  # type: ignore[no-any-return]
            except CaliberError as error:
                most = min(1, self._retries) if is_tried_once(error) else self._retries
                late = deadline is not None and time.monotonic() >= deadline
                if not may_pass(error) or attempt >= most or late:
                    if isinstance(error, Conflict):
                        self.apply_foreign_changes()  # a loser gets the winner's changes before its retry
                    raise
            attempt += 1
            self.retried += 1
            time.sleep(_BACKOFF_S * attempt * self._random.random())
            doing = _waiting_for_rows(work)

    def _check_usable(self) -> None:
        self._pool.check_open()

    def write_alone(self, request: Request, deadline: float | None) -> None:
        """Run a request beside the line."""
        self._check_usable()
        self._transaction(Batch(request), request, deadline)

    def _transaction(self, batch: Batch, request: Request, deadline: float | None) -> None:
        try:
            try:
                others = self._run(batch, deadline) if len(batch.requests) == 1 else self._together(batch, deadline)
                if others or self._feed.due:
                    self.apply_foreign_changes()
            except BaseException as error:
                if batch.ending and not isinstance(error, CaliberError):
                    self._doubt(error)
                self._failed(batch, request, error)
        except BaseException as error:  # one more interrupt
            if batch.ending:
                self._doubt(error)
            raise

    def _doubt(self, error: BaseException) -> None:
        """Make memory reload: a transaction of ours may be committed without its knowledge."""
        self._feed.must_reload = True
        if self.follower is not None:
            self.follower.missed(error)

    def _failed(self, batch: Batch, leader: Request, error: BaseException) -> None:
        """Record the outcome of each request; a request without one took no part and goes back in line."""
        unknown = error.args[:1] == (UNKNOWN_OUTCOME,)
        if batch.committed or unknown:
            for request in batch.trying:
                if unknown and request is not leader:
                    request.error = copy_for(error)
                    request.cut = batch.cut
                request.done = True
            cause = error.__cause__ if unknown else None
            # An interrupt concerns its own thread; the requests that shared the transaction get its outcome instead.
            leader.error = error if cause is None or isinstance(cause, CaliberError) else cause
        elif len(batch.requests) == 1:
            leader.error = error
            leader.done = True
        elif batch.ending and not isinstance(error, CaliberError):
            # The outcome of the COMMIT is unknown: the requests that shared it must not run again.
            for request in batch.trying:
                request.error = Unavailable(UNKNOWN_OUTCOME, reason="outcome unknown")
                request.done = True
            leader.error = error
        else:
            if not isinstance(error, CaliberError) and batch.at in (None, leader):
                leader.error = error  # of the thread, and not of anybody's work
                leader.done = True
            for request in batch.trying:
                if _timed_out(error) and request.late:
                    request.error = error if request is leader else copy_for(error)
                    request.done = True
                request.alone = not request.done

    def _together(self, batch: Batch, deadline: float | None) -> bool:
        """Run a batch in one transaction; a request that fails there runs alone, where it fails no other."""
        for _ in range(_FAILED_REQUESTS_MAX):
            try:
                return self._run(batch, deadline)
            except Exception as error:
                failed_request = batch.at
                if batch.committed or batch.silent or failed_request is None or error.args[:1] == (UNKNOWN_OUTCOME,):
                    raise
                failed_request.alone = True
                batch.trying = [request for request in batch.trying if request is not failed_request]
            if not batch.trying:
                return False
        return self._run(batch, deadline)

    def _run(self, batch: Batch, deadline: float | None) -> bool:
        """Run a batch in one transaction; return whether others wrote meanwhile."""
        ticket = Ticket()
        interrupt: BaseException | None = None
        others = False
        alone = batch.trying[0] if len(batch.trying) == 1 else None
        limits = self._limits.shared() if alone is None else self._limits.within(alone.deadline)
        batch.ending = False
        try:
            with self._pool.connection(deadline=deadline) as connection:
                try:
                    connection.open(BEGIN, self._own["session.write"], limits)
                    changes = self._work(connection, batch)
                    if connection.opened:
                        self.full_text.written(connection, connection.opened[4], changes)
                    sequence, xid = 0, connection.begun
                    if xid is not None:  # something was asked of the database
                        messages = self._messages(batch, bool(changes))
                        self._order.take(ticket)
                        record = (self._identity, self._packed(changes), self._clock_us()) if changes else None
                        try:
                            batch.ending = True
                            sequence, others = self._commit(connection, record, messages)
                        except CaliberError as error:
                            if not (isinstance(error, Unavailable) and connection.broken):
                                batch.ending = False
                                raise
                            self._cut_off(batch, xid, record, error)
                            others = True  # its position is not known: memory learns of it as of anybody else's
                        except BaseException as error:
                            # Perhaps before the COMMIT was sent: an open transaction ends with its connection.
                            connection.close()
                            self._cut_off(batch, xid, record, error)
                            interrupt, others = error, True
                    batch.committed = True
                except Exception:
                    batch.at = connection.failed or batch.at
                    batch.silent = connection.silent
                    raise
            self.commits += 1
            if xid is not None:
                self._publish(ticket, sequence, xid, changes)
            for request in batch.trying:
                request.done = True
        finally:
            try:
                self._order.leave(ticket)
            except BaseException:
                start_new_thread(self._order.leave, (ticket,))  # in another thread no handler runs
                raise
        if interrupt is not None:
            raise interrupt
        return others

    def _work(self, connection: PgConnection, batch: Batch) -> list[RowChange]:
        """Run each request; return their changes in order: of a row the last state counts."""
        going: list[_Step] = []
        changes: list[RowChange] = []
        for request in batch.trying:
            batch.at = connection.owner = request
            request.unit = self._unit(connection)
            request.unit.changes = _Changes(changes)
            request.result = request.work(request.unit)
            steps = started(request.result)
            if steps is not None:
                going.append(_Step(request, request.unit, steps))
        answers: list[list[list[Row]] | None] = [None] * len(going)
        while going:
            asked = []
            for each, rows in zip(going, answers, strict=True):
                batch.at = connection.owner = each.request
                asked.append(each.resume(rows))
            batch.at = None
            going = [each for each, asks in zip(going, asked, strict=True) if asks is not None]
            answers = self._ask(connection, going, [asks for asks in asked if asks is not None])
        if connection.begun is None and (connection.waits or self._messages(batch, False)):
            connection.flush()  # so that the transaction's number is known before its COMMIT is sent
        batch.at = connection.owner = None
        return changes

    def _ask(
        self, connection: PgConnection, going: list[_Step], asked: list[tuple[Query, ...]]
    ) -> list[list[list[Row]] | None]:
        """Send the statements of a step for all requests in one go; return the rows of each.

        The first statement of each comes first, ordered by key: other transactions lock these rows in the same order.
        """
        if not going:
            return []
        answers: list[Any] = [[None] * len(asks) for asks in asked]
        places = sorted((place, ask.key, at) for at, asks in enumerate(asked) for place, ask in enumerate(asks))
        commands: list[Command] = []
        ends = []
        for place, _, at in places:
            ask = asked[at][place]
            plan = self._statements[ask.statement]
            connection.know(plan)
            connection.owner = going[at].request
            commands += connection.commands(plan, ask.parameters)
            connection.shared.counter.add()
            ends.append(len(commands) - 1)
        results = connection.exchange(*commands)
        for (place, _, at), end in zip(places, ends, strict=True):
            ask = asked[at][place]
            rows = connection.rows(self._statements[ask.statement], results[end])
            going[at].unit.changes.extend(RowChange(ask.relation, UPSERT, row) for row in rows)
            answers[at][place] = rows
        return answers

    def _unit(self, connection: PgConnection) -> UnitOfWork:
        now_us = self._clock_us()
        return UnitOfWork(
            connection, self._plans, self._statements, now_us, self._keep_content, self._catalog, self._clock_us
        )

    def _messages(self, batch: Batch, changed: bool) -> tuple[str, str] | None:
        """Return the notifications of a batch for its commit, if there may be listeners."""
        if self._notifier is None:
            return None
        units = [request.unit for request in batch.trying if request.unit is not None]
        events = [event for unit in units for event in (*unit.events, *unit.logged)]
        return self._notifier.messages(events) if changed or events else None

    def _commit(
        self, connection: PgConnection, record: tuple[Any, ...] | None, messages: tuple[str, str] | None
    ) -> tuple[int, bool]:
        """Write the change record, notify, check for other writers, and commit: one round trip."""
        insert, foreign = self._statements["change.insert"], self._own["feed.foreign"]
        question = self._feed.question() if self.follower is not None else None
        notify = self._own["feed.notify"]
        connection.know(insert, foreign, *(() if messages is None else (notify,)))
        commands = []
        if record is not None:
            commands += connection.commands(insert, record)
        at_insert = len(commands) - 1
        if messages is not None:
            commands += connection.commands(notify, messages)
        if question is not None:
            commands += connection.commands(foreign, question)
        at_foreign = len(commands) - 1
        commands.append(COMMIT)
        results = connection.exchange(*commands)
        if results[-1].command_status != b"COMMIT":
            raise TransactionFailed(reason="the server rolled it back", retryable=True)
        others = question is not None and bool(connection.rows(foreign, results[at_foreign])[0][0])
        if record is None:
            return 0, others
        sequence: int = connection.rows(insert, results[at_insert])[0][0]
        return sequence, others

    def _cut_off(self, batch: Batch, xid: int, record: tuple[Any, ...] | None, error: BaseException) -> None:
        """Determine the outcome of a COMMIT whose answer never came. Raises: ``error`` if nothing was written."""
        self._feed.must_reload = True  # whatever the outcome, memory has not got it
        stands = was_committed(self._pool, self._own, xid, record)
        if stands:
            return
        if stands is False:
            batch.ending = False  # it is known: the requests may run again
            raise error
        batch.cut = (xid, record, error)
        raise Unavailable(UNKNOWN_OUTCOME, reason="outcome unknown") from error

    def _look_up(self, request: Request) -> None:
        xid, record, error = request.cut
        stands = was_committed(self._pool, self._own, xid, record)
        if stands is not None:
            request.error = None if stands else copy_for(error)

    def _packed(self, changes: list[RowChange]) -> bytes:
        return pack_changes(
            [
                (relation.code, operation, row[0], row[self._plans[relation.name].codec.version_place])
                for relation, operation, row in changes
            ]
        )

    def _publish(self, ticket: Ticket, sequence: int, xid: int, changes: list[RowChange]) -> None:
        if self.follower is None:
            return
        try:
            if not self._order.wait(ticket, earliest(None)):
                # A COMMIT that was sent before ours is not answered: ours stands, and memory reads it with all else.
                raise deadline_passed("memory waited for a commit that was sent before")
            if not sequence:
                return  # nothing of ours; and memory has what it saw of other threads' commits
            self._feed.claim(sequence, xid)
            self.follower.committed(sequence, changes)
        except BaseException as error:
            self.follower.missed(error)  # it is committed, and memory may not have it
            if not _timed_out(error):  # by a server that is silent to another process
                raise

    def apply_foreign_changes(self) -> None:
        """Let the follower apply commits of others, and loads of ours."""
        if self.follower is None:
            return
        try:
            with at_least(_FOLLOWING_S):  # the deadline may be over, and the server answers: it is soon read
                self._catch_up()
        except Exception as error:
            let_through(error)
            self.follower.lost(error)  # our own commit is done, whether or not following the others succeeded
