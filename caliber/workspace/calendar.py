"""Calendar of the workspace: events, once or repeated, their occurrences in a time, and reminders.

Source: P-045, P-046; the rules are in ``caliber.text.recurrence``.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any, Final

from caliber.access.owners import author_of
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidValue, RequiredFieldMissing
from caliber.model.references import CalendarEventId, EntityRef, Id
from caliber.model.time import from_us, to_us
from caliber.model.workspace import CalendarEvent, Occurrence
from caliber.schema.relations import CALENDAR_EVENT
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.recurrence import Repetition, parse_rule, zone_named
from caliber.workspace.records import SharedRecords

REMINDER_MINUTES_MAX: Final = 366 * 24 * 60
OCCURRENCES_MAX: Final = 10_000
"""Most occurrences of events, or reminders, that one call lists."""
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_CHECKED: Final = ("starts_at", "ends_at", "time_zone", "rrule", "reminder_minutes")


class Calendar:
    """The events of the calendar that one principal sees, adds and changes."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._records = SharedRecords(engine, principal, searching, CALENDAR_EVENT)

    def add(
        self,
        title: str,
        starts_at: datetime,
        *,
        description: str = "",
        ends_at: datetime | None = None,
        time_zone: str | None = None,
        rrule: str | None = None,
        reminder_minutes: int | None = None,
        user: str | EntityRef | None = None,
        visible_to: Sequence[str] | None = None,
    ) -> CalendarEvent:
        """Add an event, and return it.

        ``rrule`` repeats it by FREQ (DAILY to YEARLY), INTERVAL, COUNT, UNTIL and BYDAY, at the same time of day on the
        clocks of ``time_zone``: an IANA name, by default that of ``starts_at``, else UTC. ``starts_at`` must be the
        first occurrence. ``reminder_minutes`` before each occurrence the log gets an event ``reminder``. Who sees the
        event follows from ``user`` and ``visible_to`` as for a note: without either, everybody.

        Raises: InputError kinds; PermissionDenied for another user; ExtraNotInstalled for a repeated event.
        """
        user_id, readers = self._records.placed(user, visible_to)
        now = from_us(self._engine.clock.now_us())
        made = CalendarEvent(
            event_id=CalendarEventId(uuid7()),
            title=arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS),
            description=arguments.as_text(description, "description", allow_empty=True),
            starts_at=_start(starts_at),
            time_zone=_zone(time_zone, starts_at),
            created_at=now,
            updated_at=now,
            ends_at=arguments.as_instant(ends_at, "ends_at"),
            rrule=None if rrule is None else arguments.as_text(rrule, "rrule"),
            reminder_minutes=_minutes(reminder_minutes),
            user_id=user_id,
            visible_to=readers,
            created_by=author_of(self._principal),
        )
        _check(made)

        def work(uow: UnitOfWork) -> CalendarEvent:
            at = from_us(uow.now_us)
            event = dataclasses.replace(
                made, created_at=at, updated_at=at, next_reminder_at=next_reminder(made, uow.now_us)
            )
            uow.insert(CALENDAR_EVENT, event)
            enqueue_reminder(self._engine.part(JobQueue), uow, event)
            return event

        return self._engine.write(work)

    def get(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
    ) -> CalendarEvent:
        """Return an event. Raises: InputError kinds; NotFound, also for one that the principal may not see."""
        key = arguments.as_uuid(id, "id")
        event: CalendarEvent = self._records.read(key, self._records.readers_for(user))
        return event

    def update(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        title: str | EllipsisType = ...,
        description: str | EllipsisType = ...,
        starts_at: datetime | EllipsisType = ...,
        ends_at: datetime | EllipsisType | None = ...,
        time_zone: str | EllipsisType = ...,
        rrule: str | EllipsisType | None = ...,
        reminder_minutes: int | EllipsisType | None = ...,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> CalendarEvent:
        """Change an event, and return it as stored; fields that are left out stay, None clears one.

        Raises: InputError kinds; NotFound; PermissionDenied for an event of another author; Conflict when ``version``
            is no longer that of the event; ExtraNotInstalled for a repeated event.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        fields: dict[str, Any] = {}
        if not isinstance(title, EllipsisType):
            fields["title"] = arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS)
        if not isinstance(description, EllipsisType):
            fields["description"] = arguments.as_text(description, "description", allow_empty=True)
        if not isinstance(starts_at, EllipsisType):
            fields["starts_at"] = _start(starts_at)
        if not isinstance(ends_at, EllipsisType):
            fields["ends_at"] = arguments.as_instant(ends_at, "ends_at")
        if not isinstance(time_zone, EllipsisType):
            fields["time_zone"] = arguments.as_text(time_zone, "time_zone", limit=arguments.MAX_NAME_CHARS)
        if not isinstance(rrule, EllipsisType):
            fields["rrule"] = None if rrule is None else arguments.as_text(rrule, "rrule")
        if not isinstance(reminder_minutes, EllipsisType):
            fields["reminder_minutes"] = _minutes(reminder_minutes)
        readers = self._records.readers_for(user)

        def work(uow: UnitOfWork) -> CalendarEvent:
            event: CalendarEvent = self._records.found(uow, key, readers)
            self._records.require_own(event, key, "change")
            arguments.check_version(CALENDAR_EVENT.name, key, event.version, expected)
            changed = dataclasses.replace(event, **fields, updated_at=from_us(uow.now_us))
            if any(name in fields for name in _CHECKED):
                _check(changed)
                changed = dataclasses.replace(changed, next_reminder_at=next_reminder(changed, uow.now_us))
            stored: CalendarEvent = uow.update(CALENDAR_EVENT, changed)
            enqueue_reminder(self._engine.part(JobQueue), uow, stored)
            return stored

        return self._engine.write(work)

    def delete(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> CalendarEvent:
        """Delete an event with its reminders, and return it as it was. Raises: as ``update``."""
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        readers = self._records.readers_for(user)

        def work(uow: UnitOfWork) -> CalendarEvent:
            event: CalendarEvent = self._records.found(uow, key, readers)
            self._records.require_own(event, key, "delete")
            arguments.check_version(CALENDAR_EVENT.name, key, event.version, expected)
            uow.delete(CALENDAR_EVENT, event)
            return event

        return self._engine.write(work)

    def occurrences(
        self, since: datetime, until: datetime, *, user: str | EntityRef | None = None, limit: int | None = None
    ) -> list[Occurrence]:
        """Return the occurrences from ``since`` on, before ``until``, by start; also those under way at ``since``.

        At most ``limit``, by default 10,000, however often an event is repeated.

        Raises: InputError kinds; PermissionDenied for another user; ExtraNotInstalled for a repeated event.
        """
        first, last, most = self._time(since, until, limit)
        events = self._records.visible("list_by_start", (), self._records.readers_for(user))
        each = [_within(event, first, last) for event in events if event.starts_at < last]
        return list(itertools.islice(heapq.merge(*each, key=lambda found: found.starts_at), most))

    def reminders(
        self, since: datetime, until: datetime, *, user: str | EntityRef | None = None, limit: int | None = None
    ) -> list[Occurrence]:
        """Return the occurrences whose reminders are due from ``since`` on, before ``until``, by that time.

        Raises: as ``occurrences``.
        """
        first, last, most = self._time(since, until, limit)
        events = self._records.visible("list_by_start", (), self._records.readers_for(user))
        each = [_reminded(event, first, last) for event in events if event.reminder_minutes is not None]
        return list(itertools.islice(heapq.merge(*each, key=lambda found: found.remind_at or found.starts_at), most))

    def _time(self, since: datetime, until: datetime, limit: int | None) -> tuple[datetime, datetime, int]:
        self._engine.check_open()
        first, last = arguments.as_instant(since, "since"), arguments.as_instant(until, "until")
        if first is None or last is None:
            raise RequiredFieldMissing(field="since" if first is None else "until")
        if last < first:
            raise InvalidValue(field="until", reason="lies before since")
        most = OCCURRENCES_MAX if limit is None else arguments.as_whole(limit, "limit", 1)
        if most > OCCURRENCES_MAX:
            raise InvalidValue(field="limit", reason=f"must be at most {OCCURRENCES_MAX}")
        return first, last, most


def _start(starts_at: Any) -> datetime:
    found = arguments.as_instant(starts_at, "starts_at")
    if found is None:
        raise RequiredFieldMissing(field="starts_at")
    return from_us(to_us(found))


def _zone(name: str | None, starts_at: datetime) -> str:
    """Return the name of a time zone: as given, or that of an instant."""
    if name is not None:
        return arguments.as_text(name, "time_zone", limit=arguments.MAX_NAME_CHARS)
    key = getattr(starts_at.tzinfo, "key", None)
    return key if isinstance(key, str) else "UTC"


def _minutes(value: Any) -> int | None:
    if value is None:
        return None
    minutes = arguments.as_whole(value, "reminder_minutes")
    if minutes > REMINDER_MINUTES_MAX:
        raise InvalidValue(field="reminder_minutes", reason="must be at most a year")
    return minutes


def _check(event: CalendarEvent) -> None:
    """Raise InvalidValue for an event that cannot take place."""
    if event.ends_at is not None and event.ends_at < event.starts_at:
        raise InvalidValue(field="ends_at", reason="lies before starts_at")
    repetition_of(event).check_start()


def _shifted(instant: datetime, by: timedelta) -> datetime:
    """Return another instant, within the years that there are."""
    try:
        return instant.astimezone(UTC) + by
    except OverflowError:
        return _FIRST if by < timedelta() else _LAST


def _within(event: CalendarEvent, since: datetime, until: datetime) -> Iterator[Occurrence]:
    """Yield the occurrences of an event that begin in a time, or have begun before and last into it."""
    lasts = timedelta() if event.ends_at is None else event.ends_at - event.starts_at
    for starts in repetition_of(event).between(_shifted(since, -lasts), until):
        if starts >= since or _shifted(starts, lasts) > since:
            yield _occurrence(event, starts, lasts)


def _reminded(event: CalendarEvent, since: datetime, until: datetime) -> Iterator[Occurrence]:
    """Yield the occurrences of an event whose reminders are due in a time."""
    ahead = timedelta(minutes=event.reminder_minutes or 0)
    lasts = timedelta() if event.ends_at is None else event.ends_at - event.starts_at
    for starts in repetition_of(event).between(_shifted(since, ahead), _shifted(until, ahead)):
        yield _occurrence(event, starts, lasts)


def _occurrence(event: CalendarEvent, starts: datetime, lasts: timedelta) -> Occurrence:
    ahead = None if event.reminder_minutes is None else _shifted(starts, -timedelta(minutes=event.reminder_minutes))
    return Occurrence(event, starts, None if event.ends_at is None else _shifted(starts, lasts), ahead)


REMINDER: Final = "workspace.reminder"
"""The kind of these jobs; ``api.subsystems`` registers it without loading this module."""
_PRINCIPAL: Final = "system:calendar"
_TICK: Final = timedelta(microseconds=1)


def repetition_of(event: CalendarEvent) -> Repetition:
    """Return the instants at which an event takes place."""
    rule = None if event.rrule is None else parse_rule(event.rrule)
    return Repetition(rule, event.starts_at, zone_named(event.time_zone))


def next_reminder(event: CalendarEvent, after_us: int) -> datetime | None:
    """Return the first instant from ``after_us`` on at which an event has a reminder; None after the last one."""
    if event.reminder_minutes is None:
        return None
    ahead = timedelta(minutes=event.reminder_minutes)
    starts = repetition_of(event).after(from_us(after_us) + ahead)
    return None if starts is None else starts - ahead


def enqueue_reminder(jobs: JobQueue, uow: UnitOfWork, event: CalendarEvent) -> None:
    """Add the job of an event's next reminder, in the transaction that determines it."""
    at = event.next_reminder_at
    if at is not None:
        payload = {"event_id": str(event.event_id), "at_us": to_us(at)}
        jobs.enqueue(uow, REMINDER, key=f"{event.event_id}@{to_us(at)}", payload=payload, due_at=at)


def remind(engine: Engine, claim: Claim) -> int:
    """Give the reminder that a job is for, and add the job of the next one; return how many were given."""
    payload = claim.job.payload
    key, due_us = uuid.UUID(payload["event_id"]), int(payload["at_us"])

    def work(uow: UnitOfWork) -> int:
        claim.ack(uow)
        uow.lock(CALENDAR_EVENT, key.bytes)
        event: CalendarEvent | None = uow.find(CALENDAR_EVENT, key.bytes)
        if event is None or event.next_reminder_at is None or to_us(event.next_reminder_at) != due_us:
            return 0
        ahead = timedelta(minutes=event.reminder_minutes or 0)
        repeated = repetition_of(event)
        starts = from_us(due_us) + ahead
        now = max(from_us(uow.now_us), from_us(due_us))
        latest = max(repeated.between(starts, now + ahead + _TICK), default=starts)
        following = repeated.after(latest + _TICK)
        changed = dataclasses.replace(event, next_reminder_at=None if following is None else following - ahead)
        stored = uow.update(CALENDAR_EVENT, changed)
        enqueue_reminder(engine.part(JobQueue), uow, stored)
        engine.trace(
            uow,
            "reminder",
            principal=_PRINCIPAL,
            subject=(CALENDAR_EVENT.name, key),
            payload={"id": str(key), "starts_at": latest.astimezone(UTC).isoformat()},
        )
        return 1

    return engine.write(work)
