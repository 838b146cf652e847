"""Transaction of several calls: their writes are committed together, or none is.

A thread of its own holds the transaction of the database, in the way in which the thread of one call holds its own; a
block hands it the work of each call, and waits for the result. So no database has a second way to write, and an
interrupt in the block ends at a rollback there.

Source: C-242; docs/api.md.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from caliber.model.deadline import unbounded
from caliber.model.errors import TransactionFailed
from caliber.model.joining import JOINED, JoinedTransaction, joined_in
from caliber.model.process.interrupts import let_through, managed
from caliber.storage.waiting import DeadlineLock, starting
from caliber.storage.write.group import finish

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from caliber.engine.engine import Engine
    from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")

IDLE_S: Final = 30
"""Time that a block may take between two calls before its transaction is given up: nobody waits for ever for a block
that waits for one of them. Units: s.
"""
_COMMIT: Final = "commit"
_ROLL_BACK: Final = "roll back"


class _Outcome(NamedTuple):
    """The result of a step, or its error."""

    result: Any = None
    error: BaseException | None = None


class Transaction:
    """One transaction under way. Calls of several threads or tasks take turns."""

    def __init__(self, engine: Engine, executor: Executor | None = None) -> None:
        self.store = engine.store
        self.outer: JoinedTransaction | None = JOINED.get()
        self.ended = False
        self.after: list[Callable[[], None]] = []
        self.executor = executor
        self._engine = engine
        self._erased = engine.memory.erasures
        self._steps: SimpleQueue[Any] = SimpleQueue()
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._turn = DeadlineLock("another call of the transaction was at work")
        self._failure: str | None = None
        self._unit: UnitOfWork | None = None
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._hold,), name="caliber-transaction", daemon=True
        )

    def begin(self) -> None:
        """Return once the transaction has begun. Raises: Unavailable where others write for too long."""
        with starting():
            self._thread.start()
        self._next()

    def run(self, work: Callable[[UnitOfWork], T]) -> T:
        """Do the work of a call, and return its result. Raises: its error; TransactionFailed after that."""
        with self._turn:
            self._check()
            if self.ended:
                raise TransactionFailed(reason="its block has ended, and this call belongs to it")
            self._failure = "a call in it was interrupted"  # unless it is not
            self._steps.put((contextvars.copy_context(), work))
            outcome = self._outcomes.get()
            self._failure = None if outcome.error is None else f"a call in it failed ({type(outcome.error).__name__})"
            if outcome.error is not None:
                raise outcome.error
            result: T = outcome.result
            return result

    def fail(self, reason: str) -> None:
        """Have nothing of it written."""
        self._failure = self._failure or reason

    def commit(self) -> None:
        """Commit, publish the events, and do what follows. Raises: TransactionFailed where a call failed; errors of the
        commit.
        """
        with self._turn:
            self._check()
            self.ended = True
            self._steps.put(_COMMIT)
            self._next()

    def leave(self) -> None:
        """Undo what is not committed; return once the database has let go of it. Repeated, it does nothing.

        One that has not begun is undone as soon as it begins: nobody waits for that.
        """
        with unbounded(), self._turn:
            self.ended = True
            self._steps.put(_ROLL_BACK)
        if self._unit is not None:
            self._thread.join()

    def _check(self) -> None:
        self._engine.check_open()
        if self._failure is not None:
            raise TransactionFailed(reason=f"{self._failure}, so nothing of it is written; leave its block")

    def _next(self) -> None:
        outcome = self._outcomes.get()
        if outcome.error is not None:
            raise outcome.error

    # --- in the thread of the transaction, where no handler of a signal runs ---------------------------

    def _hold(self) -> None:
        try:
            self.store.write(self._serve, exclusive=True)
            assert self._unit is not None  # its work has been done
            self._engine.publish_all(self._unit, self._erased)
            for work in self.after:
                self._follow(work)
        except BaseException as error:
            self._outcomes.put(_Outcome(error=error))
        else:
            self._outcomes.put(_Outcome())

    def _follow(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # what is committed stands
            let_through(error)
            self._engine.record_error("after a transaction", error)

    def _serve(self, uow: UnitOfWork) -> None:
        if self._unit is not None:  # work that lost a race is done again: that of a block cannot be
            raise TransactionFailed(reason="another writer was first; run the block again", retryable=True)
        self._unit = uow
        self._outcomes.put(_Outcome())
        while (step := self._next_step()) is not _COMMIT:
            if step is _ROLL_BACK:
                raise TransactionFailed(reason="its block ended with an error")
            context, work = step
            part = uow.part(self._engine.clock.now_us())
            try:
                result = finish(part, context.run(work, part))
            except BaseException as error:
                self._outcomes.put(_Outcome(error=error))
                raise TransactionFailed(reason="a call in it failed") from None  # whose error that of the block is
            uow.take(part)
            self._outcomes.put(_Outcome(result))

    def _next_step(self) -> Any:
        try:
            return self._steps.get(timeout=IDLE_S)
        except Empty:
            reason = f"its block wrote nothing for {IDLE_S} s, or waited, while others waited for its end"
            raise TransactionFailed(reason=reason) from None


@managed
def inner(joined: JoinedTransaction) -> Iterator[None]:
    """Have a block inside another one fail that, where it ends with an error."""
    try:
        yield
    except BaseException:
        joined.fail("a block in it ended with an error")
        raise


@managed
def transaction(engine: Engine) -> Iterator[None]:
    """Have the writes of the calls in the block committed together at its end; an error in it undoes them all.

    Inside another block of the same store the calls join that one.
    """
    engine.check_open()
    joined = joined_in(engine.store)
    if joined is not None:
        with inner(joined):
            yield
        return
    made = Transaction(engine)
    before = JOINED.get()
    try:
        made.begin()
        JOINED.set(made)
        yield
        JOINED.set(before)
        made.commit()
    finally:
        JOINED.set(before)
        made.leave()
