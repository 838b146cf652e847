"""Delivery of events from other processes to the subscribers of an open tenant.

Source: C-242 to C-244; decision 0099.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caliber.events.bus import EventBus
from caliber.model.events import Event, EventType


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
