"""Event log: rows that are inserted with the change they report and published after the commit; the newest of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final

from caliber.events.bus import EventFilter
from caliber.model.events import Event
from caliber.schema.relations import EVENT
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

_AT: Final = itemgetter(codec_of(EVENT).index("created_at"), 0)
_MORE: Final = 4
"""Factor by which more events are read where the principal may not see some of them."""


def audit(uow: UnitOfWork, event: Event) -> None:
    """Write an event in this transaction, and queue it for after the commit."""
    uow.insert(EVENT, event)
    uow.events.append(event)


def log(uow: UnitOfWork, event: Event, publish: Callable[[Event], None]) -> None:
    """Write an event of any family in this transaction, and ``publish`` it after the commit."""
    uow.insert(EVENT, event)
    uow.logged.append(event)
    uow.on_commit.append(lambda: publish(event))


def newest(
    store: Store, path: str, by: tuple[Any, ...], count: int, shown: EventFilter | None, also: Iterable[Row] = ()
) -> list[Event]:
    """Return the newest events of an access path, and of the rows ``also``, as far as they are ``shown``."""
    plans, asked = store.plans[EVENT.name], count
    while True:
        with store.read() as session:
            rows = session.run(plans.lists[path], (*by, asked))
        found = map(plans.codec.decode, sorted((*rows, *also), key=_AT, reverse=True))
        events = [event for each in found if (event := each if shown is None else shown(each)) is not None]
        if len(events) >= count or len(rows) < asked:
            return events[:count]
        asked *= _MORE
