"""Transactions of locks: granting one in turn, and keeping a place in the queue of its resource.

Each transaction serializes on its resource. A request is granted when no lock of another holder is in its way and no
request ahead of it in the queue is: a stream of shared locks cannot starve an exclusive one.

A holder that asks again for a resource it holds does not queue behind others: they wait for its lock already, so that
neither would go on. Where it shares the resource, and asks to share it while another's exclusive request waits, it gets
the lock that it has, with the same token and the same lease: readers under one label cannot keep a lock alive by asking
for it in turn. The lock ends with its lease, or with the first release, and the exclusive request is next.

The newest row of a resource holds its newest token. Once no lock of the resource is left, its rows are deleted, and
their highest token is kept in one row for all such resources: a resource without a row begins above that token, also
when the clock was put back since.

Source: C-364 to C-368, K-036, K-037.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeVar

from caliber.engine.commit_waiters import Key, wake_waiters
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model.agents import Lock, LockMode, LockToken, LockWaiter
from caliber.model.errors import LockExpired, PermissionDenied
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import LockId, LockWaiterId
from caliber.model.time import EPOCH, MS_US, from_us, to_us
from caliber.schema.relation import Relation
from caliber.schema.relations import LOCK, LOCK_WAITER
from caliber.storage.write.unit_of_work import UnitOfWork

_RENEWED_AT: Final = 2 / 3
"""The share of its time that a place in the queue has left when a waiter renews it."""
_PAGE: Final = 1_000
"""The most locks of a holder that one statement reads."""
_LISTS: Final = ((LOCK, "list_by_resource"), (LOCK_WAITER, "list_by_resource"))
"""The access paths to the locks of a resource and to the requests that wait for it, in their order."""
FLOOR: Final = ""
"""The resource, which no caller can name, of the row with the highest token that was deleted."""
_WITH_FLOOR: Final = ((LOCK, "lock.of_resource"), _LISTS[1])
"""As ``_LISTS``, with that row among the locks."""
_TOO_FAR: Final = 1.5
"""A place with more of its time left than this is of a clock that was put back since."""


C = TypeVar("C", Lock, LockWaiter)


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a lock. ``waiter_id`` is its place in the queue; without it the request does not queue."""

    resource: str
    holder: str
    mode: LockMode
    lease_ms: int
    place_ms: int
    """The time after which a waiter that does not renew its place loses it."""
    waiter_id: LockWaiterId | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """The reasons why a request is not granted yet."""

    holders: tuple[str, ...]
    """The holders of locks in its way, then those of requests ahead of it."""
    awaited: frozenset[uuid.UUID]
    """The locks, or the one request, whose end may let it go on."""
    free_in_us: int
    """The time until the first of them runs out."""


Wake = Callable[[str, uuid.UUID], None]
"""Wakes those of this process who wait for a resource, because a lock or request of it has ended."""


def keys(*names: str | uuid.UUID) -> frozenset[Key]:
    """Return the keys of waiters for resources, locks and requests."""
    return frozenset((LOCK.name, name) for name in names)


def waker(engine: Engine) -> Wake:
    """Return a function that wakes the waiters of this process for the end of a lock or request of a resource."""

    def wake(resource: str, ended: uuid.UUID) -> None:
        wake_waiters(engine, *keys(resource, ended))

    return wake


def attempt(uow: UnitOfWork, request: Request, wake: Wake) -> Lock | Blocked:
    """Grant a request, or keep its place in the queue and return what it waits for."""
    rows, queue = uow.serialize_and_list(request.resource, *_WITH_FLOOR)
    locks = [row for row in rows if row.resource != FLOOR]
    now = uow.now_us
    own_place = next((each for each in queue if each.waiter_id == request.waiter_id), None)
    ticket = None if own_place is None else own_place.ticket
    live = _Queue.live(locks, queue, now)
    in_the_way, ahead = live.obstacles(request.holder, request.mode, ticket)
    if in_the_way or ahead:
        return _wait(uow, request, in_the_way, ahead, queue, own_place)
    if own_place is not None:
        _leave(uow, own_place, len(queue) > 1, wake)
    shared = live.shared_again(request, ticket)
    if shared is not None:
        return shared
    newest = max((row.token for row in locks or rows), default=0)
    # A resource without a row may have lost it with an erased name: its tokens must not begin anew.
    token = newest + 1 if locks else max(now, newest + 1)
    return _grant(uow, request, locks, token, wake if len(queue) > (own_place is not None) else None)


