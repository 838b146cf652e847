"""Transactional event logging: inserts an event's row with the change it reports, published after the commit."""

from __future__ import annotations

from collections.abc import Callable

from caliber.model.events import Event
from caliber.schema.relations import EVENT
from caliber.storage.write.unit_of_work import UnitOfWork


def audit(uow: UnitOfWork, event: Event) -> None:
    """Write an event in this transaction, and queue it for after the commit."""
    uow.insert(EVENT, event)
    uow.events.append(event)


def log(uow: UnitOfWork, event: Event, publish: Callable[[Event], None]) -> None:
    """Write an event of any family in this transaction, and ``publish`` it after the commit."""
    uow.insert(EVENT, event)
    uow.logged.append(event)
    uow.on_commit.append(lambda: publish(event))
