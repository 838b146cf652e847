"""The in-process event bus: subscribers hear of events after the commit that made them true. Source: C-242 to C-244."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from caliber.model.entities import Event

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
        self._subscribers: tuple[tuple[str | None, Subscriber], ...] = ()
        self._failed = failed

    def subscribe(self, subscriber: Subscriber, *, event_type: str | None = None) -> Callable[[], None]:
        """Call ``subscriber`` for each event, or each of one type; return what ends the subscription."""
        entry = (event_type, subscriber)
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(item for item in self._subscribers if item is not entry)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Tell everyone who asked."""
        for event_type, subscriber in self._subscribers:
            if event_type is None or event_type == event.event_type:
                try:
                    subscriber(event)
                except Exception as error:
                    self._failed(event, error)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._subscribers
