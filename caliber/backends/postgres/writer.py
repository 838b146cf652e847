"""Write transactions: as many at once as there are connections, each retried when it lost a race.

A transaction is READ COMMITTED. What protects it are versions (a conditional update that finds another version starts
the work again), unique rules, row locks, and ``UnitOfWork.serialize`` where a rule is about rows that do not exist.

Followers hear of our commits in an order in which they can have depended on each other: a number is taken right before
COMMIT is sent, and whoever depends on a transaction can only have taken its own after that COMMIT was done.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from caliber.backends.postgres.connection import BEGIN, PgConnection, simple
from caliber.backends.postgres.errors import is_tried_once, may_pass
from caliber.backends.postgres.feed import SnapshotFeed
from caliber.backends.postgres.full_text import FullTextWriter
from caliber.backends.postgres.lent import LentPool
from caliber.backends.postgres.pool import Pool
from caliber.model.enums import Durability
from caliber.model.errors import CaliberError, Conflict, TransactionFailed, Unavailable
from caliber.storage.changes import pack_changes
from caliber.storage.group import GroupWriter, Request, copy_for
from caliber.storage.plan import Plan, RelationPlans
from caliber.storage.protocol import Follower
from caliber.storage.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")

_OUTCOME_WAIT_S: Final = 10.0
"""How long the outcome of a COMMIT that was cut off is asked for: a server takes about as long to restart."""
UNKNOWN_OUTCOME: Final = (
    "the connection broke while a transaction was being committed, and the server cannot be asked whether it was: look"
    " before you write it again, or write with an idempotency_key"
)
_BACKOFF_S: Final = 0.002
_LEAST_MS: Final = 50
"""What a statement may take even if the deadline is now: it bounds waiting, and what waits for nobody may finish."""


def _waiting_for_rows(work: Callable[[UnitOfWork], T]) -> Callable[[UnitOfWork], T]:
    """Return work that was overtaken once, and now keeps others from changing what it reads."""

    def again(uow: UnitOfWork) -> T:
        uow.lock_reads()
        return work(uow)

    return again


class Turns:
    """Lets threads go on in the order in which they took a number."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = 0
        self._serving = 0
        self._gone: set[int] = set()

    def take(self) -> int:
        with self._condition:
            number = self._next
            self._next += 1
            return number

    def wait(self, number: int) -> None:
        with self._condition:
            while self._serving != number:
                self._condition.wait()

    def leave(self, number: int) -> None:
        """Let the next one go on; a number may also be given back out of turn."""
        with self._condition:
            self._gone.add(number)
            while self._serving in self._gone:
                self._gone.remove(self._serving)
                self._serving += 1
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a transaction, in milliseconds; 0 is no limit."""

    statement_timeout_ms: int
    lock_timeout_ms: int

    def within(self, deadline: float | None) -> tuple[str, str]:
        """Return both limits as PostgreSQL takes them, no longer than what is left until ``deadline``."""
        if deadline is None:
            return str(self.statement_timeout_ms), str(self.lock_timeout_ms)
        left = max(1, int((deadline - time.monotonic()) * 1_000))
        running = max(left, _LEAST_MS)
        return str(min(self.statement_timeout_ms or running, running)), str(min(self.lock_timeout_ms or left, left))


class PostgresWriter(GroupWriter):
    """Runs pieces of work in write transactions."""

    def __init__(
        self,
        pool: Pool | LentPool,
        plans: dict[str, RelationPlans],
        statements: dict[str, Plan],
        own: dict[str, Plan],
        feed: SnapshotFeed,
        *,
        identity: bytes,
        limits: Limits,
        retries: int,
        durability: Durability,
        group_max_batch: int,
        group_wait_us: int,
        keep_content: bool,
        catch_up: Callable[[], None],
        clock_us: Callable[[], int],
        full_text: FullTextWriter,
    ) -> None:
        super().__init__(grouped=durability is Durability.GROUP, max_batch=group_max_batch, wait_us=group_wait_us)
        self._pool = pool
        self._plans = plans
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
        self._turns = Turns()
        self._random = random.Random(os.urandom(8))  # noqa: S311  (spreads retries; no secret)
        self.follower: Follower | None = None
        self.commits = 0
        self.retried = 0

    def write(self, work: Callable[[UnitOfWork], T], *, deadline_ms: int | None = None) -> T:
        deadline = None if deadline_ms is None else time.monotonic() + deadline_ms / 1_000
        attempt = 0
        doing = work
        while True:
            try:
                return self._write_once(doing, deadline, deadline_ms)
            except CaliberError as error:
                most = min(1, self._retries) if is_tried_once(error) else self._retries
                late = deadline is not None and time.monotonic() >= deadline
                if not may_pass(error) or attempt >= most or late:
                    if isinstance(error, Conflict):
                        self.hear_of_others()  # who lost has the winner's news before trying again
                    raise
            attempt += 1
            self.retried += 1
            time.sleep(_BACKOFF_S * attempt * self._random.random())
            doing = _waiting_for_rows(work)

    def _write_once(self, work: Callable[[UnitOfWork], T], deadline: float | None, deadline_ms: int | None) -> T:
        if self._grouped:
            if deadline is not None:
                deadline_ms = max(0, int((deadline - time.monotonic()) * 1_000))
            return super().write(work, deadline_ms=deadline_ms)
        request = Request(work)
        self._transaction([request], request, deadline)
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[no-any-return]

    def _check_usable(self) -> None:
        self._pool.check_open()

    def _transaction(self, batch: list[Request], own: Request, deadline: float | None) -> None:
        try:
            others = self._run(batch, deadline) if len(batch) == 1 else self._together(batch)
        except BaseException as error:
            for request in batch:
                if not request.done:
                    request.done = True
                    request.error = error if request is own else copy_for(error)
            if not isinstance(error, CaliberError) or own.error is None:
                raise
            return
        if others or self._feed.due:
            self.hear_of_others()
        for request in batch:
            if request.error is None and request.unit is not None:
                for after in request.unit.on_commit:
                    after()

    def _together(self, batch: list[Request]) -> bool:
        """Run a batch in one transaction, or each request in its own when one of them fails."""
        try:
            return self._run(batch, None)  # one's hurry is not its companions'
        except Exception as error:
            if batch[0].done or error.args[:1] == (UNKNOWN_OUTCOME,):
                raise  # it stands, or may
        others = False
        for request in batch:
            request.result = None
            try:
                others |= self._run([request], None)
            except Exception as error:
                request.done = True
                request.error = error
        return others

    def _run(self, batch: list[Request], deadline: float | None) -> bool:
        """Run a batch in one transaction; return whether others wrote meanwhile."""
        ticket: int | None = None
        others = False
        try:
            with self._pool.connection(deadline=deadline) as connection:
                connection.open(BEGIN, self._own["session.write"], self._limits.within(deadline), deadline)
                changes = self._work(connection, batch)
                if connection.opened:
                    self.full_text.written(connection, connection.opened[4], changes)
                sequence, xid = 0, connection.begun
                if xid is not None:  # something was asked of the database
                    ticket = self._turns.take()
                    sequence, others = self._commit(connection, xid, changes)
            self.commits += 1
            for request in batch:
                request.done = True
            if ticket is not None and xid is not None:
                self._publish(ticket, sequence, xid, changes)
        finally:
            if ticket is not None:
                self._turns.leave(ticket)
        return others

    def _work(self, connection: PgConnection, batch: list[Request]) -> list[RowChange]:
        """Run each request; return what they changed."""
        changes: list[RowChange] = []
        for request in batch:
            request.unit = self._unit(connection)
            request.result = request.work(request.unit)
            changes += request.unit.changes
        if connection.begun is None and connection.waits:
            connection.flush()  # so that the transaction's number is known before its COMMIT is sent
        return changes

    def _unit(self, connection: PgConnection) -> UnitOfWork:
        now_us = self._clock_us()
        return UnitOfWork(connection, self._plans, self._statements, now_us, self._keep_content, self._clock_us)

    def _commit(self, connection: PgConnection, xid: int, changes: list[RowChange]) -> tuple[int, bool]:
        """Record the changes, ask whether others wrote meanwhile, and commit: one round trip."""
        insert, foreign = self._statements["change.insert"], self._own["feed.foreign"]
        question = self._feed.question() if self.follower is not None else None
        channel, notify = connection.shared.channel, self._own["feed.notify"]
        connection.know(insert, foreign, *(() if channel is None else (notify,)))
        commands = []
        if changes:
            commands += connection.commands(insert, (self._identity, self._packed(changes), self._clock_us()))
        at_insert = len(commands) - 1
        if changes and channel is not None:
            commands += connection.commands(notify, (channel, self._identity.hex()))
        if question is not None:
            commands += connection.commands(foreign, question)
        at_foreign = len(commands) - 1
        commands.append(simple("COMMIT"))
        try:
            results = connection.exchange(*commands)
        except Unavailable as error:
            if not connection.broken:
                raise
            self._cut_off(xid, error)
            return 0, True  # its position is not known: memory learns of it as of anybody else's commit
        if results[-1].command_status != b"COMMIT":
            raise TransactionFailed(reason="the server rolled it back", retryable=True)
        others = question is not None and bool(connection.rows(foreign, results[at_foreign])[0][0])
        if not changes:
            return 0, others
        sequence: int = connection.rows(insert, results[at_insert])[0][0]
        return sequence, others

    def _cut_off(self, xid: int, error: Unavailable) -> None:
        """Find out what became of a COMMIT whose answer never came. Raises: ``error`` when nothing was written."""
        self._feed.distrust()  # whatever it is, memory has not heard of it
        until = time.monotonic() + _OUTCOME_WAIT_S
        while time.monotonic() < until:
            try:
                with self._pool.extra() as connection:
                    status = connection.run(self._own["session.outcome"], (str(xid),))[0][0]
            except Unavailable:
                status = "unknown"
            if status == "aborted":
                raise error
            if status == "committed":
                return
            time.sleep(0.05)
        raise Unavailable(UNKNOWN_OUTCOME, reason="outcome unknown") from error

    def _packed(self, changes: list[RowChange]) -> bytes:
        return pack_changes(
            [
                (relation.code, operation, row[0], row[self._plans[relation.name].codec.version_place])
                for relation, operation, row in changes
            ]
        )

    def _publish(self, ticket: int, sequence: int, xid: int, changes: list[RowChange]) -> None:
        if self.follower is None or not sequence:
            return
        self._turns.wait(ticket)
        self._feed.claim(sequence, xid)
        self.follower.committed(sequence, changes)

    def hear_of_others(self) -> None:
        """Let the follower read what others, or loads of ours, have written."""
        if self.follower is None:
            return
        try:
            self._catch_up()
        except Exception as error:
            self.follower.lost(error)  # our own commit stands, whatever became of following the others
