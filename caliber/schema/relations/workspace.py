"""Relations of the workspace: values, to-dos with dependencies, calendar. Source: P-042 to P-046, P-062 to P-064."""

from __future__ import annotations

from caliber.model.workspace import (
    CalendarEvent,
    Todo,
    TodoDependency,
    TodoKind,
    TodoPriority,
    TodoStatus,
    WorkspaceValue,
)
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Residence,
    Unique,
    enum,
    instant,
    integer,
    json_,
    stamped,
    text,
    text_array,
    uuid_,
    version,
)
from caliber.schema.traits import ALWAYS_US, Exported, Resident, Rights, Text, Times

WORKSPACE_VALUE = Relation(
    name="workspace_value",
    plural="workspace_values",
    entity=WorkspaceValue,
    code=58,
    comment="JSON values under keys; a deleted key keeps its row without the value, so that its version goes on.",
    ordinal=True,
    versioned=True,
    derived=None,  # as its writer states it
    erase=Erase(),
    links=None,  # none is made to a value
    trust=None,  # state of the program's agents, which enters no window
    exported=Exported.RECORDS,
    key=("value_id",),
    columns=(
        uuid_("value_id"),
        text("key", redact=Redaction.ROW),
        json_("value", lambda value: [value], lambda body: body[0], redact=Redaction.WORDS),
        stamped("created_at"),
        stamped("updated_at"),
        text("updated_by", redact=Redaction.PRINCIPALS),
        instant("deleted_at", nullable=True),
        version(),
    ),
    uniques=(Unique(("key",)),),
)

TODO = Relation(
    name="todo",
    plural="todos",
    entity=Todo,
    code=59,
    comment="Work to do: of a user, or shared out among agents. An agent's own run is a trajectory.",
    ordinal=True,
    versioned=True,
    resident=Resident(),
    derived=None,  # as its author states it
    erase=Erase(owned=("user_id",)),
    text=Text(("title", "description"), embedded="title"),
    times=Times(("due_at", "created_at"), "created_at"),
    links=None,  # what it waits for is a relation of its own
    trust=None,  # work to do, which enters no window
    exported=Exported.RECORDS,
    rights=Rights(readers="visible_to", author="created_by"),
    key=("todo_id",),
    columns=(
        uuid_("todo_id"),
        text("title", residence=Residence.TEXT),
        text("description", residence=Residence.TEXT),
        enum("kind", TodoKind, residence=Residence.COLUMN),
        enum("status", TodoStatus, residence=Residence.COLUMN),
        enum("priority", TodoPriority, residence=Residence.COLUMN),
        stamped("created_at", residence=Residence.COLUMN),
        stamped("updated_at"),
        instant("due_at", nullable=True, residence=Residence.COLUMN, resident_null=ALWAYS_US),
        instant("scheduled_at", nullable=True),
        instant("completed_at", nullable=True),
        uuid_("assigned_to", nullable=True),
        uuid_("parent_todo_id", nullable=True),
        uuid_("user_id", nullable=True, identity=True),
        text_array("visible_to", nullable=True, residence=Residence.INTERNED, redact=Redaction.PRINCIPALS),
        text("created_by", nullable=True, redact=Redaction.AUTHOR),
        version(),
    ),
    foreign_keys=(
        ForeignKey(
            *("assigned_to", "agent", "agent_id", "set null"),
            frees=("status", TodoStatus.IN_PROGRESS, TodoStatus.PENDING),
        ),
        ForeignKey("parent_todo_id", "todo", "todo_id", "set null"),
    ),
    paths=(
        AccessPath("list_by_status", ("status", "priority"), ("created_at", "ordinal")),
        AccessPath("list_by_agent", ("assigned_to",), ("created_at", "ordinal"), where=(("assigned_to", False),)),
        AccessPath("list_children", ("parent_todo_id",), ("created_at", "ordinal"), (("parent_todo_id", False),)),
    ),
)

TODO_DEPENDENCY = Relation(
    name="todo_dependency",
    plural="todo_dependencies",
    entity=TodoDependency,
    code=60,
    comment="Which to-do waits for which; never in a circle.",
    derived=None,  # ids
    erase=None,  # ids alone; goes with its to-dos
    links=None,  # it links to-dos itself
    trust=None,  # ids
    exported=Exported.RECORDS,
    key=("todo_id", "depends_on"),
    columns=(uuid_("todo_id"), uuid_("depends_on"), stamped("created_at")),
    foreign_keys=(
        ForeignKey("todo_id", "todo", "todo_id", "cascade"),
        ForeignKey("depends_on", "todo", "todo_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_todo", ("todo_id",), ("created_at", "depends_on")),
        AccessPath("list_dependents", ("depends_on",), ("created_at", "todo_id")),
    ),
)

CALENDAR_EVENT = Relation(
    name="calendar_event",
    plural="calendar_events",
    entity=CalendarEvent,
    code=61,
    comment="Events of the calendar, once or repeated, with reminders.",
    ordinal=True,
    versioned=True,
    derived=None,  # as its author states it
    erase=Erase(owned=("user_id",)),
    links=None,  # none is made to an event
    trust=None,  # an appointment, which enters no window
    exported=Exported.RECORDS,
    rights=Rights(readers="visible_to", author="created_by"),
    key=("event_id",),
    columns=(
        uuid_("event_id"),
        text("title"),
        text("description"),
        instant("starts_at"),
        text("time_zone", redact=Redaction.NOTHING),
        stamped("created_at"),
        stamped("updated_at"),
        instant("ends_at", nullable=True),
        text("rrule", nullable=True, redact=Redaction.NOTHING),
        integer("reminder_minutes", nullable=True, check=(0, None)),
        instant("next_reminder_at", nullable=True),
        uuid_("user_id", nullable=True, identity=True),
        text_array("visible_to", nullable=True, redact=Redaction.PRINCIPALS),
        text("created_by", nullable=True, redact=Redaction.AUTHOR),
        version(),
    ),
    paths=(AccessPath("list_by_start", (), ("starts_at", "ordinal")),),
)
