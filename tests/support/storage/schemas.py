"""Schemas of databases, as they are compared: the order of columns does not count, nor how a constraint was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Ask = Callable[[str], list[tuple[Any, ...]]]
Schema = dict[str, Any]

_KEY = re.compile(r" REFERENCES .*$", re.DOTALL)


def _parts(text: str) -> set[str]:
    """Return the columns and constraints of a CREATE TABLE, without foreign keys."""
    body, depth, parts = text[text.index("(") + 1 : text.rindex(")")], 0, [""]
    for letter in body:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return {_KEY.sub("", part.strip()) for part in parts if not part.strip().startswith("FOREIGN KEY")}


def sqlite_schema(ask: Ask) -> Schema:
    """Return the tables, foreign keys and indexes of a file."""
    out: Schema = {}
    for kind, name, table, text in ask("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql NOTNULL"):
        if kind == "table" and not name.startswith("sqlite_"):
            keys = {row[2:7] for row in ask(f"PRAGMA foreign_key_list('{name}')")}
            columns = {row[1:] for row in ask(f"PRAGMA table_xinfo('{name}')")}
            out[name] = (_parts(text), text.rsplit(")", 1)[1], keys, columns)
        elif kind != "table":
            out[name] = (table, text)
    return out


def postgres_schema(ask: Ask, schema: str) -> Schema:
    """Return the columns, constraints, indexes and comments of a schema."""
    of = f"c.relnamespace = '{schema}'::regnamespace"
    asked = {
        "columns": "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,"
        " pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum) FROM pg_class AS c JOIN pg_attribute AS a"
        " ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_attrdef AS d"
        f" ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE {of} AND c.relkind = 'r'",
        "constraints": "SELECT c.relname, o.conname, pg_get_constraintdef(o.oid), o.convalidated FROM pg_constraint"
        f" AS o JOIN pg_class AS c ON c.oid = o.conrelid WHERE {of}",
        "indexes": f"SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_class AS c WHERE {of} AND c.relkind = 'i'",
        "comments": "SELECT c.relname, c.relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class AS c"
        f" WHERE {of}",
    }
    return {
        name: {tuple(str(value).replace(f"{schema}.", "") for value in row) for row in ask(text)}
        for name, text in asked.items()
    }
