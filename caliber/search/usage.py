"""Usage counts: how often each record was retrieved for a reader and when last, written behind.

A use counts for its own reader alone: others must not see from scores or order that a record was shown to somebody.

Source: O-10, O-12, design section 4; docs/access.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.engine.deferred_reads import ERASING
from caliber.engine.write_behind import Deferred, Entry
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations import ERASURE, USAGE
from caliber.schema.traits import ALWAYS_US
from caliber.storage.write.unit_of_work import UnitOfWork

Owners = Callable[[], Iterable[tuple[str, uuid.UUID]]]
"""Names records, by kind and id, when the thread that writes asks it."""


class Count(NamedTuple):
    """Uses of one record for a reader. ``erased`` is the number of erasures before the oldest of them."""

    kind: str
    owner: bytes
    used_by: bytes
    erased: int
    at_us: int
    """The instant of the last use."""
    times: int = 1


class UsageCounts(Deferred):
    """Uses of one record for one reader are counted together; owners that are named later have no key until then."""

    rank = 3

    def of(self, kind: str, owners: Iterable[uuid.UUID], used_by: bytes, erased: int, at_us: int) -> list[Entry]:
        """Return the entries that count one use of each owner."""
        ids = [owner.bytes for owner in owners]
        return [(self, (owner, used_by), Count(kind, owner, used_by, erased, at_us)) for owner in ids]

    def merge(self, old: Count, new: Count) -> Count:
        return old._replace(
            erased=min(old.erased, new.erased), at_us=max(old.at_us, new.at_us), times=old.times + new.times
        )

    def make(self, items: dict[Hashable, Any]) -> None:
        for key in [key for key, item in items.items() if not isinstance(item, Count)]:
            owners, used_by, erased, at_us = items[key]
            for kind, owner in list(owners()):
                for _, one, count in self.of(kind, (owner,), used_by, erased, at_us):
                    items[one] = self.merge(items[one], count) if one in items else count
            del items[key]  # once, however often it is tried

    def write(self, uow: UnitOfWork, items: Iterable[Count]) -> None:
        uow.serialize(ERASING)
        erasures = uow.count(ERASURE)
        for each in items:
            if each.erased >= erasures:  # else its reader, or the record, may have been forgotten since
                key = xor(each.owner, each.used_by)
                uow.change(USAGE, "usage.bump", key, each.kind, each.owner, each.used_by, each.times, each.at_us)


def xor(owner: bytes, used_by: bytes) -> bytes:
    """Return the key of the uses of a record for a reader."""
    return (int.from_bytes(owner) ^ int.from_bytes(used_by)).to_bytes(16)


def keys_of(owners: Iterable[bytes], used_by: Sequence[bytes]) -> list[bytes]:
    """Return the keys of the uses of records for a reader."""
    return [xor(owner, one) for one in used_by for owner in owners]


class Uses(NamedTuple):
    """The uses at a boundary that one reader may know of."""

    usage: RelationSnapshot
    used_by: Sequence[bytes]

    def of(self, owners: RelationSnapshot, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each row was used, and when last: ``ALWAYS_US`` if never. Shapes: ``[n]``"""
        counts, last = np.zeros(len(rows), np.int64), np.full(len(rows), ALWAYS_US, np.int64)
        usage = self.usage
        if usage.length and len(rows):
            ids = owners.ties()[rows]
            for one in self.used_by:
                numbers = usage.find_ids(ids ^ np.frombuffer(one, ">u8").astype(np.uint64))
                found = np.flatnonzero(numbers >= 0)
                counts[found] += usage.column("access_count")[numbers[found]]
                last[found] = np.maximum(last[found], usage.column("last_accessed_at")[numbers[found]])
        return counts, last
