"""The sharing of one transaction by many writers of a process.

Threads that arrive while another one commits wait in line, each on a lock of its own. The thread that leads takes those
that wait into one transaction and one commit, wakes every one whose work is done, and hands the lead to the first that
still waits: nobody has to get past the others to learn what became of its work, and nobody overtakes. A call returns
only when its work is durable. Source: design, section 4.

An interrupt (Ctrl-C) may hit the leading thread anywhere. Whatever happens to it, each request of its batch is done, or
failed with an error of its own, or back in line, and the lead goes on. So what must not be left half done is written to
be done again: ``_settle`` picks up where an interrupt stopped it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from caliber.model.errors import CaliberError, TransactionFailed, Unavailable
from caliber.storage.unit_of_work import UnitOfWork

T = TypeVar("T")


class Request:
    """One piece of work in line, and what became of it."""

    __slots__ = ("alone", "apart", "done", "error", "gate", "given_up", "heir", "leads", "result", "unit", "work")

    def __init__(self, work: Callable[[UnitOfWork], Any], *, apart: bool = False) -> None:
        self.work = work
        self.apart = apart
        """Whether it shares with nobody."""
        self.unit: UnitOfWork | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.alone = False
        """Whether it is to run in a transaction of its own, on its own thread."""
        self.given_up = False
        """Whether its thread waits only to learn what became of it, or not even that."""
        self.leads = False
        self.heir: Request | None = None
        """Who gets the lead next, once that is decided."""
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        """Let its thread go on; again does no harm."""
        if self.gate.locked():
            self.gate.release()


class Batch:
    """The requests that a leading thread took, and how far their transaction is."""

    __slots__ = ("at", "committed", "ending", "requests", "trying")

    def __init__(self, own: Request) -> None:
        self.requests = [own]
        self.trying = self.requests
        """Those in the transaction under way."""
        self.at: Request | None = None
        """Whose work is being run."""
        self.ending = False
        """Whether COMMIT may have been sent."""
        self.committed = False


class GroupWriter:
    """Lets one thread at a time run a transaction: for itself or, when ``grouped``, for all that wait."""

    def __init__(self, *, grouped: bool, max_batch: int, wait_us: int) -> None:
        self._grouped = grouped
        self._group_max_batch = max_batch
        self._group_wait_s = wait_us / 1e6
        self._mutex = threading.Lock()
        self._led = False
        self._waiting: deque[Request] = deque()
        self._company = 1
        """How many wrote lately, or stood in line: those mostly come again at once."""
        self._took_s = 0.0
        """How long their transaction took."""
        self._full: threading.Lock | None = None
        """What a leader waits on for its company."""

    def _transaction(self, batch: Batch, own: Request, deadline: float | None) -> None:
        """Run a batch in one transaction and mark its requests done or alone; ``own`` is the calling thread's.

        What it leaves unmarked goes back in line, except ``own``. Raises: what is the calling thread's alone.
        """
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raise Unavailable when the store was closed meanwhile."""
        raise NotImplementedError

    def write(self, work: Callable[[UnitOfWork], T], *, deadline_ms: int | None = None) -> T:
        request = Request(work)
        deadline = None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
        batch = Batch(request)
        try:
            self._enter(request, deadline_ms)
            if request.leads:
                self._check_usable()
                self._take(batch)
                began = time.perf_counter()
                self._transaction(batch, request, deadline)
                self._took_s = time.perf_counter() - began
                self._company = min(len(batch.requests) + len(self._waiting), self._group_max_batch)
        finally:
            while request.leads:
                try:
                    self._leave(request, batch)
                except KeyboardInterrupt as interrupt:
                    request.error = interrupt
        if request.alone and not request.done and request.error is None:
            self.write_alone(request, deadline)
        return result_of(request)  # type: ignore[no-any-return]

    def write_alone(self, request: Request, deadline: float | None) -> None:
        """Run a request beside the line."""
        self._check_usable()
        self._transaction(Batch(request), request, deadline)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep transactions out while the connection is used for something else; for writers with one leader."""
        request = Request(_nothing, apart=True)
        batch = Batch(request)
        try:
            self._enter(request, None)
            yield
        finally:
            while request.leads:
                try:
                    self._leave(request, batch)
                except KeyboardInterrupt as interrupt:
                    request.error = interrupt
        if request.error is not None:
            raise request.error

    def _enter(self, request: Request, deadline_ms: int | None) -> None:
        """Return when the request leads, is done, or is to go alone. Raises: Unavailable when the deadline passed."""
        try:
            with self._mutex:
                if not self._led and not self._waiting:
                    self._led = request.leads = True
                    return
                self._waiting.append(request)
                if self._full is not None and len(self._waiting) + 1 >= self._company:
                    self._full.release()
                    self._full = None
            patience_s = -1 if deadline_ms is None else min(deadline_ms / 1000, threading.TIMEOUT_MAX)
            if request.gate.acquire(timeout=patience_s):
                return
        except BaseException:
            self._withdraw(request)
            raise
        if not self._withdraw(request):
            # Somebody took it into a transaction meanwhile: it is too late to give up, its end decides.
            request.gate.acquire()
            if request.done or request.alone:
                return
        raise Unavailable("the deadline passed while other writers were busy; nothing was written", reason="timeout")

    def _withdraw(self, request: Request) -> bool:
        """Give a request up; return whether nobody works on it."""
        with self._mutex:
            if request.leads:
                return True  # and hands that on
            if request in self._waiting:
                self._waiting.remove(request)
                return True
            request.given_up = True
        return False

    def _take(self, batch: Batch) -> None:
        if not self._grouped:
            return
        if self._group_wait_s and len(self._waiting) < self._group_max_batch - 1:
            time.sleep(self._group_wait_s)
        self._gather()
        with self._mutex:
            # Who is in the line and in the batch when this is interrupted stays in the line.
            while self._waiting and not self._waiting[0].apart and len(batch.requests) < self._group_max_batch:
                batch.requests.append(self._waiting[0])
                self._waiting.popleft()

    def _gather(self) -> None:
        """Wait until as many stand in line as came together last, for half as long as their transaction took at most.

        Those who were woken a moment ago are on their way back: whoever is first would else commit alone each time.
        """
        with self._mutex:
            if len(self._waiting) + 1 >= self._company:
                return
            full = self._full = threading.Lock()
            full.acquire()
        full.acquire(timeout=self._took_s / 2)
        self._full = None

    def _leave(self, own: Request, batch: Batch) -> None:
        """Wake whose fate is known, put the rest of a batch back in line, and give the lead to the first there."""
        with self._mutex:
            while own.leads:
                try:
                    self._settle(own, batch)
                except KeyboardInterrupt as interrupt:
                    own.error = interrupt

    def _settle(self, own: Request, batch: Batch) -> None:
        companions = batch.requests[1:]
        if own.heir is None:
            for request in reversed(companions):
                known = request.done or request.alone or request.given_up
                if not known and request not in self._waiting:
                    self._waiting.appendleft(request)
            if self._waiting:
                own.heir = self._waiting[0]
        for request in companions:
            if request.done or request.alone or request.given_up:
                request.wake()
        heir = own.heir
        if heir is not None:
            heir.leads = True
            if self._waiting and self._waiting[0] is heir:
                self._waiting.popleft()
            heir.wake()
        else:
            self._led = False
        own.leads = False


def _nothing(uow: UnitOfWork) -> None:
    """Stand in line for something else than writing."""


def result_of(request: Request) -> Any:
    """Return the result of a request whose transaction has ended, or raise its error."""
    if request.error is not None:
        raise request.error
    if request.unit is not None:
        for after in request.unit.on_commit:
            after()
    return request.result


def is_own(error: BaseException) -> bool:
    """Return whether an error is the running thread's and not that of the work it runs: Ctrl-C hits the main thread."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def copy_for(error: BaseException) -> CaliberError:
    """Return a fresh error for a companion: threads must not share a traceback, nor one's interrupt stop another."""
    if isinstance(error, CaliberError):
        copy = type(error)(error.message, retryable=error.retryable, **error.context)
    else:
        copy = TransactionFailed(reason=type(error).__name__, retryable=True)
    copy.__cause__ = error
    return copy
