"""Lock service: leases with fencing tokens, exclusive or shared. Source: C-364 to C-368, K-036, K-037."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import Lock, LockMode, LockToken
from caliber.model.deadline import bounded, check
from caliber.model.errors import DTypeError, LockAcquisitionFailed, LockExpired, PermissionDenied
from caliber.model.ids import LockId
from caliber.model.time import EPOCH, from_us, to_us
from caliber.schema.relations import LOCK
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")

WAIT_STEP_S: Final = 0.005


class LockService:
    """Acquires, renews and releases locks of one tenant, for a principal.

    An admin and the application may name any holder. Any other principal holds locks as itself only, by its label
    (``agent:planner``); it does not learn who holds a lock that blocks it.
    """

    def __init__(
        self, store: Store, *, check: Callable[[], None], lease_ms: int, principal: Principal | None = None
    ) -> None:
        self._store = store
        self._check = check
        self._lease_ms = lease_ms
        self._principal = principal
        """None: the engine itself, with the rights of an admin."""

    def _is_own(self, holder: str) -> bool:
        who = self._principal
        return who is None or who.serves or holder == who.label

    def _require_own(self, holder: str, action: str, resource: str) -> str:
        holder = arguments.as_text(holder, "holder", limit=arguments.MAX_NAME_CHARS)
        if not self._is_own(holder):
            assert self._principal is not None
            raise PermissionDenied(agent_id=self._principal.label, action=action, resource=f"a lock on {resource}")
        return holder

    def acquire(
        self,
        resource: str,
        *,
        holder: str,
        lease_ms: int | None = None,
        mode: LockMode | str = LockMode.EXCLUSIVE,
        wait_ms: int = 0,
        deadline_ms: int | None = None,
    ) -> Lock:
        """Acquire a lock for ``lease_ms``, or for the configured ``lock_timeout``.

        The same holder asking again renews it under a new token.

        Raises: InputError kinds; PermissionDenied for a holder that is not the principal's; LockAcquisitionFailed when
            it is held incompatibly for all of ``wait_ms``; its ``holder`` is who holds it, or None where that is
            not the principal's to know; Unavailable when ``deadline_ms`` passes first.
        """
        self._check()
        resource = arguments.as_text(resource, "resource", limit=arguments.MAX_NAME_CHARS)
        holder = self._require_own(holder, "acquire", resource)
        lease = arguments.as_duration_ms(self._lease_ms if lease_ms is None else lease_ms, "lease_ms")
        lock_mode = arguments.as_enum(mode, LockMode, "mode")
        until = time.monotonic() + arguments.as_whole(wait_ms, "wait_ms") / 1000
        waiter = threading.Event()
        with bounded(deadline_ms):
            while True:
                lock, in_the_way = self._write(lambda uow: _try(uow, resource, holder, lease, lock_mode))
                if lock is not None:
                    return lock
                remaining = until - time.monotonic()
                if remaining <= 0:
                    blocking_holder = next((other.holder for other in in_the_way if self._is_own(other.holder)), None)
                    raise LockAcquisitionFailed(resource=resource, holder=blocking_holder)
                waiter.wait(min(WAIT_STEP_S, remaining))

    def _write(self, work: Callable[[UnitOfWork], T]) -> T:
        check("the lock was held by another; nothing was written")
        return self._store.write(work)

    def renew(
        self, token: LockToken, *, holder: str, lease_ms: int | None = None, deadline_ms: int | None = None
    ) -> Lock:
        """Extend a lease that has not run out. Raises: LockExpired, PermissionDenied, InputError kinds."""
        self._check()
        lease = arguments.as_duration_ms(self._lease_ms if lease_ms is None else lease_ms, "lease_ms")
        token = _required(token)
        holder = self._require_own(holder, "renew", token.resource)

        def work(uow: UnitOfWork) -> Lock:
            lock = _held(uow, token, holder)
            expires = from_us(uow.now_us + lease * 1000)
            renewed: Lock = uow.update(LOCK, dataclasses.replace(lock, expires_at=expires))
            return renewed

        with bounded(deadline_ms):
            return self._write(work)

    def release(self, token: LockToken, *, holder: str, deadline_ms: int | None = None) -> bool:
        """Give a lock back; only its holder can. Return whether it was still held. Raises: PermissionDenied."""
        self._check()
        token = _required(token)
        holder = self._require_own(holder, "release", token.resource)

        def work(uow: UnitOfWork) -> bool:
            try:
                lock = _held(uow, token, holder)
            except LockExpired:
                return False
            # The row stays as the newest token of its resource, so that tokens keep rising. The lease is over for good,
            # also when the clock is put back.
            uow.update(LOCK, dataclasses.replace(lock, expires_at=EPOCH))
            return True

        with bounded(deadline_ms):
            return self._write(work)

    def held(self, resource: str, *, deadline_ms: int | None = None) -> list[Lock]:
        """Return the locks of a resource that have not run out, as far as the principal may see them.

        Raises: InputError kinds.
        """
        self._check()
        resource = arguments.as_text(resource, "resource", limit=arguments.MAX_NAME_CHARS)

        def work(uow: UnitOfWork) -> list[Lock]:
            return [
                lock
                for lock in uow.select_path(LOCK, "list_by_resource", resource)
                if to_us(lock.expires_at) > uow.now_us and self._is_own(lock.holder)
            ]

        with bounded(deadline_ms):
            return self._write(work)

    def reap(self, *, deadline_ms: int | None = None) -> int:
        """Delete rows of leases that ran out; return how many."""
        self._check()
        with bounded(deadline_ms):
            return self._write(lambda uow: uow.execute("lock.delete_expired", uow.now_us))


def locks_for(locks: LockService, principal: Principal) -> LockService:
    """Return the lock service of a principal; it is not a public method, as callers may not choose who they are."""
    return LockService(locks._store, check=locks._check, lease_ms=locks._lease_ms, principal=principal)


def _required(token: LockToken) -> LockToken:
    checked = arguments.as_token(token, "token")
    if checked is None:
        raise DTypeError(field="token", expected="LockToken", got="NoneType")
    return checked


def _try(
    uow: UnitOfWork, resource: str, holder: str, lease_ms: int, mode: LockMode
) -> tuple[Lock | None, Sequence[Lock]]:
    """Return the lock, or None and those of others that are in its way."""
    uow.serialize(resource)
    now = uow.now_us
    held = [lock for lock in uow.select_path(LOCK, "list_by_resource", resource) if to_us(lock.expires_at) > now]
    own_locks = [lock for lock in held if lock.holder == holder]
    in_the_way = [lock for lock in held if lock not in own_locks and LockMode.EXCLUSIVE in (mode, lock.mode)]
    if in_the_way:
        return None, in_the_way
    for lock in own_locks:
        # Asking again renews; the old token ends here.
        uow.update(LOCK, dataclasses.replace(lock, expires_at=EPOCH))
    fresh = Lock(
        lock_id=LockId(uuid7()),
        resource=resource,
        holder=holder,
        mode=mode,
        token=uow.select("lock.last_token", resource)[0][0] + 1,
        acquired_at=from_us(now),
        expires_at=from_us(now + lease_ms * 1000),
    )
    uow.insert(LOCK, fresh)
    return fresh, ()


def _held(uow: UnitOfWork, token: LockToken, holder: str) -> Lock:
    for lock in uow.select_path(LOCK, "list_by_resource", token.resource):
        if lock.token == token.token and lock.holder == holder and to_us(lock.expires_at) > uow.now_us:
            found: Lock = lock
            return found
    raise LockExpired(resource=token.resource)
