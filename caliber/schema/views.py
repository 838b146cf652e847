"""Declarations of read-only SQL views, which show the tables under the names of the requirement documents.

No code reads them; ``caliber db views`` creates them. A dot in a name of those documents (``heart.facts``) is an
underscore here, since a tenant is one schema and SQLite has none. A feature that is not built has no view.

Source: K-107, K-192, C-197 to C-201, relations.md section 2.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from caliber.model.errors import InternalError
from caliber.model.events import EventFamily
from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.schema.relations import BY_NAME, RELATIONS


class Shown(StrEnum):
    """The form of a column in a view: VALUE for people to read, or its SIZE: bytes, elements, dimensions."""

    VALUE = "value"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view: which of the relation, under which name, and how."""

    column: str
    name: str
    shown: Shown = Shown.VALUE


@dataclass(frozen=True, slots=True)
class Counted:
    """A column that counts the rows of another relation that refer to this one by a column of the same name."""

    name: str
    relation: str
    by: str


@dataclass(frozen=True, slots=True)
class View:
    """One view over one relation; ``only`` keeps rows whose column has the value, ``descending`` orders them.

    A ``limited`` one shows only the newest rows.
    """

    name: str
    relation: str
    comment: str
    columns: tuple[ViewColumn, ...]
    counted: tuple[Counted, ...] = ()
    only: tuple[tuple[str, str], ...] = ()
    descending: str = ""
    limited: bool = False


def size_unit(column: Column) -> str:
    """Return the unit of a column's size."""
    if column.type is ColumnType.VECTOR:
        return "dimensions"
    return "count" if column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY) else "bytes"


def _default(column: Column, name: str) -> ViewColumn:
    # Packed bytes and vectors mean nothing to a reader; hashes and contents do.
    packed = column.type is ColumnType.BYTES and column.length is None and not column.content
    if packed or column.type is ColumnType.VECTOR:
        return ViewColumn(column.name, f"{name}_{size_unit(column)}", Shown.SIZE)
    return ViewColumn(column.name, name)


def _columns(relation: str, names: dict[str, str]) -> tuple[ViewColumn, ...]:
    """Return every column of a relation; those with another name in a source have that name."""
    declared = BY_NAME[relation]
    for name in names:
        if not declared.has(name):
            raise InternalError(f"a view renames column {name}, which {relation} does not have")
    return tuple(_default(column, names.get(column.name, column.name)) for column in declared.columns)


def _picked(*columns: str, size: str = "", **names: str) -> tuple[ViewColumn, ...]:
    """Return some columns under their names, those with another name, and one by its size, which stands last."""
    picked = [ViewColumn(name, name) for name in columns]
    picked += [ViewColumn(name, shown) for name, shown in names.items()]
    measured, _, shown = size.partition(" ")
    return (*picked, *([ViewColumn(measured, shown, Shown.SIZE)] if size else []))


def _whole(relation: Relation) -> View:
    # Ordinals name rows in change records and windows: readers of those need them.
    ordinal = (ViewColumn("ordinal", "ordinal"),) if relation.ordinal else ()
    return View(f"caliber_{relation.name}", relation.name, relation.comment, (*_columns(relation.name, {}), *ordinal))


def _named(name: str, relation: str, comment: str, only: tuple[tuple[str, str], ...] = (), /, **names: str) -> View:
    return View(name, relation, comment, _columns(relation, names), only=only)


def _events(name: str, family: EventFamily, **names: str) -> View:
    return _named(name, "event", f"Events of the family {family}.", (("family", family.value),), **names)


VIEWS: Final[tuple[View, ...]] = (
    *(_whole(relation) for relation in RELATIONS),
    _events("caliber_trace", EventFamily.TRACE, event_id="trace_id", created_at="timestamp"),
    View(
        "caliber_debug_trajectories",
        "trajectory",
        "Trajectories, newest first, with how many scopes and artifacts each has.",
        _picked("trajectory_id", "status", "created_at", "updated_at", goal_hash="goal_hash_hex"),
        counted=(
            Counted("scope_count", "scope", "trajectory_id"),
            Counted("artifact_count", "artifact", "trajectory_id"),
        ),
        descending="created_at",
    ),
    View(
        "caliber_debug_context",
        "context_window",
        "The newest windows. Their sections are packed: `caliber explain` shows them.",
        _picked("window_id", "assembled_at", "used_tokens", "max_tokens", size="record record_bytes"),
        descending="assembled_at",
        limited=True,
    ),
    View(
        "caliber_debug_recent_artifacts",
        "artifact",
        "The newest artifacts, with the size of their content.",
        _picked("artifact_id", "trajectory_id", "artifact_type", "created_at", size="content content_bytes"),
        descending="created_at",
        limited=True,
    ),
    View(
        "caliber_debug_note_confidence",
        "note",
        "Notes by confidence, the surest first, with how many trajectories they came from.",
        _picked("note_id", "entity", "note_type", "confidence", size="source_trajectory_ids source_count"),
        descending="confidence",
    ),
    _named("memories", "note", "Notes, as memories.", note_id="id", note_type="memory_type"),
    _named("memory_links", "edge", "Edges between records.", edge_id="id", relation="link_type", weight="strength"),
    _named(
        "memory_vectors",
        "embedding",
        "Vectors of notes; the size only.",
        (("owner_type", EntityType.NOTE.value),),
        owner_id="memory_id",
    ),
    _events(
        "memory_modifications",
        EventFamily.AUDIT,
        event_id="id",
        subject_id="memory_id",
        principal="agent_role",
        event_type="modification_type",
        created_at="timestamp",
        payload="changes",
    ),
    _events(
        "importance_history",
        EventFamily.IMPORTANCE,
        event_id="id",
        subject_id="memory_id",
        created_at="timestamp",
        payload="changes",
    ),
    _named(
        "heart_facts",
        "note",
        "Notes of the kind fact.",
        (("note_type", NoteType.FACT.value),),
        note_id="id",
        entity="subject",
        entity_type="category",
        created_at="learned_at",
    ),
    _named("brain_graph_edges", "edge", "Edges between records.", edge_id="id"),
    _events("system_events", EventFamily.COGNITION, event_id="id", payload="data"),
    _named(
        "messages",
        "turn",
        "Turns, as messages.",
        turn_id="id",
        turn_number="position",
        sequence="sequence_in_batch",
        scope_id="batch_id",
        tool_calls="tool_args",
    ),
    _events("activity_events", EventFamily.ACTIVITY, payload="details", event_id="id", created_at="timestamp"),
)
"""Every view, in the order in which they are made."""
