"""Data types of the workspace that agents share: values under keys, to-dos, and a calendar.

A ``Todo`` is an item of work that somebody has to do; an agent's own run, from goal to outcome, is a
``Trajectory``.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import CalendarEventId, TodoId, ValueId


@dataclass(frozen=True, slots=True)
class WorkspaceValue:
    """The JSON value under a key. Source: P-062.

    ``version`` rises with every change, also when the key is deleted and set again. ``updated_by`` is the label of the
    principal that wrote it.
    """

    value_id: ValueId
    key: str
    value: Any
    created_at: datetime
    updated_at: datetime
    updated_by: str
    deleted_at: datetime | None = None
    version: int = 1


class TodoKind(StrEnum):
    """The person or agents that a to-do is for: one user alone, or the agents that share the store."""

    USER = "user"
    COORDINATION = "coordination"


class TodoStatus(StrEnum):
    """The state of a to-do. Source: P-042, P-063."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class TodoPriority(StrEnum):
    """The urgency of a to-do, the least first."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    URGENT = "urgent"

    @property
    def rank(self) -> int:
        """The place in the order of urgency: 0 is the least urgent."""
        return list(TodoPriority).index(self)


OPEN: Final = (TodoStatus.PENDING, TodoStatus.IN_PROGRESS)
"""The states of a to-do that is still to do."""


@dataclass(frozen=True, slots=True)
class Todo:
    """An item of work: a to-do of a user, or work that agents share out. Source: P-042, P-063.

    ``due_at`` is when it has to be done, ``scheduled_at`` when to begin. ``assigned_to`` is the id of the agent that
    does it. ``completed_at`` has a value exactly while the status is completed.
    """

    todo_id: TodoId
    title: str
    description: str
    kind: TodoKind
    status: TodoStatus
    priority: TodoPriority
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None = None
    scheduled_at: datetime | None = None
    completed_at: datetime | None = None
    assigned_to: uuid.UUID | None = None
    parent_todo_id: TodoId | None = None
    user_id: uuid.UUID | None = None
    visible_to: tuple[str, ...] | None = None
    created_by: str | None = None
    version: int = 1

    @property
    def is_open(self) -> bool:
        """True until the to-do is completed or cancelled."""
        return self.status in OPEN


@dataclass(frozen=True, slots=True)
class TodoDependency:
    """A to-do that waits for another one: ``todo_id`` is ready once ``depends_on`` is completed."""

    todo_id: TodoId
    depends_on: TodoId
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """An event of the calendar. Source: P-045.

    ``rrule`` is a repetition rule of iCalendar, read on the clocks of ``time_zone``. ``next_reminder_at`` is the
    instant of the next reminder that was not given yet.
    """

    event_id: CalendarEventId
    title: str
    description: str
    starts_at: datetime
    time_zone: str
    created_at: datetime
    updated_at: datetime
    ends_at: datetime | None = None
    rrule: str | None = None
    reminder_minutes: int | None = None
    next_reminder_at: datetime | None = None
    user_id: uuid.UUID | None = None
    visible_to: tuple[str, ...] | None = None
    created_by: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that an event takes place; ``remind_at`` is the instant of its reminder, if it has one."""

    event: CalendarEvent
    starts_at: datetime
    ends_at: datetime | None = None
    remind_at: datetime | None = None
