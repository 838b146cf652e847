"""Insertion of event rows by the write-behind queue, and what stays of one whose read came before an erasure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from caliber.engine.deferred_reads import DeferredReads, row_of
from caliber.model.events import Event, EventType
from caliber.schema.relations import EVENT
from caliber.storage.write.unit_of_work import UnitOfWork


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
