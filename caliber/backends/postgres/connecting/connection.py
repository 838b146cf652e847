"""PostgreSQL connection that runs prepared plans in the binary protocol, several statements per round trip.

psycopg opens and closes the connection; statements go through libpq's own calls (``psycopg.pq``), where a plan is its
prepared name and its parameters are bytes already. Commands whose answer is not needed yet wait in a queue and travel
with the next one: a transaction's BEGIN and limits cost no round trip of their own.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from caliber.backends.postgres.connecting.cancelling import cancel_soon
from caliber.backends.postgres.connecting.errors import (
    has_gone,
    is_stale_plan,
    is_taken,
    lost,
    statement_error,
    translate,
)
from caliber.backends.postgres.connecting.ordinals import Ordinals
from caliber.backends.postgres.connecting.wire import Binding, Value, prepared_name
from caliber.model.errors import InternalError, StorageError, Unavailable
from caliber.schema.relations import BY_NAME
from caliber.schema.relations.storage import TABLE_PREFIX
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import GRACE_S, Counter
from caliber.storage.migrate.migrations import check_needed

BINARY: Final = 1
BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Sent each time: a database or a role may have another level as its default."""
_QUEUE_MAX: Final = 256
"""Most commands that may be queued: queued data is in memory twice."""
PASSING_MAX: Final = 1_024
"""Cache size for the types of ad-hoc statements."""
_LONGEST_WAIT_MS: Final = 2**31 - 1
_READ, _WRITE = 1, 2


CONNECT_TIMEOUT_MS: Final = 5_000
"""Longest time to connect, and longest silence of a server that was asked for something that takes none."""
known_bindings: dict[tuple[int, str], Binding] = {}
"""How statements' values travel, for all stores of this process."""


@dataclass(slots=True)
class Shared:
    """The common state of all connections of one store."""

    store: str
    """The store's name in messages; never a DSN."""
    dsn: str
    prefix: bytes
    """Prefix of this store's prepared names: a pool in front of the server may share connections."""
    prepared_max: int
    """Most statements that a connection prepares, each when it is first used; any more are planned at each use."""
    qualifier: str
    """Prefix of this store's table names."""
    setting: str = "storage.dsn"
    """The knob that names the DSN."""
    channel: str | None = None
    """The channel on which commits are notified (NOTIFY), if enabled."""
    vector_oid: int = 0
    vector_version: tuple[int, ...] = (0, 0)
    ordinals: Ordinals = field(default_factory=Ordinals)
    counter: Counter = field(default_factory=Counter)
    bindings: dict[str, Binding] = field(default_factory=dict)
    passing: dict[str, Binding] = field(default_factory=dict)
    """Cache of plans for ad-hoc statements, limited to those likely to be used again."""


class Command(NamedTuple):
    """One thing to send: ``kind`` is a method of libpq's connection."""

    kind: str
    arguments: tuple[Any, ...]
    owner: Any = None
    """The request it belongs to, where several share a transaction."""


