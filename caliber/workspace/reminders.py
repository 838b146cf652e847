"""Reminders of events of the calendar: durable jobs that append an event ``reminder`` to the log, once each.

A job names the instant that it is for. If its event was changed since, another job has taken its place. Reminders that
were missed while no process ran are given as one, for the latest of them. Source: P-046.
"""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.model.time import from_us, to_us
from caliber.model.workspace import CalendarEvent
from caliber.schema.relations import CALENDAR_EVENT
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.recurrence import Repetition, parse_rule, zone_named

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