@dataclass(frozen=True, slots=True)
class _Queue:
    """The live locks of a resource and the live requests for it, in order."""

    locks: Sequence[Lock]
    waiters: Sequence[LockWaiter]

    @classmethod
    def live(cls, locks: Sequence[Lock], waiters: Sequence[LockWaiter], now: int) -> _Queue:
        """Return those of the stored ones that count."""
        return cls(
            [lock for lock in locks if to_us(lock.expires_at) > now], [each for each in waiters if waits(each, now)]
        )

    def obstacles(self, holder: str, mode: LockMode, ticket: int | None) -> tuple[list[Lock], list[LockWaiter]]:
        """Return the locks of others, and the requests of others ahead, that a request has to wait for."""
        in_the_way = _conflicting(self.locks, holder, mode)
        if self._held_by(holder) is not None:
            return in_the_way, []
        return in_the_way, self._ahead(holder, mode, ticket)

    def shared_again(self, request: Request, ticket: int | None) -> Lock | None:
        """Return the lock of a holder that asks to share what it shares, ahead of exclusive requests of others."""
        own = self._held_by(request.holder)
        if own is None or own.mode is not LockMode.SHARED or request.mode is not LockMode.SHARED:
            return None
        return own if self._ahead(request.holder, request.mode, ticket) else None

    def _held_by(self, holder: str) -> Lock | None:
        return next((lock for lock in self.locks if lock.holder == holder), None)

    def _ahead(self, holder: str, mode: LockMode, ticket: int | None) -> list[LockWaiter]:
        """Return the requests of others that came before a request and conflict with it."""
        ahead = [each for each in self.waiters if ticket is None or each.ticket < ticket]
        return _conflicting(ahead, holder, mode)


def _conflicting(others: Sequence[C], holder: str, mode: LockMode) -> list[C]:
    return [each for each in others if each.holder != holder and LockMode.EXCLUSIVE in (mode, each.mode)]


def waits(waiter: LockWaiter, now_us: int) -> bool:
    """Return whether a request still waits; if not, its process died or was suspended."""
    return 0 < _left_of(waiter, now_us) <= _TOO_FAR


def _left_of(waiter: LockWaiter, now_us: int) -> float:
    """Return the share of its time that a place in the queue has left."""
    ends = to_us(waiter.expires_at)
    return (ends - now_us) / max(1, ends - to_us(waiter.renewed_at))


def _grant(uow: UnitOfWork, request: Request, locks: Sequence[Lock], token: int, wake: Wake | None) -> Lock:
    """Write a lock; ``wake`` is for those who wait for an exclusive one that becomes a shared one."""
    now = uow.now_us
    lasting = [lock for lock in locks if lock.holder != request.holder and to_us(lock.expires_at) > now]
    free = [lock for lock in locks if lock not in lasting]
    fresh = Lock(
        lock_id=LockId(uuid7()),
        resource=request.resource,
        holder=request.holder,
        mode=request.mode,
        token=token,
        acquired_at=from_us(now),
        expires_at=from_us(now + request.lease_ms * MS_US),
    )
    if not free:
        uow.insert(LOCK, fresh)
        return fresh
    if wake is not None:
        for lock in free:
            if to_us(lock.expires_at) > now:
                _announce(uow, LOCK, lock, lock.lock_id, wake)
    # A row that ended is used again: a resource that is locked often keeps one row, whose token rises.
    again: Lock = uow.update(LOCK, dataclasses.replace(fresh, lock_id=free[-1].lock_id, version=free[-1].version))
    if len(free) > 1:
        # The others are over for good, also when the clock is put back.
        for lock in free[:-1]:
            uow.delete(LOCK, lock)
    return again


