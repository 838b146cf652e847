"""Lock service: shared and exclusive leases with fencing tokens, granted in the order of requests.

Source: C-364 to C-368, K-036, K-037.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from caliber.access.acting import agent_named, registered, require_active
from caliber.access.identities import require_registered, requires_registration
from caliber.agents.locking import lock_queue
from caliber.agents.locking.lock_queue import Blocked, Request
from caliber.engine.background import PeriodicTask
from caliber.engine.commit_waiters import CommitWaiter, CommitWaiters, waiters_of
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import Lock, LockMode, LockToken, LockWaiter
from caliber.model.deadline import GRACE_S, at_least, check, remaining_s, unbounded
from caliber.model.errors import (
    CaliberError,
    DTypeError,
    LockAcquisitionFailed,
    LockExpired,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)
from caliber.model.events import EventType
from caliber.model.joining import refuse_inside
from caliber.model.process.interrupts import managed, suppress
from caliber.model.references import LockWaiterId
from caliber.model.time import MS_US, to_us
from caliber.schema.relation import Relation
from caliber.schema.relations import LOCK, LOCK_WAITER
from caliber.storage import waiting
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")
_SHORTEST_S = 0.001
LIST_MAX = 1_000
"""The most locks, or requests, that a list holds unless its caller asks for more."""
PLACE_MS: Final = 5_000
"""Time after which a request that waits loses its place, as its process died; a process that runs renews it."""
POLL_MS: Final = 50
"""Interval of looks for other processes' commits, where the database does not notify of them."""


