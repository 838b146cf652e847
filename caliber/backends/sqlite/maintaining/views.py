"""SQL views for people in SQLite, each with its description as a leading comment in the view's text."""

from __future__ import annotations

from typing import Final

from caliber.backends.sqlite.connecting.connection import SqliteConnection
from caliber.backends.sqlite.dialect import DIALECT
from caliber.model.errors import Conflict
from caliber.schema.relation import Column, ColumnType
from caliber.schema.views import VIEWS
from caliber.storage.compile.spelling import quote
from caliber.storage.maintain.views import MARK, comment_of, select_of


def _uuid(raw: str) -> str:
    digits = f"lower(hex({raw}))"
    ends = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return " || '-' || ".join(f"substr({digits}, {start}, {length})" for start, length in ends)


class _Spelling:
    read_only = ""  # views of SQLite are

    def table(self, name: str) -> str:
        return DIALECT.table(name)

    def value(self, column: Column, expression: str) -> str:
        kind = column.type
        if kind is ColumnType.UUID:
            return f"CASE WHEN {expression} IS NOT NULL THEN {_uuid(expression)} END"
        if kind is ColumnType.INSTANT:
            # Of instants before 1970 the remainder is negative.
            micros = f"(({expression} % 1000000 + 1000000) % 1000000)"
            seconds = f"({expression} - {micros}) / 1000000"
            return f"strftime('%Y-%m-%d %H:%M:%S', {seconds}, 'unixepoch') || printf('.%06d+00', {micros})"
        if kind is ColumnType.BOOL:
            return f"CASE {expression} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END"
        if kind is ColumnType.BYTES:
            return f"CAST({expression} AS TEXT)" if column.content else f"lower(hex({expression}))"
        if kind is ColumnType.UUID_ARRAY:
            one = _uuid(f"substr({expression}, 16 * n + 1, 16)")
            return (
                f"(WITH RECURSIVE place (n) AS (SELECT 0 WHERE length({expression}) > 0"
                f" UNION ALL SELECT n + 1 FROM place WHERE 16 * (n + 1) < length({expression}))"
                f" SELECT json_group_array({one}) FROM place)"
            )
        return expression

    def size(self, column: Column, expression: str) -> str:
        if column.type is ColumnType.VECTOR:
            return f"length({expression}) / 4"
        if column.type is ColumnType.UUID_ARRAY:
            return f"length({expression}) / 16"
        return f"length(CAST({expression} AS BLOB))"


_SPELLING: Final = _Spelling()


def create(connection: SqliteConnection) -> list[str]:
    """Recreate the views inside the caller's transaction; return their names. Raises: Conflict."""
    drop(connection)
    rows = connection.command("SELECT name FROM sqlite_schema")
    existing = {row[0] for row in rows}
    for view in VIEWS:
        if view.name in existing:
            raise Conflict(entity_type="view", id=view.name, reason="another object has this name; rename it")
        text = f"/* {comment_of(view)} */ {select_of(view, _SPELLING)}"
        connection.command(f"CREATE VIEW {quote(view.name)} AS {text}")
    return [view.name for view in VIEWS]


def drop(connection: SqliteConnection) -> list[str]:
    """Remove CALIBER's views only; return their names."""
    rows = connection.command(f"SELECT name FROM sqlite_schema WHERE type = 'view' AND instr(sql, '/* {MARK}') > 0")
    for (name,) in rows:
        connection.command(f"DROP VIEW {quote(name)}")
    return sorted(row[0] for row in rows)
