"""Removal of ended locks and expired requests, in pages; the tokens of a resource keep rising.

The newest row of a resource holds its newest token. Once no lock of the resource is left, its rows are deleted, and
their highest token is kept in one row for all such resources: a resource without a row begins above that token, also
when the clock was put back since. Source: K-037.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

from caliber.agents.locking.lock_queue import FLOOR
from caliber.model.agents import Lock, LockMode
from caliber.model.ids import LockId
from caliber.model.time import EPOCH
from caliber.schema.relations import LOCK
from caliber.storage.write.unit_of_work import UnitOfWork

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
