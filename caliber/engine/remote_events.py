"""Events of other processes, as an open tenant takes them in. Source: C-242 to C-244; decision 0099."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caliber.events.bus import EventBus
from caliber.model.events import Event, EventType


class RemoteEvents:
    """Brings memory up to date first, then tells subscribers: what they are told of is there when they look."""

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

    def heard(self) -> None:
        was_blind, self._is_blind = self._is_blind, True
        self._follow()
        self._is_blind = False
        if was_blind:
            self.missed("memory could not be brought up to date", None)

    def told(self, event: Event) -> None:
        # What may be heard is read from memory: while that is behind, only who may hear all is told.
        self._bus.publish_from_elsewhere(event, to_all=not self._is_blind)

    def missed(self, reason: str, last: Event | None) -> None:
        payload: dict[str, Any] = {"reason": reason, "last_event_id": None if last is None else str(last.event_id)}
        self._bus.publish_from_elsewhere(self._event(EventType.EVENTS_MISSED, payload=payload))

    def failed(self, where: str, error: BaseException) -> None:
        self._failed(where, error)
