"""Facet ``memory.events``: subscribe to events, filtered for one principal."""

from __future__ import annotations

from collections.abc import Callable

from caliber.events.bus import EventBus, EventFilter, Subscriber
from caliber.model import arguments
from caliber.model.errors import DTypeError
from caliber.model.events import Event


class Events:
    """Subscriptions to events of this process, and of others."""

    def __init__(
        self,
        bus: EventBus,
        event_filter: EventFilter | None,
        *,
        check_open: Callable[[], None],
        check_remote: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._event_filter = event_filter
        self._check_open = check_open
        self._check_remote = check_remote

    def subscribe(
        self, subscriber: Subscriber, *, event_type: str | None = None, remote: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` after each commit with its events; return a function that ends the subscription.

        ``remote`` adds the commits of other processes, in their order, on another thread: such an event has ids, not
        its payload. After an outage an event ``events_missed`` comes first, whatever ``event_type`` is. Events of
        records that the principal may not read are left out: notes, others' windows, audit events; an admin gets all.

        Raises: DTypeError; with ``remote`` MissingRequired (no ``storage.feed_dsn``), IncompatibleOptions (SQLite).
        """
        self._check_open()
        if event_type is not None:
            arguments.as_text(event_type, "event_type")
        arguments.as_flag(remote, "remote")
        if not callable(subscriber):
            raise DTypeError(field="subscriber", expected="a callable", got=type(subscriber).__name__)
        if remote:
            self._check_remote()
        return self._bus.subscribe(subscriber, event_type=event_type, remote=remote, event_filter=self._event_filter)

    def _deliver(self, subscriber: Subscriber, event: Event) -> None:
        """Call one subscriber; its error goes where those of the bus go."""
        self._bus.deliver(subscriber, event)
