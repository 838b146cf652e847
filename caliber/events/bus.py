"""In-process event bus: delivers events to subscribers after their commit, those of other processes too.

Source: C-242 to C-244; decision 0099.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from caliber.model.events import Event, EventType
from caliber.model.process.interrupts import let_through

Subscriber = Callable[[Event], None]
EventFilter = Callable[[Event], Event | None]
"""Returns the part of an event that a subscriber may see; None to withhold the event."""
FailureSink = Callable[[Event, Exception], None]
"""Receives the errors that subscribers raise."""


class _Entry(NamedTuple):
    event_type: str | None
    remote: bool
    subscriber: Subscriber
    event_filter: EventFilter | None


class EventBus:
    """Delivers events to subscribers in the publishing thread, in order.

    An exception of a subscriber affects neither the commit nor other subscribers: it goes to the failure sink, which
    records it.
    """

    def __init__(self, failed: FailureSink) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[_Entry, ...] = ()
        self.idle = True
        """True if there is no subscriber; every read asks."""
        self._failed = failed

    def subscribe(
        self,
        subscriber: Subscriber,
        *,
        event_type: str | None = None,
        remote: bool = False,
        event_filter: EventFilter | None = None,
    ) -> Callable[[], None]:
        """Call ``subscriber`` for each event, or each of one type; return a function that ends the subscription.

        ``remote`` adds the events of other processes, where the store delivers them. ``event_filter`` None: all.
        """
        entry = _Entry(event_type, remote, subscriber, event_filter)
        with self._lock:
            self._subscribers = (*self._subscribers, entry)
            self.idle = False

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(item for item in self._subscribers if item is not entry)
                self.idle = not self._subscribers

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Deliver an event to every subscriber of its type."""
        for entry in self._subscribers:
            if entry.event_type is None or entry.event_type == event.event_type:
                self._tell(entry, event)

    def publish_from_elsewhere(self, event: Event, *, to_all: bool = True) -> None:
        """Deliver a remote event to those who subscribed to them; ``events_missed`` goes to all, whatever their type.

        Not ``to_all`` leaves out those whose visibility is to be asked.
        """
        missed = event.event_type == EventType.EVENTS_MISSED
        for entry in self._subscribers:
            if not to_all and entry.event_filter is not None:
                continue
            if entry.remote and (missed or entry.event_type in (None, event.event_type)):
                self._tell(entry, event)

    def _tell(self, entry: _Entry, event: Event) -> None:
        """Deliver the visible part of an event to one subscriber; nothing if that cannot be determined."""
        heard: Event | None = event
        if entry.event_filter is not None:
            try:
                heard = entry.event_filter(event)
            except Exception as error:
                let_through(error)
                self._failed(event, error)
                return
        if heard is not None:
            self.deliver(entry.subscriber, heard)

    def deliver(self, subscriber: Subscriber, event: Event) -> None:
        """Call one subscriber; its exception goes to the failure sink."""
        try:
            subscriber(event)
        except Exception as error:
            let_through(error)
            self._failed(event, error)


class RemoteEvents:
    """Listener that updates memory first, then delivers events: subscribers find the records of an event."""

    def __init__(
        self,
        follow: Callable[[], None],
        bus: EventBus,
        event: Callable[..., Event],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._follow = follow
        self._bus = bus
        self._event = event
        self._failed = failed
        self._is_blind = False

    def on_change(self) -> None:
        was_blind, self._is_blind = self._is_blind, True
        self._follow()
        self._is_blind = False
        if was_blind:
            self.on_gap("memory could not be brought up to date", None)

    def on_event(self, event: Event) -> None:
        # Access is decided from memory: while memory lags, only subscribers who may see everything get the event.
        self._bus.publish_from_elsewhere(event, to_all=not self._is_blind)

    def on_gap(self, reason: str, last: Event | None) -> None:
        payload: dict[str, Any] = {"reason": reason, "last_event_id": None if last is None else str(last.event_id)}
        self._bus.publish_from_elsewhere(self._event(EventType.EVENTS_MISSED, payload=payload))

    def on_failure(self, where: str, error: BaseException) -> None:
        self._failed(where, error)
