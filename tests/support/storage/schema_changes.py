"""Schema changes that could have led to today's relations, and new columns with defaults of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caliber.model.errors import InternalError
from caliber.schema.erase import Redaction
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.schema.relations import NOTE, RELATIONS, TURN
from caliber.storage.migrate.schema_changes import AddColumn, AddEnumMember, AddRelation, Relations, SchemaChange

TARGETS = {key.relation for relation in RELATIONS for key in relation.foreign_keys}


def possible() -> list[SchemaChange]:
    """Return every change that could have led to today's relations."""
    found: list[SchemaChange] = []
    for relation in RELATIONS:
        if relation.name not in TARGETS:
            found.append(AddRelation(relation.name))
        found += [AddColumn(relation.name, column.name) for column in relation.columns if column.nullable]
        for column in relation.columns:
            if column.enum is not None:
                found += [AddEnumMember(member) for member in list(column.enum)[1:]]
    return list(dict.fromkeys(found))


def undone(relations: Relations, changes: Sequence[SchemaChange]) -> tuple[Relations, list[SchemaChange]]:
    """Return relations without changes, and those that could be taken back."""
    taken = []
    for change in changes:
        try:
            relations = change.undo(relations)
        except (InternalError, KeyError):  # of a relation that another change has added, or the last member
            continue
        taken.append(change)
    return relations, taken


DEFAULTS = [
    Column("added", ColumnType.TEXT, default="it's"),
    Column("added", ColumnType.INT, default=-3, check=(-5, 5)),
    Column("added", ColumnType.FLOAT, default=0.5),
    Column("added", ColumnType.BOOL, default=True),
    Column("added", ColumnType.JSON, default="[]", redact=Redaction.WORDS),
    Column("added", ColumnType.TEXT_ARRAY, default=()),
    Column("added", ColumnType.UUID_ARRAY, default=()),
    Column("added", ColumnType.ENUM, enum=NOTE.column("trust").enum, default="web"),
    Column("added", ColumnType.TEXT, nullable=True),
]


def widened(column: Column) -> Relation:
    """Return a relation like that of turns, with one column more."""
    return replace(TURN, columns=(*TURN.columns, column), foreign_keys=(), uniques=(), paths=(), _by_name={})
