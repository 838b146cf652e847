"""Usage counts: how often each record was retrieved and when last, written behind.

Source: O-10, O-12, design section 4.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from caliber.engine.write_behind import Deferred, Entry
from caliber.schema.relations import USAGE
from caliber.storage.write.unit_of_work import UnitOfWork

Owners = Callable[[], Iterable[tuple[str, uuid.UUID]]]
"""Names records, by kind and id, when the thread that writes asks it."""

Count = tuple[str, uuid.UUID, int, int]
"""The kind and id of a record, how many uses, and the instant of the last."""


class UsageCounts(Deferred):
    """Uses of one record are counted together, under its id; owners that are named later have no key until then."""

    rank = 3

    def of(self, kind: str, owners: Iterable[uuid.UUID], at_us: int) -> list[Entry]:
        """Return the entries that count one use of each owner."""
        return [(self, owner, (kind, owner, 1, at_us)) for owner in owners]

    def merge(self, old: Count, new: Count) -> Count:
        return old[0], old[1], old[2] + new[2], max(old[3], new[3])

    def make(self, items: dict[Hashable, Any]) -> None:
        for key in [key for key, item in items.items() if callable(item[0])]:
            owners, at_us = items[key]
            for kind, owner in list(owners()):
                count: Count = (kind, owner, 1, at_us)
                items[owner] = self.merge(items[owner], count) if owner in items else count
            del items[key]  # once, however often it is tried

    def write(self, uow: UnitOfWork, items: Iterable[Count]) -> None:
        for kind, owner, times, at_us in items:
            uow.change(USAGE, "usage.bump", kind, owner.bytes, times, at_us)
