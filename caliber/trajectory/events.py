"""Facet ``memory.events``: subscriptions to events, lists of them, and events of a program's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from caliber.access.corrections import event_filter
from caliber.access.visibility import require
from caliber.engine.engine import Engine
from caliber.events.bus import Subscriber
from caliber.events.event_log import newest
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import DTypeError, InvalidValue, RequiredFieldMissing
from caliber.model.events import Event, is_own
from caliber.model.references import Id
from caliber.schema.relations import TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.json_values import as_json
from caliber.storage.write.unit_of_work import UnitOfWork

PAYLOAD_CHARS: Final = 1 << 20


class Events:
    """Events of this process, and of others: subscribed to, listed, and recorded."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._readers = searching.readers
        self._event_filter = event_filter(principal, searching.sees, searching.readers)

    def record(
        self,
        event_type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        trajectory: Id | None = None,
        duration_ms: int | None = None,
    ) -> Event:
        """Record an event of the program itself, in the trace of a task if one is given; durable when this returns.

        ``event_type`` is a name of its own with a dot in it, such as ``travel.booked``. An event of a task is seen by
        whoever sees the task, another one by its principal and administrators alone.

        Raises: InvalidValue, DTypeError; NotFound for a task; PermissionDenied for one that is only read.
        """
        kind = arguments.as_name(event_type, "event_type")
        if kind is None or not is_own(kind):
            raise InvalidValue(field="event_type", reason="needs a dot, as in travel.booked: other names are CALIBER's")
        told = as_json(arguments.as_mapping({} if payload is None else payload, "payload"), "payload", PAYLOAD_CHARS)
        took = None if duration_ms is None else arguments.as_whole(duration_ms, "duration_ms")
        task = None if trajectory is None else arguments.as_uuid(trajectory, "trajectory")
        if task is not None:
            require(self._engine, self._readers, TRAJECTORY, task, write=True)

        def work(uow: UnitOfWork) -> Event:
            if task is not None:
                uow.get(TRAJECTORY, task.bytes)
            of = {"principal": self._principal.label, "trajectory_id": task, "payload": told, "duration_ms": took}
            return self._engine.trace(uow, kind, **of)

        return self._engine.write(work)

    def list(self, *, event_type: str | None = None, principal: str | None = None, limit: int = 100) -> list[Event]:
        """Return the newest events of a type, or of a principal, such as ``agent:planner``, or of both; newest first.

        Raises: InvalidValue, DTypeError; RequiredFieldMissing without either.
        """
        self._engine.check_open()
        kind, by = arguments.as_name(event_type, "event_type"), arguments.as_name(principal, "principal")
        count = arguments.as_whole(limit, "limit", 1)
        if kind is None and by is None:
            raise RequiredFieldMissing("name the event_type or the principal whose events to list", field="event_type")
        self._engine.behind.flush()

        def shown(event: Event) -> Event | None:
            asked = event if kind in (None, event.event_type) else None
            return asked if self._event_filter is None or asked is None else self._event_filter(asked)

        path, key = ("list_by_type", kind) if by is None else ("list_by_principal", by)
        return newest(self._engine.store, path, (key,), count, shown)

    def subscribe(
        self, subscriber: Subscriber, *, event_type: str | None = None, remote: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` after each commit with its events; return a function that ends the subscription.

        ``remote`` adds the commits of other processes, in their order, on another thread: such an event has ids, not
        its payload. After an outage an event ``events_missed`` comes first, whatever ``event_type`` is. Events of
        records that the principal may not read are left out: notes, others' windows, audit events; an admin gets all.

        Raises: DTypeError; with ``remote`` MissingRequired (no ``storage.feed_dsn``), IncompatibleOptions (SQLite).
        """
        self._engine.check_open()
        if event_type is not None:
            arguments.as_text(event_type, "event_type")
        arguments.as_flag(remote, "remote")
        if not callable(subscriber):
            raise DTypeError(field="subscriber", expected="a callable", got=type(subscriber).__name__)
        if remote:
            self._engine.store.require_remote_events()
        shown = self._event_filter
        return self._engine.bus.subscribe(subscriber, event_type=event_type, remote=remote, event_filter=shown)

    def _deliver(self, subscriber: Subscriber, event: Event) -> None:
        """Call one subscriber; its error goes where those of the bus go."""
        self._engine.bus.deliver(subscriber, event)
