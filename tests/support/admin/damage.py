"""A small store with something of everything in it, and ways to damage it as disks, tools and bad repairs do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import apsw
import psycopg
from support.api.doors import fill
from support.configs import config
from support.memories import FACT

import caliber
from caliber.config import CaliberConfig

OPTIONS: Final[dict[str, Any]] = {
    "memories": [FACT],
    "system_instructions": "You are a test.",
    "embedding__embed": {"default": "commit"},
}


def settings(path: Path) -> CaliberConfig:
    """Return the configuration of a filled store at a path."""
    return config(str(path), **OPTIONS)


def filled(path: Path) -> SimpleNamespace:
    """Make a store with rows in nearly every relation; return them, as ``doors.fill`` does."""
    caliber.create(settings(path))
    with caliber.open(settings(path)) as memory:
        ids = fill(memory)
    _run(path, ["PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = DELETE"])
    return ids


def _run(path: Path, statements: list[str]) -> None:
    connection = apsw.Connection(str(path))
    try:
        for statement in statements:
            connection.execute(statement).fetchall()
    finally:
        connection.close()


_VALUES: Final = (
    "NULL", "0", "-1", "9223372036854775807", "-9223372036854775808", "9e999", "''", "'nobody'", "'{\"a\": '",
    "'[[[1]]]'", "'5'", "CAST(x'ff41fe' AS TEXT)", "'[' || CAST(x'22ff22' AS TEXT) || ']'", "x''", "x'00'",
    "zeroblob(16)", "zeroblob(17)", 'substr("COLUMN", 1, length("COLUMN") / 2)', '"COLUMN" || "COLUMN"',
)  # fmt: skip
"""Values of a damaged cell: of another type, no member, no JSON, no UTF-8, cut short, too long."""


def cells(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each table with rows, and each column of it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ours = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        for (table,) in connection.execute(ours).fetchall():
            if connection.execute(f'SELECT count(*) FROM "{table}"').fetchall()[0][0]:
                for row in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                    yield table, row[1]
    finally:
        connection.close()


def wrong_values(path: Path) -> list[str]:
    """Return statements that each leave a sound SQLite file with a wrong value in it, or without rows."""
    found = list(cells(path))
    statements = [
        f'UPDATE "{table}" SET "{column}" = ' + value.replace("COLUMN", column)
        for table, column in found
        for value in _VALUES
    ]
    tables = sorted({table for table, _ in found})
    return statements + [f'{verb} "{table}"' for table in tables for verb in ("DELETE FROM", "DROP TABLE")]


def tell_wrong(path: Path, statement: str) -> bool:
    """Run a statement without any rule of the schema in the way; return whether it could be run at all."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON").fetchall()
        connection.execute(statement).fetchall()
        return bool(connection.changes()) or statement.startswith("DROP")
    except apsw.Error:
        return False  # a strict table takes no value of another type
    finally:
        connection.close()


_END: Final = 6_000
"""An archive says at its end what is in it."""


def damage_bytes(path: Path, chance: random.Random) -> str:
    """Flip, zero or cut bytes of a file, every other time near its end; return what was done."""
    raw = bytearray(path.read_bytes())
    how = chance.choice(("flip", "flip", "zero", "cut", "swap"))
    least = max(0, len(raw) - _END) if chance.random() < 0.5 else 0
    if how == "flip":
        for _ in range(chance.choice((1, 1, 8, 64))):
            raw[chance.randrange(least, len(raw))] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del raw[chance.randrange(least, len(raw)) :]
    elif how == "zero":
        start = chance.randrange(least, len(raw))
        size = min(len(raw) - start, chance.choice((1, 16, 512, 4096)))
        raw[start : start + size] = bytes(size)
    else:
        size = min(len(raw) // 2, chance.choice((16, 4096)))
        one, other = sorted(chance.randrange(len(raw) // size) * size for _ in range(2))
        raw[one : one + size], raw[other : other + size] = raw[other : other + size], raw[one : one + size]
    path.write_bytes(raw)
    return how


_LITERALS: Final = (
    "NULL", "0", "-1", "9223372036854775807", "", "nobody", '{"a": 1}', "[[[1]]]", "5", "{}", "{nobody}", r"\x00",
    r"\xff41fe", "NaN", "Infinity", "-infinity", "true", "00000000-0000-0000-0000-000000000000", "1970-01-01",
)  # fmt: skip
"""Values of a damaged cell of PostgreSQL; a column takes those that its type has."""


def change_a_value(dsn: str, schema: str, chance: random.Random) -> str:
    """Change a column of one row or of all, or remove rows or a table, whatever the rules of the schema; say what."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(f'SET search_path TO "{schema}"')
        connection.execute("SET lock_timeout = '2s'")  # a table that is read meanwhile is not dropped
        cells = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables"
            " USING (table_schema, table_name) WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY 1, 2",
            (schema,),
        ).fetchall()
        for _ in range(200):
            table, column = chance.choice(cells)
            some = chance.choice(("", f' WHERE ctid IN (SELECT ctid FROM "{table}" ORDER BY ctid DESC LIMIT 1)'))
            value = chance.choice(_LITERALS)
            text = "NULL" if value == "NULL" else f"'{value}'"
            statement = f'UPDATE "{table}" SET "{column}" = {text}{some}'
            if chance.random() < 0.05:
                statement = chance.choice((f'DELETE FROM "{table}"{some}', f'DROP TABLE "{table}" CASCADE'))
            try:
                with connection.transaction():
                    if chance.random() < 0.5:
                        _without_rules(connection, table, column)
                    done = connection.execute(statement)
                    if not done.rowcount:
                        raise psycopg.Rollback
                return statement
            except psycopg.Error:
                continue  # the type of the column has no such value
    return "nothing"


def _without_rules(connection: psycopg.Connection[Any], table: str, column: str) -> None:
    rules = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('c', 'u')", (f'"{table}"',)
    ).fetchall()
    for (name,) in rules:
        connection.execute(f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"')
    connection.execute(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" DROP NOT NULL')
