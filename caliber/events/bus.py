"""The in-process event bus: subscribers hear of events after the commit that made them true. Source: C-242 to C-244."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from caliber.model.entities import Event
from caliber.model.enums import EventType

Subscriber = Callable[[Event], None]


class FailureSink(Protocol):
    """Who is told when a subscriber raises."""

    def __call__(self, event: Event, error: Exception) -> None: ...


class EventBus:
    """Delivers events to subscribers in the publishing thread, in order.

    A subscriber that raises does not undo what was committed, nor keep others from hearing: its error goes to the
    failure sink, which records it.
    """

    def __init__(self, failed: FailureSink) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[tuple[str | None, bool, Subscriber], ...] = ()
        self._failed = failed

    def subscribe(
        self, subscriber: Subscriber, *, event_type: str | None = None, elsewhere: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` for each event, or each of one type; return what ends the subscription.

        ``elsewhere`` adds those of other processes, where the store hears of them.
        """
        entry = (event_type, elsewhere, subscriber)
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(item for item in self._subscribers if item is not entry)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Tell everyone who asked."""
        for event_type, _, subscriber in self._subscribers:
            if event_type is None or event_type == event.event_type:
                self.deliver(subscriber, event)

    def publish_from_elsewhere(self, event: Event) -> None:
        """Tell those who asked for other processes' events too; of missed ones, whatever type they asked for."""
        for event_type, elsewhere, subscriber in self._subscribers:
            if elsewhere and (event_type in (None, event.event_type) or event.event_type == EventType.EVENTS_MISSED):
                self.deliver(subscriber, event)

    def deliver(self, subscriber: Subscriber, event: Event) -> None:
        """Call one subscriber; what it raises goes to the failure sink."""
        try:
            subscriber(event)
        except Exception as error:
            self._failed(event, error)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._subscribers
