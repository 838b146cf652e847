"""SQL dialect of SQLite: types, parameters and STRICT tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.plan import enum_check
from caliber.storage.compile.spelling import literal, quote

_CONTAINS = {
    ColumnType.TEXT: "instr({0}, {1}) > 0",
    ColumnType.TEXT_ARRAY: "EXISTS (SELECT 1 FROM json_each({0}) AS item WHERE item.value = {1})",
    # Ids are concatenated: a match within two of them does not count.
    ColumnType.UUID_ARRAY: (
        "(instr({0}, {1}) > 0 AND EXISTS (WITH RECURSIVE member (at) AS"
        " (SELECT 1 UNION ALL SELECT at + 16 FROM member WHERE at + 16 < length({0}))"
        " SELECT 1 FROM member WHERE substr({0}, at, 16) = {1}))"
    ),
}
_TYPES = {
    ColumnType.UUID: "BLOB",
    ColumnType.INSTANT: "INTEGER",
    ColumnType.TEXT: "TEXT",
    ColumnType.INT: "INTEGER",
    ColumnType.FLOAT: "REAL",
    ColumnType.BOOL: "INTEGER",
    ColumnType.BYTES: "BLOB",
    ColumnType.JSON: "TEXT",
    ColumnType.TEXT_ARRAY: "TEXT",
    ColumnType.UUID_ARRAY: "BLOB",
    ColumnType.ENUM: "TEXT",
    ColumnType.VECTOR: "BLOB",
}


class SqliteDialect:
    """SQLite 3.51.3 and later."""

    name = "sqlite"
    # Never reused: window records and change records name rows by it, also after the row was deleted.
    ordinal_definition = "INTEGER PRIMARY KEY AUTOINCREMENT"
    auto_key_definition = "INTEGER PRIMARY KEY"
    table_suffix = " STRICT"
    ordinal_value = "{mark}"
    row_lock = update_lock = ""  # a write transaction is alone
    own_columns: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    read_only = ""  # views of SQLite are

    def table(self, name: str) -> str:
        return quote(name)

    def type_of(self, column: Column) -> str:
        return _TYPES[column.type]

    def checks_of(self, column: Column) -> list[str]:
        name = f'"{column.name}"'
        if column.type is ColumnType.UUID:
            return [f"length({name}) = 16"]
        if column.type is ColumnType.BOOL:
            return [f"{name} IN (0, 1)"]
        if column.type is ColumnType.VECTOR:
            return [f"length({name}) > 0", f"length({name}) % 4 = 0"]
        if column.type is ColumnType.UUID_ARRAY:
            return [f"length({name}) % 16 = 0"]
        if column.type in (ColumnType.JSON, ColumnType.TEXT_ARRAY):
            return [f"json_valid({name})"]
        return []

    def default_of(self, column: Column) -> str:
        if column.default == ():
            return "x''" if column.type is ColumnType.UUID_ARRAY else "'[]'"
        if isinstance(column.default, str):
            return literal(column.default)
        return str(int(column.default) if isinstance(column.default, bool) else column.default)

    def own_statements(self, relation: Relation) -> tuple[str, ...]:
        del relation  # tables here have no comments
        return ()

    def replace_enum_check(self, relation: str, before: Column, after: Column) -> tuple[str, ...]:
        # SQLite's documentation of ALTER TABLE allows this for changes that do not affect stored rows.
        old, new = (literal(_enum_constraint(column)) for column in (before, after))
        return (
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_schema SET sql = replace(sql, {old}, {new}) WHERE type = 'table' AND name = '{relation}'",
            "PRAGMA writable_schema = RESET",
        )

    def placeholder(self, position: int) -> str:
        return f"?{position}"

    def list_placeholder(self, position: int) -> str:
        return f"?{position}"

    def in_integers(self, position: int) -> str:
        return f"SELECT value FROM json_each(?{position})"

    def in_texts(self, position: int) -> str:
        return f"SELECT value FROM json_each(?{position})"

    def among(self, rows: str) -> str:
        return f"IN ({rows})"

    def number_from(self, name: str, first: int) -> str:
        return f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{name}', {first - 1})"

    def contains(self, column: Column, mark: str, row: str = "") -> str:
        return _CONTAINS[column.type].format(f"{row}{quote(column.name)}", mark)

    def in_order(self, column: Column, expression: str) -> str:  # noqa: ARG002
        return expression

    def size(self, column: Column, expression: str) -> str:
        if column.type is ColumnType.VECTOR:
            return f"length({expression}) / 4"
        if column.type is ColumnType.UUID_ARRAY:
            return f"length({expression}) / 16"
        return f"length(CAST({expression} AS BLOB))"

    def shown(self, column: Column, expression: str) -> str:
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

    def one_of(self, column: Column, name: str, mark: str) -> str:
        value = "unhex(value)" if column.type is ColumnType.UUID else "value"
        among = f"{name} IN (SELECT {value} FROM json_each({mark}))"
        if not column.nullable:
            return among
        return f"({among} OR ({name} IS NULL AND EXISTS (SELECT 1 FROM json_each({mark}) WHERE type = 'null')))"


DIALECT = SqliteDialect()


def _uuid(raw: str) -> str:
    digits = f"lower(hex({raw}))"
    ends = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return " || '-' || ".join(f"substr({digits}, {start}, {length})" for start, length in ends)


def _enum_constraint(column: Column) -> str:
    """Return the constraint of an enum's members as ``CREATE TABLE`` spells it; nothing for an open one."""
    members = enum_check(column)
    return f" CHECK ({members})" if members else ""
