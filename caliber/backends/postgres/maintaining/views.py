"""SQL views for people in PostgreSQL: created in the tenant's schema, each with a COMMENT."""

from __future__ import annotations

from typing import Final

from psycopg.errors import DependentObjectsStillExist

from caliber.backends.postgres.bulk.target import Connection
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.model.errors import Conflict
from caliber.schema.relation import Column, ColumnType
from caliber.schema.views import VIEWS
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.views import MARK, comment_of, select_of

_ANY: Final = "[89ab][0-9a-f]"
_UTF8: Final = (
    f"^(0[1-9a-f]|[1-7][0-9a-f]|(c[2-9a-f]|d[0-9a-f]){_ANY}|e0[ab][0-9a-f]{_ANY}|e[1-9abcef]{_ANY}{_ANY}"
    f"|ed[89][0-9a-f]{_ANY}|f0[9ab][0-9a-f]{_ANY}{_ANY}|f[1-3]{_ANY}{_ANY}{_ANY}|f48[0-9a-f]{_ANY}{_ANY})*$"
)
"""Hexadecimal digits of bytes that are a text without zero characters: others cannot be converted."""


class _Spelling:
    # Through a view of one table rows could be deleted; of two, they cannot. This one costs nothing.
    read_only = " CROSS JOIN (VALUES (true)) AS read_only"

    def __init__(self, dialect: PostgresDialect) -> None:
        self._dialect = dialect

    def table(self, name: str) -> str:
        return self._dialect.table(name)

    def value(self, column: Column, expression: str) -> str:
        kind = column.type
        if kind is ColumnType.UUID:
            return f"{expression}::text"
        if kind is ColumnType.UUID_ARRAY:
            return f"{expression}::text[]"
        if kind is ColumnType.BYTES and column.content:
            return (
                f"CASE WHEN encode({expression}, 'hex') ~ '{_UTF8}' THEN convert_from({expression}, 'UTF8')"
                f" ELSE encode({expression}, 'escape') END"
            )
        if kind is ColumnType.BYTES:
            return f"encode({expression}, 'hex')"
        return expression

    def size(self, column: Column, expression: str) -> str:
        if column.type is ColumnType.VECTOR:
            return f"{quote(self._dialect.vector_schema)}.vector_dims({expression})"
        if column.type in (ColumnType.UUID_ARRAY, ColumnType.TEXT_ARRAY):
            return f"cardinality({expression})"
        return f"octet_length({expression})"


def create(connection: Connection, dialect: PostgresDialect) -> list[str]:
    """Recreate the views inside the caller's transaction; return their names. Raises: Conflict."""
    drop(connection, dialect)
    spelling = _Spelling(dialect)
    rows = connection.execute(
        "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s",
        (dialect.schema,),
    ).fetchall()
    existing = {row[0] for row in rows}
    for view in VIEWS:
        if view.name in existing:
            raise Conflict(entity_type="view", id=view.name, reason="another object has this name; rename it")
        connection.execute(f"CREATE VIEW {dialect.table(view.name)} AS {select_of(view, spelling)}")
        comment = comment_of(view).replace("'", "''")
        connection.execute(f"COMMENT ON VIEW {dialect.table(view.name)} IS '{comment}'")
    return [view.name for view in VIEWS]


def drop(connection: Connection, dialect: PostgresDialect) -> list[str]:
    """Remove CALIBER's views only; return their names. Raises: Conflict for one that other objects depend on."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'v' AND starts_with(obj_description(c.oid, 'pg_class'), %s)",
        (dialect.schema, MARK),
    ).fetchall()
    # In one statement: foreign views may depend on several.
    names = ", ".join(dialect.table(name) for (name,) in rows)
    if names:
        try:
            connection.execute(f"DROP VIEW {names}")
        except DependentObjectsStillExist as error:
            reason = "other objects depend on the views; drop them first, and create them again afterwards"
            raise Conflict(entity_type="schema", id=dialect.schema, reason=reason) from error
    return sorted(row[0] for row in rows)