def _wait(
    uow: UnitOfWork,
    request: Request,
    in_the_way: Sequence[Lock],
    ahead: Sequence[LockWaiter],
    queue: Sequence[LockWaiter],
    place: LockWaiter | None,
) -> Blocked:
    now = uow.now_us
    # Only the nearest request ahead is awaited: the end of a lock wakes the first of the queue, not all of it.
    awaited: dict[uuid.UUID, Lock | LockWaiter] = {lock.lock_id: lock for lock in in_the_way}
    if ahead:
        awaited = {ahead[-1].waiter_id: ahead[-1]}
    blocked = Blocked(
        holders=tuple(dict.fromkeys([*(lock.holder for lock in in_the_way), *(each.holder for each in ahead)])),
        awaited=frozenset(awaited),
        free_in_us=min(to_us(each.expires_at) for each in awaited.values()) - now,
    )
    if request.waiter_id is None:
        return blocked
    expires_at = from_us(now + request.place_ms * MS_US)
    if place is None:
        last = queue[-1].ticket if queue else 0
        waiter = LockWaiter(
            waiter_id=request.waiter_id,
            resource=request.resource,
            holder=request.holder,
            mode=request.mode,
            ticket=last + 1,
            queued_at=from_us(now),
            renewed_at=from_us(now),
            expires_at=expires_at,
        )
        uow.insert(LOCK_WAITER, waiter)
    elif not _RENEWED_AT < _left_of(place, now) <= 1:
        uow.update(LOCK_WAITER, dataclasses.replace(place, renewed_at=from_us(now), expires_at=expires_at))
    return blocked


# --- the end of locks and requests ---------------------------------------------------------------


def renew(uow: UnitOfWork, token: LockToken, holder: str, lease_ms: int) -> Lock:
    """Extend a lease. Raises: LockExpired; PermissionDenied when another holds it."""
    (locks,) = uow.serialize_and_list(token.resource, *_LISTS[:1])
    lock = _held(uow, locks, token, holder, "renew")
    if lock is None:
        raise LockExpired(resource=token.resource)
    expires = from_us(uow.now_us + lease_ms * MS_US)
    renewed: Lock = uow.update(LOCK, dataclasses.replace(lock, expires_at=expires))
    return renewed


def release(uow: UnitOfWork, token: LockToken, holder: str, wake: Wake) -> bool:
    """End a lease; return whether it was held. Raises: PermissionDenied when another holds it."""
    locks, queue = uow.serialize_and_list(token.resource, *_LISTS)
    lock = _held(uow, locks, token, holder, "release")
    if lock is not None:
        _end(uow, lock, wake if queue else None)
    return lock is not None


def end(uow: UnitOfWork, lock: Lock, wake: Wake) -> None:
    """End a lease, as ``release`` of a lock that was read in this transaction."""
    _end(uow, lock, wake if uow.path_rows(LOCK_WAITER, "list_by_resource", lock.resource) else None)


def _end(uow: UnitOfWork, lock: Lock, wake: Wake | None) -> None:
    """End a lease; ``wake`` is for those who wait for it.

    The row stays as the newest token of its resource, so that tokens keep rising. The lease is over for good, also
    when the clock is put back.
    """
    if wake is not None:
        _announce(uow, LOCK, lock, lock.lock_id, wake)
    uow.update(LOCK, dataclasses.replace(lock, expires_at=EPOCH))


def leave(uow: UnitOfWork, resource: str, waiter_id: LockWaiterId, wake: Wake) -> None:
    """Take a request out of the queue, and wake those who wait for it."""
    uow.serialize(resource)
    queue = uow.select_path(LOCK_WAITER, "list_by_resource", resource)
    for waiter in queue:
        if waiter.waiter_id == waiter_id:
            _leave(uow, waiter, len(queue) > 1, wake)


