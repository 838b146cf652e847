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

from caliber.model.errors import TransactionFailed
from caliber.model.joining import JOINED, JoinedTransaction, joined_in
from caliber.model.process.interrupts import managed
from caliber.storage.waiting import DeadlineLock, starting
from caliber.storage.write.group import finish

if TYPE_CHECKING:
    from caliber.engine.engine import Engine
    from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")

IDLE_S: Final = 30
"""Time between two calls of a block after which its transaction is given up: nobody waits for ever for a block that
waits for one of them. Units: s.
"""
_COMMIT: Final = "commit"
_ROLL_BACK: Final = "roll back"


class _Told(NamedTuple):
    """The outcome of a step: its result, or its error."""

    result: Any = None
    error: BaseException | None = None


class Transaction:
    """One transaction under way. Calls of several threads or tasks take turns."""

    def __init__(self, engine: Engine) -> None:
        self.store = engine.store
        self.outer: JoinedTransaction | None = JOINED.get()
        self.ended = False
        self.after: list[Callable[[], None]] = []
        self._engine = engine
        self._erased = engine.memory.erasures
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._told: SimpleQueue[_Told] = SimpleQueue()
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
            self._failure = "a call in it was interrupted"  # unless it is not
            self._asked.put((contextvars.copy_context(), work))
            told = self._told.get()
            self._failure = None if told.error is None else f"a call in it failed ({type(told.error).__name__})"
            if told.error is not None:
                raise told.error
            result: T = told.result
            return result

    def commit(self) -> None:
        """Commit, and publish the events. Raises: TransactionFailed where a call failed; errors of the commit."""
        with self._turn:
            self._check()
            self.ended = True
            self._asked.put(_COMMIT)
            self._next()
        if self._unit is not None:
            self._engine.publish_all(self._unit, self._erased)
        for work in self.after:
            work()

    def leave(self) -> None:
        """Undo what is not committed; return once the database has let go of it. Repeated, it does nothing."""
        self.ended = True
        self._asked.put(_ROLL_BACK)
        if self._thread.ident is not None:
            self._thread.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise TransactionFailed(
                reason=f"{self._failure}, so nothing of it is written; leave its block and begin anew"
            )

    def _next(self) -> None:
        told = self._told.get()
        if told.error is not None:
            raise told.error

    # --- in the thread of the transaction ----------------------------------------------------------

    def _hold(self) -> None:
        try:
            self.store.write(self._serve, exclusive=True)
        except BaseException as error:
            self._told.put(_Told(error=error))
        else:
            self._told.put(_Told())

    def _serve(self, uow: UnitOfWork) -> None:
        if self._unit is not None:  # work that lost a race is done again: that of a block cannot be
            raise TransactionFailed(reason="another writer was first; run the block again", retryable=True)
        self._unit = uow
        self._told.put(_Told())
        while (asked := self._next_asked()) is not _COMMIT:
            if asked is _ROLL_BACK:
                raise TransactionFailed(reason="its block ended with an error")
            context, work = asked
            part = uow.part(self._engine.clock.now_us())
            try:
                result = finish(part, context.run(work, part))
            except BaseException as error:
                self._told.put(_Told(error=error))
                raise TransactionFailed(reason="a call in it failed") from None  # whose error that of the block is
            uow.take(part)
            self._told.put(_Told(result))

    def _next_asked(self) -> Any:
        try:
            return self._asked.get(timeout=IDLE_S)
        except Empty:
            reason = f"its block made no call for {IDLE_S} s, while others waited; nothing of it is written"
            raise TransactionFailed(reason=reason) from None


@managed
def transaction(engine: Engine) -> Iterator[None]:
    """Have the writes of the calls in the block committed together at its end; an error in it undoes them all.

    Inside another block of the same store the calls join that one.
    """
    engine.check_open()
    if joined_in(engine.store) is not None:
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
