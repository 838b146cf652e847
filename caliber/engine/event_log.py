"""Write-behind of logged events: the writer thread builds each event's row and inserts it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from caliber.engine.write_behind import Deferred
from caliber.model.events import Event, EventType
from caliber.schema.relations import EVENT
from caliber.storage.write.unit_of_work import UnitOfWork


class EventLog(Deferred):
    """Items are events, or functions without arguments that make one."""

    rank = 2

    def make(self, items: dict[Hashable, Any]) -> None:
        for key, event in items.items():
            if not isinstance(event, Event):
                items[key] = event()

    def write(self, uow: UnitOfWork, items: Iterable[Event]) -> None:
        for event in items:
            uow.insert_new(EVENT, event)

    def reports(self, item: Any) -> bool:
        # An error that cannot be recorded is not recorded as another.
        return not (isinstance(item, Event) and item.event_type == EventType.ERROR)
