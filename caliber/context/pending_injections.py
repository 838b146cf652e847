"""One-time injections: rows that a trigger writes, and the next assembled window claims, includes and deletes.

A row waits in ``pending_injection`` and in memory, where a window finds it without a statement. One lock decides which
window takes it, against the newest boundary, so that of concurrent windows only one includes it. The transaction that
stores the window deletes the row. A window that is stored before the call returns is rolled back and made again if
another process was first; a window that is stored behind the call may include a row that another process included too.
Source: K-065; docs/decisions/0167.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from typing import Final

from caliber.config.injection import CONVERSATION, InjectionKind, InjectionMode
from caliber.context.rules import OneShot
from caliber.engine.write_behind import Deferred
from caliber.model.context import PendingInjection
from caliber.model.errors import Conflict, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import TrajectoryId
from caliber.model.time import from_us
from caliber.resident.memory import ResidentMemory
from caliber.schema.relations import PENDING_INJECTION
from caliber.storage.write.unit_of_work import UnitOfWork

_NAME: Final = PENDING_INJECTION.name


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows that one window takes, by key and version, and the rules they are."""

    rows: tuple[tuple[bytes, int], ...] = ()
    rules: tuple[OneShot, ...] = ()


NO_CLAIM: Final = Claim()


class PendingInjections(Deferred):
    """Decides which window gets a pending injection; one per open store. Deferred writes pass claims as items."""

    rank = 1

    def __init__(self, memory: ResidentMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._taken: dict[bytes, int] = {}

    def waiting(self, trajectory_id: uuid.UUID) -> tuple[OneShot, ...]:
        """Return the claim that the next window of a trajectory would take, without taking it."""
        return self._claim(trajectory_id, take=False).rules

    def claim(self, trajectory_id: uuid.UUID, consumed: Set[tuple[bytes, int]] = frozenset()) -> Claim:
        """Claim the pending injections for the next window of a trajectory; no other window of this process gets them.

        ``consumed`` are rows that another process took, even if memory still has them.
        """
        if not self._memory.snapshot[_NAME].count():
            return NO_CLAIM
        return self._claim(trajectory_id, take=True, consumed=consumed)

    def _claim(self, trajectory_id: uuid.UUID, *, take: bool, consumed: Set[tuple[bytes, int]] = frozenset()) -> Claim:
        with self._lock:
            pending = self._memory.snapshot[_NAME]
            rows, rules = [], {}
            for number in pending.group("trajectory_id", trajectory_id.bytes).tolist():
                row: PendingInjection = self._memory.entity(pending, number)
                key = row.injection_id.bytes
                if self._taken.get(key) == row.version or (key, row.version) in consumed:
                    continue
                rows.append((key, row.version))
                rules[row.origin] = OneShot(
                    row.memory, InjectionKind(row.kind), row.count, row.min_relevance, row.origin
                )
            if take:
                self._taken.update(rows)
            return Claim(tuple(rows), tuple(rules[origin] for origin in sorted(rules))) if rows else NO_CLAIM

    def give_back(self, claim: Claim) -> None:
        """Release a claim, as its window was not made: the next window gets the injections."""
        self._forget(claim)

    def write(self, uow: UnitOfWork, items: Iterable[Claim]) -> None:
        for claim in items:
            consume(uow, claim)

    def written(self, items: Iterable[Claim]) -> None:
        for claim in items:
            self.committed(claim)

    def committed(self, claim: Claim) -> None:
        """Note that claimed rows were deleted from the store, and from memory."""
        self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        with self._lock:
            for key, version in claim.rows:
                if self._taken.get(key) == version:
                    del self._taken[key]


def consume(uow: UnitOfWork, claim: Claim) -> None:
    """Delete the rows that a window consumed. A row that a trigger requested again meanwhile stays."""
    for key, version in claim.rows:
        row: PendingInjection | None = uow.find(PENDING_INJECTION, key)
        if row is None or row.version != version:
            continue
        try:
            # Delete exactly the claimed version: a deletion by itself does not compare versions.
            row = uow.update(PENDING_INJECTION, row)
        except Conflict:
            continue
        uow.delete(PENDING_INJECTION, row)


def consume_all(uow: UnitOfWork, claim: Claim) -> bool:
    """Delete the rows that a window consumed, if all are unchanged since the claim; else delete none and return False.

    Raises: Conflict when another process deletes them at this moment; the transaction must then roll back
    """
    rows = [uow.find(PENDING_INJECTION, key) for key, _ in claim.rows]
    if any(row is None or row.version != version for row, (_, version) in zip(rows, claim.rows, strict=True)):
        return False
    for row in rows:
        uow.delete(PENDING_INJECTION, uow.update(PENDING_INJECTION, row))  # a deletion does not compare versions
    return True


def try_commit(claim: Claim, keep: Callable[[], bool]) -> bool:
    """Return whether ``keep`` stored a window: False if another process consumed its injections first."""
    try:
        return keep()
    except Conflict:
        if not claim.rows:
            raise
        return False


def ask_for(uow: UnitOfWork, trajectory_id: uuid.UUID, memory: str, mode: InjectionMode, origin: str) -> bool:
    """Let records of a memory be in the trajectory's next window; return whether there is anything to ask for.

    The conversation is in every window anyway; its turns, and those of other tasks, can be ranked.
    """
    if memory == CONVERSATION and not mode.kind.ranks:
        return False
    key = _key_of(trajectory_id, origin)
    existing: PendingInjection | None = uow.find(PENDING_INJECTION, key.bytes)
    new = PendingInjection(
        injection_id=key,
        trajectory_id=TrajectoryId(trajectory_id),
        origin=origin,
        memory=memory,
        kind=mode.kind.value,
        created_at=from_us(uow.now_us),
        count=mode.count,
        min_relevance=mode.min_relevance,
    )
    if existing is None:
        uow.insert_new(PENDING_INJECTION, new)
    else:
        uow.update(PENDING_INJECTION, replace(new, version=existing.version))
    return True


def drop(uow: UnitOfWork, trajectory_id: uuid.UUID) -> None:
    """Drop all requests: the trajectory is over, and requests made at its end come later."""
    for row in uow.select_path(PENDING_INJECTION, "list_by_trajectory", trajectory_id.bytes):
        with contextlib.suppress(NotFound):  # a window that took it is being kept at this moment
            uow.delete(PENDING_INJECTION, row)


def _key_of(trajectory_id: uuid.UUID, origin: str) -> uuid.UUID:
    """Return the id of the injection of one policy rule in one trajectory: a UUID of version 8."""
    digest = bytearray(hashlib.blake2b(trajectory_id.bytes + origin.encode(), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(digest))
