"""Group commit: the waiting writers of a process share one transaction and one sync to disk.

Threads that arrive while another one commits wait in line, each on its own lock. The leader takes the waiting requests
into one transaction and one commit, wakes every thread whose request is done, and hands the lead to the first that
still waits: no thread competes with others to learn its result, and none overtakes. A call returns only when its work
is durable. Source: design, section 4.

A unit of work may be a generator. It yields the statements of a step and is sent their rows, so that a database over a
network answers a step in one round trip, and the steps of writers that share a transaction in one for all of them.

Handlers of signals run in the main thread, anywhere, and may raise anything (Ctrl-C, ``sys.exit``, a time limit). So:

* The main thread leads nobody but itself. It lets the first that waits lead it, or commits alone when nobody does. An
  exception of a handler is then its own, whatever its class, and leaves no work of another thread half done.
* One variable, ``_leader``, names the leader and changes by one assignment. Everything around that can be repeated:
  ``_leave`` may be interrupted at any line and begun anew, and waking a thread that has nothing to do does no harm.
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import Any, Final, TypeVar, cast

from caliber.model.deadline import earliest
from caliber.model.errors import CaliberError, TransactionFailed, Unavailable
from caliber.model.process.interrupts import managed, may_be_interrupted
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import GRACE_S
from caliber.storage.write.unit_of_work import Query, UnitOfWork

T = TypeVar("T")

GROUP_MAX_BATCH: Final = 256
"""Most writes that share one commit."""
_LEAST_BATCH: Final = 2
_COMPANION_S: Final = 1.25 * GRACE_S
"""Extra wait after its deadline of a request in a shared transaction, for the end of that transaction: the leader, if
it has the same deadline, gives up just before, and knows more.
"""


class Request:
    """One request in line, and its outcome."""

    def __init__(
        self, work: Callable[[UnitOfWork], Any], *, exclusive: bool = False, deadline: float | None = None
    ) -> None:
        self.work = work
        self.deadline = deadline
        """When, on the monotonic clock, its thread no longer waits."""
        self.cut: Any = None
        """The way for its thread to find out its outcome, where the leader had no time left to do so."""
        self.exclusive = exclusive
        """True when it shares its transaction with no other."""
        self.unit: UnitOfWork | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.alone = False
        """True when it must run in a separate transaction, on its own thread."""
        self.cancelled = False
        """True when its thread waits only to learn its outcome, or not even that."""
        self.skipped = False
        """True when it was cancelled without effect."""
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    @property
    def late(self) -> bool:
        """True when its deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def over(self) -> bool:
        """True when its thread has nothing to wait for any more."""
        return self.done or self.alone or self.skipped

    def wake(self) -> None:
        """Wake its thread to check the outcome; repeated or needless calls are harmless."""
        if self.wakeup.locked():
            self.wakeup.release()


class Batch:
    """The requests that a leading thread took, and how far their transaction is."""

    def __init__(self, leader: Request) -> None:
        self.requests = [leader]
        self.trying = self.requests
        """Those in the transaction under way."""
        self.at: Request | None = None
        """The requests whose work is being run."""
        self.ending = False
        """True once COMMIT may have been sent."""
        self.committed = False
        self.cut: Any = None
        """The way to find out later the outcome of a transaction, where it is unknown."""
        self.silent = False
        """True when the transaction ended because the server did not answer."""
        self.left = False
        """True once the line has been left, and nothing of it remains to be done."""


