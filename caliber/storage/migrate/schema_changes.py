"""Schema changes as data (add or drop a relation, add a column, path or enum member), from which migration SQL follows.

A change names a part of today's declarations and can remove it again. Today's declarations without the changes of later
versions are those of an earlier version; the statements of a version follow from the declarations before and after it,
on both databases. Source: docs/decisions/0201.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

from caliber.model.errors import InternalError
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.relation import EnumClass, Relation
from caliber.storage.compile.plan import Dialect, added_column, create_statements, enum_check, indexes_made_by
from caliber.storage.compile.spelling import quote

Relations = tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class AddRelation:
    """A new relation. Processes of earlier versions pass over its change records."""

    relation: str

    def undo(self, relations: Relations) -> Relations:
        """Return ``relations`` without it."""
        _find(relations, self.relation)
        return tuple(relation for relation in relations if relation.name != self.relation)


@dataclass(frozen=True, slots=True)
class DropRelation:
    """A relation that is no more, as it was. The version that drops it converts its rows, and drops the table."""

    relation: Relation

    def undo(self, relations: Relations) -> Relations:
        """Return ``relations`` with it."""
        return (*relations, self.relation)


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, nullable or with a default, and with it the indexes and the foreign key that name it.

    Processes of earlier versions leave it NULL, or at its default, in rows that they insert, and keep it in rows that
    they update.
    """

    relation: str
    column: str

    def undo(self, relations: Relations) -> Relations:
        """Return ``relations`` without the column. Raises: InternalError for a required column."""
        after = _find(relations, self.relation)
        column = after.column(self.column)
        if self.column in after.key or not (column.nullable or column.default is not None):
            raise InternalError(f"{self.relation}.{self.column} must be nullable or have a default, and be no key")
        before = Relation(  # without traits: statements that create it need none, and some may name the column
            name=after.name,
            plural=after.plural,
            entity=after.entity,
            columns=tuple(each for each in after.columns if each is not column),
            key=after.key,
            code=after.code,
            comment=after.comment,
            ordinal=after.ordinal,
            auto_key=after.auto_key,
            uniques=tuple(each for each in after.uniques if self.column not in (*each.columns, *dict(each.where))),
            foreign_keys=tuple(replace(each, alike=None) for each in after.foreign_keys if each.column != self.column),
            derived=None,
            erase=None,
            links=None,
            trust=None,
            exported=None,
            paths=tuple(each for each in after.paths if self.column not in (*each.by, *each.order, *dict(each.where))),
        )
        return tuple(before if relation is after else relation for relation in relations)


@dataclass(frozen=True, slots=True)
class AddPath:
    """A new access path, and its index. Processes of earlier versions do not use it."""

    relation: str
    path: str

    def undo(self, relations: Relations) -> Relations:
        """Return ``relations`` without the path."""
        after = _find(relations, self.relation)
        before = replace(after, paths=tuple(each for each in after.paths if each.name != self.path), _by_name={})
        if len(before.paths) == len(after.paths):
            raise InternalError(f"a schema version adds the path {self.path}, which {self.relation} does not have")
        return tuple(before if relation is after else relation for relation in relations)


@dataclass(frozen=True, slots=True)
class AddEnumMember:
    """A new member of an enum, in every column of it.

    Processes of earlier versions cannot read the member: the version that first writes it must shut them out.
    """

    member: StrEnum

    def undo(self, relations: Relations) -> Relations:
        """Return ``relations`` whose columns do not have the member."""
        enum = type(self.member)
        return tuple(
            replace(
                relation,
                columns=tuple(
                    replace(column, enum=_without(column.enum, self.member)) if _is(column.enum, enum) else column
                    for column in relation.columns
                ),
                _by_name={},
            )
            if any(_is(column.enum, enum) for column in relation.columns)
            else relation
            for relation in relations
        )


SchemaChange = AddRelation | DropRelation | AddColumn | AddPath | AddEnumMember


def _find(relations: Relations, name: str) -> Relation:
    found = next((relation for relation in relations if relation.name == name), None)
    if found is None:
        raise InternalError(f"a schema version adds to the relation {name}, which is not declared")
    return found


def _is(enum: EnumClass | None, other: EnumClass) -> bool:
    """Return whether two classes are one enum, of two versions maybe."""
    return enum is not None and (enum.__module__, enum.__qualname__) == (other.__module__, other.__qualname__)


def _without(enum: EnumClass | None, member: StrEnum) -> EnumClass:
    assert enum is not None
    remaining = [(each.name, each.value) for each in enum if each.value != member.value]
    if len(remaining) == len(enum):
        raise InternalError(f"a schema version adds {member!r} twice")
    make: Any = StrEnum
    return cast("EnumClass", make(enum.__name__, remaining, module=enum.__module__, qualname=enum.__qualname__))


# --- from changes to statements ----------------------------------------------------------------------


def changed(before: Relations, after: Relations) -> Iterator[tuple[Relation | None, Relation]]:
    """Yield the relations that differ between two versions, before (None for a new one) and after."""
    by_name = {relation.name: relation for relation in before}
    for relation in after:
        if by_name.get(relation.name) is not relation:
            yield by_name.get(relation.name), relation


def statements_between(before: Relation | None, after: Relation, dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that make one declaration of a relation of the other; None stands for no relation."""
    new = create_statements(after, dialect)
    if before is None:
        return new
    table = dialect.table(after.name)
    old = create_statements(before, dialect)
    # The statements after CREATE TABLE are mostly indexes, one statement each.
    dropped = indexes_made_by(line for line in old[1:] if line not in new[1:])
    statements = [f"DROP INDEX {dialect.table(name)}" for name in dropped]
    statements += [
        f"ALTER TABLE {table} DROP COLUMN {quote(column.name)}"
        for column in before.columns
        if not after.has(column.name)
    ]
    for column in after.columns:
        if not before.has(column.name):
            statements.append(f"ALTER TABLE {table} ADD COLUMN {added_column(after, column, dialect)}")
        elif enum_check(before.column(column.name)) != enum_check(column):
            statements += dialect.replace_enum_check(after.name, before.column(column.name), column)
    return (*statements, *(line for line in new[1:] if line not in old[1:]))