def forfeit(uow: UnitOfWork, holders: Collection[str], wake: Wake) -> None:
    """End the leases of holders that are gone, withdraw their requests, and wake those who wait for them."""
    for holder in sorted(holders):
        for waiter in uow.select_path(LOCK_WAITER, "list_by_holder", holder):
            leave(uow, waiter.resource, waiter.waiter_id, wake)
        while found := uow.select_entities(LOCK, "lock.list_live", uow.now_us, holder, _PAGE):
            for resource in sorted({lock.resource for lock in found}):
                uow.serialize(resource)
                for lock in uow.select_path(LOCK, "list_by_resource", resource):
                    if lock.holder == holder and to_us(lock.expires_at) > uow.now_us:
                        end(uow, lock, wake)


def _leave(uow: UnitOfWork, waiter: LockWaiter, is_awaited: bool, wake: Wake) -> None:
    if is_awaited:
        _announce(uow, LOCK_WAITER, waiter, waiter.waiter_id, wake)
    uow.delete(LOCK_WAITER, waiter)


def _announce(uow: UnitOfWork, relation: Relation, entity: Lock | LockWaiter, key: uuid.UUID, wake: Wake) -> None:
    """Let the waiters of all processes learn that a row has ended, once it has."""
    uow.record_change(relation, entity, None)
    uow.on_commit.append(lambda: wake(entity.resource, key))


def _held(uow: UnitOfWork, locks: Sequence[Lock], token: LockToken, holder: str, action: str) -> Lock | None:
    for lock in locks:
        if lock.token == token.token and to_us(lock.expires_at) > uow.now_us:
            if lock.holder != holder:
                raise PermissionDenied(agent_id=holder, action=action, resource="a lock of another holder")
            return lock
    return None


_FLOOR_ID: Final = LockId(uuid.UUID(int=0))
_HOLDER: Final = "system:locks"
PAGE: Final = 500
"""The most resources that one transaction cleans."""


class Reaped(NamedTuple):
    """The rows that a page removed, and the resource after which the next page begins; None after the last one."""

    rows: int
    after: str | None


def reap(write: Callable[[Callable[[UnitOfWork], Reaped]], Reaped]) -> int:
    """Delete ended locks and expired requests, a page a transaction; return how many. Raises: StorageError kinds."""
    rows, after = 0, ""
    while True:
        page = write(lambda uow, after=after: reap_page(uow, after))  # type: ignore[misc]
        rows += page.rows
        if page.after is None:
            return rows
        after = page.after


def reap_page(uow: UnitOfWork, after: str = "") -> Reaped:
    """Delete ended locks and expired requests of the next resources.

    A resource that another transaction works on is left to the next time. Of one with a lock that lasts, the newest row
    stays.
    """
    uow.serialize(FLOOR)  # one at a time raises the floor
    page = uow.select("lock.ended", uow.now_us, after, PAGE)
    free = json.dumps([resource for resource, is_free in page if is_free])
    tokens = [token for (token,) in uow.select("lock.delete_ended", uow.now_us, free)]
    if tokens:
        _raise_floor(uow, max(tokens))
    requests = uow.execute("lock_waiter.delete_ended", uow.now_us, free)
    return Reaped(len(tokens) + requests, page[-1][0] if len(page) == PAGE else None)


def _raise_floor(uow: UnitOfWork, token: int) -> None:
    """Let tokens of resources without a row begin above ``token``."""
    floor: Lock | None = uow.find(LOCK, _FLOOR_ID.bytes)
    if floor is None:
        uow.insert(LOCK, Lock(_FLOOR_ID, FLOOR, _HOLDER, LockMode.EXCLUSIVE, token, EPOCH, EPOCH))
    elif floor.token < token:
        uow.update(LOCK, dataclasses.replace(floor, token=token))