class PgConnection:
    """A connection that runs plans and speaks our errors. Not for several threads at once."""

    def __init__(self, raw: psycopg.Connection[Any], shared: Shared) -> None:
        self.raw = raw
        self.pg = raw.pgconn
        self.shared = shared
        self.prepared: set[bytes] = set()
        self._preparing: set[bytes] = set()
        """Names whose preparing waits to be sent."""
        self._queue: list[Command] = []
        self._opening: Plan | None = None
        self._opening_at = 0
        self._poll: Any = None
        self.begun: int | None = None
        """The number of the transaction under way, once its first statement has run; -1 if it has none."""
        self.opened: Row = ()
        """The results of the statements that began the current transaction."""
        self.deadline: float | None = None
        """When, on the monotonic clock, the user of the connection stops waiting for an answer."""
        self.silence_ms: int | None = None
        """The longest silence of the server without a deadline; None: no limit."""
        self.silent = False
        """Whether it was given up because no answer came."""
        self._heard = 0.0
        """When data was last sent or received."""
        self.owner: Any = None
        """The request whose statements are being sent."""
        self.failed: Any = None
        """Whose statement failed in the transaction under way."""
        self.work()

    # --- running plans ---------------------------------------------------------------------------

    def run(self, plan: Plan, parameters: Sequence[Any]) -> list[Row]:
        """Run a plan and return all its rows."""
        self.shared.counter.add()
        binding = self._know(plan)
        result = self.exchange(*self._commands(plan, parameters, binding))[-1]
        return binding.decode(result.get_value, result.ntuples)

    def run_all(self, asked: Sequence[tuple[Plan, Sequence[Any]]]) -> list[list[Row]]:
        """Run plans one after the other, in one round trip, and return the rows of each."""
        self.know(*(plan for plan, _ in asked))
        commands: list[Command] = []
        ends = []
        for plan, parameters in asked:
            self.shared.counter.add()
            commands += self.commands(plan, parameters)
            ends.append(len(commands) - 1)
        results = self.exchange(*commands)
        return [self.rows(plan, results[end]) for (plan, _), end in zip(asked, ends, strict=True)]

    def run_many(self, plan: Plan, parameters: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a plan once for each of several parameters, in few round trips, and return the rows of all."""
        parts = (parameters[at : at + _QUEUE_MAX] for at in range(0, len(parameters), _QUEUE_MAX))
        return [row for part in parts for rows in self.run_all([(plan, each) for each in part]) for row in rows]

    def insert(self, plan: Plan, row: Row) -> list[Row]:
        """Insert a row with the next statement, under an ordinal that was reserved for it."""
        self._know(plan)
        if not plan.results:
            self._later(plan, row)
            return []
        ordinal = row[0] if row[0] is not None else self.shared.ordinals.take(self, plan.name.partition(".")[0])
        self._later(plan, (ordinal, *row[1:]))
        return [(ordinal,)]

    def later(self, plan: Plan, parameters: Sequence[Any]) -> None:
        """Queue a plan without result, to be sent with the next statement, which raises its error."""
        self._know(plan)
        self._later(plan, parameters)

    def _later(self, plan: Plan, row: Sequence[Any]) -> None:
        self.shared.counter.add()
        self._queue += self.commands(plan, row)
        if len(self._queue) > _QUEUE_MAX:
            self.flush()

    def flush(self) -> None:
        """Send the queued commands now. Raises: the error of the first command that failed."""
        if self._queue:
            self.exchange()

    @property
    def waits(self) -> bool:
        """True if statements, other than BEGIN, are still to be sent."""
        return len(self._queue) > (self._opening_at + 1 if self._opening is not None else 0)

    def changed(self, plan: Plan, parameters: Sequence[Any]) -> int:
        """Run a plan and return how many rows it changed."""
        return int(self._run(plan, parameters).command_tuples or 0)

    def _run(self, plan: Plan, parameters: Sequence[Any]) -> PGresult:
        self.shared.counter.add()
        self._know(plan)
        return self.exchange(*self.commands(plan, parameters))[-1]

    def commands(self, plan: Plan, parameters: Sequence[Any]) -> list[Command]:
        """Return the commands that run a plan known through ``know``."""
        return self._commands(plan, parameters, self.shared.bindings[plan.name])

    def _commands(self, plan: Plan, parameters: Sequence[Any], binding: Binding) -> list[Command]:
        values: list[Value] = binding.encode(parameters)
        formats = [BINARY] * len(values)
        name = self._name_of(plan)
        if not name:
            return [Command("send_query_params", (plan.sql.encode(), values, None, formats, BINARY), self.owner)]
        out = []
        if name not in self.prepared and name not in self._preparing:
            self._preparing.add(name)
            out.append(Command("send_prepare", (name, plan.sql.encode())))
        out.append(Command("send_query_prepared", (name, values, formats, BINARY), self.owner))
        return out

    def _name_of(self, plan: Plan) -> bytes:
        """Return the name under which a plan is prepared here, or is to be; empty for one that is not."""
        if not plan.is_kept:
            return b""
        name = prepared_name(self.shared.prefix, plan.name)
        if name in self.prepared or name in self._preparing:
            return name
        return name if len(self.prepared) + len(self._preparing) < self.shared.prepared_max else b""

    def rows(self, plan: Plan, result: PGresult) -> list[Row]:
        """Return the rows of a result that ``exchange`` gave for ``plan``."""
        return self.shared.bindings[plan.name].decode(result.get_value, result.ntuples)

    def know(self, *plans: Plan) -> None:
        """Ask the server for the types of plans that no connection has used yet."""
        for plan in plans:
            self._know(plan)

    def _know(self, plan: Plan) -> Binding:
        """Return how a plan's values travel, asked of the server once; a plan that is not kept may be asked again."""
        if not plan.is_kept:
            shared_plan = self.shared.passing.get(plan.name)
            if shared_plan is None:
                shared_plan = self._described(plan, b"")
                if len(self.shared.passing) >= PASSING_MAX:
                    self.shared.passing.clear()
                self.shared.passing[plan.name] = shared_plan
            return shared_plan
        if plan.name in self.shared.bindings:
            return self.shared.bindings[plan.name]
        # Statements of two tenants differ in nothing but the schema's name, and take and give the same types: but for
        # those of memories that they declare, of one name and with fields of one name, each with its own types.
        qualifier = self.shared.qualifier
        common = (self.shared.vector_oid, plan.sql.replace(qualifier, "").replace(f"'{qualifier[1:-2]}/", "'/"))
        shared = plan.name.partition(".")[0] in BY_NAME or not plan.name.startswith(TABLE_PREFIX)
        if shared and common in known_bindings:
            self.shared.bindings[plan.name] = known_bindings[common]
            return known_bindings[common]
        self.shared.bindings[plan.name] = binding = self._described(plan, self._name_of(plan))
        if shared:
            known_bindings[common] = binding
        return binding

    def _described(self, plan: Plan, name: bytes) -> Binding:
        commands = [Command("send_describe_prepared", (name,))]
        if name not in self.prepared:  # it is when its transaction was refused after the server had prepared it
            commands.insert(0, Command("send_prepare", (name, plan.sql.encode())))
        *_, found = self.exchange(*commands)
        binding = Binding(
            plan.name,
            [found.param_type(at) for at in range(found.nparams)],
            [found.ftype(at) for at in range(found.nfields)],
            self.shared.vector_oid,
        )
        if found.nparams != len(plan.binds) or (plan.results and found.nfields != len(plan.results)):
            raise InternalError(f"statement {plan.name} does not take or give what its plan says")
        return binding

    # --- transactions ----------------------------------------------------------------------------

    def open(self, begin: str, opening: Plan, parameters: Sequence[Any]) -> None:
        """Let a transaction begin with the first statement, in the same round trip; ``opening`` sets its limits."""
        self._know(opening)
        self.owner = self.failed = None
        self._queue = [simple(begin), *self.commands(opening, parameters)]
        self._opening = opening
        self._opening_at = len(self._queue) - 1

    def command(self, text: str) -> list[Row]:
        """Run a statement that is not a plan (DDL, transaction control) and return its rows as text."""
        self.shared.counter.add()
        result = self.exchange(simple(text))[-1]
        decoded = range(result.ntuples)
        return [tuple(_plain(result.get_value(row, at)) for at in range(result.nfields)) for row in decoded]

    def queue(self, command: Command) -> None:
        """Send a command with the next statement."""
        self._queue.append(command)

    @property
    def in_transaction(self) -> bool:
        """True inside a transaction of the server, failed or not."""
        return self.pg.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    @property
    def broken(self) -> bool:
        """True if the connection cannot be used again: it is broken, or in the middle of a command."""
        return self.pg.status != ConnStatus.OK or self.pg.transaction_status in (
            TransactionStatus.ACTIVE,
            TransactionStatus.UNKNOWN,
        )

    def reset(self) -> None:
        """Roll back an open transaction and drop unsent commands, for the next user of the connection."""
        self._queue = []
        self._preparing.clear()
        self._opening = self.begun = self.owner = None
        self.opened = ()
        try:
            if not self.broken and self.in_transaction:
                self.silence_ms = CONNECT_TIMEOUT_MS  # it takes no time, so a silent server is gone
                self.exchange(simple("ROLLBACK"))
        finally:
            self.deadline = self.silence_ms = None

    def work(self) -> None:
        """Bring the link into the state that ``exchange`` needs."""
        self.pg.nonblocking = 1
        self.pg.enter_pipeline_mode()

    def rest(self) -> None:
        """Bring the link into the state that the driver's own calls need."""
        self.pg.exit_pipeline_mode()  # the driver's own connections are not blocking either

    @property
    def closed(self) -> bool:
        """True if the connection was closed."""
        return bool(self.raw.closed)

    def is_dead(self) -> bool:
        """Return whether the server has ended an idle connection; without a round trip."""
        try:
            while self._ready(_READ, 0):
                self.pg.consume_input()
                if self.pg.status != ConnStatus.OK or self.pg.is_busy():
                    return True
        except psycopg.Error:
            return True
        return self.pg.status != ConnStatus.OK

    def answers(self) -> bool:
        """Return whether the server answers on it soon: a round trip."""
        self.silence_ms = CONNECT_TIMEOUT_MS
        try:
            self.exchange()
        except Unavailable:
            return False
        finally:
            self.silence_ms = None
        return True

    def close(self) -> None:
        """Close the connection, whatever state it is in, without waiting."""
        with contextlib.suppress(psycopg.Error):
            self.raw.close()

    # --- the link --------------------------------------------------------------------------------

    def exchange(self, *commands: Command) -> list[PGresult]:
        """Send the queued commands and ``commands`` in one go, and return the results of ``commands``.

        Raises: the error of the first command that failed; later ones were not run then.
        """
        waiting, self._queue = self._queue, []
        self._preparing.clear()
        sent = (*waiting, *commands)
        self._heard = monotonic()
        try:
            for kind, arguments, _ in sent:
                getattr(self.pg, kind)(*arguments)
            self.pg.pipeline_sync()
            results = self._results(len(sent))
        except TypeError as error:
            # A value of another type than its column's was passed on as bytes.
            self._abandon()
            raise StorageError("a value does not fit its column", reason="type") from error
        except psycopg.Error as error:
            self._abandon()
            raise lost(self.shared.store, error) from error
        except BaseException:
            # In the middle of an answer. A COMMIT that waits for a standby would end by being cancelled, and stand here
            # without it: it is left to end by itself.
            self._abandon(cancel=COMMIT not in commands)
            raise
        for command, result in zip(sent, results, strict=True):
            if result.status == ExecStatus.FATAL_ERROR:
                self.failed = command.owner
                failed = statement_error(result)
                if has_gone(failed):
                    self.prepared.clear()
                elif is_stale_plan(failed):
                    self.close()  # the server still has the name, for a result type that changed
                elif is_taken(failed):
                    self.shared.ordinals.forget()  # a server put back to an earlier state gives them out again
                raise translate(failed, self.shared.store)
            if command.kind == "send_prepare" and command.arguments[0]:
                self.prepared.add(command.arguments[0])
        if waiting and self._opening is not None:
            self.opened = self.rows(self._opening, results[self._opening_at])[0]
            self.begun = int(self.opened[0]) if self._opening.results[0] == "xid" else -1
            self._opening = None
            check_needed(self.shared.store, self.opened[-1] or 0)  # a migration waits for us from here on
        return results[len(waiting) :]

    def _abandon(self, *, cancel: bool = True) -> None:
        if cancel and self.pg.status == ConnStatus.OK and self.pg.transaction_status == TransactionStatus.ACTIVE:
            cancel_soon(self.pg, CONNECT_TIMEOUT_MS / 1_000)
        self.close()

    def _results(self, count: int) -> list[PGresult]:
        pg = self.pg
        while pg.flush():
            if self._wait(_READ | _WRITE) & _READ:
                pg.consume_input()
        out: list[PGresult] = []
        while True:
            while pg.is_busy():
                self._wait(_READ)
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                break
            out.append(result)
        if len(out) != count:
            raise psycopg.OperationalError("the server answered in another order than it was asked")
        return out

    def _wait(self, events: int) -> int:
        until = self._until()
        if until is None:
            return self._ready(events, None)
        left_ms = (until - monotonic()) * 1_000
        found = self._ready(events, min(max(0.0, left_ms), _LONGEST_WAIT_MS))
        if not found:
            self.silent = True
            raise Unavailable(
                f"{self.shared.store} is unavailable (timeout): the server does not answer", reason="timeout"
            )
        self._heard = monotonic()
        return found

    def _until(self) -> float | None:
        """Return the instant at which a silent server counts as gone.

        Its own timeouts end with the deadline, and it takes a moment to report them. A server that still sends data is
        read to the end.
        """
        limits = []
        if self.deadline is not None:
            limits.append(max(self.deadline, self._heard) + GRACE_S)
        if self.silence_ms is not None:
            limits.append(self._heard + self.silence_ms / 1_000 + GRACE_S)
        return min(limits, default=None)

    def _ready(self, events: int, timeout_ms: float | None) -> int:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.pg.socket, select.POLLIN)
        if events & _WRITE:
            self._poll.modify(self.pg.socket, select.POLLIN | select.POLLOUT)
        found = self._poll.poll(timeout_ms)
        if events & _WRITE:
            self._poll.modify(self.pg.socket, select.POLLIN)
        if not found:
            return 0
        mask = found[0][1]
        # An error or a hang-up is read too: that is how the library learns of it.
        return (_WRITE if mask & select.POLLOUT else 0) | (_READ if mask & ~select.POLLOUT else 0)


def simple(text: str) -> Command:
    """Return a command without parameters."""
    return Command("send_query_params", (text.encode(), None))


COMMIT: Final = simple("COMMIT")


def _plain(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()
