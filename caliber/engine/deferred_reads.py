"""Deferred rows of reads, events among them, which are not written after an erasure that the read came before.

A read finds records, the subject of an erasure among them, and queues a row about them: a window, an event, an error.
The transaction that writes the row counts the erasures first, under a lock that the erasing transaction takes too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from caliber.engine.write_behind import Deferred
from caliber.model.events import Event, EventType
from caliber.schema.relations import ERASURE, EVENT
from caliber.storage.write.unit_of_work import UnitOfWork

ERASING: Final = "erasing"
"""The lock of transactions that erase, and of those that write rows of earlier reads."""


FromRead = tuple[int, Any]
"""The number of erasures before a read, and the row, or a function without arguments that makes it."""


def made(item: Any) -> Any:
    """Return an item with its row made."""
    if isinstance(item, tuple):
        return item[0], made(item[1])
    return item() if callable(item) else item


def row_of(item: Any) -> Any:
    """Return the row of an item that was made."""
    return item[1] if isinstance(item, tuple) else item


class DeferredReads(Deferred):
    """A kind of deferred writes: its items are rows, functions without arguments that make one, or ``FromRead``."""

    def make(self, items: dict[Hashable, Any]) -> None:
        for key, item in items.items():
            items[key] = made(item)

    def write(self, uow: UnitOfWork, items: Iterable[Any]) -> None:
        items = list(items)
        erasures = 0
        if any(isinstance(item, tuple) for item in items):
            uow.serialize(ERASING)
            erasures = uow.count(ERASURE)
        stale = [isinstance(item, tuple) and item[0] < erasures for item in items]
        rows = [self.forgotten(row_of(item)) if old else row_of(item) for item, old in zip(items, stale, strict=True)]
        self.insert(uow, [row for row in rows if row is not None])

    def insert(self, uow: UnitOfWork, rows: Sequence[Any]) -> None:
        """Write rows in a transaction that they share with other kinds."""
        raise NotImplementedError

    def forgotten(self, row: Any) -> Any | None:  # noqa: ARG002
        """Return the part of a row that may be written though its read came before an erasure; None for nothing."""
        return None


class EventLog(DeferredReads):
    """Rows are events."""

    rank = 2

    def insert(self, uow: UnitOfWork, rows: Sequence[Event]) -> None:
        for event in rows:
            uow.insert_new(EVENT, event)

    def forgotten(self, row: Event) -> Event | None:
        """Return an error without its message, which may quote a record; nothing of other events."""
        if row.event_type != EventType.ERROR:
            return None
        payload = {name: row.payload[name] for name in ("where", "error")} | {"message": "[forgotten]"}
        return dataclasses.replace(row, payload=payload)

    def reports(self, item: Any) -> bool:
        # An error that cannot be recorded is not recorded as another.
        event = row_of(item)
        return not (isinstance(event, Event) and event.event_type == EventType.ERROR)