class GroupWriter:
    """Lets one thread at a time run a transaction: for itself or, when ``grouped``, for all that wait."""

    _may_fall_silent = False
    """True when the runner of a transaction may never answer: a disk does, a network may not."""

    def __init__(self, *, grouped: bool) -> None:
        self._grouped = grouped
        self._group_max_batch = GROUP_MAX_BATCH
        self._mutex = threading.Lock()
        self._leader: Request | None = None
        self._waiting: deque[Request] = deque()
        self._expected_writers = 1
        """The number that wrote lately, or stood in line: those mostly come again at once."""
        self._took_s = 0.0
        """The time that their transaction took."""
        self._full: threading.Lock | None = None
        """The condition that a leader waits on for its company."""

    def _transaction(self, batch: Batch, leader: Request, deadline: float | None) -> None:
        """Run a batch in one transaction and mark its requests done or alone; ``leader`` is the calling thread's.

        Unmarked requests go back in line, except ``leader``. Raises: errors that concern the calling thread alone.
        """
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raise Unavailable when the store was closed meanwhile."""
        raise NotImplementedError

    def _made_ready(self) -> None:
        """Undo what the previous leader may have left half done."""

    def write(self, work: Callable[[UnitOfWork], T], *, exclusive: bool = False) -> T:
        deadline = earliest(None)
        request = Request(work, exclusive=exclusive, deadline=deadline)
        self._in_line(request, deadline)
        if request.alone and not request.done and request.error is None:
            self.write_alone(request, deadline)
        if request.cut is not None:
            self._look_up(request)
        return result_of(request)  # type: ignore[no-any-return]

    def _look_up(self, request: Request) -> None:
        """Determine the outcome of a request that was ``cut``."""

    def write_alone(self, request: Request, deadline: float | None) -> None:
        """Run a request in its own transaction."""
        request.exclusive, request.alone = True, False
        self._in_line(request, deadline)

    def _in_line(self, request: Request, deadline: float | None) -> None:
        """Return when a request is done, or must run alone. Raises: an error for this thread alone."""
        batch = Batch(request)
        try:
            self._enter(request, deadline)
            if self._leader is request and self._grouped and not request.exclusive:
                self._share(batch, request, deadline)
            if self._leader is request:
                self._check_usable()
                self._made_ready()
                began = time.perf_counter()
                self._transaction(batch, request, deadline)
                self._took_s = time.perf_counter() - began
                self._expected_writers = min(len(batch.requests) + len(self._waiting), self._group_max_batch)
            else:
                batch.left = True
        finally:
            try:
                if not batch.left:
                    self._leave(request, batch)
            finally:
                if not batch.left:  # interrupted once more: in another thread no handler runs
                    start_new_thread(self._leave, (request, batch))

    @managed
    def exclusive(self) -> Iterator[None]:
        """Keep transactions out while the connection is used for something else; for writers with one leader.

        Raises: Unavailable when the calling thread's deadline passed before the line was free.
        """
        request = Request(_nothing, exclusive=True)
        batch = Batch(request)
        try:
            self._enter(request, earliest(None))
            self._made_ready()
            yield
        finally:
            try:
                if not batch.left:
                    self._leave(request, batch)
            finally:
                if not batch.left:  # interrupted: in another thread no handler runs
                    start_new_thread(self._leave, (request, batch))

    def _enter(self, request: Request, deadline: float | None) -> None:
        """Return when the request leads, is done, or is to go alone. Raises: Unavailable when the deadline passed."""
        with self._mutex:
            if self._leader is None and not self._waiting:
                self._leader = request
                return
            self._waiting.append(request)
            full = self._full
            if full is not None and len(self._waiting) + 1 >= self._expected_writers:
                self._full = None
                full.release()
        self._wait(request, deadline)

    def _wait(self, request: Request, deadline: float | None) -> None:
        """As ``_enter``, of a request that is in line."""
        while not request.over and self._leader is not request:
            if deadline is None or (request.cancelled and not self._may_fall_silent):
                request.wakeup.acquire()
            elif request.cancelled:
                if not request.wakeup.acquire(timeout=_patience_s(deadline + _COMPANION_S)) and not request.over:
                    raise Unavailable(
                        "the deadline passed during the shared transaction of this write, and its outcome is unknown:"
                        " check before you write again, or write with an idempotency_key",
                        reason="outcome unknown",
                    )
            elif not request.wakeup.acquire(timeout=_patience_s(deadline)) and self._withdraw(request):
                raise _too_late()
            # Otherwise another thread has taken it into a transaction: too late to cancel, that transaction decides.
        if request.done or request.alone:
            return
        if request.skipped:
            raise _too_late()
        with self._mutex:
            if request in self._waiting:  # the thread that handed over the lead was interrupted before removing it
                self._waiting.remove(request)

    def _withdraw(self, request: Request) -> bool:
        """Cancel a request; return whether no thread works on it."""
        with self._mutex:
            if self._leader is request:
                return True  # and hands that on
            if request in self._waiting:
                self._waiting.remove(request)
                return True
            request.cancelled = True
        return False

    def _share(self, batch: Batch, request: Request, deadline: float | None) -> None:
        """Take the waiting requests into a batch, or let another thread take this one into its batch."""
        self._wait_for_batch()
        if not may_be_interrupted():
            with self._mutex:
                # If this is interrupted, requests that are both in the line and in the batch stay in the line.
                while self._waiting and not self._waiting[0].exclusive and len(batch.requests) < self._group_max_batch:
                    batch.requests.append(self._waiting[0])
                    self._waiting.popleft()
        elif self._hand_over(request):
            self._wait(request, deadline)

    def _hand_over(self, request: Request) -> bool:
        """Let the first that waits lead, and this request be the first of its company; return whether one does."""
        with self._mutex:
            if not self._waiting or self._waiting[0].exclusive or self._group_max_batch < _LEAST_BATCH:
                return False
            successor = self._waiting[0]
            self._waiting.insert(1, request)
            self._leader = successor
            self._waiting.popleft()
            successor.wake()
        return True

    def _wait_for_batch(self) -> None:
        """Wait until as many requests are in line as shared the last transaction, for at most half of its duration.

        Threads that were just woken are about to return: otherwise the first one would commit alone each time.
        """
        if len(self._waiting) + 1 >= self._expected_writers:
            return
        full = threading.Lock()
        full.acquire()
        with self._mutex:
            if len(self._waiting) + 1 >= self._expected_writers:
                return
            self._full = full
        full.acquire(timeout=self._took_s / 2)
        self._full = None

    def _leave(self, own: Request, batch: Batch) -> None:
        """Leave the line, as the leader or not: wake finished requests, put others back, hand on the lead.

        It may be interrupted at any line, and is then run again.
        """
        with self._mutex:
            if batch.committed:
                for request in batch.trying:
                    request.done = not request.alone
            for request in batch.requests[1:]:
                if request.cancelled and not request.done:
                    request.skipped = True
            if own in self._waiting:
                self._waiting.remove(own)
            own.cancelled = not own.over
            if self._leader is own:
                for request in reversed(batch.requests[1:]):
                    if not request.over and request not in self._waiting:
                        self._waiting.appendleft(request)
                self._leader = self._waiting[0] if self._waiting else None
            successor = self._leader
            if successor is not None:
                if self._waiting and self._waiting[0] is successor:
                    self._waiting.popleft()
                successor.wake()
            for request in batch.requests[1:]:
                if request.over:
                    request.wake()
        batch.left = True


def _nothing(uow: UnitOfWork) -> None:
    """Wait in line for other work than writing."""


def _patience_s(deadline: float) -> float:
    return max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))


def _too_late() -> Unavailable:
    return Unavailable("the deadline passed while others wrote; this transaction wrote nothing", reason="timeout")


def result_of(request: Request) -> Any:
    """Return the result of a request whose transaction has ended, or raise its error."""
    if request.error is not None:
        raise request.error
    if request.unit is not None:
        for after in request.unit.on_commit:
            after()
    return request.result


def copy_for(error: BaseException) -> CaliberError:
    """Return a fresh error for a companion: threads must not share a traceback, nor one's interrupt stop another."""
    if isinstance(error, CaliberError):
        copy = type(error)(error.message, retryable=error.retryable, **error.context)
    else:
        copy = TransactionFailed(reason=type(error).__name__, retryable=True)
    copy.__cause__ = error
    return copy


Pipelined = Generator[tuple[Query, ...], list[list[Row]], T]


def pipelined(work: Callable[[UnitOfWork], Pipelined[T]]) -> Callable[[UnitOfWork], T]:
    """Type a generator as a plain unit of work; the writer drives it to its result."""
    return cast("Callable[[UnitOfWork], T]", work)


def started(outcome: Any) -> Pipelined[Any] | None:
    """Return the steps that work turned out to consist of, or None when ``outcome`` is its result."""
    return outcome if isinstance(outcome, GeneratorType) else None


def finish(uow: UnitOfWork, outcome: Any) -> Any:
    """Go through the steps of one piece of work, if it has any; return its result."""
    steps = started(outcome)
    if steps is None:
        return outcome
    try:
        asked = next(steps)
        while True:
            asked = steps.send([uow.change(ask.relation, ask.statement, *ask.parameters) for ask in asked])
    except StopIteration as end:
        return end.value