class LockService:
    """Acquires, renews and releases locks of one tenant, for a principal.

    An admin and the application name the holder. Any other principal holds locks as itself only, by its label
    (``agent:planner``), which ``holder`` may leave out; it does not learn who holds a lock that blocks it.
    """

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._wake = lock_queue.waker(engine)

    def _is_own(self, holder: str) -> bool:
        return self._principal.serves or holder == self._principal.label

    def _shown(self, holder: str) -> str | None:
        return holder if self._is_own(holder) else None

    def _holder(self, holder: str | None, action: str, resource: str) -> str:
        if holder is None:
            if self._principal.serves:
                raise RequiredFieldMissing(field="holder")
            return self._principal.label
        holder = arguments.as_text(holder, "holder", limit=arguments.MAX_NAME_CHARS)
        if not self._is_own(holder):
            raise self._principal.denied(action, f"a lock on {resource}")
        return holder

    def _lease_ms(self, lease_ms: int | None) -> int:
        return arguments.as_duration_ms(self._engine.config.lock_timeout if lease_ms is None else lease_ms, "lease_ms")

    def _write(self, work: Callable[[UnitOfWork], T]) -> T:
        self._engine.check_open()
        check("the lock was held by another; nothing was written")
        return self._engine.store.write(work)

    def _act(self, work: Callable[[UnitOfWork], T]) -> T:
        """Write an act of the principal: an agent that is to be registered is looked up in the same transaction.

        Raises: NotRegistered; PermissionDenied for an agent that is hibernated or archived.
        """
        if not requires_registration(self._engine, self._principal):
            require_active(self._engine, self._principal)
            return self._write(work)
        agent, config = agent_named(self._engine, self._principal.id), self._engine.config

        def act(uow: UnitOfWork) -> T:
            registered(uow, config, agent)
            return work(uow)

        return self._write(act)

    # --- acquiring -------------------------------------------------------------------------------

    def acquire(
        self,
        resource: str,
        *,
        holder: str | None = None,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
    ) -> Lock:
        """Acquire a lock for ``lease_ms``, or for the configured ``lock_timeout``.

        Requests that wait get the lock in their order; a shared lock does not overtake an exclusive request. The same
        holder asking again renews its lock under a new token, also in another mode. While another's exclusive request
        waits, a holder that asks to share what it shares gets the lock that it has: its token and lease stay.

        Raises: InputError kinds; PermissionDenied for a holder that is not the principal's, and for an agent that is
            hibernated or archived; NotRegistered for an agent where ``agents.registration`` is required;
            LockAcquisitionFailed when it is held incompatibly, or others
            wait for it, for all of ``wait_ms``; its ``holder`` is who holds it, or None where that is not the
            principal's to know; Unavailable when the deadline passes first.
        """
        woken = waiting.Flag()
        acquiring = self._acquiring(resource, holder, lease_ms, mode, wait_ms, woken.set)
        try:
            while (lock := acquiring.attempt()) is None:
                woken.wait(acquiring.pause_s())
                woken.clear()
            return lock
        finally:
            acquiring.end()

    def _acquiring(
        self,
        resource: str,
        holder: str | None,
        lease_ms: int | None,
        mode: LockMode | str,
        wait_ms: int,
        wake: Callable[[], None],
    ) -> Acquiring:
        self._engine.check_open()
        resource = arguments.as_text(resource, "resource", limit=arguments.MAX_NAME_CHARS)
        wait_s = arguments.as_whole(wait_ms, "wait_ms") / 1_000
        request = Request(
            resource=resource,
            holder=self._holder(holder, "acquire", resource),
            mode=arguments.as_enum(mode, LockMode, "mode"),
            lease_ms=self._lease_ms(lease_ms),
            place_ms=PLACE_MS,
            waiter_id=LockWaiterId(uuid7()) if wait_s else None,
        )
        return Acquiring(self, request, wait_s, wake)

    @managed
    def hold(
        self,
        resource: str,
        *,
        holder: str | None = None,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
    ) -> Iterator[LockToken]:
        """Hold a lock for the block, and give its token, for ``guard``.

        The lease is renewed behind, after each third of it. A lock that was lost all the same, as after a long
        suspension of the process, lets no write with its token through. Blocks that share a resource under one label
        may share one lock, as ``acquire`` has it: the first that ends releases it for all. ``wait_ms``
        is for acquiring it. Raises: as ``acquire``.
        """
        lock = self.acquire(resource, holder=holder, lease_ms=lease_ms, mode=mode, wait_ms=wait_ms)
        renewing = self._renewing(lock, lease_ms)
        try:
            renewing.start()
            yield LockToken(lock.resource, lock.token)
        finally:
            self._let_go(lock, renewing)

    def _renewing(self, lock: Lock, lease_ms: int | None) -> PeriodicTask:
        refuse_inside("a lock that is held is renewed meanwhile", self._engine.store)
        full_ms = self._lease_ms(lease_ms)
        token = LockToken(lock.resource, lock.token)

        def renew() -> None:
            try:
                with unbounded():
                    self._act(lambda uow: lock_queue.renew(uow, token, lock.holder, full_ms))
                task.left_ms = full_ms
            except (LockExpired, NotRegistered, PermissionDenied) as error:
                task.cancel()  # another has it, or an admin broke it
                self._engine.record_error("lock", error)

        # A lock that this holder had before may have less left than was asked for.
        left_ms = (to_us(lock.expires_at) - self._engine.clock.now_us()) // MS_US
        task = Renewals("lock", renew, every_ms=max(1, full_ms // 3), failed=self._engine.record_error)
        task.left_ms = min(full_ms, left_ms)
        return task

    def _let_go(self, lock: Lock, renewing: PeriodicTask) -> None:
        renewing.stop()
        with unbounded(), suppress(PermissionDenied):  # as released by an admin, and another's by now
            self._release(LockToken(lock.resource, lock.token), lock.holder)

    # --- renewing and releasing --------------------------------------------------------------------

    def renew(self, token: LockToken, *, holder: str | None = None, lease_ms: int | None = None) -> Lock:
        """Extend a lease that has not run out.

        Raises: LockExpired; PermissionDenied when another holds it, or for an agent that is hibernated or archived;
            InputError kinds.
        """
        self._engine.check_open()
        lease = self._lease_ms(lease_ms)
        token = _required(token)
        owner = self._holder(holder, "renew", token.resource)
        return self._act(lambda uow: lock_queue.renew(uow, token, owner, lease))

    def release(self, token: LockToken, *, holder: str | None = None) -> bool:
        """Give a lock back; only its holder can. Return whether it was still held.

        Raises: PermissionDenied when another holds it; InputError kinds.
        """
        self._engine.check_open()
        token = _required(token)
        owner = self._holder(holder, "release", token.resource)
        return self._release(token, owner)

    def _release(self, token: LockToken, holder: str) -> bool:
        return self._write(lambda uow: lock_queue.release(uow, token, holder, self._wake))

    def break_lock(self, resource: str) -> list[Lock]:
        """End all locks of a resource, and return them; each is an audit event.

        Writes that their tokens guard are refused from now on. Raises: PermissionDenied unless the principal is an
        admin; InputError kinds.
        """
        self._engine.check_open()
        resource = arguments.as_text(resource, "resource", limit=arguments.MAX_NAME_CHARS)
        self._principal.require_admin("break", f"the locks on {resource}")

        def work(uow: UnitOfWork) -> list[Lock]:
            uow.serialize(resource)
            broken = []
            for lock in uow.select_path(LOCK, "list_by_resource", resource):
                if to_us(lock.expires_at) > uow.now_us:
                    lock_queue.end(uow, lock, self._wake)
                    self._audit(uow, lock)
                    broken.append(lock)
            return broken

        return self._engine.write(work)

    def _audit(self, uow: UnitOfWork, lock: Lock) -> None:
        self._engine.audit(
            uow,
            EventType.LOCK_BREAK,
            principal=self._principal.label,
            subject=(LOCK.name, lock.lock_id),
            payload={"resource": lock.resource, "holder": lock.holder, "token": lock.token},
        )

    # --- reading, without a write transaction: the clock decides which leases count ---------------------------------

    def held(self, resource: str) -> list[Lock]:
        """Return the locks of a resource that have not run out, as far as the principal may see them.

        Raises: InputError kinds.
        """
        self._engine.check_open()
        resource = arguments.as_text(resource, "resource", limit=arguments.MAX_NAME_CHARS)

        require_registered(self._engine, self._principal)
        now = self._engine.clock.now_us()
        locks: list[Lock] = self._engine.read(lambda uow: uow.select_path(LOCK, "list_by_resource", resource))
        return [lock for lock in locks if to_us(lock.expires_at) > now and self._is_own(lock.holder)]

    def waiting(self, *, limit: int = LIST_MAX) -> list[LockWaiter]:
        """Return the requests that wait for a lock, as far as the principal may see them: by resource, in their order.

        Raises: InputError kinds.
        """
        self._engine.check_open()
        number = arguments.as_whole(limit, "limit", 1)
        return self._listed(LOCK_WAITER, "lock_waiter.list_live", number)

    def reap(self) -> int:
        """Delete rows of ended leases, and of requests whose place expired; return how many.

        Tokens keep rising, also where the last row of a resource is deleted. ``memory.admin.maintain()`` and each open
        store, every ``retention.apply_every_ms``, do the same.
        """
        self._engine.check_open()
        return lock_queue.reap(self._write)

    def list(self, *, limit: int = LIST_MAX) -> list[Lock]:
        """Return the locks that have not run out, as far as the principal may see them, the next to run out first.

        Raises: InputError kinds.
        """
        self._engine.check_open()
        number = arguments.as_whole(limit, "limit", 1)
        return self._listed(LOCK, "lock.list_live", number)

    def _listed(self, relation: Relation, statement: str, limit: int) -> builtins.list[Any]:
        """Return locks or requests that have not run out, as far as the principal may see them."""
        own = None if self._principal.serves else self._principal.label
        require_registered(self._engine, self._principal)
        now = self._engine.clock.now_us()
        return self._engine.read(lambda uow: uow.select_entities(relation, statement, now, own, limit))


class Renewals(PeriodicTask):
    """The renewals of a lock, each after a third of what was left of its lease."""

    left_ms = 0

    def next_s(self) -> float:
        """Return when the next renewal is due."""
        return time.monotonic() + max(1, self.left_ms // 3) / 1_000


class Acquiring:
    """One call that acquires a lock: its attempts, and its sleep between them."""

    def __init__(self, locks: LockService, request: Request, wait_s: float, wake: Callable[[], None]) -> None:
        self._locks = locks
        self._engine = locks._engine
        self._request = request
        self._began_s = time.monotonic()
        self._until_s = self._began_s + wait_s
        self._waiter: CommitWaiter | None = None
        if wait_s:
            self._waiter = CommitWaiter(lock_queue.keys(request.resource), wake, POLL_MS)
        self._blocked: Blocked | None = None
        self._again_s = 0.0
        self._queued = False
        self._contended = False

    def attempt(self) -> Lock | None:
        """Return the lock, or None if it is to be waited for. Raises: LockAcquisitionFailed."""
        waiter, first = self._waiter, self._blocked is None
        if waiter is not None:
            waiter.keys = lock_queue.keys(self._request.resource)
            self._queued = True
        outcome = self._locks._act(lambda uow: lock_queue.attempt(uow, self._request, self._locks._wake))
        if isinstance(outcome, Lock):
            self._queued = False
            if self._blocked is not None:
                self._contend(self._blocked)
            return outcome
        self._blocked = outcome
        if waiter is None or time.monotonic() >= self._until_s:
            self._contend(outcome, refused=True)
            raise self._refusal(outcome)
        self._contend(outcome)
        if first:
            waiters_of(self._engine).add(waiter)
        # Only now do others see our place: a lock that ended meanwhile shows at once.
        lease_s, place_s = max(_SHORTEST_S, outcome.free_in_us / 1_000_000), self._request.place_ms / 3_000
        pause_s = 0.0 if first else min(lease_s, place_s)
        waiter.keys = lock_queue.keys(*outcome.awaited)
        self._again_s = min(time.monotonic() + pause_s, self._until_s)
        return None

    def _contend(self, blocked: Blocked, *, refused: bool = False) -> None:
        """Record contention, once a call: a refusal, or a wait longer than ``agents.contention_ms``."""
        longest_ms = self._engine.config.agents.contention_ms
        if longest_ms is None or self._contended:
            return
        if refused or time.monotonic() - self._began_s >= longest_ms / 1_000:
            from caliber.agents.conflicts.recording import record_contention  # most processes record none

            self._contended = True
            record_contention(self._engine, self._request.resource, blocked.holders, self._request.holder)

    @property
    def waits(self) -> bool:
        """True if it may have a place in the queue."""
        return self._waiter is not None

    def pause_s(self) -> float:
        """Return how long to sleep before the next attempt, unless woken."""
        remaining = remaining_s()
        until_s = max(0.0, self._again_s - time.monotonic())
        return until_s if remaining is None else max(0.0, min(until_s, remaining))

    def end(self) -> None:
        """Give up the place in the queue, if there still is one."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        waiters = self._engine.find_part(CommitWaiters)
        if waiters is not None:
            waiters.remove(waiter)
        waiter_id = self._request.waiter_id
        if self._queued and waiter_id is not None and self._engine.state == "open":
            # Without the store the place ends by itself.
            with at_least(GRACE_S), suppress(CaliberError):
                self._locks._write(
                    lambda uow: lock_queue.leave(uow, self._request.resource, waiter_id, self._locks._wake)
                )

    def _refusal(self, blocked: Blocked) -> LockAcquisitionFailed:
        resource = self._request.resource
        shown = (self._locks._shown(holder) for holder in blocked.holders)
        holder = next((each for each in shown if each is not None), None)
        return LockAcquisitionFailed(resource=resource, holder=holder)


def _required(token: LockToken) -> LockToken:
    checked = arguments.as_token(token, "token")
    if checked is None:
        raise DTypeError(field="token", expected="LockToken", got="NoneType")
    return checked
